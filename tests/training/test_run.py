"""Whole runs: data and weights in, run directory out."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from vitft.config import config_from_table, read_toml
from vitft.models import load_checkpoint
from vitft.system import show_log
from vitft.training import Result, run_finetuning


def run_it(data: Path, weights: Path, out: Path, /, **settings: dict[str, Any]) -> Result:
    table: dict[str, Any] = {
        "data": {"path": str(data)},
        "weights": {"name": str(weights)},
        "optim": {"solver": "adamw", "epochs": 3, "batch_size": 8},
    }
    for section, values in settings.items():
        table.setdefault(section, {}).update(values)
    return run_finetuning(config_from_table(table), out=out)


@pytest.fixture
def finished(image_folder: Path, tiny_weights: Path, tmp_path: Path) -> Result:
    return run_it(image_folder, tiny_weights, tmp_path / "runs" / "one")


def test_equal_runs_write_equal_model_files(finished: Result, tmp_path: Path) -> None:
    written = config_from_table(read_toml(finished.run / "config.toml"))

    again = run_finetuning(written, out=tmp_path / "again")

    assert again.figures | {"seconds": 0} == finished.figures | {"seconds": 0}
    first, second = ((r.run / "model.safetensors").read_bytes() for r in (finished, again))
    assert first == second
    assert not finished.interrupted


def test_random_weights_are_a_baseline_and_not_the_pretrained_ones(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = run_it(
        image_folder, Path("x"), tmp_path / "run", weights={"name": f"random:{tiny_weights}"}
    )

    before, _ = load_checkpoint(tiny_weights)
    after, card = load_checkpoint(done.run / "model.safetensors")
    assert not torch.equal(before["pos_embed"], after["pos_embed"])
    assert card.weights["name"].startswith("random:")


def test_later_runs_extract_nothing_and_have_the_same_results(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solver, cache = {"solver": "lbfgs"}, {"cache": str(tmp_path / "cache"), "precision": "fp32"}
    first = run_it(image_folder, tiny_weights, tmp_path / "one", optim=solver, train=cache)
    capsys.readouterr()

    show_log(logging.DEBUG)
    second = run_it(image_folder, tiny_weights, tmp_path / "two", optim=solver, train=cache)
    last = {**cache, "head_blocks": 1}
    alone = run_it(image_folder, tiny_weights, tmp_path / "three", optim=solver, train=last)
    show_log()

    log = capsys.readouterr().err
    assert log.count("checking images: 30/30") == 2
    assert "extracting features" not in log
    assert first.figures | {"seconds": 0} == second.figures | {"seconds": 0}
    assert alone.figures["top1"] == 1


def test_images_of_a_run_with_a_frozen_backbone_are_new_to_its_weights(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solver = {"solver": "lbfgs"}
    first = run_it(image_folder, tiny_weights, tmp_path / "one", optim=solver)

    second = run_it(image_folder, first.run, tmp_path / "two", optim=solver)

    assert "were trained on" not in capsys.readouterr().err
    assert second.figures["cross_validation"] == first.figures["cross_validation"]


def test_weights_are_those_of_a_run_from_another_folder_too_but_not_as_a_copied_file(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    solver = {"solver": "lbfgs"}
    first = run_it(image_folder, tiny_weights, tmp_path / "one", train={"layers": "blocks:1"})
    copied = tmp_path / "copy.safetensors"
    shutil.copy(first.run / "model.safetensors", copied)
    monkeypatch.chdir(tmp_path)
    run_it(image_folder, Path("one"), tmp_path / "two", optim=solver)
    monkeypatch.chdir(image_folder)

    third = run_it(image_folder, tmp_path / "two", tmp_path / "three", optim=solver)
    other = run_it(image_folder, copied, tmp_path / "four", optim=solver)

    assert "cross_validation" not in {**third.figures, **other.figures}
    assert "known_to_weights" not in third.figures  # the same images are held out
    assert other.figures["known_to_weights"] is None
    assert "not known which images were used to train the weights" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [0, 1])
def test_images_that_trained_the_weights_are_not_taken_for_new_ones(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    solver, split = {"solver": "lbfgs"}, {"split": "random"}
    train = {"layers": "head,blocks:1"}
    steps = {"solver": "adamw", "epochs": 1}
    first = run_it(
        image_folder, tiny_weights, tmp_path / "one", optim=steps, data=split, train=train
    )
    honest = capsys.readouterr().err

    table: dict[str, Any] = {"optim": solver, "data": {"split": "random", "seed": seed}}
    second = run_it(image_folder, first.run, tmp_path / "two", **table)

    printed = " ".join(capsys.readouterr().err.split())
    assert "cross_validation" in first.figures
    assert "were trained on" not in honest
    assert "cross_validation" not in second.figures
    assert second.figures["calibration"] is not None
    assert not second.figures["calibration"].get("cross_validated")
    if seed:
        assert "images, " in printed
        assert "of them held out, so the accuracy on them says nothing about new" in printed
        assert second.results.on_known_images
        assert not second.results.is_calibrated
        assert f". --like {first.run} holds out the images of that run" in printed
    else:
        assert (
            "were trained on 24 of these images, so cross-validation would say nothing" in printed
        )


def test_cross_validation_never_divides_a_group(tiny_weights: Path, tmp_path: Path) -> None:
    # Two videos of each class, one for training: both classes have a red and a blue video
    videos = {"a/red": 16, "b/blue": 16, "a/blue": 4, "b/red": 4}
    for name, number in videos.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(number):
            light = 230 - 2 * i - (name[0] == "b")
            colour = (light, 9, 30) if name.endswith("red") else (30, 9, light)
            Image.new("RGB", (32, 32), colour).save(tmp_path / "data" / name / f"{i}.png")
    groups = {"group_by": "folder", "split": "random"}

    done = run_it(
        tmp_path / "data", tiny_weights, tmp_path / "run", data=groups, optim={"solver": "lbfgs"}
    )

    found = done.figures["cross_validation"]
    assert (found["images"], found["groups"]) == (40, 4)
    assert found["top1"] < 0.2
