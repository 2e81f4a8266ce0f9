"""HTML page of a run: its sections as plain values for the template.

A section without data is None or empty, and is omitted from the page and its table of contents.
"""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitft.messages import results as messages
from vitft.metrics.results import class_pair_counts
from vitft.metrics.summary import own_cross_validation
from vitft.predict.validation import least_confident, mistakes
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


_MAX_EXAMPLES = 8  # maximum number of example images on the first screen
_MAX_UNFOLDED, _MAX_MISTAKES = 24, 300  # maximum numbers of mistakes shown unfolded and in total
_MAX_BARS = 100  # maximum number of classes whose recalls are drawn as bars
_MAX_MATRIX_CLASSES, _MAX_PAIRS = 20, 30
"""With more than `_MAX_MATRIX_CLASSES` classes, the page lists up to `_MAX_PAIRS` confused pairs
instead of the matrix."""


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
    wrong, one = mistakes(run.predictions), run.results.headline
    is_named = not run.results.at_chance and len(run.classes) > 1
    weak = next(iter(run.results.weakest), None) if is_named else None
    thumbnails, counts = Thumbnails([run]), _cross_validated_counts(run)
    budget, decisions = run.measured.get("budget"), run_decisions(run, thumbnails)
    labels, groups = undecided_numbers(run.audit) if decisions else (0, 0)
    review = count(labels, "label") if labels else count(groups, "duplicate")
    return {
        "name": run.name,
        "root": run.root_uri,
        "title": f"{run.data_name or run.name}: training report",
        "data_name": run.data_name or run.name,
        "chance": messages.chance_clause(run.results),
        "score": one
        and {
            "value": messages.rough_percent(one),
            "interval": interval(one.interval, messages.rough_digits(one)),
            "what": messages.quoted_measure(one),
            "how": messages.how_measured(one),
            "bar": score_bar(
                one.measure,
                one.value,
                one.interval,
                one.baseline,
                marks=messages.baseline_text(one),
            ),
        },
        "weakest": weak,
        "weakest_text": messages.weak_text(weak)
        if weak
        else messages.weakest_sentence(run.results, len(run.classes)),
        "difference": messages.difference_text(run.results),
        "examples": _examples(run, thumbnails),
        "about": summary_sentences(run),
        "figures": key_figures(run),
        "advice": advise(run),
        "thumbnails": thumbnails,
        "class_index": {name: i for i, name in enumerate(run.classes)},
        "several": run.several,
        "num_mistakes": len(wrong),
        "mistakes": wrong[:_MAX_MISTAKES],
        "unfolded": _MAX_UNFOLDED,
        "with_attention": [
            one for one in wrong[:_MAX_UNFOLDED] if run.thumbnail(one.sha256, attention=True)
        ],
        "confusion": _confusion_of(run.classes, class_pair_counts(run.measured)),
        "cross_validated": _confusion_of(run.classes, counts),
        "num_cross_validated": counts.total(),
        "least_confident": least_confident(run.predictions, per_class=3, most=60),
        "classes": _class_rows(run),
        "audit": run.audit,
        "decisions": decisions,
        "review": f"{'See' if run.several else 'Review'} "
        f"{review if labels or groups else 'the findings'}",
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


def _examples(run: Run, thumbnails: Thumbnails) -> dict[str, object] | None:
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
            pairs = [(one, thumbnails.get(one.sha256)) for one in shown]
            return {"kind": kind, "title": title, "pairs": pairs}
    return None


def _unchecked(run: Run) -> str:
    """Return a sentence about what the data audit of a run left out, or an empty string."""
    crossed = run.measured.get("cross_validation")
    if run.layers.split(",")[0] not in ("head", "pre_logits"):
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
            f"{checked}, and near-duplicates were not searched for. vitft check searches among all "
            "images."
        )
    return ""


