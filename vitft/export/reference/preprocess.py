"""Preprocessing of one vitft run in Python, with NumPy and Pillow and without vitft.

SPDX-License-Identifier: Apache-2.0, like vitft; this file may be copied into other programs.

    from preprocess import read_file, preprocess
    tensor = preprocess(read_file("photo.jpg"))  # float32 (1, channels, height, width)

`python preprocess.py` checks all vectors in the folder `vectors` next to this file. Every step is
described in preprocessing.json. Pillow decodes files and resizes pixels; the programs in other
languages do the latter themselves, with the same integer weights, so the bytes are equal.

Notation: h, w sides of an image; H, W sides of the resized image; C channels of the model.
"""

import math
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

# Constants of the run: begin
HEIGHT, WIDTH = 224, 224
CROP_FRACTION = 0.9
FIT = "crop"
INTERPOLATION = "bicubic"
MEAN = (0.5, 0.5, 0.5)
STD = (0.5, 0.5, 0.5)
GREY_RANGE: tuple[float, ...] = ()
# Constants of the run: end

Values = np.ndarray[Any, np.dtype[Any]]
MODES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
DEPTHS = {"8": "<u1", "12": "<u2", "16": "<u2", "i32": "<i4", "f32": "<f4"}
MAX_SIDE_RATIO, MAX_PIXELS_RESIZED = 100, 2**26


class DecodedPixels(NamedTuple):
    """The pixels of a decoded file, with the information needed to interpret them."""

    samples: Values
    """Sample values (h, w, channels of the mode)."""
    mode: str
    """Name in `MODES`: L or RGB if the depth is not `8`."""
    depth: str
    """Bits per sample: `8`, `12` or `16` (unsigned), `i32` (signed) or `f32` (floating point)."""
    orientation: int = 1
    """EXIF orientation, 1 to 8; other values count as 1."""
    transparent: float = -1
    """Value of L pixels with more than 8 bits that is shown as white, or -1."""


def preprocess(pixels: DecodedPixels) -> Values:
    """Return the model's input, float32 (1, C, HEIGHT, WIDTH)."""
    return tensor_of(view_of(turned(rgb_bytes_of(pixels), pixels.orientation)))


def read_file(path: str | Path) -> DecodedPixels:
    """Decode an image file with Pillow; if it has several frames, only the first one is used."""
    image: Any = Image.open(path, formats=("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"))
    layout = str(image.tile)
    image.load()
    if GREY_RANGE and image.mode in ("RGB", "RGBA") and re.search(";16[LBN]", layout):
        raise ValueError("16-bit colour, which Pillow reduces: fill DecodedPixels with its samples")
    orientation, transparent = image.getexif().get(0x0112, 1), image.info.get("transparency")
    if image.mode == "F" or image.mode.startswith("I"):
        depth = "16" if image.mode.startswith("I;") else {"F": "f32", "I": "i32"}[image.mode]
        if depth == "16" and image.format == "TIFF" and image.tag_v2.get(0x0102) in (12, (12,)):
            depth = "12"
        samples = np.asarray(image)[:, :, None].astype(DEPTHS[depth])
        white = transparent if isinstance(transparent, int) else -1
        pixels = DecodedPixels(samples, "L", depth, orientation, white)
        if image.format != "TIFF" or image.tag_v2.get(0x0106) != 0:
            return pixels
        return DecodedPixels(255 - bytes_of(pixels), "L", "8", orientation)  # 0 is white
    if image.has_transparency_data:
        image = image.convert("RGBA")
    elif image.mode not in MODES:  # palettes, black and white, YCbCr
        image = image.convert("RGB")
    samples = np.asarray(image)
    return DecodedPixels(samples.reshape(*samples.shape[:2], -1), image.mode, "8", orientation)


def rgb_bytes_of(pixels: DecodedPixels) -> Values:
    """Convert pixels to RGB composited on white, uint8 (h, w, 3); grey if C is 1."""
    mode = pixels.mode
    samples = pixels.samples if pixels.depth == "8" else bytes_of(pixels)
    levels = samples.astype(np.int64)
    if mode in ("LA", "RGBA"):
        alpha, levels = levels[:, :, -1:], levels[:, :, :-1]
        levels = div255(255 * (255 - alpha) + levels * alpha)
    if mode == "CMYK":
        light = 255 - levels[:, :, 3:]
        levels = np.clip(light - div255(levels[:, :, :3] * light), 0, 255)
    if levels.shape[2] == 1:
        levels = np.repeat(levels, 3, axis=2)
    if len(MEAN) == 1:
        grey = (levels @ np.array([19595, 38470, 7471]) + 32768) >> 16
        levels = np.repeat(grey[:, :, None], 3, axis=2)
    return levels.astype(np.uint8)


