"""Description of a run for its report page: a few sentences, and all metrics with intervals."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from vitft.config.sections import layers_text
from vitft.data.inspection import describe_counts
from vitft.data.transforms import describe_view
from vitft.features.ood import TOO_HIGH, alarms_text
from vitft.features.reference import power_text
from vitft.messages.results import chance_clause, distinguishes, how_measured
from vitft.messages.training import (
    describe_interpolation,
    describe_skipped,
    describe_start,
    selected_epoch,
    start_trials,
)
from vitft.metrics.results import Interval
from vitft.models.pretrained.catalog import weights_name
from vitft.models.vit_config import ViTConfig
from vitft.report.charts import score_bar
from vitft.report.run_files import Run
from vitft.system.text import (
    count,
    duration,
    interval,
    listing,
    not_calibrated,
    percent,
    percent_or_bound,
    scored_images,
)

_WHAT_WAS_TRAINED: Mapping[str, str] = {  # by `train.layers`
    "head": "only a new linear head was trained",
    "pre_logits": "only its pre_logits layer and a new head were trained",
    "lora": "LoRA adapters and a new head were trained",
    "all": "all of its layers were trained",
}


@dataclass(frozen=True, slots=True)
class _KeyFigure:
    """A metric with its 95% interval and an explanation."""

    name: str
    value: str
    interval: str
    meaning: str
    bar: str = ""
    """SVG of the value and its interval; empty for the calibration error."""


def summary_sentences(run: Run) -> list[str]:
    """Return the non-empty paragraphs on data, model, time budget, flagged images and limits."""
    paragraphs = (
        _describe_data(run),
        _describe_model(run),
        _describe_budget(run),
        _describe_unlike(run),
        cautions(run),
    )
    return [text for text in paragraphs if text]


def _describe_data(run: Run) -> str:
    """Return sentences about the classes and the numbers of images, or "" if there is no split."""
    parts = Counter(row.split for row in run.rows)
    if not run.rows:
        return ""
    origin = f" from “{run.data_name}”" if run.data_name else ""
    classes = f"{count(len(run.classes), 'class', 'classes')} ({listing(run.classes)})"
    clause = chance_clause(run.results)
    if run.several:
        classes = f"{count(len(run.classes), 'label')} ({listing(run.classes)})"
    text = f"{distinguishes('This model', classes, clause)}."
    if run.several and not clause:
        text = f"This multi-label model assigns each image any combination of {classes}."
    bad, used = len(run.audit.get("bad", [])), len(run.rows)
    different = len({row.sha256 for row in run.rows})
    once = different < used
    text_of_counts = describe_counts(bad, used, different=different)
    counts = f" The data: {text_of_counts}." if bad or once else ""
    return (
        f"{text} It was trained on {count(parts['train'], 'image')}{origin} and "
        f"evaluated on {count(parts['val'], 'other image')}, the validation images.{counts}"
        f"{' Copies count once.' * once}"
    )


def _describe_model(run: Run) -> str:
    """Describe the architecture, the initial weights, the trained layers and the input."""
    name, shape = str(run.setting("weights", "name") or ""), run.card and run.card.architecture
    if not name and not shape:
        return ""
    kind = "Vision Transformer" if isinstance(shape, ViTConfig) else "network"
    size = f"{run.parameters:,}"
    if run.parameters >= 100_000:
        size = f"{run.parameters / 1e6:,.1f} million"
    blocks = f"{count(shape.depth, 'block')}, " if isinstance(shape, ViTConfig) else ""
    origin = f"was pretrained (weights: {weights_name(name) or 'unknown'})"
    if name == "none" or name.startswith("random:"):
        origin = "was initialised at random"
    trained = []  # a clause for each stage
    for stage in filter(None, str(run.setting("train", "layers") or "").split(",")):
        number = stage.removeprefix("blocks:")
        if number != stage:
            last = "its last block" if number == "1" else f"its last {number} blocks"
            trained.append(f"{last} and a new head were trained")
        else:
            trained.append(_WHAT_WAS_TRAINED.get(stage, ""))
    pixels = shape.image_size if shape else ()
    inputs = f" Its input is {pixels[0]} × {pixels[1]} pixels." if pixels else ""
    view = run.audit.get("view")
    if view:
        text = describe_view(view)
        inputs += f" {text[0].upper()}{text[1:]}."
    training = f"; {', then '.join(filter(None, trained))}" if any(trained) else ""
    return f"The {kind} ({blocks}{size} parameters) {origin}{training}.{inputs}"


def _describe_budget(run: Run) -> str:
    """Return sentences about the trials of a run with a time budget, or "" for other runs."""
    budget = run.measured.get("budget")
    if not budget:
        return ""
    text = f"The run had a time budget of {duration(budget['seconds'])}."
    for start in start_trials(budget):
        sentence = describe_start(start)
        text += f" {sentence[0].upper()}{sentence[1:]}."
    for trial in budget["trials"]:
        folds = trial.get("folds", 1)
        part = describe_interpolation(trial)
        again = f", {folds} times, each with other images held out" if folds > 1 else ""
        text += (
            f" A trial trained {layers_text(trial['layers'])} for "
            f"{count(trial['epochs'], 'epoch')} on {trial['images']:,} of the training "
            f"images{again}{f', {part}' if part else ''}. The accuracy on the "
            f"{trial['held_out']:,} held-out images was "
            f"{percent(trial['top1'])}, compared with {percent(trial['head_top1'])} for the head "
            f"alone, and the mean loss, which decides, {trial['loss']:.3f}, compared with "
            f"{trial['head_loss']:.3f}."
        )
    if budget["chosen"] == "head" and budget["trials"]:
        text += (
            " Only the head was trained, because no trial was clearly better than the head alone."
        )
    for skipped in budget["skipped"]:
        sentence = describe_skipped(skipped)
        text += f" {sentence[0].upper()}{sentence[1:]}."
    return text


def _describe_unlike(run: Run) -> str:
    """Describe the reliability of the note "unlike the training images"."""
    found = run.audit.get("out_of_distribution")
    if not run.measured:
        return ""
    if not run.notes_unlike:
        because = f": {found['reason']}" if found and found["reason"] else ""
        return f"The model does not flag images that are unlike the training images{because}."
    text = "The model flags images that are unlike the training images"
    if not found or found["unknown_class_range"] is None or found["false_alarms"] is None:
        return f"{text}; how reliably it does so was not measured."
    power = power_text(found["unknown_class_range"])
    left_out = count(found["classes_left_out"], "class was", "classes were")
    return (
        f"{text}, but this is not fully reliable. When {left_out} left out one at a time, {power}. "
        f"{f'These rates {TOO_HIGH}. ' * found['features_trained']}"
        f"{alarms_text(found).capitalize()} of images of known classes are also flagged."
    )


def cautions(run: Run) -> str:
    """Return sentences about the limits of the results, or an empty string if none are known."""
    status = run.environment.get("status", "finished")
    if not run.measured:
        return f"The run has no results: its status is “{status}”."
    texts = []
    if status == "interrupted":
        texts.append("The run was interrupted; these are the results of the best weights so far.")
    elif status != "finished":
        texts.append(f"The status of the run is “{status}”: the results may be incomplete.")
    if run.several:
        texts.append(
            "On this page, including in the accuracy, an image counts as correct only if exactly "
            "its labels are predicted."
        )
    if run.measured.get("selected_on_validation"):
        planned = int(run.setting("optim", "epochs") or 0)
        selected = selected_epoch(run.measured, str(run.setting("train", "layers") or ""), planned)
        texts.append(
            f"{selected[0].upper()}{selected[1:]} was selected on the validation images, so the "
            "accuracy is slightly optimistic."
        )
    if (head := run.measured.get("head")) and head["last_block_top1"] is not None:
        texts.append(
            f"The head reads the last {head['blocks']} blocks. A head that reads only the last "
            "block, as in exports for timm and transformers, classifies "
            f"{percent(head['last_block_top1'])} of the validation images correctly."
        )
    return " ".join(texts)


def key_figures(run: Run) -> list[_KeyFigure]:
    """Return the metrics of a run, or an empty list if the run has no results."""
    results = run.measured
    if not results:
        return []
    fractions: list[tuple[str, float, Interval | None, str]] = [
        (
            f"{'test ' * (one.kind == 'test')}{one.measure}",
            one.value,
            one.interval,
            how_measured(one).lstrip(", "),
        )
        for one in run.results.estimates
    ]
    if found := results.get("labels"):
        fractions.append(
            ("mean F1", found["macro_f1"], found["macro_f1_interval"], "mean over the labels")
        )
    if (more := results.get("cross_validation")) and not (
        run.several or run.results.estimate("cross-validation")
    ):
        name = "cross-validated accuracy of the head alone, before further training"
        text = f"on {scored_images(more)}, each predicted by a head that was not trained on it"
        fractions.append((name, more["top1"], more["top1_interval"], text))
    name, meaning = "balanced accuracy", "mean recall of all classes"
    if run.several:
        name, meaning = "mean recall", "mean over the labels that occur"
    fractions.append((name, results["balanced"], results["balanced_interval"], meaning))
    figures = [
        _KeyFigure(name, percent(v), interval(ends), text, score_bar(name, v, ends, None))
        for name, v, ends, text in fractions
    ]
    calibration = results["calibration"]
    if calibration and not not_calibrated(results):
        bounds = calibration["ece_interval"]
        value = percent_or_bound(calibration["ece"], bounds)
        meaning = "mean difference between confidence and accuracy"
        figures.append(_KeyFigure("calibration error", value, interval(bounds), meaning))
    return figures
