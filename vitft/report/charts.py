"""Curves of a page: the same figures give the same bytes.

What is shown and how it is named; `vector` draws it. Names of the user's never come here; labels
and numbers are our own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitft.metrics.intervals import wilson
from vitft.report.svg import Axis, Chart, Series, round_ticks, spanned

MANY_POINTS = 25
"""From so many on a line has no dots."""
Line = tuple[str, str, Sequence[float], Sequence[float]]
"""Name, meaning of its colour, x and y."""


def curves(label: str, lines: Sequence[Line], *, x: str, y: str, shares: bool = False) -> str:
    """Lines over epochs."""
    series = [
        Series(
            name=name,
            colour=meaning,
            xs=xs,
            ys=ys,
            dashes="" if number == 0 else "10 4",
            dots=None if len(xs) < MANY_POINTS else [False] * len(xs),
        )
        for number, (name, meaning, xs, ys) in enumerate(lines)
    ]
    low, high = spanned([value for one in series for value in one.xs])
    ticks = [(value, f"{value:g}") for value in round_ticks(low, high, integer=True)]
    across = Axis(low=low, high=high, ticks=ticks, title=x)
    return drawn(label, across, series, y=y, shares=shares)


def penalties(label: str, xs: Sequence[float], ys: Sequence[float], best: float) -> str:
    """Cross-validated accuracy along the penalties that were tried; the chosen one is ringed."""
    series = [Series(name="cross-validated accuracy", colour="accent", xs=xs, ys=ys)]
    chosen = [(a, b) for a, b in zip(xs, ys, strict=True) if math.isclose(a, best)]
    if chosen:
        at, share = zip(*chosen, strict=True)
        series.append(
            Series(
                name="chosen", colour="second", xs=at, ys=share, width=0, radius=6.5, is_hollow=True
            )
        )
    ticks = [(value, f"{value:g}") for value in sorted(xs)]
    across = logarithmic(xs, ticks, "penalty on the head's weights")
    return drawn(label, across, series, y="accuracy", shares=True)


def learning(
    label: str, points: Sequence[tuple[float, float]], beyond: tuple[float, float] | None
) -> str:
    """Accuracy over training images, with one extrapolated point."""
    xs, ys = zip(*points, strict=True)
    series = [Series(name="measured", colour="accent", xs=xs, ys=ys)]
    if beyond is not None:
        series.append(
            Series(
                name="extrapolated",
                colour="second",
                xs=[xs[-1], beyond[0]],
                ys=[ys[-1], beyond[1]],
                dashes="4 4",
                dots=[False, True],
                is_hollow=True,
            )
        )
    places = [*xs, *([beyond[0]] if beyond else [])]
    ticks = [(value, f"{value:,.0f}") for value in sorted(places)]
    across = logarithmic(places, ticks, "training images")
    return drawn(label, across, series, y="accuracy", shares=True)


def reliability(label: str, bins: Sequence[Mapping[str, Any]]) -> str:
    """How often answers of a confidence are right, against the diagonal of honest ones."""
    known = [b for b in bins if b.get("images") and b.get("accuracy") is not None]
    none = [False, False]
    series = [Series(name="honest", colour="muted", xs=[0, 1], ys=[0, 1], width=1, dots=none)]
    for b in known:
        bounds = wilson(round(b["accuracy"] * b["images"]), b["images"])
        at = [b["confidence"]] * 2
        series.append(Series(colour="accent", xs=at, ys=bounds, width=1.2, dots=none))
    series.append(
        Series(
            name="measured, with 95 % interval",
            colour="accent",
            xs=[b["confidence"] for b in known],
            ys=[b["accuracy"] for b in known],
            width=0,
        )
    )
    ticks = [(value / 5, f"{20 * value} %") for value in range(6)]
    across = Axis(low=0, high=1.02, ticks=ticks, title="confidence of the answer")
    upright = Axis(low=0, high=1.02, ticks=ticks, title="share that is right")
    return Chart(label=label, x=across, y=upright, series=series).markup()


def ranges(
    label: str,
    names: Sequence[str],
    shares: Sequence[float],
    bounds: Sequence[tuple[float, float]],
) -> str:
    """A dot with its interval for each of several shares, one above the other."""
    series = []
    for row, (share, between) in enumerate(zip(shares, bounds, strict=True)):
        none = [False, False]
        series.append(Series(colour="accent", xs=between, ys=[row, row], width=1.6, dots=none))
        series.append(Series(colour="accent", xs=[share], ys=[row], width=0, radius=4))
    low, high = spanned([value for one in series for value in one.xs])
    title = "accuracy on the shared images"
    across = Axis(low=low, high=high, ticks=as_percents(round_ticks(low, high)), title=title)
    upright = Axis(low=len(names) - 0.5, high=-0.5, ticks=[*enumerate(names)])
    return Chart(label=label, x=across, y=upright, series=series).markup()


def drawn(label: str, x: Axis, series: Sequence[Series], *, y: str, shares: bool) -> str:
    """The chart of series over an axis, with an upright one that spans them."""
    low, high = spanned([value for one in series for value in one.ys])
    values = round_ticks(low, high)
    ticks = as_percents(values) if shares else [(value, f"{value:g}") for value in values]
    upright = Axis(low=low, high=high, ticks=ticks, title=y)
    return Chart(label=label, x=x, y=upright, series=series).markup()


def logarithmic(values: Sequence[float], ticks: Sequence[tuple[float, str]], title: str) -> Axis:
    """An axis on which equal ratios are equally long."""
    low, high = spanned(values, is_log=True)
    return Axis(low=low, high=high, ticks=ticks, title=title, is_log=True)


def as_percents(values: Sequence[float]) -> list[tuple[float, str]]:
    """Shares as axis labels, such as `85 %` or `85.5 %`."""
    return [(value, f"{round(100 * value, 3):g} %") for value in values]
