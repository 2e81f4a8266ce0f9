"""PNG figures drawn with matplotlib (extra `plots`), which only this module imports.

Drawing needs no display. The global state of matplotlib does not change, except that fonts that
were installed since it listed them are added to its list.
"""

import contextlib
import functools
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase
from matplotlib.font_manager import FontEntry, findSystemFonts, fontManager, get_font
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from vitft.metrics.intervals import Interval
from vitft.report.charts import Axis, Chart, Series, axis_of
from vitft.report.html import LIGHT
from vitft.system.console import visible
from vitft.system.text import count, listing, percent

log = logging.getLogger(__name__)

_DEFAULT_FONT = "DejaVu Sans"  # font that matplotlib contains
_SYMBOL_FONTS = ("Last Resort", "STIX", "cm")  # beginnings of fonts with boxes or formulas
_MAX_TITLE, _MAX_LABEL = 72, 26  # maximum number of characters; longer text is shortened
_LINE_COLOURS = ("#0b5fa5", "#c2410c", "#0f766e", "#8b3a8f", "#7a5c00", "#3f3f8f", "#a3154f")
"""Colours that colour-blind readers can tell apart; contrast on white is at least 4.5:1."""
_BASE_LINE_COLOURS = ("#4a4a4a", "#6e6e6e")
_MOST_MISSING = 10  # maximum number of characters without a font that a warning names


