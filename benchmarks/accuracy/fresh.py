"""Accuracy of the runs of `pareto` on photos that are not in the data: more of them than a split holds out.

    python -m benchmarks.accuracy.fresh --work DIR [DIR ...] --fresh NAME=DIR [NAME=DIR ...] [--ways NAME ...] [--log FILE]

Each run that `pareto` left in a work folder is evaluated by `vitft evaluate` on the photos of DIR, which has one folder
per class of the data set NAME. Where two work folders have the same run, the first one counts. The table has the mean accuracy of each way over the
splits and, paired over the splits, its difference to the best fixed way, i.e. the one with the highest mean that is
neither the head nor a budget, with its standard error. Evaluated runs are kept in the log.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RUN = re.compile(r"(?P<data>.+)-(?P<seed>\d+)-(?P<way>[a-z0-9_]+)")


def evaluated(run: Path, photos: Path) -> dict[str, Any]:
    """Return accuracy, log-loss and number of the photos that `vitft evaluate` counts."""
    command = [
        sys.executable,
        "-m",
        "vitft",
        "evaluate",
        "--run",
        str(run),
        "--data",
        str(photos),
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)
    return {key: results[key] for key in ("top1", "loss", "images")}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each data set and way."""
    lines = []
    for data in sorted({row["data"] for row in rows}):
        scores: dict[str, dict[int, dict[str, Any]]] = {}
        for row in rows:
            if row["data"] == data:
                scores.setdefault(row["way"], {})[row["seed"]] = row
        means = {way: mean(row["top1"] for row in found.values()) for way, found in scores.items()}
        fixed = [way for way in means if way != "head" and not way.startswith("budget")]
        best = max(fixed or means, key=means.__getitem__)
        for way in sorted(means, key=lambda way: (way not in fixed, way)):
            found = scores[way]
            pairs = [
                100 * (row["top1"] - scores[best][seed]["top1"])
                for seed, row in found.items()
                if seed in scores[best]
            ]
            error = f" ± {stdev(pairs) / len(pairs) ** 0.5:.1f}" if len(pairs) > 1 else ""
            losses = mean(row["loss"] for row in found.values())
            each = ", ".join(f"{100 * found[seed]['top1']:.1f}" for seed in sorted(found))
            lines.append(
                f"| {data} | {way} | {100 * means[way]:.1f} ({each}) | {losses:.3f} | "
                + (
                    f"{mean(pairs):+.1f}{error} |"
                    if pairs and way != best
                    else "best fixed |"
                    if way == best
                    else "|"
                )
            )
    return lines


def main() -> None:
    """Evaluate the runs that the log lacks, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, nargs="+", required=True)
    parser.add_argument("--fresh", nargs="+", required=True, metavar="NAME=DIR")
    parser.add_argument("--ways", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--log", type=Path, default=Path("build/fresh.jsonl"))
    args = parser.parse_args()
    photos = dict(pair.split("=", 1) for pair in args.fresh)
    args.log.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        [json.loads(line) for line in args.log.read_text().splitlines()]
        if args.log.exists()
        else []
    )
    for run in (run for work in args.work for run in sorted(work.iterdir())):
        match = RUN.fullmatch(run.name)
        if match is None or match["data"] not in photos or not (run / "eval.json").is_file():
            continue
        way, key = match["way"].replace("_", " "), (match["data"], match["way"], int(match["seed"]))
        if args.ways and way not in args.ways:
            continue
        if key in {(row["data"], row["way"].replace(" ", "_"), row["seed"]) for row in rows}:
            continue
        row = {"data": key[0], "way": way, "seed": key[2], **evaluated(run, Path(photos[key[0]]))}
        rows.append(row)
        with args.log.open("a") as log:
            log.write(json.dumps(row) + "\n")
        print(row, flush=True)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
