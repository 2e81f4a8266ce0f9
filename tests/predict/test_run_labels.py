"""Fixes of a run, applied when the run is evaluated on its own data."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import draw_folder
from vitft.cli.main import main
from vitft.config.run import checked_run_config
from vitft.data.labelled import LabelledImages, find_labelled
from vitft.data.split import Manifest
from vitft.predict.run_labels import as_in_run, is_own_data
from vitft.system.rundir import RunDir

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


def test_images_of_the_run_have_the_labels_of_the_run(
    fixed: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    data, run = fixed
    manifest = Manifest.read(RunDir(run).split, run)

    with caplog.at_level(logging.INFO):
        found = as_in_run(find_labelled(data), run, KNOWN)

    assert found.classes == KNOWN
    assert labels_in(found) == {row.path: manifest.classes[row.label] for row in manifest.rows}
    assert "1 image left out, 2 relabelled" in caplog.text


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


def test_one_image_of_the_run_among_others_does_not_make_them_the_data_of_the_run(
    fixed: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, run = fixed
    other = draw_folder(tmp_path / "other", per_class=8)
    for path in other.glob("*/*.png"):
        path.rename(path.with_name(f"new_{path.name}"))
    kept = next(row.path for row in Manifest.read(RunDir(run).split, run).rows)
    shutil.copy(data / kept, other / kept)
    shutil.copy(other / "blue" / "new_003.png", other / DROPPED)

    with caplog.at_level(logging.INFO):
        found = as_in_run(find_labelled(other), run, KNOWN)

    assert DROPPED in labels_in(found)
    assert "fixes" not in caplog.text


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


def test_data_is_that_of_a_run_if_more_than_half_of_a_sample_are_its_images(
    fixed: tuple[Path, Path],
) -> None:
    data, run = fixed
    config, listed = checked_run_config(run), find_labelled(data)
    kept = {row.path for row in Manifest.read(RunDir(run).split, run).rows}
    own = [image for image in listed.images if image[0] in kept][:20]
    foreign = [(f"other/{number}.png", "red") for number in range(20)]
    every_second = [image for pair in zip(own, foreign, strict=True) for image in pair]

    def is_own(images: list[tuple[str, str]]) -> bool:
        return is_own_data(replace(listed, images=tuple(images)), config, run)

    assert is_own(own[:3] + foreign[:2])
    assert not is_own(own[:2] + foreign[:2])
    assert is_own(every_second)  # of 40 images, every second one is compared
    assert not is_own(every_second[1:] + every_second[:1])
    RunDir(run).split.unlink()
    assert not is_own(own)


def test_fixes_that_have_changed_are_not_applied(
    fixed: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    data, run = fixed
    Path(checked_run_config(run).data.fixes).write_text("path,action\n")

    found = as_in_run(find_labelled(data), run, KNOWN)

    assert labels_in(found)[MOVED] == "blue"
    assert "the fixes of the run are not applied" in caplog.text


def test_evaluate_reports_the_accuracy_of_the_run(
    fixed: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = fixed

    assert main(["evaluate", "--data", str(data), "--run", str(run)]) == 0

    shown = capsys.readouterr()
    validation = len(Manifest.read(RunDir(run).split, run).val)
    assert f"{validation} images" in shown.out
    assert "applied the fixes of the run" in shown.err


def test_unreadable_images_that_the_fixes_name_are_left_out(fixed: tuple[Path, Path]) -> None:
    data, run = fixed
    listed = find_labelled(data)
    readable = tuple(image for image in listed.images if image[0] != DROPPED)
    bad = ((DROPPED, "damaged"), ("green/x.png", MOVED))

    found = as_in_run(replace(listed, images=readable, bad=bad), run, KNOWN)

    assert found.bad == bad[1:]
