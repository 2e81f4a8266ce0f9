"""Safe decoding of untrusted image files, and the one pass in which every file is read.

Eight formats are recognised by their first bytes. Each has one decoder, from Pillow or, for HEIC,
from pillow-heif; no external program is started. The size is checked before pixels are decoded, and
an incomplete file raises an error. As in timm and torchvision, colour profiles are ignored, and
only the first of several frames is used.

The caller of a pass over a folder provides a function that computes anything else that is needed
from each image, such as features or a fingerprint. This module does not import torch.
"""

import base64
import contextlib
import ctypes
import errno
import functools
import hashlib
import io
import logging
import os
import re
import struct
import sys
import time
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime
from itertools import chain, compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import simplejpeg
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    _imaging,
)

from vitft.data.arrays import array_member, no_image_reason
from vitft.data.copies import copy_member
from vitft.data.image_table import Images, Row, pack
from vitft.data.signatures import FORMAT_BY_SUFFIX, SUPPORTED, identify_format
from vitft.system.console import NOTE
from vitft.system.errors import DataError, ImageError, UsageError
from vitft.system.files import open_regular, read_regular
from vitft.system.imports import missing_library_command, require_extra
from vitft.system.text import count, describe_os_error, listing, parse_time

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# conversion of decoded images to RGB, including images with more than 8 bits per channel ----------

GreyRange = tuple[float, ...]
"""Values shown as black and as white in images with more than 8 bits per channel. If empty, each
file type has its own fixed range."""
_TIFF = TiffImagePlugin.TiffImageFile
_BITS_PER_SAMPLE = 0x0102
_TAIL_PERCENT = 0.1
"""Percentage of outliers (e.g. defective pixels) to expect at each end of an image's values."""


_ValueFacts = tuple[str, float, float, float, float]
"""Type of the values of an image, e.g. `16-bit` or `float`, its lowest value, those below and above
which `_TAIL_PERCENT` percent of the values lie, and its highest value."""


def _to_rgb(
    image: Image.Image, grey_range: GreyRange = (), lower: Image.Image | None = None
) -> Image.Image:
    """Convert an image to RGB; of 16-bit colour, it has the upper 8 bits and `lower` the others."""
    if _is_wide(image):
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


def _is_wide(image: Image.Image) -> bool:
    """Return whether an image has a single channel with more than 8 bits per value."""
    return image.mode == "F" or image.mode.startswith("I")


def grey_levels(image: Image.Image, grey_range: GreyRange = ()) -> Pixels:
    """Return the 8-bit grey levels (height, width) of an image with more than 8 bits per pixel."""
    values = np.asarray(image)
    if grey_range:
        greys = _scaled(values, *grey_range)
    elif image.mode == "F":
        values = np.nan_to_num(values, nan=0.0, posinf=255.0, neginf=0.0)
        scale = 255 if values.max() <= 1 else 1
        greys = np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)
    else:
        bits = _bits_of(image)
        greys = (np.clip(values, 0, 2**bits - 1) >> (bits - 8)).astype(np.uint8)
    if isinstance(image, _TIFF) and image.tag_v2.get(_PHOTOMETRIC) == 0:
        greys = 255 - greys  # 0 is white, which Pillow heeds up to 8 bits
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        greys[values == transparent] = 255
    return greys


def _scaled(values: np.ndarray[Any, Any], low: float, high: float) -> Pixels:
    """Map values linearly from `low`..`high` to 0..255, with rounding and clipping."""
    exact = np.float64 if values.dtype.itemsize == 4 and values.dtype.kind in "iu" else np.float32
    scale = 255 / (high - low)
    levels = np.subtract(values, low, dtype=exact)
    np.nan_to_num(levels, copy=False, nan=0.0)
    np.clip(levels, 0, high - low, out=levels)
    levels *= scale
    return np.rint(levels, out=levels).astype(np.uint8)


def _bits_of(image: Image.Image) -> int:
    """Return the bits per pixel (8 to 16) of an integer image for which `is_wide` is True."""
    if not isinstance(image, _TIFF):
        return 16
    sample = image.tag_v2.get(_BITS_PER_SAMPLE, 16)
    return min(max(8, sample[0] if isinstance(sample, tuple) else sample), 16)


def _value_facts(image: Image.Image, lower: Image.Image | None = None) -> _ValueFacts | None:
    """Return statistics of the values, or None if none is finite. For `lower`, see `_to_rgb`."""
    values = (np.asarray(image) if lower is None else _wide_colours(image, lower)).ravel()
    if image.mode == "F":
        values = values[np.isfinite(values)]
    if not len(values):
        return None
    kind = {"F": "float", "I": "32-bit"}.get(image.mode, f"{_bits_of(image)}-bit")
    low, high = np.percentile(values, (_TAIL_PERCENT, 100 - _TAIL_PERCENT))
    return kind, float(values.min()), float(low), float(high), float(values.max())


# layouts of 16-bit colour and of TIFF files that Pillow reads incompletely or wrongly by itself ---

