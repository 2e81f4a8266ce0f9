"""Draw docs/pareto.svg: accuracy against processor seconds, vitft beside other tools.

    python -m docs.pareto

The runs are those of benchmarks/accuracy/pareto.csv, measured by
`python -m benchmarks.accuracy.pareto`. Nothing is measured here. One panel per set; means over the
splits with their standard error; the points of one tool are joined.
"""

import math
from html import escape
from itertools import pairwise
from pathlib import Path

from benchmarks.accuracy.frontier import CSV, LINE, Point, is_ours, points, read_runs
from benchmarks.accuracy.peers import tool
from docs.chart import STYLE, text

TITLES = {
    "flower_photos": "1,200 photos of flowers, 5 classes",
    "clothing_small": "400 photos of clothing, 10 classes",
    "sign_language_digits": "400 hand signs, 10 classes",
}
WIDTH, PANEL, TOP = 560, 228, 36
LEFT, RIGHT, HIGH, LOW = 52, 540, 50, 186
"""Edges of a panel's axes, in pixels."""
MORE_STYLE = (
    ".line{fill:none;stroke-width:2}.line.ours{stroke:#0969da}.line.other{stroke:#afb8c1;"
    "stroke-width:1}.name{font-size:12px}.name.strong{font-weight:600}"
    "@media (prefers-color-scheme:dark){.line.ours{stroke:#58a6ff}.line.other{stroke:#656c76}}"
)
Place = tuple[float, float]
Box = tuple[float, float, float, float]


class Axes:
    """Places of seconds (logarithmic) and percent in a panel whose upper edge is at `top`."""

    def __init__(self, shown: list[Point], seconds: tuple[float, float], top: float) -> None:
        spread = [p.error if p.error == p.error else 0 for p in shown]
        low = min(p.top1 - e for p, e in zip(shown, spread, strict=True))
        high = max(p.top1 + e for p, e in zip(shown, spread, strict=True))
        self.step = next(s for s in (1, 2, 5, 10, 20, 50) if (high - low) / s <= 4.5)
        self.low = self.step * math.floor(low / self.step)
        self.high = self.step * math.ceil(high / self.step)
        self.seconds, self.top = seconds, top

    def x(self, seconds: float) -> float:
        first, last = map(math.log, self.seconds)
        return LEFT + (RIGHT - LEFT) * (math.log(seconds) - first) / (last - first)

    def y(self, percent: float) -> float:
        return self.top + LOW - (LOW - HIGH) * (percent - self.low) / (self.high - self.low)

    def place(self, point: Point) -> Place:
        return self.x(point.cpu), self.y(point.top1)


def grid(axes: Axes) -> list[str]:
    """Draw lines of accuracy and marks of time."""
    parts = []
    for percent in range(axes.low, axes.high + 1, axes.step):
        y = axes.y(percent)
        parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="axis"/>')
        parts.append(text(LEFT - 6, y + 4, f"{percent}%", "small end"))
    first, last = axes.seconds
    for seconds in (10, 20, 50, 100, 200, 500, 1000, 2000):
        if first <= seconds <= last:
            parts.append(text(axes.x(seconds), axes.top + LOW + 16, f"{seconds} s", "small middle"))
    return parts


def drawn(ways: list[Point], axes: Axes, kind: str) -> list[str]:
    """Draw the points of one tool with their standard errors, joined in the order of time."""
    parts = []
    if len(ways) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(axes.place, ways))
        parts.append(f'<polyline points="{path}" class="line {kind}"/>')
    for point in ways:
        x, y = axes.place(point)
        if point.error == point.error:
            ends = axes.y(point.top1 - point.error), axes.y(point.top1 + point.error)
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" '
                f'class="{kind} bar"/>'
            )
        radius = 5 if kind == "ours" else 4
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{kind}"/>')
    return parts


