"""PNG of a comparison of runs, e.g. for slides: accuracies with intervals, accuracy by epoch."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vitft.messages.comparison import ON_SHARED, ON_VALIDATION, figure_of_runs
from vitft.report.comparison import RunComparison
from vitft.report.comparison_page import MAX_CURVES, by_epoch, run_descriptions
from vitft.report.plots import LINE_COLOURS, MARKERS, MAX_LABEL, add_title, drawable, to_png
from vitft.system.console import visible
from vitft.system.files import write_atomically
from vitft.system.text import listing


def draw_comparison(comparison: RunComparison, out: Path) -> Path:
    """Draw the accuracies of the runs, and their curves if at least two have any.

    Raises:
        RunError: The file cannot be written.
        ResourceError: The disk is full.
    """
    runs, names = comparison.runs, []
    for letter, text in zip(comparison.letters, map(visible, run_descriptions(runs)), strict=True):
        names.append(
            f"{letter}  {text if len(text) <= MAX_LABEL else f'...{text[3 - MAX_LABEL :]}'}"
        )
    curves = [by_epoch(run, "val_top1") for run in runs][:MAX_CURVES]
    with_curves = sum(len(points) > 1 for points in curves) > 1
    height = max(3.2 if with_curves else 1.8, 1.2 + 0.4 * len(runs))
    width = 10.5 if with_curves else 6.4
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2 if with_curves else 1, squeeze=False)[0]
    axes = panels[0]
    for row, (accuracy, (low, high)) in enumerate(comparison.accuracies):
        colour, marker = _look(row)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.8, clip_on=False)
        axes.plot([accuracy], [row], color=colour, marker=marker, markersize=7, clip_on=False)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=ON_SHARED)
    texts, families = drawable("\n".join(names))
    axes.set_yticks(range(len(names)), texts.split("\n"), fontfamily=families, parse_math=False)
    low, high = axes.get_xlim()
    axes.set_xlim(max(0.0, low), min(1.0, high))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.grid(axis="x", color="#d7dbe0", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if with_curves:
        _draw_curves(panels[1], names, curves)
    data = listing(dict.fromkeys(run.data_name or "unknown data" for run in runs))
    add_title(figure, data, figure_of_runs(comparison.shared))
    write_atomically(out, to_png(figure))
    return out


def _draw_curves(
    axes: Axes, names: Sequence[str], curves: Sequence[Sequence[tuple[float, float]]]
) -> None:
    for row, points in enumerate(curves):
        if len(points) > 1:
            colour, marker = _look(row)
            few = len(points) <= 24
            epochs, values = zip(*points, strict=True)
            axes.plot(
                epochs, values, color=colour, linewidth=1.8, marker=marker if few else "",
                markersize=4, clip_on=False, label=drawable(names[row])[0],
            )  # fmt: skip
    low, high = axes.get_ylim()
    axes.set(xlabel="epoch", ylabel=ON_VALIDATION, ylim=(max(0.0, low), min(1.0, high)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#d7dbe0", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    _, families = drawable("".join(names))
    for text in axes.legend(frameon=False).get_texts():
        text.set(fontfamily=families, parse_math=False)


def _look(row: int) -> tuple[str, str]:
    return LINE_COLOURS[row % len(LINE_COLOURS)], MARKERS[row % len(MARKERS)]
