"""Accuracy of students with and without a teacher, over split seeds.

    python -m benchmarks.accuracy.teacher --weights FILE --data DIR [--seeds 3] [--work DIR]

The teacher is fine-tuned from the weights (`head,all`, six epochs, 112 pixels). Students are the bundled backbone
(`demo`, all layers) and the same weights (112 pixels, last four blocks). Half of the images validate, and teacher
and students have the same split. All are scored after the last epoch, so nothing is selected on validation images.
Finished runs in the work folder are used again.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import vitft
from benchmarks.folders import merge_splits
from benchmarks.timing import mean_deviation

STUDENTS: dict[str, tuple[str, int]] = {
    "demo, all": ("all", 10),
    "weights, blocks:4": ("blocks:4", 6),
}
"""--train and epochs of the students."""


def top1(out: Path, epochs: int, settings: dict[str, object], **options: Any) -> float:
    """Return the accuracy in percent of a run after its last epoch, after training it if needed."""
    if not (out / "report.html").exists():
        more = {"data.val_rate": 0.5, "optim.epochs": epochs}
        vitft.finetune(out=out, settings={**more, **settings}, **options)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return 100 * float(json.loads(lines[-1])["val_top1"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "teacher"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    data, rows = merge_splits(args.data, args.work), dict[str, list[tuple[float, float]]]()
    for seed in range(args.seeds):
        options: Any = {"data": data, "seed": seed, "cache": args.work / "cache"}
        own = {"weights": args.weights, "image_size": 112}
        teacher = args.work / f"teacher-{seed}"
        best = top1(teacher, 6, {}, train="head,all", **own, **options)
        for name, (layers, epochs) in STUDENTS.items():
            start = {"weights": "demo"} if name.startswith("demo") else own
            found = []
            for more in ({}, {"train.teacher": os.fspath(teacher)}):
                out = args.work / f"{name}-{'taught' if more else 'alone'}-{seed}".replace(" ", "")
                found.append(top1(out, epochs, more, train=layers, **start, **options))
            rows.setdefault(name, []).append((found[0], found[1]))
            print(f"seed {seed}, teacher {best:.1f}: {name} {found}", flush=True)
    print("| student | alone | with the teacher | difference |")
    for name, pairs in rows.items():
        alone, taught = zip(*pairs, strict=True)
        gains = [other - one for one, other in pairs]
        print(f"| {name} | {mean(alone):.1f} | {mean(taught):.1f} | {mean_deviation(gains)} |")


if __name__ == "__main__":
    main()
