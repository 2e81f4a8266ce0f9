"""Sections of a run's page that consist of text, charts and a table of the charted values."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from vitft.messages.results import growth_text
from vitft.messages.training import BEST_RULE, selected_epoch
from vitft.metrics.results import SEVERAL_BLOCKS, LogLine
from vitft.report import charts
from vitft.report.charts import HEIGHT, WIDTH
from vitft.report.html import LIGHT
from vitft.report.run_files import Run, read_run
from vitft.system.errors import RunError
from vitft.system.files import atomic_folder
from vitft.system.text import (
    count,
    interval,
    is_measurable,
    is_scaled,
    not_calibrated,
    percent,
    points,
    scored_images,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChartSection:
    """A section with text, charts and a table of the charted values."""

    title: str
    text: str
    charts: list[str]
    caption: str = ""
    columns: list[str]
    rows: list[list[str | int]]


def epochs_section(run: Run) -> _ChartSection | None:
    """Return the section on loss and accuracy by epoch, or None if the log has no epochs."""
    needed = ("epoch", "train_loss", "val_loss", "train_top1", "val_top1")
    log = [line for line in run.log if all(line.get(key) is not None for key in needed)]
    if not log:
        return None
    xs = epoch_numbers(log)
    loss = [[line[key] for line in log] for key in ("train_loss", "val_loss")]
    top1 = [[line[key] for line in log] for key in ("train_top1", "val_top1")]
    parts = ("training", "validation")
    text = f"The run trained for {count(len(log), 'epoch')}."
    stages = [s for s in str(run.setting("train", "layers") or "").split(",") if s != "head"]
    planned = int(run.setting("optim", "epochs") or 0) * max(1, len(stages))
    is_finished = run.environment.get("status") == "finished"
    if is_finished and run.setting("optim", "patience") and len(log) < planned:
        patience = count(int(run.setting("optim", "patience") or 0), "epoch")
        text = f"The run stopped early, after {len(log)} of {planned} epochs: no improvement in "
        text += f"{patience}."
    if run.measured.get("best_epoch"):
        layers = str(run.setting("train", "layers") or "")
        text += f" The saved weights come from {selected_epoch(run.measured, layers)}"
        how = f", the best on the validation images: {BEST_RULE}"
        text += f"{how if run.measured.get('selected_on_validation') else ''}."
        text += _remeasured(run, log, layers)
    return _ChartSection(
        title="Training curves",
        text=text,
        charts=[
            charts.epoch_chart("Loss by epoch", xs, *loss, y="loss (nats)"),
            charts.epoch_chart("Accuracy by epoch", xs, *top1, y="accuracy", is_percent=True),
        ],
        columns=["epoch", *(f"{p} loss" for p in parts), *(f"{p} accuracy" for p in parts)],
        rows=[
            [x, f"{a:.4f}", f"{b:.4f}", percent(c), percent(d)]
            for x, a, b, c, d in zip(xs, *loss, *top1, strict=True)
        ],
    )


def epoch_numbers(log: Sequence[LogLine]) -> list[int]:
    """Return the epoch of each line, counted over all stages of training."""
    numbers = [line["epoch"] for line in log]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        return list(range(1, len(log) + 1))  # in the log, each training stage counts from 1
    return numbers


def penalty_section(run: Run) -> _ChartSection | None:
    """Return the section on penalties compared by cross-validation, or None if there are none."""
    log = [line for line in run.log if {"l2", "cv_top1", "cv_loss"} <= {*line}]
    if not log:
        return None
    best, label = run.measured.get("l2", 0.0), "Cross-validated accuracy by penalty"
    penalties, accuracies = [line["l2"] for line in log], [line["cv_top1"] for line in log]
    chosen = f"the L2 penalty with the highest accuracy, and of equals the lowest loss: {best:g}"
    if run.several:
        chosen = f"the L2 penalty with the lowest loss for each label; the median is {best:g}"
    scores = "These scores are those of quick fits before calibration"
    if run.measured.get("head"):
        scores += (
            "; those by which the blocks of the head are chosen are of complete fits after "
            "calibration, so they differ"
        )
    if some := log[0].get("cv_classes"):
        scores = (
            f"It was applied to {some:,} of the {len(run.classes):,} classes only, because it "
            f"would take too long otherwise; with fewer classes the accuracy is higher. {scores}"
        )
    return _ChartSection(
        title="How the head was fitted",
        text=f"{_fitted_head(run)} Cross-validation on the training images selected {chosen}. "
        f"{scores}.",
        charts=[charts.penalty_chart(label, penalties, accuracies, best)],
        columns=["penalty", "cross-validated loss", "cross-validated accuracy"],
        rows=[
            [f"{line['l2']:g}", f"{line['cv_loss']:.4f}", percent(line["cv_top1"])] for line in log
        ],
    )


def _fitted_head(run: Run) -> str:
    """Return how the head was fitted, in one or two sentences."""
    head = run.measured.get("head")
    if not head or head["blocks"] == 1:
        return "The head was fitted to convergence by L-BFGS."
    discriminant = f"linear discriminant analysis on the last {head['blocks']} blocks"
    if head["reads"] == SEVERAL_BLOCKS:
        return (
            f"The head was fitted by {discriminant}. Logistic regression on the last block was "
            "fitted for comparison, to convergence by L-BFGS."
        )
    return (
        "The head is a weighted sum of logistic regression on the last block, fitted to "
        f"convergence by L-BFGS, and {discriminant}."
    )


def _remeasured(run: Run, log: Sequence[LogLine], layers: str) -> str:
    """Return a sentence if the saved epoch's accuracy differs from the final one, or "".

    `log` contains the lines of the epochs.
    """
    precision = str(run.environment.get("precision", "fp32"))
    index = run.measured["best_epoch"] - 1 - layers.startswith("head,")
    if (
        run.several
        or precision == "fp32"
        or not 0 <= index < len(log)
        or "seconds" not in run.measured
    ):
        return ""
    during, final = percent(log[index]["val_top1"]), percent(run.measured["top1"])
    if during == final:
        return ""
    return (
        f" After training, it was validated again in float32, with an accuracy of {final}; during "
        f"training, in {precision}, it was {during}."
    )


def _range_text(low: float, high: float) -> str:
    """Return e.g. `47 to 98%`, with as many digits as distinguish the ends, but at most two."""
    digits = next((d for d in (0, 1) if percent(low, d) != percent(high, d)), 2)
    return interval((low, high), digits)


def confidence_section(run: Run) -> _ChartSection | None:
    """Return the section on calibration, or None if the calibration error is unknown."""
    calibration = run.measured.get("calibration")
    bins = [b for b in calibration["bins"] if b["images"]] if calibration else []
    if not calibration or not bins:
        return None
    error, bounds = calibration["ece"], interval(calibration["ece_interval"])
    text = f"On average, confidence and accuracy differ by {points(error).lstrip('+')}"
    if not is_measurable(error):
        text = "No difference between confidence and accuracy could be measured"
    text += f" (95% interval: {bounds})." if bounds else "."
    text += " Chance alone makes the bins below differ, too: it has been subtracted."
    if doubt := not_calibrated(run.measured):
        text = f"{doubt.capitalize()}."
    before, temperature = calibration["ece_before"], calibration["temperature"]
    if before is not None and temperature is not None and is_scaled(temperature):
        text += (
            f" The logits are divided by a temperature of {temperature:.2f}, which was fitted to "
            "the validation images"
        )
        if more := calibration.get("cross_validated"):
            text += f" and the cross-validated predictions for {count(more, 'training image')}"
        shown = f"the difference was {points(before).lstrip('+')}"
        if not is_measurable(before):
            shown = "no difference could be measured"
        without = f"; without it, {shown}."
        text += "." if doubt else without
    return _ChartSection(
        title="Is the confidence reliable?",
        text=text,
        charts=[charts.reliability_diagram("Accuracy by confidence", bins)],
        caption="Points above the diagonal: underconfident. Points below: overconfident.",
        columns=[
            "confidence",
            "label decisions" if run.several else "images",
            "mean confidence",
            "accuracy",
        ],
        rows=[
            [
                _range_text(b["low"], b["high"]),
                b["images"],
                percent(b.get("confidence")),
                percent(b.get("accuracy")),
            ]
            for b in bins
        ],
    )


def learning_section(run: Run) -> _ChartSection | None:
    """Return the section on accuracy by number of training images, or None if it is unknown."""
    more = run.measured.get("cross_validation")
    if not more or len(more["curve"]) < 2:
        return None
    curve, gain = more["curve"], more["gain_from_twice"]
    measured = [(point["images"], point["top1"]) for point in curve]
    bounds = [point["top1_interval"] for point in curve]
    last = measured[-1]
    extrapolated = (2 * last[0], last[1] + max(0.0, gain)) if gain is not None else None
    text = (
        "The chart shows the cross-validated accuracy of heads fitted to subsets of the images. "
        f"Every point was measured on the same {scored_images(more)}."
    )
    if run.several:
        text += " An image is right if exactly its labels have a probability of at least 50%."
    if known := growth_text(more["gain_interval"]):
        text += f" With twice as many images, the accuracy would be {known}."
    elif all(b["top1"] <= a["top1"] for a, b in pairwise(curve[-3:])):
        text += " The curve has stopped rising."
    else:
        text += " How much more images would help cannot be told from these points."
    return _ChartSection(
        title="Would more images help?",
        text=text,
        charts=[
            charts.learning_curve_chart(
                "Accuracy by number of training images",
                measured,
                extrapolated,
                bounds=bounds,
            )
        ],
        columns=["training images", "accuracy", "95% interval"],
        rows=[
            [f"{images:,}", percent(top1), interval(ends)]
            for (images, top1), ends in zip(measured, bounds, strict=True)
        ],
    )


# charts of a run's page as SVG files, for slides and papers ---------------------------------------

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
