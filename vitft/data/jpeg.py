"""The plain view of a JPEG by the shortest way: for the pass that computes training features.

libjpeg-turbo decodes straight into an array and torch's antialiased uint8 kernel resizes it. The
decoded pixels are Pillow's bit for bit; a resized one may differ from `EvalTransform.pixels` by two
grey levels of 255, because the kernel rounds its filter weights. What this way does not take
(other formats, turned or unusual JPEGs, damage) goes the documented way and gets its reason there.
"""

import io
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import JpegImagePlugin

from vitft.data.transforms import EvalTransform

KERNELS = {"bilinear", "bicubic"}
ORIENTATION = 0x0112
LONGEST = 20
"""Sides in a ratio beyond this are left to the documented way, which cuts before it resizes."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def fast_view(
    data: bytes, transform: EvalTransform, *, max_pixels: int
) -> tuple[Pixels, tuple[int, int]] | None:
    """The view (S, S, 3) and the size (width, height) of an upright RGB JPEG, or None."""
    taken = transform.interpolation in KERNELS and transform.channels == 3
    if not taken or not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        usual = colours == "YCbCr" and max(height, width) <= LONGEST * min(height, width)
        if not usual or height * width > max_pixels or is_turned(data):
            return None
        image = simplejpeg.decode_jpeg(data, strict=True)
    except ValueError:
        return None
    return resized(image, transform), (width, height)


def is_turned(data: bytes) -> bool:
    """Whether the file asks to be shown in another orientation."""
    place = data.find(b"Exif\0\0")
    if place > 65536 or b"tiff:Orientation" in data:  # unusual: the documented way looks closer
        return True
    if place < 0:
        return False
    with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
        return image.getexif().get(ORIENTATION, 1) != 1


def resized(image: Pixels, transform: EvalTransform) -> Pixels:
    """Resize and cut as the transform says, in torch."""
    height, width = transform.image_size
    planes = torch.from_numpy(image).permute(2, 0, 1)[None]  # channels last in memory: fastest
    wide, tall = transform.resized(image.shape[1], image.shape[0])
    planes = torch.nn.functional.interpolate(
        planes, (tall, wide), mode=transform.interpolation, antialias=True
    )
    left, top = round((wide - width) / 2), round((tall - height) / 2)
    cut = planes[0, :, top : top + height, left : left + width]
    return np.ascontiguousarray(cut.permute(1, 2, 0).numpy())
