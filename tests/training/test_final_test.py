"""The test part of the data: untouched until the end, evaluated once, stated everywhere."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import draw_folder
from tests.training.test_run import run_it
from vitft.data import Images
from vitft.predict import Predictor
from vitft.training import Result

SOLVED = {"solver": "lbfgs", "l2": 1.0}


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Train and test folders of three classes, 10 and 4 images each, no copies among them."""
    draw_folder(tmp_path / "all", per_class=14)
    for path in sorted((tmp_path / "all").rglob("*.png")):
        part = "train" if int(path.stem) < 10 else "test"
        place = tmp_path / "data" / part / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    return tmp_path / "data"


def split_counts(run: Path) -> Counter[tuple[str, str]]:
    """Return the number of images by folder and split."""
    rows = Images.from_csv(run / "split.csv", run).rows
    return Counter((row.path.split("/")[0], row.split) for row in rows)


def final_results(done: Result) -> Any:
    test = done.figures.get("test")
    assert test is not None
    return test


def test_a_test_folder_is_evaluated_once_and_validation_is_drawn_from_train(
    parts: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_it(parts, tiny_weights, tmp_path / "run", optim=SOLVED)

    drawn = {("train", "train"): 24, ("train", "val"): 6}
    assert split_counts(done.run) == {**drawn, ("test", "test"): 12}
    test = final_results(done)
    assert (done.figures["images"], test["images"], test["left_out"]) == (6, 12, 0)
    assert json.loads((done.run / "eval.json").read_text())["test"] == json.loads(json.dumps(test))
    with np.load(done.run / "validation.npz") as file:
        assert file["logits"].shape == (6, 3)
        assert len(file["train_correct"]) == 24
    predictor = Predictor.from_run(str(done.run), device="cpu")
    images = sorted((parts / "test").rglob("*.png"))
    answers = [p.classes[0] for p in predictor.stream(map(str, images))]
    right = sum(a == path.parent.name for a, path in zip(answers, images, strict=True))
    assert test["top1"] == right / 12


@pytest.mark.parametrize("layers", ["head", "all"])
def test_the_test_images_change_nothing_but_their_own_results(
    layers: str, parts: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    optim = SOLVED if layers == "head" else {"epochs": 2}
    first = run_it(parts, tiny_weights, tmp_path / "one", optim=optim, train={"layers": layers})
    names = sorted(folder.name for folder in (parts / "test").iterdir())
    for path in sorted((parts / "test").rglob("*.png")):  # every label becomes wrong
        other = names[(names.index(path.parent.name) + 1) % 3]
        path.rename(parts / "test" / other / f"{path.stem}-{path.parent.name}.png")

    second = run_it(parts, tiny_weights, tmp_path / "two", optim=optim, train={"layers": layers})

    one, two = (
        {k: v for k, v in r.figures.items() if k not in ("test", "seconds")}
        for r in (first, second)
    )
    assert one == two
    assert (first.run / "model.safetensors").stat().st_size > 0
    assert final_results(first)["confusion"] != final_results(second)["confusion"]


def test_copies_of_training_images_are_left_out_of_the_test(
    parts: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(parts / "train" / "red" / "000.png", parts / "test" / "red" / "copy.png")

    done = run_it(parts, tiny_weights, tmp_path / "run", optim=SOLVED)

    test = final_results(done)
    assert (test["images"], test["left_out"]) == (12, 1)
    assert "in more than one of training, validation and test" in capsys.readouterr().err
