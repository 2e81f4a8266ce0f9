"""Parity, throughput, memory and accuracy on a CUDA GPU, as text, in less than ten minutes.

    python -m benchmarks.speed.gpu [--out bench-gpu.txt] [--minutes 9] [--quick]

Needs a GPU and no network: weights are random or bundled, and the images are drawn. Sections that do not fit in
the time are left out by name. `--quick` uses tiny models, to test this program.

    parity      features of a GPU in float32 and bf16 against those of the CPU in float32: largest error as a ratio
                of norms; float32 must be below 1e-4, i.e. without TensorFloat-32
    throughput  images/s of the forward pass on decoded images, by model, precision and batch
    pipeline    images/s of feature extraction and `predict` from files, of decoding alone and of the forward pass
                alone; the ratio to the slower of the two should be near 1
    memory      peak MiB of a forward pass and of a training step, with and without activation checkpointing
    accuracy    `finetune` on drawn flowers on CPU and GPU, and the classes that `predict` gives in each precision
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitft.config.run import config_from_table
from vitft.config.sections import OptimSpec
from vitft.data.demo import draw_demo
from vitft.data.images import inspect_folder
from vitft.data.scan import scan
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features.cut import cut_model, run_prefix
from vitft.features.extract import Extractor, inspect_dataset
from vitft.models.registry import create_model
from vitft.models.timm_model import Model
from vitft.predict.torch_engine import Predictor
from vitft.system.cores import usable_cores
from vitft.system.device import describe_device, pick_precision
from vitft.training.loop import Batch, Trainer
from vitft.training.run import run_finetuning

MODELS = ("vit_tiny_patch16_224", "vit_base_patch16_224")
QUICK_MODELS = ("vit_tiny_patch16_32",)
RUNS = (
    ("all", "cuda", "fp32"),
    ("all", "cuda", "bf16"),
    ("head", "cpu", "fp32"),
    ("head", "cuda", "fp32"),
    ("head", "cuda", "bf16"),
)
"""What is trained, on which device and in which precision."""
GPU = torch.device("cuda")
Lines = Iterator[str]


def pixels_of(model: Model, count: int, device: torch.device) -> Tensor:
    """Return normalised noise images."""
    random = torch.Generator().manual_seed(0)
    size = model.config.image_size
    return torch.randn(count, 3, *size, generator=random).to(device)


def prefix_on(name: str, device: torch.device, precision: str) -> Any:
    torch.manual_seed(0)
    prefix = cut_model(create_model(name, num_classes=0).eval().to(device), "head").prefix
    assert prefix is not None
    return prefix.in_precision(precision)


def seconds_of(job: Callable[[], object], repeats: int) -> float:
    """Return the seconds of a job on the GPU, after one that is not counted."""
    job()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        job()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def parity(args: argparse.Namespace) -> Lines:
    yield "| model | float32 | bf16 | verdict |"
    yield "|---|---|---|---|"
    for name in args.models:
        exact_prefix = prefix_on(name, torch.device("cpu"), "fp32")
        pixels = pixels_of(exact_prefix.model, 4, torch.device("cpu"))
        exact, errors = run_prefix(exact_prefix, pixels), []
        for precision in ("fp32", "bf16"):
            found = run_prefix(prefix_on(name, GPU, precision), pixels.to(GPU)).float().cpu()
            errors.append(((found - exact).norm(dim=1) / exact.norm(dim=1)).max().item())
        good = errors[0] < 1e-4 and errors[1] < 0.05
        yield f"| {name} | {errors[0]:.1e} | {errors[1]:.1e} | {'as expected' if good else 'TOO LARGE'} |"


def throughput(args: argparse.Namespace) -> Lines:
    yield "| model | precision | batch | images/s |"
    yield "|---|---|---|---|"
    for name in args.models:
        for precision in ("fp32", "bf16"):
            prefix = prefix_on(name, GPU, precision)
            for batch in args.batches:
                pixels = pixels_of(prefix.model, batch, GPU)
                rate = batch / seconds_of(partial(run_prefix, prefix, pixels), 3)
                yield f"| {name} | {precision} | {batch} | {rate:,.0f} |"


def pipeline(args: argparse.Namespace) -> Lines:
    yield "| model, images | decode | forward | extraction | of the slower | predict | of the slower |"
    yield "|---|---|---|---|---|---|---|"
    name = args.models[-1]
    size = create_model(name, num_classes=0).config.image_size
    transform, precision = EvalTransform(image_size=size), pick_precision("auto", GPU)
    for per_class in args.per_class:
        folder = args.home / f"drawn{per_class}"
        draw_demo(folder, per_class=per_class)
        found = scan(folder)
        count = len(found.rows)
        prefix = prefix_on(name, GPU, "fp32")
        begin = time.perf_counter()
        inspect_folder(found, max_pixels=10**8, allow_bad=False, workers=usable_cores())
        decode = count / (time.perf_counter() - begin)
        lean, pixels = prefix.in_precision(precision), pixels_of(prefix.model, 32, GPU)
        forward = 32 / seconds_of(partial(run_prefix, lean, pixels), 3)
        extractor = Extractor(prefix, folder=None, precision=precision, max_pixels=10**8)
        begin = time.perf_counter()
        inspect_dataset(
            found, max_pixels=10**8, allow_bad=False, extractor=extractor, view=eval_view(transform)
        )
        extract = count / (time.perf_counter() - begin)
        predictor = predictor_of(name, transform)
        paths = [str(folder / file.path) for file in found.rows]
        list(predictor.stream(paths[:40]))
        begin = time.perf_counter()
        list(predictor.stream(paths))
        predict = count / (time.perf_counter() - begin)
        slower = min(decode, forward)
        yield (f"| {name}, {count} | {decode:,.0f} | {forward:,.0f} | {extract:,.0f} | {extract / slower:.2f} | "
               f"{predict:,.0f} | {predict / slower:.2f} |")  # fmt: skip


def predictor_of(name: str, transform: EvalTransform) -> Predictor:
    """Return a predictor of random weights whose logits differ clearly."""
    from vitft.models.card import Card

    torch.manual_seed(0)
    model = create_model(name, num_classes=5).eval()
    nn.init.normal_(model.get_parameter("head.weight"))
    card = Card(architecture=model.config, transform=transform, classes=tuple("abcde"))
    return Predictor(model, card, device="cuda", precision="auto")


def memory(args: argparse.Namespace) -> Lines:
    yield "| model | batch | forward, bf16 | training step | with checkpointing |"
    yield "|---|---|---|---|---|"
    for name in args.models:
        batch, cells = args.batches[0], []
        prefix = prefix_on(name, GPU, "bf16")
        pixels = pixels_of(prefix.model, batch, GPU)
        cells.append(peak_of(partial(run_prefix, prefix, pixels)))
        for checkpointing in (False, True):
            model = create_model(name, num_classes=5).to(GPU)
            model.checkpointing = checkpointing
            optim = OptimSpec(solver="adamw", lr=1e-4, epochs=1, batch_size=batch)
            trainer = Trainer(model, optim, steps_per_epoch=2, precision="bf16")
            labels = torch.zeros(batch, dtype=torch.long).to(GPU)
            cells.append(peak_of(partial(trainer.step, Batch(pixels, labels))))
        yield f"| {name} | {batch} | {' | '.join(cells)} |"


def peak_of(job: Callable[[], object]) -> str:
    """Return the peak memory of a job as text."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    job()
    torch.cuda.synchronize()
    return f"{torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB"