def div255(products: Values) -> Values:
    """Divide integers from 0 to 255 * 255 by 255, rounded as in Pillow."""
    shifted = products + 128
    return ((shifted >> 8) + shifted) >> 8


def bytes_of(pixels: DecodedPixels) -> Values:
    """Convert grey or RGB with more than 8 bits per value to 8 bits."""
    values, depth = pixels.samples, pixels.depth
    if GREY_RANGE:
        low, high = GREY_RANGE
        exact = np.float64 if depth == "i32" else np.float32
        levels = np.nan_to_num(np.subtract(values, low, dtype=exact), nan=0.0)
        levels = np.rint(np.clip(levels, 0, high - low) * exact(255 / (high - low)))
        grey = levels.astype(np.uint8)
    elif depth == "f32":
        levels = np.nan_to_num(values, nan=0.0, posinf=255.0, neginf=0.0)
        scale = 255 if levels.max() <= 1 else 1
        return np.clip(np.rint(levels * scale), 0, 255).astype(np.uint8)
    else:
        bits = 12 if depth == "12" else 16
        grey = (np.clip(values, 0, 2**bits - 1) >> (bits - 8)).astype(np.uint8)
    if pixels.transparent >= 0:
        grey[values == pixels.transparent] = 255
    return grey


def turned(image: Values, orientation: int) -> Values:
    """Rotate and flip an image (h, w, 3) so that it is upright."""
    if orientation in (5, 6, 7, 8):
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return image


def resized_sides_of(height: int, width: int) -> tuple[int, int]:
    """Return the sides H and W to which an image is resized before the crop."""
    tall, wide = (math.floor(side / CROP_FRACTION) for side in (HEIGHT, WIDTH))
    if FIT == "squash":
        return tall, wide
    if tall == wide:
        longer = int(tall * max(height, width) / min(height, width))
        return (longer, tall) if width <= height else (tall, longer)
    ratio = min(height / tall, width / wide)
    return max(tall, round(height / ratio)), max(wide, round(width / ratio))


def view_of(image: Values) -> Values:
    """Resize and crop an upright image (h, w, 3) to the view, uint8 (HEIGHT, WIDTH, 3)."""
    picture, method = Image.fromarray(image), Image.Resampling[INTERPOLATION.upper()]
    tall, wide = resized_sides_of(*image.shape[:2])
    top, left = round((tall - HEIGHT) / 2), round((wide - WIDTH) / 2)
    is_large = max(tall, wide) / min(tall, wide) > MAX_SIDE_RATIO
    if FIT == "crop" and (is_large or tall * wide > MAX_PIXELS_RESIZED):
        # Only the part inside the crop is resized
        down, across = image.shape[0] / tall, image.shape[1] / wide
        box = left * across, top * down, (left + WIDTH) * across, (top + HEIGHT) * down
        return np.asarray(picture.resize((WIDTH, HEIGHT), method, box))
    resized = np.asarray(picture.resize((wide, tall), method))
    return resized[top : top + HEIGHT, left : left + WIDTH]


def tensor_of(view: Values) -> Values:
    """Normalise a view, and return it as float32 (1, C, HEIGHT, WIDTH)."""
    values: Values = view[:, :, : len(MEAN)].astype(np.float32) / np.float32(255)
    values = (values - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def read_pixels(path: Path) -> DecodedPixels:
    """Read a .pixels file: one line of text, then the samples, row by row, little-endian."""
    line, _, content = path.read_bytes().partition(b"\n")
    width, height, mode, depth, orientation, transparent = line.decode().split()
    samples = np.frombuffer(content, DEPTHS[depth])
    shape = int(height), int(width), MODES[mode]
    return DecodedPixels(samples.reshape(shape), mode, depth, int(orientation), int(transparent))


def unequal_vectors(folder: Path) -> tuple[int, list[str]]:
    """Compare the vectors in a folder bit by bit; return their number and the unequal names."""
    paths, wrong = sorted(folder.glob("*.pixels")), []
    for path in paths:
        pixels = read_pixels(path)
        view = view_of(turned(rgb_bytes_of(pixels), pixels.orientation))
        if view.tobytes() != path.with_suffix(".view").read_bytes():
            wrong.append(f"{path.stem} (bytes)")
        elif tensor_of(view).astype("<f4").tobytes() != path.with_suffix(".tensor").read_bytes():
            wrong.append(f"{path.stem} (floats)")
    return len(paths), wrong


def check_vectors() -> None:
    """Check the vectors in the folder given as an argument, or in `vectors` next to this file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "vectors"
    found, wrong = unequal_vectors(folder)
    if wrong or not found:
        sys.exit(f"{found - len(wrong)} of {found} vectors equal, different: {', '.join(wrong)}")
    print(f"{found} of {found} vectors equal")


if __name__ == "__main__":
    check_vectors()
