"""Fingerprints of images, and remarks on faulty photos."""

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy.ndimage import laplace

from tests.support.pictures import scene
from vitft.data.fingerprint import (
    brightness,
    colour,
    fingerprint_of,
    is_blank,
    is_blank_view,
    quality_remarks,
    sharpness,
)


def test_faulty_photos_get_remarks() -> None:
    sharp, tall = scene(2), scene(4, (31, 64))
    soft = sharp.resize((512, 384)).filter(ImageFilter.GaussianBlur(12))

    found = [
        quality_remarks(fingerprint_of(image), *image.size)
        for image in (sharp, soft, Image.new("RGB", (99, 99), "teal"), tall)
    ]

    assert found == [[], ["blurry"], ["blank: one uniform colour"], ["tiny: 31x64 pixels"]]


def test_a_fingerprint_is_the_picture_in_cells_of_brightness_and_colour() -> None:
    image = scene(3, (320, 240))
    small = image.resize((256, 192), Image.Resampling.BOX).convert("YCbCr")
    planes = [
        np.asarray(plane.resize((side, side), Image.Resampling.BOX), np.float32)
        for plane, side in zip(small.split(), (32, 8, 8), strict=True)
    ]

    found = np.stack([fingerprint_of(image)] * 2)

    assert np.array_equal(brightness(found), np.stack([planes[0]] * 2))
    assert np.array_equal(colour(found)[1], np.concatenate([p.ravel() for p in planes[1:]]))
    assert float(found[0, -4:].view("<f4")[0]) == pytest.approx(
        sharpness(np.asarray(small.split()[0], np.float32))
    )


def test_sharpness_is_the_deviation_of_the_laplacian_in_the_sharpest_tile() -> None:
    grey = np.asarray(scene(4, (150, 101)).convert("L"), np.float32)
    tiles = [
        tile
        for rows in np.array_split(laplace(grey)[1:-1, 1:-1], 4)
        for tile in np.array_split(rows, 4, axis=1)
    ]

    assert sharpness(grey) == pytest.approx(max(t.std() for t in tiles) / grey.std(), rel=1e-5)


@pytest.mark.parametrize(("spread", "blank"), [(0, True), (1, True), (8, True), (60, False)])
def test_a_view_is_blank_where_the_fingerprint_of_the_image_is(spread: int, blank: bool) -> None:
    noise = np.random.default_rng(0).integers(-spread, spread + 1, (224, 224, 1))
    view = np.repeat(120 + noise, 3, axis=2).astype(np.uint8)

    assert is_blank_view(view) == blank
    assert is_blank(fingerprint_of(Image.fromarray(view))[None])[0] == blank
