"""Preprocessing of one vitft run in Python, with NumPy and Pillow and without vitft.

SPDX-License-Identifier: Apache-2.0, like vitft; this file may be copied into other programs.

    from preprocess import read_file, preprocess
    tensor = preprocess(read_file("photo.jpg"))  # float32 (1, channels, height, width)

`python preprocess.py` checks all vectors in the folder `vectors` next to this file. Every step is
described in preprocessing.json. Pillow only decodes files; NumPy resizes the pixels with the same
integer weights as Pillow, so the bytes are equal.

Notation: h, w sides of an image; H, W sides of the resized image; C channels of the model.
"""

import math
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
FIXED_POINT = 2**22


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
    if GREY_RANGE and image.mode in ("RGB", "RGBA") and ";16" in layout:
        raise ValueError("16-bit colour, which Pillow reduces: fill DecodedPixels with its samples")
    orientation, transparent = image.getexif().get(0x0112, 1), image.info.get("transparency")
    if image.mode == "F" or image.mode.startswith("I"):
        depth = "16" if image.mode.startswith("I;") else {"F": "f32", "I": "i32"}[image.mode]
        if depth == "16" and image.format == "TIFF" and image.tag_v2.get(0x0102) in (12, (12,)):
            depth = "12"
        samples = np.asarray(image)[:, :, None].astype(DEPTHS[depth])
        white = transparent if isinstance(transparent, int) else -1
        return DecodedPixels(samples, "L", depth, orientation, white)
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
    sides = image.shape[:2]
    target = resized_sides_of(*sides)
    crop = HEIGHT, WIDTH
    first = [round((target[i] - crop[i]) / 2) for i in (0, 1)]
    is_large = max(target) / min(target) > MAX_SIDE_RATIO
    is_large = is_large or target[0] * target[1] > MAX_PIXELS_RESIZED
    if FIT == "crop" and is_large:  # only the part inside the crop is resized
        scales = [sides[i] / target[i] for i in (0, 1)]
        boxes = [
            (np.float32(first[i] * scales[i]), np.float32((first[i] + crop[i]) * scales[i]))
            for i in (0, 1)
        ]
        first, target = [0, 0], crop
    else:
        boxes = [(np.float32(0), np.float32(side)) for side in sides]
    lost = sides[0] - target[0], sides[1] - target[1]
    rows_first = lost[0] > 0 and lost[0] > 2 * lost[1]
    for axis in (0, 1) if rows_first else (1, 0):
        image = resampled(image, axis, boxes[axis], target[axis], first[axis], crop[axis])
    return image


def resampled(
    image: Values, axis: int, box: tuple[Any, Any], size: int, first: int, count: int
) -> Values:
    """Resize an image along one axis to `size`, computing only `count` positions from `first`."""
    planes = np.moveaxis(image, axis, 0)
    begin, scale = float(box[0]), float(box[1] - box[0]) / size
    if INTERPOLATION == "nearest":
        places, place = [], begin + scale * 0.5
        for _ in range(size):
            places.append(math.floor(place))
            place += scale
        return np.moveaxis(planes[places[first : first + count]], 0, axis)
    if box == (0, len(planes)) and size == len(planes):
        return np.moveaxis(planes[first : first + count], 0, axis)
    result = np.empty((count, *planes.shape[1:]), np.uint8)
    for i in range(count):
        start, weights = filter_weights(begin, scale, first + i, len(planes))
        part = planes[start : start + len(weights)].astype(np.float64)
        total: Values = np.tensordot(weights, part, 1)  # integers below 2^53 are exact in float64
        result[i] = np.clip(np.floor((total + FIXED_POINT // 2) / FIXED_POINT), 0, 255)
    return np.moveaxis(result, 0, axis)


def filter_weights(begin: float, scale: float, position: int, length: int) -> tuple[int, Values]:
    """Return the first pixel that contributes to a position, and the weights in units of 2^-22."""
    wider = max(scale, 1.0)
    reach = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}[INTERPOLATION] * wider
    centre = begin + (position + 0.5) * scale
    start = max(0, int(centre - reach + 0.5))
    end = min(length, int(centre + reach + 0.5))
    weights = [filter_at((x - centre + 0.5) * (1.0 / wider)) for x in range(start, end)]
    total = 0.0
    for weight in weights:  # one by one, because the order of additions affects the rounding
        total += weight
    scaled = [(w / total if total else w) * FIXED_POINT for w in weights]
    return start, np.array([float(int(w - 0.5 if w < 0 else w + 0.5)) for w in scaled])


def filter_at(x: float) -> float:
    """Return the value of the filter at a distance of `x` pixels."""
    if INTERPOLATION == "lanczos":
        return sinc_at(x) * sinc_at(x / 3) if -3.0 <= x < 3.0 else 0.0
    x = abs(x)
    if INTERPOLATION == "bilinear":
        return 1.0 - x if x < 1.0 else 0.0
    if x < 1.0:  # bicubic with a = -0.5
        return (1.5 * x - 2.5) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2.0 else 0.0


def sinc_at(x: float) -> float:
    """Return sin(pi x) / (pi x)."""
    return math.sin(x * math.pi) / (x * math.pi) if x else 1.0


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
