"""Formats, lengths and sizes that the first bytes of files announce."""

import struct

import pytest

from vitft.data import identify_format


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF87a", "GIF"),
        (b"GIF89a", "GIF"), (b"BM", "BMP"), (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"),
        (b"II+\0", "TIFF"), (b"MM\0+", "TIFF"), (b"RIFF\0\0\0\0WEBP", "WebP"),
    ],
)  # fmt: skip
def test_supported_formats_are_known_by_their_first_bytes(data: bytes, kind: str) -> None:
    assert identify_format(data) == identify_format(data + bytes(20)) == kind
    assert identify_format(data[:-1]) != kind


@pytest.mark.parametrize("data", [b"P0\n", b"P8\n", b"RIFF\0\0\0\0WAVE", b"XIFF\0\0\0\0WEBP"])
def test_what_only_resembles_a_format_is_not_one(data: bytes) -> None:
    assert identify_format(data).startswith("not an image (")


GIF = b"GIF89a" + struct.pack("<HH", 300, 513)
