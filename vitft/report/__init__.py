"""A run, or several, as one page that opens anywhere: the files of a run directory in, HTML out.

    reading    the files of a run -> one object
    words      shares, intervals and counts as text
    advice     what to do next, and how sure that is
    sections   that object -> what each part of the page shows
    album      the parts that show images
    overview   the part that says what was done, and how to repeat it
    charts     what the curves show; vector draws them as SVG that fits a strict page
    palette    the colours, light and dark
    page       template, style and script -> one file that loads nothing
    pairing    several runs -> the images they share, and who is right on them
    comparing  what the page of a comparison shows

Nothing here imports torch, opens a user's image or needs the data: the run directory is enough.
What is heavy (jinja2) is imported when a page is made.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitft.report.comparison import Comparison

__all__ = ["write_comparison", "write_report"]


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run and return its path, by default `report.html` in the run.

    Raises:
        RunError: A file of the run is damaged, or the page cannot be written.
        DataError: split.csv is not as it was written.
    """
    from vitft.report.html import render
    from vitft.report.run_files import read_run
    from vitft.report.run_page import report_view
    from vitft.system.files import write_atomically

    path = out or run / "report.html"
    write_atomically(path, render("report.html.j2", report_view(read_run(run))))
    return path


def write_comparison(comparison: "Comparison", out: Path) -> Path:
    """Write the page of a comparison.

    Raises:
        RunError: The page cannot be written.
    """
    from vitft.report.comparison_page import comparison_view
    from vitft.report.html import render
    from vitft.system.files import write_atomically

    write_atomically(out, render("compare.html.j2", comparison_view(comparison)))
    return out