_OTHER_BYTE = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
"""Byte order whose upper byte is the lower byte of the given one; N is that of the machine."""
_PHOTOMETRIC, _SAMPLES_PER_PIXEL, _PLANAR, _EXTRA_SAMPLES = 0x0106, 0x0115, 0x011C, 0x0152


def _change_raw_mode(
    image: ImageFile.ImageFile, change: Callable[[str], str] = lambda raw: raw
) -> str:
    """Change the raw mode of an image that is opened but not loaded, and return it."""
    pairs = [(t, t.args if isinstance(t.args, tuple) else (t.args,)) for t in image.tile]
    image.tile = [tile._replace(args=(change(args[0]), *args[1:])) for tile, args in pairs]
    return change(pairs[0][1][0]) if pairs else ""


def _correct_raw_mode(image: ImageFile.ImageFile) -> bool:
    """Correct the raw mode of a misread TIFF, and return whether 16-bit colour can be read."""
    if image.format not in ("PNG", "TIFF"):
        return False
    raw, lost = _change_raw_mode(image), ""
    if isinstance(image, _TIFF) and raw:
        tags, mode = image.tag_v2, image.mode
        is_separate, bits = tags.get(_PLANAR) == 2, {*tags.get(_BITS_PER_SAMPLE, (1,))}
        if image.tile[0].codec_name == "libtiff":
            # libtiff has already put the bytes of signed and float values in order
            _change_raw_mode(image, lambda raw: re.sub(r"^([IF];\d+)B?([SF])$", r"\1N\2", raw))
            is_wrong = mode == "LA" or (mode == "RGBA" and len(tags.get(_EXTRA_SAMPLES, ())) != 1)
            lost = raw * is_separate
        elif is_wrong := is_separate and (bits != {8} or tags.get(_PHOTOMETRIC) == 0):
            is_wrong = bits != {16} or mode not in ("RGB", "RGBA")
            order = "L" if tags.prefix == b"II" else "B"
            image.tile = image.tile[: len(mode) * len(image.tile) // tags[_SAMPLES_PER_PIXEL]]
            raw = _change_raw_mode(image, lambda raw: f"{raw};16{order}")
        if is_separate and is_wrong:
            raise ValueError("unsupported separate planes")
    return raw != lost and re.fullmatch(r"(RGB|RGBA|RGBX|LA|R);16[LBN]", raw) is not None


# safe decoding of untrusted image files to upright RGB images -------------------------------------

MAX_PIXELS = 100_000_000
_Decoder = Callable[[io.BytesIO, str], ImageFile.ImageFile]
Convert = Callable[[Image.Image, Image.Image | None], Image.Image]
"""Function that converts a decoded image to RGB, given the lower bits of 16-bit colour."""
_DECODERS: Mapping[str, _Decoder] = {
    "JPEG": JpegImagePlugin.JpegImageFile,  # decodes the first image of a multi-picture file (MPO)
    "PNG": PngImagePlugin.PngImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "TIFF": _TIFF,
    "AVIF": AvifImagePlugin.AvifImageFile,
}
# Errors that Pillow raises for damaged bytes, found by mutation tests. Its own fuzzers list fewer.
DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, AttributeError, EOFError,
    OverflowError, ZeroDivisionError, NotImplementedError, RuntimeError, AssertionError,
    MemoryError, struct.error, zlib.error,
)  # fmt: skip
# Those whose messages tell nothing about the file
_INTERNAL_ERRORS = (
    TypeError, AttributeError, LookupError, ArithmeticError, AssertionError, struct.error,
)  # fmt: skip
_TURN = Image.Transpose
_ORIENTATIONS: Mapping[int, Image.Transpose] = {
    2: _TURN.FLIP_LEFT_RIGHT, 3: _TURN.ROTATE_180, 4: _TURN.FLIP_TOP_BOTTOM, 5: _TURN.TRANSPOSE,
    6: _TURN.ROTATE_270, 7: _TURN.TRANSVERSE, 8: _TURN.ROTATE_90,
}  # fmt: skip
_UNSUPPORTED = re.compile(
    "not( yet)? (supported|implemented)|unsupported|cannot handle|unknown (raw|pixel)"
    "|Invalid value for samples|string index",
    re.I,
)
"""Messages of Pillow and its libraries about sound files of a kind that they do not read."""
ORIENTATION, _EXIF, _TIME_TAKEN = 0x0112, 0x8769, 0x9003
OPEN_ERRORS: Mapping[int | None, str] = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "not found"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "permission denied"),
    **dict.fromkeys((errno.EISDIR, errno.ENXIO), "not a regular file"),
    errno.ELOOP: "circular symbolic link",
}


class _Decoded(NamedTuple):
    """An upright RGB image without metadata, remarks such as `rotated by EXIF`, and its date."""

    image: Image.Image
    odd: tuple[str, ...]
    time: datetime | None


