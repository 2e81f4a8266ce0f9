"""How the time of the stages without a forward pass grows with the number of images.

    python -m benchmarks.speed.stages [--images 25000 100000 400000] [--classes 100] [--stages NAME ...]

The inputs are random features of 192 dimensions, logits and perceptual hashes. Printed are processor seconds
at each size, the exponent between the last two sizes (1 is linear), and the highest memory of the process so far.
"""

import argparse
import math
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitft.data.duplicates import MAX_ALL_PAIRS, candidates, similar_codes
from vitft.features.label_errors import nearest_neighbours, out_of_fold_logits, votes_outside_group
from vitft.metrics.calibration import ScoredSet, calibrate_temperature
from vitft.metrics.classification import classification_metrics
from vitft.metrics.outputs import Outputs

WIDTH = 192


def features(images: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return features (n, D) in clusters, one per class, and the classes (n,)."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(images) % classes
    centres = torch.randn(classes, WIDTH, generator=generator)
    return centres[y] + 2 * torch.randn(images, WIDTH, generator=generator), y


def logits(images: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(images) % classes
    values = torch.randn(images, classes, generator=generator)
    values[torch.arange(images), y] += 3
    return values, y


def neighbours(images: int, classes: int) -> None:
    """A fifth of the images are queries."""
    x, y = features(images, classes)
    cut = images // 5
    nearest_neighbours(x[cut:], y[cut:], x[:cut], classes=classes)


def label_votes(images: int, classes: int) -> None:
    x, y = features(images, classes)
    votes_outside_group(x, y, torch.arange(images), classes=classes)


def held_out_heads(images: int, classes: int) -> None:
    x, y = features(images, classes)
    out_of_fold_logits(x, y, torch.arange(images), classes=classes, seed=0)


def near_duplicates(images: int, _: int) -> None:
    codes = np.random.default_rng(0).integers(0, 2**64, images, dtype=np.uint64)
    search = candidates if images <= MAX_ALL_PAIRS else similar_codes
    for _pairs in search(codes):
        pass


def temperature(images: int, classes: int) -> None:
    values, y = logits(images, classes)
    calibrate_temperature(ScoredSet(values.double().numpy(), y.numpy()))


def metrics(images: int, classes: int) -> None:
    values, y = logits(images, classes)
    classification_metrics(values, y, Outputs.of(map(str, range(classes))))


STAGES: dict[str, Callable[[int, int], None]] = {
    "nearest neighbours": neighbours,
    "votes on labels": label_votes,
    "out-of-fold heads": held_out_heads,
    "near-duplicates": near_duplicates,
    "temperature": temperature,
    "metrics": metrics,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[25_000, 100_000, 400_000])
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {args.classes} classes | " + " | ".join(f"{n:,}" for n in args.images), end="")
    print(" | exponent | peak MiB |")
    for name in args.stages:
        seconds = []
        for images in args.images:
            begun = time.process_time()
            STAGES[name](images, args.classes)
            seconds.append(time.process_time() - begun)
        ratio = math.log(seconds[-1] / seconds[-2]) / math.log(args.images[-1] / args.images[-2])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        times = " | ".join(f"{s:.2f} s" for s in seconds)
        print(f"| {name} | {times} | {ratio:.2f} | {peak:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
