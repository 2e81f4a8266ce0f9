"""Waits for a GPU and copies to it, on the pretend accelerator of the tests.

    python -m benchmarks.speed.accelerator

No GPU is needed. Every way of training runs once on 30 drawn images in three classes (24 for training, batches of 8, 2
epochs), on a small Vision Transformer of random weights and on a small timm model with BatchNorm, in each precision;
then `predict` runs on the same images. Nothing is timed. Printed are

    waits per step    times that the program waits for all work queued on the GPU, from the end of one training step
                      to the end of the next (median over the steps); - if no steps are taken
    copies per run    copies to the GPU in the whole run
    waits per run     of the whole run, most of them when weights are moved and saved
    predict           waits per batch in float32 and bf16; waiting for one batch while others are queued is not one
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.conftest import tiny_home
from tests.models.test_timm_model import random_model, saved
from tests.support.pretend_gpu import Counts, pretend_gpu
from tests.training.test_run import run_it
from vitft.predict.torch_engine import Predictor
from vitft.training.loop import StepResult, Trainer

FREEZE = ("head", "blocks:1", "lora", "all", "head,all")
PRECISIONS = ("fp32", "bf16", "fp16")
IMAGES = 30


@contextmanager
def counted_steps(counts: Counts) -> Iterator[list[int]]:
    """Yield a list to which each training step adds the waits since the previous step."""
    waits: list[int] = []
    last = [0]
    start = Trainer.start

    def counted(self: Trainer, *arguments: Any) -> Callable[[], StepResult]:
        if self.steps == 0:
            last[0] = counts.syncs
        result = start(self, *arguments)
        if self.steps > 1:
            waits.append(counts.syncs - last[0])
        last[0] = counts.syncs
        return result

    with mock.patch.object(Trainer, "start", counted):
        yield waits


def measure(home: Path, weights: Path, layers: str, precision: str) -> list[str]:
    """Return the cells of a row of the table."""
    optim: dict[str, Any] = {"solver": "lbfgs"} if layers == "head" else {"epochs": 2}
    train = {"layers": layers, "precision": precision, "cache": "none", "device": "cuda"}
    out = Path(tempfile.mkdtemp(dir=home)) / "run"
    with pretend_gpu() as counts, counted_steps(counts) as waits:
        run = run_it(home / "data", weights, out, optim=optim, train=train).run
        steps = f"{statistics.median(waits):g}" if waits else "-"
        cells = [steps, str(counts.to_gpu), str(counts.syncs)]
    names = [str(path) for path in sorted((home / "data").rglob("*.png"))]
    for dtype in ("fp32", "bf16"):
        with pretend_gpu() as counts:
            predictor = Predictor.from_run(str(run), device="cuda", precision=dtype)
            predictor.batch = 8
            counts.syncs = 0
            list(predictor.stream(names))
            cells.append(f"{counts.syncs / -(-IMAGES // 8):.1f}")
    return cells


def matrix() -> None:
    print("| model | --train | precision | waits per step | copies per run | waits per run | predict fp32 | predict bf16 |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        home = tiny_home(Path(temporary), per_class=IMAGES // 3)
        timm = saved(home / "timm.safetensors", random_model())
        for name, weights in (("ViT", home / "w.safetensors"), ("timm", timm)):
            for layers in FREEZE:
                if name == "timm" and layers == "lora":
                    continue
                for precision in PRECISIONS:
                    cells = measure(home, weights, layers, precision)
                    print(f"| {' | '.join([name, layers, precision, *cells])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    torch.set_num_threads(1)
    matrix()


if __name__ == "__main__":
    main()
