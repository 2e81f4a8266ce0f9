"""PNG of an image, its patches and the tokens that a Vision Transformer makes of them.

Shapes: image sides in pixels (h, w); gh and gw rows and columns of the patch grid; P patches, in
reading order; D width of a token. Patches are numbered from 1.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from vitft.report.plots import add_title, to_png
from vitft.system.text import listing

_MARK = "#e8590c"
"""Colour of the patch that the figure follows."""
_MIN_CELL_PT = 11.0
"""Side of a patch in points from which its number fits into it."""
_PANEL_PT = 230.0
"""Length of the longer side of the image in the figure, in points."""
_CLIPPED = 99.5
"""Percentile of the absolute values at which the colours of the matrices end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTokens:
    """The tokens of one image, and the parts of which they are the sum."""

    grid: tuple[int, int]
    """Numbers of rows and columns of patches."""
    projections: NDArray[np.float32]
    """Output of the patch embedding for each patch (P, D)."""
    positions: NDArray[np.float32] | None
    """Position embedding of each patch (P, D); None for a model without learned ones."""
    tokens: NDArray[np.float32]
    """Input of the first block at each patch (P, D)."""
    prefix: tuple[str, ...]
    """Tokens that precede those of the patches, such as `class token`."""
    is_linear: bool
    """Whether each patch is multiplied with one matrix; convolutions may precede it otherwise."""
    has_bias: bool
    """Whether a bias is added to the product of patch and matrix."""
    is_sum: bool
    """Whether the tokens equal the sum of projections and positions, without a normalisation."""
    channels: int
    """Number of input channels of the model."""


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
    _draw_patch(one, patches[shown], shown, parts)
    _draw_matrices(below, parts, patches[0, ..., 0].size * parts.channels, shown)
    add_title(figure, title, summary(view, parts))
    return to_png(figure)


def cut_patches(view: NDArray[np.uint8], grid: tuple[int, int]) -> NDArray[np.uint8]:
    """Cut an image (h, w, 3) into patches (P, h / gh, w / gw, 3) in reading order."""
    rows, columns = grid
    height, width = view.shape[0] // rows, view.shape[1] // columns
    tiles = view.reshape(rows, height, columns, width, -1).swapaxes(1, 2)
    return tiles.reshape(rows * columns, height, width, -1)


def summary(view: NDArray[np.uint8], parts: PatchTokens) -> str:
    """Return the line below the title: what the model reads and what it makes of it."""
    count, width = parts.tokens.shape
    also = f", preceded by the {listing(parts.prefix)}" if parts.prefix else ""
    pixels = f"{view.shape[1]} x {view.shape[0]} pixels"
    return f"{pixels} become {count} tokens of {width} numbers{also}"


def _draw_grid(axes: Axes, view: NDArray[np.uint8], grid: tuple[int, int], shown: int) -> None:
    """Draw an image under its grid, with the number of each patch if there is space for it."""
    rows, columns = grid
    height, width = view.shape[0] / rows, view.shape[1] / columns
    show(axes, view, f"1. Image as the model receives it: {view.shape[1]} x {view.shape[0]} pixels")
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
    mosaic = np.full(
        (rows * (down + gap) - gap, columns * (right + gap) - gap, patches.shape[3]), 255, np.uint8
    )
    for index, patch in enumerate(big):
        top, left = index // columns * (down + gap), index % columns * (right + gap)
        mosaic[top : top + down, left : left + right] = patch
    show(
        axes, mosaic, f"2. {rows} x {columns} = {len(patches)} patches of {width} x {height} pixels"
    )
    corner = shown % columns * (right + gap) - 0.5, shown // columns * (down + gap) - 0.5
    axes.add_patch(Rectangle(corner, right, down, fill=False, edgecolor=_MARK, linewidth=2.2))


def _draw_patch(axes: Axes, patch: NDArray[np.uint8], shown: int, parts: PatchTokens) -> None:
    """Draw one patch (h, w, 3), enlarged so that its pixels can be counted."""
    height, width = patch.shape[:2]
    colours = f" x {parts.channels} colours" if parts.channels > 1 else ""
    numbers = f" = {height * width * parts.channels} numbers" if parts.is_linear else ""
    show(axes, patch, f"3. Patch {shown + 1}: {width} x {height} pixels{colours}{numbers}")
    axes.set_xticks(np.arange(0.5, width - 1), minor=True)
    axes.set_yticks(np.arange(0.5, height - 1), minor=True)
    axes.tick_params(which="minor", length=0)
    if max(height, width) <= 32:
        axes.grid(which="minor", color="white", linewidth=0.5)
    axes.spines[:].set(edgecolor=_MARK, linewidth=2.2)


def _draw_matrices(figure: FigureBase, parts: PatchTokens, num_inputs: int, shown: int) -> None:
    """Draw projections, positions and tokens as matrices with one column per patch."""
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
    matrices[f"{len(matrices) + 4}. {result}{'' if parts.is_sum else ', normalised'}"] = (
        parts.tokens
    )
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


def show(axes: Axes, pixels: NDArray[np.uint8], title: str) -> None:
    """Show pixels without ticks."""
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=9.5)
