"""Charts for pages and figures, and the sections of a run's page that consist of text and charts.

The SVG markup is for pages with two colour schemes and no style attributes.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

from vitft.messages import results as messages
from vitft.metrics.intervals import Interval, wilson_interval
from vitft.metrics.results import SEVERAL_BLOCKS, LogLine
from vitft.report.html import LIGHT, filled
from vitft.report.run_files import Run, read_run
from vitft.system.errors import RunError
from vitft.system.files import atomic_folder
from vitft.system.text import (
    interval,
    is_measurable,
    is_scaled,
    not_calibrated,
    percent,
    scored_images,
)

_WIDTH, _HEIGHT = 324.0, 208.8  # in SVG units; as wide as a narrow phone, so labels are legible
_BOTTOM = 172.8  # vertical position of the x-axis
_FONT_SIZE, _LEGEND_SIZE = 11, 10
_LETTER_WIDTHS = {
    **dict.fromkeys("%mMW", 0.95),
    **dict.fromkeys("wOQG", 0.82),
    **dict.fromkeys("fijltrI.,:;'()[] -", 0.4),
}
"""Widths of letters in DejaVu Sans that differ from those of most letters, in units of the size."""
_MOST_CIRCLES = 24  # on a line
_TICK, _LABEL_GAP, _HANDLE = 3.5, 7.0, 18.0  # lengths; the handle is a line in the legend


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Data points, drawn as circles, and the line through them (width 0: no line)."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: str  # name of a colour of the page
    name: str = ""  # text in the legend; empty for no legend entry
    width: float = 2.0
    dashes: str = ""  # value of `stroke-dasharray`; empty for a solid line
    markers: Sequence[bool] | None = None  # which of the points are circles; None for the default
    radius: float = 3.0
    is_hollow: bool = False
    band: Sequence[Interval] = ()  # intervals of the points, which only figures show

    @property
    def circles(self) -> Sequence[bool]:
        """Which of the points are circles: by default, all, but none on a line of many points."""
        is_crowded = self.width and len(self.xs) > _MOST_CIRCLES
        return [not is_crowded] * len(self.xs) if self.markers is None else self.markers


@dataclass(slots=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, drawn from `begin` to `end` in SVG units."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]  # tick values with their labels
    title: str = ""
    is_log: bool = False
    begin: float = 0.0
    end: float = 1.0

    def position(self, value: float) -> float:
        """Return the position of a value in SVG units."""
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)


def axis_of(values: Sequence[float], title: str, kind: str = "") -> Axis:
    """Return an axis that spans the values, with a margin on each side, and its ticks.

    On a `log` axis, they are at the values, and on one of `epoch`s also at the last value. An axis
    in `percent` is for fractions, and within 0 to 100%.
    """
    is_log = kind == "log"
    ends = [math.log(v) for v in values] if is_log else list(values)
    low, high = min(ends), max(ends)
    margin = 0.05 * (high - low) or max(0.05 * abs(low), 1e-3)
    low, high = low - margin, high + margin
    if is_log:
        places, low, high = sorted({*values}), math.exp(low), math.exp(high)
        ticks = [(v, f"{v:,.0f}" if v >= 1000 else f"{v:g}") for v in places]
    elif kind == "percent":
        low, high = max(0.0, low), min(1.0, high)
        ticks = [(v, f"{round(100 * v, 3):g}%") for v in round_ticks(low, high)]
    elif kind == "epoch":
        last, places = max(values), round_ticks(low, high, integer=True)
        step = places[1] - places[0] if len(places) > 1 else 0.0
        places = [v for v in places if last - v >= 0.6 * step and v < last]
        ticks = [(v, f"{v:g}") for v in (*places, last)]
    else:
        ticks = [(v, f"{v:g}") for v in round_ticks(low, high)]
    return Axis(low=low, high=high, ticks=ticks, title=title, is_log=is_log)


def round_ticks(low: float, high: float, *, integer: bool = False) -> list[float]:
    """Return up to seven evenly spaced round values within the limits of an axis."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [step * size for size in (power, 10 * power) for step in (1, 2, 2.5, 5, 10)]
    step = next((s for s in steps if s >= rough and (not integer or s == round(s))), 1.0)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * i, 12) for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of several series, with a label as the text alternative for screen readers."""

    label: str
    x: Axis
    y: Axis
    series: Sequence[Series]

    def markup(self) -> str:
        """Return the chart as an SVG element."""
        named = [s for s in self.series if s.name]
        labels = max((_text_width(text) for _, text in self.y.ticks), default=0.0)
        self.x.begin = _LABEL_GAP + labels + (19.0 if self.y.title else 5.0)
        self.x.end = _WIDTH - 5.0 - max(4.0, _text_width(self.x.ticks[-1][1]) / 2 - 4.0)
        self.y.begin, self.y.end = _BOTTOM, 23.0 if named else 8.0
        elements = self._axes()
        for one in self.series:
            points = [
                (self.x.position(x), self.y.position(y))
                for x, y in zip(one.xs, one.ys, strict=True)
            ]
            elements += [_line(points, one.colour, one.width, one.dashes)] * bool(one.width)
            elements += [_marker(point, one) for point in compress(points, one.circles)]
        # The legend is above the plotting area so that it does not cover any points
        left = self.x.begin
        for one in named:
            ends = (left + 3, 10.9), (left + 3 + _HANDLE, 10.9)
            elements += [_line(ends, one.colour, one.width, one.dashes)] * bool(one.width)
            if any(one.circles):
                elements.append(_marker((left + 3 + _HANDLE / 2, 10.9), one))
            left += 3 + _HANDLE + 8
            elements.append(_text(left, 14.4, one.name, "start", size=_LEGEND_SIZE))
            left += _text_width(one.name, _LEGEND_SIZE) + 9
        inside = "\n".join(elements)
        return (
            f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" class="chart" role="img" '
            f'aria-label="{escape(self.label)}">\n{inside}\n</svg>'
        )

    def _axes(self) -> list[str]:
        left, right, bottom, top = self.x.begin, self.x.end, self.y.begin, self.y.end
        elements, free = list[str](), -math.inf
        for value, text in self.x.ticks:
            at, half = self.x.position(value), _text_width(text) / 2
            elements.append(_line(((at, bottom), (at, top)), "line", 0.6))
            elements.append(_line(((at, bottom), (at, bottom + _TICK)), "muted", 0.8))
            if at - half > free:  # omit a label that overlaps the previous one
                elements.append(_text(at, bottom + 15.4, text, "middle"))
                free = at + half + 2
        for value, text in self.y.ticks:
            at = self.y.position(value)
            elements.append(_line(((left, at), (right, at)), "line", 0.6))
            elements.append(_line(((left, at), (left - _TICK, at)), "muted", 0.8))
            elements.append(_text(left - _LABEL_GAP, at + 4.0, text, "end"))
        elements.append(_line(((left, top), (left, bottom), (right, bottom)), "muted", 0.8))
        elements.append(_text((left + right) / 2, 203.2, self.x.title, "middle"))
        if self.y.title:
            middle = (top + bottom) / 2
            rotation = f' transform="rotate(-90 11.4 {middle:.1f})"'
            elements.append(_text(11.4, middle, self.y.title, "middle", rotation))
        return elements


def _marker(point: tuple[float, float], series: Series) -> str:
    x, y, r = *point, series.radius
    look = f'class="f-{series.colour}"'
    if series.is_hollow:
        look = f'class="s-{series.colour}" fill="none" stroke-width="{2 if r > 4 else 1}"'
    arc = f"A {r:g} {r:g} 0 1 0"
    circle = f"M {x - r:.2f} {y:.2f} {arc} {x + r:.2f} {y:.2f} {arc} {x - r:.2f} {y:.2f}"
    return f'<path d="{circle}" {look}></path>'


def _line(
    points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = ""
) -> str:
    path = " L ".join(f"{x:.2f} {y:.2f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    look = f'fill="none" stroke-width="{width:g}"{dashed} class="s-{colour}"'
    return f'<path d="M {path}" {look}></path>'


def _text(
    x: float, y: float, text: str, anchor: str, more: str = "", size: int = _FONT_SIZE
) -> str:
    look = f'{more} font-size="{size}" text-anchor="{anchor}" class="f-ink"'
    return f'<text x="{x:.2f}" y="{y:.2f}"{look}>{escape(text)}</text>'


def _text_width(text: str, size: int = _FONT_SIZE) -> float:
    """Return the width of a string in SVG units, in a font with wide letters (DejaVu Sans)."""
    return size * sum(_LETTER_WIDTHS.get(letter, 0.63) for letter in text)


def charted(label: str, x: Axis, series: Sequence[Series], title: str = "accuracy") -> Chart:
    """Return a chart whose y-axis, with this title, spans the values of the series."""
    values = [value for one in series for value in one.ys]
    y = axis_of(values, title, "percent" if title == "accuracy" else "")
    return Chart(label=label, x=x, y=y, series=series)


def _error_bar(x: float, bounds: Interval) -> Series:
    """Return a vertical line for an interval."""
    return Series(colour="accent", xs=[x, x], ys=bounds, width=1.2, markers=())


def score_bar(
    name: str, value: float, bounds: Interval | None, baseline: float | None, marks: str = ""
) -> str:
    """Return a bar from 0 to 100% with a mark at a value, its interval and, if given, a baseline.

    Positions are percentages, so that the bar has the width of its container. With `marks`, the
    name of the baseline, the ends of the bar and the baseline are labelled.
    """
    label, parts = f"{name} {percent(value)}", list[str]()
    label += f", {messages.INTERVAL} {interval(bounds)}" if bounds else ""
    label += f", baseline {percent(baseline)}" if baseline is not None else ""

    def add(look: str, left: float, width: str, top: int = 1, height: int = 22) -> None:
        place = f'x="{left:.2f}%" y="{top}" width="{width}" height="{height}"'
        parts.append(f'<rect class="{look}" {place}></rect>')

    add("track", 0, "100.00%", 6, 12)
    if bounds:
        width = max(0.5, 100 * (bounds[1] - bounds[0]))
        add("band", 100 * bounds[0], f"{width:.2f}%", 6, 12)
    if baseline is not None:
        add("f-second", min(99.0, 100 * baseline), "3.00")
    add("f-accent", min(99.0, 100 * value), "4.00")
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


# sections of a run's page that consist of text, charts and a table of the charted values ----------

_Section = dict[str, Any]  # title, text, charts, caption; columns and rows of the charted values


def chart_sections(run: Run) -> dict[str, _Section | None]:
    """Return the sections on learning curve, confidence and training that a run has, or None."""
    return {
        "learning": _learning_section(run),
        "confidence": _confidence_section(run),
        "training": _epochs_section(run) or _penalty_section(run),
    }


def _text_of(about: str, run: Run, **values: object) -> str:
    """Return the text of a section."""
    text = filled("sections.j2", about=about, run=run, messages=messages, **values)
    return " ".join(text.split())


def _epochs_section(run: Run) -> _Section | None:
    """Return the section on loss and accuracy by epoch, or None if the log has no epochs."""
    needed = ("epoch", "train_loss", "val_loss", "train_top1", "val_top1")
    log = [line for line in run.log if all(line.get(key) is not None for key in needed)]
    if not log:
        return None
    xs, lines = epoch_numbers(log), [dict[str, Any](line) for line in log]
    axis = axis_of(xs, "epoch", "epoch")
    parts = ("training", "validation")
    loss, top1 = [
        [
            Series(
                name=name,
                colour=colour,
                xs=xs,
                ys=[line[f"{key}_{kind}"] for line in lines],
                dashes=dashes,
            )
            for name, key, colour, dashes in (
                ("training", "train", "second", ""),
                ("validation", "val", "accent", "10 4"),
            )
        ]
        for kind in ("loss", "top1")
    ]
    stages = [stage for stage in run.layers.split(",") if stage != "head"]
    planned = int(run.setting("optim", "epochs") or 0) * max(1, len(stages))
    patience = int(run.setting("optim", "patience") or 0)
    is_finished = run.environment.get("status") == "finished"
    is_early = is_finished and patience and len(log) < planned
    numbers = {"epochs": len(log), "planned": planned, "patience": patience}
    return _Section(
        title="Training curves",
        text=_text_of("epochs", run, is_early=is_early, **numbers),
        charts=[
            charted("Loss by epoch", axis, loss, title="loss (nats)").markup(),
            charted("Accuracy by epoch", axis, top1).markup(),
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


def _penalty_section(run: Run) -> _Section | None:
    """Return the section on penalties compared by cross-validation, or None if there are none."""
    log = [line for line in run.log if {"l2", "cv_top1", "cv_loss"} <= {*line}]
    if not log:
        return None
    best, label = run.measured.get("l2", 0.0), f"{messages.CROSS_VALIDATED.capitalize()} by penalty"
    penalties, accuracies = [line["l2"] for line in log], [line["cv_top1"] for line in log]
    series = [Series(name=messages.CROSS_VALIDATED, colour="accent", xs=penalties, ys=accuracies)]
    if ringed := [
        pair for pair in zip(penalties, accuracies, strict=True) if math.isclose(pair[0], best)
    ]:
        xs, ys = zip(*ringed, strict=True)
        ring = Series(
            name="selected", colour="second", xs=xs, ys=ys, width=0, radius=6.5, is_hollow=True
        )
        series.append(ring)
    axis = axis_of(penalties, "L2 penalty on the weights of the head", "log")
    return _Section(
        title="How the head was fitted",
        text=_text_of("penalty", run, best=best, several_blocks=SEVERAL_BLOCKS),
        charts=[charted(label, axis, series).markup()],
        columns=["penalty", "cross-validated loss", messages.CROSS_VALIDATED],
        rows=[
            [f"{line['l2']:g}", f"{line['cv_loss']:.4f}", percent(line["cv_top1"])] for line in log
        ],
    )


def _confidence_section(run: Run) -> _Section | None:
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
            _error_bar(
                b["confidence"], wilson_interval(round(b["accuracy"] * b["images"]), b["images"])
            )
            for b in bins
        ),
        Series(
            name=f"measured, with {messages.INTERVAL}",
            colour="accent",
            xs=[b["confidence"] for b in bins],
            ys=[b["accuracy"] for b in bins],
            width=0,
        ),
    ]
    ticks = [(value / 5, f"{20 * value}%") for value in range(6)]
    x, y = (Axis(low=0, high=1.02, ticks=ticks, title=t) for t in ("confidence", "accuracy"))
    return _Section(
        title="Is the confidence reliable?",
        text=_text_of(
            "confidence",
            run,
            calibration=calibration,
            doubt=not_calibrated(run.measured),
            is_measurable=is_measurable,
            is_scaled=is_scaled,
        ),
        charts=[Chart(label="Accuracy by confidence", x=x, y=y, series=series).markup()],
        caption="Points above the diagonal: underconfident. Points below: overconfident.",
        columns=["confidence", counted, "mean confidence", "accuracy"],
        rows=rows,
    )


def _learning_section(run: Run) -> _Section | None:
    """Return the section on accuracy by number of training images, or None if it is unknown."""
    more = run.measured.get("cross_validation")
    if not more or len(more["curve"]) < 2:
        return None
    gain, measured = more["gain_from_twice"], [(p["images"], p["top1"]) for p in more["curve"]]
    bounds, last = [point["top1_interval"] for point in more["curve"]], measured[-1]
    extrapolated = (2 * last[0], last[1] + max(0.0, gain)) if gain is not None else None
    label = "Accuracy by number of training images"
    gain_of_twice = messages.growth_sentence(more["gain_interval"])
    is_flat = all(b["top1"] <= a["top1"] for a, b in pairwise(more["curve"][-3:]))
    texts = {"images": scored_images(more), "growth": gain_of_twice}
    return _Section(
        title="Would more images help?",
        text=_text_of("learning", run, is_flat=is_flat, **texts),
        charts=[learning_chart(label, measured, extrapolated, bounds=bounds).markup()],
        columns=["training images", "accuracy", messages.INTERVAL],
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
    name = f"measured, {messages.INTERVAL}" if bounds else "measured"
    series = [_error_bar(x, ends) for x, ends in zip(xs, bounds, strict=False)]
    series.append(Series(name=name, colour="accent", xs=xs, ys=ys))
    if extrapolated is not None:
        more = Series(
            name="extrapolated", colour="second", xs=[xs[-1], extrapolated[0]],
            ys=[ys[-1], extrapolated[1]], dashes="4 4", markers=[False, True], is_hollow=True,
        )  # fmt: skip
        series.append(more)
    axis = axis_of([x for one in series for x in one.xs], "training images", "log")
    return charted(label, axis, series)


# charts of a run's page as SVG files, for slides and papers ---------------------------------------


def write_charts(run: Path, folder: Path) -> list[str]:
    """Write the charts of the page of a run as SVG files to a new folder, and return their names.

    The charts have a white background and the colours of the page in light mode.
    """
    content = read_run(run)
    makers = (_epochs_section, _penalty_section, _learning_section, _confidence_section)
    charts = [chart for make in makers if (one := make(content)) for chart in one["charts"]]
    if not charts:
        raise RunError(
            f"{run} has no charts: it has neither finished epochs nor results",
            fix="choose a finished run with --run",
        )
    begin = (  # three pixels per SVG unit, so that a chart is about as wide as a slide
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{3 * _WIDTH:g}" '
        f'height="{3 * _HEIGHT:g}" font-family="Helvetica, Arial, sans-serif"'
    )
    ground = f'<rect width="{_WIDTH:g}" height="{_HEIGHT:g}" fill="{LIGHT["ground"]}"></rect>'
    names = []
    with atomic_folder(folder) as new:
        for chart in charts:
            label = chart.split('aria-label="')[1].split('"')[0]
            names.append(re.sub(r"\W+", "_", label.lower()) + ".svg")
            # Attributes take the place of the CSS classes of the page
            alone = chart.replace("<svg", begin, 1).replace(' class="chart"', "", 1)
            for name, colour in LIGHT.items():
                alone = alone.replace(f'class="f-{name}"', f'fill="{colour}"')
                alone = alone.replace(f'class="s-{name}"', f'stroke="{colour}"')
            (new / names[-1]).write_text(alone.replace(">", f">\n{ground}", 1) + "\n")
    return names
