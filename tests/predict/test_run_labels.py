"""Fixes of a run, applied when the run is evaluated on its own data."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import draw_folder
from vitft.cli.main import main
from vitft.config import checked_run_config
from vitft.data import LabelledImages, find_labelled
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


def labels_in(found: LabelledImages) -> dict[str, str]:
    return dict(found.images)


def test_a_moved_copy_of_the_data_is_recognised_by_its_content(
    fixed: tuple[Path, Path], tmp_path: Path
) -> None:
    data, run = fixed
    data.rename(tmp_path / "elsewhere")

    found = as_in_run(find_labelled(tmp_path / "elsewhere"), run, KNOWN)

    assert labels_in(found)[MOVED] == "red"


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


@pytest.mark.parametrize("is_own", [True, False])
def test_a_table_states_its_own_labels_unless_it_is_the_table_of_the_run(
    fixed: tuple[Path, Path], is_own: bool
) -> None:
    data, run = fixed
    for name in ("labels.csv", "other.csv"):
        rows = [f"{path.relative_to(data)},{path.parent.name}" for path in data.glob("*/*.png")]
        (data / name).write_text("\n".join(["path,label", *sorted(rows)]) + "\n")
    config = run / "config.toml"
    config.write_text(config.read_text().replace(str(data), str(data / "labels.csv")))
    listed = find_labelled(data / ("labels.csv" if is_own else "other.csv"))

    found = as_in_run(listed, run, KNOWN)

    assert labels_in(found)[MOVED] == ("red" if is_own else "blue")
    assert (found.images == listed.images) is not is_own


def test_fixes_that_have_changed_are_not_applied(
    fixed: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    data, run = fixed
    Path(checked_run_config(run).data.fixes).write_text("path,action\n")

    found = as_in_run(find_labelled(data), run, KNOWN)

    assert labels_in(found)[MOVED] == "blue"
    assert "the fixes of the run are not applied" in caplog.text
