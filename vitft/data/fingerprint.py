"""Perceptual fingerprint of an image, for finding near-duplicates and faulty photos.

A fingerprint is robust to the changes that copies on the web usually undergo: resizing,
recompression and cropped edges. `data.duplicates` compares fingerprints. All values are measured on
the upright image, after larger images have been shrunk to `_SHRUNK_SIDE` pixels on their longer
side, about the input size of a model. A huge photo that looks blurry only at full size is therefore
not reported as blurry.
"""

from typing import Any

import numpy as np
from PIL import Image

BRIGHTNESS_SIDE, COLOUR_SIDE = 32, 8
"""Sides, in cells, of the brightness plane and of the two colour planes (Cb and Cr)."""
_SHRUNK_SIDE = 256
"""Longer side in pixels to which larger images are shrunk."""
_TILES = 4
"""Number of tiles per side. Only the sharpest tile counts: a blurred background is not a fault."""
_TINY_PX = 32
"""Shorter side in pixels below which an image counts as tiny (two patches of most ViTs)."""
_BLANK = 2.0
"""An image is blank if the standard deviation of every plane is below this (levels out of 255)."""
BLANK_REMARK = "blank: one uniform colour"
"""Remark on a blank image, in `vitft check` and in the notes on predictions."""
_BLURRY = 0.12
"""Sharpness below which an image counts as blurry. Of 667 real photos, all except the blank ones
had a sharpness of at least 0.197. After a Gaussian blur of 4 pixels (out of 256), 99% of the photos
were below the threshold."""

BRIGHTNESS, COLOUR = BRIGHTNESS_SIDE * BRIGHTNESS_SIDE, 2 * COLOUR_SIDE * COLOUR_SIDE
FINGERPRINT_BYTES = BRIGHTNESS + COLOUR + 4

_ByteRows = np.ndarray[Any, np.dtype[np.uint8]]
_Planes = np.ndarray[Any, np.dtype[np.float32]]


def fingerprint_of(image: Image.Image) -> _ByteRows:
    """Return the brightness, Cb, Cr and sharpness of an upright RGB image: (FINGERPRINT_BYTES,)."""
    scale = min(1.0, _SHRUNK_SIDE / max(image.size))
    size = tuple(max(1, round(side * scale)) for side in image.size)
    small = image.resize((size[0], size[1]), Image.Resampling.BOX) if scale < 1 else image
    bright, *colours = small.convert("YCbCr").split()
    cells = _plane_cells(bright, *colours)
    sharp = np.array([sharpness(np.asarray(bright, np.float32))], "<f4").view(np.uint8)
    return np.concatenate([*cells, sharp])


def _plane_cells(bright: Image.Image, *colours: Image.Image) -> list[_ByteRows]:
    """Return the cell means of the planes Y, Cb and Cr: (BRIGHTNESS,), (COLOUR / 2,) twice."""
    planes = ((bright, BRIGHTNESS_SIDE), *((colour, COLOUR_SIDE) for colour in colours))
    return [
        np.asarray(plane.resize((side, side), Image.Resampling.BOX)).ravel()
        for plane, side in planes
    ]


def turned(fingerprint: _ByteRows) -> list[_ByteRows]:
    """Return the fingerprints of an image, rotated four times, then of its mirror image."""
    planes = [
        fingerprint[:BRIGHTNESS].reshape(1, BRIGHTNESS_SIDE, BRIGHTNESS_SIDE),
        fingerprint[BRIGHTNESS:-4].reshape(2, COLOUR_SIDE, COLOUR_SIDE),
    ]
    return [
        np.concatenate(
            [*(np.rot90(p[..., ::step], k, (1, 2)).ravel() for p in planes), fingerprint[-4:]]
        )
        for step in (1, -1)
        for k in range(4)
    ]


def sharpness(grey: _Planes) -> float:
    """Return the edge strength of a greyscale image (H, W) relative to its contrast.

    The result is the standard deviation of the Laplacian in the sharpest of 16 tiles, divided by
    the standard deviation of all grey levels. For an image that is too small to measure, the result
    is 1.

    Source of the Laplacian as a focus measure: Pech-Pacheco et al. 2000, "Diatom autofocusing in
    brightfield microscopy".
    """
    if min(grey.shape) < _TILES + 2:
        return 1.0  # too small to measure, and reported as tiny anyway
    middle = grey[1:-1, 1:-1]
    edges = 4 * middle - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    tiles = (tile for rows in np.array_split(edges, _TILES) for tile in np.array_split(rows, 4, 1))
    return max(float(tile.std()) for tile in tiles) / max(1.0, float(grey.std()))


def brightness(fingerprints: _ByteRows) -> _Planes:
    """Return the brightness planes (n, 32, 32) of fingerprints (n, FINGERPRINT_BYTES)."""
    cells = fingerprints[:, :BRIGHTNESS].astype(np.float32)
    return cells.reshape(-1, BRIGHTNESS_SIDE, BRIGHTNESS_SIDE)


def colour(fingerprints: _ByteRows) -> _Planes:
    """Return the colour planes of fingerprints (n, FINGERPRINT_BYTES) as rows (n, COLOUR)."""
    return fingerprints[:, BRIGHTNESS : BRIGHTNESS + COLOUR].astype(np.float32)


def is_blank(fingerprints: _ByteRows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return, for each fingerprint (n, FINGERPRINT_BYTES), whether its image is blank: (n,)."""
    bright = brightness(fingerprints).reshape(len(fingerprints), BRIGHTNESS)
    planes = (bright, *np.split(colour(fingerprints), 2, axis=1))
    return np.max([plane.std(axis=1) for plane in planes], axis=0) < _BLANK


def is_blank_view(view: _ByteRows) -> bool:
    """Return whether a preprocessed RGB image (H, W, 3) is blank, by the criterion of `is_blank`.

    A coarse sample, which is ten times faster, excludes images of clear contrast.
    """
    sample = view[::8, ::8].mean(axis=2)  # a cell averages out noise of up to this many levels
    if sample.std() > 2 * _BLANK * max(1.0, max(view.shape) / BRIGHTNESS_SIDE):
        return False
    cells = _plane_cells(*Image.fromarray(view).convert("YCbCr").split())
    return max(float(plane.std()) for plane in cells) < _BLANK


def quality_remarks(fingerprint: _ByteRows, width: int, height: int) -> list[str]:
    """Return remarks on the quality of a training image, such as `tiny: 20x31 pixels`."""
    remarks = []
    if min(width, height) < _TINY_PX:
        remarks.append(f"tiny: {width}x{height} pixels")
    if is_blank(fingerprint[None])[0]:
        remarks.append(BLANK_REMARK)
    elif float(fingerprint[-4:].view("<f4")[0]) < _BLURRY:
        remarks.append("blurry")
    return remarks
