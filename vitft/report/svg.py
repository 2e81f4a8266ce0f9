"""A line chart as SVG markup for a page that allows no style attributes and has two colour schemes.

Colours are the classes of their meanings, so that the page's style sheet decides. Words stay text.
Nothing is measured with a font: the width of a word is taken to be that of a wide one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 324.0, 208.8
"""Units of the picture: as wide as a phone shows without shrinking the words much."""
FONT, LEGEND_FONT = 11, 10
LETTER = 0.6
"""Width of a letter as a share of the font size, at most on average."""
TICK, GAP, HANDLE = 3.5, 7.0, 18.0
"""Lengths of a tick, from an axis to its labels, and of a line in the legend."""
BOTTOM = 172.8
ROOM = 0.05
"""Share of the data's range that stays free on each side."""
STEPS = (1, 2, 2.5, 5, 10)
MOST_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one meaning, joined or not."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    """A meaning of `palette`."""
    name: str = ""
    """In the legend; nothing for none."""
    width: float = 2.0
    """Of the line that joins them; 0 for none."""
    dashes: str = ""
    dots: Sequence[bool] | None = None
    """Which points have a dot; default: all."""
    radius: float = 3.0
    is_hollow: bool = False


@dataclass(slots=True, kw_only=True)
class Axis:
    """One side of the chart: what it spans and what is written along it."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str = ""
    is_log: bool = False
    begin: float = 0.0
    """Place of `low` in the picture."""
    end: float = 1.0

    def place(self, value: float) -> float:
        """Where in the picture a value lies."""
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)


def spanned(
    values: Sequence[float], *, is_log: bool = False, bounds: tuple[float, float] | None = None
) -> tuple[float, float]:
    """The ends of an axis that shows these values with some room."""
    if bounds is not None:
        return bounds
    ends = [math.log(v) for v in values] if is_log else list(values)
    low, high = min(ends), max(ends)
    room = ROOM * (high - low) or max(ROOM * abs(low), 1e-3)
    low, high = low - room, high + room
    return (math.exp(low), math.exp(high)) if is_log else (low, high)


def round_ticks(low: float, high: float, *, integer: bool = False) -> list[float]:
    """At most six round values between the ends."""
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [step * size for size in (power, 10 * power) for step in STEPS if step * size >= rough]
    step = next((s for s in steps if not integer or s == round(s)), 1.0)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * i, 12) for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series over two axes."""

    label: str
    """What the picture shows, for those who do not see it."""
    x: Axis
    y: Axis
    series: Sequence[Series]
    parts: list[str] = field(default_factory=list)

    def markup(self) -> str:
        """The whole picture, the axes below the data."""
        named = [s for s in self.series if s.name]
        labels = max((text_width(text) for _, text in self.y.ticks), default=0.0)
        self.x.begin = GAP + labels + (19.0 if self.y.title else 5.0)
        self.x.end = WIDTH - 5.0 - max(4.0, text_width(self.x.ticks[-1][1]) / 2 - 4.0)
        self.y.begin, self.y.end = BOTTOM, 23.0 if named else 8.0
        self.draw_axes()
        for series in self.series:
            self.draw(series)
        self.draw_legend(named)
        inside = "\n".join(self.parts)
        return (
            f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" class="chart" role="img" '
            f'aria-label="{escape(self.label)}">\n{inside}\n</svg>'
        )

    def draw_axes(self) -> None:
        """Grid, ticks, their labels, titles and the two lines."""
        left, right, bottom, top = self.x.begin, self.x.end, self.y.begin, self.y.end
        free = -math.inf
        for value, text in self.x.ticks:
            at = self.x.place(value)
            self.line(((at, bottom), (at, top)), "line", 0.6)
            self.line(((at, bottom), (at, bottom + TICK)), "muted", 0.8)
            if at - text_width(text) / 2 > free:  # else it would touch the one before
                self.text(at, bottom + 15.4, text, "middle")
                free = at + text_width(text) / 2 + 2
        for value, text in self.y.ticks:
            at = self.y.place(value)
            self.line(((left, at), (right, at)), "line", 0.6)
            self.line(((left, at), (left - TICK, at)), "muted", 0.8)
            self.text(left - GAP, at + 4.0, text, "end")
        self.line(((left, top), (left, bottom), (right, bottom)), "muted", 0.8)
        self.text((left + right) / 2, 203.2, self.x.title, "middle")
        if self.y.title:
            middle = (top + bottom) / 2
            turned = f' transform="rotate(-90 11.4 {middle:.1f})"'
            self.text(11.4, middle, self.y.title, "middle", turned)

    def draw(self, series: Series) -> None:
        """The line and the dots of a series."""
        points = [
            (self.x.place(x), self.y.place(y)) for x, y in zip(series.xs, series.ys, strict=True)
        ]
        if series.width:
            self.line(points, series.colour, series.width, series.dashes)
        dots = series.dots if series.dots is not None else [True] * len(points)
        for point, is_dotted in zip(points, dots, strict=True):
            if is_dotted:
                self.dot(point, series)

    def dot(self, point: tuple[float, float], series: Series) -> None:
        """A round mark."""
        x, y, r = *point, series.radius
        look = f'class="f-{series.colour}"'
        if series.is_hollow:
            look = f'class="s-{series.colour}" fill="none" stroke-width="{2 if r > 4 else 1}"'
        turn = f"A {r:g} {r:g} 0 1 0"
        round_path = f"M {x - r:.2f} {y:.2f} {turn} {x + r:.2f} {y:.2f} {turn} {x - r:.2f} {y:.2f}"
        self.parts.append(f'<path d="{round_path}" {look}></path>')

    def draw_legend(self, named: Sequence[Series]) -> None:
        """Names of the series above the chart, so that they never cover a point."""
        left = self.x.begin
        for series in named:
            ends = ((left + 3, 10.9), (left + 3 + HANDLE, 10.9))
            if series.width:
                self.line(ends, series.colour, series.width, series.dashes)
            if series.dots is None or any(series.dots):
                self.dot((left + 3 + HANDLE / 2, 10.9), series)
            left += 3 + HANDLE + 8
            self.text(left, 14.4, series.name, "start", size=LEGEND_FONT)
            left += text_width(series.name, LEGEND_FONT) + 9

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = ""
    ) -> None:
        """Points joined."""
        path = " L ".join(f"{x:.2f} {y:.2f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(
            f'<path d="M {path}" fill="none" stroke-width="{width:g}"{dashed} '
            f'class="s-{colour}"></path>'
        )

    def text(
        self, x: float, y: float, text: str, anchor: str, more: str = "", size: int = FONT
    ) -> None:
        """Words."""
        self.parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}"{more} font-size="{size}" text-anchor="{anchor}" '
            f'class="f-ink">{escape(text)}</text>'
        )


def text_width(text: str, size: int = FONT) -> float:
    """About how wide words are, in units of the picture."""
    return LETTER * size * len(text)
