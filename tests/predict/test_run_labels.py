"""Fixes of a run, applied when the run is evaluated on its own data."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import draw_folder
from vitft.cli.main import main
from vitft.config import checked_run_config
from vitft.data import Images, find_labelled
from vitft.predict import as_in_run

KNOWN = ("blue", "green", "red")
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


def labels_in(found: Images) -> dict[str, str]:
    return {row.path: found.classes[row.label] for row in found.rows}


def test_other_images_of_the_same_names_keep_their_labels(
    fixed: tuple[Path, Path], tmp_path: Path
) -> None:
    _, run = fixed
    other = draw_folder(tmp_path / "other", per_class=8)
    for path in other.glob("*/*.png"):
        Image.open(path).transpose(Image.Transpose.ROTATE_180).save(path)
    shutil.copy(other / "blue" / "003.png", other / MOVED)

    found = as_in_run(find_labelled(other), run, KNOWN)

    assert labels_in(found)[MOVED] == "blue"
    assert DROPPED in labels_in(found)


def test_fixes_that_have_changed_are_not_applied(
    fixed: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    data, run = fixed
    Path(checked_run_config(run).data.fixes).write_text("path,action\n")

    found = as_in_run(find_labelled(data), run, KNOWN)

    assert labels_in(found)[MOVED] == "blue"
    assert "the fixes of the run are not applied" in caplog.text
