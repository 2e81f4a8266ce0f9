"""More than 8 bits per channel: one range for the data set, kept in the transform of the model."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.contract.built.images import png, tiff
from tests.data.test_images import encoded
from vitft.data import decode, grey_levels, measure_grey_range, scan

Array = np.ndarray[Any, np.dtype[Any]]
LIMIT = 10**8


def picture(values: Array, kind: str = "PNG") -> bytes:
    return encoded(Image.fromarray(values), kind)


def twelve_bits(seed: int, *, darkest: int = 0, brightest: int = 4095) -> Array:
    """A 12-bit image, as microscopes and X-ray detectors save them in 16-bit files."""
    values = np.random.default_rng(seed).integers(darkest, brightest + 1, (20, 24))
    values[0, :2] = darkest, brightest
    return values.astype(np.uint16)


def fill(root: Path, images: dict[str, Array], kind: str = "PNG") -> Path:
    suffix = {"PNG": "png", "TIFF": "tif"}[kind]
    for name, values in images.items():
        path = root / f"{name}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(values, kind))
    return root


def measured(root: Path) -> tuple[float, ...]:
    return measure_grey_range(scan(root), max_pixels=LIMIT)


def test_twelve_bits_in_a_16_bit_file_keep_all_256_grey_levels() -> None:
    ramp = Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64))

    assert len(np.unique(grey_levels(ramp))) == 16  # the upper 8 of 16 bits
    assert len(np.unique(grey_levels(ramp, (0, 4095)))) == 256


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_a_range_maps_values_linearly_and_clips_the_rest(dtype: str) -> None:
    values = np.array([[0, 1000, 1500, 2000, 60000]], dtype)
    kind = "PNG" if dtype == "uint16" else "TIFF"

    image = decode(picture(values, kind), "x", grey_range=(1000, 2000)).image
    greys = np.asarray(image)[0, :, 0]

    assert greys.tolist() == [0, 0, 128, 255, 255]  # 127.5 rounds to even


@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
def test_a_tiff_may_store_white_as_0(kind: str) -> None:
    values = twelve_bits(0)[:, :, None].astype(kind)

    for limits in ((), (0, 4095)):
        usual, other = (
            np.asarray(decode(tiff(values, kind=photometric), "x", grey_range=limits).image)
            for photometric in (1, 0)
        )
        assert (usual.astype(int) + other == 255).all()


def test_the_range_covers_the_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = {
        "a/1": twelve_bits(1, darkest=100, brightest=900),
        "a/2": twelve_bits(2, darkest=300, brightest=4000),
        "b/1": twelve_bits(3, darkest=200, brightest=2000),
    }

    assert measured(fill(tmp_path, images)) == (100, 4000)
    assert capsys.readouterr().err == (
        "3 images with more than 8 bits per channel: values from 100 to 4,000 (the range of the "
        "dataset) are scaled to 8 bits\n"
    )


def test_floats_above_one_have_one_range_and_do_not_clip(tmp_path: Path) -> None:
    ramp = np.linspace(0, 1, 480, dtype=np.float32).reshape(20, 24)
    root = fill(tmp_path, {"a/1": ramp * 812.5, "b/1": ramp * 0.5}, "TIFF")

    low, high = measured(root)

    assert (low, high) == (0, 812.5)
    dim = decode((root / "b" / "1.tif").read_bytes(), "x", grey_range=(low, high)).image
    bright = decode((root / "a" / "1.tif").read_bytes(), "x", grey_range=(low, high)).image
    assert np.asarray(dim).max() == 0  # 0.5 of 812.5, not half of the range of its own file
    assert len(np.unique(np.asarray(bright))) == 256


def test_defective_pixels_do_not_stretch_the_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 4096, (100, 100)).astype(np.uint16)
    hot = values.copy()
    hot[50, 50] = 65535

    low, high = measured(fill(tmp_path, {"a/1": hot, "b/1": values}))

    assert 0 <= low < 20
    assert 4075 < high <= 4095
    assert "clipping outliers" in capsys.readouterr().err


@pytest.mark.parametrize(("brightest", "is_kept"), [(3900, True), (4300, False)])
def test_a_tail_is_clipped_if_it_is_four_times_as_long_as_the_rest(
    tmp_path: Path, brightest: int, is_kept: bool
) -> None:
    values = np.arange(10_000, dtype=np.uint16).reshape(100, 100) % 1000
    values[50, 50] = brightest

    _, high = measured(fill(tmp_path, {"a/1": values, "b/1": values}))

    assert (high == brightest) is is_kept


def test_only_training_images_set_the_range(tmp_path: Path) -> None:
    train = {f"train/{c}/1": twelve_bits(1, brightest=1000) for c in "ab"}
    val = {f"val/{c}/1": twelve_bits(1, brightest=4000) for c in "ab"}

    assert measured(fill(tmp_path, {**train, **val})) == (0, 1000)


@pytest.mark.parametrize(("value", "kind"), [(7, "PNG"), (np.nan, "TIFF")])
def test_equal_or_absent_values_have_no_range(tmp_path: Path, value: float, kind: str) -> None:
    values = np.full((8, 8), value, np.uint16 if kind == "PNG" else np.float32)

    assert measured(fill(tmp_path, {"a/1": values, "b/1": values}, kind)) == ()


def test_one_of_the_16_bit_colours_may_be_transparent() -> None:
    clear, near = (258, 772, 1286), (258, 772, 1287)
    data = png(np.array([[clear, near]], np.uint16), (b"tRNS", struct.pack(">3H", *clear)))

    assert np.asarray(decode(data, "x").image).tolist() == [[[255, 255, 255], [1, 3, 5]]]
