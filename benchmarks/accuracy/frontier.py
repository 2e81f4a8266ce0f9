"""Accuracy against processor time as a table: vitft's line, and where another tool lies above it.

    python -m benchmarks.accuracy.frontier [--log FILE ...] [--csv FILE]

Adds the runs of `pareto`'s logs to the CSV file (a run of the same set, way and seed is replaced) and prints the
table. Without --csv, the file is pareto.csv beside this module, and README.md gets its table, between the comments
that mark its place; `python -m docs.pareto` draws the chart from the same file. vitft's line goes through the
head and the budgets, in the order of their mean processor seconds. Another tool is compared with the last point
of the line that took no more time than it did; the difference is paired over the splits that both have.
"""

import argparse
import csv
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

COLUMNS = ("data", "way", "seed", "top1", "loss", "cpu", "seconds", "chosen")
LINE = ("head", "budget 1m", "budget 2m", "budget 5m", "budget 20m")
OTHERS_OF_OURS = ("last blocks", "all layers")
CSV = Path(__file__).with_name("pareto.csv")
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- frontier: begin -->", "<!-- frontier: end -->"


class Run(NamedTuple):
    """A finished run; `top1` is a fraction, `cpu` and `seconds` are in seconds."""

    data: str
    way: str
    seed: int
    top1: float
    loss: float
    cpu: float
    seconds: float
    chosen: str


class Point(NamedTuple):
    """A way on a data set: means over the splits, top-1 in % with its standard error (nan for one split)."""

    way: str
    cpu: float
    top1: float
    error: float
    splits: int


class Comparison(NamedTuple):
    """Another tool minus ours in at most its time: points of top-1, standard error, number of splits."""

    way: str
    ours: str
    difference: float
    error: float
    splits: int


def from_log(row: dict[str, Any]) -> Run:
    """Return a row of a log of `pareto` as a run."""
    chosen = ""
    if budget := row.get("budget"):
        chosen = budget["chosen"]
        if budget["epochs"]:
            chosen += f" x {budget['epochs']}"
    numbers = (float(row[name]) for name in ("top1", "loss", "cpu", "seconds"))
    return Run(row["data"], row["way"], int(row["seed"]), *numbers, chosen)


def read_runs(path: Path) -> list[Run]:
    """Return the runs of a CSV file; empty if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Run(r["data"], r["way"], int(r["seed"]), float(r["top1"]), float(r["loss"]),
                float(r["cpu"]), float(r["seconds"]), r["chosen"])
            for r in csv.DictReader(file)
        ]  # fmt: skip


def merged(runs: Iterable[Run]) -> list[Run]:
    """Keep the last run of each set, way and seed, by set, kind of way, way and seed."""
    last = {(run.data, run.way, run.seed): run for run in runs}

    def place(run: Run) -> tuple[Any, ...]:
        name, _, amount = run.way.lower().partition(",")
        number = int("".join(filter(str.isdigit, amount)) or 0)
        if run.way in LINE:
            return run.data, 0, "", LINE.index(run.way), run.seed
        return run.data, 1 if is_ours(run.way) else 2, name, number, run.seed

    return sorted(last.values(), key=place)


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """Write runs as a CSV file."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for run in runs:
            table.writerow([run.data, run.way, run.seed, f"{run.top1:.6f}", f"{run.loss:.6f}",
                            f"{run.cpu:.2f}", f"{run.seconds:.2f}", run.chosen])  # fmt: skip


def is_ours(way: str) -> bool:
    """Return whether a way is one of vitft's."""
    return way in LINE or way.startswith(OTHERS_OF_OURS)


def standard_error(values: list[float]) -> float:
    """Return the standard error of a mean, nan for one value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def points(runs: list[Run], data: str) -> list[Point]:
    """Return the ways on a data set, in the order of the runs."""
    found = []
    for way in dict.fromkeys(run.way for run in runs if run.data == data):
        some = [run for run in runs if (run.data, run.way) == (data, way)]
        top1 = [100 * run.top1 for run in some]
        cpu = mean(run.cpu for run in some)
        found.append(Point(way, cpu, mean(top1), standard_error(top1), len(some)))
    return found


def our_line(ways: list[Point]) -> list[Point]:
    """Return vitft's line: the head and the budgets, by processor seconds."""
    return sorted((p for p in ways if p.way in LINE), key=lambda p: p.cpu)


