"""Size, accuracy and time of 8-bit graphs beside float32 and bf16.

    python -m benchmarks.speed.eight_bit --run RUN [--images 240] [--threads 2] [--batch 8]

The run is exported with --onnx and --int8; the graph of `MatMulNBits` (weights in 8 bits, in blocks of 32
inputs) is made from the float32 graph by onnxruntime. Every model classifies the same validation photos,
batch by batch and in turns, so that a busy machine slows all of them. Changed answers and logits are
compared with torch in float32. The last column is the largest difference of a logit between the photo
alone and in its batch.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from vitft.config.run import read_toml
from vitft.data.image_table import Images
from vitft.data.images import open_image
from vitft.export import export_run
from vitft.export.formats.base import normalised_input
from vitft.export.plan import plan_export
from vitft.export.trained import TrainedRun, load_trained
from vitft.system.rundir import RunDir

Logits = Callable[[Any], Any]


def read_photos(run: str, trained: TrainedRun, count: int) -> tuple[Any, Any]:
    """Return normalised pixels (n, channels, H, W) and labels (n,) of validation photos."""
    root = read_toml(Path(run) / "config.toml")["data"]["path"]
    manifest = Images.from_csv(RunDir(Path(run)).split, root)
    rows = manifest.val[:: max(1, len(manifest.val) // count)][:count]
    view = trained.card.transform
    pixels = [normalised_input(view, open_image(manifest.locate(row))) for row in rows]
    return np.stack(pixels), np.array([row.label for row in rows])


def torch_model(trained: TrainedRun, *, bf16: bool) -> Logits:
    """Return the logits of torch, in float32 or with bf16 autocast."""

    def logits(pixels: Any) -> Any:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return trained.model(torch.from_numpy(pixels)).float().numpy()

    return logits


def graph_model(path: Path, threads: int) -> Logits:
    """Return the logits of onnxruntime for a graph."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda pixels: session.run(None, {name: pixels})[0]


def in_blocks(source: Path, target: Path) -> None:
    """Write a graph whose products of weights are `MatMulNBits` with 8 bits."""
    quantizer = MatMulNBitsQuantizer(onnx.load(source), bits=8, block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def make_models(
    run: str, trained: TrainedRun, home: Path, threads: int
) -> dict[str, tuple[Logits, float]]:
    """Return the logits and the size in MB of every model."""
    export_run(run, plan_export(["onnx", "int8"], str(home), images=8))
    paths = {
        "ONNX float32": home / "onnx" / "model.onnx",
        "ONNX --int8": home / "int8" / "model.onnx",
    }
    blocks = home / "blocks.onnx"
    in_blocks(paths["ONNX float32"], blocks)
    models = {"torch float32": (torch_model(trained, bf16=False), float("nan")),
              "torch bf16": (torch_model(trained, bf16=True), float("nan"))}  # fmt: skip
    for name, path in {**paths, "ONNX MatMulNBits": blocks}.items():
        models[name] = (graph_model(path, threads), path.stat().st_size / 1e6)
    return models


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True)
    parser.add_argument("--images", type=int, default=240)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    trained = load_trained(args.run)
    pixels, labels = read_photos(args.run, trained, args.images)
    with tempfile.TemporaryDirectory() as temporary:
        models = make_models(args.run, trained, Path(temporary), args.threads)
        outputs: dict[str, list[Any]] = {name: [] for name in models}
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for name in models:
            models[name][0](pixels[: args.batch])  # first calls are slower
        for start in range(0, len(pixels), args.batch):
            for name, (logits, _) in models.items():
                begun = time.perf_counter()
                outputs[name].append(logits(pixels[start : start + args.batch]))
                seconds[name].append(time.perf_counter() - begun)
        truth = np.concatenate(outputs["torch float32"])
        print(f"{len(pixels)} photos, largest logit {np.abs(truth).max():.1f}, batches of {args.batch}, "
              f"{args.threads} threads, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")  # fmt: skip
        print(
            "| model | MB | largest difference | changed | correct | ms per image | of float32 (ONNX) | alone and in a batch |"
        )
        for name, (logits, megabytes) in models.items():
            rows = np.concatenate(outputs[name])
            off, changed = (
                np.abs(rows - truth).max(),
                int((rows.argmax(1) != truth.argmax(1)).sum()),
            )
            ratios = [a / b for a, b in zip(seconds[name], seconds["ONNX float32"], strict=True)]
            alone = np.concatenate([logits(pixels[i : i + 1]) for i in range(min(40, len(pixels)))])
            print(f"| {name} | {megabytes:.1f} | {off:.2g} | {changed} | {(rows.argmax(1) == labels).mean():.1%} | "
                  f"{1000 * statistics.median(seconds[name]) / args.batch:.1f} | {statistics.median(ratios):.2f} | "
                  f"{np.abs(alone - rows[: len(alone)]).max():.1g} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
