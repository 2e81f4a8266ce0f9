"""Small copies of images as JPEG, without metadata."""

import base64
import io

from PIL import Image

THUMBNAIL_SIDE = 160
"""Default length of a thumbnail's longer side in pixels."""


def thumbnail_jpeg(image: Image.Image, side: int = THUMBNAIL_SIDE) -> bytes:
    """Return a small JPEG of an image, without EXIF data, comments or colour profile.

    Its longer side has at most `side` pixels; a smaller image keeps its size.
    """
    if max(image.size) <= side:
        small = image.copy()
    else:
        size = thumbnail_size(image.size, side)
        small = image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    small.info.clear()
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=82, optimize=True)
    return buffer.getvalue()


def thumbnail_size(size: tuple[int, int], side: int = THUMBNAIL_SIDE) -> tuple[int, int]:
    """Return a width and height scaled so that the longer side has `side` pixels."""
    longest = max(size)
    return max(1, round(size[0] * side / longest)), max(1, round(size[1] * side / longest))


def jpeg_uri(jpeg: bytes) -> str:
    """Return the bytes of a JPEG file as a data URI, for an HTML page."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
