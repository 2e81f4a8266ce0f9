"""HTML page of a run: its sections as plain values for the template.

A section without data is None or empty, and is omitted from the page and its table of contents.
"""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitft.messages.results import (
    baseline_text,
    chance_clause,
    difference_text,
    how_measured,
    measured_on,
    rough_interval,
    rough_percent,
    weak_text,
)
from vitft.metrics.results import ClassMetrics, class_pair_counts
from vitft.metrics.summary import own_cross_validation
from vitft.predict.validation import (
    least_confident,
    mistakes,
)
from vitft.report import charts
from vitft.report.advice import advise
from vitft.report.chart_sections import (
    confidence_section,
    epochs_section,
    learning_section,
    penalty_section,
)
from vitft.report.charts import score_bar
from vitft.report.decisions import MAX_FINDINGS, run_decisions, undecided_numbers
from vitft.report.html import NUM_SHADES, render
from vitft.report.reproduce import command_of, digests, environment_rows
from vitft.report.run_files import Run, Thumbnails, read_run
from vitft.report.summary import key_figures, summary_sentences
from vitft.system.errors import VitftError
from vitft.system.files import write_atomically
from vitft.system.text import count, interval, percent

log = logging.getLogger(__name__)


# first screen of a run's page: one number, example images and the weakest class -------------------

_MAX_EXAMPLES = 8
"""Maximum number of example images."""


@dataclass(frozen=True, slots=True)
class _Weakest:
    """The class with the lowest recall, or the label with the lowest average precision."""

    name: str
    text: str
    """The measure, its value, the images on which it was measured and the most frequent mistake."""
    is_cross_validated: bool
    """Whether the recall was measured in cross-validation instead of on the validation images."""


def _first_screen(run: Run, thumbnails: Thumbnails) -> dict[str, object]:
    """Return the content of the first screen of a run's page; parts without data are empty.

    `chance` is a clause on a model at chance level, and `score` the number that summarises the run.
    """
    chance, one = chance_clause(run.results), run.results.headline
    weakest = None if chance else _weakest_of(run)
    return {
        "chance": chance,
        "score": one
        and {
            "value": rough_percent(one),
            "interval": rough_interval(one),
            "what": "of new images are classified correctly"
            if one.measure == "accuracy"
            else one.measure,
            "how": how_measured(one),
            "bar": charts.score_bar(
                one.measure, one.value, one.interval, one.baseline, marks=baseline_text(one)
            ),
        },
        "weakest": weakest,
        "no_weakest": "" if weakest else _reason_without_weakest(run),
        "difference": difference_text(run.results),
        "examples": _example_rows(run, thumbnails),
    }


def _weakest_of(run: Run) -> _Weakest | None:
    """Return the weakest class or label of a run, or None if none can be named."""
    if len(run.classes) < 2 or not run.results.weakest:
        return None
    worst = run.results.weakest[0]
    return _Weakest(worst.name, weak_text(worst), worst.kind == "cross-validation")


def weakest_sentence(run: Run) -> str:
    """Return a sentence that names the weakest class or label, or "" if there is none."""
    worst = None if run.results.at_chance else _weakest_of(run)
    if worst is None:
        return _reason_without_weakest(run)
    kind = "label" if run.several else "class"
    return f"The weakest {kind} is {worst.name}: {worst.text}."


def _reason_without_weakest(run: Run) -> str:
    """Return the reason why no class is called the weakest, or "" for a run without results."""
    one = run.results.estimate("validation")
    if one is None or run.results.at_chance or run.results.weakest or len(run.classes) < 2:
        return ""
    if run.several:
        return "On the validation images, the average precision of each label is 100%."
    return f"None of the {measured_on(one)} was misclassified, so no class is called the weakest."


def _example_rows(run: Run, thumbnails: Thumbnails) -> list[dict[str, object]]:
    """Return the most confident mistakes, or else the right predictions of the lowest confidence.

    Images without thumbnails are left out.
    """
    kinds = (
        ("wrong", "Mistakes, most confident first", mistakes(run.predictions)),
        (
            "doubtful",
            "Right, but with the lowest confidence",
            least_confident(run.predictions, per_class=2, most=2 * _MAX_EXAMPLES),
        ),
    )
    for kind, title, predictions in kinds:
        shown = [one for one in predictions[:60] if run.thumbnail(one.sha256)][:_MAX_EXAMPLES]
        if shown:
            examples = [
                {"prediction": one, "thumbnail": thumbnails.get(one.sha256)} for one in shown
            ]
            return [{"kind": kind, "title": title, "examples": examples}]
    return []


# HTML page of a run: its sections as plain values for the template --------------------------------

