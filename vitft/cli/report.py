"""`vitft report` and `vitft compare`: pages, charts and figures of runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.predict.output import check_output
from vitft.predict.request import ProcessShard
from vitft.system.errors import UsageError
from vitft.system.imports import require_extra
from vitft.system.rundir import plan_run
from vitft.system.text import count

if TYPE_CHECKING:
    from vitft.report.comparison import RunComparison


@Command(
    "report",
    """
--run DIR  run directory (default: runs/latest)
--out FILE  HTML page to write (default: report.html in the run directory)
--charts DIR  new folder for the charts as SVG files (without --out, the page is not written)
""",
)
def _report_command(args: argparse.Namespace) -> int:
    """Write the report or the charts from the files of the run, and print their paths."""
    from vitft.report.charts import write_charts
    from vitft.report.run_files import find_run
    from vitft.report.run_page import write_report

    run = find_run(args.run)
    out = _new_page(args.out) if args.out else None
    if args.charts:
        folder = plan_run(args.charts, "", name="charts")
        for name in write_charts(run, folder):
            output.result(f"chart: {folder / name}")
    if out is not None or not args.charts:
        output.result(f"report: {write_report(run, out)}")
    return 0


def _new_page(name: str, also: str = "") -> Path:
    """Return the path of a page to write, after checking that it can be created.

    `also` is the suffix of figures that can be written instead, e.g. ".png".
    """
    path = Path(name).expanduser()
    if path.suffix.lower() not in ("", ".html", ".htm", also):
        figure = f", or {also} for a figure" if also else ""
        raise UsageError(
            f"invalid --out {name}: a page is an HTML file",
            fix=f"use a name that ends with .html{figure}",
        )
    check_output(path, ProcessShard(), resume=False)
    return path


@Command(
    "compare",
    """
runs RUN ...  two or more run directories, e.g. runs/*
--out FILE  HTML page to write, with curves and the images on which the runs disagree, or figure
    (.png)
--format
""",
)
def _compare_command(args: argparse.Namespace) -> int:
    """Compare the runs, print a table or JSON, and write the page or figure if it has a name."""
    out = _new_page(args.out, also=".png") if args.out else None
    is_figure = out is not None and out.suffix.lower() == ".png"
    if is_figure:
        require_extra("plots", feature="a figure of the comparison")
    from vitft.report.comparison import (
        compare_runs,
        comparison_results,
        draw_comparison,
        write_comparison,
    )
    from vitft.report.run_files import find_runs, read_run

    comparison = compare_runs([read_run(path) for path in find_runs(args.runs)])
    if out is not None:
        (draw_comparison if is_figure else write_comparison)(comparison, out)
    if args.format == "json":
        output.as_json(comparison_results(comparison))
    else:
        _print_comparison(comparison)
    if out is not None:
        output.note(f"{'figure' if is_figure else 'page'}: {out}")
        return 0
    page = "add --out compare.html for a page"
    if disputed := comparison.disputed:
        page += f" with the {count(len(disputed), 'image')} on which the runs disagree"
        # The table of the pairs does not contain those that all runs classify wrongly
        wrong = sum(not any(one.is_correct for one in image) for image in disputed)
        page += f" ({wrong:,} of them with different wrong predictions)" if wrong else ""
    output.note(page)
    return 0


def _print_comparison(comparison: "RunComparison") -> None:
    """Print the conclusions, the accuracies and a significance test for each pair of runs."""
    for text in comparison.conclusions:
        output.result(text, style="bold")
    if step := comparison.next_step:
        output.result(step)
    output.result("")
    kind = "images" if comparison.runs[0].is_evaluation else "validation images"
    groups = "" if comparison.groups is None else f" of {comparison.units}"
    columns, rows = comparison.accuracy_table()
    title = f"{kind} compared: {len(comparison.images):,}{groups}"
    output.table(columns, rows, title=title, numbers=len(columns) - 1)
    if comparison.pairs:
        corrected = ", p-values corrected for multiple testing (Holm)" * (len(comparison.pairs) > 1)
        output.table(
            *comparison.pair_table(),
            title=f"\n{comparison.test} on the shared images{corrected}",
            numbers=5,
        )
    if settings := comparison.setting_rows():
        output.table(
            ("setting", *comparison.letters), settings, title="\nsettings in which the runs differ"
        )
    for text in comparison.limits:
        output.note(text)
    if power := comparison.power:
        output.detail(power)
