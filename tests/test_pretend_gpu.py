"""Whole commands on a pretend accelerator: tensors on two devices at once would raise."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.models.test_timm_model import random_model, saved
from tests.support.pretend_gpu import pretend_gpu
from tests.training.test_distributed import figures
from tests.training.test_run import run_it
from vitft.config import OptimSpec
from vitft.explain import Method, explain, load_run_model
from vitft.features import cross_validate, nearest_neighbours, solve_head, votes_outside_group
from vitft.metrics import Outputs
from vitft.predict import Predictor
from vitft.training import Batch, Trainer

pytestmark = pytest.mark.long

FREEZE = ["head", "blocks:1", "lora", "all", "head,all"]


def settings(layers: str, **train: Any) -> dict[str, dict[str, Any]]:
    """Return settings of a short run; the head alone is solved, the rest takes steps."""
    optim = {"solver": "lbfgs"} if layers == "head" else {"epochs": 2, "ema": 0.5, "clip": 1.0}
    return {"optim": optim, "train": {"layers": layers, "cache": "none", **train}}


@pytest.mark.parametrize("layers", FREEZE)
def test_a_run_on_a_gpu_answers_like_one_on_the_cpu(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, layers: str
) -> None:
    on_cpu = run_it(image_folder, tiny_weights, tmp_path / "cpu", **settings(layers))
    for precision in ("fp32", "bf16", "fp16"):
        options = settings(layers, precision=precision, device="cuda")
        with pretend_gpu() as counts:
            done = run_it(image_folder, tiny_weights, tmp_path / precision, **options)

        assert counts.to_gpu > 0
        assert figures(done.run)["top1"] == figures(on_cpu.run)["top1"]


@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_timm_model_with_batchnorm_is_trained_on_a_gpu(
    image_folder: Path, tmp_path: Path, layers: str
) -> None:
    weights = saved(tmp_path / "weights.safetensors", random_model())
    options = settings(layers, device="cuda", precision="fp32")
    with pretend_gpu() as counts:
        done = run_it(image_folder, weights, tmp_path / "run", **options)

    assert counts.to_gpu > 0
    assert figures(done.run)["images"] == 6


@pytest.mark.parametrize("layers", ["head", "blocks:1", "all"])
def test_memory_that_runs_out_anywhere_halves_the_images_and_changes_no_answer(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, layers: str
) -> None:
    options = settings(layers, device="cuda", precision="bf16")
    with pretend_gpu():
        roomy = run_it(image_folder, tiny_weights, tmp_path / "roomy", **options)
    with pretend_gpu(most_images=3) as counts:
        tight = run_it(image_folder, tiny_weights, tmp_path / "tight", **options)
        predictor = Predictor.from_run(str(tight.run), device="cuda")
        names = [str(path) for path in sorted(image_folder.rglob("*.png"))]
        found = [p.classes[0] for p in predictor.stream(names)]

    assert figures(tight.run)["top1"] == figures(roomy.run)["top1"]
    assert found == [Path(name).parent.name for name in names]
    assert predictor.limit.images <= 3
    assert 4 <= counts.out_of_memory <= 20  # it runs out once or twice, and not for every batch


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_predictions_and_heat_maps_of_a_gpu_are_those_of_the_cpu(
    image_folder: Path, tiny_weights: Path, tmp_path: Path, precision: str
) -> None:
    run = run_it(image_folder, tiny_weights, tmp_path / "run", **settings("all")).run
    names = [str(path) for path in sorted(image_folder.rglob("*.png"))]

    def answers(device: str) -> tuple[list[str], Any]:
        predictor = Predictor.from_run(str(run), device=device, precision=precision)
        found = [p.classes[0] for p in predictor.stream(names)]
        explained = load_run_model(str(run), device=device)
        views = np.stack([explained.transform.pixels(Image.open(name)) for name in names[:3]])
        return found, explain(explained.net, explained.inputs(views), Method())[0]

    on_cpu = answers("cpu")
    with pretend_gpu() as counts:
        on_gpu = answers("cuda")

    assert counts.to_gpu > 0
    assert on_gpu[0] == on_cpu[0]
    np.testing.assert_allclose(on_gpu[1], on_cpu[1], atol=1e-5)


def test_a_gpu_without_bf16_trains_in_fp16(
    image_folder: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    with pretend_gpu(has_bf16=False):
        done = run_it(
            image_folder, tiny_weights, tmp_path / "run", **settings("all", device="cuda")
        )

    assert json.loads((done.run / "environment.json").read_text())["precision"] == "fp16"
    assert figures(done.run)["top1"] == 1


@pytest.mark.parametrize("micro_batch", [0, 2])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_does_not_wait_for_the_gpu(micro_batch: int, precision: str) -> None:
    optim = OptimSpec(batch_size=32, solver="adamw", lr=0.1, epochs=1, micro_batch=micro_batch)
    with pretend_gpu() as counts:
        model = nn.Linear(3, 3).to("cuda")
        trainer = Trainer(model, optim, steps_per_epoch=2, precision=precision)
        batch = Batch(torch.randn(8, 3).to("cuda"), torch.zeros(8, dtype=torch.long).to("cuda"))
        first = trainer.step(batch)
        before = counts.syncs
        read = trainer.start(batch)
        waits = counts.syncs - before

    assert waits == 0
    assert read().loss < first.loss


@pytest.mark.parametrize("kind", ["one block", "several blocks", "several labels"])
def test_a_head_is_solved_where_its_features_are(kind: str) -> None:
    y = torch.arange(120) % 4
    x = torch.randn(120, 48, generator=torch.Generator().manual_seed(0))
    x += 1.5 * torch.eye(4).repeat(1, 12)[y]
    if kind == "several labels":
        y = torch.stack([y == 0, y == 1, y < 2, y == 3], dim=1).float()
    outputs = Outputs.of("abcd", several=y.ndim == 2)

    def figures_of(x: torch.Tensor) -> list[torch.Tensor]:
        read = 24 if kind == "several blocks" else None
        head = solve_head(x, y, classes=4, balanced=False, seed=0, read=read)
        scores = cross_validate(x, y, outputs, method=head.method, balanced=False, seed=0)
        assert scores is not None
        votes = nearest_neighbours(x, y, x[:30], classes=4)
        others = votes_outside_group(x, y, torch.arange(120) // 2, classes=4)
        return [head.weight, head.bias, *head.last, scores[1][1], votes, others]

    expected = figures_of(x)
    with pretend_gpu() as counts:
        there = x.to("cuda")
        counts.most_to_gpu = 0
        found = figures_of(there)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    assert max(counts.most_to_gpu, counts.most_to_cpu) < x.numel() / 4  # no features
