"""Safe decoding of untrusted image files to upright RGB images.

Eight formats are recognised by their first bytes. Each has one decoder, from Pillow or, for HEIC,
from pillow-heif; no external program is started. The size is checked before pixels are decoded, and
an incomplete file raises an error. As in timm and torchvision, colour profiles are ignored, and
only the first of several frames is used.
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
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
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

from vitft.data.arrays import array_member, no_image_reason, wrong_member_reason
from vitft.data.remote.copies import copy_member
from vitft.data.signatures import (
    END_MARKERS,
    FORMAT_BY_SUFFIX,
    SUPPORTED,
    declared_length,
    declared_size,
    identify_format,
)
from vitft.system.errors import ImageError, UsageError
from vitft.system.files import read_regular
from vitft.system.imports import require_extra
from vitft.system.text import describe_os_error

if TYPE_CHECKING:
    from torch import Tensor

# conversion of decoded images to RGB, including images with more than 8 bits per channel ----------

GreyRange = tuple[float, ...]
"""Values shown as black and as white in images with more than 8 bits per channel. If empty, each
file type has its own fixed range."""
_Greys = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
TIFF = TiffImagePlugin.TiffImageFile
_BITS_PER_SAMPLE = 0x0102
_TAIL_PERCENT = 0.1
"""Percentage of outliers (e.g. defective pixels) to expect at each end of an image's values."""


class ValueFacts(NamedTuple):
    """Value statistics of one image with more than 8 bits per channel."""

    kind: str  # type of the values, e.g. `16-bit` or `float`
    lowest: float
    low: float  # value below which `_TAIL_PERCENT` percent of the values lie
    high: float  # value above which `_TAIL_PERCENT` percent of the values lie
    highest: float


def _to_rgb(
    image: Image.Image, grey_range: GreyRange = (), lower: Image.Image | None = None
) -> Image.Image:
    """Convert an image to RGB; of 16-bit colour, it has the upper 8 bits and `lower` the others."""
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
        bits = _bits_of(image)
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


def _bits_of(image: Image.Image) -> int:
    """Return the bits per pixel (8 to 16) of an integer image for which `is_wide` is True."""
    if not isinstance(image, TIFF):
        return 16
    sample = image.tag_v2.get(_BITS_PER_SAMPLE, 16)
    return min(max(8, sample[0] if isinstance(sample, tuple) else sample), 16)


def value_facts(image: Image.Image, lower: Image.Image | None = None) -> ValueFacts | None:
    """Return statistics of the values, or None if none is finite. For `lower`, see `_to_rgb`."""
    values = (np.asarray(image) if lower is None else _wide_colours(image, lower)).ravel()
    if image.mode == "F":
        values = values[np.isfinite(values)]
    if not len(values):
        return None
    kind = {"F": "float", "I": "32-bit"}.get(image.mode, f"{_bits_of(image)}-bit")
    low, high = np.percentile(values, (_TAIL_PERCENT, 100 - _TAIL_PERCENT))
    return ValueFacts(kind, float(values.min()), float(low), float(high), float(values.max()))


# layouts of 16-bit colour and of TIFF files that Pillow reads incompletely or wrongly by itself ---

_OTHER_BYTE = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
"""Byte order whose upper byte is the lower byte of the given one; N is that of the machine."""
PHOTOMETRIC, SAMPLES_PER_PIXEL, PLANAR, EXTRA_SAMPLES = 0x0106, 0x0115, 0x011C, 0x0152


def _change_raw_mode(
    image: ImageFile.ImageFile, change: Callable[[str], str] = lambda raw: raw
) -> str:
    """Change the raw mode of an image that is opened but not loaded, and return it."""
    pairs = [(t, t.args if isinstance(t.args, tuple) else (t.args,)) for t in image.tile]
    image.tile = [tile._replace(args=(change(args[0]), *args[1:])) for tile, args in pairs]
    return change(pairs[0][1][0]) if pairs else ""


def correct_raw_mode(image: ImageFile.ImageFile) -> bool:
    """Correct the raw mode of a TIFF file that Pillow would misread (ValueError if impossible).

    Return whether the image has 16-bit colour whose lower 8 bits can be read.
    """
    if image.format not in ("PNG", "TIFF"):
        return False
    raw, lost = _change_raw_mode(image), ""
    if isinstance(image, TIFF) and raw:
        tags, mode = image.tag_v2, image.mode
        is_separate, bits = tags.get(PLANAR) == 2, {*tags.get(_BITS_PER_SAMPLE, (1,))}
        if image.tile[0].codec_name == "libtiff":
            # libtiff has already put the bytes of signed and float values in order
            _change_raw_mode(image, lambda raw: re.sub(r"^([IF];\d+)B?([SF])$", r"\1N\2", raw))
            is_wrong = mode == "LA" or (mode == "RGBA" and len(tags.get(EXTRA_SAMPLES, ())) != 1)
            lost = raw * is_separate
        elif is_wrong := is_separate and (bits != {8} or tags.get(PHOTOMETRIC) == 0):
            is_wrong = bits != {16} or mode not in ("RGB", "RGBA")
            order = "L" if tags.prefix == b"II" else "B"
            image.tile = image.tile[: len(mode) * len(image.tile) // tags[SAMPLES_PER_PIXEL]]
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
    "TIFF": TIFF,
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
ORIENTATION = 0x0112
OPEN_ERRORS: Mapping[int | None, str] = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "not found"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "permission denied"),
    **dict.fromkeys((errno.EISDIR, errno.ENXIO), "not a regular file"),
    errno.ELOOP: "circular symbolic link",
}


