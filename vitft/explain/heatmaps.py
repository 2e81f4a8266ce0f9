"""Heat maps over images, contact sheets and overviews of attention heads, with Pillow and NumPy."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

BACKGROUND, TEXT_COLOUR = (255, 255, 255), (30, 30, 34)
TILE_GAP, TEXT_HEIGHT = 12, 24
"""Gap between tiles and height of a text line, in pixels."""

# From dark violet through magenta and orange to light yellow. The luminance increases evenly, which
# makes the maps readable in greyscale and for colour-blind readers.
COLOUR_MAP = np.array(
    [(20, 8, 48), (92, 20, 110), (168, 44, 96), (226, 92, 48), (250, 166, 28), (252, 250, 160)],
    dtype=np.float32,
)
OPACITY_LOW, OPACITY_HIGH = 0.45, 0.75
"""Opacity of the heat map where its value is 0 and where it is 1."""


def overlay(image: Image.Image, heat: NDArray[np.float32]) -> Image.Image:
    """Return an image with a heat map on top: dark where the map is 0, bright where it is 1.

    Args:
        image: The RGB image as received by the model, after resizing and cropping.
        heat: Heat map (gh, gw), one value from 0 to 1 per patch.
    """
    pixels = np.asarray(image.convert("RGB"), np.float32)  # (S, S, 3)
    small = Image.fromarray(np.ascontiguousarray(heat, np.float32))
    large = small.resize(image.size, Image.Resampling.BICUBIC)
    smooth = np.asarray(large, np.float32).clip(0, 1)  # (S, S)
    opacity = (OPACITY_LOW + (OPACITY_HIGH - OPACITY_LOW) * smooth)[..., None]
    blended = pixels * (1 - opacity) + apply_colour_map(smooth) * opacity
    return Image.fromarray(blended.round().astype(np.uint8))


def apply_colour_map(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return RGB colours (..., 3), from 0 to 255, for values from 0 to 1."""
    stops = np.linspace(0, 1, len(COLOUR_MAP))
    return np.stack([np.interp(values, stops, COLOUR_MAP[:, i]) for i in range(3)], axis=-1)


@dataclass(frozen=True, slots=True)
class SheetTile:
    """Images to show side by side, at equal height, above a line of text."""

    pictures: tuple[Image.Image, ...]
    text: str


def contact_sheet(tiles: Sequence[SheetTile], *, height: int = 224) -> Image.Image:
    """Return a sheet of tiles of the same width, with at most six images per row.

    A tile with more than six images has a row of its own.
    """
    columns = min(len(tiles), max(1, 6 // len(tiles[0].pictures)))
    drawn = [draw_tile(tile, height) for tile in tiles]
    width, tile_height = drawn[0].size
    rows = -(-len(drawn) // columns)
    size = columns * (width + TILE_GAP) + TILE_GAP, rows * (tile_height + TILE_GAP) + TILE_GAP
    sheet = Image.new("RGB", size, BACKGROUND)
    for i, picture in enumerate(drawn):
        left = i % columns * (width + TILE_GAP) + TILE_GAP
        sheet.paste(picture, (left, i // columns * (tile_height + TILE_GAP) + TILE_GAP))
    return sheet


def draw_tile(tile: SheetTile, height: int) -> Image.Image:
    """Return a tile drawn as one image, with its images scaled to `height` pixels.

    Images of less than half this height, such as maps of patch grids, are not smoothed.
    """
    scaled = []
    for picture in tile.pictures:
        size = round(height * picture.width / picture.height), height
        is_grid = picture.height * 2 < height
        resampling = Image.Resampling.NEAREST if is_grid else Image.Resampling.LANCZOS
        scaled.append(picture.resize(size, resampling))
    width = sum(picture.width for picture in scaled) + TILE_GAP // 2 * (len(scaled) - 1)
    drawn = Image.new("RGB", (width, height + TEXT_HEIGHT), BACKGROUND)
    left = 0
    for picture in scaled:
        drawn.paste(picture, (left, 0))
        left += picture.width + TILE_GAP // 2
    draw_text(ImageDraw.Draw(drawn), (0, height + 3), tile.text, width)
    return drawn


def draw_text(
    canvas: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int, *, size: int = 14
) -> None:
    """Draw one line of text, truncated with an ellipsis if it is wider than `width` pixels."""
    font = ImageFont.load_default(size)
    shown = text
    while shown and canvas.textlength(shown, font) > width:
        shown = shown.removesuffix("...")[:-1].rstrip() + "..." if len(shown) > 4 else ""
    canvas.text(at, shown, TEXT_COLOUR, font)


def heads_sheet(maps: NDArray[np.float32], *, height: int = 56) -> Image.Image:
    """Return a sheet of maps (blocks, heads, gh, gw), with one row per block."""
    depth, heads, rows, columns = maps.shape
    width, margin = round(height * columns / rows), 66
    size = margin + heads * (width + 4), TEXT_HEIGHT + depth * (height + 4)
    sheet = Image.new("RGB", size, BACKGROUND)
    canvas = ImageDraw.Draw(sheet)
    for head in range(heads):
        draw_text(canvas, (margin + head * (width + 4), 2), f"head {head}", width + 2, size=12)
    for block in range(depth):
        top = TEXT_HEIGHT + block * (height + 4)
        draw_text(canvas, (4, top + height // 2 - 8), f"block {block}", margin, size=12)
        for head in range(heads):
            colours = apply_colour_map(maps[block, head]).round().astype(np.uint8)
            scaled = Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(scaled, (margin + head * (width + 4), top))
    return sheet


def png_bytes(picture: Image.Image) -> bytes:
    """Return an image as the bytes of a PNG file, without metadata."""
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(picture)).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
