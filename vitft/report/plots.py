"""The figures of `figures` as PNG files, by matplotlib, without its global state or a display."""

import io
import warnings
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vitft.system.console import visible

Array = np.ndarray[Any, np.dtype[np.float32]]
DPI = 120


def filters_png(pictures: Array, shares: Array, title: str) -> bytes:
    """Principal components (n, k, k, 3) in rows of seven, first ones first."""
    columns = min(7, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(0.95 * columns + 0.3, 0.95 * rows + 0.9), layout="constrained")
    for i, axes in enumerate(np.atleast_1d(figure.subplots(rows, columns)).flat):
        axes.set_axis_off()
        if i < len(pictures):
            axes.imshow(pictures[i], interpolation="nearest")
    head(figure, title, f"first {len(pictures)} principal components, {shares.sum():.0%} of all")
    return png(figure)


def positions_png(similarity: Array, title: str) -> bytes:
    """One small map per patch (gh, gw, gh, gw), where the patch stands in the image."""
    rows, columns = similarity.shape[:2]
    gap = max(1, round(max(rows, columns) / 14))
    mosaic = np.full((rows * (rows + gap) - gap, columns * (columns + gap) - gap), np.nan)
    for i in range(rows):
        for j in range(columns):
            top, left = i * (rows + gap), j * (columns + gap)
            mosaic[top : top + rows, left : left + columns] = similarity[i, j]
    figure = Figure(figsize=(6.4, max(2.6, 6.0 * rows / columns * 0.86)), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(mosaic, cmap="viridis", vmax=1, interpolation="nearest")
    labelled = sorted({0, rows // 2, rows - 1}), sorted({0, columns // 2, columns - 1})
    axes.set_yticks(
        [i * (rows + gap) + rows / 2 for i in labelled[0]], [str(i) for i in labelled[0]]
    )
    axes.set_xticks(
        [j * (columns + gap) + columns / 2 for j in labelled[1]], [str(j) for j in labelled[1]]
    )
    axes.set(xlabel="column of the patch", ylabel="row of the patch")
    axes.spines[:].set_visible(False)
    figure.colorbar(shown, ax=axes, label="cosine similarity", shrink=0.8)
    head(figure, title, "each patch's position against all others'")
    return png(figure)


def distance_png(distance: Array, images: int, uniform: float, title: str) -> bytes:
    """Mean attention distance (L, H), one dot per head over its block."""
    depth, heads = distance.shape
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    blocks = np.repeat(np.arange(depth), heads)
    axes.axhline(uniform, color="#777777", linestyle="--", linewidth=1)
    axes.annotate(
        "looks everywhere alike", (depth - 0.6, uniform), (0, 3), textcoords="offset points",
        ha="right", va="bottom", color="#555555", fontsize=8,
    )  # fmt: skip
    axes.scatter(blocks, distance.ravel(), s=26, c=np.tile(np.arange(heads), depth), cmap="viridis")
    axes.plot(np.arange(depth), distance.mean(axis=1), color="#333333", linewidth=1, zorder=0)
    axes.set(xlabel="block", ylabel="mean attention distance (pixels)", ylim=(0, None))
    axes.set_xticks(range(0, depth, 1 if depth <= 16 else 2))
    axes.spines[["top", "right"]].set_visible(False)
    counted = "1 image" if images == 1 else f"{images} images"
    head(figure, title, f"one dot per head, the line is their mean; {counted}")
    return png(figure)


def head(figure: Figure, title: str, detail: str) -> None:
    """Two lines above a figure. The title may be a user's folder name: no markup is read in it."""
    text = visible(title)
    text = text if len(text) <= 48 else f"{text[:45]}..."
    figure.suptitle(f"{text}\n{detail}", fontsize=10, parse_math=False)


def png(figure: Figure) -> bytes:
    """The bytes of a PNG file without metadata."""
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
