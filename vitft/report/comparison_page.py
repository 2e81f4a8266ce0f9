"""HTML page of a comparison of runs: conclusions, curves, settings and images."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vitft.messages import comparison as messages
from vitft.metrics.intervals import accuracy_interval
from vitft.metrics.summary import own_cross_validation
from vitft.models.pretrained.catalog import weights_name
from vitft.report import charts
from vitft.report.chart_sections import epoch_numbers
from vitft.report.comparison import Proportion, RunComparison, SharedImage
from vitft.report.html import render
from vitft.report.run_files import Run, Thumbnails
from vitft.system.files import write_atomically
from vitft.system.text import listing

_MAX_DISPUTED = 60  # maximum number of disputed images on the page
MAX_CURVES = 6  # maximum number of runs whose curves are overlaid; colours and dashes would repeat


def write_comparison(comparison: RunComparison, out: Path) -> Path:
    """Write a comparison as an HTML page and return the path of the page.

    Raises:
        RunError: The page cannot be written.
        ResourceError: The disk is full.
    """
    runs, accuracies = comparison.runs, comparison.accuracies
    chart = charts.interval_chart(comparison.letters, accuracies) if accuracies else ""
    data = listing(dict.fromkeys(run.data_name or "unknown data" for run in runs))
    descriptions = run_descriptions(runs)
    view = {
        "title": f"{data}: {listing(descriptions, most=3)}",
        "data": data,
        "root": runs[0].root_uri,
        "comparison": comparison,
        "descriptions": descriptions,
        "accuracies": accuracies,
        "chart": chart,
        "curves": curve_charts(comparison),
        "settings": comparison.setting_rows(),
        "fixes": any(comparison.fixes),
        "classes": class_recalls(comparison),
        "disputed": _disputed_groups(comparison),
        "thumbnails": Thumbnails(runs),
    }
    write_atomically(out, render("compare.html.j2", view))
    return out


def run_descriptions(runs: Sequence[Run]) -> list[str]:
    """Describe each run by its data, weights and trained layers, as far as these differ.

    A run without pretrained weights is `from scratch`. Runs whose descriptions would be equal are
    described by their names.
    """
    facts = []
    for run in runs:
        start, layers = weights_name(str(run.setting("weights", "name") or "")), run.layers
        if start == "none":
            start, layers = "from scratch", ""
        fixes = "with fixes" if run.setting("data", "fixes") else ""
        facts.append((run.data_name, start, "all layers" if layers == "all" else layers, fixes))
    differs = [len({*values}) > 1 for values in zip(*facts, strict=True)]
    described = [
        ", ".join(fact for fact, use in zip(row, differs, strict=True) if use and fact)
        for row in facts
    ]
    with_fixes = [text or "without fixes" for text in described]
    return with_fixes if len({*with_fixes}) == len(runs) else [run.name for run in runs]


def curve_charts(comparison: RunComparison) -> list[tuple[str, str]]:
    """Return the title and the chart of each kind of curve that at least two runs have."""
    kinds: tuple[tuple[str, str, Callable[[Run], list[tuple[float, float]]]], ...] = (
        (messages.BY_EPOCH, "epoch", lambda run: by_epoch(run, "val_top1")),
        ("Validation loss by epoch", "epoch", lambda run: by_epoch(run, "val_loss")),
        (messages.BY_IMAGES, "training images", _learning_points),
        (messages.BY_PENALTY, "L2 penalty", _by_penalty),
    )
    drawn = []
    for title, x, points_of in kinds:
        curves = list[tuple[str, Sequence[float], Sequence[float]]]()
        for letter, run in zip(comparison.letters, comparison.runs, strict=True):
            if len(points := points_of(run)) > 1:
                xs, ys = zip(*points, strict=True)
                curves.append((letter, xs, ys))
        if len(curves) > 1:
            chart = charts.overlaid_curves(
                title, curves[:MAX_CURVES], x=x, is_percent="accuracy" in title, is_log=x != "epoch"
            )
            more = f" ({', '.join(one[0] for one in curves[MAX_CURVES:])} not shown)"
            drawn.append((title + more * (len(curves) > MAX_CURVES), chart))
    return drawn


def by_epoch(run: Run, key: str) -> list[tuple[float, float]]:
    """Return a value of the log by epoch."""
    log = [line for line in run.log if "epoch" in line and line.get(key) is not None]
    values = [float(str(line.get(key))) for line in log]
    return list(zip(epoch_numbers(log), values, strict=True))


def _by_penalty(run: Run) -> list[tuple[float, float]]:
    """Return the cross-validated accuracy of the model by penalty, measured on all classes."""
    if not own_cross_validation(run.measured):
        return []
    log = [line for line in run.log if {"l2", "cv_top1"} <= {*line} and "cv_classes" not in line]
    return sorted((line["l2"], line["cv_top1"]) for line in log)


def _learning_points(run: Run) -> list[tuple[float, float]]:
    more = own_cross_validation(run.measured)
    return [(point["images"], point["top1"]) for point in more["curve"]] if more else []


def _disputed_groups(comparison: RunComparison) -> list[dict[str, object]]:
    """Return the images with different predictions, in groups, most confident first.

    `number` counts the images of a group, shown or not. Images that some run classifies correctly
    come first. Of two runs, each has a group of its own.
    """
    runs, groups = range(len(comparison.runs)), dict[int, list[SharedImage]]()
    some, none = len(runs), len(runs) + 1
    for image in sorted(comparison.images, key=lambda one: (-max(one.probabilities), one.path)):
        right = [run for run in runs if image.is_correct(run)]
        if image.disputed:
            group = none if not right else right[0] if len(runs) == 2 else some
            groups.setdefault(group, []).append(image)
    titles = [f"Only {letter} is right" for letter in comparison.letters]
    titles += ["Some are right", "All are wrong, in different ways"]
    most = -(-_MAX_DISPUTED // max(1, len(groups)))
    return [
        {"title": titles[group], "images": images[:most], "number": len(images)}
        for group, images in sorted(groups.items())
    ]


def class_recalls(
    comparison: RunComparison,
) -> list[tuple[str, int, list[Proportion], float, int | None]]:
    """Return a row for each class, widest range of recalls first.

    A row consists of the name, the number of images, the recall of each run, the range of the
    recalls, and the run whose recall is clearly the highest, with its interval above all others.
    """
    rows, labels = [], np.array([image.label for image in comparison.images])
    for name, (rights, total) in comparison.recall_counts.items():
        own = labels == name
        groups = None if comparison.groups is None else comparison.groups[own]
        intervals = [accuracy_interval(flags[own], groups) for flags in comparison.flags]
        values = [right / total for right in rights]
        best, spread = values.index(max(values)), max(values) - min(values)
        is_clear = intervals[best][0] > max(
            high for run, (_, high) in enumerate(intervals) if run != best
        )
        recalls = [*zip(values, intervals, strict=True)]
        rows.append((name, total, recalls, spread, best if is_clear else None))
    return sorted(rows, key=lambda row: (-row[3], row[0]))
