"""Conversion of PIL images, arrays and tensors to images in RGB. Does not import torch."""

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitft.data.images import DECODER_ERRORS, ORIENTATIONS, GreyRange, orientation_of, to_rgb
from vitft.system.errors import ImageError

if TYPE_CHECKING:
    from torch import Tensor


def upright_rgb(picture: Image.Image, name: str, grey_range: GreyRange = ()) -> Image.Image:
    """Convert a PIL image to upright RGB by its EXIF data; raise an ImageError if it is damaged."""
    try:
        picture.load()
        turn = ORIENTATIONS.get(orientation_of(picture) or 1)
        rgb = to_rgb(picture, grey_range)
        return rgb if turn is None else rgb.transpose(turn)
    except DECODER_ERRORS as error:
        raise ImageError(name, f"damaged image ({error})") from error


def array_from_tensor(tensor: "Tensor", name: str) -> np.ndarray[Any, Any]:
    """Convert a tensor to an array (H, W, 3) or (H, W) (ImageError for floats beyond 0 to 1)."""
    values = tensor.detach().cpu()
    if values.ndim == 3 and values.shape[0] in (1, 3):
        values = values.permute(1, 2, 0)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.is_floating_point() and values.numel():
        low, high = values.min().item(), values.max().item()
        if not 0 <= low <= high <= 1:  # False for NaN
            raise ImageError(
                name,
                f"a tensor with values from {low:.3g} to {high:.3g} cannot be used as an image: "
                "pass uint8 values, or floats from 0 to 1 without normalisation",
            )
        values = (values.float() * 255).round().byte()
    return values.numpy()


def image_from_array(array: np.ndarray[Any, Any], name: str) -> Image.Image:
    """Convert a uint8 array (H, W, 3) or (H, W) to an image (ImageError for any other array)."""
    has_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    if array.dtype != np.uint8 or not has_shape or not array.size:
        raise ImageError(
            name,
            f"an array of type {array.dtype} and shape {array.shape} cannot be used as an image: "
            "pass uint8 of shape (H, W, 3) for RGB or (H, W) for greyscale",
        )
    return Image.fromarray(array)


# small copies of images as JPEG, without metadata -------------------------------------------------

THUMBNAIL_SIDE = 160  # default length of a thumbnail's longer side in pixels


def thumbnail_jpeg(image: Image.Image, side: int = THUMBNAIL_SIDE) -> bytes:
    """Return a JPEG of at most `side` pixels per side, without EXIF data or colour profile."""
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
