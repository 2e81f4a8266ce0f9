"""How a class with a single training image is predicted, beside more images of it.

    python -m benchmarks.accuracy.one_image --weights FILE --data DIR [DIR ...] [--most 40] [--draws 40]

For each draw, one class, and then every second class, has that many training images, and the others have `--most`. The head is
solved as `vitft finetune` solves it, and its temperature is that of the cross-validated logits, which leave out classes with one
image. The other images of the folder test it: the recall of the rare classes, the images of other classes that are taken for
them, the mean probability of a rare class on its own images and on others, and the accuracy on the other classes. ± is the
standard error over the draws.
"""

import argparse
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.accuracy.blocks_read import Features, extract
from benchmarks.folders import merge_splits
from vitft.features.head import cross_validate, solve_head, tempered
from vitft.metrics.outputs import Outputs

SIZES = (1, 2, 5, 20)
COLUMNS = ("recall", "taken for one", "probability on own", "on others", "other classes right")


def draw(found: Features, rare: Any, few: int, most: int, rng: Any) -> tuple[float, ...]:
    """Return the values of `COLUMNS` in % for one choice of images; `rare` lists classes."""
    rows = [
        rng.permutation(np.flatnonzero(found.y.numpy() == c))[: few if c in rare else most]
        for c in range(found.classes)
    ]
    train = np.concatenate(rows)
    test = np.setdiff1d(np.arange(len(found.y)), train)
    x, y = found.x[train], found.y[train]
    head = solve_head(x, y, classes=found.classes, l2=0, balanced=False, seed=0, read=found.read)
    names = [str(c) for c in range(found.classes)]
    scored = cross_validate(x, y, Outputs.of(names), method=head.method, balanced=False, seed=0)
    assert scored is not None
    seen, logits = scored[1]
    factor = tempered(logits, y[seen])[0]
    own_x = found.x[test][:, : head.weight.shape[1]]
    chances = (factor * (own_x @ head.weight.T + head.bias)).softmax(dim=1)
    truth, answer = found.y[test].numpy(), chances.argmax(dim=1).numpy()
    is_rare, says_rare = np.isin(truth, rare), np.isin(answer, rare)
    of_rare = chances[:, torch.as_tensor(rare)].sum(dim=1).numpy()
    own = chances[torch.arange(len(truth)), torch.from_numpy(truth)].numpy()
    return (
        100 * float((answer == truth)[is_rare].mean()),
        100 * float(says_rare[~is_rare].mean()),
        100 * float(own[is_rare].mean()),
        100 * float(of_rare[~is_rare].mean()),
        100 * float((answer == truth)[~is_rare].mean()),
    )


def main() -> None:
    """Print a line for each folder, number of rare classes and number of their images."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("--draws", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| rare classes | images of each | {' | '.join(COLUMNS)} |")
    print("|---|---|---|---|---|---|---|")
    for data in args.data:
        with tempfile.TemporaryDirectory() as temporary:
            found = extract(merge_splits(data, Path(temporary)), args.weights)
        for kinds in (1, found.classes // 2):
            for few in SIZES:
                values = defaultdict[str, list[float]](list)
                for seed in range(args.draws):
                    rng = np.random.default_rng([kinds, seed])  # the same classes for each number
                    rare = rng.permutation(found.classes)[:kinds]
                    results = draw(found, rare, few, args.most, rng)
                    for name, value in zip(COLUMNS, results, strict=True):
                        values[name].append(value)
                cells = [
                    f"{np.mean(v):.1f} ± {np.std(v) / math.sqrt(len(v)):.1f}"
                    for v in values.values()
                ]
                print(
                    f"| {data.name}, {kinds} of {found.classes} | {few} | {' | '.join(cells)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
