"""Thumbnails as JPEG."""

import io

import pytest
from PIL import Image

from tests.support.pictures import scene
from vitft.data.thumbnail import thumbnail_jpeg, thumbnail_size


def opened(jpeg: bytes) -> Image.Image:
    return Image.open(io.BytesIO(jpeg))


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [
        pytest.param((320, 240), 160, (160, 120), id="half"),
        pytest.param((240, 320), 80, (60, 80), id="upright, a quarter"),
        pytest.param((1000, 3), 100, (100, 1), id="rounded up to a pixel"),
        pytest.param((3, 1000), 100, (1, 100), id="a narrow strip"),
        pytest.param((1000, 26), 100, (100, 3), id="rounded to the nearest"),
    ],
)
def test_the_longer_side_of_a_thumbnail_has_the_given_length(
    size: tuple[int, int], side: int, expected: tuple[int, int]
) -> None:
    assert thumbnail_size(size, side) == expected
    assert opened(thumbnail_jpeg(scene(1, size), side)).size == expected


def test_a_thumbnail_has_no_metadata_and_its_image_is_unchanged() -> None:
    image = scene(3, (40, 30))
    image.info = {"comment": b"private", "exif": b"Exif\0\0private", "icc_profile": b"private"}

    jpeg = thumbnail_jpeg(image)

    assert b"private" not in jpeg
    assert image.info["comment"] == b"private"
