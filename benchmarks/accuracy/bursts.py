"""One answer per group, and accuracy by value, on features of real photos: coverage and calibration.

    python -m benchmarks.accuracy.bursts --weights FILE --data DIR [DIR ...] [--clips 5] [--draws 400] [--train 8]

Groups are bursts of 2 to 8 similar photos of a class or, with `--clips K`, K frames of each photo (moving crop, zoom,
brightness). For each draw, the groups are divided in three parts: a head is solved on `--train` images per class of the
first, the temperature is fitted on the second, and the third is the population. From it, 20 and 60 groups are drawn with
replacement. The truth is the accuracy on the population.

The first table has the accuracy of images and of groups, the coverage of the interval of `evaluate` over groups, the mean
probability of the answers (from the mean of the logits, as vitft has it, and from their sum), and the calibration error of both.
The second has the tests of `evaluate --by`: how often any of three values that say nothing has a corrected p-value below 5%
(a value for each group, or for each image), and the coverage of the difference between half of the classes and the others.
"""

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.accuracy.blocks_read import Features, extract
from benchmarks.accuracy.intervals import make_clips
from benchmarks.folders import merge_splits
from vitft.features.head import solve_head
from vitft.metrics.calibration import (
    bin_by_confidence,
    calibration_error,
    fit_temperature,
    softmax,
)
from vitft.metrics.classification import accuracy_by
from vitft.metrics.intervals import accuracy_interval

Array = np.ndarray[Any, Any]
SIZES = (20, 60)


def bursts(found: Features) -> Array:
    """Return a group for each image (n,): 2 to 8 similar images of a class."""
    x = torch.nn.functional.normalize(found.x[:, : found.read], dim=1)
    rng, groups, number = np.random.default_rng(0), np.full(len(x), -1), 0
    for label in range(found.classes):
        left = np.flatnonzero(found.y.numpy() == label)
        while len(left):
            first = rng.choice(left)
            order = (x[left] @ x[first]).argsort(descending=True).numpy()
            own = left[order[: rng.integers(2, 9)]]
            groups[own], number = number, number + 1
            left = np.setdiff1d(left, own)
    return groups


def solved(found: Features, groups: Array, part: Array, each: int) -> Array:
    """Return the logits of all images (n, C) of a calibrated head, given the part of each image."""
    y = found.y.numpy()
    rows = [np.flatnonzero((part == 0) & (y == label))[:each] for label in range(found.classes)]
    train = torch.from_numpy(np.concatenate(rows))
    x = found.x[:, : found.read]
    head = solve_head(
        x[train], found.y[train], classes=found.classes, l2=0, balanced=False, seed=0,
        groups=torch.from_numpy(groups)[train], read=found.read,
    )  # fmt: skip
    logits = (x @ head.weight.T + head.bias).double().numpy()
    return logits / (fit_temperature(logits[part == 1], y[part == 1]) or 1.0)


def draw(found: Features, groups: Array, each: int, seed: int, into: dict[str, list[Any]]) -> None:
    """Add the results of a draw."""
    rng, y = np.random.default_rng(seed), found.y.numpy()
    part = rng.choice(3, groups.max() + 1, p=[0.4, 0.2, 0.4])[groups]
    logits = solved(found, groups, part, each)
    names = np.unique(groups[part == 2])
    members = [np.flatnonzero(groups == name) for name in names]
    labels = np.array([y[own[0]] for own in members])
    sums, means = (np.array([f(logits[own], axis=0) for own in members]) for f in (np.sum, np.mean))
    right = means.argmax(axis=1) == labels
    each_right = logits.argmax(axis=1) == y
    into["images"].append(each_right[part == 2].mean())
    into["groups"].append(right.mean())
    for kind, scores in {"mean": means, "sum": sums}.items():
        into[f"{kind} confidence"] += softmax(scores).max(axis=1).tolist()
        into[f"{kind} right"] += right.tolist()
    half = y < found.classes / 2
    pool = part == 2
    truth = each_right[pool & half].mean() - each_right[pool & ~half].mean()
    for size in SIZES:
        chosen = rng.integers(0, len(names), size)
        low, high = accuracy_interval(right[chosen])
        into[f"covered {size}"].append(low <= right.mean() <= high)
        into[f"width {size}"].append(high - low)
        images = np.concatenate([members[i] for i in chosen])
        units = np.repeat(np.arange(size), [len(members[i]) for i in chosen])
        for kind, values in {
            "groups": rng.choice(3, size)[units],
            "images": rng.choice(3, len(units)),
        }.items():
            by = accuracy_by(values.astype(str).tolist(), each_right[images], units)
            least = min(row["p_holm"] if row["p_holm"] is not None else 1.0 for row in by.values())
            into[f"false {kind} {size}"].append(least < 0.05)
        by = accuracy_by(half[images].astype(str).tolist(), each_right[images], units)
        if len(by) == 2:
            low, high = by["True"]["difference_interval"] or (0.0, 0.0)
            into[f"difference {size}"].append(low <= truth <= high)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--clips", type=int, default=0)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--train", type=int, nargs="+", default=[3, 20])
    args = parser.parse_args()
    torch.set_num_threads(1)
    tests = list[str]()
    print(
        "| photos | trained on | images | groups | covered (20, 60) | width | mean: probability, error | sum |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for data in args.data:
        with tempfile.TemporaryDirectory() as temporary:
            folder = merge_splits(data, Path(temporary) / "merged")
            if args.clips:
                folder = make_clips(folder, args.clips, Path(temporary) / "clips")
            found = extract(folder, args.weights)
        groups = bursts(found)
        if args.clips:
            groups = np.unique(
                [path.rpartition("_")[0] for path in found.paths], return_inverse=True
            )[1]
        for each in args.train:
            results: dict[str, list[Any]] = defaultdict(list)
            for seed in range(args.draws):
                draw(found, groups, each, seed, results)
            share = {k: 100 * float(np.mean(v)) for k, v in results.items()}
            name = f"| {data.name} | {each} a class "
            calibration = []
            for kind in ("mean", "sum"):
                confidence, right = (
                    np.array(results[f"{kind} {x}"], float) for x in ("confidence", "right")
                )
                error, _ = calibration_error(bin_by_confidence(confidence, right))
                calibration.append(f"{share[f'{kind} confidence']:.1f}, {100 * error:.1f}")
            cells = [f"{share[k]:.1f}" for k in ("images", "groups")]
            for kind in ("covered", "width"):
                cells.append(", ".join(f"{share[f'{kind} {size}']:.1f}" for size in SIZES))
            print(f"{name}| {' | '.join([*cells, *calibration])} |", flush=True)
            cells = [
                ", ".join(f"{share[f'{kind} {size}']:.1f}" for size in SIZES)
                for kind in ("false groups", "false images", "difference")
            ]
            tests.append(f"{name}| {' | '.join(cells)} |")
    print(
        "\n| photos | trained on | false alarms, value by group | by image | difference covered |"
    )
    print("|---|---|---|---|---|")
    print("\n".join(tests))


if __name__ == "__main__":
    main()
