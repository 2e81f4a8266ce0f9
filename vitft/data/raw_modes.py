"""Layouts of 16-bit colour and of TIFF files that Pillow reads incompletely or wrongly by itself.

Pillow names the layout of the samples in a file by a raw mode, and reads 16-bit colour as its upper
8 bits. With the raw mode of the other byte order, the same decoder returns the lower 8 bits.
"""

import re
import sys
from collections.abc import Callable

from PIL import Image, ImageFile

from vitft.data.grey_levels import BITS_PER_SAMPLE, TIFF

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
    """Correct the raw mode of a TIFF file from which Pillow would read wrong values.

    Returns:
        Whether the image has 16-bit colour whose lower 8 bits can be read.

    Raises:
        ValueError: Pillow has no raw mode for the layout.
    """
    if image.format not in ("PNG", "TIFF"):
        return False
    raw, lost = _change_raw_mode(image), ""
    if isinstance(image, TIFF) and raw:
        tags, mode = image.tag_v2, image.mode
        is_separate, bits = tags.get(PLANAR) == 2, {*tags.get(BITS_PER_SAMPLE, (1,))}
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


def read_lower_bits(image: ImageFile.ImageFile) -> Image.Image:
    """Load an opened image with the lower 8 bits of each value in place of the upper ones."""
    if _change_raw_mode(image) == "LA;16B":  # read as four bytes: grey and alpha, upper bits first
        _change_raw_mode(image, lambda _: "RGBA")
        _, grey, _, alpha = image.split()
        return Image.merge("RGBA", (grey, grey, grey, alpha))
    _change_raw_mode(image, lambda raw: raw[:-1] + _OTHER_BYTE[raw[-1]])
    image.load()
    return image
