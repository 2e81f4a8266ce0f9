"""Accuracy of the ways to fine-tune, at about equal time and at convergence: a table over split seeds.

    python -m benchmarks.accuracy.finetuned --weights FILE --data DIR [DIR ...] [--seeds 3] [--log FILE]

Ways: the head alone (solved), the last four blocks, LoRA, everything from a zero head, and everything
from the solved head; each with the settings that `vitft finetune --freeze ...` takes by itself and as many
epochs as the table says. "short" lines cost about the same time as two (of a folder of 400 images: four)
epochs of full fine-tuning, "long" ones three times that. Ways with epochs are judged after their last one, so nothing is
selected on validation images. Seconds are CPU seconds of all threads over the number of cores: what a quiet
machine takes. Finished runs are kept in the log, so a campaign that was stopped goes on where it ended.
"""

import argparse
import json
import os
import resource
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.accuracy.heads import merged
from vitft.config.run import config_from_table
from vitft.training.run import finetune

ARMS: dict[str, tuple[str, float]] = {
    "head": ("head", 0),
    "blocks:4, short": ("blocks:4", 3),
    "LoRA, short": ("lora", 1.5),
    "everything, short": ("none", 1),
    "head, then everything, short": ("head,none", 1),
    "head, then everything, long": ("head,none", 3),
    "everything, long": ("none", 3),
    "LoRA, long": ("lora", 3),
    "blocks:4, long": ("blocks:4", 6),
}
"""What trains, and its epochs in units of a short full fine-tuning."""


def epochs_of(data: Path, share: float) -> int:
    """Epochs of an arm: small folders take more of them for the same number of steps."""
    images = sum(1 for path in data.rglob("*") if path.is_file())
    return round(share * (2 if images > 800 else 4))


def one(data: Path, weights: Path, arm: str, seed: int, into: Path) -> dict[str, Any]:
    """Top-1 after the last epoch and CPU seconds of one run."""
    freeze, share = ARMS[arm]
    epochs = epochs_of(data, share)
    table: dict[str, Any] = {
        "data": {"path": str(data), "seed": seed},
        "weights": {"name": str(weights)},
        "train": {"freeze": freeze, "cache": str(into / "cache"), "seed": seed},
    }
    if epochs:
        table["optim"] = {"epochs": epochs}
    out = into / f"{data.name}-{arm}-{seed}".replace(" ", "_").replace(":", "")
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = finetune(config_from_table(table), out=out)
    if result.interrupted:
        raise SystemExit(result.exit_code)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    top1 = result.figures["top1"]
    if epochs:
        top1 = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["val_top1"]
    return {"epochs": epochs, "top1": top1, "seconds": seconds / (os.cpu_count() or 1)}


def table(rows: list[dict[str, Any]]) -> None:
    """Print what there is."""
    for name in dict.fromkeys(row["data"] for row in rows):
        print(f"\n{name}: top-1 % after the last epoch, mean ± standard deviation (each seed)")
        for arm in ARMS:
            found = [row for row in rows if (row["data"], row["arm"]) == (name, arm)]
            if not found:
                continue
            values = [100 * row["top1"] for row in found]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            each = " ".join(f"{value:.1f}" for value in values)
            seconds = mean(row["seconds"] for row in found)
            print(
                f"| {arm} | {found[0]['epochs'] or '-'} | {mean(values):.1f}{spread} ({each}) "
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
        folders = [merged(given, into) for given in args.data]
        for seed in range(args.seeds):
            for given, data in zip(args.data, folders, strict=True):
                for arm in ARMS:
                    if (given.name, arm, seed) in done:
                        continue
                    row = {"data": given.name, "arm": arm, "seed": seed}
                    rows.append(row | one(data, args.weights, arm, seed, into))
                    with log.open("a") as file:
                        print(json.dumps(rows[-1]), file=file)
                    table(rows)


if __name__ == "__main__":
    main()
