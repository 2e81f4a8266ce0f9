"""Layouts of 16-bit colour and of TIFF files that Pillow reads incompletely or wrongly by itself.

Pillow names the layout of the samples in a file by a raw mode, and reads 16-bit colour as its upper
8 bits. With the raw mode of the other byte order, the same decoder returns the lower 8 bits.
"""

import re
import sys
from collections.abc import Callable

from PIL import Image, ImageFile

from vitft.data.grey_levels import BITS_PER_SAMPLE, TIFF

OTHER_BYTE = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
"""Byte order whose upper byte is the lower byte of the given one; N is that of the machine."""
PHOTOMETRIC, PLANAR, EXTRA_SAMPLES = 0x0106, 0x011C, 0x0152


def raw_mode(image: ImageFile.ImageFile) -> str:
    """Return the raw mode of an image that is opened but not loaded."""
    args = image.tile[0].args if image.tile else ""
    return str(args[0] if isinstance(args, tuple) else args)


def set_raw_mode(image: ImageFile.ImageFile, change: Callable[[str], str]) -> None:
    """Change the raw mode of an image that is opened but not loaded."""
    pairs = [(t, t.args if isinstance(t.args, tuple) else (t.args,)) for t in image.tile]
    image.tile = [tile._replace(args=(change(args[0]), *args[1:])) for tile, args in pairs]


def correct_raw_mode(image: ImageFile.ImageFile) -> bool:
    """Correct the raw mode of a TIFF file from which Pillow would read wrong values.

    Returns:
        Whether the image has 16-bit colour whose lower 8 bits can be read.

    Raises:
        ValueError: Pillow has no raw mode for the layout.
    """
    is_separate = is_packed = False
    if isinstance(image, TIFF) and image.tile:
        tags, is_packed = image.tag_v2, image.tile[0].codec_name == "libtiff"
        is_separate = tags.get(PLANAR) == 2
        bits = {*tags.get(BITS_PER_SAMPLE, (1,))}
        is_wrong = is_packed and (
            image.mode == "LA" or (image.mode == "RGBA" and len(tags.get(EXTRA_SAMPLES, ())) != 1)
        )
        if is_packed:  # libtiff has already put the bytes of signed and float values in order
            set_raw_mode(image, lambda raw: re.sub(r"^([IF];\d+)B?([SF])$", r"\1N\2", raw))
        elif is_separate and (bits != {8} or tags.get(PHOTOMETRIC) == 0):
            is_wrong = bits != {16} or image.mode not in ("RGB", "RGBA")
            order, bands = "L" if tags.prefix == b"II" else "B", image.getbands()
            image.tile = [tile for tile in image.tile if str(tile.args)[2] in bands]
            set_raw_mode(image, lambda raw: f"{raw};16{order}")
        if is_separate and is_wrong:
            raise ValueError("unsupported separate planes")
    is_wide = re.fullmatch(r"(RGB|RGBA|RGBX|LA|R);16[LBN]", raw_mode(image)) is not None
    return is_wide and not (is_packed and is_separate)


def read_lower_bits(image: ImageFile.ImageFile) -> Image.Image:
    """Load an opened image with the lower 8 bits of each value in place of the upper ones."""
    if raw_mode(image) == "LA;16B":  # read as four bytes: grey and alpha, upper bits first
        set_raw_mode(image, lambda _: "RGBA")
        _, grey, _, alpha = image.split()
        return Image.merge("RGBA", (grey, grey, grey, alpha))
    set_raw_mode(image, lambda raw: raw[:-1] + OTHER_BYTE[raw[-1]])
    image.load()
    return image
