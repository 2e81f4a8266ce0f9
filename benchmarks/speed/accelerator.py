"""Waits for a GPU, copies to it, and the throughput of pipelines, on the pretend accelerator of the tests.

    python -m benchmarks.speed.accelerator waits
    python -m benchmarks.speed.accelerator pipeline [--images 500 5000] [--rate 200] [--workers 16]
        [--repeats 3]

No GPU is needed.

`waits`: every way of training runs once on 30 drawn images in three classes (24 for training, batches of 8, 2
epochs), on a small Vision Transformer of random weights and on a small timm model with BatchNorm, in each precision;
then `predict` runs on the same images. Nothing is timed. Printed are

    waits per step    times that the program waits for all work queued on the GPU, from the end of one training step
                      to the end of the next (median over the steps); - if no steps are taken
    copies per image  how often the pixels of an image are copied to the GPU in the whole run
    waits per run     of the whole run, most of them when weights are moved and saved
    predict           waits per batch in float32 and bf16; waiting for one batch while others are queued is not one

`pipeline`: the feature pass and `predict` of a tiny model, where decoding an image is a sleep in one of the workers,
and the simulated GPU takes a fixed time per image after the work queued before. The throughput is compared with the
slower of the two rates.
"""

import argparse
import hashlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.conftest import tiny_home
from tests.models.test_timm_model import random_model, saved
from tests.support.pretend_gpu import Counts, pretend_gpu
from tests.support.timeline import Timeline
from tests.training.test_run import run_it
from vitft.data.folder import File
from vitft.data.inspection import inspected_file
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features import extract
from vitft.features.cut import cut_model
from vitft.features.extract import ExtractedImage, Extractor
from vitft.models.card import Card
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.predict.torch_engine import Predictor
from vitft.training.loop import StepResult, Trainer

TINY = ViTConfig(image_size=(16, 16), patch_size=(8, 8), width=16, depth=1, heads=1, num_classes=0)
FREEZE = ("head", "blocks:1", "lora", "all", "head,all")
PRECISIONS = ("fp32", "bf16", "fp16")
IMAGES = 30


@contextmanager
def counted_steps(counts: Counts) -> Iterator[list[int]]:
    """Yield a list to which each training step adds the waits since the previous step."""
    waits: list[int] = []
    last = [0]
    step = Trainer.step

    def counted(self: Trainer, *arguments: Any) -> StepResult:
        if self.steps == 0:
            last[0] = counts.syncs
        result = step(self, *arguments)
        if self.steps > 1:
            waits.append(counts.syncs - last[0])
        last[0] = counts.syncs
        return result

    with mock.patch.object(Trainer, "step", counted):
        yield waits


def measure(home: Path, weights: Path, layers: str, precision: str) -> list[str]:
    """Return the cells of a row of the table."""
    optim: dict[str, Any] = {"solver": "lbfgs"} if layers == "head" else {"epochs": 2}
    train = {"layers": layers, "precision": precision, "cache": "none", "device": "cuda"}
    out = Path(tempfile.mkdtemp(dir=home)) / "run"
    with pretend_gpu() as counts, counted_steps(counts) as waits:
        run = run_it(home / "data", weights, out, optim=optim, train=train).run
        steps = f"{statistics.median(waits):g}" if waits else "-"
        copies = counts.images_to_gpu / IMAGES
        total = counts.syncs
    names = [str(path) for path in sorted((home / "data").rglob("*.png"))]
    cells = [steps, f"{copies:.1f}", str(total)]
    for dtype in ("fp32", "bf16"):
        with pretend_gpu() as counts:
            predictor = Predictor.from_run(str(run), device="cuda", precision=dtype)
            predictor.batch = 8
            counts.syncs = 0
            list(predictor.stream(names))
            cells.append(f"{counts.syncs / -(-IMAGES // 8):.1f}")
    return cells


