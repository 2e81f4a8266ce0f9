"""Formats, lengths and sizes that the first bytes of files announce."""

import pytest

from vitft.data import decode
from vitft.system import ImageError


def reason(data: bytes) -> str:
    with pytest.raises(ImageError) as error:
        decode(data, "x")
    return error.value.reason


@pytest.mark.parametrize(
    "data",
    [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*",
     b"II+\0", b"MM\0+", b"RIFF\0\0\0\0WEBP"],
)  # fmt: skip
def test_supported_formats_are_known_by_their_first_bytes(data: bytes) -> None:
    assert reason(data).startswith(("truncated", "damaged"))
    assert reason(data[:-1]).startswith(("not an image", "unsupported format"))


@pytest.mark.parametrize("data", [b"P0\n", b"P8\n", b"RIFF\0\0\0\0WAVE", b"XIFF\0\0\0\0WEBP"])
def test_what_only_resembles_a_format_is_not_one(data: bytes) -> None:
    assert reason(data).startswith("not an image (")
