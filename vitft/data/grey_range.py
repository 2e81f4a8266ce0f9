"""Value range of a dataset's images with more than 8 bits per channel.

The range is measured once, before any image is used, and stored in the model's transform. Without
it, 12-bit values in 16-bit files would use only 16 of 256 levels.
"""

import contextlib
import io
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from PIL import Image

from vitft.data.image_table import Images, Row
from vitft.data.images import (
    DECODER_ERRORS,
    MAX_PIXELS,
    TIFF,
    GreyRange,
    ValueFacts,
    correct_raw_mode,
    decode_with,
    is_wide,
    read_bytes,
    silence_pillow,
    value_facts,
)
from vitft.data.inspection import in_order
from vitft.data.remote.samples import copy_member
from vitft.data.signatures import FORMAT_BY_SUFFIX, identify_format
from vitft.system.errors import ImageError
from vitft.system.files import open_regular
from vitft.system.text import count, listing

log = logging.getLogger(__name__)

_MOST_MEASURED = 1000  # maximum number of images whose values are read
_OUTLIER_RATIO = 4
"""Tails are clipped if the full range is more than this many times as wide as that without them."""


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
        if file.split in ("train", "")
        and FORMAT_BY_SUFFIX.get(f".{file.path.rpartition('.')[2].lower()}") in ("PNG", "TIFF")
    ]
    flags = list(in_order(_has_wide_header, paths, workers=workers))
    own_wide = [path for path, is_one in zip(paths, flags, strict=True) if is_one]
    wide = sorted(gather(own_wide))
    some = {*wide[:: -(-len(wide) // _MOST_MEASURED) or 1]}
    found = in_order(
        lambda path: _read_facts(path, max_pixels),
        [path for path in own_wide if path in some],
        workers=workers,
    )
    facts: list[ValueFacts] = gather([one for one in found if one is not None])
    kinds = Counter(one.kind for one in facts)
    if len(kinds) > 1:
        types = listing(
            f"{count(number, 'image')} with {kind} values" for kind, number in kinds.items()
        )
        log.warning(
            f"the images have values of different types ({types}), and each type is scaled by its "
            "own fixed range. Convert all images to one type to scale them by their measured range"
        )
        return ()
    if not facts:
        return ()
    low, high = min(f.lowest for f in facts), max(f.highest for f in facts)
    inner = min(f.low for f in facts), max(f.high for f in facts)
    clips = ""
    if high - low > _OUTLIER_RATIO * (inner[1] - inner[0]) > 0:
        (low, high), clips = inner, ", clipping outliers"
    if not low < high:
        return ()
    log.info(
        f"{count(len(wide), 'image')} with more than 8 bits per channel: values from {low:,.6g} to "
        f"{high:,.6g} (the range of the dataset) are scaled to 8 bits{clips}"
    )
    return low, high


def _has_wide_header(source: str | bytes) -> bool:
    """Return whether a header declares more than 8 bits per channel; False if it is damaged."""
    silence_pillow()
    try:
        with contextlib.closing(_open_header(source)) as file:
            head = file.read(32)
            kind = identify_format(head)
            if kind != "TIFF":
                return kind == "PNG" and head[24] == 16  # bit depth
            file.seek(0)
            with TIFF(file) as image:
                return is_wide(image) or correct_raw_mode(image)
    except (*DECODER_ERRORS, ImageError):
        return False


def _open_header(source: str | bytes) -> BinaryIO:
    """Open an image file, or an image in a local copy, of which only the header is needed."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        return open(source, "rb", opener=open_regular)
    except FileNotFoundError:
        head = copy_member(source, most=32)
        if head is None:
            raise
        is_tiff = identify_format(head) == "TIFF"  # its header may be anywhere
        return io.BytesIO((copy_member(source) or b"") if is_tiff else head)


def _read_facts(source: str | bytes, max_pixels: int) -> ValueFacts | None:
    """Return statistics of a file's values, or None if it is unreadable or has 8 bits."""
    found: list[ValueFacts | None] = []

    def collect(image: Image.Image, lower: Image.Image | None) -> Image.Image:
        if lower is not None or is_wide(image):
            found.append(value_facts(image, lower))
        return Image.new("RGB", (1, 1))

    try:
        data = source if isinstance(source, bytes) else read_bytes(source, max_pixels=max_pixels)
        decode_with(collect, data, "", max_pixels=max_pixels)
    except ImageError:
        return None
    return found[0] if found else None


def is_dark(data: bytes) -> bool:
    """Return whether an image has 16-bit values of which at most 14 bits are used."""
    facts = _read_facts(data, MAX_PIXELS) if _has_wide_header(data) else None
    return facts is not None and facts.kind == "16-bit" and facts.highest < 2**14
