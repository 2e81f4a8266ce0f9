"""Whether a penalty chosen on a sample should be scaled for a head fitted to more images.

    python -m benchmarks.accuracy.penalty_sample RUN... [--ratio 4] [--seeds 10]

The features are those of the images of a run (`--set train.head_blocks=1`). Each seed draws 60% of the images. The
penalty is chosen on one in `ratio` of them, as it is chosen on 20,000 images of a larger data set,
and a head is fitted to all of them with this penalty, divided by the root of the ratio, divided
by the ratio, and with the penalty chosen on all of them. The rest of the images is predicted.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import vitft
from vitft.data.split import run_manifest
from vitft.features.folds import Folded, stratified_subset
from vitft.features.head import choose_penalty
from vitft.features.logistic import Standardizer, linear_logits, solve_logistic

WAYS = ("as chosen", "/ root of the ratio", "/ ratio", "chosen on all")


def features_of(run: Path) -> tuple[Tensor, Tensor, int]:
    """Return the features (n, D), the class indices (n,) and the number of classes."""
    manifest = run_manifest(run)
    assert manifest is not None
    x = vitft.load(run).features([manifest.locate(row) for row in manifest.rows])
    y = torch.tensor([row.label for row in manifest.rows])
    return torch.from_numpy(x), y, len(manifest.classes)


def compare_ways(x: Tensor, y: Tensor, classes: int, *, ratio: int, seed: int) -> list[list[float]]:
    """Return the accuracy and the loss of each of `WAYS` on images that were not drawn."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, rest = order.tensor_split([round(0.6 * len(y))])
    scale = Standardizer.fit(x[train])
    x, y, held_out, truth = scale(x[train]), y[train], scale(x[rest]), y[rest]
    one = torch.ones(1, len(y))
    rows = stratified_subset(y, len(y) // ratio, seed)
    data = Folded(x=x, y=y, sample_weight=one[0], classes=classes, seed=seed)
    chosen, _ = choose_penalty(data.some(rows))
    best, _ = choose_penalty(data)
    assert isinstance(chosen, float)
    found, actual = [], len(y) / len(rows)
    for l2 in (chosen, chosen / actual**0.5, chosen / actual, best):
        head = solve_logistic(x, y, one, classes=classes, l2=l2, tolerance=1e-5)[0]
        logits = linear_logits(held_out, head).float()
        right = (logits.argmax(dim=1) == truth).float().mean().item()
        found.append([100 * right, F.cross_entropy(logits, truth).item()])
    return found


def main() -> None:
    """Print mean accuracy and loss, and the difference of accuracy from the first way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--ratio", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for run in options.runs:
        x, y, classes = features_of(run)
        seeds = range(options.seeds)
        table = np.array(
            [compare_ways(x, y, classes, ratio=options.ratio, seed=seed) for seed in seeds]
        )
        for i, way in enumerate(WAYS):
            gain = table[:, i, 0] - table[:, 0, 0]
            error = gain.std(ddof=1) / len(gain) ** 0.5
            accuracy, loss = table[:, i].mean(axis=0)
            print(
                f"{run.name}: {way}: {accuracy:.2f}%, loss {loss:.3f}, {gain.mean():+.2f} +- {error:.2f}"
            )


if __name__ == "__main__":
    main()
