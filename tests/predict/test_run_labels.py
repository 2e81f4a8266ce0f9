"""Fixes of a run, applied when the run is evaluated on its own data."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import draw_folder
from vitft.cli.main import main
from vitft.config import read_toml
from vitft.data import find_labelled
from vitft.predict import evaluate

MOVED, DROPPED = "blue/moved.png", "green/000.png"


@pytest.fixture
def fixed(tmp_path: Path, tiny_weights: Path) -> tuple[Path, Path]:
    """A folder with a wrong label and an unknown class, and a run that fixed both."""
    data = draw_folder(tmp_path / "colours", per_class=8)
    (data / "red" / "003.png").rename(data / MOVED)
    (data / "odd").mkdir()
    (data / "green" / "001.png").rename(data / "odd" / "001.png")
    table = tmp_path / "fixes.csv"
    table.write_text(
        f"path,action,new_label\n{MOVED},move,red\n{DROPPED},drop,\nodd/001.png,move,green\n"
    )
    words = ["--data", str(data), "--weights", str(tiny_weights), "--fixes", str(table)]
    assert main(["finetune", *words, "--out", str(tmp_path / "run")]) == 0
    return data, tmp_path / "run"


def labels_in(data: Path, run: Path) -> dict[str, str]:
    """Return the labels with which a run is evaluated on the images of a folder."""
    rows = evaluate(find_labelled(data), str(run), device="cpu").predictions
    return {row.prediction.path: row.label for row in rows}


def test_other_images_of_the_same_names_keep_their_labels(
    fixed: tuple[Path, Path], tmp_path: Path
) -> None:
    _, run = fixed
    other = draw_folder(tmp_path / "other", per_class=8)
    for path in other.glob("*/*.png"):
        Image.open(path).transpose(Image.Transpose.ROTATE_180).save(path)
    shutil.copy(other / "blue" / "003.png", other / MOVED)

    found = labels_in(other, run)

    assert found[MOVED] == "blue"
    assert DROPPED in found


def test_fixes_that_have_changed_are_not_applied(
    fixed: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    data, run = fixed
    Path(read_toml(run / "config.toml")["data"]["fixes"]).write_text("path,action\n")
    (data / "odd" / "001.png").rename(data / "green" / "001.png")
    (data / "odd").rmdir()

    assert labels_in(data, run)[MOVED] == "blue"
    assert "the fixes of the run are not applied" in caplog.text