def open_image(
    path: str | os.PathLike[str],
    *,
    max_pixels: int = MAX_PIXELS,
    grey_range: GreyRange = (),
    sha256: str = "",
) -> Image.Image:
    """Read a file as upright RGB (ImageError if it is damaged or its digest is not `sha256`)."""
    data = read_bytes(path, max_pixels=max_pixels)
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise ImageError(os.fspath(path), "its content has changed")
    return decode(data, os.fspath(path), max_pixels=max_pixels, grey_range=grey_range).image


def read_bytes(path: str | os.PathLike[str], *, max_pixels: int = MAX_PIXELS) -> bytes:
    """Read a file, or an image in an array dataset or a copy; raise an ImageError if that fails."""
    name = os.fspath(path)
    if reason := no_image_reason(name):
        raise ImageError(name, reason)
    limit = 8 * max_pixels + 2**26  # bytes: four uncompressed 16-bit channels and ample metadata
    try:
        return read_regular(name, limit=limit)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            inside = copy_member(name)
            inside = array_member(name) if inside is None else inside
            if inside is not None:
                return inside
        reason = OPEN_ERRORS.get(error.errno, f"cannot be read: {describe_os_error(error)}")
        fix = "check the path" if error.errno == errno.ENOENT else "replace or remove the file"
        raise ImageError(name, reason, fix=fix) from error
    except ValueError as error:  # NUL or surrogate in the file name
        raise ImageError(name, "not found") from error


def decode(
    data: bytes,
    name: str,
    *,
    max_pixels: int = MAX_PIXELS,
    grey_range: GreyRange = (),
    convert: Convert | None = None,
) -> _Decoded:
    """Decode the bytes of an image file, and collect remarks on the decoding.

    `convert` replaces the conversion of the pixels to RGB.

    Raises:
        ImageError: The bytes are not a complete image of a supported format and of at most
            `max_pixels`, or its decoder is not installed; the message begins with `name`.
    """
    kind = identify_format(data)
    if kind not in SUPPORTED:
        raise ImageError(name, kind if data else "empty file")
    if kind == "HEIC":
        try:
            require_extra("heic", feature="HEIC")
        except UsageError as error:
            raise ImageError(name, f"{error.problem}: {error.fix}") from error
        from pillow_heif import HeifImageFile

        decoder: _Decoder = HeifImageFile
    else:
        decoder = _DECODERS[kind]
    convert = convert or (lambda image, lower: _to_rgb(image, grey_range, lower))
    for _ in range(3):
        _silence_pillow()
        try:
            return _decode_as(kind, decoder, convert, data, name, max_pixels)
        except Image.DecompressionBombError as error:  # Pillow's own limit within a decoder
            raise ImageError(name, "image too large: too many pixels in a frame or tile") from error
        except DECODER_ERRORS as error:
            raise ImageError(name, reason_for(error, kind, data)) from error
        except Warning:  # another thread has just restored its own warning filters
            continue
    raise ImageError(name, f"damaged {kind}")


def _silence_pillow() -> None:
    """Ignore the messages of Pillow and libtiff, and Pillow's warnings, even with `-W error`."""
    _silence_libtiff()
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # its errors do not name the file
    # `catch_warnings` is not thread-safe: a filter is put first in the global list and left there
    wanted = ("ignore", None, Warning, re.compile(r"PIL\."))
    if not warnings.filters or warnings.filters[0][:4] != wanted:
        warnings.filterwarnings("ignore", module=r"PIL\.")


@functools.cache
def _silence_libtiff() -> None:
    """Prevent the libtiff of Pillow from printing to stderr; its errors are also exceptions."""
    with contextlib.suppress(OSError, AttributeError):  # on Windows, it exports nothing
        libtiff = ctypes.CDLL(_imaging.__file__)
        for set_handler in (libtiff.TIFFSetErrorHandler, libtiff.TIFFSetWarningHandler):
            set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
            set_handler(None)


def _decode_as(
    kind: str, decoder: _Decoder, convert: Convert, data: bytes, name: str, max_pixels: int
) -> _Decoded:
    """Decode bytes of the format `kind` with `decoder`, without catching its exceptions."""
    _check_size(_declared_size(kind, data), name, max_pixels)
    image = decoder(io.BytesIO(data), "")
    _check_size(image.size, name, max_pixels)
    rotated = image.tag_v2.get(ORIENTATION, 1) if isinstance(image, _TIFF) else 1
    lower: Image.Image | None = None
    if _correct_raw_mode(image):
        _correct_raw_mode(again := decoder(io.BytesIO(data), ""))
        # The lower 8 bits of each value in place of the upper ones
        if _change_raw_mode(again) == "LA;16B":  # read as four bytes: grey and alpha, upper first
            _change_raw_mode(again, lambda _: "RGBA")
            _, grey, _, alpha = again.split()
            lower = Image.merge("RGBA", (grey, grey, grey, alpha))
        else:
            _change_raw_mode(again, lambda raw: raw[:-1] + _OTHER_BYTE[raw[-1]])
            again.load()
            lower = again
    image.load()

    odd = _decoding_remarks(kind, image, name)
    if lower is None and isinstance(image, _TIFF) and not _is_wide(image) and _bits_of(image) > 8:
        odd.append("16-bit colour reduced to 8 bits")
    upright = convert(image, lower)
    orientation = _orientation_of(image) or 1  # 1 for a TIFF, which Pillow has already rotated
    if orientation in _ORIENTATIONS:
        upright = upright.transpose(_ORIENTATIONS[orientation])
    if orientation in _ORIENTATIONS or rotated in _ORIENTATIONS:
        odd.append("rotated by EXIF")
    upright.info = {}  # GPS coordinates must not appear in reports
    return _Decoded(upright, tuple(odd), _time_of(image))


