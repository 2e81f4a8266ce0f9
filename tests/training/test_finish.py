"""Final evaluation, calibration and saving: the files of a run agree with each other."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.conftest import draw_folder
from tests.support.fail_points import FailPoints
from tests.training.test_run import run_it
from vitft.data import Manifest, open_image
from vitft.models import load_checkpoint, save_checkpoint
from vitft.predict import Predictor
from vitft.system import ResourceError, RunDir
from vitft.training import Result


@pytest.fixture
def mixed_up(tmp_path: Path) -> Path:
    """Three colours with 50 images each, a fifth of them mislabelled."""
    root = draw_folder(tmp_path / "mixed", per_class=50)
    names = sorted(folder.name for folder in root.iterdir())
    for path in sorted(root.rglob("*.png")):
        if int(path.stem) % 5 == 0:
            other = names[(names.index(path.parent.name) + 1) % 3]
            path.rename(root / other / f"{path.stem}-of-{path.parent.name}.png")
    return root


def run_on(data: Path, weights: Path, out: Path) -> Result:
    exact = {"precision": "fp32", "cache": str(out.parent / "cache")}
    return run_it(data, weights, out, optim={"solver": "lbfgs", "l2": 1.0}, train=exact)


def scores_of(run: Path) -> torch.Tensor:
    with np.load(run / "validation.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["logits"])


def test_the_saved_model_computes_the_saved_logits(
    mixed_up: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_on(mixed_up, tiny_weights, tmp_path / "run")
    predictor = Predictor.from_run(str(done.run), device="cpu")
    val = Manifest.read(done.run / "split.csv", mixed_up).val

    pixels = [predictor.card.transform.pixels(open_image(mixed_up / row.path)) for row in val]
    answered = torch.from_numpy(predictor.scores(np.stack(pixels)).logits)

    kept = scores_of(done.run)
    assert kept.dtype == torch.float32
    torch.testing.assert_close(answered, kept, atol=1e-4, rtol=1e-4)
    right = (kept.argmax(dim=-1) == torch.tensor([row.label for row in val])).float().mean()
    assert right.item() == pytest.approx(done.figures["top1"])


def test_calibration_improves_the_held_out_metrics(
    mixed_up: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_on(mixed_up, tiny_weights, tmp_path / "run")
    labels = torch.tensor([r.label for r in Manifest.read(done.run / "split.csv", mixed_up).val])

    figures = json.loads((done.run / "eval.json").read_text())

    assert figures == json.loads(json.dumps(done.figures))
    temperature = figures["calibration"]["temperature"]
    flattered = F.cross_entropy(scores_of(done.run), labels).item()
    before = F.cross_entropy(scores_of(done.run) * temperature, labels).item()
    assert flattered < figures["loss"] < before  # judged without having seen the image
    assert sum(row["images"] for row in figures["calibration"]["bins"]) == figures["images"]


def test_the_temperature_rests_on_validation_and_cross_validated_training_images(
    mixed_up: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_on(mixed_up, tiny_weights, tmp_path / "run")
    manifest = Manifest.read(done.run / "split.csv", mixed_up)

    calibration = json.loads((done.run / "eval.json").read_text())["calibration"]
    with np.load(done.run / "validation.npz", allow_pickle=False) as file:
        probability, correct = file["train_probability"], file["train_correct"]
        predicted = file["cross_validated"]

    labels = np.array([row.label for row in manifest.rows])
    more = json.loads((done.run / "eval.json").read_text())["cross_validation"]
    assert (predicted == labels).mean() == pytest.approx(more["top1"])
    training = np.array([row.split == "train" for row in manifest.rows])
    assert (predicted == labels)[training].tolist() == correct.tolist()
    assert calibration["cross_validated"] == len(manifest.train) == 120
    assert probability.shape == correct.shape == (120,)
    assert correct.dtype == bool
    # A fifth of the labels is wrong, which a head that was fitted to them could not know.
    assert probability.mean() == pytest.approx(correct.mean(), abs=0.1)


def test_training_images_that_are_easier_than_the_validation_images_do_not_calibrate(
    tiny_weights: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    draw_folder(data / "train", per_class=30)
    draw_folder(data / "val", per_class=20)
    names = sorted(folder.name for folder in (data / "val").iterdir())
    for path in sorted((data / "val").rglob("*.png")):  # every second validation label is wrong
        if int(path.stem) % 2:
            other = names[(names.index(path.parent.name) + 1) % 3]
            path.rename(data / "val" / other / f"{path.stem}-of-{path.parent.name}.png")

    done = run_on(data, tiny_weights, tmp_path / "run")

    calibration = done.figures["calibration"]
    assert calibration is not None
    assert calibration["cross_validated"] == 0


@pytest.mark.parametrize("ends_in", ["save_checkpoint", "write_arrays"])
def test_eval_json_always_describes_the_weights_beside_it(
    mixed_up: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends_in: str,
) -> None:
    saved: list[Path] = []

    whole = RunDir.write_arrays

    def stop(run: RunDir, name: str, **arrays: Any) -> None:
        if name == "validation.npz":
            raise KeyboardInterrupt
        whole(run, name, **arrays)

    def save_once(path: Path, *rest: Any) -> str:
        saved.append(path)
        if len(saved) == 2 and ends_in == "save_checkpoint":
            raise KeyboardInterrupt
        return save_checkpoint(path, *rest)

    monkeypatch.setattr("vitft.training.finish.save_checkpoint", save_once)
    if ends_in == "write_arrays":
        monkeypatch.setattr(RunDir, "write_arrays", stop)

    done = run_on(mixed_up, tiny_weights, tmp_path / "run")

    assert len(saved) == 2
    assert done.interrupted
    load_checkpoint(done.run / "model.safetensors")  # whole, the old one or the new
    assert not (done.run / "eval.json").exists()
    assert not (done.run / "validation.npz").exists()


def test_metrics_that_cannot_be_replaced_are_reported_in_one_line(
    mixed_up: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    with FailPoints(tmp_path / "run", -1, "EIO") as points:
        run_on(mixed_up, tiny_weights, tmp_path / "run")
    removed = points.calls.index("unlink eval.json")

    with (
        FailPoints(tmp_path / "again", removed, "EIO"),
        pytest.raises(ResourceError, match=r"eval\.json"),
    ):
        run_on(mixed_up, tiny_weights, tmp_path / "again")
