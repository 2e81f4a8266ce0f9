"""Accuracy of heads on a frozen backbone, over seeds of the split: a table of means and spreads.

    python -m benchmarks.accuracy.heads --weights FILE --data DIR [DIR ...] [--seeds 5]

Arms: the tutorial's settings (SGD 0.9 at 1e-3, batch 8, 10 epochs, cosine to a hundredth) with a fresh
random crop of every image in each epoch (cached as ten views, shared by the split seeds) and on the
cached plain view; our default; our default with cached augmented views; k nearest neighbours. The tutorial's arms are judged after
their last epoch, ours has no epochs to choose among, so no arm is selected on validation images.
A folder with train/ and validation/ is merged and split afresh for each seed.
"""

import argparse
import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitft.config.run import config_from_table
from vitft.training.run import finetune

TUTORIAL = {
    "solver": "sgd",
    "lr": 1e-3,
    "final_lr": 0.01,
    "warmup": 0.0,
    "weight_decay": 5e-5,
    "batch_size": 8,
    "epochs": 10,
}
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "tutorial, fresh crops": {"optim": TUTORIAL, "train": {"augment": "crop"}},
    "tutorial, plain view": {"optim": TUTORIAL},
    "ours": {},
    "ours, 1 view": {"train": {"views": 1}},
    "ours, 4 views": {"train": {"views": 4}},
}


def merged(data: Path, into: Path) -> Path:
    """One folder per class: `data` itself, or links into its train and validation folders."""
    parts = [p for p in data.iterdir() if p.name in ("train", "validation", "val") and p.is_dir()]
    if not parts:
        return data
    root = into / data.name
    for part in parts:
        for label in filter(Path.is_dir, part.iterdir()):
            (root / label.name).mkdir(parents=True, exist_ok=True)
            for image in label.iterdir():
                os.symlink(image.resolve(), root / label.name / f"{part.name}_{image.name}")
    return root


def one(data: Path, weights: Path, arm: str, seed: int, into: Path) -> dict[str, float]:
    """Top-1 of one arm, and what else came with it."""
    settings = {section: dict(values) for section, values in ARMS[arm].items()}
    settings.setdefault("train", {})["cache"] = str(into / "cache")
    table = {
        **settings,
        "data": {"path": str(data), "seed": seed},
        "weights": {"name": str(weights)},
    }
    out = into / f"{data.name}-{arm}-{seed}".replace(" ", "_")
    result = finetune(config_from_table(table), out=out)
    if "epochs" in ARMS[arm].get("optim", {}):
        last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        return {arm: last["val_top1"]}
    return {arm: result.figures["top1"], f"{arm}: kNN": result.figures["knn_top1"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        for given in args.data:
            data = merged(given, into)
            scores: dict[str, list[float]] = defaultdict(list)
            for seed in range(args.seeds):
                for arm in ARMS:
                    for name, top1 in one(data, args.weights, arm, seed, into).items():
                        scores[name].append(100 * top1)
            print(f"\n{given.name}, {args.seeds} split seeds, top-1 %")
            for name, values in scores.items():
                if "views: kNN" in name or "view: kNN" in name:
                    continue
                each = " ".join(f"{v:.1f}" for v in values)
                print(f"| {name} | {mean(values):.1f} ± {stdev(values):.1f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
