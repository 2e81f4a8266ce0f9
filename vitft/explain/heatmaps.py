"""Numbers over pictures: heat maps, overlays, sheets of several images. Pillow and numpy alone."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Array = np.ndarray[Any, np.dtype[np.float32]]
PAPER, INK = (255, 255, 255), (30, 30, 34)
TILE, GAP, LINE, MOST_ACROSS = 224, 12, 24, 6
"""Pixels of a picture's height, between tiles and of a line of text; pictures side by side."""

# Dark violet over magenta and orange to light yellow: brightness rises evenly along the way, so
# that it reads in grey and for colour-blind eyes.
HEAT = np.array(
    [(20, 8, 48), (92, 20, 110), (168, 44, 96), (226, 92, 48), (250, 166, 28), (252, 250, 160)],
    dtype=np.float32,
)
VEIL, GLOW = 0.45, 0.75
"""How much of the picture the colour covers where nothing counted, and where most did."""


def overlay(image: Image.Image, heat: Array) -> Image.Image:
    """The image under its heat map: dimmed where nothing counted, glowing where most did.

    Args:
        image: The view that the model saw (after resize and crop), RGB.
        heat: One number from 0 to 1 per patch, (gh, gw).

    Returns:
        RGB, as large as the image, which stays untouched.
    """
    picture = np.asarray(image.convert("RGB"), np.float32)  # (S, S, 3)
    smooth = enlarged(heat, image.size)
    share = (VEIL + (GLOW - VEIL) * smooth)[..., None]
    mixed = picture * (1 - share) + coloured(smooth) * share
    return Image.fromarray(mixed.round().astype(np.uint8))


def enlarged(heat: Array, size: tuple[int, int]) -> Array:
    """One number per patch (gh, gw) to one per pixel (height, width), smoothly, within 0 and 1."""
    small = Image.fromarray(np.ascontiguousarray(heat, np.float32))
    return np.asarray(small.resize(size, Image.Resampling.BICUBIC), np.float32).clip(0, 1)


def coloured(values: Array) -> Array:
    """Colours of numbers from 0 to 1: (..., 3), 0 to 255."""
    stops = np.linspace(0, 1, len(HEAT))
    return np.stack([np.interp(values, stops, HEAT[:, i]) for i in range(3)], axis=-1)


@dataclass(frozen=True, slots=True)
class Tile:
    """Pictures of equal height side by side, with a line of text below."""

    pictures: tuple[Image.Image, ...]
    text: str


def contact_sheet(tiles: Sequence[Tile], *, side: int = TILE) -> Image.Image:
    """All tiles on one sheet, at most six pictures in a row.

    Args:
        tiles: At least one, all of pictures of one shape.
        side: Height of every picture in pixels.
    """
    columns = min(len(tiles), max(1, MOST_ACROSS // len(tiles[0].pictures)))
    drawn = [drawn_tile(tile, side) for tile in tiles]
    width, height = drawn[0].size
    rows = -(-len(drawn) // columns)
    sheet = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + GAP) + GAP), PAPER)
    for i, picture in enumerate(drawn):
        at = i % columns * (width + GAP) + GAP, i // columns * (height + GAP) + GAP
        sheet.paste(picture, at)
    return sheet


def drawn_tile(tile: Tile, side: int) -> Image.Image:
    """One tile, its pictures scaled to `side` pixels of height."""
    scaled = [
        picture.resize(
            (round(side * picture.width / picture.height), side), resample(picture, side)
        )
        for picture in tile.pictures
    ]
    width = sum(picture.width for picture in scaled) + GAP // 2 * (len(scaled) - 1)
    drawn = Image.new("RGB", (width, side + LINE), PAPER)
    left = 0
    for picture in scaled:
        drawn.paste(picture, (left, 0))
        left += picture.width + GAP // 2
    write(ImageDraw.Draw(drawn), (0, side + 3), tile.text, width)
    return drawn


def resample(picture: Image.Image, side: int) -> Image.Resampling:
    """Patches stay squares when they are enlarged; photos are smoothed."""
    is_grid = picture.height * 2 < side
    return Image.Resampling.NEAREST if is_grid else Image.Resampling.LANCZOS


def write(
    brush: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int, *, size: int = 14
) -> None:
    """One line of text, cut off with dots where it is wider than `width` pixels."""
    font = ImageFont.load_default(size)
    shown = text
    while shown and brush.textlength(shown, font) > width:
        shown = shown.removesuffix("...")[:-1].rstrip() + "..." if len(shown) > 4 else ""
    brush.text(at, shown, INK, font)


def heads_sheet(maps: Array, *, side: int = 56) -> Image.Image:
    """The maps of every block (rows) and head (columns), each from its least to its most.

    Args:
        maps: Numbers from 0 to 1, (blocks, heads, gh, gw).
        side: Height of a map in pixels.
    """
    depth, heads, rows, columns = maps.shape
    wide, margin = round(side * columns / rows), 66
    size = margin + heads * (wide + 4), LINE + depth * (side + 4)
    sheet = Image.new("RGB", size, PAPER)
    brush = ImageDraw.Draw(sheet)
    for head in range(heads):
        write(brush, (margin + head * (wide + 4), 2), f"head {head}", wide + 2, size=12)
    for block in range(depth):
        top = LINE + block * (side + 4)
        write(brush, (4, top + side // 2 - 8), f"block {block}", margin, size=12)
        for head in range(heads):
            picture = Image.fromarray(coloured(maps[block, head]).round().astype(np.uint8))
            small = picture.resize((wide, side), Image.Resampling.NEAREST)
            sheet.paste(small, (margin + head * (wide + 4), top))
    return sheet


def as_png(picture: Image.Image) -> bytes:
    """The bytes of a PNG file: pixels, and no metadata of where they came from."""
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(picture)).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
