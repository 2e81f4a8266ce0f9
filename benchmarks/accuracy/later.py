"""What a split at random and a split by time claim, beside the true accuracy on still later images.

    python -m benchmarks.accuracy.later --weights FILE --data DIR [DIR ...] [--images 400] [--draws 200] [--folds]

For each draw, the images of a folder get made-up dates in one of these orders:

- at random
- frequencies: some classes become common and others rare
- appearance: along a random direction of the features within the classes, with half as much noise
- file numbers: the number in the name, which Flickr gives by the time of upload and a camera by that of the photo, of a
  random half more images than `--images`

The first `--images` are the data of a user, and the next half as many are later images, on which the truth is measured. A head is
solved on four fifths of the data, as `vitft finetune` solves it: those chosen at random, whose claim is the
cross-validated accuracy of all, or the earliest, whose claim is the accuracy on the latest fifth. An interval covers if it contains the
true accuracy of that head after it is widened, in quadrature, by 1.96 standard errors of the truth.

--folds adds two columns: how the true accuracy of the head of the earliest images changes if its penalty is not chosen in
folds at random, but in five folds of dates, and forward: each of the last four fifths of the dates is predicted from all
before it.
"""

import argparse
import math
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.accuracy.blocks_read import Features, extract
from benchmarks.folders import merge_splits
from vitft.features.head import PENALTIES, SolvedHead, cross_validate, solve_head, tempered
from vitft.features.logistic import Standardizer, rough_fit
from vitft.metrics.intervals import accuracy_interval
from vitft.metrics.outputs import Outputs

ORDERS = ("at random", "frequencies", "appearance", "file numbers")
FOLDS, TREND = 5, 1.0
Array = np.ndarray[Any, Any]


