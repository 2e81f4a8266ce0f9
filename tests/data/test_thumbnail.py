"""Thumbnails as JPEG."""

from tests.support.pictures import scene
from vitft.data import thumbnail_jpeg


def test_a_thumbnail_has_no_metadata_and_its_image_is_unchanged() -> None:
    image = scene(3, (40, 30))
    image.info = {"comment": b"private", "exif": b"Exif\0\0private", "icc_profile": b"private"}

    jpeg = thumbnail_jpeg(image)

    assert b"private" not in jpeg
    assert image.info["comment"] == b"private"
