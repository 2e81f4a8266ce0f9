"""Runs whose head may read several blocks: training, prediction, export and continued training."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import tiny_home
from vitft.config import config_from_table
from vitft.export import ExportPlan, export_run
from vitft.metrics import LAST_BLOCK, MIXTURE, SEVERAL_BLOCKS
from vitft.models import VisionTransformer, load_backbone, load_checkpoint
from vitft.predict import NumpyEngine, Predictor
from vitft.system import percent, show_log
from vitft.training import run_finetuning

Choose = Callable[[str], None]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with data (3 classes of 12 images) and weights of two blocks."""
    return tiny_home(tmp_path, per_class=12)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Return a function that makes cross-validation choose a candidate by name."""

    def force(name: str) -> None:
        def chosen(*candidates: Any) -> Any:
            return next(c for c in candidates[:3] if c.name == name)

        monkeypatch.setattr("vitft.features.mixture.choose_candidate", chosen)

    return force


def train(home: Path, name: str, **settings: Any) -> Path:
    table = {
        "data": {"path": str(home / "data")},
        "weights": {"name": str(home / "w.safetensors")},
        "train": {"precision": "fp32", **settings},
    }
    return run_finetuning(config_from_table(table), out=home / name).run


def images_of(home: Path) -> list[str]:
    return [str(path) for path in sorted((home / "data").rglob("*.png"))]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [MIXTURE, SEVERAL_BLOCKS])
def test_every_engine_predicts_with_all_blocks_that_the_head_reads(
    home: Path, choose: Choose, name: str, precision: str
) -> None:
    choose(name)

    run = train(home, "run", precision=precision)

    state, card = load_checkpoint(run / "model.safetensors")
    results = json.loads((run / "eval.json").read_text())
    assert card.architecture.read_blocks == results["head"]["blocks"] == 2
    assert results["head"]["reads"] == name
    assert state["head.weight"].shape == (3, 3 * 32)
    views = np.stack([card.transform.pixels(Image.open(path)) for path in images_of(home)])
    numpy_engine = NumpyEngine.open(run / "model.safetensors")
    assert numpy_engine is not None
    logits = numpy_engine.scores(views).logits
    assert Predictor.from_run(str(run)).scores(views).logits == pytest.approx(logits, abs=1e-4)
    assert (logits.argmax(axis=1) == np.repeat([0, 1, 2], 12)).mean() > 0.9


def test_a_head_on_the_last_block_is_the_same_to_the_bit_whether_others_were_tried(
    home: Path, choose: Choose
) -> None:
    choose(LAST_BLOCK)

    tried, alone = train(home, "tried"), train(home, "alone", head_blocks=1)

    one, card = load_checkpoint(tried / "model.safetensors")
    other, _ = load_checkpoint(alone / "model.safetensors")
    assert card.architecture.read_blocks == 1
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert json.loads((tried / "eval.json").read_text())["head"]["blocks"] == 1
    assert "head" not in json.loads((alone / "eval.json").read_text())


def test_features_of_the_last_block_are_shared_with_runs_that_read_no_others(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(home, "several")
    capsys.readouterr()

    show_log(logging.DEBUG)
    train(home, "one", head_blocks=1)
    show_log()

    assert "checking images: 36/36" in capsys.readouterr().err


def test_other_libraries_get_the_head_on_the_last_block_with_its_accuracy(
    home: Path, choose: Choose
) -> None:
    choose(MIXTURE)
    run = train(home, "run")

    done = export_run(str(run), ExportPlan(formats=("timm", "torch-export"), out=home / "out"))

    state, card = load_checkpoint(run / "model.safetensors")
    exported, narrow = load_checkpoint(home / "out" / "timm" / "model.safetensors")
    assert narrow.architecture.read_blocks == 1
    assert torch.equal(exported["head.weight"], state["last_head.weight"])
    assert card.architecture.read_blocks == 2
    assert {row.name: row.changed for row in done.rows} == {"timm": 0, "torch-export": 0}
    (note,) = (note for note in done.notes if "only the last block" in note)
    last = json.loads((run / "eval.json").read_text())["head"]["last_block_top1"]
    cost = f"(validation accuracy {percent(last)}, as with the run's head)"  # both are 100%
    assert note.startswith("the head of --timm reads only the last block")
    assert f"the last 2 blocks {cost}; the other formats keep the run's head" in note
    readme = (home / "out" / "timm" / "README.md").read_text()
    assert f"Accuracy {percent(last)}" in readme
    assert f"the last 2 blocks {cost}. Exports in other formats, such as `--onnx`, keep" in readme


def test_training_continues_from_such_a_run_with_a_new_head(home: Path, choose: Choose) -> None:
    choose(MIXTURE)
    run = train(home, "run")

    model, _ = load_backbone(run / "model.safetensors", num_classes=4)

    assert isinstance(model, VisionTransformer)
    assert model.config.read_blocks == 1
    assert model.head.weight.shape == (4, 32)
    assert model.last_head is None