MAX_UNFOLDED, MAX_MISTAKES = 24, 300
"""Maximum number of mistakes shown unfolded, and maximum number shown in total."""
_MAX_BARS = 100
"""Maximum number of classes whose recalls are drawn as bars."""
MAX_MATRIX_CLASSES, MAX_PAIRS = 20, 30
"""With more than `MAX_MATRIX_CLASSES` classes, the page lists up to `MAX_PAIRS` confused pairs
instead of the matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassRow:
    """A row in the table of classes."""

    name: str
    train: int
    metrics: ClassMetrics
    confused_with: str
    ap: str = ""
    """Average precision of the label with its interval; empty unless the run is multi-label."""
    threshold: str = ""
    """Minimum probability at which the label is predicted; empty unless the run is multi-label."""
    bar: str = ""
    """SVG of the recall and its interval; empty if there are many classes."""


def report_of_new_run(run: Path) -> Path | None:
    """Write the report at the end of a run and return its path, or None with a warning.

    Under torchrun, only the main process writes it, and the others return None.
    """
    if os.environ.get("RANK", "0") != "0":
        return None
    try:
        return write_report(run)
    except VitftError as error:
        log.warning(f"the report was not written: {error.problem}")
    return None


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run and return the path of the page.

    The default path is `report.html` in the run directory.

    Raises:
        RunError: A file of the run is damaged, or the page cannot be written.
        ResourceError: The disk is full.
    """
    path = out or run / "report.html"
    write_atomically(path, render("report.html.j2", run_page(read_run(run))))
    return path


def run_page(run: Run) -> dict[str, object]:
    """Return the values for the template `report.html.j2`."""
    wrong = mistakes(run.predictions)
    thumbnails, counts = Thumbnails([run]), _cross_validated_counts(run)
    budget, decisions = run.measured.get("budget"), run_decisions(run, thumbnails)
    return {
        "name": run.name,
        "root": run.root_uri,
        "title": f"{run.data_name or run.name}: training report",
        "data_name": run.data_name or run.name,
        "first": _first_screen(run, thumbnails),
        "about": summary_sentences(run),
        "figures": key_figures(run),
        "advice": advise(run),
        "thumbnails": thumbnails,
        "class_index": {name: i for i, name in enumerate(run.classes)},
        "several": run.several,
        "num_mistakes": len(wrong),
        "mistakes": wrong[:MAX_MISTAKES],
        "unfolded": MAX_UNFOLDED,
        "with_attention": [
            one for one in wrong[:MAX_UNFOLDED] if run.thumbnail(one.sha256, attention=True)
        ],
        "confusion": _confusion_of(run.classes, _confusion_counts(run)),
        "cross_validated": _confusion_of(run.classes, counts),
        "num_cross_validated": counts.total(),
        "least_confident": least_confident(run.predictions, per_class=3, most=60),
        "classes": _class_rows(run),
        "audit": run.audit,
        "decisions": decisions,
        "review": _review_text(run) if decisions else "",
        "max_findings": MAX_FINDINGS,
        "unchecked": _unchecked(run),
        "charts": {
            "learning": learning_section(run),
            "confidence": confidence_section(run),
            "training": epochs_section(run) or penalty_section(run),
        },
        "balance": _balance_section(run),
        "command": command_of(run.config) if run.config else "",
        "seconds": run.measured.get("seconds"),
        "is_budget_choice": bool(budget and budget["chosen"] not in ("", "head")),
        "environment": environment_rows(run),
        "digests": digests(run),
        "config": run.config_text.splitlines(),
    }


def _review_text(run: Run) -> str:
    """Return the text of the button that leads to the findings of the data audit."""
    labels, groups = undecided_numbers(run.audit)
    verb = "See" if run.several else "Review"
    if labels:
        return f"{verb} {count(labels, 'label')}"
    return f"{verb} {count(groups, 'duplicate')}" if groups else f"{verb} the findings"


def _unchecked(run: Run) -> str:
    """Return a sentence about what the data audit of a run left out, or an empty string."""
    layers, crossed = (
        str(run.setting("train", "layers") or ""),
        run.measured.get("cross_validation"),
    )
    if layers.split(",")[0] not in ("head", "pre_logits"):
        return (
            "Because the features changed during training, this run checked only for identical, "
            "unreadable and unusual files. vitft check also finds probable label errors and "
            "near-duplicates."
        )
    if "l2" in run.measured and crossed is None:
        return "Labels were not checked, because there are too few images per class."
    if crossed and crossed["images"] < crossed["of"]:
        checked = f"Labels were checked on a sample of {count(crossed['images'], 'image')}"
        if run.setting("data", "group_duplicates"):
            return f"{checked}."
        return (
            f"{checked}, and near-duplicates were not searched for; vitft check searches among all "
            "images."
        )
    return ""


