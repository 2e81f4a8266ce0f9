"""Synthetic images that test each step of a transform, as files and as decoded pixels."""

import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitft.data.images import ORIENTATION
from vitft.data.transforms import EvalTransform
from vitft.export.formats.base import NumericArray

_MAX_UINT16 = 65535
_LITTLE_ENDIAN = {"8": "<u1", "16": "<u2", "f32": "<f4"}


class Vector(NamedTuple):
    """An image that tests a transform."""

    file: str
    about: str
    content: bytes
    """Bytes of the image file, in a lossless format."""
    pixels: bytes
    """The decoded pixels: a line of text and the samples (see `pixel_file`)."""


def draw_vectors(transform: EvalTransform) -> list[Vector]:
    """Draw five images; the same transform always gives the same images."""
    random = np.random.default_rng(0)
    phone = drawn(random, 30, 41, 3)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    alpha, inks = drawn(random, 24, 33, 4), drawn(random, 5, 610, 4)
    short = min(transform.resized(1000, 1000)) + 12
    tall = drawn(random, 3 * short, short, 1)
    return [
        Vector(
            "phone.png",
            "RGB, rotated by EXIF orientation 6, enlarged",
            image_file(phone, "RGB", "png", exif=exif),
            pixel_file(phone, "RGB", orientation=6),
        ),
        Vector(
            "alpha.png",
            "RGBA, composited on white",
            image_file(alpha, "RGBA", "png"),
            pixel_file(alpha, "RGBA"),
        ),
        _draw_wide(random, transform),
        Vector(
            "print.tif",
            "CMYK, with an aspect ratio above 100",
            image_file(inks, "CMYK", "tiff"),
            pixel_file(inks, "CMYK"),
        ),
        Vector(
            "tall.png",
            "grey, reduced with antialiasing, rows first",
            image_file(tall, "L", "png"),
            pixel_file(tall, "L"),
        ),
    ]


def _draw_wide(random: np.random.Generator, transform: EvalTransform) -> Vector:
    """Draw a grey image with more than 8 bits, in floating point if the range requires it."""
    low, high = transform.grey_range or (0, _MAX_UINT16)
    margin = (high - low) / 8 if transform.grey_range else 0
    levels = drawn(random, 29, 37, 1) / 255 * (high - low + 2 * margin) + low - margin
    if low < 0 or high > _MAX_UINT16 or high - low < 1000:
        greys = levels.astype(np.float32)
        content = image_file(greys, "F", "tiff")
        about = "floating-point grey, scaled from the grey range of the run"
        return Vector("wide.tif", about, content, pixel_file(greys, "L", depth="f32"))
    greys = levels.clip(0, _MAX_UINT16).astype(np.uint16)
    clear = int(greys[14, 18, 0])
    how = "scaled from the grey range of the run" if transform.grey_range else "upper 8 bits kept"
    return Vector(
        "wide.png",
        f"16-bit grey with a transparent value, {how}",
        image_file(greys, "I;16", "png", transparency=clear),
        pixel_file(greys, "L", depth="16", transparent=clear),
    )


def drawn(random: np.random.Generator, height: int, width: int, channels: int) -> NumericArray:
    """Draw blocks of 6 x 6 pixels with noise: uint8 (height, width, channels)."""
    blocks = random.integers(0, 256, (-(-height // 6), -(-width // 6), channels))
    coarse = blocks.repeat(6, axis=0).repeat(6, axis=1)[:height, :width]
    noise = random.integers(-40, 41, (height, width, channels))
    return np.asarray((coarse + noise).clip(0, 255).astype(np.uint8))


def image_file(pixels: NumericArray, mode: str, kind: str, **options: Any) -> bytes:  # noqa: ANN401
    """Encode pixels (height, width, channels) losslessly."""
    buffer = io.BytesIO()
    size = pixels.shape[1], pixels.shape[0]
    Image.frombytes(mode, size, pixels.tobytes()).save(buffer, kind, **options)
    return buffer.getvalue()


def pixel_file(
    pixels: NumericArray,
    mode: str,
    *,
    depth: str = "8",
    orientation: int = 1,
    transparent: int = -1,
) -> bytes:
    """Return the content of a .pixels file: one line of text, then the samples."""
    height, width = pixels.shape[:2]
    line = f"{width} {height} {mode} {depth} {orientation} {transparent}\n"
    return line.encode() + pixels.astype(_LITTLE_ENDIAN[depth]).tobytes()
