"""Accuracy within time budgets beside the head alone and the best fixed way in hindsight.

    python -m benchmarks.accuracy.budget --weights FILE --data DIR [DIR ...] [--budgets 1m 5m 20m] [--seeds 3]
        [--image-size N] [--fixed] [--log FILE]

Each budget is one whole run, timed by the clock. With `--fixed`, the ways that a budget may choose are also
trained on all training images, for the epochs of the longest budget that chose them or for six. All runs of a
set and seed have the same split, and the validation images take no part in any choice. Finished runs are kept in
the log, so that an interrupted campaign can be resumed.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.accuracy.seeds import run_arm
from benchmarks.folders import merge_splits
from vitft.training.budget import CROPS, EVERYTHING, LAST_BLOCKS

FIXED_EPOCHS = 6
FIXED: dict[str, dict[str, Any]] = {
    "head": {},
    "last blocks": {
        "train": {"freeze": "head,blocks:4"},
        "optim": {**LAST_BLOCKS, "epochs": FIXED_EPOCHS},
    },
    "all layers": {
        "train": {"freeze": "head,none", **CROPS},
        "optim": {**EVERYTHING, "epochs": FIXED_EPOCHS},
    },
}


def run(name: str, settings: dict[str, Any], data: Path, args: Any, seed: int, into: Path) -> Any:
    """Train once; return accuracy, time and, with a budget, the choice."""
    settings = {**settings, "train": {"seed": seed, **settings.get("train", {})}}
    begun = time.perf_counter()
    done = run_arm(name, settings, data, args.weights, seed, into, image_size=args.image_size)
    seconds = time.perf_counter() - begun
    row = {"top1": done.top1, "loss": done.figures["loss"], "seconds": seconds}
    if budget := done.figures.get("budget"):
        row |= {"chosen": budget["chosen"], "epochs": budget["epochs"], "trials": budget["trials"]}
    return row


def table(rows: list[dict[str, Any]]) -> None:
    """Print the table of all finished runs."""
    for data in dict.fromkeys(row["data"] for row in rows):
        print(f"\n{data}: top-1 % (each seed), seconds, chosen")
        for way in dict.fromkeys(row["way"] for row in rows):
            found = [row for row in rows if (row["data"], row["way"]) == (data, way)]
            if not found:
                continue
            each = " ".join(f"{100 * row['top1']:.1f}" for row in found)
            seconds = " ".join(f"{row['seconds']:.0f}" for row in found)
            chosen = ", ".join(f"{r['chosen']} x {r['epochs']}" for r in found if "chosen" in r)
            print(
                f"| {way} | {100 * mean(row['top1'] for row in found):.1f} ({each}) | {seconds} | {chosen} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--budgets", nargs="+", default=["1m", "5m", "20m"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--image-size", type=int)
    parser.add_argument(
        "--fixed", action="store_true", help="also train each way that may be chosen"
    )
    parser.add_argument("--log", type=Path, default=Path("budget.jsonl"))
    args = parser.parse_args()
    log: Path = args.log
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(row["data"], row["way"], row["seed"]) for row in rows}
    ways = {f"budget {text}": {"train": {"budget": text}} for text in args.budgets}
    ways = {**(FIXED if args.fixed else {"head": {}}), **ways}
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        folders = [merge_splits(given, into) for given in args.data]
        for seed in range(args.seeds):
            for given, data in zip(args.data, folders, strict=True):
                for way, settings in ways.items():
                    if (given.name, way, seed) in done:
                        continue
                    row = {"data": given.name, "way": way, "seed": seed}
                    rows.append(row | run(way, settings, data, args, seed, into))
                    with log.open("a") as file:
                        print(json.dumps(rows[-1]), file=file)
                    table(rows)


if __name__ == "__main__":
    main()
