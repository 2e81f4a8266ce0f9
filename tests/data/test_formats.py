"""AVIF and HEIC: read like the other formats, within the same limits, or named with the remedy."""

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from tests.data.test_images import encoded, gradient, mutated, reason
from vitft.cli.main import main
from vitft.data import read_image
from vitft.system import EXTRA_LIBRARIES, ImageError

heif: Any = pytest.importorskip("pillow_heif", reason="the extra `heic` is not installed")
HAS_AVIF = features.check("avif") is True
KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("AVIF", marks=pytest.mark.skipif(not HAS_AVIF, reason="Pillow lacks AVIF")),
        "HEIC",
    ],
)


def modern(kind: str, picture: Image.Image | None = None, **options: Any) -> bytes:
    picture = picture or gradient()
    if kind == "AVIF":
        return encoded(picture, "AVIF", **options)
    buffer, picture = io.BytesIO(), picture.copy()
    picture.encoderinfo = {"quality": 90, **options}  # as Pillow calls a plugin
    heif.as_plugin._save_heif(picture, buffer, "")
    return buffer.getvalue()


@KINDS
def test_the_picture_is_that_of_the_same_png(kind: str) -> None:
    image = read_image(modern(kind), f"x.{kind.lower()}")

    assert (image.mode, image.size) == ("RGB", (56, 40))
    assert np.abs(np.asarray(image, int) - np.asarray(gradient(), int)).max() <= 30
    assert not image.info


@KINDS
def test_phone_photos_are_upright(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = modern(kind, gradient().transpose(Image.Transpose.ROTATE_90), exif=exif.tobytes())

    upright = read_image(lying, "x")

    assert upright.size == (56, 40)
    assert np.abs(np.asarray(upright, int) - np.asarray(gradient(), int)).max() <= 30


@KINDS
def test_a_truncated_modern_file_is_an_error_and_never_half_an_image(kind: str) -> None:
    data, stream = modern(kind), random.Random(0)
    whole = np.asarray(read_image(data, "x"))

    for length in [len(data) - 1, *(stream.randrange(1, len(data)) for _ in range(100))]:
        try:
            image = read_image(data[:length], "x")
        except ImageError:
            continue
        assert (np.asarray(image) == whole).all(), length
    assert reason(data[:-30]) == f"truncated ({len(data) - 30} of {len(data)} bytes)"


@KINDS
def test_modern_mutants_are_images_or_image_errors(kind: str) -> None:
    data, stream = modern(kind), random.Random(kind)
    read, reasons = 0, []

    for _ in range(500):
        try:
            assert read_image(mutated(data, stream), "x").mode == "RGB"
            read += 1
        except ImageError as error:
            reasons.append(error.reason)

    assert read > 0
    assert reasons
    assert all(0 < len(text) < 120 for text in reasons)


def test_a_missing_extra_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRA_LIBRARIES, "heic", ("no_such_library",))

    assert reason(modern("HEIC")).startswith(
        "HEIC needs no_such_library, which is not installed: run pip install 'pillow-heif>="
    )


@KINDS
def test_a_class_of_modern_files_is_trained_on_and_predicted(
    kind: str, image_folder: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sorted((image_folder / "red").iterdir()):
        with Image.open(file, formats=["PNG"]) as picture:
            data = modern(kind, picture.convert("RGB"))
        file.with_suffix(f".{kind.lower()}").write_bytes(data)
        file.unlink()
    run = image_folder.parent / "run"
    given = ["--data", str(image_folder), "--weights", str(tiny_weights), "--out", str(run)]

    assert main(["finetune", *given, "--cache", "none"]) == 0
    assert main(["predict", str(image_folder / "red"), "--run", str(run), "--format", "csv"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert sum(f".{kind.lower()},red," in line for line in lines) == 10
