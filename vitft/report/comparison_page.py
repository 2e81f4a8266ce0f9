"""HTML page of a comparison of runs: conclusions, curves, settings and images."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

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

_MAX_DISPUTED = 60
"""Maximum number of disputed images on the page."""
MAX_CURVES = 6
"""Maximum number of runs whose curves are overlaid; colours and dashes would repeat."""
_Curve = tuple[str, Sequence[float], Sequence[float]]
"""Letter of a run, and the coordinates of its points."""


def write_comparison(comparison: RunComparison, out: Path) -> Path:
    """Write a comparison as an HTML page and return the path of the page.

    Raises:
        RunError: The page cannot be written.
        ResourceError: The disk is full.
    """
    runs, accuracies = comparison.runs, comparison.accuracies
    label = "Accuracy of each run with its 95% interval"
    chart = charts.interval_chart(label, comparison.letters, accuracies) if accuracies else ""
    data = listing(dict.fromkeys(run.data_name or "unknown data" for run in runs))
    descriptions = run_descriptions(runs)
    view = {
        "title": f"{data}: {listing(descriptions, most=3)}",
        "data": data,
        "root": runs[0].root_uri,
        "comparison": comparison,
        "descriptions": descriptions,
        "accuracies": accuracies,
        "power": comparison.power_text(),
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
    facts = [
        (
            run.data_name,
            *_start_and_layers(run),
            "with fixes" if run.setting("data", "fixes") else "",
        )
        for run in runs
    ]
    differs = [len({*values}) > 1 for values in zip(*facts, strict=True)]
    described = [
        ", ".join(fact for fact, use in zip(row, differs, strict=True) if use and fact)
        for row in facts
    ]
    with_fixes = [text or "without fixes" for text in described]
    return with_fixes if len({*with_fixes}) == len(runs) else [run.name for run in runs]


def _start_and_layers(run: Run) -> tuple[str, str]:
    """Return the weights from which a run started, and the layers that it trained, as text."""
    weights, layers = run.setting("weights", "name"), run.setting("train", "layers")
    if weights == "none":
        return "from scratch", ""
    layers = "all layers" if layers == "all" else str(layers or "")
    return weights_name(str(weights or "")), layers


def curve_charts(comparison: RunComparison) -> list[tuple[str, str]]:
    """Return the title and the chart of each kind of curve that at least two runs have."""
    kinds: tuple[tuple[str, str, Callable[[Run], list[tuple[float, float]]]], ...] = (
        ("Validation accuracy by epoch", "epoch", lambda run: by_epoch(run, "val_top1")),
        ("Validation loss by epoch", "epoch", lambda run: by_epoch(run, "val_loss")),
        ("Cross-validated accuracy by training images", "training images", _learning_points),
        ("Cross-validated accuracy by L2 penalty", "L2 penalty", _by_penalty),
    )
    drawn = []
    for title, x, points_of in kinds:
        curves: list[_Curve] = []
        for letter, run in zip(comparison.letters, comparison.runs, strict=True):
            if points := points_of(run):
                xs, ys = zip(*points, strict=True)
                curves.append((letter, xs, ys))
        if len(curves) > 1:
            chart = charts.overlaid_curves(
                title,
                curves[:MAX_CURVES],
                x=x,
                is_percent="accuracy" in title,
                is_log=x != "epoch",
            )
            more = f" ({', '.join(one[0] for one in curves[MAX_CURVES:])} not shown)"
            drawn.append((title + more * (len(curves) > MAX_CURVES), chart))
    return drawn


def by_epoch(run: Run, key: str) -> list[tuple[float, float]]:
    """Return a value of the log by epoch, for a run of at least two epochs."""
    log = [line for line in run.log if "epoch" in line and line.get(key) is not None]
    values = [float(str(line.get(key))) for line in log]
    return list(zip(epoch_numbers(log), values, strict=True)) if len(log) > 1 else []


def _by_penalty(run: Run) -> list[tuple[float, float]]:
    """Return the cross-validated accuracy by penalty, for at least two penalties.

    The result is empty if the model is not the cross-validated head, or if not all classes are in
    the sample that chose the penalty.
    """
    if not own_cross_validation(run.measured):
        return []
    log = [line for line in run.log if {"l2", "cv_top1"} <= {*line} and "cv_classes" not in line]
    return sorted((line["l2"], line["cv_top1"]) for line in log) if len(log) > 1 else []


def _learning_points(run: Run) -> list[tuple[float, float]]:
    """Return the learning curve of a run; empty if there are fewer than two points."""
    more = own_cross_validation(run.measured)
    curve = more["curve"] if more else []
    return [(point["images"], point["top1"]) for point in curve] if len(curve) > 1 else []


def _disputed_groups(comparison: RunComparison) -> list[dict[str, object]]:
    """Return the images with different predictions, in groups, most confident first.

    `number` counts the images of a group, shown or not.
    Images that some run classifies correctly come first. Of two runs, each has a group of its own.
    """
    runs = range(len(comparison.runs))

    def order(image: SharedImage) -> tuple[float, str]:
        return -max(image.probabilities), image.path

    disputed = sorted((image for image in comparison.images if image.disputed), key=order)
    groups: dict[str, list[SharedImage]] = {}
    titles = [f"Only {letter} is right" for letter in comparison.letters]
    for image in disputed:
        right = [run for run in runs if image.is_correct(run)]
        title = "All are wrong, in different ways"
        if right:
            title = titles[right[0]] if len(runs) == 2 else "Some are right"
        groups.setdefault(title, []).append(image)
    order_of = [*titles, "Some are right", "All are wrong, in different ways"]
    left, found = _MAX_DISPUTED, list[dict[str, object]]()
    for title in sorted(groups, key=order_of.index):
        shown = groups[title][: max(0, min(left, -(-_MAX_DISPUTED // len(groups))))]
        found.append({"title": title, "images": shown, "number": len(groups[title])})
        left -= len(shown)
    return found


def class_recalls(
    comparison: RunComparison,
) -> list[tuple[str, int, list[Proportion], float, int | None]]:
    """Return a row for each class, widest range of recalls first.

    A row consists of the name, the number of images, the recall of each run, the range of the
    recalls, and the run whose recall is certainly the highest: its interval is above all others.
    """
    rows = []
    for name, (rights, total) in comparison.recall_counts.items():
        own = np.array([image.label == name for image in comparison.images])
        groups = None if comparison.groups is None else comparison.groups[own]
        recalls = [
            (right / total, accuracy_interval(flags[own], groups))
            for right, flags in zip(rights, comparison.flags, strict=True)
        ]
        values = [recall for recall, _ in recalls]
        best = values.index(max(values))
        others = [bounds[1] for run, (_, bounds) in enumerate(recalls) if run != best]
        is_clear = recalls[best][1][0] > max(others)
        rows.append((name, total, recalls, max(values) - min(values), best if is_clear else None))
    return sorted(rows, key=lambda row: (-row[3], row[0]))
