"""Formats, lengths and sizes that the first bytes of files announce."""

import struct

import pytest

from vitft.data.signatures import (
    declared_length,
    declared_size,
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


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"P%d%c" % (n, blank), "PNM") for n in range(1, 8) for blank in b"\n\r\t #"],
)
def test_portable_pixmaps_are_named(data: bytes, kind: str) -> None:
    assert identify_format(data).startswith(f"unsupported format {kind} (")


@pytest.mark.parametrize("data", [b"P0\n", b"P8\n", b"RIFF\0\0\0\0WAVE", b"XIFF\0\0\0\0WEBP"])
def test_what_only_resembles_a_format_is_not_one(data: bytes) -> None:
    assert identify_format(data).startswith("not an image (")


def media(major: bytes, *brands: bytes, size: int = 0, rest: bytes = b"") -> bytes:
    """The first box of an ISO media file."""
    body = b"ftyp" + major + bytes(4) + b"".join(brands)
    return (size or 4 + len(body)).to_bytes(4) + body + rest


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (media(b"avif"), "AVIF"),
        (media(b"avis"), "AVIF"),
        (media(b"heic"), "HEIC"),
        (media(b"hevc"), "HEIC"),
        (media(b"mif1"), "HEIC"),
        (media(b"mif1", b"avif"), "AVIF"),
        (media(b"msf1", b"miaf", b"avis"), "AVIF"),
        (media(b"mif1", b"heic", rest=b"avif"), "HEIC"),  # after the box
        (media(b"mif1", *[b"miaf"] * 59, b"avif"), "AVIF"),  # at byte 252
        (media(b"mif1", *[b"miaf"] * 60, b"avif"), "HEIC"),  # after 256 bytes
        (media(b"mp42", b"avif"), "unsupported format MP4"),
        (b"\0\0\0\x14Ftypavif", "not an image"),
    ],
)
def test_media_files_are_known_by_their_brands(data: bytes, kind: str) -> None:
    assert identify_format(data).startswith(kind)


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


@pytest.mark.parametrize(
    ("kind", "data", "length"),
    [
        ("WebP", b"RIFF" + struct.pack("<I", 70_000), 70_008),
        ("WebP", b"RIFF\0\0\0", None),
        ("BMP", b"BM" + struct.pack("<I", 70_000), 70_000),
        ("BMP", b"BM\0\0\0", None),
        ("PNG", bytes(99), None),
    ],
)
def test_webp_and_bmp_declare_their_length(kind: str, data: bytes, length: int | None) -> None:
    assert declared_length(kind, data) == length


def webp(chunk: bytes, *fields: tuple[int, bytes]) -> bytes:
    """A WebP header of 30 bytes with fields at the given places."""
    data = bytearray(b"RIFF\0\0\0\0WEBP" + chunk + bytes(14))
    for place, content in fields:
        data[place : place + len(content)] = content
    return bytes(data)


GIF = b"GIF89a" + struct.pack("<HH", 300, 513)
VP8L = (300 - 1) | (513 - 1) << 14 | 0b1011 << 28  # flags follow the two sides of 14 bits


@pytest.mark.parametrize(
    ("kind", "data", "size"),
    [
        ("GIF", GIF, (300, 513)),
        ("GIF", GIF[:-1], None),
        ("WebP", webp(b"VP8X", (24, (299).to_bytes(3, "little")),
                      (27, (66_000).to_bytes(3, "little"))), (300, 66_001)),
        ("WebP", webp(b"VP8L", (21, VP8L.to_bytes(4, "little"))), (300, 513)),
        ("WebP", webp(b"VP8 ", (26, struct.pack("<HH", 300 | 0x4000, 513 | 0xC000))), (300, 513)),
        ("WebP", webp(b"VP8 ")[:29], None),
        ("PNG", bytes(99), None),
    ],
)  # fmt: skip
def test_gif_and_webp_declare_their_size(
    kind: str, data: bytes, size: tuple[int, int] | None
) -> None:
    assert declared_size(kind, data) == size
