"""Training images are recognised among images to evaluate, also after they were saved again."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import draw_folder
from tests.support.pictures import encoded, read, scene, scenes_folder
from tests.training.test_run import run_it
from vitft.cli.main import main
from vitft.config import read_toml
from vitft.data import Images, find_labelled
from vitft.predict import evaluate

CLASSES = ("cat", "dog")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return scenes_folder(tmp_path / "photos", CLASSES, each=10)


@pytest.fixture
def run(photos: Path, tiny_weights: Path, tmp_path: Path) -> Path:
    """A run on 20 scenes, 4 of which validate."""
    return run_it(photos, tiny_weights, tmp_path / "run", optim={"solver": "lbfgs", "l2": 1.0}).run


def saved_again(photos: Path, into: Path, *, name: str = "{}") -> Path:
    """Save every photo again as a smaller file."""
    for path in sorted(photos.rglob("*.jpg")):
        place = into / path.parent.name / f"{name.format(path.stem)}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(encoded(read(path.read_bytes()), 60))
    return into


def judged(data: Path, run: Path) -> tuple[int, Any]:
    results = evaluate(find_labelled(data), str(run), device="cpu").results
    return results["images"], results["data"]


def test_12_bit_training_images_saved_in_another_format_are_left_out(
    tiny_weights: Path, tmp_path: Path
) -> None:
    xrays, again = tmp_path / "xrays", tmp_path / "again"
    for label, name in enumerate(CLASSES):
        (xrays / name).mkdir(parents=True)
        (again / name).mkdir(parents=True)
        for i in range(10):
            grey = np.asarray(scene(100 * label + i).convert("L"), np.uint16)
            image = Image.fromarray(1600 + grey * 3)
            image.save(xrays / name / f"{i}.png")
            image.save(again / name / f"renamed-{i}.tif")
    run = run_it(xrays, tiny_weights, tmp_path / "run", optim={"solver": "lbfgs", "l2": 1.0}).run

    images, data = judged(again, run)

    assert (data["trained"], data["trained_copies"]) == (0, 16)
    assert images == data["validated"] == 4


def test_images_that_trained_the_initial_weights_are_left_out(
    photos: Path, run: Path, tmp_path: Path
) -> None:
    others = scenes_folder(tmp_path / "others", ("a", "b", *CLASSES))  # other scenes of each class
    shutil.rmtree(others / "a")
    shutil.rmtree(others / "b")
    settings: dict[str, Any] = {"weights": {"keep_head": True}, "optim": {"solver": "lbfgs"}}
    again = run_it(others, run, tmp_path / "two", **settings).run

    images, data = judged(saved_again(photos, tmp_path / "again"), again)

    assert (images, data["trained_copies"]) == (4, 16)


def test_other_images_with_the_names_of_training_images_are_evaluated(
    run: Path, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    for label, name in enumerate(CLASSES):
        (others / name).mkdir(parents=True)
        for i in range(10):
            (others / name / f"{i}.jpg").write_bytes(encoded(scene(5000 + 100 * label + i)))

    images, data = judged(others, run)

    assert images == 20
    assert (data["trained_copies"], data["trained_paths"], data["validated"]) == (0, 0, 0)


def test_the_path_decides_where_the_training_image_is_gone(
    photos: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again, out = saved_again(photos, tmp_path / "again"), tmp_path / "out"
    photos.rename(tmp_path / "moved")

    assert main(["evaluate", "--data", str(again), "--run", str(run), "--out", str(out)]) == 0

    told = capsys.readouterr().err
    assert "skipped 16 of 20 images: same paths as training" in told
    assert "near-duplicates of 16 training images are not recognised" in told
    assert (out / "predictions.csv").read_text().count("same path as a training image") == 16


def test_a_changed_file_in_the_data_folder_of_the_run_is_left_out(photos: Path, run: Path) -> None:
    path = Images.from_csv(run / "split.csv", photos).train[0].path
    (photos / path).write_bytes(encoded(scene(7777)))

    images, data = judged(photos, run)

    assert (images, data["trained"], data["trained_paths"]) == (4, 15, 1)


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
