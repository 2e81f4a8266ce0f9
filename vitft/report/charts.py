"""Charts for the HTML pages, with labels that contain no text from the user's files."""

import math
from collections.abc import Sequence
from html import escape

from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import CalibrationBin
from vitft.metrics.values import Interval
from vitft.report.svg import Axis, Chart, Series, axis_limits, epoch_ticks, round_ticks
from vitft.system.text import interval, percent

_NO_MARKERS = (False, False)
_RUN_LOOKS = (
    ("accent", ""),
    ("second", "7 4"),
    ("muted", "2 3"),
    ("accent", "2 3"),
    ("second", ""),
)
"""Colour and dashes of each run in charts that compare runs; further runs repeat them."""


def epoch_chart(
    label: str,
    epochs: Sequence[float],
    training: Sequence[float],
    validation: Sequence[float],
    *,
    y: str,
    is_percent: bool = False,
) -> str:
    """Return a chart of training values (solid line) and validation values (dashed) by epoch."""
    markers = None if len(epochs) <= 24 else [False] * len(epochs)
    lines = (("training", "second", training, ""), ("validation", "accent", validation, "10 4"))
    series = [
        Series(name=name, colour=colour, xs=epochs, ys=ys, dashes=dashes, markers=markers)
        for name, colour, ys, dashes in lines
    ]
    low, high = axis_limits(epochs)
    ticks = [(value, f"{value:g}") for value in epoch_ticks(epochs)]
    x_axis = Axis(low=low, high=high, ticks=ticks, title="epoch")
    return _with_y_axis(label, x_axis, series, title=y, is_percent=is_percent)


def penalty_chart(
    label: str, penalties: Sequence[float], accuracies: Sequence[float], selected: float
) -> str:
    """Return a chart of cross-validated accuracy by penalty, with the selected penalty circled."""
    series = [Series(name="cross-validated accuracy", colour="accent", xs=penalties, ys=accuracies)]
    pairs = zip(penalties, accuracies, strict=True)
    if ringed := [pair for pair in pairs if math.isclose(pair[0], selected)]:
        xs, ys = zip(*ringed, strict=True)
        ring = Series(
            name="selected", colour="second", xs=xs, ys=ys, width=0, radius=6.5, is_hollow=True
        )
        series.append(ring)
    ticks = [(value, f"{value:g}") for value in sorted(penalties)]
    x_axis = _log_axis(penalties, ticks, "L2 penalty on the weights of the head")
    return _with_y_axis(label, x_axis, series, title="accuracy", is_percent=True)


def learning_curve_chart(
    label: str,
    points: Sequence[tuple[float, float]],
    extrapolated: tuple[float, float] | None,
    *,
    bounds: Sequence[Interval] = (),
) -> str:
    """Return a chart of accuracy by number of training images.

    Each point is a pair (number of images, accuracy). If there is an extrapolated point, a dashed
    line connects the last measured point to it. `bounds` are the 95% intervals of the points.
    """
    xs, ys = zip(*points, strict=True)
    series = [_error_bar(x, ends, "accent") for x, ends in zip(xs, bounds, strict=False)]
    name = "measured, 95% interval" if bounds else "measured"
    series.append(Series(name=name, colour="accent", xs=xs, ys=ys))
    if extrapolated is not None:
        series.append(
            Series(
                name="extrapolated",
                colour="second",
                xs=[xs[-1], extrapolated[0]],
                ys=[ys[-1], extrapolated[1]],
                dashes="4 4",
                markers=[False, True],
                is_hollow=True,
            )
        )
    places = [*xs, *([extrapolated[0]] if extrapolated else [])]
    ticks = [(value, f"{value:,.0f}") for value in sorted(places)]
    x_axis = _log_axis(places, ticks, "training images")
    return _with_y_axis(label, x_axis, series, title="accuracy", is_percent=True)


def reliability_diagram(label: str, bins: Sequence[CalibrationBin]) -> str:
    """Return a reliability diagram: accuracy by confidence, with intervals and the diagonal."""
    series = [
        Series(name="ideal", colour="muted", xs=[0, 1], ys=[0, 1], width=1, markers=_NO_MARKERS)
    ]
    for b in bins:
        bounds = wilson_interval(round(b["accuracy"] * b["images"]), b["images"])
        series.append(_error_bar(b["confidence"], bounds, "accent"))
    name = "measured, with 95% interval"
    xs, ys = [b["confidence"] for b in bins], [b["accuracy"] for b in bins]
    series.append(Series(name=name, colour="accent", xs=xs, ys=ys, width=0))
    ticks = [(value / 5, f"{20 * value}%") for value in range(6)]
    x_axis = Axis(low=0, high=1.02, ticks=ticks, title="confidence")
    y_axis = Axis(low=0, high=1.02, ticks=ticks, title="accuracy")
    return Chart(label=label, x=x_axis, y=y_axis, series=series).markup()


def _error_bar(x: float, bounds: Interval, colour: str) -> Series:
    """Return a vertical line from the lower to the upper end of an interval."""
    return Series(colour=colour, xs=[x, x], ys=bounds, width=1.2, markers=_NO_MARKERS)