def _decoding_remarks(kind: str, image: ImageFile.ImageFile | None, name: str) -> list[str]:
    """Return remarks on an opened image's mode, suffix, number of frames and damaged EXIF data.

    Without an image, it is one RGB frame without metadata.
    """
    odd = [f"converted from {image.mode}"] if image and image.mode != "RGB" else []
    suffix = Path(name).suffix.lower()
    if FORMAT_BY_SUFFIX.get(suffix, kind) != kind:
        odd.append(f"content is {kind}, but the suffix is {suffix}")
    if image is None:
        return odd
    if _has_more_frames(image):
        is_film = kind in ("GIF", "PNG", "WebP")
        odd.append("animated, first frame used" if is_film else "several images, first one used")
    if _orientation_of(image) is None:
        odd.append("damaged EXIF ignored")
    if isinstance(image, _TIFF):
        bands, used = image.tag_v2.get(_SAMPLES_PER_PIXEL, 1), len(image.getbands())
        if bands > used:
            odd.append(f"{bands} bands, {used} used")
        elif image.mode == "RGBA" and _EXTRA_SAMPLES not in image.tag_v2:
            odd.append("4 bands, the last one used as transparency")
    return odd


def _check_size(size: tuple[int, int] | None, name: str, max_pixels: int) -> None:
    if size is not None and size[0] * size[1] > max_pixels:
        found, limit = (
            f"{n / 1e6:,.{0 if n >= 10**7 else 2}f} Mpx" for n in (size[0] * size[1], max_pixels)
        )
        raise ImageError(name, f"image too large: {size[0]}x{size[1]} = {found}, limit {limit}")


def _has_more_frames(image: ImageFile.ImageFile) -> bool:
    """Return whether an image has a second frame or page, even a damaged one."""
    try:
        return bool(getattr(image, "is_animated", False)) or "mp" in image.info
    except DECODER_ERRORS:
        return True


def has_more_pages(data: bytes) -> bool:
    """Return whether the bytes are a TIFF file with more than one page."""
    _silence_pillow()
    try:
        return identify_format(data) == "TIFF" and _has_more_frames(_TIFF(io.BytesIO(data)))
    except DECODER_ERRORS:
        return False


def _orientation_of(image: Image.Image) -> int | None:
    """Return the EXIF or XMP orientation: 1 if there is none, None if the metadata is damaged."""
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except DECODER_ERRORS:
        return None
    return orientation if isinstance(orientation, int) else None


def _time_of(image: Image.Image) -> datetime | None:
    """Return when a photo was taken, if its EXIF data tell, on the clock of the camera."""
    taken = parse_time(str(image.getexif().get_ifd(_EXIF).get(_TIME_TAKEN, "")).strip("\0 "))
    return taken and taken.replace(tzinfo=None)


