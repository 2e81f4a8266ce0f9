"""Images that a program passes to `vitft.load(...)`: their types, names and batches."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np
import torch
from PIL import Image

from vitft.data.images import in_chunks, read_bytes
from vitft.data.signatures import looks_like
from vitft.predict.engine import LoadedImage
from vitft.system.errors import ImageError, UsageError
from vitft.system.text import shell_quote

Picture = (
    str
    | os.PathLike[str]
    | bytes
    | bytearray
    | memoryview
    | IO[bytes]
    | Image.Image
    | np.ndarray[Any, Any]
    | torch.Tensor
)
"""A path, the bytes of an image file, an open file, a PIL image, an array or a tensor.

An array is uint8 of shape (H, W, 3) or (H, W). A tensor has the shape (3, H, W), (1, H, W),
(H, W, 3) or (H, W) and contains uint8 values, or floats from 0 to 1 without mean and std
normalisation. If the shape is ambiguous, the first dimension is assumed to be the channels.
"""

PICTURE_TYPES = (
    "a path, the bytes of an image file, an open file, a PIL image, a uint8 array or a tensor, or "
    "a list of these"
)


def read_picture(picture: Picture) -> Picture:
    """Return the bytes of an image file, given its path, its bytes or the open file.

    Any other image is returned unchanged. An ImageError says why there is no image at a path.
    """
    source: Any = getattr(picture, "file", picture)  # an upload of FastAPI has its file there
    if hasattr(source, "read"):
        with contextlib.suppress(AttributeError, OSError):  # a stream cannot go back
            source.seek(0)  # as PIL does: a buffer that was just written is at its end
        if not isinstance(data := source.read(), bytes):
            raise UsageError("an image file is open in text mode", fix='use open(path, "rb")')
        return data
    if isinstance(picture, bytearray | memoryview):
        return bytes(picture)
    if not isinstance(picture, str | os.PathLike):
        return picture
    name, reason = os.fspath(picture), ""
    if os.path.isdir(name):  # noqa: PTH112 - the name may contain a null character
        reason = 'a folder: pass its files, e.g. sorted(pathlib.Path("photos").glob("*.jpg"))'
    elif _is_base64(name):
        reason = "base64 text: pass the bytes, base64.b64decode(text)"
        reason = reason.replace("text)", 'text.partition(",")[2])') if name[0] == "d" else reason
    elif "://" in name:
        reason = "an address: pass the bytes of the image"
        reason += f", or use `vitft predict {shell_quote(name)}`" if name.startswith("http") else ""
    elif "*" in name:
        reason = 'a pattern: pass its files, e.g. sorted(glob.glob("photos/*.jpg"))'
    if reason and not os.path.isfile(name):  # noqa: PTH113
        fix = "pass the path of an image, or a list of paths"
        raise ImageError(name[:200], reason, fix=fix)
    return read_bytes(picture)


def picture_name(index: int, picture: Picture) -> str:
    """Return the path of an image, or its index if it has no path."""
    name = os.fspath(picture) if isinstance(picture, str | os.PathLike) else ""
    return str(index) if not name or _is_base64(name) else name


def _is_base64(text: str) -> bool:
    """Return whether a text is an image in base64 rather than a path."""
    return "base64" in looks_like(text[:64].encode("utf-8", "replace"))


def numbered_batches(images: object, size: int) -> Iterator[list[tuple[int, Any]]]:
    """Yield batches of `size` images with their indices; `images` may also be a single image."""
    given: Any = images
    if isinstance(given, np.ndarray) and given.dtype.kind in "UO" and given.ndim < 2:
        given = given.tolist()  # paths or images; a single one without dimensions
    if isinstance(given, Mapping) or hasattr(given, "columns"):  # a table of pandas or polars
        raise UsageError(
            f"images have unsupported type {type(given).__name__}",
            fix='pass its images, e.g. list(images["path"])',
        )
    is_array = isinstance(given, np.ndarray | torch.Tensor)
    kinds = (str, os.PathLike, bytes, bytearray, memoryview, Image.Image, LoadedImage)
    is_file = hasattr(given, "read") or hasattr(given, "file")
    if is_file or isinstance(given, kinds) or (is_array and given.ndim <= 3):
        given = [given]
    if not isinstance(given, Iterable):
        raise UsageError(
            f"images have unsupported type {type(given).__name__}", fix=f"pass {PICTURE_TYPES}"
        )
    yield from in_chunks(enumerate(given), size)
