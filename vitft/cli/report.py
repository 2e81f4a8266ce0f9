"""The doors of `vitft report` and `vitft compare`: runs in, one page out."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.system import console
from vitft.system.errors import RunError, UsageError, VitftError

if TYPE_CHECKING:
    from vitft.cli.parser import Parser
    from vitft.report.comparison import Comparison

PAGE = "compare.html"


def add_report(verbs: "argparse._SubParsersAction[Parser]") -> None:
    """`vitft report`."""
    parser = verbs.add_parser("report", help="a run as one page: report.html in the run, again")
    parser.add_argument("--run", metavar="DIR", help="run folder (default: latest)")
    parser.add_argument("--out", metavar="FILE", help="another place for the page")
    parser.set_defaults(command=report_command)


def report_command(args: argparse.Namespace) -> int:
    """Write the page again from the files of the run."""
    from vitft.report import write_report
    from vitft.report.run_files import find_run

    run = find_run(args.run)
    page = write_report(run, new_file(args.out) if args.out else None)
    console.result(f"report: {console.visible(str(page))}")
    return 0


def show_report(run: Path, figures: Mapping[str, Any]) -> None:
    """Write the page at the end of a run and name it; the run is complete without it."""
    if not figures:
        return
    from vitft.report import write_report

    try:
        console.result(f"report: {console.visible(str(write_report(run)))}")
    except VitftError as error:
        console.warn(f"no report: {console.visible(error.problem)}")


def new_file(name: str) -> Path:
    """The path of a page to write; nothing is overwritten.

    Raises:
        RunError: A file is there already, or the folder is not.
    """
    path = Path(name).expanduser()
    if path.exists():
        raise RunError(f"{path} exists already", fix="choose another --out; nothing is overwritten")
    if not path.parent.is_dir():
        raise RunError(f"no folder {path.parent}", fix="make it first, or choose another --out")
    return path


def add_compare(verbs: "argparse._SubParsersAction[Parser]") -> None:
    """`vitft compare`."""
    parser = verbs.add_parser("compare", help="runs side by side on the images that they share")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, two or more")
    parser.add_argument(
        "--out", metavar="FILE", help=f"the page (default: {PAGE}, or the next free name)"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(command=compare_command)


def compare_command(args: argparse.Namespace) -> int:
    """A table or JSON on stdout, and a page."""
    if len(args.runs) < 2:
        raise UsageError(
            "one run alone has nothing to be compared with",
            fix="name two or more: vitft compare RUN RUN",
        )
    out = new_file(args.out) if args.out else free_page()
    from vitft.report import write_comparison
    from vitft.report.comparison import compare
    from vitft.report.run_files import find_run, read_run

    comparison = compare([read_run(find_run(run)) for run in args.runs])
    write_comparison(comparison, out)
    if args.format == "json":
        console.result(json.dumps(comparison.to_json(), indent=2, allow_nan=False))
    else:
        show_comparison(comparison)
    console.note(f"page: {console.visible(str(out))}")
    return 0


def free_page() -> Path:
    """`compare.html`, or the first of compare-2.html, ... that does not exist."""
    names = [Path(PAGE), *(Path(f"compare-{i}.html") for i in range(2, 1000))]
    return next(name for name in names if not name.exists())


def show_comparison(comparison: "Comparison") -> None:
    """Accuracies, then each pair of runs, then where they differ most."""
    for text in comparison.notes:
        console.note(console.visible(text))
    console.table(
        ("run", "accuracy", "95 % interval", "on the shared images"),
        comparison.accuracy_rows(),
        title=f"{comparison.shared:,} validation images are shared by all",
        numbers=3,
    )
    if comparison.pairs:
        console.table(
            ("pair", "difference", "95 % interval", "only first right", "only second", "p"),
            comparison.pair_rows(),
            title="\nexact McNemar test on the shared images"
            + (", p by Holm for all pairs" if len(comparison.pairs) > 1 else ""),
            numbers=5,
        )
    for text in comparison.verdict_lines():
        console.result(text)
