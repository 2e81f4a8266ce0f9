"""A few hundred numbers that stand for a picture: to find it again, and to judge it as a photo.

A sketch survives what copies go through on the web: another size, another compression, a trimmed
edge. What is alike is decided in `duplicates`. Everything is measured on the upright picture,
shrunk to `LOOKED_AT` pixels, about what a model sees: a huge photo that is soft at full size is
not blurry for our purpose.
"""

from typing import Any

import numpy as np
from PIL import Image

SIDE = 32
"""Of the brightness picture, in cells."""
COLOUR_SIDE = 8
"""Of the two colour pictures (Cb and Cr), in cells."""
LOOKED_AT = 256
"""Longest side in pixels to which a picture is shrunk first."""
TILES = 4
"""Sharpness is that of the sharpest of 4 x 4 parts: a blurred background is no fault."""
TINY_PX = 32
"""A shorter side below this holds less than two by two patches of a usual ViT."""
BLANK = 2.0
"""Deviation in grey levels of 255 below which a picture shows nothing."""
BLURRY = 0.12
"""Sharpness below which a picture is called blurry. Of 667 real photos none was below 0.197,
apart from blank ones; blurred by a Gaussian of 4 of 256 pixels 99 % of them were."""

BRIGHTNESS, COLOUR = SIDE * SIDE, 2 * COLOUR_SIDE * COLOUR_SIDE
FINGERPRINT_BYTES = BRIGHTNESS + COLOUR + 4

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


def fingerprint_of(image: Image.Image) -> Bytes:
    """The sketch of an upright RGB picture: (SKETCH_BYTES,) brightness, Cb, Cr, sharpness."""
    scale = min(1.0, LOOKED_AT / max(image.size))
    size = tuple(max(1, round(side * scale)) for side in image.size)
    small = image.resize((size[0], size[1]), Image.Resampling.BOX) if scale < 1 else image
    bright, *colours = small.convert("YCbCr").split()
    cells = [
        np.asarray(plane.resize((side, side), Image.Resampling.BOX)).ravel()
        for plane, side in ((bright, SIDE), *((colour, COLOUR_SIDE) for colour in colours))
    ]
    sharp = np.array([sharpness(np.asarray(bright, np.float32))], "<f4").view(np.uint8)
    return np.concatenate([*cells, sharp])


def sharpness(grey: Floats) -> float:
    """The strongest edges of a picture (H, W) in grey levels, against its contrast.

    The deviation of the Laplacian in the sharpest of 16 tiles, as a share of the deviation of all
    levels. Source of the Laplacian as a measure of focus: Pech-Pacheco et al. 2000, "Diatom
    autofocusing in brightfield microscopy".
    """
    if min(grey.shape) < TILES + 2:
        return 1.0  # too small to tell, and called tiny anyway
    middle = grey[1:-1, 1:-1]
    edges = 4 * middle - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    tiles = (tile for rows in np.array_split(edges, TILES) for tile in np.array_split(rows, 4, 1))
    return max(float(tile.std()) for tile in tiles) / max(1.0, float(grey.std()))


def brightness(sketches: Bytes) -> Floats:
    """The brightness pictures (n, SIDE, SIDE) of sketches (n, SKETCH_BYTES)."""
    return sketches[:, :BRIGHTNESS].reshape(-1, SIDE, SIDE).astype(np.float32)


def colour(sketches: Bytes) -> Floats:
    """The colour pictures as rows (n, COLOUR) of sketches (n, SKETCH_BYTES)."""
    return sketches[:, BRIGHTNESS : BRIGHTNESS + COLOUR].astype(np.float32)


def is_blank(sketches: Bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the sketches (n, SKETCH_BYTES) show one even colour: (n,)."""
    bright = brightness(sketches).reshape(len(sketches), BRIGHTNESS)
    planes = (bright, *np.split(colour(sketches), 2, axis=1))
    return np.max([plane.std(axis=1) for plane in planes], axis=0) < BLANK


def faults_of(sketch: Bytes, width: int, height: int) -> list[str]:
    """What speaks against a picture as a training image, such as `tiny: 20x31 pixels`."""
    faults = []
    if min(width, height) < TINY_PX:
        faults.append(f"tiny: {width}x{height} pixels")
    if is_blank(sketch[None])[0]:
        faults.append("blank: one even colour")
    elif float(sketch[-4:].view("<f4")[0]) < BLURRY:
        faults.append("blurry")
    return faults
