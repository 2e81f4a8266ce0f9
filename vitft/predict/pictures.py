"""Images that a program passes to `vitft.load(...)`: their types, names and batches."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from vitft.data.images import read_bytes
from vitft.system.errors import ImageError, UsageError

Picture = str | os.PathLike[str] | bytes | Image.Image | np.ndarray[Any, Any] | torch.Tensor
"""A path, the bytes of an image file, a PIL image, a uint8 array (H, W, 3) or (H, W), or a tensor.

A tensor has the shape (3, H, W), (1, H, W), (H, W, 3) or (H, W) and contains uint8 values, or
floats from 0 to 1 without mean and std normalisation. If the shape is ambiguous, the first
dimension is assumed to be the channels.
"""


PICTURE_TYPES = (
    "a path, the bytes of an image file, a PIL image, a uint8 array or a tensor, or a list of these"
)


def read_picture(path: str | os.PathLike[str]) -> bytes:
    """Read an image file.

    Raises:
        ImageError: The path is that of a folder or a pattern, or the file cannot be read.
    """
    name = os.fspath(path)
    if os.path.isdir(name):  # noqa: PTH112 - the name may contain a null character
        reason = 'a folder; pass its files, e.g. sorted(pathlib.Path("photos").glob("*.jpg"))'
        raise ImageError(name, reason, fix="pass the path of an image, or a list of paths")
    try:
        return read_bytes(path)
    except ImageError as error:
        if "*" not in name:
            raise
        reason = 'a pattern; pass its files, e.g. sorted(glob.glob("photos/*.jpg"))'
        raise ImageError(
            name, reason, fix="pass the path of an image, or a list of paths"
        ) from error


def picture_name(index: int, picture: Picture) -> str:
    """Return the path of an image, or its index if it has no path."""
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else str(index)


def numbered_batches(
    images: Picture | Iterable[Picture], size: int
) -> Iterator[list[tuple[int, Picture]]]:
    """Yield batches of `size` images with their indices; `images` may also be a single image.

    Raises:
        UsageError: `images` is neither an image nor iterable.
    """
    is_stack = isinstance(images, np.ndarray | torch.Tensor) and images.ndim > 3
    single = (str, os.PathLike, bytes, Image.Image, np.ndarray, torch.Tensor)
    if isinstance(images, single) and not is_stack:
        images = [images]
    if not isinstance(images, Iterable):
        raise UsageError(
            f"images have unsupported type {type(images).__name__}", fix=f"pass {PICTURE_TYPES}"
        )
    numbered = enumerate(cast("Iterable[Picture]", images))
    while batch := list(islice(numbered, size)):
        yield batch
