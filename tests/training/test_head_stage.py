"""Runs whose head may read several blocks: training, prediction, export and continued training."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import tiny_home
from tests.support.export_run import figures
from vitft.config.run import config_from_table
from vitft.data.split import Manifest
from vitft.explain.attribution import relevance_map
from vitft.export.job import export_run
from vitft.export.plan import ExportPlan
from vitft.export.trained import last_block_reason
from vitft.features import mixture
from vitft.features.cut import BothHeads
from vitft.metrics.results import LAST_BLOCK, MIXTURE, SEVERAL_BLOCKS, HeadChoice
from vitft.models.checkpoint import build_model, load_checkpoint, save_checkpoint
from vitft.models.pretrained.load import load_backbone
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.predict.numpy_engine import NumpyEngine
from vitft.predict.torch_engine import Predictor
from vitft.report.run_page import write_report
from vitft.system.errors import UsageError
from vitft.system.text import percent
from vitft.training import finish
from vitft.training.head_stage import describe_choice
from vitft.training.run import run_finetuning
from vitft.training.stages import image_logits

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

        monkeypatch.setattr(mixture, "choose_candidate", chosen)

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


def test_a_head_reads_several_blocks_of_a_model_that_averages_the_patches(
    home: Path, choose: Choose
) -> None:
    choose(MIXTURE)
    state, card = load_checkpoint(home / "w.safetensors")
    norm = {n.replace("norm.", "fc_norm."): t for n, t in state.items() if n.startswith("norm.")}
    rest = {name: tensor for name, tensor in state.items() if not name.startswith("norm.")}
    assert isinstance(card.architecture, ViTConfig)
    card = replace(card, architecture=replace(card.architecture, pool="mean"))
    save_checkpoint(home / "w.safetensors", rest | norm, card)

    run = train(home, "run")

    found, card = load_checkpoint(run / "model.safetensors")
    assert card.architecture.read_blocks == 2
    assert found["head.weight"].shape == (3, 2 * 32)
    assert found["last_head.weight"].shape == (3, 32)
    views = np.stack([card.transform.pixels(Image.open(path)) for path in images_of(home)])
    numpy_engine = NumpyEngine.open(run / "model.safetensors")
    assert numpy_engine is not None
    logits = numpy_engine.scores(views).logits
    assert Predictor.from_run(str(run)).scores(views).logits == pytest.approx(logits, abs=1e-4)


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

    train(home, "one", head_blocks=1)

    assert "features from the cache: 36 of 36 images" in capsys.readouterr().err


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


def test_the_accuracy_of_the_head_on_the_last_block_is_confirmed_in_float32(
    home: Path, choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    for path in images_of(home):  # noise, so that both heads are often wrong and rarely certain
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    compute, confirm, found = image_logits, finish.final_logits, list[torch.Tensor]()

    def imprecise(*args: Any, **options: Any) -> torch.Tensor:
        logits = compute(*args, **options)
        return logits + torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) * 4

    def kept(*args: Any) -> tuple[torch.Tensor, int | None]:
        found[:] = [confirm(*args)[0]]
        return found[0], len(found[0])

    monkeypatch.setattr(finish, "image_logits", imprecise)
    monkeypatch.setattr(finish, "final_logits", kept)
    choose(MIXTURE)

    run = train(home, "run", precision="bf16")

    state, card = load_checkpoint(run / "model.safetensors")
    val = Manifest.read(run / "split.csv", home / "data").val
    views = [card.transform.pixels(Image.open(home / "data" / row.path)) for row in val]
    pixels = card.transform.normalise(torch.from_numpy(np.stack(views)))
    model = build_model(state, card.architecture)
    assert isinstance(model, VisionTransformer)
    with torch.inference_mode():
        exact = BothHeads(model.eval())(pixels).argmax(dim=-1)
    assert torch.equal(found[0].argmax(dim=-1), exact)
    right = (exact == torch.tensor([row.label for row in val])[:, None]).double().mean(dim=0)
    results = json.loads((run / "eval.json").read_text())
    assert results["top1"] == pytest.approx(right[0].item())
    assert results["head"]["last_block_top1"] == pytest.approx(right[1].item())


def test_the_cost_of_a_head_on_the_last_block_is_stated(tmp_path: Path) -> None:
    head = {"blocks": 4, "reads": "mixture", "candidates": [], "last_block_top1": 0.25}
    results = {**figures(["a", "b"]), "head": head}
    (tmp_path / "eval.json").write_text(json.dumps(results))

    assert "the last 4 blocks (validation accuracy 25.0% instead of 50.0%)" in last_block_reason(
        tmp_path
    )


def test_a_head_that_reads_several_blocks_can_be_explained_and_reported(
    home: Path, choose: Choose
) -> None:
    choose(MIXTURE)
    run = train(home, "run")
    state, card = load_checkpoint(run / "model.safetensors")
    model = build_model(state, card.architecture)

    heat = relevance_map(model, torch.randn(2, 3, 16, 16))

    assert heat.shape == (2, 4, 4)
    assert heat.max() == 1.0
    assert "The head reads the last 2 blocks." in write_report(run).read_text()


def test_training_continues_from_such_a_run_with_a_new_head(home: Path, choose: Choose) -> None:
    choose(MIXTURE)
    run = train(home, "run")

    model, _ = load_backbone(run / "model.safetensors", num_classes=4)

    assert isinstance(model, VisionTransformer)
    assert model.config.read_blocks == 1
    assert model.head.weight.shape == (4, 32)
    assert model.last_head is None


def test_more_blocks_than_the_model_has_are_refused(home: Path) -> None:
    with pytest.raises(UsageError, match="cannot read 3 blocks"):
        train(home, "run", head_blocks=3)


@pytest.mark.parametrize(
    ("top1", "text"),
    [
        (
            0.90,
            "the head reads the last 4 blocks (cross-validated on the training images: 90.0%; the "
            "last block alone: 87.0%)",
        ),
        (
            0.86,
            "the head reads the last 4 blocks, because its probabilities are better: "
            "cross-validated loss 0.312, of the last block alone 0.355; standard error of the "
            "difference 0.020 (accuracy 86.0% and 87.0%)",
        ),
        (
            0.87,
            "the head reads the last 4 blocks, because its probabilities are better: "
            "cross-validated loss 0.312, of the last block alone 0.355; standard error of the "
            "difference 0.020 (accuracy 87.0% and 87.0%)",
        ),
    ],
)
def test_the_log_says_what_decided_how_many_blocks_the_head_reads(top1: float, text: str) -> None:
    choice: HeadChoice = {
        "blocks": 4,
        "reads": "mixture",
        "candidates": [
            {"reads": "last block", "cv_loss": 0.355, "cv_top1": 0.87},
            {"reads": "mixture", "cv_loss": 0.312, "cv_top1": top1, "cv_gain_error": 0.02},
        ],
        "last_block_top1": None,
    }

    assert describe_choice(choice) == text
