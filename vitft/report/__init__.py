"""Reports as single HTML files: the page of a run, and the comparison of several runs.

    run_files        the files of a run directory as one object
    summary          sentences and figures at the top of a page
    advice           next steps, and how certain they are
    confusion        confusion matrix and most confused pairs
    thumbnails       saved thumbnails as data URIs
    reproduce        command, versions and digests of a run
    run_page         all sections of the page of a run
    comparison       several runs on their shared validation images
    comparison_page  all sections of the page of a comparison
    charts, svg      the charts of the pages, and the SVG engine that draws them
    palette          colours in light and dark mode
    html             templates, style sheet and script to one HTML file
    plots            PNG figures for `vitft explain --model` and `vitft study` (matplotlib)

Nothing but `plots` needs more than jinja2 and numpy, and a page needs only the run directory: no
user's image is opened.
"""

from pathlib import Path

from vitft.report.comparison import RunComparison
from vitft.report.comparison_page import comparison_page
from vitft.report.html import render
from vitft.report.run_files import read_run
from vitft.report.run_page import run_page
from vitft.system.files import write_atomically

__all__ = ["write_comparison", "write_report"]


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run, by default to `report.html` in the run, and return its path.

    Raises:
        RunError: A file of the run is damaged, or the page cannot be written.
        DataError: split.csv is not as it was written.
    """
    path = out or run / "report.html"
    write_atomically(path, render("report.html.j2", run_page(read_run(run))))
    return path


def write_comparison(comparison: RunComparison, out: Path) -> Path:
    """Write the page of a comparison and return its path.

    Raises:
        RunError: The page cannot be written.
    """
    write_atomically(out, render("compare.html.j2", comparison_page(comparison)))
    return out
