"""The curves of a study as a PNG: accuracy over the images of each class, one line per contestant.

Lines carry their names at their ends, so no legend has to be matched by colour; markers differ
too. Weights have colours that differ for every kind of colour vision, baselines are grey dashes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from vitft.report.plots import head, png
from vitft.study.plan import BASELINES
from vitft.system.console import visible

if TYPE_CHECKING:
    from vitft.study.run import Curve, Study

COLOURS = ("#0b5fa5", "#c2410c", "#0f766e", "#8b3a8f", "#7a5c00", "#3f3f8f", "#a3154f")
"""Of weights, in the order in which they were named; every one 4.5:1 on white."""
GREYS = ("#4a4a4a", "#6e6e6e")
MARKERS = "os^Dv<>"
INK, LINE = "#30353a", "#d7dbe0"
LABEL_PT = 8.5
"""Type size of the names; two of them need 1.25 times as much between them."""
LONGEST = 26


def study_png(study: "Study") -> bytes:
    """The bytes of a PNG file."""
    figure = Figure(figsize=(7.2, 4.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    shots = study.plan.shots
    left, right = shots[0] / 1.12, shots[-1] * 1.12
    axes.set_xscale("log")
    axes.set(xlim=(left, right), ylim=(0, 100))
    axes.set_xlabel("training images per class (log scale)")
    axes.set_ylabel("accuracy on test images (%)")
    axes.set_xticks(shots, [str(s) for s in shots])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.axhline(100 * study.chance, color=GREYS[1], linewidth=1, linestyle=":")
    styles = [style_of(curve, i, study.curves) for i, curve in enumerate(study.curves)]
    for curve, (colour, marker, dashes) in zip(study.curves, styles, strict=True):
        low, high = zip(*(point.interval for point in curve.points), strict=True)
        axes.fill_between(
            shots, [100 * v for v in low], [100 * v for v in high], color=colour, alpha=0.13, lw=0
        )
        means = [100 * point.top1 for point in curve.points]
        axes.plot(
            shots, means, color=colour, marker=marker, markersize=5, linewidth=1.8, linestyle=dashes
        )
    write_names(axes, figure, study, [style[0] for style in styles])
    plan = study.plan
    draws = "1 draw" if plan.seeds == 1 else f"mean of {plan.seeds} draws"
    head(
        figure,
        f"{plan.folder.root.resolve().name}: linear heads on frozen features",
        f"{draws}, bands are 95 % intervals; {study.tests:,} test images",
    )
    return png(figure)


def style_of(curve: "Curve", place: int, curves: Sequence["Curve"]) -> tuple[str, str, str]:
    """Colour, marker and dashes of a line."""
    plain = [c.name for c in curves if c.name in BASELINES]
    if curve.name in plain:
        return GREYS[plain.index(curve.name) % 2], "xP"[plain.index(curve.name) % 2], "--"
    number = sum(c.name not in BASELINES for c in curves[:place])
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], "-"


def write_names(axes: Axes, figure: Figure, study: "Study", colours: Sequence[str]) -> None:
    """Names beside the ends of the lines, moved apart where they would cover each other."""
    ends = [100 * curve.points[-1].top1 for curve in study.curves]
    texts = [shortened(curve.name) for curve in study.curves]
    inks = list(colours)
    ends.append(100 * study.chance)
    texts.append("largest class")
    inks.append(GREYS[1])
    # About four fifths of the figure's height are the axes'.
    step = 100 * 1.25 * LABEL_PT / (0.78 * figure.get_figheight() * 72)
    for text, place, ink in zip(texts, apart(ends, step), inks, strict=True):
        axes.annotate(
            text,
            (1.0, place),
            (4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            color=ink,
            fontsize=LABEL_PT,
            annotation_clip=False,
            parse_math=False,
        )


def apart(places: Sequence[float], step: float) -> list[float]:
    """The places, in their order of height, moved as little as need be to stand `step` apart.

    Names that would touch form a block around the mean of their own places; within 0 and 100
    where they all fit.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    blocks: list[list[int]] = []
    for i in order:
        blocks.append([i])
        while len(blocks) > 1 and first(blocks[-1], places, step) < (
            first(blocks[-2], places, step) + step * len(blocks[-2])
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    moved = [0.0] * len(places)
    for block in blocks:
        for place, i in enumerate(block):
            moved[i] = first(block, places, step) + step * place
    return moved


def first(block: Sequence[int], places: Sequence[float], step: float) -> float:
    """Where the lowest name of a block stands."""
    middle = sum(places[i] for i in block) / len(block)
    low = middle - step * (len(block) - 1) / 2
    return max(0.0, min(low, 100.0 - step * (len(block) - 1)))


def shortened(name: str) -> str:
    """A name that leaves room for the lines; of a path the end is what tells."""
    text = visible(name)
    return text if len(text) <= LONGEST else f"...{text[3 - LONGEST :]}"