class Decoded(NamedTuple):
    """An upright RGB image without metadata, and remarks such as `rotated by EXIF`."""

    image: Image.Image
    odd: tuple[str, ...]


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
            if reason := wrong_member_reason(name):
                raise ImageError(name, reason) from error
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
) -> Decoded:
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
        silence_pillow()
        try:
            return _decode_as(kind, decoder, convert, data, name, max_pixels)
        except Image.DecompressionBombError as error:  # Pillow's own limit within a decoder
            raise ImageError(name, "image too large: too many pixels in a frame or tile") from error
        except DECODER_ERRORS as error:
            raise ImageError(name, reason_for(error, kind, data)) from error
        except Warning:  # another thread has just restored its own warning filters
            continue
    raise ImageError(name, f"damaged {kind}")


def silence_pillow() -> None:
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
) -> Decoded:
    """Decode bytes of the format `kind` with `decoder`, without catching its exceptions."""
    _check_size(declared_size(kind, data), name, max_pixels)
    image = decoder(io.BytesIO(data), "")
    _check_size(image.size, name, max_pixels)
    rotated = image.tag_v2.get(ORIENTATION, 1) if isinstance(image, TIFF) else 1
    lower: Image.Image | None = None
    if correct_raw_mode(image):
        correct_raw_mode(again := decoder(io.BytesIO(data), ""))
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

    odd = decoding_remarks(kind, image, name)
    if lower is None and isinstance(image, TIFF) and not is_wide(image) and _bits_of(image) > 8:
        odd.append("16-bit colour reduced to 8 bits")
    upright = convert(image, lower)
    orientation = _orientation_of(image) or 1  # 1 for a TIFF, which Pillow has already rotated
    if orientation in _ORIENTATIONS:
        upright = upright.transpose(_ORIENTATIONS[orientation])
    if orientation in _ORIENTATIONS or rotated in _ORIENTATIONS:
        odd.append("rotated by EXIF")
    upright.info = {}  # GPS coordinates must not appear in reports
    return Decoded(upright, tuple(odd))


def decoding_remarks(kind: str, image: ImageFile.ImageFile, name: str) -> list[str]:
    """Return remarks on an opened image's mode, suffix, number of frames and damaged EXIF data."""
    odd = [f"converted from {image.mode}"] if image.mode != "RGB" else []
    suffix = Path(name).suffix.lower()
    if FORMAT_BY_SUFFIX.get(suffix, kind) != kind:
        odd.append(f"content is {kind}, but the suffix is {suffix}")
    if _has_more_frames(image):
        is_film = kind in ("GIF", "PNG", "WebP")
        odd.append("animated, first frame used" if is_film else "several images, first one used")
    if _orientation_of(image) is None:
        odd.append("damaged EXIF ignored")
    if isinstance(image, TIFF):
        bands, used = image.tag_v2.get(SAMPLES_PER_PIXEL, 1), len(image.getbands())
        if bands > used:
            odd.append(f"{bands} bands, {used} used")
        elif image.mode == "RGBA" and EXTRA_SAMPLES not in image.tag_v2:
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
    silence_pillow()
    try:
        return identify_format(data) == "TIFF" and _has_more_frames(TIFF(io.BytesIO(data)))
    except DECODER_ERRORS:
        return False


def _orientation_of(image: Image.Image) -> int | None:
    """Return the EXIF or XMP orientation: 1 if there is none, None if the metadata is damaged."""
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except DECODER_ERRORS:
        return None
    return orientation if isinstance(orientation, int) else None


def reason_for(error: BaseException, kind: str, data: bytes) -> str:
    """Return a short reason why Pillow could not decode the bytes."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    declared = declared_length(kind, data)
    if declared is not None and declared > len(data):
        return f"truncated ({len(data)} of {declared} bytes)"
    text = " ".join(str(error).split())
    if "truncated" in text.lower() or END_MARKERS.get(kind, b"") not in data[-64:]:
        return f"truncated (ends after {len(data)} bytes)"
    if kind == "TIFF" and text.isdigit():
        text = f"unsupported compression {text}"
    is_sound = _UNSUPPORTED.search(text) is not None
    if is_sound or kind in ("AVIF", "HEIC"):  # whose libraries often do not tell the two apart
        text = re.sub(f"^unsupported:? ({kind} )?", "", text, flags=re.I)
        state = "unsupported" if is_sound else "damaged or unsupported"
        return f"{state} {kind} ({text[:50]}): save it as 8-bit PNG, in grey or RGB"
    has_detail = text and not isinstance(error.__cause__ or error, _INTERNAL_ERRORS)
    return f"damaged {kind} ({text[:80]})" if has_detail else f"damaged {kind}"


# conversion of PIL images, arrays and tensors -----------------------------------------------------


def upright_rgb(picture: Image.Image, name: str, grey_range: GreyRange = ()) -> Image.Image:
    """Convert a PIL image to upright RGB by its EXIF data; raise an ImageError if it is damaged."""
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