def reason_for(error: BaseException, kind: str, data: bytes) -> str:
    """Return a short reason why Pillow could not decode the bytes."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    declared = int.from_bytes(data[4:8], "little") + 8 if kind == "WebP" else 0
    if declared > len(data):
        return f"truncated ({len(data)} of {declared} bytes)"
    text = " ".join(str(error).split())
    if "truncated" in text.lower() or _END_MARKERS.get(kind, b"") not in data[-64:]:
        return f"truncated (ends after {len(data)} bytes)"
    if kind == "TIFF" and text.isdigit():
        text = f"unsupported compression {text}"
    is_sound = _UNSUPPORTED.search(text) is not None
    if is_sound or kind in ("AVIF", "HEIC"):  # whose libraries often do not tell the two apart
        text = re.sub(f"^unsupported:? ({kind} )?", "", text, flags=re.I)
        state = "unsupported" if is_sound else "truncated, damaged or unsupported"
        return f"{state} {kind} ({text[:36]}): save it as 8-bit PNG, in grey or RGB"
    has_detail = text and not isinstance(error.__cause__ or error, _INTERNAL_ERRORS)
    return f"damaged {kind} ({text[:80]})" if has_detail else f"damaged {kind}"


_END_MARKERS: Mapping[str, bytes] = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "GIF": b";"}
"""Bytes that occur near the end of every complete file of a format."""


def _declared_size(kind: str, data: bytes) -> tuple[int, int] | None:
    """Return the size of a GIF or WebP, whose decoders allocate memory before they report it."""
    if kind == "GIF" and len(data) >= 10:
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if kind != "WebP" or len(data) < 30:
        return None
    chunk = data[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L":
        packed = int.from_bytes(data[21:25], "little")
        return 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


# conversion of PIL images, arrays and tensors -----------------------------------------------------


def upright_rgb(picture: Image.Image, name: str, grey_range: GreyRange = ()) -> Image.Image:
    """Convert a PIL image to upright RGB by its EXIF data; raise an ImageError if it is damaged."""
    layout = str(getattr(picture, "tile", ""))
    if grey_range and not _is_wide(picture) and re.search(";16[LBN]", layout):
        raise ImageError(name, "16-bit colour, which Pillow reduces to 8 bits: pass its path")
    try:
        picture.load()
        turn = _ORIENTATIONS.get(_orientation_of(picture) or 1)
        rgb = _to_rgb(picture, grey_range)
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
            problem = (
                f"a tensor with values from {low:.3g} to {high:.3g} cannot be used as an image"
            )
            fix = "pass uint8 values, or floats from 0 to 1 without normalisation"
            raise ImageError(name, f"{problem}: {fix}")
        values = (values.float() * 255).round().byte()
    return values.numpy()


def image_from_array(array: np.ndarray[Any, Any], name: str) -> Image.Image:
    """Convert a uint8 array (H, W, 3) or (H, W) to an image (ImageError for any other array)."""
    has_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    if array.dtype != np.uint8 or not has_shape or not array.size:
        problem = (
            f"an array of type {array.dtype} and shape {array.shape} cannot be used as an image"
        )
        fix = "pass uint8 of shape (H, W, 3) for RGB or (H, W) for greyscale"
        raise ImageError(name, f"{problem}: {fix}")
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


# decoding of many images in threads, with results in input order ----------------------------------

Argument = TypeVar("Argument")
_Mapped = TypeVar("_Mapped")
PATIENCE_S = 30.0  # seconds to wait for a file before logging a message that names it
_STALLED_S = 1.0  # seconds to wait after Ctrl-C for reads that are in progress


def decode_images(
    paths: Iterable[str | os.PathLike[str]],
    view: Callable[[int, Image.Image], Pixels],
    *,
    workers: int = 2,
    max_pixels: int = MAX_PIXELS,
    grey_range: GreyRange = (),
    digests: Sequence[str] = (),
) -> Generator[Pixels | ImageError, None, None]:
    """Open each image as upright RGB, and yield the result of `view(index, image)` or the error.

    `paths` may be infinite. `digests` are the SHA-256 of the files, if a change is an error. See
    `in_order` for `workers`.
    """

    def one(numbered: tuple[int, str | os.PathLike[str]]) -> Pixels | ImageError:
        number, path = numbered
        try:
            digest = digests[number] if digests else ""
            image = open_image(path, max_pixels=max_pixels, grey_range=grey_range, sha256=digest)
            return view(number, image)
        except ImageError as error:  # the new one has no traceback, which would keep the bytes
            return ImageError(os.fspath(path), error.reason)

    return in_order(one, enumerate(paths), workers=workers)


def _awaited(item: Any, future: Future[_Mapped]) -> _Mapped:  # noqa: ANN401
    """Return a result; if it takes long, log the name of its image, or the first of a batch."""
    waited, step = 0.0, PATIENCE_S
    while wait([future], timeout=step).not_done:  # on a slow disk or lost network share
        waited += step
        step = waited
        while isinstance(item, Sequence) and not isinstance(item, str) and len(item):
            item = next((part for part in item if not isinstance(part, int)), "")
        if name := "" if callable(item) else str(getattr(item, "path", item)):
            log.info(f"still waiting for {name} after {waited:.0f} s")
    return future.result()


def in_order(
    function: Callable[[Argument], _Mapped],
    items: Iterable[Argument],
    *,
    workers: int,
    ahead: int | None = None,
) -> Generator[_Mapped, None, None]:
    """Map a function over items in threads, yielding the results in order.

    At most `ahead` items are in progress, by default four per worker. With no workers, the calling
    thread does the work. When the generator ends, for whatever reason, no thread keeps running;
    only a read that has stalled for `_STALLED_S` after Ctrl-C is left to its thread.
    """
    if workers <= 0:
        yield from map(function, items)
        return
    limit = max(1, 4 * workers if ahead is None else ahead)
    pending: deque[tuple[Argument, Future[_Mapped]]] = deque()
    pool, is_stalled = ThreadPoolExecutor(workers, thread_name_prefix="vitft-decode"), False
    running = set[object]()  # one for each call in progress

    def call(item: Argument) -> _Mapped:
        running.add(mark := object())
        try:
            return function(item)
        finally:
            running.discard(mark)

    try:
        for item in items:
            pending.append((item, pool.submit(call, item)))
            if len(pending) >= limit or pending[0][1].done():
                yield _awaited(*pending.popleft())
        while pending:
            yield _awaited(*pending.popleft())
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        is_stalled = True  # if another signal arrives
        for _ in range(100):
            time.sleep(_STALLED_S / 100)  # at least once: a thread may be about to begin
            if not running:
                break
        is_stalled = bool(running)
        raise
    finally:
        pool.shutdown(wait=not is_stalled, cancel_futures=True)


def in_chunks(items: Iterable[Argument], size: int) -> Iterator[list[Argument]]:
    """Divide items into consecutive lists of `size`; the last may be shorter."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])


