"""Fingerprints of images, and remarks on faulty photos."""

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy.ndimage import laplace

from tests.support.pictures import scene
from vitft.data.fingerprint import (
    BRIGHTNESS,
    COLOUR,
    FINGERPRINT_BYTES,
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


def test_the_smallest_image_has_a_fingerprint() -> None:
    assert fingerprint_of(Image.new("RGB", (1, 1))).shape == (FINGERPRINT_BYTES,)
    assert fingerprint_of(scene(1).resize((3000, 2))).shape == (FINGERPRINT_BYTES,)


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


def test_an_image_too_small_for_tiles_counts_as_sharp() -> None:
    assert sharpness(np.zeros((5, 99), np.float32)) == 1.0
    assert sharpness(np.zeros((6, 99), np.float32)) == 0.0


def test_a_huge_photo_that_is_only_soft_at_full_size_is_not_blurry() -> None:
    image = scene(5, (256, 192))
    huge = image.resize((2048, 1536), Image.Resampling.BICUBIC)

    assert sharpness(np.asarray(huge.convert("L"), np.float32)) < 0.12
    assert quality_remarks(fingerprint_of(huge), *huge.size) == []


@pytest.mark.parametrize(
    ("sharp", "size", "remarks"),
    [
        pytest.param(0.121, (32, 99), [], id="neither"),
        pytest.param(0.119, (99, 32), ["blurry"], id="blurry"),
        pytest.param(0.121, (31, 99), ["tiny: 31x99 pixels"], id="narrow"),
        pytest.param(0.119, (99, 31), ["tiny: 99x31 pixels", "blurry"], id="flat and blurry"),
    ],
)
def test_photos_below_the_limits_get_remarks(
    sharp: float, size: tuple[int, int], remarks: list[str]
) -> None:
    found = fingerprint_of(scene(1))
    found[-4:] = np.array([sharp], "<f4").view(np.uint8)

    assert quality_remarks(found, *size) == remarks


@pytest.mark.parametrize("plane", ["brightness", "Cb", "Cr"])
@pytest.mark.parametrize(("difference", "blank"), [(3, True), (4, False), (5, False)])
def test_an_image_is_blank_if_no_plane_deviates_by_two_levels(
    plane: str, difference: int, blank: bool
) -> None:
    found = np.full((1, FINGERPRINT_BYTES), 100, np.uint8)
    begin, end = {
        "brightness": (0, BRIGHTNESS),
        "Cb": (BRIGHTNESS, BRIGHTNESS + COLOUR // 2),
        "Cr": (BRIGHTNESS + COLOUR // 2, BRIGHTNESS + COLOUR),
    }[plane]
    found[0, begin:end:2] += np.uint8(difference)  # a deviation of half the difference

    assert is_blank(found).tolist() == [blank]


@pytest.mark.parametrize(("spread", "blank"), [(0, True), (1, True), (8, True), (60, False)])
def test_a_view_is_blank_where_the_fingerprint_of_the_image_is(spread: int, blank: bool) -> None:
    noise = np.random.default_rng(0).integers(-spread, spread + 1, (224, 224, 1))
    view = np.repeat(120 + noise, 3, axis=2).astype(np.uint8)

    assert is_blank_view(view) == blank
    assert is_blank(fingerprint_of(Image.fromarray(view))[None])[0] == blank
