"""The page of a comparison: its sections as plain values for the template."""

from dataclasses import dataclass

from vitft.metrics.intervals import wilson_interval
from vitft.report import charts
from vitft.report.comparison import Comparison, SharedImage
from vitft.report.examples import THUMBNAIL_BUDGET
from vitft.report.reproduce import dotted, setting_text
from vitft.report.summary import weights_name
from vitft.system.text import count, interval, percent, points, whole_percent

MAX_DISPUTED = 60
"""Images shown on which the runs disagree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the table of accuracies."""

    letter: str
    name: str
    weights: str
    trained: str
    accuracy: str
    range: str
    images: str
    shared: str
    shared_range: str
    best: str
    """CSS class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCell:
    """Recall of a class in a run."""

    recall: str
    sort: float
    range: str
    best: str
    """CSS class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassComparison:
    """Recall of a class in every run."""

    name: str
    images: int
    spread: str
    """Difference between the highest and the lowest recall."""
    spread_sort: float
    cells: list[RecallCell]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer:
    """Prediction of a run for a disputed image."""

    letter: str
    predicted: str
    confidence: str
    kind: str
    """CSS class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisputedCard:
    """An image with the predictions of the runs."""

    path: str
    label: str
    thumb: str
    answers: list[RunAnswer]


def comparison_page(comparison: Comparison) -> dict[str, object]:
    """Return the values of the template `compare.html.j2`."""
    names = comparison.names
    disputed = [image for image in comparison.images if image.disputed]
    return {
        "title": " vs. ".join(names) if len(names) == 2 else f"{len(names)} runs compared",
        "notes": comparison.notes,
        "conclusions": comparison.conclusions(),
        "shared": count(comparison.shared, "validation image"),
        "runs": run_rows(comparison),
        "chart": accuracy_chart(comparison),
        "pairs": comparison.pair_rows(),
        "settings": setting_rows(comparison),
        "letters": comparison.letters,
        "classes": class_comparisons(comparison),
        "disputed": disputed_cards(comparison, disputed),
        "num_disputed": len(disputed),
    }


def run_rows(comparison: Comparison) -> list[RunRow]:
    """Return name, training and accuracies of each run."""
    rows = []
    best, shared = max(comparison.rights), comparison.shared
    for i, (run, right) in enumerate(zip(comparison.runs, comparison.rights, strict=True)):
        rows.append(
            RunRow(
                letter=comparison.letters[i],
                name=comparison.names[i],
                weights=weights_name(str(run.setting("weights", "name") or "")),
                trained=str(run.setting("train", "freeze") or ""),
                accuracy=percent(run.results.get("top1") if run.results else None),
                range=interval(run.results.get("top1_interval") if run.results else None),
                images=f"{len(run.predictions):,}",
                shared=percent(right / shared if shared else None),
                shared_range=interval(wilson_interval(right, shared)) if shared else "",
                best="winner" if shared and right == best else "",
            )
        )
    return rows


def accuracy_chart(comparison: Comparison) -> str:
    """Return a chart of the accuracies on the shared images; empty without shared images."""
    shared, rights = comparison.shared, comparison.rights
    if not shared:
        return ""
    return charts.interval_chart(
        "Accuracy of each run with its interval",
        comparison.letters,
        [right / shared for right in rights],
        [wilson_interval(right, shared) for right in rights],
    )


def setting_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Return the settings that differ between the runs, with their values."""
    tables = [dotted(run.config) for run in comparison.runs]
    rows = []
    for key in sorted({key for table in tables for key in table}):
        values = [setting_text(table[key]) if key in table else "–" for table in tables]
        if len({*values}) > 1:
            rows.append((key, values))
    return rows


def class_comparisons(comparison: Comparison) -> list[ClassComparison]:
    """Return the recall of each class on the shared images, the largest differences first."""
    rows = []
    for name in comparison.classes:
        counts = [comparison.recall_counts(name, i) for i in range(len(comparison.runs))]
        recalls = [right / total for right, total in counts]
        spread = max(recalls) - min(recalls)
        cells = [
            RecallCell(
                recall=percent(recall),
                sort=recall,
                range=interval(wilson_interval(right, total), 0),
                best="winner" if spread > 0 and recall == max(recalls) else "",
            )
            for recall, (right, total) in zip(recalls, counts, strict=True)
        ]
        rows.append(
            ClassComparison(
                name=name,
                images=counts[0][1],
                spread=points(spread).lstrip("+"),
                spread_sort=spread,
                cells=cells,
            )
        )
    return sorted(rows, key=lambda row: (-row.spread_sort, row.name))


def disputed_cards(comparison: Comparison, images: list[SharedImage]) -> list[DisputedCard]:
    """Return the images on which the runs disagree, first those that a run classifies correctly."""
    runs = range(len(comparison.runs))

    def order(image: SharedImage) -> tuple[bool, float, str]:
        return not any(map(image.is_correct, runs)), -max(image.probabilities), image.path

    cards, budget = [], THUMBNAIL_BUDGET
    for image in sorted(images, key=order)[:MAX_DISPUTED]:
        thumbnail = find_thumbnail(comparison, image) if budget > 0 else ""
        budget -= len(thumbnail)
        answers = [
            RunAnswer(
                letter=letter,
                predicted=predicted,
                confidence=whole_percent(confidence),
                kind="good" if predicted == image.label else "bad",
            )
            for letter, predicted, confidence in zip(
                comparison.letters, image.predicted, image.probabilities, strict=True
            )
        ]
        cards.append(
            DisputedCard(path=image.path, label=image.label, thumb=thumbnail, answers=answers)
        )
    return cards


def find_thumbnail(comparison: Comparison, image: SharedImage) -> str:
    """Return the thumbnail of an image from the first run that has one."""
    found = (run.thumbnail(image.sha256) for run in comparison.runs)
    return next((uri for uri in found if uri), "")
