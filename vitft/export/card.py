"""Model card of an exported folder: a README.md generated from the files of a run.

Class and folder names can contain any character. They are quoted in YAML; in Markdown, all
characters that might have a special meaning are replaced by character references.
"""

import re
import unicodedata
from pathlib import Path
from typing import Any

import yaml

from vitft.export.compare import ExportComparison
from vitft.export.facts import (
    catalog_origin,
    class_figures,
    data_sentence,
    licence_sentence,
    model_sentence,
    pretrained_licence,
    view_sentence,
)
from vitft.export.formats.timm import timm_obstacle
from vitft.export.limits import limits_of
from vitft.export.pictures import (
    CONFUSION_FILE,
    EXAMPLES_FILE,
    MOST_LABELLED,
    confusion_png,
    example_images,
)
from vitft.export.plan import ExportPlan
from vitft.export.snippets import (
    GRAPH_LIBRARIES,
    GraphInput,
    Snippet,
    graph_snippets,
    program,
)
from vitft.export.trained import (
    TrainedRun,
    last_block_reason,
)
from vitft.messages.results import accuracy_text, chance_clause, measured_on
from vitft.metrics.values import Interval
from vitft.models.card import Card, Provenance
from vitft.system.files import write_atomically
from vitft.system.text import count, interval, shell_quote

_MAX_CLASSES_LISTED = 200
"""Maximum number of classes in the table; the model file lists every class."""
_LICENCES = (
    "apache-2.0", "mit", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0", "bsd-2-clause", "bsd-3-clause", "mpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0",
    "openrail", "unlicense", "unknown",
)  # fmt: skip
"""Licence identifiers known to the hub; any other licence is declared as `other`."""

_INSIDE_WORDS = re.compile(r"(?<=\d)\.(?=[^\W_])|(?<=[^\W_])_(?=[^\W_])")
"""Punctuation inside a word that Markdown always displays literally: `2.0` and `a_b`, but not the
period of www.example, which becomes a link on GitHub."""
_LIBRARIES = {
    "timm": "timm",
    "transformers": "transformers",
    "transformers-js": "transformers.js",
    "onnx": "onnx",
    "int8": "onnx",
}
"""Hub name of the library that opens each format; `vitft` for formats not listed."""