def overlapped(
    items: Iterable[Argument], start: Callable[[Argument], Callable[[], _Mapped]], *, ahead: int = 2
) -> Generator[_Mapped, None, None]:
    """Start work on each item, and finish it in another thread while later items are started.

    `start` is called in the calling thread, e.g. to queue work on a GPU, and returns a function
    that waits for the result. At most `ahead` items are unfinished when the next one is taken.
    """
    return in_order(lambda finish: finish(), map(start, items), workers=1, ahead=ahead + 1)


_Batch = tuple[list[int], Pixels, list[tuple[int, ImageError]]]
"""Indices of images, their pixels (B, H, W, 3), and indices and errors of files that failed."""


def stack_batches(results: Iterable[Pixels | ImageError], size: int) -> Iterator[_Batch]:
    """Group the results of `decode_images` into batches of `size` images; the last may be smaller.

    An error is in the batch of the next readable image; the last batch may contain only errors.
    """
    rows: list[tuple[int, Pixels]] = []
    failed: list[tuple[int, ImageError]] = []

    def batch() -> _Batch:
        pixels = np.stack([row for _, row in rows]) if rows else np.empty((0, 0, 0, 3), np.uint8)
        return [number for number, _ in rows], pixels, failed

    for number, result in enumerate(results):
        if isinstance(result, ImageError):
            failed.append((number, result))
            continue
        rows.append((number, result))
        if len(rows) == size:
            yield batch()
            rows, failed = [], []
    if rows or failed:
        yield batch()


# fast decoding of ordinary JPEGs, used to compute features in reduced precision -------------------


_Upright = tuple[Pixels, JpegImagePlugin.JpegImageFile | None]
"""Pixels (H, W, 3) of an upright JPEG, with its header if that may hold more than a size."""


def decode_upright(data: bytes, *, max_pixels: int) -> _Upright | None:
    """Decode an ordinary undamaged JPEG, or return None for other data."""
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        place = data.find(b"Exif\0\0")
        odd = place > 65536 or b"tiff:Orientation" in data or colours != "YCbCr"  # left to Pillow
        if odd or height * width > max_pixels or max(height, width) > 20 * min(height, width):
            return None
        header = None
        if place >= 0 or b"MPF\0" in data:  # Pillow parses headers in Python, in 0.14 ms
            # Without EXIF data, the header matters only to a remark
            with (
                contextlib.suppress(*DECODER_ERRORS if place < 0 else ()),
                JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as header,
            ):
                if header.getexif().get(ORIENTATION, 1) != 1:
                    return None
        return simplejpeg.decode_jpeg(data, strict=True), header
    except DECODER_ERRORS:
        return None


# inspection of image files: each file is read, hashed and decoded once ----------------------------

_Inspected = TypeVar("_Inspected")


class OpenedImage:
    """An image file's bytes, decoded at most once (if `fast`, with simplejpeg where possible)."""

    def __init__(
        self, file: Row, data: bytes, *, max_pixels: int, fast: bool, grey_range: GreyRange = ()
    ) -> None:
        self.file, self.data = file, data
        self.max_pixels, self.grey_range, self.fast = max_pixels, grey_range, fast
        self.sha256 = hashlib.sha256(data).hexdigest()

    @functools.cached_property
    def _upright(self) -> _Upright | None:
        return decode_upright(self.data, max_pixels=self.max_pixels) if self.fast else None

    @property
    def jpeg(self) -> Pixels | None:
        """Pixels (H, W, 3) of an undamaged upright JPEG, or None if Pillow must decode the file."""
        return self._upright and self._upright[0]

    @functools.cached_property
    def decoded(self) -> _Decoded:
        """Image as decoded by Pillow, with remarks; raise an ImageError if that is impossible."""
        return decode(
            self.data, self.file.path, max_pixels=self.max_pixels, grey_range=self.grey_range
        )

    @property
    def image(self) -> Image.Image:
        return self.decoded.image if self.jpeg is None else Image.fromarray(self.jpeg)

    def facts(self) -> Row:
        if self._upright is None:
            image, odd, taken = self.decoded
            width, height = image.size
        else:
            pixels, header = self._upright
            (height, width), odd, taken = pixels.shape[:2], (), None
            # Damaged metadata are not a remark: the pixels were decoded without an error
            with contextlib.suppress(*DECODER_ERRORS):
                odd = tuple(_decoding_remarks("JPEG", header, self.file.path))
                taken = None if header is None else _time_of(header)
        file = self.file._replace(sha256=self.sha256, width=width, height=height, odd=odd)
        return file._replace(time=taken)


