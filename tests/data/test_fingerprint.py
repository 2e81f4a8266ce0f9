"""Fingerprints and thumbnails of images, and remarks on faulty photos."""

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scipy.ndimage import laplace

from tests.support.pictures import scene
from vitft.data import fingerprint_of, quality_remarks, thumbnail_jpeg


def test_faulty_photos_get_remarks() -> None:
    sharp, tall = scene(2), scene(4, (31, 64))
    soft = sharp.resize((512, 384)).filter(ImageFilter.GaussianBlur(12))

    found = [
        quality_remarks(fingerprint_of(image), *image.size)
        for image in (sharp, soft, Image.new("RGB", (99, 99), "teal"), tall)
    ]

    assert found == [[], ["blurry"], ["blank: one uniform colour"], ["tiny: 31x64 pixels"]]


def test_sharpness_is_the_deviation_of_the_laplacian_in_the_sharpest_tile() -> None:
    image = scene(4, (150, 101))
    grey = np.asarray(image.convert("YCbCr").split()[0], np.float32)
    tiles = [
        tile
        for rows in np.array_split(laplace(grey)[1:-1, 1:-1], 4)
        for tile in np.array_split(rows, 4, axis=1)
    ]

    (sharpness,) = fingerprint_of(image)[-4:].view("<f4")

    assert sharpness == pytest.approx(max(t.std() for t in tiles) / grey.std(), rel=1e-5)


def test_a_thumbnail_has_no_metadata_and_its_image_is_unchanged() -> None:
    image = scene(3, (40, 30))
    image.info = {"comment": b"private", "exif": b"Exif\0\0private", "icc_profile": b"private"}

    jpeg = thumbnail_jpeg(image)

    assert b"private" not in jpeg
    assert image.info["comment"] == b"private"
