"""Accuracy against processor time: vitft within time budgets, fixed ways to fine-tune, other tools.

    python -m benchmarks.accuracy.pareto --weights FILE --data DIR [DIR ...] [--ways NAME ...]
        [--seeds 0 1 2] [--python TOOL=FILE ...] [--work DIR] [--log FILE]

Every run is a fresh process with an empty cache, and is measured as a whole: processor seconds of all its
threads and child processes, and seconds by the clock. All runs of a set and seed have the same weights and the
same random split, and the validation images take no part in any choice: a fixed way and another tool (the recipes
are in `peers`) report the accuracy after their last epoch. Set OMP_NUM_THREADS=1 and start the program with
`taskset -c 0`, so that a budget means minutes of one core. A tool with an environment of its own is run with
`--python AutoGluon=FILE`, the tool as named before the comma in its ways. Finished runs are kept in the log, so
that an interrupted campaign continues where it was, and several may have a log each; `frontier` makes the table.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.accuracy.peers import CONTESTANTS, tool
from benchmarks.folders import merge_splits
from benchmarks.timing import Process, wait_for
from vitft.training.budget import CROPS, EVERYTHING, LAST_BLOCKS

Settings = dict[str, dict[str, Any]]

BUDGETS = ("1m", "2m", "5m", "20m")
FIXED_EPOCHS = (6, 12)


def vitft_ways() -> dict[str, Settings]:
    """Return the settings of each way to fine-tune with vitft, by name."""
    ways: dict[str, Settings] = {"head": {}}
    ways |= {f"budget {budget}": {"train": {"budget": budget}} for budget in BUDGETS}
    for epochs in FIXED_EPOCHS:
        ways[f"last blocks, {epochs} epochs"] = {
            "train": {"layers": "head,blocks:4"},
            "optim": {**LAST_BLOCKS, "epochs": epochs},
        }
        ways[f"all layers, {epochs} epochs"] = {
            "train": {"layers": "head,all", **CROPS},
            "optim": {**EVERYTHING, "epochs": epochs},
        }
    return ways


class Task(NamedTuple):
    """A data set with one of its random splits.

    Attributes:
        name: Name of the data set.
        data: Folder with one folder per class.
        seed: Seed of the split and of the training.
        weights: Weight file.
        work: Folder for runs.
    """

    name: str
    data: Path
    seed: int
    weights: Path
    work: Path


def measured(command: list[str], log: Path) -> Process:
    """Run a command to its end, with its output in `log`."""
    begun = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        done = wait_for(process, begun)
    if done.code:
        sys.exit(f"{' '.join(command)}\n{log.read_text()[-3000:]}")
    return done


def run_vitft(settings: Settings, task: Task, out: Path) -> dict[str, Any]:
    """Fine-tune with vitft in a new process and an empty cache; return accuracy, loss and cost."""
    command = [sys.executable, "-m", "vitft", "finetune", "--data", str(task.data)]
    command += ["--weights", str(task.weights), "--split", "random", "--seed", str(task.seed)]
    command += ["--out", str(out), "--cache", str(out) + ".cache"]
    for section, values in settings.items():
        for name, value in values.items():
            command += ["--set", f"{section}.{name}={json.dumps(value).strip(chr(34))}"]
    done = measured(command, out.with_suffix(".log"))
    shutil.rmtree(str(out) + ".cache")
    figures = json.loads((out / "eval.json").read_text())
    row = {"top1": figures["top1"], "loss": figures["loss"]}
    if "epochs" in settings.get("optim", {}):
        last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        row = {"top1": last["val_top1"], "loss": last["val_loss"]}
    if budget := figures.get("budget"):
        row["budget"] = budget
    return row | {"cpu": done.cpu_s, "seconds": done.wall_s}


def run_peer(way: str, python: str, task: Task, out: Path) -> dict[str, Any]:
    """Fine-tune with another tool in a new process; return accuracy, loss and cost."""
    command = [python, "-W", "ignore", "-m", "benchmarks.accuracy.peers", way]
    command += ["--data", str(split_folder(task)), "--weights", str(task.weights)]
    command += ["--seed", str(task.seed), "--work", str(out)]
    log = out.with_suffix(".log")
    done = measured(command, log)
    last = [line for line in log.read_text().splitlines() if line.startswith('{"top1"')][-1]
    figures: dict[str, Any] = json.loads(last)
    return figures | {"cpu": done.cpu_s, "seconds": done.wall_s}


def split_folder(task: Task) -> Path:
    """Return a folder with train/ and val/, the split of vitft's runs, made of links."""
    folder = task.work / f"{task.name}-{task.seed}-split"
    if folder.exists():
        return folder
    run = task.work / f"{task.name}-{task.seed}-head"
    if not (run / "split.csv").exists():
        shutil.rmtree(run, ignore_errors=True)
        run_vitft({}, task, run)
    with (run / "split.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            part = "train" if row["split"] == "train" else "val"
            place = folder / part / row["label"] / row["path"].replace("/", "_")
            place.parent.mkdir(parents=True, exist_ok=True)
            os.symlink((task.data / row["path"]).resolve(), place)
    return folder


def run(way: str, pythons: dict[str, str], task: Task) -> dict[str, Any]:
    """Return the finished run of a way as a row of the log."""
    out = task.work / f"{task.name}-{task.seed}-{way}".replace(" ", "_").replace(",", "")
    shutil.rmtree(out, ignore_errors=True)
    if way in CONTESTANTS:
        found = run_peer(way, pythons.get(tool(way), sys.executable), task, out)
    else:
        found = run_vitft(vitft_ways()[way], task, out)
    return {"data": task.name, "way": way, "seed": task.seed} | found


def read(log: Path) -> list[dict[str, Any]]:
    """Return the finished runs of a log."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ways = [*vitft_ways(), *CONTESTANTS]
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways, metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--python", nargs="+", default=[], metavar="TOOL=FILE")
    parser.add_argument("--work", type=Path, default=Path("build/pareto"))
    parser.add_argument("--log", type=Path, default=Path("build/pareto.jsonl"))
    args = parser.parse_args()
    pythons = dict(given.split("=", 1) for given in args.python)
    if not args.weights.is_file():
        parser.error(
            f"--weights {args.weights}: no such file; other tools cannot read names of vitft"
        )
    if unknown := set(pythons) - {tool(way) for way in CONTESTANTS}:
        parser.error(f"--python: no such tool: {', '.join(sorted(unknown))}")
    log, work = args.log.resolve(), args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for way in args.ways:
            for given in args.data:
                name = given.name
                if (name, way, seed) in {(r["data"], r["way"], r["seed"]) for r in read(log)}:
                    continue
                merged = work / name
                data = (merged if merged.exists() else merge_splits(given, work)).resolve()
                row = run(way, pythons, Task(name, data, seed, args.weights.resolve(), work))
                with log.open("a") as file:
                    print(json.dumps(row), file=file)
                print(
                    f"{name}, {way}, seed {seed}: {100 * row['top1']:.1f}%, {row['cpu']:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
