"""Answers by a parent class (`--tree`) on new photos, at the precision of answers by a class.

    python -m benchmarks.accuracy.tree --weights FILE --data DIR --tree CSV [--images 300] [--draws 120]
        [--precisions 0.9 0.95]

Each draw is a run as in `guarantees`: so many photos, a fifth held out, the head solved, cross-validated and calibrated as
`vitft finetune` does it. The thresholds come from the held-out predictions, which include the cross-validated ones of training
photos. "validation" chooses those of the parents from the validation photos alone. The other photos are the new ones.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.accuracy.blocks_read import extract
from benchmarks.accuracy.guarantees import Scored, as_a_run
from vitft.predict.threshold import Answers, level_covers, smallest_cover
from vitft.predict.tree import ClassTree


def thresholds(known: Scored, tree: ClassTree, lowest: float, precision: float, rows: Any) -> Any:
    """Return the thresholds of all levels, chosen from some of the held-out photos."""
    found = [lowest]
    for _, answers, covered in level_covers(tree, known.p[rows], known.y[rows], precision, lowest):
        found.insert(0, float(answers.probability[covered - 1]) if covered else 2.0)
    return found


def measure(
    known: Scored, new: Scored, tree: ClassTree, precision: float, images: int, row: Any
) -> None:
    """Add the fractions of new photos that are answered at each level, and those that are right."""
    top = Answers.sorted(known.p.max(axis=1), known.right)
    covered, weight = smallest_cover(top, precision), new.weight / new.weight.sum()
    row["no class threshold"].append(not covered)
    if not covered:
        return
    lowest = float(top.probability[covered - 1])
    last = len(tree.nodes)
    for name, rows in (("validation", slice(images // 5)), ("all held-out", slice(None))):
        chosen = replace(tree, thresholds=thresholds(known, tree, lowest, precision, rows))
        levels, nodes, _ = chosen.answers(new.p)
        for level in range(1, last + 1):
            own = (levels == level) * weight
            right = nodes == tree.above[level - 1][new.y]
            row[name, level].append((own.sum(), (own * right).sum(), chosen.thresholds[level - 1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--draws", type=int, default=120)
    parser.add_argument("--precisions", type=float, nargs="*", default=[0.9, 0.95])
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = extract(args.data, args.weights)
    names = sorted({Path(path).parent.name for path in found.paths})
    tree, rows, accuracy = (
        ClassTree.read(args.tree, names),
        defaultdict[Any, Any](lambda: defaultdict(list)),
        [],
    )
    for seed in range(args.draws):
        rng = np.random.default_rng([args.images, seed])
        pair = as_a_run(found, np.arange(len(found.y)), rng, args.images)
        if pair is None:
            continue
        weight = pair[1].weight / pair[1].weight.sum()
        accuracy.append(
            [
                weight @ (tree.best(pair[1].p, level)[1] == tree.above[level - 1][pair[1].y])
                for level in range(1, len(tree.nodes) + 1)
            ]
        )
        for precision in args.precisions:
            measure(*pair, tree, precision, args.images, rows[precision])
    means = ", ".join(f"{100 * value:.1f}" for value in np.mean(accuracy, axis=0))
    print(f"{args.data.name}, {args.images}, {len(accuracy)} draws: accuracy by level {means}%")
    print(
        "| wanted | parents chosen on | level | answered % | right % (all draws) | draws with answers % |"
    )
    for precision, found_rows in rows.items():
        print(
            f"{precision:g}: no threshold of classes in {100 * np.mean(found_rows.pop('no class threshold')):.1f}% of draws"
        )
        for (name, level), values in found_rows.items():
            answered, right, limits = np.array(values).T
            print(
                f"| {precision:g} | {name} | {level} | {100 * answered.mean():.1f} | "
                f"{100 * right.sum() / max(1e-12, answered.sum()):.1f} | {100 * (limits <= 1).mean():.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
