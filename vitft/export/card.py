"""The model card: a README.md that the hub and people read, made from the run's own files.

Class names and folder names are whatever a user's files were called. In YAML they are quoted, in
Markdown every sign that could mean something is written as its number, so text stays text.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitft.config.run import read_toml
from vitft.export.compare import Compared
from vitft.export.native import not_for_timm
from vitft.export.trained import Trained
from vitft.models.checkpoint import Card
from vitft.models.timm_model import TimmConfig
from vitft.system.errors import VitftError
from vitft.system.files import write_atomically

README = "README.md"
SHOWN = 200
"""Classes listed; the file of the model names all of them."""
LICENCES = ("apache-2.0", "mit", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0")
"""Identifiers that the hub knows and our catalogue uses."""


def write_readme(trained: Trained, folder: Path, repo: str, row: Compared) -> None:
    """The card of an exported folder.

    Args:
        trained: What was exported.
        folder: Where to.
        repo: owner/name under which it will be found.
        row: How the export compares with the run.
    """
    figures = read_figures(trained.run)
    header = yaml(header_of(trained.card, repo, row.name, figures, data_name(trained.run)))
    body = "\n".join(
        [*introduction(trained), *usage(trained.card, repo, row.name), *results(figures, row)]
    )
    write_atomically(folder / README, f"---\n{header}---\n\n{body}\n")


def read_figures(run: Path) -> Mapping[str, Any]:
    """The run's eval.json; empty for a bare checkpoint."""
    try:
        figures: Mapping[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return figures if isinstance(figures, dict) and "top1" in figures else {}


def data_name(run: Path) -> str:
    """The name of the image folder, without the way to it."""
    try:
        return Path(read_toml(run / "config.toml")["data"]["path"]).name or "images"
    except (VitftError, KeyError, TypeError):
        return "images"


def header_of(
    card: Card, repo: str, form: str, figures: Mapping[str, Any], data: str
) -> dict[str, Any]:
    """What the hub reads: library, task, licence, ancestor, figures."""
    library = "transformers" if form == "transformers" else "vitft"
    if form != "transformers" and not not_for_timm(card):
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
    if ancestor := base_model(card):
        header["base_model"] = ancestor
    if figures:
        header["model-index"] = [{"name": repo, "results": [result_of(figures, data)]}]
    return header


def base_model(card: Card) -> str:
    """Repository that the pretrained weights came from, if they came from the hub."""
    source = card.weights.get("source", "")
    return "/".join(source.split("/")[:2]) if card.weights.get("revision") else ""


def result_of(figures: Mapping[str, Any], data: str) -> dict[str, Any]:
    """The accuracy in the form of the hub's model index."""
    low, high = figures["top1_interval"]
    return {
        "task": {"type": "image-classification"},
        "dataset": {"type": "imagefolder", "name": data, "split": "validation"},
        "metrics": [
            {
                "type": "accuracy",
                "value": round(figures["top1"], 6),
                "name": f"accuracy on {figures['images']} validation images, 95 % interval "
                f"{low:.1%} to {high:.1%}",
            }
        ],
    }


def introduction(trained: Trained) -> list[str]:
    """What the model is and what it was made of."""
    card = trained.card
    shape, transform = card.architecture, card.transform
    kind = (
        f"timm's {text(shape.timm)}"
        if isinstance(shape, TimmConfig)
        else f"Vision Transformer, {shape.depth} blocks of width {shape.width}, patches of "
        f"{shape.patch_size[0]} pixels"
    )
    origin = Path(card.weights.get("name", "")).name
    count = len(card.classes)
    return [
        f"# An image classifier with {count} classes",
        "",
        f"{kind}, fine-tuned"
        # A file called model.safetensors tells nothing.
        + (f" from {text(origin)}" if origin not in ("", "model") else "")
        + f" with vitft {version('vitft')}.",
        "",
        f"An image is {'resized and cut' if transform.fit == 'crop' else 'resized'} to "
        f"{transform.image_size[0]} x {transform.image_size[1]} pixels "
        f"({transform.interpolation}, crop {transform.crop:g}) and normalised with mean "
        f"{list(transform.mean)} and std {list(transform.std)}; every library below reads this "
        "from the repository.",
        "",
    ]


def usage(card: Card, repo: str, form: str) -> list[str]:
    """How to use it, in the libraries that open this format."""
    lines = ["## Use", ""]
    if form == "transformers":
        lines += [
            "    from transformers import pipeline",
            f'    pipeline("image-classification", "{repo}")("photo.jpg")',
            "",
            "(`pip install transformers timm torchvision`; the preprocessing is timm's.)",
        ]
    else:
        lines += [f"    vitft predict --run hf:{repo} photo.jpg"]
        if not not_for_timm(card):
            lines += [
                "",
                "    import timm",
                f'    model = timm.create_model("hf-hub:{repo}", pretrained=True)',
                '    classes = model.pretrained_cfg["label_names"]',
            ]
    return [*lines, ""]


def results(figures: Mapping[str, Any], row: Compared) -> list[str]:
    """How good it is, class by class, and how the file compares with the run."""
    on = f"{row.images} validation images" if row.images else "noise (the images are gone)"
    same = (
        f"The file was opened by {row.by} and compared with the run on {on}: largest "
        f"difference of a logit {row.difference:.1e}, {row.changed} changed answers."
    )
    if not figures:
        return [same]
    low, high = figures["top1_interval"]
    selected = (
        " The epoch was chosen on the same images, so the figure is slightly optimistic."
        if figures.get("selected_on_validation")
        else ""
    )
    rows = list(figures.get("per_class", {}).items())
    table = [
        f"| {text(name)} | {each.get('images', 0)} | {share(each.get('recall'))} | "
        f"{share(each.get('precision'))} |"
        for name, each in rows[:SHOWN]
    ]
    more = [f"\n({len(rows) - SHOWN} more classes)"] if len(rows) > SHOWN else []
    return [
        "## Results",
        "",
        f"Accuracy {figures['top1']:.1%} (95 % interval {low:.1%} to {high:.1%}) on "
        f"{figures['images']} validation images that were held back; always naming the largest "
        f"class gives {figures.get('majority', 0):.1%}.{selected}",
        "",
        "| class | validation images | found | right when named |",
        "|---|---:|---:|---:|",
        *table,
        *more,
        "",
        same,
    ]


def share(value: float | None) -> str:
    """A share as percent; a dash where it is undefined."""
    return "–" if value is None else f"{value:.1%}"


def text(words: str) -> str:
    """Words that Markdown shows as they are, on one line.

    Signs become character references, which CommonMark never reads as structure, links or HTML
    (section 6.2); what cannot be seen becomes its code point.
    """
    return "".join(
        c
        if c.isalnum() or c in " -"
        else f"U+{ord(c):04X}"
        if unicodedata.category(c)[0] in "CZ"
        else f"&#{ord(c)};"
        for c in words
    )


def yaml(value: Any, indent: int = 0) -> str:  # noqa: ANN401 - what JSON can hold
    """Tables and lists as YAML blocks; every text is quoted."""
    blank = "  " * indent
    if isinstance(value, dict):
        return "".join(f"{blank}{key}:{below(each, indent)}" for key, each in value.items())
    return "".join(f"{blank}- {yaml_item(each, indent)}" for each in value)


def below(value: Any, indent: int) -> str:  # noqa: ANN401
    """What follows a key."""
    if isinstance(value, dict | list):
        return f"\n{yaml(value, indent + 1)}"
    return f" {scalar(value)}\n"


def yaml_item(value: Any, indent: int) -> str:  # noqa: ANN401
    """What follows a dash."""
    if isinstance(value, dict):
        return yaml(value, indent + 1).lstrip(" ")
    return f"{scalar(value)}\n"


def scalar(value: str | float) -> str:
    """One value; plain words stay bare, other texts are quoted with YAML's own escapes."""
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[a-z][a-z0-9-]*(\.[0-9]+)?", value) and value not in ("null", "true", "no"):
        return value
    return '"' + "".join(escaped(c) for c in value) + '"'


def escaped(c: str) -> str:
    """One character inside of double quotes (YAML 1.2.2, section 5.7)."""
    if c in '"\\':
        return f"\\{c}"
    return c if c.isprintable() else f"\\U{ord(c):08X}" if ord(c) > 0xFFFF else f"\\u{ord(c):04X}"