def dates(found: Features, order: str, images: int, rng: np.random.Generator) -> Array:
    """Return the images in the order of made-up dates."""
    x, y = found.x[:, : found.read].numpy(), found.y.numpy()
    if order == "frequencies":  # a weighted draw without replacement (Efraimidis & Spirakis 2006)
        trend = TREND * rng.permutation(np.linspace(-1, 1, found.classes))[y]
        return np.argsort(-(rng.random(len(y)) ** np.exp(trend)))
    if order == "appearance":
        means = np.stack([x[y == c].mean(axis=0) for c in range(found.classes)])
        rest = (x - means[y]) / x.std(axis=0).clip(1e-6)
        along = np.linalg.svd(rest, full_matrices=False)[2][:10]  # the ten largest components
        line = rest @ (rng.normal(size=len(along)) @ along)
        return np.argsort(2 * line / line.std() + rng.normal(size=len(line)))
    shuffled = rng.permutation(len(y))
    if order == "file numbers":
        some = shuffled[: images * 3 // 2]
        return some[
            np.argsort([int(re.findall(r"\d+", Path(found.paths[i]).name)[0]) for i in some])
        ]
    return shuffled


def solve(found: Features, rows: Array, l2: float = 0.0, groups: Array | None = None) -> SolvedHead:
    """Return the head fitted to some images."""
    own = None if groups is None else torch.from_numpy(groups)
    return solve_head(
        found.x[rows, : found.read], found.y[rows], classes=found.classes, l2=l2, balanced=False,
        seed=0, groups=own,
    )  # fmt: skip


def forward_penalty(found: Features, rows: Array) -> float:
    """Return the penalty with the lowest loss on each fifth of the dates, fitted to those before it."""
    x, y = found.x[rows, : found.read], found.y[rows]
    x, fold = Standardizer.fit(x)(x), np.arange(len(rows)) * FOLDS // len(rows)
    weights = torch.stack([torch.from_numpy(fold < k).float() for k in range(1, FOLDS)])
    losses, start = list[float](), None
    for l2 in PENALTIES:
        start = rough_fit(x, y, weights, classes=found.classes, l2=l2, start=start)
        logits = torch.cat([
            x[fold == k] @ head[:, :-1].T.float() + head[:, -1].float()
            for k, head in enumerate(start, start=1)
        ])  # fmt: skip
        truth = y[torch.from_numpy(fold > 0)]
        losses.append(F.nll_loss(tempered(logits, truth)[1], truth).item())
    return PENALTIES[int(np.argmin(losses))]


def right_of(head: SolvedHead, found: Features, rows: Array) -> Array:
    """Return whether a head predicts the class of each of the images."""
    x: Tensor = found.x[rows, : found.read]
    return ((x @ head.weight.T + head.bias).argmax(dim=1) == found.y[rows]).numpy()


def draw(
    found: Features, order: str, images: int, seed: int, *, folds: bool
) -> dict[str, float] | None:
    """Return the claims and the truth for one order of the images, or None if a class is too rare."""
    rng = np.random.default_rng([ORDERS.index(order), images, seed])
    sequence = dates(found, order, images, rng)
    data, later, held = sequence[:images], sequence[images : images * 3 // 2], images // 5
    shuffled, result = rng.permutation(data), dict[str, float]()
    if min(len(found.y[rows].unique()) for rows in (data[:-held], shuffled[held:])) < found.classes:
        return None
    random, timed = solve(found, shuffled[held:]), solve(found, data[:-held])
    scored = cross_validate(
        found.x[shuffled, : found.read], found.y[shuffled], Outputs.of(map(str, range(found.classes))),
        method=random.method, balanced=False, seed=0,
    )  # fmt: skip
    if scored is None:
        return None
    right = right_of(timed, found, data[-held:])
    claims = {
        "random": (scored[0]["top1"], scored[0]["top1_interval"], random),
        "time": (float(right.mean()), accuracy_interval(right), timed),
    }
    for name, (claim, (low, high), head) in claims.items():
        truth = float(right_of(head, found, later).mean())
        error = 1.96 * math.sqrt(truth * (1 - truth) / len(later))
        below, above = math.hypot(claim - low, error), math.hypot(high - claim, error)
        result |= {f"{name} claim": claim, f"{name} truth": truth, f"{name} width": high - low}
        result[f"{name} covers"] = claim - below <= truth <= claim + above
    if not folds:
        return result
    blocks = np.arange(images - held) * FOLDS // (images - held)
    for name, head in {
        "blocked": solve(found, data[:-held], groups=blocks),
        "forward": solve(found, data[:-held], l2=forward_penalty(found, data[:-held])),
    }.items():
        result[name] = float(right_of(head, found, later).mean()) - result["time truth"]
    return result


def main() -> None:
    """Print a line for each folder and order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--folds", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    columns = "| images, order | draws | random: claim | true | covered | time: claim | true | covered | width |"
    print(columns + " in folds of dates | forward |" * args.folds)
    print("|---|---|---|---|---|---|---|---|---|" + "---|---|" * args.folds)
    for data in args.data:
        with tempfile.TemporaryDirectory() as temporary:
            found = extract(merge_splits(data, Path(temporary)), args.weights)
        for order in args.orders:
            drawn = (
                draw(found, order, args.images, seed, folds=args.folds)
                for seed in range(args.draws)
            )
            values = defaultdict[str, list[float]](list)
            for result in filter(None, drawn):
                for name, value in result.items():
                    values[name].append(100 * value)
            mean = {name: float(np.mean(each)) for name, each in values.items()}
            cells = [
                f"{mean[f'{name} {what}']:.1f}"
                for name in ("random", "time")
                for what in ("claim", "truth", "covers")
            ]
            cells.append(f"{mean['time width']:.1f}")
            for name in ("blocked", "forward") if args.folds else ():
                error = np.std(values[name]) / math.sqrt(len(values[name]))
                cells.append(f"{mean[name]:+.2f} ± {error:.2f}")
            number = len(values["time claim"])
            print(f"| {data.name}, {order} | {number} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
