"""Accuracy of the ways to fine-tune over split seeds, at about equal time and at convergence.

    python -m benchmarks.accuracy.finetuned --weights FILE --data DIR [DIR ...] [--seeds 3] [--log FILE]

Ways: the head alone (solved), the last four blocks, LoRA, everything from a zero head, and everything from
the solved head, each with the defaults of `vitft finetune --train ...` and the epochs in the table. "Short"
rows take about the time of two epochs of full fine-tuning (four for a folder of 400 images), "long" rows
three times that. Ways with epochs are scored after the last one, so nothing is selected on validation images.
Seconds are CPU seconds of all threads over the number of cores: the time on an idle machine. Finished
runs are kept in the log, so that an interrupted campaign can be resumed.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.accuracy.seeds import run_arm
from benchmarks.folders import merge_splits
from benchmarks.timing import mean_deviation

ARMS: dict[str, tuple[str, float]] = {
    "head": ("head", 0),
    "blocks:4, short": ("blocks:4", 3),
    "LoRA, short": ("lora", 1.5),
    "everything, short": ("all", 1),
    "head, then everything, short": ("head,all", 1),
    "head, then everything, long": ("head,all", 3),
    "everything, long": ("all", 3),
    "LoRA, long": ("lora", 3),
    "blocks:4, long": ("blocks:4", 6),
}
"""--train, and the epochs relative to a short full fine-tuning."""


def epochs_of(data: Path, relative: float) -> int:
    """Return the epochs of an arm: more for small folders, for a similar number of steps."""
    images = sum(1 for path in data.rglob("*") if path.is_file())
    return round(relative * (2 if images > 800 else 4))


def run(data: Path, weights: Path, arm: str, seed: int, into: Path) -> dict[str, Any]:
    """Run one arm; return its epochs, top-1 accuracy and CPU seconds per core."""
    layers, relative = ARMS[arm]
    epochs = epochs_of(data, relative)
    settings = {"train": {"layers": layers, "seed": seed}}
    done = run_arm(
        arm, settings | ({"optim": {"epochs": epochs}} if epochs else {}), data, weights, seed, into
    )
    seconds = done.seconds / (os.cpu_count() or 1)
    return {"epochs": epochs, "top1": done.top1, "seconds": seconds}


def table(rows: list[dict[str, Any]]) -> None:
    """Print the table of all finished runs."""
    for name in dict.fromkeys(row["data"] for row in rows):
        print(f"\n{name}: top-1 % after the last epoch, mean ± standard deviation (each seed)")
        for arm in ARMS:
            found = [row for row in rows if (row["data"], row["arm"]) == (name, arm)]
            if not found:
                continue
            values = [100 * row["top1"] for row in found]
            seconds = mean(row["seconds"] for row in found)
            print(
                f"| {arm} | {found[0]['epochs'] or '-'} | {mean_deviation(values)} "
                f"| {seconds:.0f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--log", type=Path, default=Path("finetuned.jsonl"))
    args = parser.parse_args()
    log: Path = args.log
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(row["data"], row["arm"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        folders = [merge_splits(given, into) for given in args.data]
        for seed in range(args.seeds):
            for given, data in zip(args.data, folders, strict=True):
                for arm in ARMS:
                    if (given.name, arm, seed) in done:
                        continue
                    row = {"data": given.name, "arm": arm, "seed": seed}
                    rows.append(row | run(data, args.weights, arm, seed, into))
                    with log.open("a") as file:
                        print(json.dumps(rows[-1]), file=file)
                    table(rows)


if __name__ == "__main__":
    main()
