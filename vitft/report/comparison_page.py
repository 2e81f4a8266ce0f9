"""Page of a comparison of runs (conclusions, curves, settings, images) and its figure as a PNG."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vitft.messages import comparison as messages
from vitft.messages.comparison import BY_EPOCH
from vitft.metrics.intervals import accuracy_interval
from vitft.metrics.summary import own_cross_validation
from vitft.models.pretrained.catalog import weights_name
from vitft.report.charts import (
    Axis,
    Chart,
    Series,
    axis_limits,
    charted,
    epoch_axis,
    epoch_numbers,
    log_axis,
    percent_ticks,
    round_ticks,
)
from vitft.report.comparison import Proportion, RunComparison, SharedImage
from vitft.report.html import render
from vitft.report.run_files import Run, Thumbnails
from vitft.system.console import visible
from vitft.system.files import write_atomically
from vitft.system.text import listing

_RUN_LOOKS = (
    ("accent", ""), ("second", "7 4"), ("muted", "2 3"), ("accent", "2 3"), ("second", "")
)  # fmt: skip
"""Colour and dashes of each run in the charts; further runs repeat them."""
_MAX_DISPUTED = 60  # maximum number of disputed images on the page
_MAX_CURVES = 6  # maximum number of runs whose curves are overlaid; colours and dashes would repeat


def write_comparison(comparison: RunComparison, out: Path) -> Path:
    """Write a comparison as an HTML page and return the path of the page."""
    runs, accuracies = comparison.runs, comparison.accuracies
    data = listing(dict.fromkeys(run.data_name or "unknown data" for run in runs))
    descriptions = _run_descriptions(runs)
    view = {
        "title": f"{data}: {listing(descriptions, most=3)}",
        "data": data,
        "root": runs[0].root_uri,
        "comparison": comparison,
        "descriptions": descriptions,
        "accuracies": accuracies,
        "chart": _accuracy_chart(comparison, comparison.letters).markup() if accuracies else "",
        "curves": [(title, chart.markup()) for title, chart in _curve_charts(comparison)],
        "settings": comparison.setting_rows(),
        "fixes": any(comparison.fixes),
        "classes": class_recalls(comparison),
        "disputed": _disputed_groups(comparison),
        "thumbnails": Thumbnails(runs),
    }
    write_atomically(out, render("compare.html.j2", view))
    return out


def _run_descriptions(runs: Sequence[Run]) -> list[str]:
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


def draw_comparison(comparison: RunComparison, out: Path) -> Path:
    """Draw the accuracies of the runs as a PNG, and their accuracy by epoch if two have any."""
    from vitft.report.plots import MAX_LABEL, charts_png

    runs, names = comparison.runs, []
    for letter, text in zip(comparison.letters, map(visible, _run_descriptions(runs)), strict=True):
        short = text if len(text) <= MAX_LABEL else f"...{text[3 - MAX_LABEL :]}"
        names.append(f"{letter}  {short}")
    curves = [chart for title, chart in _curve_charts(comparison) if title.startswith(BY_EPOCH)]
    data = listing(dict.fromkeys(run.data_name or "unknown data" for run in runs))
    charts = [_accuracy_chart(comparison, names), *curves]
    size = 10.5 if curves else 6.4, max(3.2 if curves else 1.8, 1.2 + 0.4 * len(runs))
    detail = messages.figure_of_runs(comparison.shared)
    write_atomically(out, charts_png(charts, size, data, detail))
    return out


def _accuracy_chart(comparison: RunComparison, names: Sequence[str]) -> Chart:
    """Return a chart of accuracies and intervals, with one row per run."""
    series = []
    for row, (accuracy, ends) in enumerate(comparison.accuracies):
        colour, _ = _RUN_LOOKS[row % len(_RUN_LOOKS)]
        series += [
            Series(colour=colour, xs=ends, ys=[row, row], width=1.6, markers=()),
            Series(colour=colour, xs=[accuracy], ys=[row], width=0, radius=4),
        ]
    values = [value for one in series for value in one.xs] or [0.0, 1.0]
    low, high = axis_limits(values, is_percent=True)
    ticks = percent_ticks(round_ticks(low, high))
    x_axis = Axis(low=low, high=high, ticks=ticks, title=messages.ON_SHARED)
    y_axis = Axis(low=len(names) - 0.5, high=-0.5, ticks=[*enumerate(names)])
    return Chart(label=messages.EACH_RUN, x=x_axis, y=y_axis, series=series)


def _curve_charts(comparison: RunComparison) -> list[tuple[str, Chart]]:
    """Return the title and the chart of each kind of curve that at least two runs have."""
    kinds: tuple[tuple[str, str, Callable[[Run], list[tuple[float, float]]]], ...] = (
        (BY_EPOCH, "epoch", lambda run: _by_epoch(run, "val_top1")),
        ("Validation loss by epoch", "epoch", lambda run: _by_epoch(run, "val_loss")),
        (messages.BY_IMAGES, "training images", _learning_points),
        (messages.BY_PENALTY, "L2 penalty", _by_penalty),
    )
    drawn = []
    for title, x, points_of in kinds:
        every = zip(comparison.letters, map(points_of, comparison.runs), strict=True)
        curves = [(letter, points) for letter, points in every if len(points) > 1]
        if len(curves) < 2:
            continue
        series = []
        for letter, points in curves[:_MAX_CURVES]:
            colour, dashes = _RUN_LOOKS[comparison.letters.index(letter) % len(_RUN_LOOKS)]
            xs, ys = zip(*points, strict=True)
            markers = None if len(xs) <= 24 else ()
            series.append(
                Series(name=letter, colour=colour, dashes=dashes, xs=xs, ys=ys, markers=markers)
            )
        places = sorted({place for one in series for place in one.xs})
        axis = epoch_axis(places)
        if x != "epoch":
            axis = log_axis(places, [(value, f"{value:,g}") for value in places], x)
        is_percent = "accuracy" in title
        y = "accuracy" if is_percent else "loss (nats)"
        more = f" ({', '.join(letter for letter, _ in curves[_MAX_CURVES:])} not shown)"
        name = title + more * (len(curves) > _MAX_CURVES)
        drawn.append((name, charted(title, axis, series, title=y, is_percent=is_percent)))
    return drawn


def _by_epoch(run: Run, key: str) -> list[tuple[float, float]]:
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