def accuracy(args: argparse.Namespace) -> Lines:
    yield "| device | precision | --train | top-1 | classes like float32 on the CPU |"
    yield "|---|---|---|---|---|"
    data = args.home / "flowers"
    draw_demo(data, per_class=args.per_class[0])
    names = sorted(str(path) for path in data.rglob("*.jpg"))
    for layers, device, precision in args.runs:
        optim = {"epochs": 2} if layers == "all" else {}
        train = {"layers": layers, "device": device, "precision": precision, "cache": "none"}
        table: dict[str, Any] = {"data": {"path": str(data)}, "weights": {"name": "demo"},
                                 "optim": optim, "train": train}  # fmt: skip
        out = args.home / f"{layers}-{device}-{precision}"
        run = run_finetuning(config_from_table(table), out=out).run
        top1 = json.loads((run / "eval.json").read_text())["top1"]
        exact = classes_of(run, names, "cpu", "fp32")
        same = np.mean(np.array(exact) == classes_of(run, names, device, precision))
        yield f"| {device} | {precision} | {layers} | {top1:.1%} | {same:.1%} of {len(names)} |"


def classes_of(run: Path, names: list[str], device: str, precision: str) -> Any:
    predictor = Predictor.from_run(str(run), device=device, precision=precision)
    return np.array([p.classes[0] for p in predictor.stream(names)])


SECTIONS = {
    "parity": parity,
    "throughput": throughput,
    "pipeline": pipeline,
    "memory": memory,
    "accuracy": accuracy,
}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("bench-gpu.txt"))
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--quick", action="store_true", help="tiny models and few images")
    args = parser.parse_args(words)
    if not torch.cuda.is_available():
        print("no CUDA GPU: nothing was measured. Run this on a machine on which "
              "torch.cuda.is_available() is true.", file=sys.stderr)  # fmt: skip
        return 2
    args.models = QUICK_MODELS if args.quick else MODELS
    args.batches, args.per_class = ((4,), (6,)) if args.quick else ((32, 256), (100, 1000))
    args.runs = RUNS[-1:] if args.quick else RUNS
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, args.out.open("w", encoding="utf-8") as file:
        args.home = Path(temporary)

        def write(line: str) -> None:
            print(line, flush=True)
            file.write(line + "\n")
            file.flush()

        write(f"{describe_device(GPU)}, {usable_cores()} decode threads, torch {torch.__version__}, "
              f"Python {platform.python_version()}")  # fmt: skip
        for name, section in SECTIONS.items():
            if time.monotonic() - begin > 60 * args.minutes * 0.8:
                write(f"\n{name}: left out, no time is left of {args.minutes:g} minutes")
                continue
            write(f"\n{name}")
            for line in section(args):
                write(line)
        write(f"\n{time.monotonic() - begin:.0f} s")
    print(f"written to {args.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
