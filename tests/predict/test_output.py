"""Rows of hostile names in every format, and files that are resumed to the same bytes."""

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import save_model
from tests.support.fail_points import FailPoints
from vitft.cli.main import main
from vitft.models import VisionTransformer
from vitft.predict import Prediction

NAMES = (
    "a.jpg", "=1+1.jpg", 'quo"te.jpg', "line\nbreak.jpg", "comma, blank.jpg", "b\udcff.jpg",
    "ü.jpg", "\x1b[2J.jpg",
)  # fmt: skip
CLASSES = ("=rose", "a\nb", "tulip")
COLUMNS = ["path", "class", "probability", "class_2", "probability_2", "notes", "error"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_vit: VisionTransformer) -> Path:
    """A current folder with a random model and files of hostile names, of which two are damaged."""
    monkeypatch.chdir(tmp_path)
    tiny_vit.head.weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    save_model(tmp_path / "m.safetensors", tiny_vit, CLASSES)
    random = np.random.default_rng(0)
    for name in NAMES:
        Image.fromarray(random.integers(0, 256, (20, 24, 3), np.uint8)).save(
            os.fsencode(name), format="PNG"
        )
    Path("damaged.jpg").write_bytes(b"")
    Path("=damaged.jpg").write_bytes(b"text")
    return tmp_path


def predict(*options: str) -> int:
    names = [*NAMES, "damaged.jpg", "=damaged.jpg"]
    return main(["predict", *names, "--run", "m.safetensors", "--device", "cpu", *options])


def test_csv_cells_are_not_formulas_and_every_row_has_every_column() -> None:
    assert predict("--top-k", "2", "--threshold", "1", "--out", "o.csv") == 3

    with Path("o.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        header, *rows = csv.reader(file)
    assert header == COLUMNS
    assert [row[0] for row in rows] == [
        name.replace("=", "'=", 1) if name[0] == "=" else name
        for name in (*NAMES, "damaged.jpg", "=damaged.jpg")
    ]
    assert {row[1] for row in rows} <= {"'=rose", "a\nb", "tulip", ""}
    assert [row[5] for row in rows] == ["not sure"] * len(NAMES) + ["", ""]
    assert [bool(row[6]) for row in rows] == [False] * len(NAMES) + [True, True]


@pytest.mark.parametrize("style", ["jsonl", "json", "txt", "csv", "csv --bom", "parquet"])
def test_a_file_cut_anywhere_is_resumed_to_the_same_bytes(here: Path, style: str) -> None:
    suffix, *bom = style.split()
    predict("--top-k", "2", "--out", f"whole.{suffix}", *bom)
    whole = Path(f"whole.{suffix}").read_bytes()
    assert whole.startswith(b"\xef\xbb\xbf") == bool(bom)
    job = ["--top-k", "2", "--out", f"o.{suffix}", *bom]
    with FailPoints(here) as points:
        assert predict(*job) == 3
    Path(f"o.{suffix}").unlink()
    with FailPoints(here, points.calls.index(f"replace .o.{suffix}.part"), "ENOSPC"):
        assert predict(*job) == 6
    part = Path(f"o.{suffix}.part").read_bytes()

    for size in [*range(0, len(part), 101), len(part) - 1, len(part)]:
        Path(f"o.{suffix}.part").write_bytes(part[:size])
        assert predict(*job, "--resume") == 3

        assert Path(f"o.{suffix}").read_bytes() == whole
        Path(f"o.{suffix}").unlink()
    assert [*Path().glob("o.*")] == []


def test_a_workbook_has_the_columns_of_csv_no_formulas_and_filters() -> None:
    openpyxl = pytest.importorskip("openpyxl")

    predict("--top-k", "2", "--threshold", "1", "--out", "o.xlsx")

    sheet = openpyxl.load_workbook("o.xlsx").active
    header, *rows = sheet.iter_rows()
    assert [cell.value for cell in header] == COLUMNS
    assert [row[0].value for row in rows] == [
        *NAMES[:5], "b\\udcff.jpg", "ü.jpg", "\\x1b[2J.jpg", "damaged.jpg", "=damaged.jpg",
    ]  # fmt: skip
    assert {cell.data_type for row in rows for cell in row if cell.value} == {"s", "n"}  # no "f"
    assert rows[0][0].alignment.wrap_text
    assert all(cell.font.bold for cell in header)


def test_a_prediction_set_of_several_classes_is_shown_in_braces() -> None:
    one = Prediction(path="a.jpg", classes=("cat",), probabilities=(0.6,))

    text = repr(replace(one, prediction_set=("cat", "dog")))

    assert text == "Prediction('a.jpg': cat 60.0% {cat, dog})"
