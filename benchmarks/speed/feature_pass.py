"""The pass that computes features, compared with its lower bounds, interleaved in one process.

    python -m benchmarks.speed.feature_pass --data DIR [--model vit_tiny_patch16_224] [--images 160]
        [--repeats 5]

    pass     read, hash, decode, resize and run the prefix, as `finetune` does (one worker per core)
    forward  the prefix alone, on images that are already decoded, with the same workers
    gemm     the largest matrix product of the model alone: the peak of this machine at the moment

`pass / forward` is the cost of everything around the model; `forward / gemm` is the fraction of the peak
that is reached, counting the operations that are executed (the last block computes the class token only).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.folders import link_images
from benchmarks.timing import median_range
from vitft.data.loading import in_order
from vitft.data.scan import scan
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features.cut import cut_model, run_prefix
from vitft.features.extract import Extractor, batch_size
from vitft.models.registry import create_model
from vitft.models.vit_config import ViTConfig


def operations(config: ViTConfig) -> float:
    """Return the floating-point operations of the prefix for one image, as they are executed."""
    n, d, hidden = (
        1 + config.grid[0] * config.grid[1],
        config.width,
        int(config.width * config.mlp_ratio),
    )
    patch = (n - 1) * d * config.in_channels * config.patch_size[0] * config.patch_size[1]
    block = n * d * 3 * d + 2 * n * n * d + n * d * d + 2 * n * d * hidden
    last = n * d * 2 * d + d * d + 2 * n * d + d * d + 2 * d * hidden
    return 2.0 * (patch + (config.depth - 1) * block + last)


def in_workers(job: Callable[[int], object], count: int, workers: int) -> float:
    """Return the seconds of `count` jobs on `workers` threads of one core each."""

    def one(i: int) -> object:
        torch.set_num_threads(1)
        return job(i)

    begin = time.perf_counter()
    for _ in in_order(one, range(count), workers=workers):
        pass
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = create_model(args.model, num_classes=0).eval()
    prefix = cut_model(model, "head").prefix
    assert prefix is not None
    transform, workers = EvalTransform(image_size=model.config.image_size), torch.get_num_threads()
    measured: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        link_images(args.data, Path(temporary) / "d", args.images, 0)
        source = Path(temporary) / "d" / "train"
        folder = scan(source)
        batch = batch_size("cpu", model.config.width)
        pixels = np.random.default_rng(0).integers(0, 256, (batch, *model.config.image_size, 3))
        decoded = transform.normalise(torch.from_numpy(pixels.astype(np.uint8)))
        lean = prefix.in_precision("bf16")
        tokens = batch * (1 + model.config.grid[0] * model.config.grid[1])
        x = torch.randn(tokens, model.config.width).bfloat16()
        w = torch.randn(4 * model.config.width, model.config.width).bfloat16()
        count = len(folder.files) // batch
        operated = count * batch * operations(model.config)
        per_product = 8.0 * tokens * model.config.width**2
        products = max(4, int(operated / per_product / 4))
        for repeat in range(args.repeats):
            extractor = Extractor(prefix, folder=None, precision="bf16", max_pixels=10**8)
            begin = time.perf_counter()
            extractor.inspect(
                folder, eval_view(transform), allow_bad=False, progress=lambda _: None
            )
            whole_s = time.perf_counter() - begin
            forward_s = in_workers(lambda _: run_prefix(lean, decoded), count, workers)
            gemm_s = in_workers(lambda _: torch.nn.functional.linear(x, w), products, workers)
            peak, reached = products * per_product / gemm_s, operated / forward_s
            row = {"pass": whole_s, "forward": forward_s, "gemm": gemm_s, "gemm GFLOP/s": peak / 1e9,
                   "forward GFLOP/s": reached / 1e9, "pass / forward": whole_s / forward_s,
                   "fraction of peak": reached / peak}  # fmt: skip
            print(f"  repeat {repeat}: " + "  ".join(f"{k} {v:.3g}" for k, v in row.items()))
            for name, value in row.items():
                measured.setdefault(name, []).append(value)
    print(f"{args.model}, {len(folder.files)} images, {workers} workers, medians of {args.repeats}")
    for name, values in measured.items():
        print(f"| {name} | {median_range(values)} |")


if __name__ == "__main__":
    main()
