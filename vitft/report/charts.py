"""Curves of a page, drawn by matplotlib: the same figures give the same bytes.

Names of the user's never come here; labels and numbers are our own.
"""

import io
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitft.intervals import wilson
from vitft.report.vector import ink, themed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

SIZE = (4.5, 2.9)
"""Inches at 72 points: as wide as a phone shows without shrinking the words much."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "vitft",
    "font.size": 11,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#020202",
    "axes.labelcolor": "#010101",
    "axes.linewidth": 0.8,
    "text.color": "#010101",
    "xtick.color": "#020202",
    "ytick.color": "#020202",
    "xtick.labelcolor": "#010101",
    "ytick.labelcolor": "#010101",
    "lines.linewidth": 2.0,
    "lines.markersize": 5,
    "axes.grid": True,
    "grid.color": "#030303",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
}
Line = tuple[str, str, Sequence[float], Sequence[float]]
"""Name, meaning of its colour, x and y."""


def drawn(key: str, label: str, draw: "Callable[[Axes], None]") -> str:
    """Markup of a chart: `draw` receives the axes."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its font cache
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return themed(buffer.getvalue(), key=key, label=label)


def curves(
    key: str, label: str, lines: Sequence[Line], *, x: str, y: str, shares: bool = False
) -> str:
    """Lines over epochs, each named at its end instead of in a legend."""

    def draw(axes: "Axes") -> None:
        for number, (name, meaning, xs, ys) in enumerate(lines):
            dashes = "-" if number == 0 else (0, (5, 2))
            marker = "o" if len(xs) < 25 else None
            axes.plot(xs, ys, color=ink(meaning), linestyle=dashes, marker=marker, label=name)
        described(axes, x, y, shares=shares)
        axes.xaxis.set_major_locator(few_ticks(integer=True))
        legend(axes)

    return drawn(key, label, draw)


def penalties(key: str, label: str, xs: Sequence[float], ys: Sequence[float], best: float) -> str:
    """Cross-validated accuracy along the penalties that were tried; the chosen one is ringed."""

    def draw(axes: "Axes") -> None:
        axes.plot(xs, ys, color=ink("accent"), marker="o", label="cross-validated accuracy")
        chosen = [(a, b) for a, b in zip(xs, ys, strict=True) if math.isclose(a, best)]
        if chosen:
            axes.plot(
                *zip(*chosen, strict=True),
                marker="o",
                markersize=13,
                markerfacecolor="none",
                markeredgewidth=2,
                linestyle="none",
                clip_on=False,
                color=ink("second"),
                label="chosen",
            )
        axes.set_xscale("log")
        axes.set_xticks(list(xs), [f"{value:g}" for value in xs])
        axes.minorticks_off()
        described(axes, "penalty on the head's weights", "accuracy", shares=True)
        legend(axes)

    return drawn(key, label, draw)


def learning(
    key: str, label: str, points: Sequence[tuple[float, float]], beyond: tuple[float, float] | None
) -> str:
    """Accuracy over training images, with one extrapolated point."""

    def draw(axes: "Axes") -> None:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=ink("accent"), marker="o", label="measured")
        if beyond is not None:
            axes.plot(
                [xs[-1], beyond[0]],
                [ys[-1], beyond[1]],
                color=ink("second"),
                linestyle=(0, (2, 2)),
                marker="o",
                markerfacecolor="none",
                markevery=[1],
                label="extrapolated",
            )
        ticks = [*xs, *([beyond[0]] if beyond else [])]
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{value:,.0f}" for value in ticks])
        axes.minorticks_off()
        described(axes, "training images", "accuracy", shares=True)
        legend(axes)

    return drawn(key, label, draw)


def reliability(key: str, label: str, bins: Sequence[Mapping[str, Any]]) -> str:
    """How often answers of a confidence are right, against the diagonal of honest ones."""
    known = [b for b in bins if b.get("images") and b.get("accuracy") is not None]

    def draw(axes: "Axes") -> None:
        axes.plot([0, 1], [0, 1], color=ink("muted"), linewidth=1, label="honest")
        for b in known:
            low, high = wilson(round(b["accuracy"] * b["images"]), b["images"])
            axes.plot([b["confidence"]] * 2, [low, high], color=ink("accent"), linewidth=1.2)
        axes.plot(
            [b["confidence"] for b in known],
            [b["accuracy"] for b in known],
            color=ink("accent"),
            marker="o",
            linestyle="none",
            clip_on=False,
            label="measured, with 95 % interval",
        )
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_formatter(as_percent)
        described(axes, "confidence of the answer", "share that is right", shares=True)
        legend(axes)

    return drawn(key, label, draw)


def described(axes: "Axes", x: str, y: str, *, shares: bool) -> None:
    """Names of the axes; shares as percent."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if shares:
        axes.yaxis.set_major_formatter(as_percent)


def few_ticks(*, integer: bool = False) -> "MaxNLocator":
    """Round places for at most six labels."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5, integer=integer)


def as_percent(value: float, _: object = None) -> str:
    """An axis label, such as `85 %` or `85.5 %`."""
    return f"{round(100 * value, 1):g} %"


def legend(axes: "Axes") -> None:
    """Names of the lines above the chart, so that they never cover a point."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
        frameon=False,
        borderaxespad=0.2,
        handlelength=1.8,
        columnspacing=1.2,
        fontsize=10,
    )


def ranges(
    key: str,
    label: str,
    names: Sequence[str],
    shares: Sequence[float],
    bounds: Sequence[tuple[float, float]],
) -> str:
    """A dot with its interval for each of several shares, one above the other."""

    def draw(axes: "Axes") -> None:
        for row, (share, (low, high)) in enumerate(zip(shares, bounds, strict=True)):
            axes.plot([low, high], [row, row], color=ink("accent"), linewidth=1.6)
            axes.plot([share], [row], color=ink("accent"), marker="o", markersize=7)
        axes.set_yticks(range(len(names)), list(names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.xaxis.set_major_formatter(as_percent)
        axes.xaxis.set_major_locator(few_ticks())
        axes.set_xlabel("accuracy on the shared images")

    return drawn(key, label, draw)
