"""The parts of a page that say what was done, how good it is, and how to do it again."""

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitft.config.run import Config, config_from_table, merge_settings
from vitft.predict.validation import mistakes
from vitft.report.advice import cross_validated_spots, held_back_spots
from vitft.report.run_files import Run
from vitft.system.errors import UsageError
from vitft.system.text import count, interval, listing, percent

TRAINED: Mapping[str, str] = {
    "head": "only a new linear head on top of it was fitted",
    "pre_logits": "only its last layer before the head, and a new head, were trained",
    "none": "all of it was trained",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure with its name and what it means."""

    name: str
    figure: str
    range: str
    meaning: str


def story(run: Run) -> list[str]:
    """What was done and what came of it, in a few sentences."""
    return [text for text in (of_data(run), of_model(run), of_result(run), of_end(run)) if text]


def of_data(run: Run) -> str:
    """The images."""
    parts = Counter(row.split for row in run.rows)
    if not run.rows:
        return ""
    where = f" from the folder “{run.data_name}”" if run.data_name else ""
    return (
        f"This model tells {len(run.classes)} classes apart ({listing(run.classes)}). "
        f"It learned from {count(parts['train'], 'image')}{where}; "
        f"{count(parts['val'], 'more image')} {'was' if parts['val'] == 1 else 'were'} held back "
        "to measure it (the validation images)."
    )


def of_model(run: Run) -> str:
    """The network, where its weights came from, and what of it was trained."""
    named, shape = str(setting(run, "weights", "name") or ""), run.card.get("architecture", {})
    if not named and not shape:
        return ""
    size = run.card.get("transform", {}).get("image_size", [])
    blocks = f"{shape['depth']} blocks, " if "depth" in shape else ""
    views = f" It sees images at {size[0]} × {size[1]} pixels." if len(size) == 2 else ""
    begun = f"was pretrained (weights: {weights_name(named) or 'unknown'})"
    if named == "none" or named.startswith("random:"):
        begun = "began with random weights"
    trained = what_trained(str(setting(run, "train", "freeze") or ""))
    kind = "Vision Transformer" if "patch_size" in shape else "network"
    size_of = f"{run.parameters:,}"
    if run.parameters >= 100_000:
        size_of = f"{run.parameters / 1e6:,.1f} million"
    end = f"; {trained}." if trained else "."
    return f"The {kind} ({blocks}{size_of} parameters) {begun}{end}{views}"


def what_trained(freeze: str) -> str:
    """`train.freeze` in words, stage by stage."""
    words = []
    for stage in filter(None, freeze.split(",")):
        blocks = stage.removeprefix("blocks:")
        last = (
            "block and a new head were" if blocks == "1" else f"{blocks} blocks and a new head were"
        )
        words.append(f"its last {last} trained" if blocks != stage else TRAINED.get(stage, ""))
    return ", then ".join(word for word in words if word)


def weights_name(named: str) -> str:
    """A catalogue name as it is; of a path its last part that says something."""
    path = Path(named)
    if path.suffix in (".safetensors", ".bin", ".pth", ".npz"):
        return path.parent.name if path.stem in ("model", "pytorch_model") else path.stem
    return path.name if named.startswith(("/", "~", ".")) else named


def of_result(run: Run) -> str:
    """How good, how sure, and where it is weakest."""
    figures = run.figures
    if not figures:
        return ""
    text = (
        f"It names {percent(figures['top1'])} of the {count(figures['images'], 'held-back image')} "
        f"right. On other images of the same kind expect {interval(figures['top1_interval'])} "
        "(95 % interval)."
    )
    if figures.get("majority") is not None:
        text += f" Always naming the largest class would give {percent(figures['majority'])}."
    return f"{text} {of_weakest(run)}".strip()


def of_weakest(run: Run) -> str:
    """The class to be careful with, by the images that say most about it."""
    by_all, held_back = cross_validated_spots(run)[:1], held_back_spots(run)[:1]
    spots = [spot for spot in by_all + held_back if spot.recall < 1]
    if not spots:
        return "No class was ever missed." if held_back else ""
    said = [
        f"{spot.name}: {percent(spot.recall, 0)} of its {count(spot.images, spot.kind)} found "
        f"({interval(spot.bounds, 0)})"
        for spot in spots
    ]
    if len(spots) == 2 and spots[0].name != spots[1].name:
        return f"The weakest class is {said[0]}. Among the held-back images alone it is {said[1]}."
    return f"The weakest class is {said[0]}."


def of_end(run: Run) -> str:
    """What a reader must know before believing the figures."""
    status = run.environment.get("status", "finished")
    if not run.figures:
        return f"Nothing was measured: the run is marked “{status}”. What it left is shown below."
    cautions = []
    if status == "interrupted":
        cautions.append("The run was interrupted; these are the best weights until then.")
    elif status != "finished":
        cautions.append(f"The run is marked “{status}”: it may not have come to its end.")
    if run.figures.get("selected_on_validation"):
        cautions.append(
            f"Epoch {run.figures['best_epoch']} of {run.figures['epochs']} did best on the same "
            "images that are counted here, so the accuracy is slightly optimistic."
        )
    return " ".join(cautions)


def tiles(run: Run) -> list[Tile]:
    """The figures a reader looks for first."""
    figures = run.figures
    if not figures:
        return []
    found = [
        Tile(
            "accuracy",
            percent(figures["top1"]),
            interval(figures["top1_interval"]),
            f"of {count(figures['images'], 'held-back image')}",
        )
    ]
    more = figures.get("cross_validation")
    if more:
        found.append(
            Tile(
                "cross-validated",
                percent(more["top1"]),
                interval(more.get("top1_interval")),
                f"over {count(more['images'], 'image')}, each judged by a head that did not see it",
            )
        )
    if figures.get("balanced") is not None:
        found.append(
            Tile(
                "balanced accuracy",
                percent(figures["balanced"]),
                interval(figures.get("balanced_interval")),
                "mean over classes, whatever their sizes",
            )
        )
    calibration = figures.get("calibration") or {}
    if calibration.get("ece") is not None:
        found.append(
            Tile(
                "calibration error",
                percent(calibration["ece"]),
                interval(calibration.get("ece_interval")),
                "how far confidence and accuracy lie apart",
            )
        )
    wrong = mistakes(run.verdicts)
    if run.verdicts:
        confident = sum(v.probability > 0.9 for v in wrong)
        found.append(
            Tile(
                "mistakes",
                f"{len(wrong):,}",
                f"{confident:,} of them over 90 % sure" if wrong else "",
                f"among {count(len(run.verdicts), 'held-back image')}",
            )
        )
    return found


def setting(run: Run, section: str, name: str) -> Any:  # noqa: ANN401 - whatever was set
    """A setting of config.toml; None if it is not there."""
    return run.config.get(section, {}).get(name)


def command_of(config: Mapping[str, Any]) -> str:
    """The shortest command with the same settings; empty if they cannot be read any more."""
    try:
        config_from_table(config)  # of this version, or there is no command for it
        whole = flat(config)
        named = {key: whole[key] for key in ("data.path", "weights.name") if whole.get(key)}
        parts = [f"--{key.partition('.')[0]} {shlex.quote(str(v))}" for key, v in named.items()]
        for key in ("train.freeze", "train.augment", "optim.solver"):  # these set other defaults
            if key in whole and whole[key] != flat_defaults(named).get(key):
                named[key] = whole[key]
                parts.append(f"--set {shlex.quote(f'{key}={toml_word(whole[key])}')}")
        usual = flat_defaults(named)
        parts += [
            f"--set {shlex.quote(f'{key}={toml_word(value)}')}"
            for key, value in whole.items()
            if key not in named and usual.get(key) != value
        ]
        return "vitft finetune " + " ".join(parts)
    except (UsageError, AttributeError, TypeError):
        return ""


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys."""
    return {f"{s}.{k}": v for s, table in config.items() for k, v in table.items()}


def flat_defaults(named: Mapping[str, Any]) -> dict[str, Any]:
    """What every setting is if only these are named, as config.toml would state it."""
    import dataclasses

    config: Config = config_from_table(merge_settings({}, list(named.items())))
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in flat(dataclasses.asdict(config)).items()
        if value is not None
    }


def toml_word(value: Any) -> str:  # noqa: ANN401 - whatever TOML holds
    """A value as `--set` reads it back."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, (list, tuple)) else str(value)


def versions(run: Run) -> list[tuple[str, str]]:
    """What it ran on and with."""
    known = run.environment
    first = [
        (key, str(known[key]))
        for key in ("device", "precision", "python", "system")
        if known.get(key)
    ]
    return first + [(name, str(v)) for name, v in known.get("packages", {}).items()]


def digests(run: Run) -> list[tuple[str, str]]:
    """The fingerprints by which data, weights and model can be told from others."""
    weights = run.card.get("weights", {})
    pairs = [
        ("trained model (sha256 of card and tensors)", run.digest),
        ("split.csv (sha256 of the table)", str(run.card.get("split", ""))),
        ("pretrained weights (sha256 of the file)", str(weights.get("sha256", ""))),
        ("pretrained weights, source", str(weights.get("source", ""))),
        ("pretrained weights, licence", str(weights.get("licence", ""))),
    ]
    return [(name, value) for name, value in pairs if value]
