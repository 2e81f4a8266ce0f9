"""Charts of a run's page as SVG files, for slides and papers."""

import re
from pathlib import Path

from vitft.report.chart_sections import (
    confidence_section,
    epochs_section,
    learning_section,
    penalty_section,
)
from vitft.report.palette import LIGHT
from vitft.report.run_files import read_run
from vitft.report.svg import HEIGHT, WIDTH
from vitft.system.errors import RunError
from vitft.system.files import atomic_folder

_SCALE = 3
"""Pixels per SVG unit; a chart is about as wide as a slide."""


def write_charts(run: Path, folder: Path) -> list[str]:
    """Write the charts of the page of a run as SVG files to a new folder.

    The charts have a white background and the colours of the page in light mode.

    Returns:
        The names of the files, which are made of the titles of the charts.

    Raises:
        RunError: A file of the run is damaged, the run has no chart, or the folder exists or cannot
            be written.
        ResourceError: The disk is full.
    """
    content = read_run(run)
    makers = (epochs_section, penalty_section, learning_section, confidence_section)
    sections = [section for make in makers if (section := make(content)) is not None]
    charts = [chart for section in sections for chart in section.charts]
    if not charts:
        raise RunError(
            f"{run} has no charts: it has neither finished epochs nor results",
            fix="choose a finished run with --run",
        )
    with atomic_folder(folder) as new:
        for chart in charts:
            (new / _chart_file_name(chart)).write_text(_standalone(chart))
    return [_chart_file_name(chart) for chart in charts]


def _chart_file_name(chart: str) -> str:
    """Return the name of a chart's file, made of its title, e.g. `loss_by_epoch.svg`."""
    title = re.search(r'aria-label="([^"]*)"', chart)
    assert title is not None
    return re.sub(r"\W+", "_", title[1].lower()) + ".svg"


def _standalone(chart: str) -> str:
    """Return a chart of a page as an SVG file, with attributes in place of CSS classes."""
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SCALE * WIDTH:g}" '
        f'height="{_SCALE * HEIGHT:g}" font-family="Helvetica, Arial, sans-serif"'
    )
    chart = chart.replace("<svg", begin, 1).replace(' class="chart"', "", 1)
    for name, colour in LIGHT.items():
        chart = chart.replace(f'class="f-{name}"', f'fill="{colour}"')
        chart = chart.replace(f'class="s-{name}"', f'stroke="{colour}"')
    ground = f'<rect width="{WIDTH:g}" height="{HEIGHT:g}" fill="{LIGHT["ground"]}"></rect>'
    return chart.replace(">", f">\n{ground}", 1) + "\n"