def inspect_file(
    root: str,
    file: Row,
    function: Callable[[OpenedImage], _Inspected],
    *,
    max_pixels: int = MAX_PIXELS,
    grey_range: GreyRange = (),
    fast: bool = False,
) -> _Inspected | ImageError:
    """Return the result of `function` for a file, or the error with the path relative to `root`."""
    try:
        data = read_bytes(Path(root, file.path), max_pixels=max_pixels)
        return function(
            OpenedImage(file, data, max_pixels=max_pixels, grey_range=grey_range, fast=fast)
        )
    except ImageError as error:  # the new one has no traceback, which would keep the bytes
        return ImageError(file.path, error.reason)


def inspect_folder(
    folder: Images,
    *,
    max_pixels: int = MAX_PIXELS,
    workers: int = 2,
    allow_bad: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Images:
    """Read and fully decode every file of a folder once, in `workers` threads (see `collect`)."""
    root = os.fspath(folder.root)
    results = in_order(
        lambda file: inspect_file(root, file, OpenedImage.facts, max_pixels=max_pixels),
        folder.rows,
        workers=workers,
    )
    with contextlib.closing(results):
        return collect(folder, results, allow_bad=allow_bad, progress=progress)


def collect(
    images: Images,
    results: Iterable[Row | ImageError],
    *,
    allow_bad: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> Images:
    """Return the readable images, given the results of a pass; call `progress(1)` after each.

    Raises:
        DataError: Over ten files and a tenth of all are unreadable, unless `allow_bad` is set.
    """
    bad = [*images.bad]

    def readable() -> Iterator[Row]:
        for result in results:
            if isinstance(result, ImageError):
                bad.append((result.path, result.reason))
            else:
                yield result
            progress(1)

    rows = pack(readable())
    bad.sort()
    total = len(rows) + len(bad)
    if not allow_bad and len(bad) > max(10, total / 10):
        examples = "; ".join(f"{path}: {reason}" for path, reason in bad[:3])
        fix = "repair or remove them, or ignore them with --set data.allow_bad=true"
        commands = (f"run {c}" for _, why in bad if (c := missing_library_command(why)))
        ways = (why.partition("): ")[2] for _, why in bad if "unsupported" in why)
        fix = ", or ".join([*islice(chain(commands, filter(None, ways)), 1), fix])
        problem = f"{len(bad):,} of {total:,} files in {images.source} are unreadable ({examples})"
        raise DataError(problem, fix=fix)
    return replace(images, rows=rows, bad=tuple(bad))


def merge_inspections(images: Images, shards: Iterable[Images], *, allow_bad: bool) -> Images:
    """Merge the inspections of shards of the images, each in their order (see `collect`)."""
    bad, first = dict[str, str](), dict[str, tuple[Row, Iterator[Row]]]()

    def take(rows: Iterator[Row]) -> None:
        for row in islice(rows, 1):
            first[row.path] = row, rows

    for shard in shards:
        bad |= shard.bad
        take(iter(shard.rows))

    def merged() -> Iterator[Row | ImageError]:
        for path in (row.path for row in images.rows):
            if path in bad:
                yield ImageError(path, bad[path])
            else:
                row, rest = first.pop(path)
                take(rest)
                yield row

    return collect(images, merged(), allow_bad=allow_bad)


def describe_counts(bad: int, good: int, *, different: int) -> str:
    """Return e.g. `5 readable images (6 files, 1 unreadable; 4 different, 1 identical copy)`."""
    parts = [f"{count(good + bad, 'file')}, {bad:,} unreadable"] * (bad > 0)
    copies = count(good - different, "identical copy", "identical copies")
    parts += [f"{different:,} different, {copies}"] * (different < good)
    more = f" ({'; '.join(parts)})" if parts else ""
    return f"{count(good, 'readable image')}{more}"


def check_any_readable(inspected: Images) -> None:
    """Raise a DataError if no image is readable."""
    if not inspected.rows:
        path, reason = inspected.bad[0]
        fix = "check the paths with vitft check, or use other files"
        raise DataError(f"no image can be read: {path}: {reason}", fix=fix)


def log_inspection(inspected: Images) -> None:
    """Log notes, unreadable files and remarks; without `-v`, at most three lines."""
    bad = [f"skipped {path}: {reason}" for path, reason in inspected.bad[:10]]
    if len(inspected.bad) > 10:
        bad.append(f"skipped {count(len(inspected.bad) - 10, 'more unreadable file')}")
    warnings = (*inspected.warnings, *bad)
    for text in warnings:
        log.warning(text)
    remarks = Counter(remark for row in inspected.rows for remark in row.odd)
    odd = (f"{kind}: {count(number, 'image')}" for kind, number in sorted(remarks.items()))
    harmless = [text for text in inspected.notes if "no action is needed" in text]
    notes = [text for text in (*inspected.notes, *odd) if text not in harmless]
    notes.sort(key=lambda text: "--" not in text)
    for text in harmless:
        log.debug(text)
    for number, text in enumerate(notes, start=len(warnings)):
        log.log(logging.INFO if number < 3 else NOTE, text)


# value range of a dataset's images with more than 8 bits per channel ------------------------------
#
# The range is stored in the model's transform. Without it, 12-bit values in 16-bit files would use
# only 16 of 256 levels.

_MOST_MEASURED = 1000  # maximum number of images whose values are read


def measure_grey_range(
    folder: Images,
    *,
    max_pixels: int,
    workers: int = 2,
    own: Sequence[Row] | None = None,
    gather: Callable[[list[Any]], list[Any]] = list,
) -> GreyRange:
    """Return the value range of the training images with more than 8 bits per channel, and log it.

    The range is empty if there are no such images, if all their values are equal, or if their
    values have different types, which is reported in a warning. Only files with a PNG or TIFF
    suffix are opened. If several processes measure a folder together, each opens only the files in
    `own`, and `gather` joins the lists of all processes.
    """
    root = str(folder.root)
    paths = [
        f"{root}/{file.path}"
        for file in (folder.rows if own is None else own)
        if file.split in ("train", "") and may_be_wide(file.path)
    ]
    own_wide = [*compress(paths, in_order(_has_wide_header, paths, workers=workers))]
    wide = sorted(gather(own_wide))
    some = {*wide[:: -(-len(wide) // _MOST_MEASURED) or 1]}
    found = in_order(
        lambda path: _read_facts(path, max_pixels),
        [path for path in own_wide if path in some],
        workers=workers,
    )
    facts: list[_ValueFacts] = gather([one for one in found if one is not None])
    kinds = Counter(kind for kind, *_ in facts)
    if len(kinds) > 1:
        types = listing(
            f"{count(number, 'image')} with {kind} values" for kind, number in kinds.items()
        )
        log.warning(
            f"the images have values of different types ({types}), and each type is scaled by its "
            "own fixed range. Convert all images to one type to scale them by their measured range"
        )
    if len(kinds) != 1:
        return ()
    _, lowest, lower, upper, highest = zip(*facts, strict=True)
    low, high, inner = min(lowest), max(highest), (min(lower), max(upper))
    clips = ""
    if high - low > 4 * (inner[1] - inner[0]) > 0:  # with tails that are long compared to the rest
        (low, high), clips = inner, ", clipping outliers"
    if not low < high:
        return ()
    log.info(
        f"{count(len(wide), 'image')} with more than 8 bits per channel: values from {low:,.6g} to "
        f"{high:,.6g} (the range of the dataset) are scaled to 8 bits{clips}"
    )
    return low, high


def may_be_wide(path: str) -> bool:
    """Return whether the suffix is that of a format with more than 8 bits per channel."""
    return FORMAT_BY_SUFFIX.get(f".{path.rpartition('.')[2].lower()}") in ("PNG", "TIFF")


def _has_wide_header(source: str | bytes) -> bool:
    """Return whether a header declares more than 8 bits per channel; False if it is damaged."""
    _silence_pillow()
    try:
        data = source if isinstance(source, bytes) else copy_member(source, most=32)
        if data is not None and isinstance(source, str) and identify_format(data) == "TIFF":
            data = copy_member(source)  # its header may be anywhere
        opened = None if data is None else io.BytesIO(data)
        with opened or open(source, "rb", opener=open_regular) as file:
            head = file.read(32)
            kind = identify_format(head)
            if kind != "TIFF":
                return kind == "PNG" and head[24] == 16  # bit depth
            file.seek(0)
            with _TIFF(file) as image:
                return _is_wide(image) or _correct_raw_mode(image)
    except (*DECODER_ERRORS, ImageError):
        return False


def _read_facts(source: str | bytes, max_pixels: int) -> _ValueFacts | None:
    """Return statistics of a file's values, or None if it is unreadable or has 8 bits."""
    found: list[_ValueFacts | None] = []

    def collect(image: Image.Image, lower: Image.Image | None) -> Image.Image:
        if lower is not None or _is_wide(image):
            found.append(_value_facts(image, lower))
        return Image.new("RGB", (1, 1))

    with contextlib.suppress(ImageError):
        data = source if isinstance(source, bytes) else read_bytes(source, max_pixels=max_pixels)
        decode(data, "", max_pixels=max_pixels, convert=collect)
        return found[0] if found else None
    return None


def is_dark(source: str | bytes | Image.Image) -> bool:
    """Return whether an image has 16-bit values of which at most 14 bits are used."""
    if isinstance(source, Image.Image):
        facts = _value_facts(source) if _is_wide(source) else None
    else:
        facts = _read_facts(source, MAX_PIXELS) if _has_wide_header(source) else None
    return facts is not None and facts[0] == "16-bit" and facts[-1] < 2**14
