"""Runs on tables of labels: the same as on folders, through every command."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import draw_folder
from tests.data.test_label_table import WRITERS
from vitft.cli.main import main
from vitft.config import config_from_table
from vitft.data import run_manifest
from vitft.training import (
    ProcessGroup,
    Result,
    extract_and_split,
    load_data_and_model,
    run_finetuning,
)


def write_table(data: Path, name: str = "t.csv", **columns: Any) -> Path:
    """Write a table of the images in a folder; `columns` gives further cells by path."""
    rows = []
    for path in sorted(data.rglob("*.png"), reverse=True):
        row = {"path": str(path.relative_to(data)), "label": path.parent.name}
        rows.append(row | {key: cell(row["path"]) for key, cell in columns.items()})
    WRITERS[name](data / name, rows)
    return data / name


def train(data: Path, weights: Path, out: Path, /, **settings: dict[str, Any]) -> Result:
    table: dict[str, Any] = {"data": {"path": str(data)}, "weights": {"name": str(weights)}}
    for section, values in settings.items():
        table.setdefault(section, {}).update(values)
    return run_finetuning(config_from_table(table), out=out)


ALL_LAYERS = {"train": {"layers": "all", "augment": "crop"}, "optim": {"epochs": 2}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("t.csv", {}, id="head"),
        pytest.param("t.csv", ALL_LAYERS, id="all layers"),
        pytest.param("t.parquet", {}, id="parquet"),
    ],
)
def test_a_table_gives_the_same_bits_as_its_folder(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    table = write_table(image_folder, name)

    one = train(image_folder, tiny_weights, tmp_path / "one", **settings).run
    other = train(table, tiny_weights, tmp_path / "two", **settings).run

    for file in ("model.safetensors", "split.csv", "validation.npz", "class_indices.json"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


@pytest.mark.long
@pytest.mark.parametrize(
    ("yes", "no"), [("1", "0"), ("1.0", "0.0"), ("1", "-1"), ("True", "False"), ("x", "")]
)
def test_one_hot_columns_give_the_same_bits_as_the_folder(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, yes: str, no: str
) -> None:
    paths = sorted(path.relative_to(image_folder) for path in image_folder.glob("*/*"))
    names = sorted({path.parent.name for path in paths})
    rows = [[str(p), *(yes if p.parent.name == name else no for name in names)] for p in paths]
    table = image_folder / "t.csv"
    table.write_text("\n".join(map(",".join, [["path", *names], *rows])))

    one = train(image_folder, tiny_weights, tmp_path / "one").run
    other = train(table, tiny_weights, tmp_path / "two", data={"label": "*"}).run

    for file in ("model.safetensors", "split.csv", "validation.npz", "class_indices.json"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


def test_a_split_column_gives_the_same_bits_as_train_and_val_folders(
    tiny_weights: Path, tmp_path: Path
) -> None:
    draw_folder(tmp_path / "d" / "train", per_class=6)
    draw_folder(tmp_path / "d" / "val", per_class=3)
    table = write_table(tmp_path / "d", split=lambda path: path.partition("/")[0])

    one = train(tmp_path / "d", tiny_weights, tmp_path / "one").run
    other = train(table, tiny_weights, tmp_path / "two").run

    for file in ("model.safetensors", "split.csv"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


@pytest.fixture
def patients(image_folder: Path) -> Path:
    """A table with five patients, each with two images of every class."""
    return write_table(image_folder, patient=lambda path: f"p{int(path[-7:-4]) // 2}")


def test_a_run_keeps_every_patient_on_one_side_also_in_cross_validation(
    patients: Path, tiny_weights: Path
) -> None:
    table = {"data": {"path": str(patients)}, "weights": {"name": str(tiny_weights)}}
    setup = load_data_and_model(config_from_table(table), ProcessGroup())

    data = extract_and_split(setup, ProcessGroup()).inputs.data

    patient_of = [int(row.path[-7:-4]) // 2 for row in data.manifest.rows]
    parts: dict[int, set[str]] = {}
    for patient, row in zip(patient_of, data.manifest.rows, strict=True):
        parts.setdefault(patient, set()).add(row.split)
    assert all(len(found) == 1 for found in parts.values())
    assert len(data.manifest.val) == 6
    ids = data.group_ids(data.manifest.rows)
    same = ids[:, None] == ids
    assert torch.equal(same, torch.tensor(patient_of)[:, None] == torch.tensor(patient_of))
    assert data.duplicates == {}  # patients are not reported as copies


def test_a_class_of_one_patient_is_divided_alone(image_folder: Path, tiny_weights: Path) -> None:
    # red: one patient trains, one validates; the other classes have five patients each
    table = write_table(
        image_folder,
        patient=lambda path: path[:3] + str(int(path[-7:-4]) // (5 if path[0] == "r" else 2)),
    )
    settings = {"data": {"path": str(table)}, "weights": {"name": str(tiny_weights)}}
    setup = load_data_and_model(config_from_table(settings), ProcessGroup())

    data = extract_and_split(setup, ProcessGroup()).inputs.data

    rows = [row for row in data.manifest.train if row.path.startswith("red")]
    assert len(data.group_ids(rows).unique()) == len(rows) == 5
    others = [row for row in data.manifest.train if not row.path.startswith("red")]
    assert len(data.group_ids(others).unique()) == 8
    assert {int(row.path[-7:-4]) // 5 for row in rows} in ({0}, {1})  # the split divides no group


@pytest.mark.usefixtures("own_home")
def test_every_command_reads_the_table_and_its_run(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table lies in another folder than the images, and names its columns unusually."""
    home = tmp_path / "home"
    home.mkdir()
    text = write_table(image_folder).read_text().replace("path,label", "path,species")
    (image_folder / "t.csv").unlink()
    (home / "labels.csv").write_text(text)
    monkeypatch.chdir(home)
    columns = ["--set", "data.label=species", "--set", f"data.root={image_folder}"]

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main([*words]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    run("finetune", "--data", "labels.csv", "--weights", str(tiny_weights), *columns, "--dry-run")
    run("finetune", "--data", "labels.csv", "--weights", str(tiny_weights), *columns, "--out", "r")
    manifest = run_manifest(Path("r"))
    assert manifest is not None
    assert all(Path(manifest.locate(row)).is_file() for row in manifest.rows)
    assert list((home / "r" / "thumbs").iterdir())
    assert "data.label=species" in run("report", "--run", "r") + Path("r/report.html").read_text()
    shutil.copy(image_folder / "red" / "000.png", image_folder / "red" / "001.png")
    assert main(["check", "labels.csv", "--run", "r"]) == 0
    same = shlex.join([*columns, "--weights", str(tiny_weights), "--like", "r"])
    assert f"--data labels.csv {same} --fixes fixes.csv" in capsys.readouterr().err
    checked = json.loads(run("check", "labels.csv", "--run", "r", "--format", "json"))
    assert checked["images"] == 30
    assert json.loads(run("check", "labels.csv", *columns, "--format", "json"))["images"] == 30
    evaluate = ("evaluate", "--data", "labels.csv", "--run", "r", "--out", "evaluated")
    results = json.loads(run(*evaluate, *columns, "--format", "json"))
    assert results["images"] == 6  # 24 were trained on
    run("export", "--safetensors", "--run", "r")
    (image_folder / "labels.csv").write_text(text)
    rows = run("predict", str(image_folder / "labels.csv"), "--run", "r", "--format", "jsonl")
    assert rows.count("\n") == 30


def test_fixes_apply_to_a_table(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(image_folder, group=lambda path: path)
    shutil.copy(image_folder / "red" / "000.png", image_folder / "red" / "copy.png")
    table = write_table(image_folder, group=lambda path: path)
    assert main(["check", str(table), "--out", str(tmp_path / "out")]) == 0
    fixes = tmp_path / "out" / "fixes.csv"
    assert "red/copy.png,drop" in fixes.read_text()
    assert f"--data {table}" in capsys.readouterr().err

    result = train(table, tiny_weights, tmp_path / "run", data={"fixes": str(fixes)})

    assert "copy.png" not in (result.run / "split.csv").read_text()


@pytest.mark.long
def test_a_stopped_run_resumes_from_a_moved_table_and_refuses_changed_labels(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = write_table(image_folder)
    out = tmp_path / "run"
    settings = {"optim": {"solver": "adamw", "epochs": 2}}
    whole = train(table, tiny_weights, tmp_path / "whole", **settings).run
    arguments = ["--data", str(table), "--weights", str(tiny_weights), "--solver", "adamw"]
    stopped = ["--epochs", "2", "--out", str(out), "--max-time", "0.001s"]
    assert main(["finetune", *arguments, *stopped]) == 0
    moved = tmp_path / "moved"
    shutil.move(image_folder, moved)

    text = (moved / "t.csv").read_text()
    (moved / "t.csv").write_text(text.replace("red/001.png,red", "red/001.png,blue"))
    resume = ["finetune", "--resume", str(out), "--data", str(moved / "t.csv")]
    assert main(resume) == 5
    assert "changed since the start of" in capsys.readouterr().err
    (moved / "t.csv").write_text(text)
    assert main(resume) == 0

    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
