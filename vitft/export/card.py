"""Model card of an exported folder: a README.md generated from the files of a run.

Class and folder names can contain any character. They are quoted in YAML; in Markdown, all
characters that might have a special meaning are replaced by character references.
"""

import unicodedata
from pathlib import Path
from typing import Any

import yaml

from vitft.export.compare import ExportComparison
from vitft.export.facts import (
    accuracy_sentence,
    catalog_origin,
    class_figures,
    data_name,
    data_sentence,
    licence_sentence,
    model_sentence,
    pretrained_licence,
    results_of,
    view_sentence,
)
from vitft.export.formats.timm import timm_obstacle
from vitft.export.plan import ExportPlan
from vitft.export.snippets import (
    GRAPH_SNIPPETS,
    GraphInput,
    Snippet,
    caveat,
    command_line,
    javascript_caveat,
    javascript_snippet,
    timm_snippet,
    transformers_snippet,
)
from vitft.export.trained import TrainedRun
from vitft.metrics.chance import chance_level
from vitft.metrics.results import RunResults
from vitft.models.card import Card, Provenance
from vitft.system.files import write_atomically
from vitft.system.text import count, interval

MAX_CLASSES_LISTED = 200
"""Maximum number of classes in the table; the model file contains all of them."""
LICENCES = (
    "apache-2.0", "mit", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0", "bsd-2-clause", "bsd-3-clause", "mpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0",
    "openrail", "unlicense", "unknown",
)  # fmt: skip
"""Licence identifiers of the hub; any other licence is declared as `other` with its name."""


PAGE_USE = (
    "Open index.html in a browser, from the disk or from any web server. It needs no network and "
    "sends nothing: images stay on the device. Other libraries cannot open it."
)
LIBRARIES = {
    "timm": "timm",
    "transformers": "transformers",
    "transformers-js": "transformers.js",
    "onnx": "onnx",
    "int8": "onnx",
}
"""Hub name of the library that opens each format; `vitft` for formats not listed."""


class CardDumper(yaml.SafeDumper):  # type: ignore[misc]
    """A YAML dumper that escapes line breaks so that no text can end the header early."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


CardDumper.add_representer(str, CardDumper.represent_str)


def write_readme(
    trained: TrainedRun, folder: Path, row: ExportComparison, plan: ExportPlan
) -> None:
    """Write the model card of an exported folder, with programs that open the folder.

    If the plan has a hub repository, the programs open the repository instead.
    """
    results = results_of(trained)
    data = data_name(trained.run)
    metadata = header_of(trained.card, row.name, results, data, plan)
    header = yaml.dump(metadata, Dumper=CardDumper, sort_keys=False, width=10**6)
    body = "\n".join(
        [
            *introduction(trained, results, row.name),
            *usage_section(trained.card, row.name, plan),
            *data_section(trained, results),
            *results_section(results, row),
            *licence_section(trained.card, plan.licence),
        ]
    )
    write_atomically(folder / "README.md", f"---\n{header}---\n\n{body}\n")


def header_of(
    card: Card, form: str, results: RunResults | None, data: str, plan: ExportPlan
) -> dict[str, Any]:
    """Return the metadata for the hub: library, task, licence, base model and results."""
    library = LIBRARIES.get(form, "vitft")
    if form == "safetensors" and not timm_obstacle(card):
        library = "timm"
    licence = plan.licence or pretrained_licence(card.weights)
    is_known = licence.lower() in LICENCES
    header: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "image-classification",
        "license": licence.lower() if is_known else "other" if licence else "unknown",
        "tags": [*dict.fromkeys(["image-classification", "vision-transformer", "vitft", library])],
    }
    if header["license"] == "other":
        header["license_name"] = licence
    if base := base_model(card.weights):
        header["base_model"] = base
    if results:
        name = plan.repo or f"{data} classifier"
        header["model-index"] = [{"name": name, "results": [result_of(results, data)]}]
    return header


def base_model(weights: Provenance) -> str:
    """Return the hub repository of the pretrained weights, or an empty string if it is unknown."""
    source = weights.get("source")
    if weights.get("revision") and source:  # from the hub
        return "/".join(source.split("/")[:2])
    entry = catalog_origin(weights)
    return entry.repo if entry else ""


def result_of(results: RunResults, data: str) -> dict[str, Any]:
    """Return the accuracy as an entry of the hub's model index."""
    return {
        "task": {"type": "image-classification"},
        "dataset": {"type": "imagefolder", "name": data, "split": "validation"},
        "metrics": [
            {
                "type": "accuracy",
                "value": round(results["top1"], 6),
                "name": f"accuracy on {count(results['images'], 'validation image')}, 95% "
                f"interval {interval(results['top1_interval'])}",
            }
        ],
    }


