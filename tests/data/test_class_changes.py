"""Classes renamed, merged and left out by a table: no file is touched."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from tests.data.test_folder import touch
from tests.training.test_table_runs import train, write_table
from vitft.cli.main import main
from vitft.config import DataSpec
from vitft.data import Images, scan
from vitft.system import RunError

HEAD = "class,new_class\n"


def scanned(data: Path, text: str, name: str = "classes.csv") -> Images:
    table = data.parent / name
    table.write_bytes(text.encode("utf-8", "surrogateescape"))
    return scan(data, DataSpec(classes=str(table)))


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_class_is_found_in_another_unicode_form(tmp_path: Path, is_apart: bool) -> None:
    folder, cell = "G\u00e4nse", unicodedata.normalize("NFD", "G\u00e4nse")
    if is_apart:
        folder, cell = cell, folder
    touch(tmp_path / "data", f"{folder}/1.png", "rose/1.png", "tulip/1.png")

    found = scanned(tmp_path / "data", HEAD + f"{cell},daisy\n")

    assert found.classes == ("daisy", "rose", "tulip")


SETTINGS: dict[str, Any] = {"optim": {"solver": "lbfgs", "l2": 1.0}}


def test_a_run_on_changed_classes_equals_one_on_renamed_folders_to_the_bit(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.csv").write_text(HEAD + "red,warm\nblue,\n")
    other = draw_folder(tmp_path / "other", per_class=10)
    (other / "red").rename(other / "warm")
    for path in (other / "blue").iterdir():
        path.unlink()
    (other / "blue").rmdir()

    classes = {"data": {"classes": str(tmp_path / "c.csv")}}
    one = train(image_folder, tiny_weights, tmp_path / "one", **SETTINGS, **classes).run
    two = train(other, tiny_weights, tmp_path / "two", **SETTINGS).run
    table = write_table(image_folder)
    three = train(table, tiny_weights, tmp_path / "three", **SETTINGS, **classes).run

    text = (one / "split.csv").read_text().replace("red/", "warm/")
    assert text == (two / "split.csv").read_text()
    for file in ("validation.npz", "class_indices.json"):
        assert (one / file).read_bytes() == (two / file).read_bytes(), file
    for file in ("model.safetensors", "split.csv", "validation.npz"):
        assert (one / file).read_bytes() == (three / file).read_bytes(), file


def test_a_table_changed_between_a_stop_and_the_resume_is_refused(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "c.csv"
    table.write_text(HEAD + "red,warm\n")
    words = ["--data", str(image_folder), "--weights", str(tiny_weights), "--solver", "adamw"]
    words += ["--classes", str(table), "--epochs", "2", "--max-time", "0.001s"]
    assert main(["finetune", *words, "--out", str(tmp_path / "run")]) == 0
    table.write_text(HEAD + "red,hot\n")

    assert main(["finetune", "--resume", str(tmp_path / "run")]) == RunError.exit_code

    assert "10 images have changed since the start of" in capsys.readouterr().err
