"""Confusion of classes on the validation images: the matrix, or the most confused pairs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from vitft.report.palette import NUM_SHADES
from vitft.report.run_files import Run
from vitft.system.text import percent

MAX_MATRIX_CLASSES = 20
"""With more classes, the most confused pairs are shown instead of the matrix."""
MAX_PAIRS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionCell:
    """A true class with a predicted class."""

    label: str
    predicted: str
    count: int
    fraction: str
    """Percentage of the images of the true class."""
    cell: str
    """Position in the matrix: row-column."""
    shade: str
    """CSS class; empty for a count of 0."""
    text: str


@dataclass(frozen=True, slots=True)
class Confusion:
    """The section "Confusion of classes"."""

    matrix: list[list[ConfusionCell]]
    """Empty with many classes."""
    pairs: list[ConfusionCell]
    """The most confused pairs."""
    more: int
    """Confused pairs that are not shown."""


def confusion_of(run: Run) -> Confusion | None:
    """Return the confusion of a run; None if there are neither predictions nor a matrix."""
    counts = confusion_counts(run)
    if not counts:
        return None
    totals = Counter[int]()
    for (i, _), n in counts.items():
        totals[i] += n

    def cell(i: int, j: int) -> ConfusionCell:
        n, total = counts.get((i, j), 0), totals[i]
        label, predicted = run.classes[i], run.classes[j]
        shade = min(NUM_SHADES - 1, int(n / total * NUM_SHADES)) if n else 0
        result = "classified correctly" if i == j else f"classified as {predicted}"
        return ConfusionCell(
            label=label,
            predicted=predicted,
            count=n,
            fraction=percent(n / total, 0) if total else "",
            cell=f"{i}-{j}",
            shade=f"{'right' if i == j else 'wrong'}-{shade}" if n else "",
            text=f"{n} of {total} images of {label} {result}",
        )

    pairs = sorted((-n, n, i, j) for (i, j), n in counts.items() if i != j)
    indices = range(len(run.classes) if len(run.classes) <= MAX_MATRIX_CLASSES else 0)
    return Confusion(
        matrix=[[cell(i, j) for j in indices] for i in indices],
        pairs=[cell(i, j) for _, _, i, j in pairs[:MAX_PAIRS]],
        more=max(0, len(pairs) - MAX_PAIRS),
    )


def confusion_counts(run: Run) -> Mapping[tuple[int, int], int]:
    """Return the number of images by true and predicted class, without zeros."""
    index = {name: i for i, name in enumerate(run.classes)}
    if run.predictions:
        return Counter((index[one.label], index[one.predicted]) for one in run.predictions)
    table = (run.results.get("confusion") if run.results else None) or []
    if len(table) != len(run.classes):
        return {}
    return {(i, j): n for i, row in enumerate(table) for j, n in enumerate(row) if n}
