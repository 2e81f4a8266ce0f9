"""Thumbnails as JPEG."""

import io

import pytest
from PIL import Image

from tests.support.pictures import scene
from vitft.data.thumbnail import jpeg_uri, thumbnail_jpeg, thumbnail_size


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


@pytest.mark.parametrize(
    ("size", "expected"),
    [((160, 90), (160, 90)), ((161, 90), (160, 89)), ((20, 160), (20, 160)), ((322, 2), (160, 1))],
)
def test_only_images_above_160_pixels_are_made_smaller(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert opened(thumbnail_jpeg(scene(2, size))).size == expected
    assert thumbnail_size((640, 320)) == (160, 80)


def test_a_thumbnail_has_no_metadata_and_its_image_is_unchanged() -> None:
    image = scene(3, (40, 30))
    image.info = {"comment": b"private", "exif": b"Exif\0\0private", "icc_profile": b"private"}

    jpeg = thumbnail_jpeg(image)

    assert b"private" not in jpeg
    assert image.info["comment"] == b"private"


def test_a_thumbnail_is_small_and_resembles_its_image() -> None:
    image = scene(4, (640, 480))

    jpeg = thumbnail_jpeg(image)

    expected = image.resize((160, 120), Image.Resampling.LANCZOS).convert("L").resize((8, 6))
    found = opened(jpeg).convert("L").resize((8, 6))
    pairs = zip(found.get_flattened_data(), expected.get_flattened_data(), strict=True)
    assert max(abs(a - b) for a, b in pairs) <= 4
    stream = io.BytesIO()
    image.resize((160, 120)).save(stream, "JPEG", quality=88)
    assert len(jpeg) < len(stream.getvalue())
    assert jpeg_uri(b"abc") == "data:image/jpeg;base64,YWJj"
