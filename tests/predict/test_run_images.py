"""Training images are recognised among images to evaluate, also after they were saved again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.pictures import encoded, read, scene, scenes_folder
from tests.training.test_run import run_it
from vitft.cli.main import main
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

    assert "skipped 16 of 20 images: same paths as training" in capsys.readouterr().err
    assert (out / "predictions.csv").read_text().count("same path as a training image") == 16


def test_a_changed_file_in_the_data_folder_of_the_run_is_left_out(photos: Path, run: Path) -> None:
    path = Images.from_csv(run / "split.csv", photos).train[0].path
    (photos / path).write_bytes(encoded(scene(7777)))

    images, data = judged(photos, run)

    assert (images, data["trained"], data["trained_paths"]) == (4, 15, 1)
