"""Range of the values in a data set's images with more than 8 bits per pixel.

It is measured once, before any image is used, and stored in the transform of the model. Otherwise
12-bit values in 16-bit files would keep 16 of 256 grey levels, and equal values in two files of
floats could differ in brightness.
"""

import logging
from collections import Counter
from collections.abc import Sequence

from PIL import Image

from vitft.data.folder import Folder
from vitft.data.grey_levels import TIFF, GreyRange, ValueFacts, is_wide, value_facts
from vitft.data.images import (
    DECODER_ERRORS,
    decode_with,
    read_bytes,
    silence_libtiff,
    silence_pillow,
)
from vitft.data.loading import in_order
from vitft.data.signatures import FORMAT_BY_SUFFIX, identify_format
from vitft.system.errors import ImageError
from vitft.system.files import open_regular
from vitft.system.text import count, listing

log = logging.getLogger(__name__)

MOST_MEASURED = 1000
"""Maximum number of images whose values are read."""
OUTLIER_RATIO = 4
"""Ratio of the whole range to the range without tails; above it, the tails are outliers."""


def measure_grey_range(folder: Folder, *, max_pixels: int, workers: int = 2) -> GreyRange:
    """Return the range of the values in the training images with more than 8 bits per pixel.

    The range is empty if there are no such images, if all their values are equal or, with a
    warning, if the values are of several types. Only files with a PNG or TIFF suffix are opened,
    and at most `MOST_MEASURED` of them are decoded completely. The range is logged.
    """
    root = str(folder.root)
    paths = [
        f"{root}/{file.path}"
        for file in folder.files
        if file.part in ("train", "")
        and FORMAT_BY_SUFFIX.get(f".{file.path.rpartition('.')[2].lower()}") in ("PNG", "TIFF")
    ]
    flags = list(in_order(has_wide_header, paths, workers=workers))
    wide = [path for path, is_one in zip(paths, flags, strict=True) if is_one]
    some = wide[:: -(-len(wide) // MOST_MEASURED) or 1]
    facts = in_order(lambda path: read_facts(path, max_pixels), some, workers=workers)
    return range_of([found for found in facts if found is not None], len(wide))


def range_of(facts: Sequence[ValueFacts], images: int) -> GreyRange:
    """Return the range of the measured values, without outliers, and log it.

    The log also states the number of images with more than 8 bits per pixel, `images`. The range is
    empty if there are no values, if they are all equal or, with a warning, if they are of several
    types.
    """
    kinds = Counter(found.kind for found in facts)
    if len(kinds) > 1:
        types = listing(f"{count(number, 'image')} of {kind}" for kind, number in kinds.items())
        log.warning(
            f"the values of the images have several types ({types}): each type is scaled by its "
            "own fixed range; convert the images to one type to scale them by their values"
        )
        return ()
    if not facts:
        return ()
    low, high = min(f.lowest for f in facts), max(f.highest for f in facts)
    inner = min(f.low for f in facts), max(f.high for f in facts)
    clips = ""
    if high - low > OUTLIER_RATIO * (inner[1] - inner[0]) > 0:
        (low, high), clips = inner, ", clipping outliers"
    if not low < high:
        return ()
    log.info(
        f"{count(images, 'image')} with more than 8 bits per pixel: values from {low:,.6g} to "
        f"{high:,.6g}, the range of the data set, are scaled to 0 to 255{clips}"
    )
    return low, high


def has_wide_header(path: str) -> bool:
    """Return whether a file's header is that of a PNG or TIFF with one channel of more than 8 bits.

    The result is False for damaged and unreadable files, which the inspection of the images
    reports.
    """
    silence_pillow()
    try:
        with open(path, "rb", opener=open_regular) as file:
            head = file.read(32)
            kind = identify_format(head)
            if kind == "PNG":
                return head[24:26] == b"\x10\0"  # bit depth 16, greyscale
            if kind != "TIFF":
                return False
            silence_libtiff()
            file.seek(0)
            with TIFF(file) as image:
                return is_wide(image)
    except DECODER_ERRORS:
        return False


def read_facts(path: str, max_pixels: int) -> ValueFacts | None:
    """Return facts about the values of a file, or None if it is unreadable or not wide."""
    found: list[ValueFacts | None] = []

    def collect(image: Image.Image) -> Image.Image:
        found.append(value_facts(image) if is_wide(image) else None)
        return Image.new("RGB", (1, 1))

    try:
        data = read_bytes(path, max_pixels=max_pixels)
        decode_with(collect, data, path, max_pixels=max_pixels)
    except ImageError:
        return None
    return found[0] if found else None