def matrix() -> None:
    print("| model | --train | precision | waits per step | copies per image | waits per run | predict fp32 | predict bf16 |")  # fmt: skip
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


# ---- throughput of the pipelines


class Decoded:
    """Stand-ins for decoding: images take `seconds` (0.5 to 1.5 times) of sleep, no processor time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.random = seconds, random.Random(0)
        self.pixels = np.zeros((16, 16, 3), np.uint8)

    def sleep(self) -> None:
        time.sleep(self.seconds * self.random.uniform(0.5, 1.5))

    def inspected(self, _: str, file: File, **__: Any) -> ExtractedImage:
        self.sleep()
        digest = hashlib.sha256(file.path.encode()).hexdigest()
        found = inspected_file(file, digest, (16, 16), ())
        return ExtractedImage(found, pixels=self.pixels)

    def view(self, *_: Any) -> Any:
        self.sleep()
        return self.pixels


def extraction_s(images: int, decoded: Decoded, timeline: Timeline, workers: int) -> float:
    """Return the seconds of a feature pass."""
    model = VisionTransformer(TINY).eval()
    files = [File(f"{i:06}.jpg", 0) for i in range(images)]
    with (
        tempfile.TemporaryDirectory() as cache,
        pretend_gpu() as counts,
        mock.patch.object(extract, "inspect_file", decoded.inspected),
    ):
        prefix = cut_model(model.to("cuda"), "head").prefix
        assert prefix is not None
        extractor = Extractor(
            prefix, folder=Path(cache), precision="fp32", max_pixels=10**8, workers=workers
        )
        view = eval_view(EvalTransform(image_size=(16, 16)))
        list(extractor.extract(cache, files[:1], view))  # first calls are slower
        counts.timeline = timeline
        begin = time.perf_counter()
        assert sum(1 for _ in extractor.extract(cache, files, view)) == images
        return time.perf_counter() - begin


def prediction_s(images: int, decoded: Decoded, timeline: Timeline, workers: int) -> float:
    """Return the seconds of `Predictor.stream`."""
    config = replace(TINY, num_classes=3)
    card = Card(
        architecture=config, transform=EvalTransform(image_size=(16, 16)), classes=tuple("abc")
    )
    with tempfile.NamedTemporaryFile() as file, pretend_gpu() as counts:
        predictor = Predictor(VisionTransformer(config), card, device="cuda")
        predictor.workers = workers
        with mock.patch.object(Predictor, "view", decoded.view):
            list(predictor.stream([file.name]))
            counts.timeline = timeline
            begin = time.perf_counter()
            assert sum(1 for _ in predictor.stream([file.name] * images)) == images
            return time.perf_counter() - begin


def pipeline(args: argparse.Namespace) -> None:
    jobs = {"extraction": extraction_s, "predict": prediction_s}
    print("| pass | images | decode, images/s | compute, images/s | images/s | of the slower |")
    print("|---|---|---|---|---|---|")
    for (name, job), images in product(jobs.items(), args.images):
        for decode, compute in ((args.rate, args.rate), (args.rate / 2, args.rate), (args.rate, args.rate / 2)):  # fmt: skip
            found = []
            for _ in range(args.repeats):
                decoded = Decoded(args.workers / decode)
                timeline = Timeline(image_s=1 / compute)
                found.append(images / job(images, decoded, timeline, args.workers))
            rate = statistics.median(found)
            print(f"| {name} | {images} | {decode:g} | {compute:g} | {rate:.0f} | {rate / min(decode, compute):.2f} "
                  f"({min(found) / min(decode, compute):.2f} to {max(found) / min(decode, compute):.2f}) |",
                  flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("waits", "pipeline"))
    parser.add_argument("--images", type=int, nargs="+", default=[500, 5000])
    parser.add_argument("--rate", type=float, default=200, help="images/s of the faster part")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "waits":
        matrix()
    else:
        pipeline(args)


if __name__ == "__main__":
    main()
