"""Accuracy of solved heads by the number of classes, beside fixed penalties.

    python -m benchmarks.accuracy.many_classes [--classes 10 100 1000 3000] [--each 10]

The features are drawn: 20 classes around each of C / 20 random centres, and noise of unequal variance
in the 192 dimensions. A third of the images of each class are for testing. Printed are the accuracy and
the penalty of the head as `finetune` solves it, the accuracy with fixed penalties, and processor seconds.
"""

import argparse
import time

import torch
from torch import Tensor

from vitft.features.head import solve_head
from vitft.features.logistic import Standardizer, linear_logits, solve_logistic

FIXED = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
WIDTH = 192


def draw_classes(classes: int, each: int, *, noise: float) -> tuple[Tensor, Tensor]:
    """Draw features (n, WIDTH) and their classes (n,)."""
    generator = torch.Generator().manual_seed(classes)
    centres = torch.randn(max(1, classes // 20), WIDTH, generator=generator)
    own = 0.7 * torch.randn(classes, WIDTH, generator=generator)
    spectrum = torch.arange(1, WIDTH + 1).float() ** -0.5
    spectrum = spectrum / spectrum.square().mean().sqrt()
    y = torch.arange(classes).repeat(each)
    means = (centres[torch.arange(classes) % len(centres)] + own) * spectrum
    spread = noise * spectrum.flip(0).clamp(min=0.5)
    return means[y] + spread * torch.randn(len(y), WIDTH, generator=generator), y


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the fraction of correct predictions in percent."""
    return 100 * (logits.argmax(dim=1) == y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000, 3000])
    parser.add_argument("--each", type=int, default=10, help="training images per class")
    parser.add_argument("--noise", type=float, default=4.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| classes | solved, % | its penalty | s | " + " | ".join(f"{p:g}" for p in FIXED) + " |")
    for classes in args.classes:
        x, y = draw_classes(classes, args.each * 3 // 2, noise=args.noise)
        train = args.each * classes
        x, y, fresh, truth = x[:train], y[:train], x[train:], y[train:]
        begun = time.process_time()
        solved = solve_head(x, y, classes=classes, l2=0, balanced=False, seed=0)
        seconds = time.process_time() - begun
        top1 = accuracy(fresh @ solved.weight.T + solved.bias, truth)
        scale, found = Standardizer.fit(x), []
        one = torch.ones(1, train)
        for l2 in FIXED:
            head = solve_logistic(scale(x), y, one, classes=classes, l2=l2, steps=100)[0]
            found.append(f"{accuracy(linear_logits(scale(fresh), head), truth):.1f}")
        print(
            f"| {classes:,} | {top1:.1f} | {solved.l2:.1e} | {seconds:.0f} | {' | '.join(found)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
