"""Conversion of decoded images to RGB, including images with more than 8 bits per channel.

The conversion depends on the image mode:

1, L, P            black and white, equal channels, palette lookup
more than 8 bits   linear from the dataset's grey range to 0..255, rounded and clipped, with one
                   range for all three colours; without a range, by file type:
  16-bit values    the upper 8 bits: 65535 -> 255
  12-bit grey TIFF the upper 8 bits: 4095 -> 255
  I (32-bit grey)  clipped to 0..65535, then treated as 16-bit grey
  F (float grey)   0..1 -> 0..255 if no value is above 1, else unchanged; rounded and clipped
CMYK, YCCK, YCbCr  Pillow's formula
transparency       composited on white: alpha channels, transparent palette entries and greys
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, TiffImagePlugin

GreyRange = tuple[float, ...]
"""Values shown as black and as white in images with more than 8 bits per channel. If empty, each
file type has its own fixed range."""
_Greys = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
TIFF = TiffImagePlugin.TiffImageFile
BITS_PER_SAMPLE = 0x0102
_TAIL_PERCENT = 0.1
"""Percentage of outliers (e.g. defective pixels) to expect at each end of an image's values."""


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """Value statistics of one image with more than 8 bits per channel."""

    kind: str
    """Type of the values, e.g. `16-bit` or `float`."""
    lowest: float
    low: float
    """Value below which `_TAIL_PERCENT` percent of the values lie."""
    high: float
    """Value above which `_TAIL_PERCENT` percent of the values lie."""
    highest: float


def to_rgb(
    image: Image.Image, grey_range: GreyRange = (), lower: Image.Image | None = None
) -> Image.Image:
    """Convert an image of any mode to RGB as described in the module docstring.

    In 16-bit colour, `image` has the upper 8 bits of each value and `lower` the lower 8 bits.
    """
    if is_wide(image):
        return Image.fromarray(grey_levels(image, grey_range)).convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    if lower is not None:
        colours, clear = _wide_colours(image, lower), image.info.get("transparency")
        levels = [_scaled(colours, *grey_range) if grey_range else colours >> 8]
        if image.mode == "RGBA":
            levels.append(np.asarray(image)[:, :, 3:])
        elif isinstance(clear, tuple):
            levels.append(255 * (colours != clear).any(axis=2, keepdims=True))
        image = Image.fromarray(np.concatenate(levels, axis=2).astype(np.uint8))
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(layers, mask=layers.getchannel("A"))
        return white
    return image.convert("RGB") if image.mode != "RGB" else image


def _wide_colours(image: Image.Image, lower: Image.Image) -> np.ndarray[Any, Any]:
    """Return the colours (height, width, 3) of 16-bit colour, without its alpha channel."""
    upper, rest = (np.asarray(part)[:, :, :3] for part in (image, lower))
    return upper.astype(np.uint16) << 8 | rest


def is_wide(image: Image.Image) -> bool:
    """Return whether an image has a single channel with more than 8 bits per value."""
    return image.mode == "F" or image.mode.startswith("I")


def grey_levels(image: Image.Image, grey_range: GreyRange = ()) -> _Greys:
    """Return the 8-bit grey levels (height, width) of an image with more than 8 bits per pixel."""
    values = np.asarray(image)
    if grey_range:
        greys = _scaled(values, *grey_range)
    elif image.mode == "F":
        values = np.nan_to_num(values, nan=0.0, posinf=255.0, neginf=0.0)
        scale = 255 if values.max() <= 1 else 1
        return np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)
    else:
        bits = bits_of(image)
        greys = (np.clip(values, 0, 2**bits - 1) >> (bits - 8)).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        greys[values == transparent] = 255
    return greys


def _scaled(values: np.ndarray[Any, Any], low: float, high: float) -> _Greys:
    """Map values linearly from `low`..`high` to 0..255, with rounding and clipping."""
    exact = np.float64 if values.dtype.itemsize == 4 and values.dtype.kind in "iu" else np.float32
    scale = 255 / (high - low)
    levels = np.subtract(values, low, dtype=exact)
    np.nan_to_num(levels, copy=False, nan=0.0)
    np.clip(levels, 0, high - low, out=levels)
    levels *= scale
    return np.rint(levels, out=levels).astype(np.uint8)


def bits_of(image: Image.Image) -> int:
    """Return the bits per pixel of an integer image for which `is_wide` is True.

    For a TIFF, this is the number in the header, limited to 8..16; for other formats, it is 16.
    """
    if not isinstance(image, TIFF):
        return 16
    sample = image.tag_v2.get(BITS_PER_SAMPLE, 16)
    return min(max(8, sample[0] if isinstance(sample, tuple) else sample), 16)


def value_facts(image: Image.Image, lower: Image.Image | None = None) -> ValueFacts | None:
    """Return an image's value statistics, or None if no value is finite (for `lower`: `to_rgb`)."""
    values = (np.asarray(image) if lower is None else _wide_colours(image, lower)).ravel()
    if image.mode == "F":
        values = values[np.isfinite(values)]
    if not len(values):
        return None
    kind = {"F": "float", "I": "32-bit"}.get(image.mode, f"{bits_of(image)}-bit")
    low, high = np.percentile(values, (_TAIL_PERCENT, 100 - _TAIL_PERCENT))
    return ValueFacts(kind, float(values.min()), float(low), float(high), float(values.max()))
