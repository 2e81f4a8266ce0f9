"""Runs on tables of labels: the same as on folders, through every command."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from tests.data.test_label_table import WRITERS
from vitft.cli.main import main
from vitft.config import config_from_table
from vitft.training import Result, run_finetuning


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


@pytest.mark.long
def test_a_stopped_run_resumes_from_a_moved_table_and_refuses_changed_labels(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
