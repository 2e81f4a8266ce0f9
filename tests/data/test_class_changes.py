"""Classes renamed, merged and left out by a table: no file is touched."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from tests.data.test_folder import touch
from tests.support.pictures import contents
from tests.training.test_table_runs import train, write_table
from vitft.cli.main import main
from vitft.config.run import config_from_table
from vitft.config.sections import DataSpec
from vitft.data.folder import Folder
from vitft.data.labelled import find_labelled
from vitft.data.scan import scan
from vitft.data.split import Manifest
from vitft.system.errors import DataError, RunError, UsageError
from vitft.training.checks import check_request

HEAD = "class,new_class\n"


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """Four classes with two files each."""
    names = ("daisy", "rose", "tulip", "weed")
    touch(tmp_path / "data", *(f"{name}/{i}.png" for name in names for i in range(2)))
    return tmp_path / "data"


def scanned(data: Path, text: str, name: str = "classes.csv") -> Folder:
    table = data.parent / name
    table.write_bytes(text.encode("utf-8", "surrogateescape"))
    return scan(data, DataSpec(classes=str(table)))


def labels(folder: Folder) -> dict[str, str]:
    return {file.path: folder.classes[file.label] for file in folder.files}


def test_classes_are_renamed_merged_and_left_out(flowers: Path) -> None:
    before = contents(flowers)

    found = scanned(flowers, HEAD + "rose,shrub\ndaisy,herb\ntulip,herb\nweed,\n")

    assert found.classes == ("herb", "shrub")
    assert labels(found) == {
        "daisy/0.png": "herb", "daisy/1.png": "herb", "tulip/0.png": "herb",
        "tulip/1.png": "herb", "rose/0.png": "shrub", "rose/1.png": "shrub",
    }  # fmt: skip
    assert list(found.files) == sorted(found.files, key=lambda file: (file.label, file.path))
    note = "classes.csv: 4 of 4 classes changed, 2 left (2 images left out)"
    assert note in found.notes
    assert contents(flowers) == before


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ("rose,rose\n", "0 of 4 classes changed, 4 left"),
        ("rose,a\ndaisy,b\n", "2 of 4 classes changed, 4 left"),
        ("rose,tulip\n", "1 of 4 classes changed, 3 left"),
        ("rose,a\ndaisy,a\ntulip,b\nweed,b\n", "4 of 4 classes changed, 2 left"),
        ("rose,tulip\ntulip,rose\nweed,\ndaisy,\n",
         "4 of 4 classes changed, 2 left (4 images left out)"),
    ],
)  # fmt: skip
def test_a_note_counts_the_changes(flowers: Path, rows: str, note: str) -> None:
    assert f"classes.csv: {note}" in scanned(flowers, HEAD + rows).notes


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_class_is_found_in_another_unicode_form(tmp_path: Path, is_apart: bool) -> None:
    folder, cell = "G\u00e4nse", unicodedata.normalize("NFD", "G\u00e4nse")
    if is_apart:
        folder, cell = cell, folder
    touch(tmp_path / "data", f"{folder}/1.png", "rose/1.png", "tulip/1.png")

    found = scanned(tmp_path / "data", HEAD + f"{cell},daisy\n")

    assert found.classes == ("daisy", "rose", "tulip")


def test_a_class_may_take_the_name_of_another_that_keeps_it(flowers: Path) -> None:
    found = scanned(flowers, HEAD + "tulip,rose\n")

    assert found.classes == ("daisy", "rose", "weed")
    assert labels(found)["tulip/1.png"] == "rose"


def test_two_classes_exchange_their_names(flowers: Path) -> None:
    found = scanned(flowers, HEAD + "tulip,rose\nrose,tulip\n")

    assert labels(found)["tulip/0.png"] == "rose"
    assert labels(found)["rose/0.png"] == "tulip"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", "note;New_Class; CLASS\n;shrub;rose\n;;weed\n"),
        ("c.tsv", "class\tnew_class\nrose\t shrub \nweed\t\n"),
        ("c.jsonl", '{"class": "rose", "new_class": "shrub"}\n{"class": "weed"}\n'),
    ],
)
def test_formats_and_orders_of_columns(flowers: Path, name: str, text: str) -> None:
    assert scanned(flowers, text, name).classes == ("daisy", "shrub", "tulip")


def test_an_empty_class_folder_may_be_left_out_and_no_other(flowers: Path) -> None:
    (flowers / "empty").mkdir()

    assert "empty" not in scanned(flowers, HEAD + "empty,\n").classes
    with pytest.raises(DataError, match="no images in 1 of 5 class folders: empty"):
        scanned(flowers, HEAD + "weed,\n")


BROKEN: dict[str, tuple[str, str]] = {
    "empty file": ("", "no column named class; columns found: none"),
    "no new_class": (
        "class,label\nrose,x\n",
        "line 1: no column named new_class; columns found: class",
    ),
    "no class": ("new_class\nrose\n", "line 1: no column named class"),
    "column twice": ("class,Class,new_class\na,b,c\n", "line 1: more than one column named class"),
    "no rows": (HEAD, "the table lists no classes"),
    "too few cells": (
        HEAD + "rose,a\ntulip\n",
        "line 3, column new_class: found 1 cell instead of 2",
    ),
    "too many cells": (HEAD + "rose,a,b\n", "line 2, column new_class: found 3 cells instead of 2"),
    "one cell of four": (
        "a,class,b,new_class\n1\n",
        "line 2, column class: found 1 cell instead of 4",
    ),
    "three cells of four": (
        "a,class,b,new_class\n1,rose,x\n",
        "column new_class: found 3 cells instead of 4",
    ),
    "five cells of four": (
        "a,class,b,new_class\n1,rose,x,y,z\n",
        "column new_class: found 5 cells instead of 4",
    ),
    "empty class": (HEAD + " ,a\n", "line 2, column class: the class name is empty"),
    "listed twice": (HEAD + "rose,a\nrose,b\n", "line 3, column class: rose is listed twice"),
    "unknown class": (HEAD + "roes,a\n", "line 2, column class: the data has no class 'roes'"),
    "open quote": (HEAD + '"rose,a\n', "line 2: unexpected end of data"),
    "NUL": (HEAD + "rose,a\0b\n", "line 2, column new_class: the text contains a NUL"),
    "not UTF-8": (HEAD + "rose,\udcff\n", "line 2, column new_class: the text is not UTF-8"),
    "one class left": (HEAD + "rose,a\ntulip,a\ndaisy,a\nweed,\n", "leaves 1 class with images"),
    "nothing left": (HEAD + "rose,\ntulip,\ndaisy,\nweed,\n", "leaves 0 classes with images"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_table_is_one_sentence_with_line_and_column(flowers: Path, kind: str) -> None:
    text, expected = BROKEN[kind]

    with pytest.raises(DataError) as caught:
        scanned(flowers, text)

    assert expected in caught.value.problem
    assert caught.value.fix


def test_a_broken_json_table_and_other_files_are_refused(flowers: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1, column new_class: .* not text .*list"):
        scanned(flowers, '{"class": "rose", "new_class": ["a"]}\n', "c.jsonl")
    with pytest.raises(DataError, match=r"cannot read .*gone.csv"):
        scan(flowers, DataSpec(classes=str(tmp_path / "gone.csv")))


def test_the_fix_for_a_misspelt_class_names_the_class_that_was_meant(flowers: Path) -> None:
    with pytest.raises(DataError) as caught:
        scanned(flowers, HEAD + "roes,a\n")

    assert caught.value.fix == "correct the name: did you mean rose?"


def test_the_reference_split_refuses_changed_classes() -> None:
    with pytest.raises(UsageError, match=r"data.classes cannot be used with the reference split"):
        DataSpec(classes="c.csv", split="reference")


def test_a_broken_table_is_reported_before_weights_are_read(flowers: Path) -> None:
    data = {"path": str(flowers), "classes": "nowhere.csv"}
    config = config_from_table({"data": data, "weights": {"name": "demo"}})

    with pytest.raises(DataError, match=r"cannot read nowhere.csv"):
        check_request(config, None)


def test_classes_to_evaluate_are_changed_too(flowers: Path, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(HEAD + "rose,shrub\nweed,\nunheard,x\n")

    found = find_labelled(flowers, spec=DataSpec(classes=str(tmp_path / "c.csv")))

    assert found.classes == ("daisy", "shrub", "tulip")
    assert dict(found.images)["rose/1.png"] == "shrub"
    assert len(found.images) == 6


# runs --------------------------------------------------------------------------------------------

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


def test_the_commands_know_the_changed_classes_of_a_run(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("classes.csv").write_text(HEAD + "red,warm\n")
    words = ["--data", str(image_folder), "--weights", str(tiny_weights)]
    words += ["--classes", "classes.csv"]

    assert main(["finetune", *words, "--dry-run"]) == 0
    assert "30 images in 3 classes" in capsys.readouterr().err
    assert main(["finetune", *words, "--out", "run"]) == 0
    assert Manifest.read(Path("run/split.csv"), Path("run")).classes == ("blue", "green", "warm")
    capsys.readouterr()
    assert main(["evaluate", "--data", str(image_folder), "--run", "run", "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert [*json.loads(shown.out)["per_class"]] == ["blue", "green", "warm"]
    assert "applied the class changes of the run: classes.csv: 1 of 3 classes changed" in shown.err
    assert main(["check", str(image_folder), "--run", "run", "--format", "json"]) == 0
    assert '"warm"' in capsys.readouterr().out
    assert main(["evaluate", "--data", str(image_folder), "--run", "run",
                 "--set", "data.classes=classes.csv"]) == 0  # fmt: skip
    Path("classes.csv").unlink()
    assert main(["evaluate", "--data", str(image_folder), "--run", "run"]) == 3
    assert "unknown to the model: red" in capsys.readouterr().err


def test_a_table_changed_between_a_stop_and_the_resume_is_refused(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "c.csv"
    table.write_text(HEAD + "red,warm\n")
    words = ["--data", str(image_folder), "--weights", str(tiny_weights), "--solver", "adamw"]
    words += ["--classes", str(table), "--epochs", "2", "--max-time", "0.001s"]
    assert main(["finetune", *words, "--out", str(tmp_path / "run")]) == 0
    table.write_text(HEAD + "red,hot\n")

    assert main(["finetune", "--resume", str(tmp_path / "run")]) == RunError.exit_code

    assert "10 images have changed since the start of" in capsys.readouterr().err
