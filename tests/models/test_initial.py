"""New models with random weights: shape, defaults, and that every command accepts their runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import draw_folder
from vitft.config import Config, config_from_table
from vitft.data import find_labelled, read_bytes
from vitft.export import ExportPlan, export_run
from vitft.metrics import softmax
from vitft.models import (
    ViTConfig,
    load_checkpoint,
    sinusoidal_positions,
)
from vitft.predict import NumpyEngine, Predictor, evaluate
from vitft.training import (
    ProcessGroup,
    Start,
    extract_and_split,
    load_data_and_model,
    run_finetuning,
)

SMALL = {"width": 16, "depth": 2, "heads": 2}


def settings(data: Path, **tables: dict[str, Any]) -> Config:
    table: dict[str, Any] = {
        "data": {"path": str(data)},
        "weights": {"name": "none"},
        "model": SMALL | tables.pop("model", {}),
        "optim": {"epochs": 2, "batch_size": 8, "lr": 3e-3} | tables.pop("optim", {}),
        "train": {"device": "cpu"} | tables.pop("train", {}),
    }
    return config_from_table(table | tables)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Three kinds of grey bars in an .npz that has its own split."""
    random = np.random.default_rng(0)
    labels = np.arange(45) % 3
    images = random.integers(0, 60, (45, 8, 8))
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 3] += 150
    path = tmp_path / "digits.npz"
    images = images.astype(np.uint8)
    np.savez(path, x_train=images[:30], y_train=labels[:30], x_test=images[30:],
             y_test=labels[30:])  # fmt: skip
    return path


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """Three colours, 20 pixels high and 24 wide."""
    return draw_folder(tmp_path / "colours", per_class=8)


def test_positions_of_a_patch_are_waves_of_lengths_from_2_pi_to_200_pi() -> None:
    table = sinusoidal_positions((3, 4), 12)  # three frequencies: 1, 1/10 and 1/100

    expected = [
        [f(place / scale) for place in (x, y) for f in (np.sin, np.cos) for scale in (1, 10, 100)]
        for y in range(3)
        for x in range(4)
    ]
    assert table.numpy() == pytest.approx(np.array(expected), abs=1e-6)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_model_of_greys_learns_from_arrays_and_every_reader_agrees(
    digits: Path, tmp_path: Path, norm: str
) -> None:
    config = settings(digits, model={"norm": norm}, optim={"epochs": 12}, train={"flip": 0.0})

    result = run_finetuning(config, out=tmp_path / "run")

    assert result.figures["top1"] > 0.6  # a third by chance
    paths = [f"{digits}/test/{i}/{i:05}.bmp" for i in range(3)]
    answers = [*Predictor.from_run(str(tmp_path / "run"), device="cpu").stream(paths)]
    engine = NumpyEngine.open(tmp_path / "run" / "model.safetensors")
    assert engine is not None
    views = np.stack([engine.view(read_bytes(path), path) for path in paths])
    shares = softmax(engine.scores(views).logits)
    assert [max(row) for row in shares.tolist()] == pytest.approx(
        [answer.probabilities[0] for answer in answers], abs=1e-4
    )
    judged = evaluate(find_labelled(digits), str(tmp_path / "run"), device="cpu")
    assert judged.results["top1"] == pytest.approx(result.figures["top1"])


def test_a_run_of_arrays_keeps_their_split_in_its_table(digits: Path, tmp_path: Path) -> None:
    run_finetuning(settings(digits, optim={"epochs": 1}), out=tmp_path / "run")

    lines = (tmp_path / "run" / "split.csv").read_text().splitlines()
    assert sum(",test," in line for line in lines) == 15  # as in the arrays, kept for the end
    assert sum(",val," in line for line in lines) == 6  # drawn from the others
    _, card = load_checkpoint(tmp_path / "run" / "model.safetensors")
    assert card.weights == {"name": "none"}
    assert isinstance(card.architecture, ViTConfig)
    assert card.architecture.in_channels == 1
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["top1"] >= 0


def test_a_model_behind_convolutions_is_a_run_like_any_other(digits: Path, tmp_path: Path) -> None:
    config = settings(digits, model={"convs": [8, 16]}, optim={"epochs": 12}, train={"flip": 0.0})

    result = run_finetuning(config, out=tmp_path / "run")

    assert result.figures["top1"] > 0.6  # a third by chance
    judged = evaluate(find_labelled(digits), str(tmp_path / "run"), device="cpu")
    assert judged.results["top1"] == pytest.approx(result.figures["top1"])
    export_run(str(tmp_path / "run"), ExportPlan(formats=("onnx",), out=tmp_path / "onnx"))
    # Its own weights begin another run, of images in colour and of another size.
    colours = draw_folder(tmp_path / "colours", per_class=4)
    again = config_from_table({
        "data": {"path": str(colours)},
        "weights": {"name": str(tmp_path / "run"), "image_size": [12, 12]},
        "train": {"device": "cpu"},
    })  # fmt: skip
    run_finetuning(again, out=tmp_path / "again")
    old, new = (
        load_checkpoint(tmp_path / name / "model.safetensors")[0] for name in ("run", "again")
    )
    first = "patch_embed.backbone.0.conv.weight"
    assert torch.allclose(new[first].sum(dim=1, keepdim=True), old[first], atol=1e-6)


def begin(config: Config) -> Start:
    return extract_and_split(load_data_and_model(config, ProcessGroup()), ProcessGroup())
