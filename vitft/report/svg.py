"""Line charts as SVG markup, for pages with two colour schemes and no style attributes.

Colours are CSS classes defined in the style sheet of the page. Text is not converted to paths.
Fonts are not measured; instead, text widths are estimated generously.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 324.0, 208.8
"""Size of a chart in SVG units; the width matches a narrow phone so that labels stay legible."""
_BOTTOM = 172.8
"""Vertical position of the x-axis."""
FONT_SIZE, LEGEND_FONT_SIZE = 11, 10
_LETTER_WIDTHS = {
    **dict.fromkeys("%mMW", 0.95),
    **dict.fromkeys("wOQG", 0.82),
    **dict.fromkeys("fijltrI.,:;'()[] -", 0.4),
}
"""Widths of letters in DejaVu Sans that differ from those of most letters, in units of the size."""
TICK_LENGTH, LABEL_GAP, HANDLE_LENGTH = 3.5, 7.0, 18.0
"""Length of a tick mark, gap between axis and labels, and length of a line in the legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Data points, drawn as circles, and the line through them (width 0: no line)."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    """Name of a colour in `palette`."""
    name: str = ""
    """Text in the legend; empty for no legend entry."""
    width: float = 2.0
    dashes: str = ""
    """Value of `stroke-dasharray`; empty for a solid line."""
    markers: Sequence[bool] | None = None
    """Whether to draw each point as a circle; None to draw all of them."""
    radius: float = 3.0
    is_hollow: bool = False


@dataclass(slots=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, drawn from `begin` to `end` in SVG units."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    """Tick values with their labels."""
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
        self.draw_axes()
        for series in self.series:
            self.draw_series(series)
        self.draw_legend(named)
        inside = "\n".join(self.elements)
        return (
            f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" class="chart" role="img" '
            f'aria-label="{escape(self.label)}">\n{inside}\n</svg>'
        )

    def draw_axes(self) -> None:
        """Draw the grid, the ticks with their labels, the titles and both axis lines."""
        left, right, bottom, top = self.x.begin, self.x.end, self.y.begin, self.y.end
        free = -math.inf
        for value, text in self.x.ticks:
            at = self.x.position(value)
            self.draw_line(((at, bottom), (at, top)), "line", 0.6)
            self.draw_line(((at, bottom), (at, bottom + TICK_LENGTH)), "muted", 0.8)
            if at - _text_width(text) / 2 > free:  # omit a label that overlaps the previous one
                self.draw_text(at, bottom + 15.4, text, "middle")
                free = at + _text_width(text) / 2 + 2
        for value, text in self.y.ticks:
            at = self.y.position(value)
            self.draw_line(((left, at), (right, at)), "line", 0.6)
            self.draw_line(((left, at), (left - TICK_LENGTH, at)), "muted", 0.8)
            self.draw_text(left - LABEL_GAP, at + 4.0, text, "end")
        self.draw_line(((left, top), (left, bottom), (right, bottom)), "muted", 0.8)
        self.draw_text((left + right) / 2, 203.2, self.x.title, "middle")
        if self.y.title:
            middle = (top + bottom) / 2
            rotation = f' transform="rotate(-90 11.4 {middle:.1f})"'
            self.draw_text(11.4, middle, self.y.title, "middle", rotation)

    def draw_series(self, series: Series) -> None:
        """Draw the line and the markers of a series."""
        points = [
            (self.x.position(x), self.y.position(y))
            for x, y in zip(series.xs, series.ys, strict=True)
        ]
        if series.width:
            self.draw_line(points, series.colour, series.width, series.dashes)
        markers = series.markers if series.markers is not None else [True] * len(points)
        for point, is_marked in zip(points, markers, strict=True):
            if is_marked:
                self.draw_marker(point, series)

    def draw_marker(self, point: tuple[float, float], series: Series) -> None:
        """Draw a point of a series as a circle."""
        x, y, r = *point, series.radius
        look = f'class="f-{series.colour}"'
        if series.is_hollow:
            look = f'class="s-{series.colour}" fill="none" stroke-width="{2 if r > 4 else 1}"'
        arc = f"A {r:g} {r:g} 0 1 0"
        circle = f"M {x - r:.2f} {y:.2f} {arc} {x + r:.2f} {y:.2f} {arc} {x - r:.2f} {y:.2f}"
        self.elements.append(f'<path d="{circle}" {look}></path>')

    def draw_legend(self, named: Sequence[Series]) -> None:
        """Draw the legend above the plotting area so that it does not cover any points."""
        left = self.x.begin
        for series in named:
            ends = ((left + 3, 10.9), (left + 3 + HANDLE_LENGTH, 10.9))
            if series.width:
                self.draw_line(ends, series.colour, series.width, series.dashes)
            if series.markers is None or any(series.markers):
                self.draw_marker((left + 3 + HANDLE_LENGTH / 2, 10.9), series)
            left += 3 + HANDLE_LENGTH + 8
            self.draw_text(left, 14.4, series.name, "start", size=LEGEND_FONT_SIZE)
            left += _text_width(series.name, LEGEND_FONT_SIZE) + 9

    def draw_line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = ""
    ) -> None:
        """Draw straight line segments between consecutive points."""
        path = " L ".join(f"{x:.2f} {y:.2f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.elements.append(
            f'<path d="M {path}" fill="none" stroke-width="{width:g}"{dashed} '
            f'class="s-{colour}"></path>'
        )

    def draw_text(
        self, x: float, y: float, text: str, anchor: str, more: str = "", size: int = FONT_SIZE
    ) -> None:
        """Draw text; `more` contains additional SVG attributes."""
        self.elements.append(
            f'<text x="{x:.2f}" y="{y:.2f}"{more} font-size="{size}" text-anchor="{anchor}" '
            f'class="f-ink">{escape(text)}</text>'
        )


def _text_width(text: str, size: int = FONT_SIZE) -> float:
    """Return the width of a string in SVG units, in a font with wide letters (DejaVu Sans)."""
    return size * sum(_LETTER_WIDTHS.get(letter, 0.63) for letter in text)
