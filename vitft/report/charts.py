"""Line charts for pages and figures: series, axes and their SVG markup, and bars of scores.

The markup is for pages with two colour schemes and no style attributes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import compress

from vitft.messages.results import bar_label
from vitft.metrics.results import Interval

WIDTH, HEIGHT = 324.0, 208.8  # in SVG units; as wide as a narrow phone, so that labels are legible
_BOTTOM = 172.8  # vertical position of the x-axis
FONT_SIZE, LEGEND_FONT_SIZE = 11, 10
_LETTER_WIDTHS = {
    **dict.fromkeys("%mMW", 0.95),
    **dict.fromkeys("wOQG", 0.82),
    **dict.fromkeys("fijltrI.,:;'()[] -", 0.4),
}
"""Widths of letters in DejaVu Sans that differ from those of most letters, in units of the size."""
TICK_LENGTH, LABEL_GAP, HANDLE_LENGTH = 3.5, 7.0, 18.0  # `HANDLE` is a line in the legend


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Data points, drawn as circles, and the line through them (width 0: no line)."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: str  # name of a colour of the page
    name: str = ""  # text in the legend; empty for no legend entry
    width: float = 2.0
    dashes: str = ""  # value of `stroke-dasharray`; empty for a solid line
    markers: Sequence[bool] | None = None  # which of the points are circles; None if all are
    radius: float = 3.0
    is_hollow: bool = False
    band: Sequence[Interval] = ()  # intervals of the points, which only figures show


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


def axis_limits(
    values: Sequence[float], *, is_log: bool = False, is_percent: bool = False
) -> tuple[float, float]:
    """Return the limits of an axis that spans the values, with a margin on each side.

    With `is_percent`, the values are fractions, and the axis is within 0 to 100%.
    """
    ends = [math.log(v) for v in values] if is_log else list(values)
    low, high = min(ends), max(ends)
    margin = 0.05 * (high - low) or max(0.05 * abs(low), 1e-3)
    low, high = low - margin, high + margin
    if is_percent:
        low, high = max(0.0, low), min(1.0, high)
    return (math.exp(low), math.exp(high)) if is_log else (low, high)


def round_ticks(low: float, high: float, *, integer: bool = False) -> list[float]:
    """Return up to seven evenly spaced round values within the limits of an axis."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [step * size for size in (power, 10 * power) for step in (1, 2, 2.5, 5, 10)]
    step = next((s for s in steps if s >= rough and (not integer or s == round(s))), 1.0)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * i, 12) for i in range(first, last + 1)]


