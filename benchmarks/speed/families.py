"""vitft's feature pass beside timm's forward in bf16, one architecture per family, interleaved.

    python -m benchmarks.speed.families [--only NAME ...] [--batch 8] [--repeats 7] [--threads 1]

Random weights and the same random images, `num_classes=0`. vitft runs the prefix of `--train head` as `finetune`
does, timm its whole forward with weights and images in bf16. The model with the same weights is built once in
either library; both run in turn. Times are processor seconds of this process, so that other programs on the
machine count as little as possible. Printed is the ratio vitft / timm: median and range of the repeats.
"""

import argparse
import time
from collections.abc import Callable

import timm
import torch

from benchmarks.timing import interleave, median_range
from vitft.features.cut import cut_model, run_prefix
from vitft.models.checkpoint import build_model
from vitft.models.pretrained.convert import from_timm_names
from vitft.models.registry import network_config

ARCHITECTURES = {
    "vit_small_patch16_dinov3": 256,
    "vit_base_patch16_siglip_gap_224": 224,
    "vit_base_patch16_siglip_224": 224,
    "vit_base_patch16_clip_224": 224,
    "eva02_small_patch14_224": 224,
    "beit3_base_patch16_224": 224,
    "aimv2_large_patch14_224": 224,
    "vit_pe_core_small_patch16_384": 384,
    "vit_base_patch16_radio_v3": 224,
    "vit_small_patch14_reg4_dinov2": 224,
    "vit_small_patch16_224": 224,
}
"""Side of the images in pixels, by architecture; the last one is a plain ViT for comparison."""


def timed(job: Callable[[], object]) -> Callable[[], float]:
    """Return a function that runs the job and returns its processor seconds."""

    def run() -> float:
        begin = time.process_time()
        job()
        return time.process_time() - begin

    return run


def compare(name: str, side: int, batch: int, repeats: int) -> str:
    """Return one line: the ratio of the times, seconds per batch, and the largest difference."""
    torch.manual_seed(0)
    theirs = timm.create_model(name, img_size=side, num_classes=0).eval()
    ours = build_model(from_timm_names(theirs.state_dict()), network_config(theirs))
    prefix = cut_model(ours, "head").prefix
    assert prefix is not None
    lean, low = prefix.in_precision("bf16"), theirs.to(torch.bfloat16)
    images = torch.randn(batch, 3, side, side)
    with torch.inference_mode():
        jobs: dict[str, Callable[[], torch.Tensor]] = {
            "vitft": lambda: run_prefix(lean, images),
            "timm": lambda: low(images.bfloat16()),
        }
        first, second = (jobs[key]().float() for key in ("vitft", "timm"))  # also warms up
        times = interleave({key: timed(job) for key, job in jobs.items()}, repeats)
    ratios = [a / b for a, b in zip(times["vitft"], times["timm"], strict=True)]
    apart = float((first - second).abs().max() / second.abs().max())
    return (
        f"| {name}, {side} px | {median_range(ratios, '.2f')} | {median_range(times['vitft'], '.2f')} "
        f"| {median_range(times['timm'], '.2f')} | {apart:.0e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=ARCHITECTURES, default=[*ARCHITECTURES])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| architecture | vitft / timm | vitft, s | timm, s | relative difference |")
    for name in args.only:
        print(compare(name, ARCHITECTURES[name], args.batch, args.repeats), flush=True)


if __name__ == "__main__":
    main()