def _balance_section(run: Run) -> tuple[str, list[tuple[str, int, int]], int] | None:
    """Return a sentence on class sizes, (class, training, validation images), and the largest."""
    if not run.rows:
        return None
    counts = Counter((name, row.split) for row in run.rows for name in run.split.names(row))
    rows = [(name, counts[name, "train"], counts[name, "val"]) for name in run.classes]
    totals = [train + val for _, train, val in rows]
    smallest, largest = min(totals), max(totals)
    text = f"Every {'label' if run.several else 'class'} has {count(largest, 'image')}."
    if smallest != largest:
        few, many = run.classes[totals.index(smallest)], run.classes[totals.index(largest)]
        names = "Labels" if run.several else "Classes"
        text = f"{names} have {smallest:,} ({few}) to {count(largest, 'image')} ({many})."
    return text, rows, largest


def _class_rows(run: Run) -> list[dict[str, Any]]:
    """Return a table row for each class, lowest recall first and undefined recalls last.

    Only multi-label runs have an average precision and a threshold.
    """
    several = run.measured.get("labels")
    by_label = several["per_label"] if several else {}
    confusions: dict[str, Counter[str]] = {}
    for one in mistakes(run.predictions):
        confusions.setdefault(one.label, Counter())[one.predicted] += 1
    rows = []
    for name, metrics in run.measured.get("per_class", {}).items():
        confused, found = confusions.get(name, Counter()), by_label.get(name)
        most = [guess for guess, n in confused.items() if n == max(confused.values())]
        recall, bar = metrics["recall"], ""
        if recall is not None and len(run.classes) <= _MAX_BARS:
            bar = score_bar("recall", recall, metrics["recall_interval"], None)
        row = {
            "name": name,
            "train": run.train_counts[name],
            "metrics": metrics,
            "confused_with": f"{' or '.join(most[:3])} ({confused[most[0]]})" if most else "–",
            "bar": bar,
            "ap": f"{percent(found['ap'])} ({interval(found['ap_interval'], 0)})" if found else "",
            "threshold": percent(found.get("threshold"), 0) if found else "",
        }
        rows.append(((recall is None, recall or 0.0, name), row))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _confusion_of(
    classes: Sequence[str], counts: Mapping[tuple[int, int], int]
) -> dict[str, object] | None:
    """Return the confusions, given numbers of images by true and predicted class, or None.

    The matrix is empty if there are many classes. `more` counts the pairs that are not shown.
    """
    if not counts:
        return None
    totals = Counter[int]()
    for (i, _), n in counts.items():
        totals[i] += n

    def cell(i: int, j: int) -> dict[str, object]:
        """The images of class i that are predicted as j."""
        n, total = counts.get((i, j), 0), totals[i]
        label, predicted = classes[i], classes[j]
        shade = min(NUM_SHADES - 1, int(n / total * NUM_SHADES)) if n else 0
        return {
            "label": label,
            "predicted": predicted,
            "count": n,
            "fraction": percent(n / total, 0) if total else "",
            "cell": f"{i}-{j}",
            "shade": f"{'right' if i == j else 'wrong'}-{shade}" if n else "",
            "total": total,
        }

    pairs = sorted((-n, n, i, j) for (i, j), n in counts.items() if i != j)
    indices = range(len(classes) if len(classes) <= _MAX_MATRIX_CLASSES else 0)
    return {
        "matrix": [[cell(i, j) for j in indices] for i in indices],
        "pairs": [cell(i, j) for _, _, i, j in pairs[:_MAX_PAIRS]],
        "more": max(0, len(pairs) - _MAX_PAIRS),
    }


def _cross_validated_counts(run: Run) -> Counter[tuple[int, int]]:
    """Count the distinct images by true class and class predicted in cross-validation.

    There are none if the model is not the cross-validated head, or if the validation images are at
    least as many.
    """
    if run.several or not own_cross_validation(run.measured):
        return Counter()
    index = {name: i for i, name in enumerate(run.classes)}
    true = {row.sha256: run.split.names(row)[0] for row in run.rows}
    counts = Counter((index[true[key]], index[name]) for key, name in run.cross_validated.items())
    return counts if counts.total() > len(run.predictions) else Counter()
