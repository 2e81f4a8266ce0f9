"""Sections of a run's page that consist of text, charts and a table of the charted values."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitft.messages.pages import confidence_text, learning_text, penalty_text
from vitft.messages.results import CROSS_VALIDATED, INTERVAL, sentence
from vitft.messages.training import BEST_RULE, confirmed_in_float32, selected_epoch, stopped_early
from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import Interval, LogLine
from vitft.report.charts import (
    HEIGHT,
    WIDTH,
    Axis,
    Chart,
    Series,
    charted,
    epoch_axis,
    error_bar,
    log_axis,
)
from vitft.report.html import LIGHT
from vitft.report.run_files import Run, read_run
from vitft.system.errors import RunError
from vitft.system.files import atomic_folder
from vitft.system.text import count, interval, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChartSection:
    title: str
    text: str
    charts: list[str]
    caption: str = ""
    columns: list[str]
    rows: list[list[str | int]]


def epochs_section(run: Run) -> _ChartSection | None:
    """Return the section on loss and accuracy by epoch, or None if the log has no epochs."""
    needed = ("epoch", "train_loss", "val_loss", "train_top1", "val_top1")
    log = [line for line in run.log if all(line.get(key) is not None for key in needed)]
    if not log:
        return None
    xs, lines = epoch_numbers(log), [dict[str, Any](line) for line in log]
    parts = ("training", "validation")
    loss, top1 = [
        [
            Series(
                name=name,
                colour=colour,
                xs=xs,
                ys=[line[f"{key}_{kind}"] for line in lines],
                dashes=dashes,
                markers=None if len(xs) <= 24 else (),
            )
            for name, key, colour, dashes in (
                ("training", "train", "second", ""),
                ("validation", "val", "accent", "10 4"),
            )
        ]
        for kind in ("loss", "top1")
    ]
    text = f"The run trained for {count(len(log), 'epoch')}."
    stages = [stage for stage in run.layers.split(",") if stage != "head"]
    planned = int(run.setting("optim", "epochs") or 0) * max(1, len(stages))
    is_finished = run.environment.get("status") == "finished"
    if is_finished and run.setting("optim", "patience") and len(log) < planned:
        patience = int(run.setting("optim", "patience") or 0)
        text = f"The run {stopped_early(len(log), planned, patience)}."
    if run.measured.get("best_epoch"):
        text += f" The saved weights come from {selected_epoch(run.measured, run.layers)}"
        how = f", the best on the validation images: {BEST_RULE}"
        text += f"{how if run.measured.get('selected_on_validation') else ''}."
        precision = str(run.environment.get("precision", "fp32"))
        index = run.measured["best_epoch"] - 1 - run.layers.startswith("head,")
        is_measured_again = precision != "fp32" and "seconds" in run.measured and not run.several
        if is_measured_again and 0 <= index < len(log):
            final, during = run.measured["top1"], log[index]["val_top1"]
            if again := confirmed_in_float32(final, during, precision):
                text += f" {sentence(again)}"
    return _ChartSection(
        title="Training curves",
        text=text,
        charts=[
            charted(
                "Loss by epoch", epoch_axis(xs), loss, title="loss (nats)", is_percent=False
            ).markup(),
            charted("Accuracy by epoch", epoch_axis(xs), top1).markup(),
        ],
        columns=["epoch", *(f"{p} loss" for p in parts), *(f"{p} accuracy" for p in parts)],
        rows=[
            [x, f"{a:.4f}", f"{b:.4f}", percent(c), percent(d)]
            for x, a, b, c, d in zip(xs, *(one.ys for one in (*loss, *top1)), strict=True)
        ],
    )


def epoch_numbers(log: Sequence[LogLine]) -> list[int]:
    """Return the epoch of each line, counted over all stages of training."""
    numbers = [line["epoch"] for line in log]
    restarts = any(later <= earlier for earlier, later in pairwise(numbers))  # of the next stage
    return list(range(1, len(log) + 1)) if restarts else numbers


def penalty_section(run: Run) -> _ChartSection | None:
    """Return the section on penalties compared by cross-validation, or None if there are none."""
    log = [line for line in run.log if {"l2", "cv_top1", "cv_loss"} <= {*line}]
    if not log:
        return None
    best, label = run.measured.get("l2", 0.0), f"{CROSS_VALIDATED.capitalize()} by penalty"
    penalties, accuracies = [line["l2"] for line in log], [line["cv_top1"] for line in log]
    series = [Series(name=CROSS_VALIDATED, colour="accent", xs=penalties, ys=accuracies)]
    if ringed := [
        pair for pair in zip(penalties, accuracies, strict=True) if math.isclose(pair[0], best)
    ]:
        xs, ys = zip(*ringed, strict=True)
        ring = Series(
            name="selected", colour="second", xs=xs, ys=ys, width=0, radius=6.5, is_hollow=True
        )
        series.append(ring)
    ticks = [(value, f"{value:g}") for value in sorted(penalties)]
    axis = log_axis(penalties, ticks, "L2 penalty on the weights of the head")
    return _ChartSection(
        title="How the head was fitted",
        text=penalty_text(run.measured, len(run.classes), log[0].get("cv_classes")),
        charts=[charted(label, axis, series).markup()],
        columns=["penalty", "cross-validated loss", CROSS_VALIDATED],
        rows=[
            [f"{line['l2']:g}", f"{line['cv_loss']:.4f}", percent(line["cv_top1"])] for line in log
        ],
    )


def confidence_section(run: Run) -> _ChartSection | None:
    """Return the section on calibration, or None if the calibration error is unknown."""
    calibration = run.measured.get("calibration")
    bins = [b for b in calibration["bins"] if b["images"]] if calibration else []
    if not calibration or not bins:
        return None
    counted, rows = "label decisions" if run.several else "images", list[list[str | int]]()
    for one in bins:
        ends = (one["low"], one["high"])  # with as many digits as distinguish them, at most two
        digits = next((d for d in (0, 1) if len({percent(end, d) for end in ends}) > 1), 2)
        values = percent(one.get("confidence")), percent(one.get("accuracy"))
        rows.append([interval(ends, digits), one["images"], *values])
    series = [
        Series(name="ideal", colour="muted", xs=[0, 1], ys=[0, 1], width=1, markers=()),
        *(
            error_bar(
                b["confidence"],
                wilson_interval(round(b["accuracy"] * b["images"]), b["images"]),
            )
            for b in bins
        ),
        Series(
            name=f"measured, with {INTERVAL}",
            colour="accent",
            xs=[b["confidence"] for b in bins],
            ys=[b["accuracy"] for b in bins],
            width=0,
        ),
    ]
    ticks = [(value / 5, f"{20 * value}%") for value in range(6)]
    x, y = (Axis(low=0, high=1.02, ticks=ticks, title=t) for t in ("confidence", "accuracy"))
    return _ChartSection(
        title="Is the confidence reliable?",
        text=confidence_text(run.measured),
        charts=[Chart(label="Accuracy by confidence", x=x, y=y, series=series).markup()],
        caption="Points above the diagonal: underconfident. Points below: overconfident.",
        columns=["confidence", counted, "mean confidence", "accuracy"],
        rows=rows,
    )


def learning_section(run: Run) -> _ChartSection | None:
    """Return the section on accuracy by number of training images, or None if it is unknown."""
    more = run.measured.get("cross_validation")
    if not more or len(more["curve"]) < 2:
        return None
    gain, measured = more["gain_from_twice"], [(p["images"], p["top1"]) for p in more["curve"]]
    bounds, last = [point["top1_interval"] for point in more["curve"]], measured[-1]
    extrapolated = (2 * last[0], last[1] + max(0.0, gain)) if gain is not None else None
    label = "Accuracy by number of training images"
    return _ChartSection(
        title="Would more images help?",
        text=learning_text(more, several=run.several),
        charts=[learning_chart(label, measured, extrapolated, bounds=bounds).markup()],
        columns=["training images", "accuracy", INTERVAL],
        rows=[
            [f"{images:,}", percent(top1), interval(ends)]
            for (images, top1), ends in zip(measured, bounds, strict=True)
        ],
    )


def learning_chart(
    label: str,
    points: Sequence[tuple[float, float]],
    extrapolated: tuple[float, float] | None,
    *,
    bounds: Sequence[Interval] = (),
) -> Chart:
    """Return a chart of accuracy by number of training images.

    `points` and the extrapolated one are pairs (number of images, accuracy), and `bounds` the 95%
    intervals of the points.
    """
    xs, ys = zip(*points, strict=True)
    name = f"measured, {INTERVAL}" if bounds else "measured"
    series = [error_bar(x, ends) for x, ends in zip(xs, bounds, strict=False)]
    series.append(Series(name=name, colour="accent", xs=xs, ys=ys))
    if extrapolated is not None:
        more = Series(
            name="extrapolated", colour="second", xs=[xs[-1], extrapolated[0]],
            ys=[ys[-1], extrapolated[1]], dashes="4 4", markers=[False, True], is_hollow=True,
        )  # fmt: skip
        series.append(more)
    places = sorted({x for one in series for x in one.xs})
    axis = log_axis(places, [(value, f"{value:,.0f}") for value in places], "training images")
    return charted(label, axis, series)


# charts of a run's page as SVG files, for slides and papers ---------------------------------------

_SCALE = 3  # pixels per SVG unit; a chart is about as wide as a slide


def write_charts(run: Path, folder: Path) -> list[str]:
    """Write the charts of the page of a run as SVG files to a new folder, and return their names.

    The charts have a white background and the colours of the page in light mode.
    """
    content = read_run(run)
    makers = (epochs_section, penalty_section, learning_section, confidence_section)
    sections = [section for make in makers if (section := make(content)) is not None]
    charts = [chart for section in sections for chart in section.charts]
    if not charts:
        raise RunError(
            f"{run} has no charts: it has neither finished epochs nor results",
            fix="choose a finished run with --run",
        )
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SCALE * WIDTH:g}" '
        f'height="{_SCALE * HEIGHT:g}" font-family="Helvetica, Arial, sans-serif"'
    )
    ground = f'<rect width="{WIDTH:g}" height="{HEIGHT:g}" fill="{LIGHT["ground"]}"></rect>'
    names = []
    with atomic_folder(folder) as new:
        for chart in charts:
            title = re.search(r'aria-label="([^"]*)"', chart)
            assert title is not None
            names.append(re.sub(r"\W+", "_", title[1].lower()) + ".svg")
            # Attributes take the place of the CSS classes of the page.
            alone = chart.replace("<svg", begin, 1).replace(' class="chart"', "", 1)
            for name, colour in LIGHT.items():
                alone = alone.replace(f'class="f-{name}"', f'fill="{colour}"')
                alone = alone.replace(f'class="s-{name}"', f'stroke="{colour}"')
            (new / names[-1]).write_text(alone.replace(">", f">\n{ground}", 1) + "\n")
    return names