def interval_chart(
    label: str, names: Sequence[str], accuracies: Sequence[tuple[float, Interval]]
) -> str:
    """Return a chart of accuracies and intervals, with one row per name."""
    series = []
    for row, (accuracy, bounds) in enumerate(accuracies):
        colour = _RUN_LOOKS[row % len(_RUN_LOOKS)][0]
        series.append(
            Series(colour=colour, xs=bounds, ys=[row, row], width=1.6, markers=_NO_MARKERS)
        )
        series.append(Series(colour=colour, xs=[accuracy], ys=[row], width=0, radius=4))
    low, high = axis_limits([value for one in series for value in one.xs], is_percent=True)
    title = "accuracy on the shared images"
    x_axis = Axis(low=low, high=high, ticks=_percent_ticks(round_ticks(low, high)), title=title)
    y_axis = Axis(low=len(names) - 0.5, high=-0.5, ticks=[*enumerate(names)])
    return Chart(label=label, x=x_axis, y=y_axis, series=series).markup()


def overlaid_curves(
    label: str,
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    *,
    x: str,
    is_percent: bool,
    is_log: bool,
) -> str:
    """Return a chart of one curve per run, each given as its letter, x values and y values."""
    series = [
        Series(
            name=letter,
            colour=_RUN_LOOKS[i % len(_RUN_LOOKS)][0],
            dashes=_RUN_LOOKS[i % len(_RUN_LOOKS)][1],
            xs=xs,
            ys=ys,
            markers=None if len(xs) <= 24 else [False] * len(xs),
        )
        for i, (letter, xs, ys) in enumerate(curves)
    ]
    places = sorted({place for _, xs, _ in curves for place in xs})
    if is_log:
        axis = _log_axis(places, [(value, f"{value:,g}") for value in places], x)
    else:
        low, high = axis_limits(places)
        ticks = [(value, f"{value:g}") for value in epoch_ticks(places)]
        axis = Axis(low=low, high=high, ticks=ticks, title=x)
    title = "accuracy" if is_percent else "loss (nats)"
    return _with_y_axis(label, axis, series, title=title, is_percent=is_percent)


def score_bar(
    name: str, value: float, bounds: Interval | None, baseline: float | None, marks: str = ""
) -> str:
    """Return a bar from 0 to 100% with a mark at a value, its interval and, if given, a baseline.

    Positions are percentages, so that the bar has the width of its container. With `marks`, the
    name of the baseline, the ends of the bar and the baseline are labelled.
    """
    label, parts = f"{name} {percent(value)}", [_bar_part("track", 0, 100, "%", 6, 12)]
    if bounds:
        label += f", 95% interval {interval(bounds)}"
        width = max(0.5, 100 * (bounds[1] - bounds[0]))
        parts.append(_bar_part("band", 100 * bounds[0], width, "%", 6, 12))
    if baseline is not None:
        label += f", baseline {percent(baseline)}"
        parts.append(_bar_part("f-second", min(99.0, 100 * baseline), 3, "", 1, 22))
    parts.append(_bar_part("f-accent", min(99.0, 100 * value), 4, "", 1, 22))
    look = "score-bar marked" if marks else "score-bar"
    if marks:
        at = 100 * (baseline or 0.0)
        anchor = "start" if at < 35 else "end" if at > 65 else "middle"
        labels = [(0.0, "start", "0%")] * (at >= 35) + [(100.0, "end", "100%")] * (at <= 65)
        parts += [
            f'<text x="{x:.2f}%" y="40" text-anchor="{side}" aria-hidden="true">'
            f"{escape(text)}</text>"
            for x, side, text in [*labels, (at, anchor, marks)]
        ]
    return f'<svg class="{look}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _bar_part(look: str, left: float, width: float, unit: str, top: int, height: int) -> str:
    """Return a rectangle of a score bar; `left` is in percent, `width` in percent or pixels."""
    return (
        f'<rect class="{look}" x="{left:.2f}%" y="{top}" width="{width:.2f}{unit}" '
        f'height="{height}"></rect>'
    )


def _with_y_axis(
    label: str, x_axis: Axis, series: Sequence[Series], *, title: str, is_percent: bool
) -> str:
    """Return a chart of the series with a y-axis that spans all of their values."""
    low, high = axis_limits([value for one in series for value in one.ys], is_percent=is_percent)
    values = round_ticks(low, high)
    ticks = _percent_ticks(values) if is_percent else [(value, f"{value:g}") for value in values]
    y_axis = Axis(low=low, high=high, ticks=ticks, title=title)
    return Chart(label=label, x=x_axis, y=y_axis, series=series).markup()


def _log_axis(values: Sequence[float], ticks: Sequence[tuple[float, str]], title: str) -> Axis:
    """Return a logarithmic axis that spans the values, with the given ticks."""
    low, high = axis_limits(values, is_log=True)
    return Axis(low=low, high=high, ticks=ticks, title=title, is_log=True)


def _percent_ticks(fractions: Sequence[float]) -> list[tuple[float, str]]:
    """Return a tick for each fraction: its position, and a label such as `85%` or `85.5%`."""
    return [(value, f"{round(100 * value, 3):g}%") for value in fractions]