def filters_png(
    components: NDArray[np.float32], variance: NDArray[np.float32], title: str
) -> bytes:
    """Return a PNG of principal components (n, k, k, 3) from 0 to 1, up to seven per row.

    `variance` is the fraction of the variance that each component explains (n,).
    """
    columns = min(7, len(components))
    rows = -(-len(components) // columns)
    figure = Figure(figsize=(0.95 * columns + 0.3, 0.95 * rows + 0.9), layout="constrained")
    for number, component in enumerate(components, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.imshow(component, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="#818b98", linewidth=0.6)  # a filter may have white corners
    detail = f"first {count(len(components), 'principal component')}, "
    _add_title(figure, title, f"{detail}{percent(float(variance.sum()), 0)} of the variance")
    return _to_png(figure)


def positions_png(similarity: NDArray[np.float32], title: str) -> bytes:
    """Return a PNG of similarities (gh, gw, gh, gw): one map per patch, at the patch's position."""
    rows, columns = similarity.shape[:2]
    gap = max(1, round(max(rows, columns) / 14))
    mosaic = _tiled(similarity, gap, np.nan)
    figure = Figure(figsize=(6.4, max(2.6, 6.0 * rows / columns * 0.86)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(mosaic, cmap="viridis", vmax=1, interpolation="nearest")
    for axis, size in ((axes.yaxis, rows), (axes.xaxis, columns)):
        labelled = range(size) if size <= 8 else sorted({0, size // 2, size - 1})
        axis.set_ticks([i * (size + gap) + size / 2 for i in labelled], [str(i) for i in labelled])
    axes.set(xlabel="column of the patch", ylabel="row of the patch")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="cosine similarity", shrink=0.8)
    _add_title(figure, title, "similarity of each patch's position embedding to all others")
    return _to_png(figure)


def distance_png(distance: NDArray[np.float32], images: int, uniform: float, title: str) -> bytes:
    """Return a PNG of mean attention distances (L, H) in pixels by block, one marker per head.

    `images` is the number of images on which they were measured, and `uniform` the distance of a
    head with uniform attention, shown as a dashed line.
    """
    depth, heads = distance.shape
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    blocks = np.arange(depth)
    axes.axhline(
        uniform, color="#777777", linestyle="--", linewidth=1, label="uniform attention", zorder=0
    )
    axes.plot(
        blocks, distance.mean(axis=1), color="#333333", linewidth=1, label="mean of heads", zorder=0
    )
    colours = colormaps["viridis"](np.linspace(0, 0.95, heads))
    for head, colour in enumerate(colours):
        axes.scatter(blocks, distance[:, head], s=26, color=colour, label=f"head {head}")
    figure.legend(loc="outside right upper", ncols=-(-heads // 20), fontsize=8, frameon=False)
    top = max(axes.get_ylim()[1], 1.04 * max(uniform, float(distance.max())))
    axes.set(xlabel="block", ylabel="mean attention distance (pixels)", ylim=(0, top))
    axes.set_xticks(range(0, depth, 1 if depth <= 16 else 2))
    axes.spines[["top", "right"]].set_visible(False)
    _add_title(figure, title, f"mean over {count(images, 'image')}")
    return _to_png(figure)


def charts_png(
    charts: Sequence[Chart], size: tuple[float, float], title: str, detail: str
) -> bytes:
    """Return a PNG of charts side by side, whose colours are those of the pages in light mode.

    `size` is the width and height in inches. The last chart's named series are in a legend.
    """
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        for one in chart.series:
            dashes = [float(length) / 2 for length in one.dashes.split()]
            axes.plot(
                one.xs, one.ys, color=LIGHT.get(one.colour, one.colour), linewidth=one.width,
                linestyle=(0, dashes) if dashes else "-" if one.width else "", clip_on=False,
                marker="o" if one.circles and all(one.circles) else "", markersize=1.6 * one.radius,
                label=drawable(one.name)[0],
            )  # fmt: skip
            if one.band:
                low, high = zip(*one.band, strict=True)
                axes.fill_between(one.xs, low, high, color=one.colour, alpha=0.13, lw=0)
        axes.set(xlabel=chart.x.title, xscale="log" if chart.x.is_log else "linear")
        axes.set(ylabel=chart.y.title)
        for both, axis in ((axes.xaxis, chart.x), (axes.yaxis, chart.y)):
            places, labels = zip(*axis.ticks, strict=True)
            texts, families = drawable("\n".join(labels))
            style = {"fontfamily": families, "parse_math": False}
            both.set_minor_locator(NullLocator())
            both.set_ticks(places, texts.split("\n"), **style)
        axes.set(xlim=(chart.x.low, chart.x.high), ylim=(chart.y.low, chart.y.high))
        axes.grid(color="#d7dbe0", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if len(charts) > 1:
            axes.set_title(chart.label, fontsize=10)
    if names := "".join(one.name for one in charts[-1].series):
        legend = figure.legend(loc="outside right upper", fontsize=8, frameon=False)
        for text in legend.get_texts():
            text.set(fontfamily=drawable(names)[1], parse_math=False)
    _add_title(figure, title, detail)
    return _to_png(figure)


def accuracy_curves_png(
    shots: Sequence[int],
    curves: Sequence[tuple[str, Sequence[float], Sequence[Interval], bool]],
    *,
    majority: float,
    title: str,
    detail: str,
) -> bytes:
    """Return a PNG of accuracies by number of training images per class (`shots`).

    A curve has a name, accuracies, their intervals, drawn as a band, and whether it is a baseline.
    """
    series, colours, greys = list[Series](), cycle(_LINE_COLOURS), cycle(_BASE_LINE_COLOURS)
    for name, accuracies, intervals, is_baseline in curves:
        look = Series(
            name=last_part(visible(name)),
            colour=next(greys if is_baseline else colours),
            dashes="8 4" if is_baseline else "",
            xs=shots,
            ys=accuracies,
            band=intervals,
        )
        series.append(look)
    ends, largest = [shots[0], shots[-1]], [majority, majority]
    series.append(
        Series(name="largest class", colour="muted", dashes="2 3", xs=ends, ys=largest, markers=())
    )
    x = axis_of(shots, "training images per class (log scale)", "log")
    y = Axis(
        low=0,
        high=1,
        ticks=[(i / 5, f"{20 * i}%") for i in range(6)],
        title="accuracy on test images",
    )
    return charts_png([Chart(label=title, x=x, y=y, series=series)], (8.6, 4.6), title, detail)


def last_part(text: str) -> str:
    """Return the end of a name that is too long for a label: paths usually differ there."""
    return text if len(text) <= _MAX_LABEL else f"...{text[3 - _MAX_LABEL :]}"


def _add_title(figure: Figure, title: str, detail: str) -> None:
    """Draw a title and a line of details above a figure, without parsing markup in the text."""
    text = visible(title)
    text = text if len(text) <= _MAX_TITLE else f"{text[: _MAX_TITLE - 3]}..."
    text, families = drawable(f"{text}\n{detail}")
    figure.suptitle(text, fontsize=10, fontfamily=families, parse_math=False)


def drawable(text: str) -> tuple[str, list[str]]:
    r"""Return text that can be drawn, and the font families that have its characters.

    Characters that matplotlib's own font lacks are taken from fonts of the system. Characters that
    no font has are escaped (\u8486) instead of being drawn as boxes, and a warning names them.
    """
    families, parts, missing = [_DEFAULT_FONT], [], dict[str, None]()
    for character in text:
        family = _DEFAULT_FONT if character == "\n" else _family_with(character)
        if family and family not in families:
            families.append(family)
        if not family:
            missing[character] = None
        parts.append(character if family else character.encode("unicode_escape").decode())
    if missing:
        _warn_of_missing_font(visible("".join([*missing][:_MOST_MISSING])))
    return "".join(parts), families


@functools.cache
def _warn_of_missing_font(characters: str) -> None:
    log.warning(
        f"figures show codes, because no font on this machine has {characters}: install one, e.g. "
        "Noto Sans CJK for Chinese, Japanese and Korean"
    )


@functools.cache
def _family_with(character: str) -> str:
    """Return a font family that has a character, or "" if no font has it."""
    if get_font(fontManager.findfont(_DEFAULT_FONT)).get_char_index(ord(character)):
        return _DEFAULT_FONT
    found = (f.name for f in _fonts() if get_font(f.fname).get_char_index(ord(character)))
    return next(found, "")


@functools.cache
def _fonts() -> list[FontEntry]:
    """Return the fonts by name, with those installed since matplotlib cached its list."""
    known = {font.fname for font in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in known:
            with contextlib.suppress(RuntimeError, OSError):  # matplotlib cannot read every font
                fontManager.addfont(path)
    fonts = sorted(fontManager.ttflist, key=lambda font: font.name)
    return [f for f in fonts if f.style == "normal" and not f.name.startswith(_SYMBOL_FONTS)]


def _to_png(figure: Figure) -> bytes:
    """Return the figure as a PNG file without metadata."""
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()


# PNG of an image, its patches and the tokens that a Vision Transformer makes of them --------------

_MARK = "#e8590c"  # colour of the patch that the figure follows
_MIN_CELL_PT = 11.0  # side of a patch in points from which its number fits into it
_PANEL_PT = 230.0  # length of the longer side of the image in the figure, in points
_CLIPPED = 99.5  # percentile of the absolute values at which the colours of the matrices end


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTokens:
    """The tokens of one image, and the parts of which they are the sum."""

    grid: tuple[int, int]  # numbers of rows and columns of patches
    projections: NDArray[np.float32]  # output of the patch embedding for each patch (P, D)
    positions: NDArray[np.float32] | None  # position embeddings (P, D); None if not learned
    tokens: NDArray[np.float32]  # input of the first block at each patch (P, D)
    prefix: tuple[str, ...]  # tokens that precede those of the patches, such as `class token`
    is_linear: bool  # whether each patch is multiplied with one matrix, without convolutions
    has_bias: bool
    is_sum: bool  # whether projections and positions add up to the tokens, not normalised
    channels: int  # number of input channels of the model


def patches_png(view: NDArray[np.uint8], parts: PatchTokens, title: str) -> bytes:
    """Return a PNG of an image (h, w, 3), its numbered patches, one of them, and the tokens."""
    patches = cut_patches(view, parts.grid)
    contrasts = patches.std(axis=(1, 2)).mean(axis=1)  # (P,)
    shown = int(contrasts.argmax())
    figure = Figure(figsize=(11.5, 7.4), layout="constrained", facecolor="white")
    places = figure.add_gridspec(2, 1, height_ratios=(1.05, 1))
    above, below = (figure.add_subfigure(places[row]) for row in (0, 1))
    grid, apart, one = above.subplots(1, 3)
    _draw_grid(grid, view, parts.grid, shown)
    _draw_apart(apart, patches, parts.grid, shown)
    # The patch is enlarged so that its pixels can be counted.
    height, width = patches.shape[1:3]
    colours = f" x {parts.channels} colours" if parts.channels > 1 else ""
    numbers = f" = {height * width * parts.channels} numbers" if parts.is_linear else ""
    title_of_patch = f"3. Patch {shown + 1}: {width} x {height} pixels{colours}{numbers}"
    _show(one, patches[shown], title_of_patch)
    one.set_xticks(np.arange(0.5, width - 1), minor=True)
    one.set_yticks(np.arange(0.5, height - 1), minor=True)
    one.tick_params(which="minor", length=0)
    if max(height, width) <= 32:
        one.grid(which="minor", color="white", linewidth=0.5)
    one.spines[:].set(edgecolor=_MARK, linewidth=2.2)
    _draw_matrices(below, parts, patches[0, ..., 0].size * parts.channels, shown)
    also = f", preceded by the {listing(parts.prefix)}" if parts.prefix else ""
    detail = f"{len(patches)} tokens of {parts.tokens.shape[1]} numbers{also}"
    _add_title(figure, title, f"{view.shape[1]} x {view.shape[0]} pixels become {detail}")
    return _to_png(figure)


def cut_patches(view: NDArray[np.uint8], grid: tuple[int, int]) -> NDArray[np.uint8]:
    """Cut an image (h, w, 3) into patches (P, h / gh, w / gw, 3) in reading order."""
    rows, columns = grid
    height, width = view.shape[0] // rows, view.shape[1] // columns
    tiles = view.reshape(rows, height, columns, width, -1).swapaxes(1, 2)
    return tiles.reshape(rows * columns, height, width, -1)


def _tiled(tiles: NDArray[Any], gap: int, empty: float) -> NDArray[Any]:
    """Put tiles (rows, columns, h, w, ...) side by side, with gaps between them."""
    wide = [(0, 0), (0, 0), (0, gap), (0, gap), *[(0, 0)] * (tiles.ndim - 4)]
    apart = np.pad(tiles, wide, constant_values=empty).swapaxes(1, 2)
    rows, height, columns, width = apart.shape[:4]
    return apart.reshape(rows * height, columns * width, *tiles.shape[4:])[:-gap, :-gap]


def _draw_grid(axes: Axes, view: NDArray[np.uint8], grid: tuple[int, int], shown: int) -> None:
    """Draw an image under its grid, with the number of each patch if there is space for it."""
    rows, columns = grid
    height, width = view.shape[0] / rows, view.shape[1] / columns
    _show(
        axes, view, f"1. Image as the model receives it: {view.shape[1]} x {view.shape[0]} pixels"
    )
    for row in range(1, rows):
        axes.axhline(row * height - 0.5, color="white", linewidth=0.8)
    for column in range(1, columns):
        axes.axvline(column * width - 0.5, color="white", linewidth=0.8)
    cell = _PANEL_PT * min(height, width) / max(view.shape[:2])
    size = min(11.0, cell * (0.5 if rows * columns < 100 else 0.34))
    outline = [withStroke(linewidth=1.5, foreground="black")]
    for index in range(rows * columns):
        if cell >= _MIN_CELL_PT or index == shown:
            middle = (index % columns + 0.5) * width - 0.5, (index // columns + 0.5) * height - 0.5
            axes.text(
                *middle, str(index + 1), color="white", fontsize=max(size, 5), ha="center",
                va="center", path_effects=outline,
            )  # fmt: skip
    corner = shown % columns * width - 0.5, shown // columns * height - 0.5
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=_MARK, linewidth=2.2))


def _draw_apart(axes: Axes, patches: NDArray[np.uint8], grid: tuple[int, int], shown: int) -> None:
    """Draw the patches (P, h, w, 3) at their places, with gaps between them."""
    rows, columns = grid
    height, width = patches.shape[1:3]
    scale = -(-8 // min(height, width))  # so that a gap is narrower than a pixel of a small image
    big = patches.repeat(scale, axis=1).repeat(scale, axis=2)
    down, right = height * scale, width * scale
    gap = max(1, round(0.15 * min(down, right)))
    mosaic = _tiled(big.reshape(rows, columns, down, right, -1), gap, 255)
    _show(
        axes, mosaic, f"2. {rows} x {columns} = {len(patches)} patches of {width} x {height} pixels"
    )
    corner = shown % columns * (right + gap) - 0.5, shown // columns * (down + gap) - 0.5
    axes.add_patch(Rectangle(corner, right, down, fill=False, edgecolor=_MARK, linewidth=2.2))


def _draw_matrices(figure: FigureBase, parts: PatchTokens, num_inputs: int, shown: int) -> None:
    count, width = parts.tokens.shape
    how = f"Each patch times a {num_inputs} x {width} matrix{', plus a bias' * parts.has_bias}"
    if not parts.is_linear:
        how = f"Convolutions: {width} numbers at each patch"
    matrices = {f"4. {how}": parts.projections}
    if parts.positions is None:
        result = "Tokens: positions follow in each block"
    else:
        matrices["5. Position embedding of each patch"] = parts.positions
        result = "Tokens: the sum of both"
    result = f"{len(matrices) + 4}. {result}{'' if parts.is_sum else ', normalised'}"
    matrices[result] = parts.tokens
    every = np.concatenate([matrix.ravel() for matrix in matrices.values()])
    limit = max(float(np.percentile(np.abs(every), _CLIPPED)), 1e-12)
    plots = np.atleast_1d(figure.subplots(1, len(matrices), sharey=True))
    for axes, (title, matrix) in zip(plots, matrices.items(), strict=True):
        axes.imshow(
            matrix.T, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit,
            extent=(0.5, count + 0.5, width + 0.5, 0.5),
        )  # fmt: skip
        axes.set_title(title, fontsize=9.5, pad=9)
        axes.set_xlabel("patch", fontsize=9)
        axes.tick_params(labelsize=8)
        # A triangle above the column of the patch, which may be too narrow for a frame.
        middle, edge = shown + 1, axes.get_xaxis_transform()
        axes.plot(middle, 1.015, "v", transform=edge, color=_MARK, markersize=6, clip_on=False)
    plots[0].set_ylabel("number of the value", fontsize=9)
    bar = figure.colorbar(plots[0].images[0], ax=[*plots], extend="both", shrink=0.9)
    bar.set_label("value", fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _show(axes: Axes, pixels: NDArray[np.uint8], title: str) -> None:
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=9.5)
