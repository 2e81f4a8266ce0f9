"""The axes of the figure of a comparison: ticks, grid lines, labels and the legend."""

from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.report.test_plots import visible_sides
from vitft.report.comparison_plot import draw_accuracies, draw_curves, look
from vitft.report.plots import LINE_COLOURS, MARKERS


def visible_grid(axis: Any) -> list[tuple[str, float]]:
    """Return the distinct colours and widths of the grid lines of an axis that are drawn."""
    lines = [tick.gridline for tick in axis.get_major_ticks() if tick.gridline.get_visible()]
    return sorted({(to_hex(line.get_color()), line.get_linewidth()) for line in lines})


def tick_texts(axis: Any) -> list[str]:
    """Return the labels of the ticks within the limits of an axis."""
    low, high = sorted(axis.get_view_interval())
    labels = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in labels if low - 1e-9 <= place <= high + 1e-9]


def test_accuracies_are_percentages_along_a_grid_of_vertical_lines() -> None:
    figure = Figure()
    axes = figure.subplots()

    draw_accuracies(axes, ["A  one", "B  two"], [(0.5, (0.4, 0.6)), (0.9, (0.8, 1.0))])
    axes.set_xlim(0.4, 1.0)
    figure.canvas.draw()

    assert tick_texts(axes.xaxis) == ["40%", "50%", "60%", "70%", "80%", "90%", "100%"]
    assert tick_texts(axes.yaxis) == ["A  one", "B  two"]
    assert axes.get_xlabel() == "accuracy on the shared images"
    assert visible_sides(axes) == ["bottom", "left"]
    assert visible_grid(axes.xaxis) == [("#d7dbe0", 0.8)]
    assert visible_grid(axes.yaxis) == []
    interval, point = axes.lines[2:]
    assert (interval.get_linewidth(), interval.get_marker()) == (1.8, "None")
    assert (point.get_marker(), point.get_markersize()) == (look(1)[1], 7)


def test_curves_are_percentages_of_whole_epochs_along_a_grid_of_horizontal_lines() -> None:
    figure = Figure()
    axes = figure.subplots()

    draw_curves(axes, ["A  $a_1$", "B  two"], [[(1, 0.4), (2, 0.8)], [(1, 0.6), (2, 0.7)]])
    figure.canvas.draw()

    assert tick_texts(axes.xaxis) == ["1", "2"]
    assert {"40.0%", "80.0%"} <= {*tick_texts(axes.yaxis)}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "validation accuracy")
    assert visible_sides(axes) == ["bottom", "left"]
    assert visible_grid(axes.xaxis) == []
    assert visible_grid(axes.yaxis) == [("#d7dbe0", 0.8)]
    assert [(line.get_linewidth(), line.get_markersize()) for line in axes.lines] == [(1.8, 4)] * 2
    legend: Any = axes.get_legend()
    assert not legend.get_frame_on()
    texts = legend.get_texts()
    assert [(text.get_text(), text.get_parse_math()) for text in texts] == [
        ("A  $a_1$", False),
        ("B  two", False),
    ]


def test_the_nth_run_has_the_nth_colour_and_marker() -> None:
    assert look(0) == (LINE_COLOURS[0], MARKERS[0])
    assert look(2) == (LINE_COLOURS[2], MARKERS[2])