def compare(runs: list[Run], data: str) -> list[Comparison]:
    """Compare each other tool with the last point of our line that took no more time.

    A tool that is faster than the whole line, or that shares no split with its point, is left out.
    """
    ways = points(runs, data)
    found = []
    for theirs in (p for p in ways if not is_ours(p.way)):
        within = [p for p in our_line(ways) if p.cpu <= theirs.cpu]
        if not within:
            continue
        ours = within[-1].way
        top1 = {(run.way, run.seed): 100 * run.top1 for run in runs if run.data == data}
        seeds = sorted(seed for way, seed in top1 if way == theirs.way and (ours, seed) in top1)
        gaps = [top1[theirs.way, seed] - top1[ours, seed] for seed in seeds]
        if gaps:
            error = standard_error(gaps)
            found.append(Comparison(theirs.way, ours, mean(gaps), error, len(gaps)))
    return found


def plus_minus(value: float, error: float, form: str = ".1f") -> str:
    """Format a mean and its standard error, if there is one."""
    return f"{value:{form}}" if error != error else f"{value:{form}} ± {error:.1f}"


def splits(number: int) -> str:
    """Format a number of splits."""
    return f"{number} split{'s' * (number > 1)}"


def verdict(runs: list[Run], data: str) -> list[str]:
    """Say at which times another tool is above our line, and by how much."""
    ways = {p.way: p for p in points(runs, data)}
    line = our_line(list(ways.values()))
    if not line:
        return [f"- `{data}`: vitft has not been run."]
    compared = {c.way: c for c in compare(runs, data)}
    above = [c for c in compared.values() if c.difference > 0]
    claim = "at the time of every other tool's point, ours is on or above it."
    if above:
        claim = f"{len(above)} of {len(compared)} points of other tools are above our line:"
    lines = [f"- `{data}`: {claim if compared else 'no other tool has been run.'}"]
    for c in sorted(above, key=lambda c: ways[c.way].cpu):
        lines.append(
            f"    - {c.way}, {ways[c.way].cpu:.0f} s: {plus_minus(c.difference, c.error, '+.1f')} points over our "
            f"{c.ours} ({ways[c.ours].cpu:.0f} s), {splits(c.splits)}"
        )
    for way, theirs in ways.items():
        if not is_ours(way) and theirs.cpu < line[0].cpu:
            lines.append(
                f"    - {way} ends before our first point: {plus_minus(theirs.top1, theirs.error)}% after "
                f"{theirs.cpu:.0f} s, our {line[0].way} {line[0].top1:.1f}% after {line[0].cpu:.0f} s"
            )
    return lines


def table(runs: list[Run]) -> list[str]:
    """Return the table of all ways on all sets, and the verdicts, in Markdown."""
    sets = list(dict.fromkeys(run.data for run in runs))
    cells: dict[str, dict[str, str]] = {}
    for data in sets:
        gaps = {c.way: c for c in compare(runs, data)}
        for p in points(runs, data):
            cell = f"{plus_minus(p.top1, p.error)}, {p.cpu:.0f} s"
            if p.way in gaps:
                cell += f" ({plus_minus(gaps[p.way].difference, gaps[p.way].error, '+.1f')})"
            if p.splits < 3:
                cell += f", {splits(p.splits)}"
            cells.setdefault(p.way, {})[data] = cell
    lines = [f"| way | {' | '.join(sets)} |", "|---" * (len(sets) + 1) + "|"]
    for way, found in cells.items():
        name = f"vitft, {way}" if is_ours(way) else way
        lines.append(f"| {name} | {' | '.join(found.get(data, '') for data in sets)} |")
    return [*lines, "", *(line for data in sets for line in verdict(runs, data))]


def with_table(text: str, lines: list[str]) -> str:
    """Replace what is between the two marks of a page."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    body = "\n".join(lines)
    return f"{before}{BEGIN}\n\n{body}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, nargs="+", default=[])
    parser.add_argument("--csv", type=Path, default=CSV)
    args = parser.parse_args()
    logged = [
        from_log(json.loads(line)) for log in args.log for line in log.read_text().splitlines()
    ]
    write_runs(args.csv, merged([*read_runs(args.csv), *logged]))
    lines = table(read_runs(args.csv))  # rounded as in the file, so that it gives the same table
    if args.csv == CSV:
        README.write_text(with_table(README.read_text(), lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
