"""The page of a comparison: what its template shows beyond the comparison itself."""

from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import Interval
from vitft.report import charts
from vitft.report.comparison import RunComparison, SharedImage
from vitft.report.reproduce import dotted, setting_text
from vitft.report.summary import weights_name
from vitft.report.thumbnails import Thumbnails

MAX_DISPUTED = 60
"""Images shown on which the runs disagree."""
Proportion = tuple[float, Interval]
"""A proportion with its interval."""


def comparison_page(comparison: RunComparison) -> dict[str, object]:
    """Return the values of the template `compare.html.j2`."""
    names, runs = comparison.names, range(len(comparison.runs))

    def order(image: SharedImage) -> tuple[bool, float, str]:
        return not any(map(image.is_correct, runs)), -max(image.probabilities), image.path

    disputed = sorted((image for image in comparison.images if image.disputed), key=order)
    accuracies = shared_accuracies(comparison)
    return {
        "title": " vs. ".join(names) if len(names) == 2 else f"{len(names)} runs compared",
        "comparison": comparison,
        "weights": [weights_name(str(r.setting("weights", "name") or "")) for r in comparison.runs],
        "accuracies": accuracies,
        "chart": charts.interval_chart(
            "Accuracy of each run with its interval", comparison.letters, accuracies
        )
        if accuracies
        else "",
        "settings": different_settings(comparison),
        "classes": class_recalls(comparison),
        "disputed": disputed[:MAX_DISPUTED],
        "num_disputed": len(disputed),
        "thumbnails": Thumbnails(comparison.runs),
    }


def shared_accuracies(comparison: RunComparison) -> list[Proportion]:
    """Return the accuracy of each run on the shared images; empty without such images."""
    shared = comparison.shared
    return [
        (right / shared, wilson_interval(right, shared)) for right in comparison.rights if shared
    ]


def different_settings(comparison: RunComparison) -> list[tuple[str, list[str]]]:
    """Return the settings that differ between the runs, with their values."""
    tables = [dotted(run.config) for run in comparison.runs]
    rows = []
    for key in sorted({key for table in tables for key in table}):
        values = [setting_text(table[key]) if key in table else "–" for table in tables]
        if len({*values}) > 1:
            rows.append((key, values))
    return rows


def class_recalls(comparison: RunComparison) -> list[tuple[str, int, list[Proportion], float]]:
    """Return name, shared images, recalls and their difference by class, largest first."""
    rows = []
    for name in comparison.classes:
        counts = [comparison.recall_counts(name, i) for i in range(len(comparison.runs))]
        recalls = [(right / total, wilson_interval(right, total)) for right, total in counts]
        values = [recall for recall, _ in recalls]
        rows.append((name, counts[0][1], recalls, max(values) - min(values)))
    return sorted(rows, key=lambda row: (-row[3], row[0]))
