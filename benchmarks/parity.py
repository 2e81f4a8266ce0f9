"""Largest difference of logits between our model and timm's, for every architecture of the table.

    python -m benchmarks.parity              # from the top of the repository; minutes
    python -m benchmarks.parity tiny small   # only these sizes

Random weights, float32, CPU, at 224 pixels and at another size. Exit code 1 above 1e-5.
"""

import sys
import time
from dataclasses import replace

import torch

from tests.conftest import random_timm
from vitft.checkpoint import build_model
from vitft.model import architecture_names, config_of

LIMIT = 1e-5


@torch.no_grad()
def difference(name: str, image_size: tuple[int, int]) -> tuple[float, float]:
    """Largest |ours - timm| and largest |timm|, over two random images."""
    theirs = random_timm(name, image_size)
    config = replace(config_of(name), image_size=image_size, num_classes=10)
    ours = build_model(theirs.state_dict(), config)
    images = torch.randn(2, 3, *image_size, generator=torch.Generator().manual_seed(1))
    expected = theirs(images)
    return float((ours(images) - expected).abs().max()), float(expected.abs().max())


def main(sizes: list[str]) -> int:
    torch.set_num_threads(1)
    worst = 0.0
    print(f"torch {torch.__version__}\n{'architecture':<24}{'pixels':>10}{'max |diff|':>12}"
          f"{'max |logit|':>13}{'s':>7}")  # fmt: skip
    for name in architecture_names():
        if sizes and name.split("_")[1] not in sizes:
            continue
        patch = config_of(name).patch_size[0]
        for image_size in ((224, 224), (6 * patch, 9 * patch)):
            start = time.perf_counter()
            largest, scale = difference(name, image_size)
            worst = max(worst, largest)
            shown = f"{image_size[0]}x{image_size[1]}"
            seconds = time.perf_counter() - start
            print(f"{name:<24}{shown:>10}{largest:>12.1e}{scale:>13.2f}{seconds:>7.1f}", flush=True)
    print(f"worst: {worst:.1e}, limit {LIMIT:.0e}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
