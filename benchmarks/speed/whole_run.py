"""Whole cold runs beside their forward passes, and the feature pass divided among processes.

    python -m benchmarks.speed.whole_run whole --data DIR [--weights FILE] [--images 600 1200 4000]
        [--precision bf16]
    python -m benchmarks.speed.whole_run ranks --data DIR [--weights FILE] [--images 960]

whole  whole processes: `vitft finetune` with an empty feature cache, and `vitft predict` on the
       same images with the run, both over the forward pass of as many images that are already
       decoded, with the prefix and the threads of the run; and `vitft finetune` with all features in
       the cache, over `import torch`
ranks  the feature pass of 1 process with 1 thread and of 2 gloo processes with 1 thread each, from
       the start of the pass, with the model loaded, to the end of the slowest process

The contestants take turns, `--repeats` times, each in a fresh process; printed are wall seconds,
and ratios of each round, with the ratio of the smallest seconds. If
more images are asked for than there are, the others are the same photos with a few bytes
appended: other files for the program, with the same work. Without --weights, ViT-Tiny of
random weights is used.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.rank_kills import free_port
from benchmarks.speed.cached import finetune, many
from benchmarks.speed.feature_pass import in_workers
from benchmarks.speed.frozen import make_weights, report
from benchmarks.timing import (
    interleave,
    median_range,
    run_contestant,
    run_process,
    run_vitft,
)
from vitft.config.run import Config, config_from_table
from vitft.config.sections import TrainSpec, WeightsSpec
from vitft.data.scan import scan
from vitft.features.cut import run_prefix
from vitft.features.extract import FrozenPipeline, batch_size, load_pipeline, read_several_blocks
from vitft.training.runtime import Runtime, process_group
from vitft.training.setup import extract_features

MODULE = "benchmarks.speed.whole_run"


def load(data: Path, weights: Path, precision: Any = "bf16") -> FrozenPipeline:
    """Return the frozen model that a run of this folder uses."""
    folder, train = scan(data), TrainSpec(precision=precision)
    config = Config(weights=WeightsSpec(name=str(weights)), train=train)
    pipeline, _ = load_pipeline(folder, "head", config)
    return read_several_blocks(pipeline, images=len(folder.rows))


def forward(data: Path, weights: Path, precision: str) -> None:
    """Measure the forward pass of as many images as the folder has."""
    pipeline = load(data, weights, precision)
    assert pipeline.cut.prefix is not None
    prefix = pipeline.cut.prefix.in_precision(precision)
    batch = batch_size("cpu", prefix.leading)
    pixels = torch.rand(batch, 3, *pipeline.transform.image_size)
    count = -(-len(scan(data).rows) // batch)
    report([in_workers(lambda _: run_prefix(prefix, pixels), count, torch.get_num_threads())], 0, 0)


def extract(data: Path, weights: Path) -> None:
    """Measure the feature pass of this process, one of WORLD_SIZE, with an empty cache."""
    with process_group(device="cpu") as group, tempfile.TemporaryDirectory() as temporary:
        torch.set_num_threads(1)
        pipeline = load(data, weights)
        assert pipeline.cut.prefix is not None
        cache = group.main_only(lambda: temporary)
        config = config_from_table({"train": {"precision": "bf16", "cache": cache}})
        folder = scan(data)
        group.barrier()
        begun = time.perf_counter()
        _, extractor, _ = extract_features(pipeline, folder, config, Runtime(group=group))
        group.barrier()
        seconds = time.perf_counter() - begun
        assert extractor is not None
        computed = group.gather(extractor.computed)
        assert len(folder.rows) == sum(computed), computed
        report([seconds, *map(float, computed)], 0, 0)
        group.barrier()


def run_ranks(data: Path, weights: Path, processes: int) -> list[float]:
    """Return the seconds of the pass on that many processes, and the images that each computed."""
    command = [sys.executable, "-m", MODULE, "extract", "--data", str(data)]
    command += ["--weights", str(weights)]
    shared = {
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",  # which counts only if there is one process
    }
    others = [
        subprocess.Popen(
            command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(1, processes)
    ]  # fmt: skip
    os.environ |= {**shared, "RANK": "0", "LOCAL_RANK": "0"}
    words = ["extract", "--data", str(data), "--weights", str(weights)]
    found: list[float] = run_contestant(MODULE, *words)["epochs"]
    for other in others:
        assert other.wait() == 0
    return found


def compare_ranks(data: Path, weights: Path, repeats: int) -> None:
    jobs = {f"{n}": functools.partial(run_ranks, data, weights, n) for n in (1, 2)}
    turns = interleave(jobs, repeats)
    for processes, results in turns.items():
        computed = {tuple(int(n) for n in result[1:]) for result in results}
        print(f"| {processes} | {median_range([r[0] for r in results])} | computed {computed} |")
    ratios = [one[0] / two[0] for one, two in zip(turns["1"], turns["2"], strict=True)]
    print(f"| 1 process / 2 processes | {median_range(ratios)} |")


def compare_whole(data: Path, weights: Path, home: Path, repeats: int, precision: str) -> None:
    cache, run, again, rows = (home / name for name in ("cache", "run", "again", "rows.csv"))
    setting = ["--set", f"train.precision={precision}"]

    def cold() -> float:
        for folder in (cache, run, again):
            shutil.rmtree(folder, ignore_errors=True)
        return finetune(data, weights, cache, run, *setting)

    def predict() -> float:
        rows.unlink(missing_ok=True)
        words = [str(data), "--run", str(run), "--out", str(rows), "--dtype", precision]
        return run_vitft("predict", *words)

    def bare() -> float:
        words = ["forward", "--data", str(data), "--weights", str(weights)]
        words += ["--precision", precision]
        return float(run_contestant(MODULE, *words)["epochs"][0])

    jobs: dict[str, Callable[[], float]] = {
        "cold": cold,
        "bare forward pass": bare,
        "predict": predict,
        "warm": lambda: finetune(data, weights, cache, again, *setting),
        "import torch": lambda: run_process([sys.executable, "-c", "import torch"]).wall_s,
    }
    turns = interleave(jobs, repeats)
    print(f"{len(scan(data).rows):,} images, {precision}")
    for name, seconds in turns.items():
        print(f"| {name} | {median_range(seconds)} |")
    for name, below in (
        ("cold", "bare forward pass"),
        ("predict", "bare forward pass"),
        ("warm", "import torch"),
    ):
        ratios = [a / b for a, b in zip(turns[name], turns[below], strict=True)]
        best = min(turns[name]) / min(turns[below])
        print(f"| {name} / {below} | {median_range(ratios)} | best {best:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("whole", "ranks", "forward", "extract"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--images", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    args = parser.parse_args()
    if args.what == "forward":
        forward(args.data, args.weights, args.precision)
        return
    if args.what == "extract":
        extract(args.data, args.weights)
        return
    # As when the package is installed: modules are compiled once, not in each process
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        weights = args.weights or home / "random.safetensors"
        if args.weights is None:
            make_weights("vit_tiny_patch16_224", weights)
        for images in args.images or {"whole": [600, 1200, 4000], "ranks": [960]}[args.what]:
            data = many(args.data, home / f"photos{images}", images)
            if args.what == "whole":
                compare_whole(data, weights, home, args.repeats, args.precision)
            else:
                compare_ranks(data, weights, args.repeats)


if __name__ == "__main__":
    main()
