"""Heat maps over images and overviews of attention heads, with Pillow and NumPy."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitft.system.errors import UsageError
from vitft.system.suggest import suggest

METHODS = ("relevance", "rollout", "attention")
FUSIONS = ("mean", "max", "min")
METHOD_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "fusion": ("rollout", "attention"),
    "discard": ("rollout",),
    "block": ("attention",),
    "head": ("attention",),
}
"""The methods on which each option has an effect."""
MIN_SIDE_PX, _MAX_SIDE_PX = 224, 4096
"""Default of the minimum length of the shorter side of a picture, in pixels; its largest value."""
MEANINGS: Mapping[str, str] = {
    "relevance": "support the class more",
    "rollout": "receive more attention, counted through all blocks",
    "attention": "receive more attention",
}
"""What is true of the brighter parts of a map, by method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """An attribution method, which reduces a model's attention to one value per patch."""

    name: str = "relevance"
    """Name: `relevance` (to a class), `rollout` (all blocks) or `attention` (one block)."""
    fusion: str = "mean"  # function that combines the heads of a block in rollout and attention
    discard: float = 0.0
    """Fraction in [0, 1) of each block's connections that rollout discards, weakest first."""
    block: int | None = None  # block of the attention map, counting from 0; None for the last block
    head: int | None = None
    """Head of the attention map, counting from 0; None for all heads combined."""

    def __post_init__(self) -> None:
        choices = {"method": (self.name, METHODS), "fusion": (self.fusion, FUSIONS)}
        for kind, (value, known) in choices.items():
            if value not in known:
                near = suggest(value, known)[:1] or [f"one of {', '.join(known)}"]
                raise UsageError(f"unknown {kind} {value!r}", fix=f"use {near[0]}")
        if not 0 <= self.discard < 1:
            raise UsageError(
                f"invalid discard {self.discard}",
                fix="use a number of at least 0 and less than 1, e.g. 0.9",
            )


class MethodOptions(TypedDict, total=False):
    """Options of a method, by the names of the fields of `Method`."""

    fusion: str
    discard: float
    block: int
    head: int


def chosen_method(
    name: str | None, options: Mapping[str, Any], *, about: str | None = None
) -> Method:
    """Return the method with a name (default: relevance) and those options that are not None.

    `about` is the name of the class to explain.
    """
    given = {key: value for key, value in options.items() if value is not None}
    method = Method(name=name or METHODS[0])
    if unknown := [key for key in given if key not in METHOD_OPTIONS]:
        near = suggest(unknown[0], METHOD_OPTIONS)
        names = near or [f"one of {', '.join(METHOD_OPTIONS)}"]
        raise UsageError(f"unknown option {unknown[0]!r}", fix=f"use {names[0]}")
    used = {**METHOD_OPTIONS, "class": ("relevance",)}
    for key in (*["class"] * (about is not None), *given):
        if method.name not in used[key]:
            raise UsageError(
                f"--{key} has no effect with --method {method.name}",
                fix=f"remove it, or use {' or '.join(f'--method {m}' for m in used[key])}",
            )
    if "fusion" in given and "head" in given:
        raise UsageError(
            "--fusion combines all heads, but --head selects one", fix="use only one of them"
        )
    return replace(method, **given)


def check_picture_side(side_px: int | None) -> None:
    """Raise a UsageError unless a picture can have a shorter side of this length, or None."""
    if side_px is not None and not 1 <= side_px <= _MAX_SIDE_PX:
        raise UsageError(
            f"invalid --size {side_px}", fix=f"use an integer from 1 to {_MAX_SIDE_PX}, e.g. 800"
        )


# heat maps over images and overviews of attention heads, with Pillow and NumPy --------------------

_BACKGROUND, _TEXT_COLOUR = (255, 255, 255), (30, 30, 34)
_TEXT_HEIGHT, _SHEET_WIDTH = 24, 672
"""Height of a text line and intended width of an overview of attention heads, in pixels."""

# From dark violet through magenta and orange to light yellow. The luminance increases evenly, which
# makes the maps readable in greyscale and for colour-blind readers.
_COLOUR_MAP = np.array(
    [(20, 8, 48), (92, 20, 110), (168, 44, 96), (226, 92, 48), (250, 166, 28), (252, 250, 160)],
    dtype=np.float32,
)
_PIXEL_SIDE_PX = 64
"""Shorter side, in pixels, below which an enlarged image shows its pixels as squares."""
_OPACITY_LOW, _OPACITY_HIGH = 0.45, 0.75
"""Opacity of the heat map where its value is 0 and where it is 1."""


def overlay(image: Image.Image, heat: NDArray[np.float32]) -> Image.Image:
    """Return an image with a heat map on top: dark where the map is 0, bright where it is 1.

    `image` is as the model receives it, and `heat` (gh, gw) has a value from 0 to 1 per patch.
    """
    pixels = np.asarray(image.convert("RGB"), np.float32)  # (S, S, 3)
    small = Image.fromarray(np.ascontiguousarray(heat, np.float32))
    large = small.resize(image.size, Image.Resampling.BICUBIC)
    smooth = np.asarray(large, np.float32).clip(0, 1)  # (S, S)
    opacity = (_OPACITY_LOW + (_OPACITY_HIGH - _OPACITY_LOW) * smooth)[..., None]
    blended = pixels * (1 - opacity) + _apply_colour_map(smooth) * opacity
    return Image.fromarray(blended.round().astype(np.uint8))


