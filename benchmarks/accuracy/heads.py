"""Accuracy of heads on a frozen backbone over split seeds: means and standard deviations.

    python -m benchmarks.accuracy.heads --weights FILE --data DIR [DIR ...] [--seeds 5]

Arms: the tutorial's settings (SGD 0.9 at 1e-3, batch 8, 10 epochs, cosine to a hundredth) with a new random
crop of every image in each epoch (cached as ten views, shared by the split seeds) and on the cached plain
view; vitft's default; the default with cached augmented views; k nearest neighbours. The tutorial's arms are
scored after their last epoch and ours have no epochs, so nothing is selected on validation images.
A folder with train/ and validation/ is merged and split again for each seed.
"""

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.accuracy.seeds import run_arm
from benchmarks.folders import merge_splits
from benchmarks.timing import mean_deviation

TUTORIAL = {"solver": "sgd", "lr": 1e-3, "final_lr": 0.01, "warmup": 0.0, "weight_decay": 5e-5,
            "batch_size": 8, "epochs": 10}  # fmt: skip
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "tutorial, new crops": {"optim": TUTORIAL, "train": {"augment": "crop"}},
    "tutorial, plain view": {"optim": TUTORIAL},
    "ours": {},
    "ours, 1 view": {"train": {"views": 1}},
    "ours, 4 views": {"train": {"views": 4}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        for given in args.data:
            data = merge_splits(given, into)
            scores: dict[str, list[float]] = defaultdict(list)
            for seed in range(args.seeds):
                for arm, settings in ARMS.items():
                    done = run_arm(arm, settings, data, args.weights, seed, into)
                    scores[arm].append(100 * done.top1)
                    if arm == "ours":
                        scores["kNN"].append(100 * done.figures["knn_top1"])
            print(f"\n{given.name}, {args.seeds} split seeds, top-1 %")
            for name, values in scores.items():
                print(f"| {name} | {mean_deviation(values)} |", flush=True)


if __name__ == "__main__":
    main()
