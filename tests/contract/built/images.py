"""Images that Pillow cannot write: 16-bit colour, TIFF files of many kinds, and other formats."""

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Samples = np.ndarray[Any, np.dtype[Any]]
SIDE = 16


def tiff(
    samples: Samples,
    *,
    order: str = "<",
    separate: bool = False,
    packed: bool = False,
    extra: Sequence[int] = (),
    kind: int = 2,
    compression: int = 1,
) -> bytes:
    """Return a TIFF file with samples (height, width, bands); `kind` is the photometric one."""
    height, width, bands = samples.shape
    values = samples.astype(f"{order}{samples.dtype.str[1:]}")
    planes = [values[:, :, i] for i in range(bands)] if separate else [values]
    strips = [zlib.compress(p.tobytes()) if packed else p.tobytes() for p in planes]
    tags: list[tuple[int, str, Sequence[int]]] = [
        (256, "I", [width]),
        (257, "I", [height]),
        (258, "H", [8 * samples.dtype.itemsize] * bands),
        (259, "H", [8 if packed else compression]),
        (262, "H", [kind]),
        (273, "I", [0] * len(strips)),
        (277, "H", [bands]),
        (278, "I", [height]),
        (279, "I", [len(strip) for strip in strips]),
        (284, "H", [2 if separate else 1]),
        *([(338, "H", extra)] if extra else []),
        (339, "H", [{"u": 1, "i": 2, "f": 3}[samples.dtype.kind]] * bands),
    ]
    place = 8 + 2 + 12 * len(tags) + 4
    offsets = [place + sum(map(len, strips[:i])) for i in range(len(strips))]
    entries, body = b"", b"".join(strips)
    for tag, letter, numbers in tags:
        found = offsets if tag == 273 else numbers
        value = struct.pack(f"{order}{len(found)}{letter}", *found)
        if len(value) > 4:
            body, value = body + value, struct.pack(f"{order}I", place + len(body))
        number = {"H": 3, "I": 4}[letter]
        entries += struct.pack(f"{order}HHI", tag, number, len(found)) + value.ljust(4, b"\0")
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(f"{order}IH", 8, len(tags)) + entries + bytes(4) + body