def introduction(trained: TrainedRun, results: RunResults | None, form: str) -> list[str]:
    """Return the lines that describe the model, its training, and whether it is at chance level."""
    card = trained.card
    clause = chance_level(results) if results else ""
    by = "The page does" if form == "html" else "The programs below do"
    caution = f"**This model is at chance level:** it {markdown_text(clause)}."
    return [
        f"# An image classifier with {len(card.classes)} classes",
        "",
        model_sentence(card, markdown_text),
        "",
        *([caution, ""] if clause else []),
        f"{view_sentence(card)} {by} this.",
        "",
    ]


def usage_section(card: Card, form: str, plan: ExportPlan) -> list[str]:
    """Return the lines with complete programs for the libraries that open this format."""
    lines = ["## Use", ""]
    if form == "html":
        return [*lines, PAGE_USE, ""]
    snippets = usage_snippets(card, form, plan)
    if not plan.repo:
        lines += ["Put an image called photo.jpg in this folder, and run the programs there.", ""]
    if any(snippet.language == "python" for snippet in snippets):
        lines += [caveat(card.transform), ""]
    if form == "transformers-js":
        lines += [javascript_caveat(card.transform), ""]
    for snippet in snippets:
        lines += snippet.lines()
    return lines


def usage_snippets(card: Card, form: str, plan: ExportPlan) -> list[Snippet]:
    """Return the programs for a format; if vitft can open it, vitft's own command comes last."""
    transform, own = card.transform, command_line(f"hf:{plan.repo}" if plan.repo else ".")
    if form in GRAPH_SNIPPETS:
        takes = GraphInput(plan.with_preprocessing or plan.with_resize, plan.with_resize)
        found = [make(transform, takes) for make in GRAPH_SNIPPETS[form]]
        return found if form == "torch-export" else [*found, own]
    if form == "transformers-js":
        node = javascript_snippet(transform, plan.repo)
        return [node] if plan.repo else [node, own]  # on the hub, vitft reads model.safetensors
    if form == "transformers":
        return [transformers_snippet(transform, plan.repo), own]
    return [own] if timm_obstacle(card) else [timm_snippet(transform, plan.repo), own]


def data_section(trained: TrainedRun, results: RunResults | None) -> list[str]:
    """Return the lines on the training data: its name, its size and a table of the classes."""
    rows = [
        " ".join(("|", markdown_text(name), "|", " | ".join(cells), "|"))
        for name, *cells in class_figures(trained, results)[:MAX_CLASSES_LISTED]
    ]
    hidden = len(trained.card.classes) - MAX_CLASSES_LISTED
    more = [f"\n({count(hidden, 'more class', 'more classes')})"] if hidden > 0 else []
    return [
        "## Data and classes",
        "",
        f"{data_sentence(trained, markdown_text)} "
        "The images are not included. The classes are listed in the order of the model's outputs.",
        "",
        "| class | training images | validation images | recall | precision |",
        "|---|---:|---:|---:|---:|",
        *rows,
        *more,
        "",
    ]


def results_section(results: RunResults | None, row: ExportComparison) -> list[str]:
    """Return the lines on the accuracy and on the fidelity of the export."""
    noise = "random noise, because the validation images were missing"
    on = count(row.images, "validation image") if row.images else noise
    same = (
        f"The exported model was opened with {row.by} and compared with the original on {on}: "
        f"largest logit difference {row.difference:.1e}, "
        f"{count(row.changed, 'changed prediction')}."
    )
    if not results:
        return [same, ""]
    return ["## Results", "", accuracy_sentence(results), "", same, ""]


def licence_section(card: Card, chosen: str) -> list[str]:
    """Return the lines on the licences of this model and of the pretrained weights."""
    return ["## Licence", "", licence_sentence(card, chosen, markdown_text)]


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
