"""`vitft report`: write the HTML report of a run."""

import argparse
from pathlib import Path

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.predict.output import check_output
from vitft.predict.request import ProcessShard
from vitft.system.errors import UsageError
from vitft.system.rundir import plan_run


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
    out = new_page(args.out) if args.out else None
    if args.charts:
        folder = plan_run(args.charts, "", name="charts")
        for name in write_charts(run, folder):
            output.result(f"chart: {folder / name}")
    if out is not None or not args.charts:
        output.result(f"report: {write_report(run, out)}")
    return 0


def new_page(name: str, also: str = "") -> Path:
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