def png(samples: Samples, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a 16-bit PNG file: grey or RGB, each also with alpha, and with further chunks."""
    height, width, channels = samples.shape
    head = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    every = [(b"IHDR", head), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in every
    )


def draw(folder: Path, suffix: str, file: Callable[[Samples], bytes], *, bands: int = 3) -> None:
    """Write 12 images each of the classes cat and dog, which differ below the upper 8 of 16 bits.

    The function `file` gets values (SIDE, SIDE, bands) from 0 to 249 in uint16.
    """
    random = np.random.default_rng(0)
    for name, level in (("cat", 0), ("dog", 190)):
        (folder / name).mkdir(exist_ok=True)
        for i in range(12):
            values = random.integers(0, 60, (SIDE, SIDE, bands)) + level
            (folder / name / f"{i}.{suffix}").write_bytes(file(values.astype(np.uint16)))


def opaque(values: Samples) -> Samples:
    """Return the values with an opaque alpha channel of 16 bits."""
    return np.concatenate([values, np.full_like(values[:, :, :1], 65535)], axis=2)


def bytes_of(values: Samples) -> Samples:
    return values.astype(np.uint8)


png_colour = partial(draw, suffix="png", file=png)
png_alpha = partial(draw, suffix="png", file=lambda values: png(opaque(values)))
png_grey_alpha = partial(png_alpha, bands=1)
png_full_range = partial(draw, suffix="png", file=lambda values: png(values * 257))

tiff_colour = partial(draw, suffix="tif", file=tiff)
tiff_big_endian = partial(draw, suffix="tif", file=partial(tiff, order=">", packed=True))
tiff_separate = partial(draw, suffix="tif", file=partial(tiff, separate=True))
tiff_big_endian_floats = partial(
    draw,
    suffix="tif",
    file=lambda values: tiff(values.astype(np.float32) / 249, order=">", packed=True, kind=1),
    bands=1,
)
tiff_premultiplied_grey = partial(
    draw,
    suffix="tif",
    file=lambda values: tiff(bytes_of(opaque(values)), kind=1, extra=[1]),
    bands=1,
)


def draw_bands(folder: Path, bands: int, **options: Any) -> None:
    """Write TIFF files of so many bands of 8 bits."""
    draw(folder, "tif", lambda values: tiff(bytes_of(values), **options), bands=bands)


two_bands = partial(draw_bands, bands=2, kind=1, extra=[0])
three_bands = partial(draw_bands, bands=3)
four_bands = partial(draw_bands, bands=4, extra=[0])
four_unnamed_bands = partial(draw_bands, bands=4)
five_bands = partial(draw_bands, bands=5, extra=[0, 0])
wide_four_bands = partial(draw, suffix="tif", file=partial(tiff, extra=[0]), bands=4)
thirteen_bands = partial(draw, suffix="tif", file=partial(tiff, kind=1, extra=[0] * 12), bands=13)


def png_in_folder(folder: Path) -> None:
    (folder / "12bit").mkdir()
    draw(folder / "12bit", "png", png)


def png_absolute(folder: Path) -> None:
    """Write the folder 12bit, and list.txt with the absolute path of one of its images."""
    png_in_folder(folder)
    (folder / "list.txt").write_text(f"{(folder / '12bit' / 'cat' / '0.png').absolute()}\n")


def png_grey_and_colour(folder: Path) -> None:
    draw(folder, "png", png)
    draw(folder, "grey.png", png, bands=1)


def unsupported(folder: Path) -> None:
    """Write one file of each kind that is sound but not read, beside 24 images that are."""
    draw(folder, "png", png)
    values = np.random.default_rng(1).integers(0, 200, (SIDE, SIDE, 13))
    bmp, grey = io.BytesIO(), values[:, :, :1]
    Image.new("RGB", (SIDE, SIDE)).save(bmp, "BMP")
    files = {
        "float64.tif": tiff(grey.astype(np.float64), kind=1),
        "float16.tif": tiff(grey.astype(np.float16), kind=1),
        "colour.tif": tiff(values[:, :, :3].astype(np.float32)),
        "signed.tif": tiff(values[:, :, :3].astype(np.int16)),
        "planes.tif": tiff(
            bytes_of(values[:, :, :2]), kind=1, extra=[2], separate=True, packed=True
        ),
        "floats.tif": tiff(grey.astype(np.float32), kind=1, separate=True),
        "lerc.tif": tiff(bytes_of(grey), kind=1, compression=34887),
        "depth.bmp": bmp.getvalue()[:28] + b"\7" + bmp.getvalue()[29:],
    }
    for name, data in files.items():
        (folder / "cat" / name).write_bytes(data)


def many_float64(folder: Path) -> None:
    """Write 12 images of 64-bit floats beside 24 images that are read."""
    draw(folder, "png", png)
    for i in range(12):
        samples = np.full((SIDE, SIDE, 1), i, np.float64)
        (folder / "cat" / f"{i}.tif").write_bytes(tiff(samples, kind=1))


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + kind + content


def other_formats(folder: Path) -> None:
    """Write files of other formats as .jpg beside 24 images."""
    draw(folder, "png", png)
    tga, pcx = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), "red").save(tga, "TGA")
    Image.new("RGB", (SIDE, SIDE), "red").save(pcx, "PCX")
    files = {
        "tga": tga.getvalue(),
        "pcx": pcx.getvalue(),
        "cur": b"\0\0\2\0\1\0" + bytes(60),
        "miff": b"id=ImageMagick  version=1.0\n",
        "pgx": b"PG ML + 8 16 16\n",
        "dicom": bytes(128) + b"DICM" + bytes(60),
        "heif": box(b"ftyp", b"1pic" + bytes(4) + b"mif1unif") + bytes(60),
        "cr3": box(b"ftyp", b"crx " + bytes(4) + b"crx isom") + bytes(60),
        "mp4": box(b"ftyp", b"isom" + bytes(4) + b"isommp42") + bytes(60),
    }
    for name, data in files.items():
        (folder / "cat" / f"{name}.jpg").write_bytes(data)


def kernel_files(folder: Path) -> None:
    """Write links to files of the kernel beside 24 images."""
    draw(folder, "png", png)
    (folder / "cat" / "endless.jpg").symlink_to("/proc/self/pagemap")
    (folder / "cat" / "waiting.jpg").symlink_to("/proc/kmsg")
