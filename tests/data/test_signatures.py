"""Formats, lengths and sizes that the first bytes of files announce."""

import struct

import pytest

from vitft.data.signatures import (
    declared_length,
    identify_format,
    length_of_boxes,
    looks_like,
)


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


@pytest.mark.parametrize(
    ("data", "guess"),
    [
        (b"\0" * 9, "only zero bytes"),
        (b" \t\r\n~abc", "looks like text"),
        (b"\x1f", "unknown content"),
        (b"abc\x7f", "unknown content"),
        ("ä".encode(), "looks like text"),
        (b"a" * 1024 + b"\x01", "looks like text"),
        (b"a" * 1023 + b"\x01", "unknown content"),
        (b"\xef\xbb\xbf <HTML>", "looks like HTML"),
        (b"[[1, 2]]", "looks like JSON"),
        (b"<rss>", "looks like XML"),
        (b" " * 1000 + b"<SVG", "looks like SVG"),
    ],
)
def test_other_files_are_guessed_from_their_first_kilobyte(data: bytes, guess: str) -> None:
    assert looks_like(data) == guess


def box(kind: bytes, size: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", size) + kind + content


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", 0),
        (bytes([0, 0, 0, 1]) + b"fre", 0),
        (box(b"ftyp", 16, bytes(8)), 16),
        (box(b"ftyp", 16, bytes(8)) + box(b"mdat", 1000, bytes(9)), 1016),
        (box(b"ftyp", 8) + box(b"mdat", 1, struct.pack(">Q", 5000)), 5008),
        (
            box(b"ftyp", 8) + box(b"mdat", 1, struct.pack(">Q", 0x0102030405060708)),
            0x0102030405060710,
        ),
        (box(b"mdat", 0x01020304), 0x01020304),
        (box(b"mdat", 1, struct.pack(">Q", 3)), 16),  # at least as long as its header
        (box(b"free", 3) + box(b"free", 9, b"x"), 17),
        (box(b"ftyp", 8) + box(b"mdat", 0, bytes(9)), 25),
    ],
)
def test_the_length_of_a_media_file_is_that_of_its_boxes(data: bytes, length: int) -> None:
    assert length_of_boxes(data) == length
    assert declared_length("HEIC", data) == declared_length("AVIF", data) == length


GIF = b"GIF89a" + struct.pack("<HH", 300, 513)