class _CardDumper(yaml.SafeDumper):  # type: ignore[misc]
    """A YAML dumper that escapes line breaks so that no text can end the header early."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_CardDumper.add_representer(str, _CardDumper.represent_str)


def write_readme(
    trained: TrainedRun,
    folder: Path,
    row: ExportComparison,
    plan: ExportPlan,
    *,
    second: ExportComparison | None = None,
) -> None:
    """Write the model card of an exported folder, with programs that open the folder.

    If the plan has a hub repository, the programs open the repository instead, and pictures are
    written for its page. huggingface_hub validates the metadata.

    Args:
        trained: The exported run.
        folder: Folder that contains the export.
        row: Comparison of the export with the run.
        plan: Options of the export.
        second: Comparison of the folder's additional 8-bit graph, if it has one.
    """
    card, results, found = trained.card, trained.results, trained.measured
    small = row if row.is_eight_bits else second
    transform, classes, several = card.transform, card.classes, bool(card.thresholds)
    by_class, data = not trained.is_narrow, results.data or "images"
    kind, kinds = ("label", "labels") if several else ("class", "classes")
    confusion = confusion_png(classes, found) if plan.repo and found and by_class else None
    if confusion is not None:
        write_atomically(folder / CONFUSION_FILE, confusion)
    examples = example_images(trained) if plan.image_licence else None
    if examples is not None:
        write_atomically(folder / EXAMPLES_FILE, examples[0])
    hidden = len(classes) - _MAX_CLASSES_LISTED
    metadata = _header_of(trained, row, data, plan)
    text = program(
        "readme",
        header=yaml.dump(metadata, Dumper=_CardDumper, sort_keys=False, width=10**6),
        classes=classes,
        several=several,
        kind=kind,
        kinds=kinds,
        model=model_sentence(card, markdown_text),
        at_chance=markdown_text(chance_clause(results)),
        view=view_sentence(card),
        form=row.name,
        row=row,
        plan=plan,
        eight_bits=small,
        eight_bits_alone=small is row,
        is_rounded=row.is_eight_bits,
        grey_range=" to ".join(f"{level:,.6g}" for level in transform.grey_range),
        snippets=_usage_snippets(card, row.name, plan),
        limits=limits_of(trained, [*map(markdown_text, classes)]),
        by_class=by_class,
        narrow_reason="" if by_class else last_block_reason(trained.run),
        unfinished=results.status,
        accuracy=accuracy_text(results),
        data=data_sentence(trained, markdown_text),
        table=[
            (markdown_text(name), cells[: 4 if found and by_class else 2])
            for name, *cells in class_figures(trained)[:_MAX_CLASSES_LISTED]
        ],
        hidden=hidden,
        hidden_text=count(hidden, f"more {kind}", f"more {kinds}"),
        compared_on=row.compared_on
        if row.images
        else "random noise, because the validation images were missing",
        changed=count(row.changed, "changed prediction"),
        confusion_file=CONFUSION_FILE if confusion is not None else "",
        most_labelled=MOST_LABELLED,
        examples_file=EXAMPLES_FILE if examples is not None else "",
        example_names=", ".join(map(markdown_text, examples[1])) if examples else "",
        image_credit=", ".join(
            markdown_text(words) for words in (plan.image_licence, plan.image_credit) if words
        ),
        licence=licence_sentence(card, plan.licence, markdown_text),
    )
    write_atomically(folder / "README.md", f"{text}\n")


def _header_of(
    trained: TrainedRun, row: ExportComparison, data: str, plan: ExportPlan
) -> dict[str, Any]:
    """Return the metadata for the hub: library, task, licence, base model and results."""
    from huggingface_hub import ModelCardData

    form, card, measured = row.name, trained.card, _evaluation_of(trained, row, data)
    library = _LIBRARIES.get(form, "vitft")
    if form == "safetensors" and not timm_obstacle(card):
        library = "timm"
    licence = plan.licence or pretrained_licence(card.weights)
    is_known = licence.lower() in _LICENCES
    name = plan.repo or f"{data} classifier"
    base = _base_model(card.weights)
    data_of_card: Any = ModelCardData(
        library_name=library,
        pipeline_tag="image-classification",
        license=licence.lower() if is_known else "other" if licence else "unknown",
        license_name=licence if licence and not is_known else None,
        tags=["image-classification", "vision-transformer", "vitft", library],
        base_model=base or None,
        base_model_relation="finetune" if base else None,
        model_name=name if measured else None,
        eval_results=measured or None,
    )
    return dict(data_of_card.to_dict())


def _base_model(weights: Provenance) -> str:
    """Return the hub repository of the pretrained weights, or an empty string if it is unknown."""
    source = weights.get("source")
    if weights.get("revision") and source:  # from the hub
        return "/".join(source.split("/")[:2])
    entry = catalog_origin(weights)
    return entry.repo if entry else ""


def _evaluation_of(trained: TrainedRun, row: ExportComparison, data: str) -> list[Any]:
    """Return the accuracies as `EvalResult` objects of huggingface_hub.

    With 8-bit weights, only the accuracy measured by the export is known. If the exported head
    reads fewer blocks than the run's head, only its top-1 accuracy is known.
    """
    from huggingface_hub import EvalResult

    metrics: list[tuple[str, str, float | None, Interval | None]] = []
    part, on = "validation", row.compared_on
    if row.is_eight_bits:
        name = "accuracy (all labels right)" if row.several_labels else "accuracy"
        accuracy = row.correct[1] / row.images
        metrics = [("accuracy", f"{name} with 8-bit weights", accuracy, row.interval)]
    elif one := trained.results.estimate("test", "validation"):
        part, on, found = one.kind, measured_on(one), trained.measured
        metrics = [(one.measure.replace(" ", "_"), one.measure, one.value, one.interval)]
        if found is not None and not trained.is_narrow and one.measure == "accuracy":
            own = found["test"] if part == "test" else found
            metrics += [
                ("balanced_accuracy", "mean recall", own["balanced"], own["balanced_interval"]),
                ("top5_accuracy", "top-5 accuracy", own["top5"], own["top5_interval"]),
            ]
    return [
        EvalResult(
            task_type="image-classification",
            dataset_type="imagefolder",
            dataset_name=data,
            dataset_split=part,
            metric_type=kind,
            metric_value=round(value, 6),
            metric_name=f"{name} on {on}, 95% CI {interval(bounds)}",
        )
        for kind, name, value, bounds in metrics
        if value is not None
    ]


def _usage_snippets(card: Card, form: str, plan: ExportPlan) -> list[Snippet]:
    """Return the programs for a format; if vitft can open it, vitft's own command comes last."""
    transform, repo, thresholds = card.transform, plan.repo, card.thresholds
    run = shell_quote(f"hf:{repo}" if repo else ".")
    own = Snippet("vitft", "", f"vitft predict --run {run} photo.jpg", "sh")
    if form == "html":
        return []
    if form in GRAPH_LIBRARIES:
        takes = GraphInput(plan.with_preprocessing or plan.with_resize, plan.with_resize)
        found = graph_snippets(form, transform, takes, thresholds)
        return found if form == "torch-export" else [*found, own]
    if form == "transformers-js":
        code = program("transformers_js", transform=transform, repo=repo)
        install = "npm install @huggingface/transformers"
        node = Snippet("transformers.js", install, code, "js")
        return [node] if repo else [node, own]  # on the hub, vitft reads model.safetensors
    if form == "transformers":
        labels = dict(zip(card.classes, thresholds, strict=False))
        code = program("transformers", transform=transform, repo=repo, thresholds=labels)
        return [Snippet("transformers", "pip install transformers timm torchvision", code), own]
    if timm_obstacle(card):
        return [own]
    code = program("timm", transform=transform, repo=repo, thresholds=thresholds)
    return [Snippet("timm", "pip install timm", code), own]


def markdown_text(words: str) -> str:
    """Return text escaped so that Markdown displays it literally, on one line.

    Punctuation is replaced by character references, which CommonMark never parses as structure,
    links or HTML (section 6.2), and invisible characters by their code points. Versions and names
    such as apache-2.0 and vit_tiny stay as they are, for readers of the file itself.
    """
    kept = {match.start() for match in _INSIDE_WORDS.finditer(words)}
    return "".join(
        c
        if c.isalnum() or c in " -" or i in kept
        else f"U+{ord(c):04X}"
        if unicodedata.category(c)[0] in "CZ"
        else f"&#{ord(c)};"
        for i, c in enumerate(words)
    )