def overlap(one: Box, other: Box) -> float:
    """Return the area that two boxes (left, top, right, bottom) share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)


def dots(ways: list[Point], axes: Axes) -> list[Box]:
    """Return what points and the lines between them cover, as small boxes."""
    places = [axes.place(p) for p in ways]
    for (x1, y1), (x2, y2) in pairwise(list(places)):
        steps = max(2, round(math.hypot(x2 - x1, y2 - y1) / 6))
        places += [
            (x1 + (x2 - x1) * k / steps, y1 + (y2 - y1) * k / steps) for k in range(1, steps)
        ]
    return [(x - 6, y - 6, x + 6, y + 6) for x, y in places]


def label(name: str, ways: list[Point], axes: Axes, taken: list[Box]) -> str:
    """Write a tool's name where it covers the least beside its points; add its box to `taken`."""
    width, best = 6.4 * len(name), None
    for index, (x, y) in enumerate(map(axes.place, ways)):
        for side, (dx, dy, anchor) in enumerate((
            (9, 4, ""), (-9, 4, "end"), (0, -10, "middle"), (0, 18, "middle"),
            (8, -8, ""), (8, 16, ""), (-8, -8, "end"), (-8, 16, "end"),
        )):  # fmt: skip
            left = x + dx - {"": 0, "end": width, "middle": width / 2}[anchor]
            box = (left, y + dy - 10, left + width, y + dy + 3)
            cost = sum(overlap(box, other) for other in taken) + 0.1 * side + 0.05 * index
            cost += 1000 * (left < LEFT or left + width > RIGHT)
            cost += 1000 * (box[1] < axes.top + HIGH - 26 or box[3] > axes.top + LOW)
            if best is None or cost < best[0]:
                best = cost, box, text(x + dx, y + dy, name, f"name {anchor}")
    assert best is not None
    taken.append(best[1])
    return best[2]


def panel(data: str, shown: list[Point], seconds: tuple[float, float], top: float) -> list[str]:
    """Draw one set."""
    axes = Axes(shown, seconds, top)
    tools: dict[str, list[Point]] = {}
    for point in sorted(shown, key=lambda p: p.cpu):
        tools.setdefault("vitft" if is_ours(point.way) else tool(point.way), []).append(point)
    parts = [text(LEFT, top + 18, TITLES.get(data, data), "title"), *grid(axes)]
    for name, ways in sorted(tools.items(), key=lambda item: item[0] == "vitft"):
        parts += drawn(ways, axes, "ours" if name == "vitft" else "other")
    taken = [box for ways in tools.values() for box in dots(ways, axes)]
    for name, ways in sorted(tools.items(), key=lambda item: item[0] != "vitft"):
        words = "vitft: head, then --budget" if name == "vitft" else name
        parts.append(label(words, ways, axes, taken))
    return parts


def chart() -> str:
    """Return the whole picture."""
    runs = read_runs(CSV)
    sets = [data for data in TITLES if any(run.data == data for run in runs)]
    shown = {
        data: [p for p in points(runs, data) if p.way in LINE or not is_ours(p.way)]
        for data in sets
    }
    every = [p.cpu for some in shown.values() for p in some]
    seconds = 0.8 * min(every), 1.25 * max(every)
    parts = [text(16, 24, "Accuracy against processor seconds of the whole process", "title")]
    for index, data in enumerate(sets):
        parts += panel(data, shown[data], seconds, TOP + PANEL * index)
    height = TOP + PANEL * len(sets) + 40
    splits = max(p.splits for some in shown.values() for p in some)
    means = f"up to {splits} splits, with standard errors" if splits > 1 else "one split"
    notes = (
        f"ViT-Tiny/16, the same weights and images, one core; {means};",
        "after the last epoch, nothing chosen on the validation images",
    )
    for up, words in zip((28, 12), notes, strict=True):
        parts.append(text(16, height - up, words, "small"))
    words = "Accuracy and processor seconds of vitft and other tools: " + "; ".join(
        f"{data}: " + ", ".join(f"{p.way} {p.top1:.1f}% {p.cpu:.0f} s" for p in shown[data])
        for data in sets
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(words)}"><style>{STYLE}{MORE_STYLE}'
        f'</style><rect width="100%" height="100%" rx="8" class="page"/>{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    Path(__file__).with_name("pareto.svg").write_text(chart())
