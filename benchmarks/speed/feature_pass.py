"""The pass that computes features, compared with its lower bounds, interleaved in one process.

    python -m benchmarks.speed.feature_pass --data DIR [--model vit_tiny_patch16_224] [--images 160]
        [--repeats 5] [--blocks [N]]

    pass     read, hash, decode, resize and run the prefix, as `finetune` does (one worker per core)
    forward  the prefix alone, on images that are already decoded, with the same workers
    gemm     the largest matrix product of the model alone: the peak of this machine at the moment

`pass / forward` is the cost of everything around the model; `forward / gemm` is the fraction of the peak
that is reached, counting the operations that are executed (the last block computes the class token only).

`--blocks` compares instead the pass for a head that reads the last block with that for a head that reads the
last N (default: as many as a run chooses), in turns, in processor seconds, and fits both heads to `--rows`
feature vectors of five overlapping classes with correlated dimensions.
"""

import argparse
import copy
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.folders import link_images
from benchmarks.timing import cpu_seconds, interleave, median_range
from vitft.config.sections import TrainSpec
from vitft.data.image_table import Images
from vitft.data.images import in_order
from vitft.data.scan import scan
from vitft.data.transforms import EvalTransform, eval_view
from vitft.features.cut import Prefix, cut_model, run_prefix
from vitft.features.extract import Extractor, batch_size, blocks_to_read, inspect_dataset
from vitft.features.head import cross_validate, solve_head
from vitft.metrics.outputs import Outputs
from vitft.models.registry import create_model
from vitft.models.vit import VisionTransformer
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


def compare_heads(
    model: VisionTransformer, folder: Images, blocks: int, rows: int, repeats: int
) -> None:
    """Compare the passes for heads that read one block and several, and the times to fit them."""
    wide = copy.deepcopy(model)
    wide.read_last_blocks(blocks)
    prefixes = {
        "last block": cut_model(model, "head").prefix,
        f"{blocks}": cut_model(wide, "head").prefix,
    }
    one, several = (functools.partial(pass_seconds, folder, p) for p in prefixes.values() if p)
    turns = interleave({"a": one, "b": several, "c": several, "d": one}, repeats)
    firsts, seconds = turns["a"] + turns["d"], turns["b"] + turns["c"]
    ratios = [b / a for a, b in zip(firsts, seconds, strict=True)]
    read, width = model.last_block_size, wide.feature_size
    random = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % 5
    hidden = 0.05 * torch.randn(5, width, generator=random)[y] + torch.randn(
        rows, width, generator=random
    )
    scales = torch.arange(1, width + 1) ** -0.5  # correlated dimensions, as in features
    x = (hidden * scales) @ torch.randn(width, width, generator=random)
    fits = interleave(
        {f"{d}": functools.partial(fit_seconds, x[:, :d], y, read) for d in (read, width)}, repeats
    )
    print(f"{len(folder.rows)} images; processor seconds")
    print(f"| pass, last block | {median_range(firsts)} |")
    print(f"| pass, {blocks} blocks | {median_range(seconds)} |")
    print(f"| ratio | {median_range(ratios)} |")
    for dimensions, taken in fits.items():
        print(
            f"| fit to {rows} rows of {dimensions} dimensions ({2 * int(dimensions):,} bytes per "
            f"image in bf16) | {median_range(taken)} |"
        )


def pass_seconds(folder: Images, prefix: Prefix) -> float:
    """Return the processor seconds of the whole pass over a folder."""
    extractor = Extractor(prefix, folder=None, precision="bf16", max_pixels=10**8)
    view = eval_view(EvalTransform(image_size=prefix.model.config.image_size))
    begun = cpu_seconds()
    inspect_dataset(folder, max_pixels=10**8, allow_bad=False, extractor=extractor, view=view)
    return cpu_seconds() - begun


def fit_seconds(x: torch.Tensor, y: torch.Tensor, read: int) -> float:
    """Return the processor seconds to choose, fit and cross-validate a head, as a run does."""
    begun = cpu_seconds()
    solved = solve_head(x, y, classes=5, l2=0.0, balanced=False, seed=0, read=read)
    cross_validate(x, y, Outputs.of("abcde"), method=solved.method, balanced=False, seed=0)
    return cpu_seconds() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--blocks", type=int, nargs="?", const=0)
    parser.add_argument("--rows", type=int, default=960)
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
        if args.blocks is not None:
            blocks = args.blocks or blocks_to_read(model, TrainSpec(), images=len(folder.rows))
            compare_heads(model, folder, blocks, args.rows, args.repeats)
            return
        batch = batch_size("cpu", model.config.width)
        pixels = np.random.default_rng(0).integers(0, 256, (batch, *model.config.image_size, 3))
        decoded = transform.normalise(torch.from_numpy(pixels.astype(np.uint8)))
        lean = prefix.in_precision("bf16")
        tokens = batch * (1 + model.config.grid[0] * model.config.grid[1])
        x = torch.randn(tokens, model.config.width).bfloat16()
        w = torch.randn(4 * model.config.width, model.config.width).bfloat16()
        count = len(folder.rows) // batch
        operated = count * batch * operations(model.config)
        per_product = 8.0 * tokens * model.config.width**2
        products = max(4, int(operated / per_product / 4))
        for repeat in range(args.repeats):
            extractor = Extractor(prefix, folder=None, precision="bf16", max_pixels=10**8)
            begin = time.perf_counter()
            view = eval_view(transform)
            inspect_dataset(
                folder, max_pixels=10**8, allow_bad=False, extractor=extractor, view=view
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
    print(f"{args.model}, {len(folder.rows)} images, {workers} workers, medians of {args.repeats}")
    for name, values in measured.items():
        print(f"| {name} | {median_range(values)} |")


if __name__ == "__main__":
    main()
