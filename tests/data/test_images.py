"""Decoding of untrusted bytes: an upright RGB image or an `ImageError` with a reason."""

import io
import os
import random
import socket
import struct
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin, features

from tests.support.children import python
from vitft.data import OpenedImage, Row, decode, open_image, read_bytes
from vitft.system import EXTRA_LIBRARIES, ImageError


def gradient(width: int = 56, height: int = 40) -> Image.Image:
    """A picture without symmetry: red grows to the right, green downwards."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :, 0] = np.linspace(0, 250, width).astype(np.uint8)
    pixels[:, :, 1] = np.linspace(0, 250, height).astype(np.uint8)[:, None]
    pixels[:, :, 2] = 40
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    if kind == "HEIC":
        heif = pytest.importorskip("pillow_heif", reason="the extra `heic` is not installed")
        picture: Any = image.copy()
        picture.encoderinfo = options  # as Pillow calls a plugin
        heif.as_plugin._save_heif(picture, buffer, "")
    else:
        image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_header(width: int, height: int) -> bytes:
    """A one-bit PNG without pixels."""
    size = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size)


def read_image(data: bytes, name: str) -> Image.Image:
    return decode(data, name).image


def reason(data: bytes, name: str = "x.jpg") -> str:
    with pytest.raises(ImageError) as caught:
        read_image(data, name)
    assert caught.value.path == name
    return caught.value.reason


def pixel(image: Image.Image, x: int = 0, y: int = 0) -> tuple[int, ...]:
    assert image.mode == "RGB"
    value = image.getpixel((x, y))
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("JPEG", {"quality": 90}),
    "progressive jpeg": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {}),
    "lossless webp": ("WEBP", {"lossless": True}),
    "bmp": ("BMP", {}),
    "gif": ("GIF", {}),
    "tiff": ("TIFF", {}),
    "lzw tiff": ("TIFF", {"compression": "tiff_lzw"}),
}
NO_AVIF = pytest.mark.skipif(features.check("avif") is not True, reason="Pillow lacks AVIF")
MODERN = [pytest.param("AVIF", {"quality": 90}, marks=NO_AVIF), ("HEIC", {"quality": 90})]
EVERY_KIND = pytest.mark.parametrize(
    ("kind", "options"), [*KINDS.values(), *MODERN], ids=[*KINDS, "avif", "heic"]
)


@EVERY_KIND
def test_every_supported_format_is_read_whatever_its_suffix(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(encoded(gradient(), kind, **options))

    image = open_image(path)

    assert (image.mode, image.size) == ("RGB", (56, 40))
    assert np.abs(np.asarray(image).astype(int) - np.asarray(gradient())).mean() < 8  # lossy, GIF


def tiff(width: int, height: int, pixels: bytes, *, bits: tuple[int, ...] = (8,)) -> bytes:
    """An uncompressed TIFF: grey, or colour if there are three numbers of bits."""
    strip = 8 + 2 + 12 * 8 + 4
    place = strip + len(pixels)  # of the numbers of bits, if they do not fit into an entry
    packed = struct.pack(f"<{len(bits)}H", *bits)
    tags = [
        (256, 3, 1, width), (257, 3, 1, height),
        (258, 3, len(bits), bits[0] if len(bits) == 1 else place), (259, 3, 1, 1),
        (262, 3, 1, 2 if len(bits) > 1 else 1), (273, 4, 1, strip), (277, 3, 1, len(bits)),
        (279, 4, 1, len(pixels)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + pixels + packed


def negative(content: bytes) -> bytes:
    """The TIFF with 0 as white instead of black."""
    tag = struct.pack("<HHI", 262, 3, 1)
    assert content.count(tag + b"\1") == 1
    return content.replace(tag + b"\1", tag + b"\0")


def wide(values: Iterable[int], dtype: str = "uint16") -> Image.Image:
    return Image.fromarray(np.array([list(values)], dtype))


def transparent_palette() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    return image


def one(mode: str, colour: Any, kind: str = "PNG", **options: Any) -> bytes:
    """A file of a few equal pixels."""
    return encoded(Image.new(mode, (8, 8), colour), kind, **options)


WHITE, BLACK = (255, 255, 255), (0, 0, 0)
MODES = {
    "1-bit white": (one("1", 1), WHITE),
    "1-bit black": (one("1", 0, "TIFF"), BLACK),
    "grey": (one("L", 77), (77, 77, 77)),
    "LA clear": (one("LA", (0, 0)), WHITE),
    "LA half": (one("LA", (100, 128)), (177, 177, 177)),  # 255 * 127/255 + 100 * 128/255 = 177.2
    "RGBA": (one("RGBA", (200, 100, 50, 128)), (227, 177, 152)),
    "transparent WebP": (one("RGBA", (9, 9, 9, 0), "WEBP", lossless=True), WHITE),
    "palette": (encoded(transparent_palette(), "PNG"), (10, 20, 30)),
    "palette tRNS": (encoded(transparent_palette(), "PNG", transparency=0), WHITE),
    "palette tRNS half": (
        encoded(transparent_palette(), "PNG", transparency=b"\x80\xff"),
        (132, 137, 142),  # 255 * 127/255 + 10 * 128/255 = 132.0, and so on
    ),
    "GIF tRNS": (encoded(transparent_palette(), "GIF", transparency=0), WHITE),
    "RGB tRNS": (one("RGB", (1, 2, 3), transparency=(1, 2, 3)), WHITE),
    "grey tRNS": (one("L", 9, transparency=9), WHITE),
    "16-bit white": (encoded(wide([65535]), "PNG"), WHITE),
    "16-bit grey": (encoded(wide([0x8040]), "PNG"), (128, 128, 128)),
    "16-bit, all but black": (encoded(wide([255]), "TIFF"), BLACK),
    "16-bit tRNS": (encoded(wide([4660]), "PNG", transparency=4660), WHITE),
    "I white": (encoded(wide([65535], "int32"), "TIFF"), WHITE),
    "I too much": (encoded(wide([10**9], "int32"), "TIFF"), WHITE),
    "I negative": (encoded(wide([-5], "int32"), "TIFF"), BLACK),
    "I quarter": (encoded(wide([0x4000], "int32"), "TIFF"), (64, 64, 64)),
    "F, a share of one": (one("F", 0.5, "TIFF"), (128, 128, 128)),
    "F, one": (one("F", 1.0, "TIFF"), WHITE),
    "F, above one": (one("F", 1.5, "TIFF"), (2, 2, 2)),
    "F, infinite": (one("F", np.inf, "TIFF"), WHITE),
    "F, minus infinite": (one("F", -np.inf, "TIFF"), BLACK),
    "F, to 255": (one("F", 99.6, "TIFF"), (100, 100, 100)),
    "F too much": (one("F", 1e9, "TIFF"), WHITE),
    "F not a number": (one("F", np.nan, "TIFF"), BLACK),
    "CMYK": (one("CMYK", (0, 255, 255, 0), "TIFF"), (255, 0, 0)),
    "CMYK JPEG (Adobe)": (one("CMYK", (255, 0, 0, 0), "JPEG", quality=100), (0, 255, 255)),
    "YCbCr": (one("YCbCr", (100, 128, 128), "TIFF"), (100, 100, 100)),
}


@pytest.mark.parametrize(("data", "golden"), MODES.values(), ids=MODES)
def test_every_mode_becomes_rgb_by_the_documented_rule(
    data: bytes, golden: tuple[int, int, int]
) -> None:
    assert pixel(read_image(data, "x")) == golden


def test_a_ycck_jpeg_is_converted_like_a_cmyk_one() -> None:
    cmyk = one("CMYK", (255, 0, 0, 0), "JPEG", quality=100)
    adobe = cmyk.index(b"Adobe") + 11  # the byte that names the colour transform
    ycck = cmyk[:adobe] + b"\2" + cmyk[adobe + 1 :]

    assert pixel(read_image(cmyk, "x")) == (0, 255, 255)
    assert decode(ycck, "x").odd == ("converted from CMYK",)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    "kind", ["JPEG", "PNG", "WEBP", "TIFF", pytest.param("AVIF", marks=NO_AVIF), "HEIC"]
)
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    upright = np.asarray(gradient())
    turned_over = np.rot90(upright, 2)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: turned_over,
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright),  # np.rot90 turns to the left, the viewer turns it back
        7: turned_over.swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, dict[str, Any]] = {
        "JPEG": {"quality": 100, "subsampling": 0},
        "WEBP": {"lossless": True},
        **{name: {"quality": 90} for name in ("AVIF", "HEIC")},
    }
    image = Image.fromarray(np.ascontiguousarray(stored))
    data = encoded(image, kind, exif=exif.tobytes(), **options.get(kind, {}))

    picture = decode(data, "x")

    assert (picture.image.size, picture.image.info) == ((56, 40), {})
    most = 30 if kind in ("AVIF", "HEIC") else 4
    assert np.abs(np.asarray(picture.image).astype(int) - upright).max() <= most
    is_turned = orientation > 1 and kind != "HEIC"  # whose library turns it
    assert ("rotated by EXIF" in picture.odd) == is_turned


def test_a_missing_extra_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRA_LIBRARIES, "heic", ("no_such_library",))

    assert reason(encoded(gradient(), "HEIC")).startswith(
        "HEIC needs no_such_library, which is not installed: run pip install no-such-library"
    )


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"not even a header",
        b"II*\0\xff\xff\xff\xff",  # a directory beyond the end
        b"II*\0\x08\0\0\0\xff\xff\x12\x01",  # 65535 entries announced, none there
        b"II*\0\x08\0\0\0\1\0\x12\1\5\0\1\0\0\0x\0\0\0",  # a fraction that lies nowhere
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_damaged_exif_does_not_cost_the_image(exif: bytes, kind: str) -> None:
    data = encoded(gradient(), kind, exif=b"Exif\0\0" + exif)

    assert read_image(data, "x").size == (56, 40)


def test_an_image_is_decoded_again_if_another_thread_restores_filters_of_warnings() -> None:
    shown = []

    def convert(image: Image.Image, _: Image.Image | None) -> Image.Image:
        shown.append(image)
        if len(shown) < 3:
            raise UserWarning("Corrupt EXIF data")  # as with -W error
        return image

    assert decode(encoded(gradient(), "PNG"), "x", convert=convert).image.size == (56, 40)


def test_gps_coordinates_are_removed() -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8825)[29] = "2020:02:02"
    data = encoded(gradient(), "JPEG", exif=exif, comment=b"at home")

    image = read_image(data, "x")

    assert image.info == {}
    assert b"2020:02:02" not in encoded(image, "JPEG")


@pytest.mark.parametrize(
    ("kind", "remark", "kept"),
    [
        ("GIF", "animated, first frame used", None),
        ("GIF", "animated, first frame used", 80),  # bytes, within the second frame
        ("PNG", "animated, first frame used", None),
        ("WEBP", "animated, first frame used", None),
        ("TIFF", "several images, first one used", None),
        ("MPO", "several images, first one used", None),
    ],
)
def test_the_first_of_several_frames_is_decoded(kind: str, remark: str, kept: int | None) -> None:
    first, second = Image.new("RGB", (16, 16), (255, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 255))
    data = encoded(first, kind, save_all=True, append_images=[second])[:kept]

    picture = decode(data, "x")

    red, green, blue = pixel(picture.image, 8, 8)
    assert red > 245
    assert max(green, blue) < 10
    assert remark in picture.odd


def test_the_fast_decoder_of_photos_makes_the_same_remarks() -> None:
    photo, other = Image.new("RGB", (24, 16), (90, 120, 60)), Image.new("RGB", (24, 16))
    dated = Image.Exif()
    dated.get_ifd(0x8769)[0x9003] = "2021:05:04 03:02:01"
    sound = [
        encoded(photo, "MPO", save_all=True, append_images=[other]),
        encoded(photo, "JPEG", exif=dated),
        encoded(photo, "JPEG"),
    ]
    for data in sound:
        slow, fast = (
            OpenedImage(Row("x.png", 0), data, max_pixels=10**6, fast=fast).facts()
            for fast in (False, True)
        )
        assert fast == slow
        assert "content is JPEG, but the suffix is .png" in fast.odd

    cut_off = b"\xff\xed\0\x14Photoshop 3.0\0008BIM"  # which only Pillow's header parser minds
    data = sound[0][:2] + cut_off + sound[0][2:]
    found = OpenedImage(Row("x.jpg", 0), data, max_pixels=10**6, fast=True).facts()
    assert (found.width, found.height) == (24, 16)


OTHERS = {
    b"": "empty file",
    b"<!DOCTYPE html><html>404</html>": "not an image (looks like HTML)",
    b"\n <html><body>": "not an image (looks like HTML)",
    b'<?xml version="1.0"?><svg xmlns=""/>': "not an image (looks like SVG)",
    b'{"error": "not found"}': "not an image (looks like JSON)",
    b'[{"error": "not found"}]': "not an image (looks like JSON)",
    b"[optim]\nlr = 0.1\n": "not an image (looks like text)",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n": (
        "not an image (looks like a Git LFS pointer: run git lfs pull)"
    ),
    b"hello, world\n": "not an image (looks like text)",
    bytes(5000): "not an image (only zero bytes)",
    b"\x01\x02\xfe\x9f" * 9: "not an image (unknown content)",
}


@pytest.mark.parametrize(("data", "expected"), OTHERS.items(), ids=range(len(OTHERS)))
def test_other_files_get_a_reason_by_their_kind(data: bytes, expected: str) -> None:
    assert reason(data) == expected


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "EPS"),
        (b"%PDF-1.7\n", "PDF"),
        (b"SIMPLE  =                    T", "FITS"),
        (b"8BPS\0\1", "PSD"),
        (b"DDS |\0\0\0", "DDS"),
        (b"\0\0\1\0\1\0", "ICO"),
        (b"P6\n1 1\n255\nabc", "PNM"),
        (b"\0\0\0\x20ftypmp42\0\0\0\0", "MP4"),
        (b"PK\x03\x04\x14\0", "ZIP"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_formats_are_named_and_not_opened(start: bytes, name: str) -> None:
    supported = "(supported: JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF, HEIC)"

    assert reason(start + bytes(100)) == f"unsupported format {name} {supported}"


def test_postscript_does_not_start_a_program(tmp_path: Path) -> None:
    marker, fake = tmp_path / "ran", tmp_path / "bin" / "gs"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\ntouch {marker}\n")
    fake.chmod(0o755)
    picture = tmp_path / "x.jpg"
    picture.write_bytes(encoded(gradient(), "EPS"))
    code = "import sys; from vitft.data.images import open_image; open_image(sys.argv[1])"

    done = python(code, str(picture), env={"PATH": f"{fake.parent}:{os.environ['PATH']}"})

    assert "unsupported format EPS" in done.stderr
    assert not marker.exists()


@EVERY_KIND
def test_a_truncated_file_is_an_error_and_never_half_an_image(
    kind: str, options: dict[str, Any]
) -> None:
    data = encoded(gradient(), kind, **options)
    whole = np.asarray(read_image(data, "x"))
    stream = random.Random(0)

    lengths = [
        *range(len(data) - 20, len(data)),
        *(stream.randrange(len(data)) for _ in range(200)),
    ]
    for length in lengths:
        try:
            image = read_image(data[:length], "x")
        except ImageError:
            continue
        assert (np.asarray(image) == whole).all(), length  # only the end marker is missing
    if kind in ("AVIF", "HEIC"):
        assert reason(data[:-30]).startswith("truncated")


def riff(kind: bytes, body: bytes) -> bytes:
    inner = b"WEBP" + kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(inner)) + inner


BMP_SIZE = struct.pack("<4I2i2H6I", 99, 0, 54, 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0)
BOMBS = {
    "30000x30000 = 900": png_header(30000, 30000)
    + chunk(b"IDAT", zlib.compress(bytes(3751 * 30000))),
    "65535x65535 = 4,295": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b",",
    "65536x65536 = 4,295": riff(b"VP8X", struct.pack("<I", 0) + b"\xff\xff\0" * 2),
    "16384x16384 = 268": riff(b"VP8L", b"\x2f" + struct.pack("<I", 16383 | 16383 << 14) + bytes(9)),
    "60000x60000 = 3,600": b"BM" + BMP_SIZE,
}


@pytest.mark.parametrize(("size", "data"), BOMBS.items(), ids=BOMBS)
def test_a_bomb_is_refused_by_its_header(size: str, data: bytes) -> None:
    assert reason(data) == f"image too large: {size} Mpx, limit 100 Mpx"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_decompression_bomb_does_not_allocate_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(BOMBS["30000x30000 = 900"])
    code = (
        "import re, sys\nfrom pathlib import Path\nfrom vitft.data.images import open_image\n"
        "try: open_image(sys.argv[1])\n"
        "except Exception as error: print(error)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )

    done = python(code, str(path), check=True)

    assert "900 Mpx" in done.stdout
    assert int(done.stdout.split()[-1]) < 300 * 2**10  # KiB


def test_a_broken_chunk_and_a_text_chunk_that_unpacks_to_50_mb_are_damage() -> None:
    info, broken = PngImagePlugin.PngInfo(), bytearray(encoded(gradient(), "PNG"))
    info.add_text("comment", "x" * 50_000_000, zip=True)
    broken[20] ^= 1  # in the header, so that its checksum no longer fits

    for data in (encoded(gradient(), "PNG", pnginfo=info), bytes(broken)):
        assert reason(data).startswith("damaged PNG (")


@pytest.mark.parametrize("size", [(1, 1), (1, 65500), (65500, 1)])
def test_extreme_shapes_are_read(size: tuple[int, int]) -> None:
    assert read_image(encoded(Image.new("RGB", size), "JPEG"), "x").size == size


def test_a_lack_of_memory_is_not_damage() -> None:
    def convert(*_: object) -> Image.Image:
        raise MemoryError

    with pytest.raises(ImageError, match="not enough memory"):
        decode(encoded(gradient(), "PNG"), "x", convert=convert)


def test_a_changed_file_and_an_impossible_name_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(gradient(), "PNG"))

    with pytest.raises(ImageError, match="its content has changed"):
        open_image(tmp_path / "a.png", sha256="0" * 64)
    with pytest.raises(ImageError, match="not found"):
        open_image("a\0.png")


def test_a_socket_a_device_and_a_folder_are_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "x.jpg"))
        for path in (tmp_path / "x.jpg", Path("/dev/zero"), tmp_path):
            with pytest.raises(ImageError, match="not a regular file"):
                open_image(path)


def test_an_oversized_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.touch()
    os.truncate(path, 10**10)
    with pytest.raises(ImageError, match=r"it has 10,000,000,000 bytes, more than the limit"):
        read_bytes(path)
    for size, pixels in ((8 * 1000 + 2**26, 999), (8 * 1000 + 2**26 + 1, 1000)):
        os.truncate(path, size)
        with pytest.raises(ImageError, match="more than the limit"):
            read_bytes(path, max_pixels=pixels)
        assert len(read_bytes(path, max_pixels=pixels + 1)) == size


def mutated(data: bytes, stream: random.Random) -> bytes:
    """Flip, set, insert, cut out or overwrite a few bytes, mostly near the start."""
    result = bytearray(data)
    act = stream.randrange(5)
    for _ in range(stream.choice((1, 1, 2, 8))):
        near = min(len(result), 200) if stream.random() < 0.5 else len(result)
        place = stream.randrange(near)
        noise = bytes(stream.randrange(256) for _ in range(stream.randrange(1, 9)))
        if act == 0:
            result[place] ^= 1 << stream.randrange(8)
        elif act == 1:
            result[place] = stream.choice((0, 1, 127, 128, 255))
        elif act == 2:
            result[place:place] = noise
        elif act == 3:
            del result[place : place + len(noise)]
        else:
            result[place : place + len(noise)] = noise
    return bytes(result)


@EVERY_KIND
def test_a_thousand_mutants_are_images_or_image_errors(
    kind: str, options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    extra = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP") else {}
    data = encoded(gradient(), kind, **options, **extra)
    stream = random.Random(kind)
    read, reasons = 0, []

    for _ in range(1000):
        try:
            assert read_image(mutated(data, stream), "x").mode == "RGB"
            read += 1
        except ImageError as error:
            reasons.append(error.reason)

    if sys.platform != "win32":  # where libtiff's functions are not exported
        assert capfd.readouterr().err == ""  # libtiff writes to the descriptor, not to sys.stderr
    assert read > 0
    assert reasons
    assert all(0 < len(text) < 120 for text in reasons)


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
