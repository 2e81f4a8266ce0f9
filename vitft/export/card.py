"""Model card of a hub repository: a README.md generated from the files of a run.

Class and folder names can contain any character. They are quoted in YAML; in Markdown, all
characters that might have a special meaning are replaced by character references.
"""

import json
import unicodedata
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import yaml

from vitft.config.run import read_toml
from vitft.export.compare import ExportComparison
from vitft.export.formats.timm import timm_obstacle
from vitft.export.trained import TrainedRun
from vitft.metrics.results import RunResults
from vitft.models.card import Card
from vitft.models.timm_config import TimmConfig
from vitft.system.errors import VitftError
from vitft.system.files import write_atomically
from vitft.system.text import count, interval, percent

MAX_CLASSES_LISTED = 200
"""Maximum number of classes in the table; the model file contains all of them."""
LICENCES = ("apache-2.0", "mit", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0")
"""Licence identifiers of the hub that occur in the catalogue."""


class CardDumper(yaml.SafeDumper):  # type: ignore[misc]
    """A YAML dumper that escapes line breaks, so that no text can end the header early."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


CardDumper.add_representer(str, CardDumper.represent_str)


def write_readme(trained: TrainedRun, folder: Path, repo: str, row: ExportComparison) -> None:
    """Write the model card of the repository `repo` (owner/name) to an exported folder."""
    results = read_results(trained.run)
    metadata = header_of(trained.card, repo, row.name, results, data_name(trained.run))
    header = yaml.dump(metadata, Dumper=CardDumper, sort_keys=False, width=10**6)
    body = "\n".join(
        [
            *introduction(trained),
            *usage_section(trained.card, repo, row.name),
            *results_section(results, row),
        ]
    )
    write_atomically(folder / "README.md", f"---\n{header}---\n\n{body}\n")


def read_results(run: Path) -> RunResults | None:
    """Return the content of a run's eval.json, or None if it is missing or incomplete."""
    try:
        results = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_usable = isinstance(results, dict) and "top1" in results
    return cast("RunResults", results) if is_usable else None


def data_name(run: Path) -> str:
    """Return the name of the image folder without its path."""
    try:
        return Path(read_toml(run / "config.toml")["data"]["path"]).name or "images"
    except (VitftError, KeyError, TypeError):
        return "images"


def header_of(
    card: Card, repo: str, form: str, results: RunResults | None, data: str
) -> dict[str, Any]:
    """Return the metadata for the hub: library, task, licence, base model and results."""
    library = "transformers" if form == "transformers" else "vitft"
    if form != "transformers" and not timm_obstacle(card):
        library = "timm"
    licence = card.weights.get("licence", "")
    header: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "image-classification",
        "license": licence if licence in LICENCES else "other" if licence else "unknown",
        "tags": ["image-classification", "vision-transformer", "vitft", library],
    }
    if header["license"] == "other":
        header["license_name"] = licence
    if card.weights.get("revision") and (source := card.weights.get("source")):  # from the hub
        header["base_model"] = "/".join(source.split("/")[:2])
    if results:
        header["model-index"] = [{"name": repo, "results": [result_of(results, data)]}]
    return header


def result_of(results: RunResults, data: str) -> dict[str, Any]:
    """Return the accuracy as an entry of the hub's model index."""
    return {
        "task": {"type": "image-classification"},
        "dataset": {"type": "imagefolder", "name": data, "split": "validation"},
        "metrics": [
            {
                "type": "accuracy",
                "value": round(results["top1"], 6),
                "name": f"accuracy on {count(results['images'], 'validation image')}, 95 % "
                f"interval {interval(results['top1_interval'])}",
            }
        ],
    }


def introduction(trained: TrainedRun) -> list[str]:
    """Return the lines that describe the model and its training."""
    card = trained.card
    shape, transform = card.architecture, card.transform
    kind = (
        f"timm model {markdown_text(shape.timm)}"
        if isinstance(shape, TimmConfig)
        else f"Vision Transformer with {shape.depth} blocks of width {shape.width} and patches of "
        f"{shape.patch_size[0]} pixels"
    )
    origin = Path(card.weights.get("name", "")).name
    num_classes = len(card.classes)
    return [
        f"# An image classifier with {num_classes} classes",
        "",
        f"{kind}, fine-tuned"
        # The file name model.safetensors conveys no information.
        + (f" from {markdown_text(origin)}" if origin not in ("", "model") else "")
        + f" with vitft {version('vitft')}.",
        "",
        f"Images are {'resized and cropped' if transform.fit == 'crop' else 'resized'} to "
        f"{transform.image_size[0]} x {transform.image_size[1]} pixels "
        f"({transform.interpolation}, crop {transform.crop:g}) and normalised with mean "
        f"{list(transform.mean)} and std {list(transform.std)}. The libraries below read these "
        "settings from the repository.",
        "",
    ]


def usage_section(card: Card, repo: str, form: str) -> list[str]:
    """Return the lines on how to use the model with libraries that open this format."""
    lines = ["## Use", ""]
    if form == "transformers":
        lines += [
            "    from transformers import pipeline",
            f'    pipeline("image-classification", "{repo}")("photo.jpg")',
            "",
            "Install the requirements with `pip install transformers timm torchvision`; timm "
            "preprocesses the images.",
        ]
    else:
        lines += [f"    vitft predict --run hf:{repo} photo.jpg"]
        if not timm_obstacle(card):
            lines += [
                "",
                "    import timm",
                f'    model = timm.create_model("hf-hub:{repo}", pretrained=True)',
                '    classes = model.pretrained_cfg["label_names"]',
            ]
    return [*lines, ""]


def results_section(results: RunResults | None, row: ExportComparison) -> list[str]:
    """Return the lines on the accuracy, overall and by class, and on the export's fidelity."""
    noise = "random noise, because the validation images were missing"
    on = count(row.images, "validation image") if row.images else noise
    same = (
        f"The exported model was opened with {row.by} and compared with the original on {on}: "
        f"largest logit difference {row.difference:.1e}, "
        f"{count(row.changed, 'changed prediction')}."
    )
    if not results:
        return [same]
    selected = (
        " The epoch was selected on the same images, so the accuracy is slightly optimistic."
        if results.get("selected_on_validation")
        else ""
    )
    rows = list(results.get("per_class", {}).items())
    table = [
        f"| {markdown_text(name)} | {each.get('images', 0)} | {percent(each.get('recall'))} | "
        f"{percent(each.get('precision'))} |"
        for name, each in rows[:MAX_CLASSES_LISTED]
    ]
    hidden = len(rows) - MAX_CLASSES_LISTED
    more = [f"\n({count(hidden, 'more class', 'more classes')})"] if hidden > 0 else []
    return [
        "## Results",
        "",
        f"Accuracy {percent(results['top1'])} (95 % interval "
        f"{interval(results['top1_interval'])}) on "
        f"{count(results['images'], 'held-out validation image')}; baseline (largest class): "
        f"{percent(results.get('majority', 0))}.{selected}",
        "",
        "| class | validation images | recall | precision |",
        "|---|---:|---:|---:|",
        *table,
        *more,
        "",
        same,
    ]


def markdown_text(words: str) -> str:
    """Return text escaped so that Markdown displays it literally, on one line.

    Punctuation is replaced by character references, which CommonMark never parses as structure,
    links or HTML (section 6.2), and invisible characters by their code points.
    """
    return "".join(
        c
        if c.isalnum() or c in " -"
        else f"U+{ord(c):04X}"
        if unicodedata.category(c)[0] in "CZ"
        else f"&#{ord(c)};"
        for c in words
    )
