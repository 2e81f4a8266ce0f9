"""Model card of an exported folder, a README.md.

Names of classes, folders and weights can contain any character. They are quoted in YAML; in
Markdown, all characters that might have a special meaning are replaced by character references.
"""

import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from PIL import Image, ImageDraw, ImageFont, ImageOps

from vitft.config.run import checked_run_config
from vitft.data.fixes import is_leak, settled_paths
from vitft.export.formats.base import ExportComparison
from vitft.export.formats.timm import unsupported_part
from vitft.export.plan import CLOSED_FORMATS, ExportPlan
from vitft.export.trained import TrainedRun
from vitft.features.ood import REFERENCE_FILE
from vitft.messages import results as messages
from vitft.metrics.intervals import Interval
from vitft.metrics.results import AuditResults, RunResults, class_pair_counts
from vitft.models.card import Card
from vitft.report.html import filled
from vitft.system.files import write_atomically
from vitft.system.rundir import read_run_json
from vitft.system.text import interval, is_measurable, not_calibrated, shell_quote

# model card --------------------------------------------------------------------------------------

_FEW_PER_CLASS = 10  # number of validation images below which the recall of a class is unreliable
_MOST_MENTIONED = 3  # maximum number of confusions in the text


def _limits_of(trained: TrainedRun, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of `limits.j2`, given the class names, escaped for Markdown."""
    run, results = trained.run, trained.measured
    audit = read_run_json(run / "audit.json", AuditResults) if results else None
    has_settings = audit and (run / "config.toml").is_file()
    # Labels that the fixes of the run keep do not count as probably wrong.
    kept = settled_paths(checked_run_config(run).data) if has_settings else ()
    literal = dict(zip(trained.card.classes, names, strict=True))
    pairs = sorted(class_pair_counts(results or {}).items(), key=lambda pair: -pair[1])
    return {
        "names": names,
        "measured": results,
        "own_split": audit and audit.get("own_split"),
        "flags_unlike": (run / REFERENCE_FILE).is_file(),
        "weak": [
            replace(one, name=literal[one.name], taken_for=literal.get(one.taken_for, ""))
            for one in trained.results.weakest
        ],
        "weak_text": messages.weak_text,
        "few_per_class": _FEW_PER_CLASS,
        "confused": [(i, j, n) for (i, j), n in pairs if i != j and n > 1][:_MOST_MENTIONED],
        "too_few": not_calibrated(results) if results and results.get("calibration") else "",
        "is_measurable": is_measurable,
        "leaks": sum(map(is_leak, audit["duplicates"])) if audit else 0,
        "wrong": sum(item["path"] not in kept for item in audit["mislabels"]) if audit else 0,
    }


# pictures of a hub page: the confusion matrix, and example images if their licence allows it ------

_CONFUSION_FILE, _EXAMPLES_FILE = "confusion.png", "examples.jpg"
_MOST_LABELLED = 40  # maximum number of classes for which the matrix shows names and numbers
_MOST_DRAWN = 1000  # maximum number of classes for which a matrix is drawn
_MOST_LETTERS = 18  # maximum length of a class name, of which the picture shows the first letters
_CELL, _NAME_WIDTH, FONT_PX = 44, 150, 14
"""Side of a numbered cell, width of the class names and font size, in pixels."""
RIGHT, WRONG, _INK, _PAPER = (11, 110, 79), (190, 60, 30), (30, 30, 30), (255, 255, 255)
_MOST_EXAMPLES, _EXAMPLE_SIDE, _EXAMPLE_COLUMNS = 24, 160, 6
"""Maximum number of example images, their side in pixels, and the number per row."""


def _confusion_png(classes: Sequence[str], results: RunResults) -> bytes | None:
    """Return the confusion matrix as a PNG, or None for multi-label models and too many classes."""
    matrix, size = results["confusion"], len(classes)
    if size > _MOST_DRAWN or "labels" in results:
        return None
    is_named = size <= _MOST_LABELLED
    cell = _CELL if is_named else max(2, 800 // size)
    margin = _NAME_WIDTH if is_named else 0
    picture = Image.new("RGB", (margin + cell * size + 1, margin + cell * size + 1), _PAPER)
    canvas, font = ImageDraw.Draw(picture), ImageFont.load_default(FONT_PX)
    for i, row in enumerate(matrix):
        for j, number in enumerate(row):
            left, top = margin + j * cell, margin + i * cell
            fraction = number / max(1, sum(row))
            colour = RIGHT if i == j else WRONG
            shade = tuple(round(255 + (c - 255) * min(1, fraction**0.5)) for c in colour)
            line = (225, 225, 225) if is_named else None
            canvas.rectangle((left, top, left + cell, top + cell), fill=shade, outline=line)
            if is_named and number:
                place = left + cell / 2, top + cell / 2
                ink = _PAPER if fraction > 0.3 else _INK
                canvas.text(place, str(number), ink, font, anchor="mm")
    # The names are beside the rows and, rotated to read upwards, above the columns.
    for i, name in enumerate(classes if is_named else ()):
        text = name[:_MOST_LETTERS] if name.isascii() and name.isprintable() else f"class {i}"
        label = Image.new("RGB", (_NAME_WIDTH - 8, _CELL), _PAPER)
        above = label.copy()
        ImageDraw.Draw(label).text((label.width, _CELL / 2), text, _INK, font, anchor="rm")
        picture.paste(label, (0, _NAME_WIDTH + i * _CELL))
        ImageDraw.Draw(above).text((0, _CELL / 2), text, _INK, font, anchor="lm")
        picture.paste(above.transpose(Image.Transpose.ROTATE_90), (_NAME_WIDTH + i * _CELL, 0))
    buffer = io.BytesIO()
    picture.save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _write_examples(trained: TrainedRun, path: Path) -> list[str]:
    """Write a JPEG grid of one validation image per class, if any; return their names in order."""
    found: dict[int, Image.Image] = {}
    classes, side = trained.card.classes, (_EXAMPLE_SIDE, _EXAMPLE_SIDE)
    samples = () if trained.card.several else trained.unchanged_images(20 * len(classes))
    for image, index, _ in samples:
        if (label := int(index)) not in found:
            found[label] = ImageOps.fit(image, side, Image.Resampling.LANCZOS)
        if len(found) == min(_MOST_EXAMPLES, len(classes)):
            break
    if not found:
        return []
    columns = min(_EXAMPLE_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    sheet = Image.new("RGB", (columns * _EXAMPLE_SIDE, rows * _EXAMPLE_SIDE), _PAPER)
    for i, label in enumerate(sorted(found)):
        place = i % columns * _EXAMPLE_SIDE, i // columns * _EXAMPLE_SIDE
        sheet.paste(found[label], place)
    buffer = io.BytesIO()
    sheet.save(buffer, "jpeg", quality=90)
    write_atomically(path, buffer.getvalue())
    return [classes[label] for label in sorted(found)]


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

    If the plan has a hub repository, the programs open it instead, and pictures are written for its
    page. `second` compares the folder's additional 8-bit graph with the run, if it has one.
    """
    card, results, found = trained.card, trained.results, trained.measured
    transform, classes, (kind, kinds) = card.transform, card.classes, card.nouns
    by_class, data = found is not None and not trained.is_narrow, results.data or "images"
    confusion = _confusion_png(classes, found) if plan.repo and found and by_class else None
    if confusion is not None:
        write_atomically(folder / _CONFUSION_FILE, confusion)
    examples = _write_examples(trained, folder / _EXAMPLES_FILE) if plan.image_licence else []
    metadata, credit = _header_of(trained, row, data, plan), (plan.image_licence, plan.image_credit)
    text = filled(
        "readme.j2",
        header=yaml.dump(metadata, Dumper=_CardDumper, sort_keys=False, width=10**6),
        classes=classes,
        several=card.several,
        kind=kind,
        kinds=kinds,
        **trained.sentences(plan.licence, markdown_text),
        at_chance=markdown_text(messages.chance_clause(results)),
        row=row,
        plan=plan,
        oldest_runtime=plan.oldest_runtime(row.name),
        eight_bits=row if row.is_eight_bits else second,
        grey_range=" to ".join(f"{level:,.6g}" for level in transform.grey_range),
        snippets=_usage_snippets(card, row.name, plan),
        **_limits_of(trained, [*map(markdown_text, classes)]),
        by_class=by_class,
        narrow_reason=trained.last_block_reason if trained.is_narrow else "",
        results=results,
        accuracy=messages.accuracy_text(results),
        table=[
            (markdown_text(name), cells[: 4 if by_class else 2])
            for name, *cells in trained.class_figures()[:_MAX_CLASSES_LISTED]
        ],
        hidden=len(classes) - _MAX_CLASSES_LISTED,
        confusion_file=_CONFUSION_FILE if confusion is not None else "",
        most_labelled=_MOST_LABELLED,
        examples_file=_EXAMPLES_FILE if examples else "",
        example_names=", ".join(map(markdown_text, examples)),
        image_credit=", ".join(map(markdown_text, filter(None, credit))),
    )
    write_atomically(folder / "README.md", f"{text}\n")


def _header_of(
    trained: TrainedRun, row: ExportComparison, data: str, plan: ExportPlan
) -> dict[str, Any]:
    """Return the metadata for the hub: library, task, licence, base model and results."""
    from huggingface_hub import ModelCardData

    form, card, measured = row.name, trained.card, _evaluation_of(trained, row, data)
    library = _LIBRARIES.get(form, "vitft")
    if form == "safetensors" and not unsupported_part("timm", card.architecture):
        library = "timm"
    licence = plan.licence or trained.pretrained_licence
    is_known = licence.lower() in _LICENCES
    # Hub repository of the pretrained weights, if it is known.
    source, entry = card.weights.get("source"), trained.pretrained_entry
    base = entry.repo if entry else ""
    if card.weights.get("revision") and source:
        base = "/".join(source.split("/")[:2])
    data_of_card: Any = ModelCardData(
        library_name=library,
        pipeline_tag="image-classification",
        license=licence.lower() if is_known else "other" if licence else "unknown",
        license_name=licence if licence and not is_known else None,
        tags=["image-classification", "vision-transformer", "vitft", library],
        base_model=base or None,
        base_model_relation="finetune" if base else None,
        model_name=(plan.repo or f"{data} classifier") if measured else None,
        eval_results=measured or None,
    )
    return dict(data_of_card.to_dict())


def _evaluation_of(trained: TrainedRun, row: ExportComparison, data: str) -> list[Any]:
    """Return the accuracies that are known of the exported model, as `EvalResult` objects."""
    from huggingface_hub import EvalResult

    metrics: list[tuple[str, str, float | None, Interval | None]] = []
    if trained.results.on_known_images:
        return []
    part, on = "validation", row.compared_on
    if row.is_eight_bits:
        name = f"accuracy {'(all labels right) ' * row.several_labels}with 8-bit weights"
        metrics = [("accuracy", name, row.correct[1] / row.images, row.interval)]
    elif one := trained.results.estimate("test", "validation"):
        part, on, found = one.kind, messages.measured_on(one), trained.measured
        metrics = [(one.measure.replace(" ", "_"), one.measure, one.value, one.interval)]
        if found is not None and not trained.is_narrow and one.measure == "accuracy":
            own = found["test"] if part == "test" else found
            metrics += [
                ("balanced_accuracy", "mean recall", own["balanced"], own["balanced_interval"]),
                ("top5_accuracy", messages.TOP5, own["top5"], own["top5_interval"]),
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


def _usage_snippets(card: Card, form: str, plan: ExportPlan) -> list[dict[str, str]]:
    """Return the programs for a format; if vitft can open it, vitft's own command comes last."""
    values: dict[str, Any] = {
        "transform": card.transform,
        "thresholds": card.thresholds,
        "repo": plan.repo,
        "takes_bytes": plan.with_preprocessing or plan.with_resize,
        "any_size": plan.with_resize,
    }
    programs: list[tuple[str, str, str]] = []  # title, installation and template
    if form == "torch-export":
        programs = [("PyTorch", "pip install torch numpy pillow", "graph")]
    elif form in ("onnx", "int8"):
        both = (("onnxruntime", "onnxruntime"), ("OpenVINO", "openvino"))
        programs = [(title, f"pip install {name} numpy pillow", "graph") for title, name in both]
    elif form == "transformers-js":
        programs = [("transformers.js", "npm install @huggingface/transformers", "transformers_js")]
    elif form == "transformers":
        programs = [("transformers", "pip install transformers timm torchvision", "transformers")]
        values["thresholds"] = dict(zip(card.classes, card.thresholds, strict=False))
    elif form != "html" and not unsupported_part("timm", card.architecture):
        programs = [("timm", "pip install timm", "timm")]
    found = []
    for title, install, template in programs:
        text = filled(f"{template}.j2", library=title, **values).strip()
        language = "js" if template == "transformers_js" else "python"
        source = re.sub(r"\n{3,}", "\n\n\n", text)
        found.append({"title": title, "install": install, "source": source, "language": language})
    # On the hub, vitft reads model.safetensors.
    if form not in CLOSED_FORMATS and not (form == "transformers-js" and plan.repo):
        command = f"vitft predict --run {shell_quote(f'hf:{plan.repo}' if plan.repo else '.')}"
        source = f"{command} photo.jpg"
        found.append({"title": "vitft", "install": "", "source": source, "language": "sh"})
    return found


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