def epoch_ticks(epochs: Sequence[float]) -> list[float]:
    """Return ticks for an axis of epochs: round values and the last epoch."""
    values = round_ticks(*axis_limits(epochs), integer=True)
    last = max(epochs)
    step = values[1] - values[0] if len(values) > 1 else 0.0
    return [value for value in values if last - value >= 0.6 * step and value < last] + [last]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of several series, with a label as the text alternative for screen readers."""

    label: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    elements: list[str] = field(default_factory=list)

    def markup(self) -> str:
        """Return the chart as an SVG element. Call this method only once."""
        named = [s for s in self.series if s.name]
        labels = max((_text_width(text) for _, text in self.y.ticks), default=0.0)
        self.x.begin = LABEL_GAP + labels + (19.0 if self.y.title else 5.0)
        self.x.end = WIDTH - 5.0 - max(4.0, _text_width(self.x.ticks[-1][1]) / 2 - 4.0)
        self.y.begin, self.y.end = _BOTTOM, 23.0 if named else 8.0
        self._draw_axes()
        for series in self.series:
            self._draw_series(series)
        self._draw_legend(named)
        inside = "\n".join(self.elements)
        return (
            f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" class="chart" role="img" '
            f'aria-label="{escape(self.label)}">\n{inside}\n</svg>'
        )

    def _draw_axes(self) -> None:
        left, right, bottom, top = self.x.begin, self.x.end, self.y.begin, self.y.end
        free = -math.inf
        for value, text in self.x.ticks:
            at = self.x.position(value)
            self._draw_line(((at, bottom), (at, top)), "line", 0.6)
            self._draw_line(((at, bottom), (at, bottom + TICK_LENGTH)), "muted", 0.8)
            if at - _text_width(text) / 2 > free:  # omit a label that overlaps the previous one
                self._draw_text(at, bottom + 15.4, text, "middle")
                free = at + _text_width(text) / 2 + 2
        for value, text in self.y.ticks:
            at = self.y.position(value)
            self._draw_line(((left, at), (right, at)), "line", 0.6)
            self._draw_line(((left, at), (left - TICK_LENGTH, at)), "muted", 0.8)
            self._draw_text(left - LABEL_GAP, at + 4.0, text, "end")
        self._draw_line(((left, top), (left, bottom), (right, bottom)), "muted", 0.8)
        self._draw_text((left + right) / 2, 203.2, self.x.title, "middle")
        if self.y.title:
            middle = (top + bottom) / 2
            rotation = f' transform="rotate(-90 11.4 {middle:.1f})"'
            self._draw_text(11.4, middle, self.y.title, "middle", rotation)

    def _draw_series(self, series: Series) -> None:
        points = [
            (self.x.position(x), self.y.position(y))
            for x, y in zip(series.xs, series.ys, strict=True)
        ]
        if series.width:
            self._draw_line(points, series.colour, series.width, series.dashes)
        for point in points if series.markers is None else compress(points, series.markers):
            self._draw_marker(point, series)

    def _draw_marker(self, point: tuple[float, float], series: Series) -> None:
        x, y, r = *point, series.radius
        look = f'class="f-{series.colour}"'
        if series.is_hollow:
            look = f'class="s-{series.colour}" fill="none" stroke-width="{2 if r > 4 else 1}"'
        arc = f"A {r:g} {r:g} 0 1 0"
        circle = f"M {x - r:.2f} {y:.2f} {arc} {x + r:.2f} {y:.2f} {arc} {x - r:.2f} {y:.2f}"
        self.elements.append(f'<path d="{circle}" {look}></path>')

    def _draw_legend(self, named: Sequence[Series]) -> None:
        """Draw the legend above the plotting area so that it does not cover any points."""
        left = self.x.begin
        for series in named:
            ends = ((left + 3, 10.9), (left + 3 + HANDLE_LENGTH, 10.9))
            if series.width:
                self._draw_line(ends, series.colour, series.width, series.dashes)
            if series.markers is None or any(series.markers):
                self._draw_marker((left + 3 + HANDLE_LENGTH / 2, 10.9), series)
            left += 3 + HANDLE_LENGTH + 8
            self._draw_text(left, 14.4, series.name, "start", size=LEGEND_FONT_SIZE)
            left += _text_width(series.name, LEGEND_FONT_SIZE) + 9

    def _draw_line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = ""
    ) -> None:
        path = " L ".join(f"{x:.2f} {y:.2f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.elements.append(
            f'<path d="M {path}" fill="none" stroke-width="{width:g}"{dashed} '
            f'class="s-{colour}"></path>'
        )

    def _draw_text(
        self, x: float, y: float, text: str, anchor: str, more: str = "", size: int = FONT_SIZE
    ) -> None:
        self.elements.append(
            f'<text x="{x:.2f}" y="{y:.2f}"{more} font-size="{size}" text-anchor="{anchor}" '
            f'class="f-ink">{escape(text)}</text>'
        )


def _text_width(text: str, size: int = FONT_SIZE) -> float:
    """Return the width of a string in SVG units, in a font with wide letters (DejaVu Sans)."""
    return size * sum(_LETTER_WIDTHS.get(letter, 0.63) for letter in text)


def charted(
    label: str,
    x_axis: Axis,
    series: Sequence[Series],
    *,
    title: str = "accuracy",
    is_percent: bool = True,
) -> Chart:
    """Return a chart whose y-axis, with this title, spans the values of the series."""
    low, high = axis_limits([value for one in series for value in one.ys], is_percent=is_percent)
    values = round_ticks(low, high)
    ticks = percent_ticks(values) if is_percent else [(value, f"{value:g}") for value in values]
    y_axis = Axis(low=low, high=high, ticks=ticks, title=title)
    return Chart(label=label, x=x_axis, y=y_axis, series=series)


def epoch_axis(epochs: Sequence[float]) -> Axis:
    """Return an axis of epochs."""
    low, high = axis_limits(epochs)
    ticks = [(value, f"{value:g}") for value in epoch_ticks(epochs)]
    return Axis(low=low, high=high, ticks=ticks, title="epoch")


def log_axis(values: Sequence[float], ticks: Sequence[tuple[float, str]], title: str) -> Axis:
    """Return a logarithmic axis that spans the values."""
    low, high = axis_limits(values, is_log=True)
    return Axis(low=low, high=high, ticks=ticks, title=title, is_log=True)


def percent_ticks(fractions: Sequence[float]) -> list[tuple[float, str]]:
    """Return a tick for each fraction: its position, and a label such as `85%` or `85.5%`."""
    return [(value, f"{round(100 * value, 3):g}%") for value in fractions]


def error_bar(x: float, bounds: Interval) -> Series:
    """Return a vertical line for an interval."""
    return Series(colour="accent", xs=[x, x], ys=bounds, width=1.2, markers=())


def score_bar(
    name: str, value: float, bounds: Interval | None, baseline: float | None, marks: str = ""
) -> str:
    """Return a bar from 0 to 100% with a mark at a value, its interval and, if given, a baseline.

    Positions are percentages, so that the bar has the width of its container. With `marks`, the
    name of the baseline, the ends of the bar and the baseline are labelled.
    """
    label, parts = bar_label(name, value, bounds, baseline), list[str]()

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