def _balance_section(run: Run) -> tuple[str, list[tuple[str, int, int, float, float]]] | None:
    """Return a sentence about the class sizes and one bar per class, or None if there is no split.

    Each bar is a tuple: the class name, the numbers of training and validation images, and both
    numbers as percentages of the number of images in the largest class.
    """
    if not run.rows:
        return None
    counts = Counter((name, row.split) for row in run.rows for name in run.split.names(row))
    totals = [counts[name, "train"] + counts[name, "val"] for name in run.classes]
    smallest, largest = min(totals), max(totals)
    rows = []
    for name in run.classes:
        train, val = counts[name, "train"], counts[name, "val"]
        widths = round(100 * train / largest, 2), round(100 * val / largest, 2)
        rows.append((name, train, val, *widths))
    text = f"Every {'label' if run.several else 'class'} has {count(largest, 'image')}."
    if smallest != largest:
        few, many = run.classes[totals.index(smallest)], run.classes[totals.index(largest)]
        names = "Labels" if run.several else "Classes"
        text = f"{names} have {smallest:,} ({few}) to {count(largest, 'image')} ({many})."
    return text, rows


def _class_rows(run: Run) -> list[_ClassRow]:
    """Return a table row for each class, lowest recall first and undefined recalls last."""
    several = run.measured.get("labels")
    by_label = several["per_label"] if several else {}
    confusions: dict[str, Counter[str]] = {}
    for one in mistakes(run.predictions):
        confusions.setdefault(one.label, Counter())[one.predicted] += 1
    own = (run.split.names(row) for row in run.rows if row.split == "train")
    train = Counter(name for names in own for name in names)
    rows = []
    for name, metrics in run.measured.get("per_class", {}).items():
        confused = confusions.get(name, Counter())
        most = [guess for guess, n in confused.items() if n == max(confused.values())]
        with_ = f"{' or '.join(most[:3])} ({confused[most[0]]})" if most else "–"
        found = by_label.get(name)
        rows.append(
            _ClassRow(
                name=name,
                train=train[name],
                metrics=metrics,
                confused_with=with_,
                bar=score_bar("recall", metrics["recall"], metrics["recall_interval"], None)
                if metrics["recall"] is not None and len(run.classes) <= _MAX_BARS
                else "",
                ap=f"{percent(found['ap'])} ({interval(found['ap_interval'], 0)})" if found else "",
                threshold=percent(found.get("threshold"), 0) if found else "",
            )
        )

    def order(row: _ClassRow) -> tuple[bool, float, str]:
        recall = row.metrics.get("recall")
        return recall is None, recall or 0.0, row.name

    return sorted(rows, key=order)


def _confusion_of(
    classes: Sequence[str], counts: Mapping[tuple[int, int], int]
) -> dict[str, object] | None:
    """Return the confusions, given numbers of images by true and predicted class, or None.

    The matrix is empty if there are many classes; `more` counts the pairs that are not shown.
    """
    if not counts:
        return None
    totals = Counter[int]()
    for (i, _), n in counts.items():
        totals[i] += n

    def cell(i: int, j: int) -> dict[str, object]:
        """Return the images of class i predicted as j; `fraction` is that of the images of i."""
        n, total = counts.get((i, j), 0), totals[i]
        label, predicted = classes[i], classes[j]
        shade = min(NUM_SHADES - 1, int(n / total * NUM_SHADES)) if n else 0
        result = "classified correctly" if i == j else f"classified as {predicted}"
        return {
            "label": label,
            "predicted": predicted,
            "count": n,
            "fraction": percent(n / total, 0) if total else "",
            "cell": f"{i}-{j}",
            "shade": f"{'right' if i == j else 'wrong'}-{shade}" if n else "",
            "text": f"{n} of {total} images of {label} {result}",
        }

    pairs = sorted((-n, n, i, j) for (i, j), n in counts.items() if i != j)
    indices = range(len(classes) if len(classes) <= MAX_MATRIX_CLASSES else 0)
    return {
        "matrix": [[cell(i, j) for j in indices] for i in indices],
        "pairs": [cell(i, j) for _, _, i, j in pairs[:MAX_PAIRS]],
        "more": max(0, len(pairs) - MAX_PAIRS),
    }


def _confusion_counts(run: Run) -> Mapping[tuple[int, int], int]:
    """Count the images by index of the true class and of the predicted class, omitting zeros.

    A multi-label run has no confusions, because a wrong label does not replace the right one.
    """
    if run.several:
        return {}
    if run.predictions:
        index = {name: i for i, name in enumerate(run.classes)}
        return Counter((index[one.label], index[one.predicted]) for one in run.predictions)
    found = class_pair_counts(run.measured)
    return found if all(max(pair) < len(run.classes) for pair in found) else {}


def _cross_validated_counts(run: Run) -> Counter[tuple[int, int]]:
    """Count the distinct images by true class and class predicted in cross-validation.

    There are no counts if the model is not the cross-validated head, or if the validation images
    are at least as many.
    """
    if run.several or not own_cross_validation(run.measured):
        return Counter()
    index = {name: i for i, name in enumerate(run.classes)}
    true = {row.sha256: run.split.names(row)[0] for row in run.rows}
    pairs = ((true[key], name) for key, name in run.cross_validated.items())
    counts = Counter((index[one], index[other]) for one, other in pairs if {one, other} <= {*index})
    return counts if counts.total() > len(run.predictions) else Counter()
