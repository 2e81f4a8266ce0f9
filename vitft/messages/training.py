"""Sentences about the epochs, the layers and the trials of a run."""

import math
from collections.abc import Sequence

from vitft.config.sections import layers_text
from vitft.metrics.results import (
    BudgetResults,
    HeadCandidate,
    RunResults,
    SkippedTrial,
    StartTrial,
    StartTrials,
    TrialResults,
)
from vitft.system.text import count, format_size, listing, percent

BEST_RULE = (
    "the lowest loss among the epochs whose accuracy is at most one standard error below the "
    "highest"
)
"""How the best epoch is selected; the rule is that of `training.best.is_better`."""


def selected_epoch(results: RunResults, layers: str, planned: int = 0) -> str:
    """Return the epoch of the saved weights in words, e.g. `epoch 3 of 20`.

    As in the table of epochs, a head that was fitted before the first epoch is not counted.

    Args:
        results: Results of the run, which count such a head as the first epoch.
        layers: Trained layers, e.g. `head,all`.
        planned: Number of epochs of each stage; 0 to leave out the total.
    """
    number, stages, after = results["best_epoch"], len(layers.split(",")), ""
    if layers.startswith("head,"):
        number, stages, after = number - 1, stages - 1, " after fitting the head"
    if not number:
        return "the fitted head"
    return f"epoch {number}{f' of {planned * stages}' if planned else ''}{after}"


def start_trials(found: StartTrials) -> list[StartTrial]:
    """Return the trials of other starts, in the order in which they were run."""
    return [trial for trial in (found.get("size"), found.get("weights")) if trial]


def needed_budget(seconds: float) -> str:
    """Return the option with a budget of about `seconds`, e.g. `about --budget 16m`.

    The seconds follow from speeds that were measured during the run.
    """
    return f"about --budget {math.ceil(seconds / 60)}m"


def describe_interpolation(found: TrialResults | BudgetResults) -> str:
    """Return e.g. `keeping 50% of the change in the weights`, or "" if all of it was kept."""
    fraction = found.get("interpolation", 1.0)
    return "" if fraction == 1 else f"keeping {percent(fraction, 0)} of the change in the weights"


def describe_skipped(skipped: SkippedTrial) -> str:
    """Return a sentence about layers that were not tried, with the budget that they need."""
    layers, needed = layers_text(skipped["layers"]), needed_budget(skipped["seconds_needed"])
    return f"training {layers} was not tried: this needs {needed}"


def describe_start(found: StartTrial) -> str:
    """Return a sentence about a trial of another start: a larger input or other weights."""
    height, width = found["image_size"]
    name = found.get("weights")
    text = f"an input of {format_size((height, width))} pixels"
    if "seconds_needed" in found:
        text, verb = (f"the weights {name}", "were") if name else (text, "was")
        return f"{text} {verb} not tried: this needs {needed_budget(found['seconds_needed'])}"
    if name:
        gain, (low, high) = found["top1"] - found["usual_top1"], found["gain_interval"]
        points = f"{100 * gain:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
        evidence = f"{points} on {found['images']:,} training images in cross-validation"
        times = f"{found['relative_time']:.2g} times as long"
        if low > 0:
            return (
                f"the weights {name} would bring about {evidence} and take about {times}: "
                f"--weights {name}"
            )
        return f"the weights {name} would bring no clear gain: {evidence}, {times}"
    tall, wide = found["usual_size"]
    return (
        f"{text} was {'chosen' if found['chosen'] else 'tried, but not chosen'}: a head classifies "
        f"{percent(found['top1'])} of {found['images']:,} training images correctly in "
        f"cross-validation (at {format_size((tall, wide))} pixels: {percent(found['usual_top1'])})"
    )


def confirmed_in_float32(after: float, during: float, precision: str) -> str:
    """Return the accuracy of a final validation in float32, or "" if it did not change."""
    if percent(after) == percent(during):
        return ""
    return (
        f"validated again in float32, the accuracy is {percent(after)} ({percent(during)} in "
        f"{precision} during training)"
    )


def already_trained(weights: str, images: int, validation: int, run: str) -> str:
    """Return that the weights were trained on images of this run.

    Args:
        weights: Name or path of the weights.
        images: Number of images on which they were trained.
        validation: How many of these are validation images.
        run: The run that trained them, as a word of a command.
    """
    where = f"the weights {weights} were trained on {images:,} of these images"
    if validation:
        return (
            f"{where}, {validation:,} of them for validation, so the accuracy on them tells "
            f"nothing about new images; --like {run} holds out the images of that run"
        )
    more = ", so cross-validation would tell nothing about new images"
    return f"{where}{more}"


def divided_groups(classes: Sequence[str]) -> str:
    """Return that cross-validation divides the groups of these classes."""
    return (
        "the cross-validated accuracy may be too high: all training images of a class are in one "
        "group, or in groups that copies join, which cross-validation has to divide "
        f"({listing(classes)})"
    )


def describe_head(chosen: HeadCandidate, last: HeadCandidate, blocks: int) -> str:
    """Return which blocks a head reads, and the cross-validated accuracies that decided it."""
    own, other = percent(chosen["cv_top1"]), percent(last["cv_top1"])
    if chosen is last:
        return f"the head reads the last block (cross-validated on the training images: {own})"
    reads = f"the head reads the last {count(blocks, 'block')}"
    if chosen["cv_top1"] > last["cv_top1"]:
        found = f"cross-validated on the training images: {own}; the last block alone: {other}"
        return f"{reads} ({found})"
    error = chosen.get("cv_gain_error")
    within = "" if error is None else f"; standard error of the difference {error:.3f}"
    return (
        f"{reads}, because its probabilities are better: cross-validated loss "
        f"{chosen['cv_loss']:.3f}, of the last block alone {last['cv_loss']:.3f}{within} (accuracy "
        f"{own} and {other})"
    )