def enlarged(image: Image.Image, side_px: int = MIN_SIDE_PX) -> Image.Image:
    """Return an image enlarged by the smallest integer with which no side is below `side_px`.

    The pixels of a small image become squares, so that one of 8 x 8 pixels can be shown in class.
    """
    factor = -(-side_px // min(image.size))
    is_small = min(image.size) < _PIXEL_SIDE_PX
    resample = Image.Resampling.NEAREST if is_small else Image.Resampling.BICUBIC
    return image.resize((image.width * factor, image.height * factor), resample=resample)


def with_legend(picture: Image.Image, name: str, font_px: int | None = None) -> Image.Image:
    """Return a picture with a colour bar below it, from the lowest to the highest value of its map.

    `name` describes the values, in ASCII: Pillow's font has no other characters. If it does not fit
    between the words at the ends of the bar, it has a line of its own.
    """
    font_px = font_px or max(12, picture.width // 28)
    font, margin = ImageFont.load_default(font_px), font_px // 2
    widths = [font.getlength(text) for text in (name, "lowest", "highest")]
    lines = 1 if sum(widths) + 6 * margin <= picture.width else 2
    height = picture.height + 3 * margin + font_px + lines * font_px
    result = Image.new("RGB", (picture.width, height), _BACKGROUND)
    result.paste(picture)
    ramp = np.linspace(0, 1, max(1, picture.width - 2 * margin), dtype=np.float32)
    bar = _apply_colour_map(np.tile(ramp, (font_px, 1))).round().astype(np.uint8)
    result.paste(Image.fromarray(bar), (margin, picture.height + margin))
    canvas, base = ImageDraw.Draw(result), picture.height + 5 * margin
    canvas.text((margin, base), "lowest", _TEXT_COLOUR, font, anchor="ls")
    canvas.text((picture.width - margin, base), "highest", _TEXT_COLOUR, font, anchor="rs")
    fitting = min(1.0, (picture.width - 2 * margin) / widths[0])
    place = (picture.width // 2, base + (lines - 1) * font_px)
    small = font if fitting == 1 else ImageFont.load_default(max(1, int(fitting * font_px)))
    canvas.text(place, name, _TEXT_COLOUR, small, anchor="ms")
    return result


def colour_bar() -> Image.Image:
    """Return the colours of the heat maps from 0 to 1, from left to right."""
    colours = _apply_colour_map(np.linspace(0, 1, 256, dtype=np.float32))
    return Image.fromarray(np.tile(colours.round().astype(np.uint8), (12, 1, 1)))


def _apply_colour_map(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return RGB colours (..., 3), from 0 to 255, for values from 0 to 1."""
    stops = np.linspace(0, 1, len(_COLOUR_MAP))
    return np.stack([np.interp(values, stops, _COLOUR_MAP[:, i]) for i in range(3)], axis=-1)


def heads_sheet(
    maps: NDArray[np.float32], title: str, side_px: int = 0, *, legend: bool = False
) -> Image.Image:
    """Return a sheet of maps (blocks, heads, gh, gw) below a title in ASCII.

    A row is a block, or a head if there are more blocks than heads, so that the sheet is not higher
    than a screen or slide. If its shorter side would be below `side_px`, everything is enlarged.
    """
    of_row, of_column = "block", "head"
    if len(maps) > maps.shape[1]:
        maps, of_row, of_column = maps.swapaxes(0, 1), of_column, of_row
    rows, columns, grid_height, grid_width = maps.shape
    height = min(112, max(56, _SHEET_WIDTH // columns))  # of a map
    patch, gap, left, top = math.ceil(height / grid_height), 4, 66, 2 * _TEXT_HEIGHT
    across = left + columns * (patch * grid_width + gap)
    down = top + rows * (patch * grid_height + gap)
    scale = max(1.0, side_px / min(across, down))
    # A patch is a square of whole pixels.
    patch, gap, left, top = (math.ceil(length * scale) for length in (patch, gap, left, top))
    cell = patch * grid_width, patch * grid_height
    size = left + columns * (cell[0] + gap), top + rows * (cell[1] + gap)
    sheet, font_px = Image.new("RGB", size, _BACKGROUND), round(12 * scale)
    canvas, font = ImageDraw.Draw(sheet), ImageFont.load_default(font_px)
    fitting = min(1.0, sheet.width / font.getlength(title))
    small = font if fitting == 1 else ImageFont.load_default(int(fitting * font_px))
    canvas.text((sheet.width // 2, top // 4), title, _TEXT_COLOUR, small, anchor="mm")
    for x in range(columns):
        place = left + x * (cell[0] + gap) + cell[0] // 2, 3 * top // 4
        canvas.text(place, f"{of_column} {x}", _TEXT_COLOUR, font, anchor="mm")
    for y, row in enumerate(maps):
        above = top + y * (cell[1] + gap)
        place = left // 2, above + cell[1] // 2
        canvas.text(place, f"{of_row} {y}", _TEXT_COLOUR, font, anchor="mm")
        for x, values in enumerate(row):
            colours = _apply_colour_map(values).round().astype(np.uint8)
            scaled = Image.fromarray(colours).resize(cell, Image.Resampling.NEAREST)
            sheet.paste(scaled, (left + x * (cell[0] + gap), above))
    name = "attention, on a separate scale for each map"
    return with_legend(sheet, name, font_px) if legend else sheet


def png_bytes(picture: Image.Image) -> bytes:
    """Return an image as the bytes of a PNG file, without metadata."""
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(picture)).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
