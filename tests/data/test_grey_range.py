"""More than 8 bits per channel: one range for the data set, kept in the transform of the model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.test_images import encoded, gradient
from vitft.cli.main import main
from vitft.data import decode, grey_levels, measure_grey_range, read_image, scan
from vitft.models import open_checkpoint
from vitft.predict import decode_view

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

    greys = np.asarray(read_image(picture(values, kind), "x", grey_range=(1000, 2000)))[0, :, 0]

    assert greys.tolist() == [0, 0, 128, 255, 255]  # 127.5 rounds to even


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


# ---- whole runs


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Two classes of 12-bit images that the upper 8 of 16 bits do not tell apart."""
    random = np.random.default_rng(0)
    images = {
        f"{name}/{i:02}": (random.integers(0, 60, (20, 24)) + level).astype(np.uint16)
        for name, level in (("dark", 0), ("light", 150))
        for i in range(12)
    }
    return fill(tmp_path / "scans", images)


def test_a_run_learns_and_predicts_with_the_range_of_its_data(
    scans: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = scans.parent / "run"
    given = ["--data", str(scans), "--weights", str(tiny_weights), "--out", str(run)]
    assert main(["finetune", *given, "--group-duplicates"]) == 0
    shown = capsys.readouterr()

    assert "24 images with more than 8 bits per channel: values from 0 to 209" in shown.err
    card = open_checkpoint(run / "model.safetensors").card
    assert card.transform.grey_range == (0, 209)
    files = [str(scans / name / "00.png") for name in ("dark", "light")]
    answers = []
    for engine in ("numpy", "torch"):
        options = ["--run", str(run), "--engine", engine, "--format", "jsonl"]
        assert main(["predict", *files, *options]) == 0
        answers.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert [row["classes"][0]["class"] for row in answers[0]] == ["dark", "light"]
    assert [row["classes"][0]["class"] for row in answers[1]] == ["dark", "light"]
    view = decode_view(Path(files[1]).read_bytes(), "x", card.transform)
    assert view.mean() > 150  # without the range: 0


# ---- several pages, wide colour


def pages(number: int, **options: Any) -> bytes:
    others = [gradient(8 + i, 8) for i in range(1, number)]
    return encoded(gradient(8, 8), "TIFF", save_all=True, append_images=others, **options)


def test_predictions_and_evaluations_note_the_first_of_several_pages(
    image_folder: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, scan_file = image_folder.parent / "run", image_folder / "red" / "scan.tif"
    given = ["--data", str(image_folder), "--weights", str(tiny_weights), "--out", str(run)]
    assert main(["finetune", *given, "--cache", "none"]) == 0
    scan_file.write_bytes(pages(3))
    capsys.readouterr()

    assert main(["predict", str(scan_file), "--run", str(run), "--format", "csv"]) == 0
    assert "first of several pages" in capsys.readouterr().out
    assert main(["evaluate", "--data", str(image_folder), "--run", str(run)]) == 0
    assert "used only the first of several pages in 1 image" in capsys.readouterr().err


@pytest.fixture
def scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of six images in the current folder, one of which has three pages."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("old", "young"):
        Path("data", name).mkdir(parents=True)
        for i in range(6):
            values = random.integers(0, 256, (80, 80, 3), np.uint8) // (2 if name == "old" else 1)
            Image.fromarray(values).save(f"data/{name}/{i}.png")
    further = [Image.fromarray(random.integers(0, 256, (80, 80, 3), np.uint8)) for _ in "bc"]
    first = Image.open("data/old/0.png", formats=["PNG"])
    first.save("data/old/scan.tif", save_all=True, append_images=further)
    return Path("data/old/scan.tif")


def test_training_and_checks_state_which_image_has_several_pages(
    scanned: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remark = "several images, first one used"
    assert main(["finetune", "--data", "data", "--weights", str(tiny_weights), "--out", "run"]) == 0
    assert f"{remark}: 1 image" in capsys.readouterr().err
    noted = {"path": "old/scan.tif", "reason": remark, "label": "old"}
    assert noted in json.loads(Path("run/audit.json").read_text())["odd"]
    assert remark in Path("run/report.html").read_text()

    assert main(["check", "data", "--out", "checked"]) == 0
    assert f"old/scan.tif: {remark}" in capsys.readouterr().out
    assert remark in Path("checked/check.html").read_text()
    assert main(["check", "data", "--out", "again", "--format", "json"]) == 0
    assert noted in json.loads(capsys.readouterr().out)["odd"]
