"""Sentences of the page of a run: what its numbers rest on, and what would raise them."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from vitft.messages.results import chance_clause
from vitft.metrics.intervals import binomial_tail
from vitft.metrics.results import SEVERAL_BLOCKS, CrossValidation, Interval, RunResults
from vitft.metrics.summary import AtChance, ClassEstimate, Results
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

COPIES_WARNING = "Duplicates across training and validation can make the accuracy too high. "
TEST_COPIES_WARNING = "Near-duplicates of test images can make the test accuracy too high. "


def chance_reason(results: Results, found: AtChance) -> str:
    """Return why a model must not be used yet."""
    bounds, guessing = interval(found.interval), percent(found.guessing)
    if results.exact:
        return (
            f"The 95% CI of its mean average precision ({bounds}) is not entirely above "
            f"{guessing}, the value for random scores."
        )
    clause = f"It {chance_clause(results)}. " * bool(found.predicts)
    where = " in cross-validation" if found.kind == "cross-validation" else ""
    return (
        f"{clause}The 95% CI of its balanced accuracy{where} ({bounds}) is not clearly above "
        f"{guessing}, the value for guessing."
    )


def copies_reason(groups: int, without: str, *, own_split: bool) -> str:
    """Return why and how to remove groups of duplicates across training and validation.

    `without` is the accuracy without them, or an empty string.
    """
    remedy = "the option --group-duplicates keeps each group on one side of the split."
    if own_split:
        remedy = (
            "the split comes from your data, so drop the copies on one side or correct the split."
        )
    known = f" It is {without}." if without else ""
    return (
        f"{count(groups, 'group')} of identical or nearly identical images "
        f"{'contains' if groups == 1 else 'contain'} both training and validation images, so the "
        f"accuracy may be too high.{known} vitft check lists them, and {remedy}"
    )


def growth_sentence(gain: Interval | None) -> str:
    """Return the gain in accuracy from twice as many images, or "" if unknown."""
    if gain is None:
        return ""
    # Without the intervals that contain 0, only gains that seem large by chance would be shown.
    low, high = (100 * max(0.0, end) for end in gain)  # more images do no harm
    return (
        f"With twice as many images, the accuracy would be {low:.1f} to {high:.1f} points higher "
        "(95% CI, extrapolated)."
    )


def compared_with_accuracy(worst: ClassEstimate, accuracy: float, classes: int) -> str:
    """Return a sentence on whether the lowest recall is more than bad luck.

    With many classes, one of them has a low recall by chance. The exact probability of a recall as
    low as this at the overall accuracy is therefore multiplied by the number of classes
    (Bonferroni's correction).
    """
    if worst.interval is None or worst.interval[1] >= accuracy:
        return "Its interval is so wide that this may be due to chance."
    wrong = worst.images - round(worst.value * worst.images)
    if classes * binomial_tail(wrong, worst.images, 1 - accuracy) < 0.05:
        return "This is clearly below the overall accuracy."
    return f"The lowest of {classes} recalls can be as low as this by chance."


def more_validation_images(needed: int) -> str:
    """Return the number of validation images that a typical precision needs."""
    return f"To measure the accuracy to within ±4 points, use about {needed:,} validation images."


def penalty_text(found: RunResults, classes: int, some: int | None) -> str:
    """Return how a head was fitted, and how its penalty was selected: on `some` or all classes."""
    head, best = found.get("head"), found.get("l2", 0.0)
    fitted = "The head was fitted to convergence by L-BFGS."
    if head and head["blocks"] > 1:
        discriminant = f"linear discriminant analysis on the last {head['blocks']} blocks"
        fitted = (
            "The head is a weighted sum of logistic regression on the last block, fitted to "
            f"convergence by L-BFGS, and {discriminant}."
        )
        if head["reads"] == SEVERAL_BLOCKS:
            fitted = (
                f"The head was fitted by {discriminant}. Logistic regression on the last block was "
                "fitted for comparison, to convergence by L-BFGS."
            )
    chosen = f"the L2 penalty with the lowest loss of calibrated probabilities: {best:g}"
    if "labels" in found:
        chosen = f"the L2 penalty with the lowest loss for each label (median {best:g})"
    limited = some and (
        f"It was applied to {some:,} of the {classes:,} classes only, because it would take too "
        "long otherwise. With fewer classes the accuracy is higher. "
    )
    also = head and ". The head's blocks are chosen by complete fits, whose scores differ"
    return (
        f"{fitted} Cross-validation on the training images selected {chosen}. {limited or ''}"
        f"These scores come from quick fits{also or ''}."
    )


def confidence_text(found: Mapping[str, Any]) -> str:
    """Return the difference between confidence and accuracy, with and without the temperature."""
    calibration = found["calibration"]
    error, bounds = calibration["ece"], interval(calibration["ece_interval"])
    text = f"On average, confidence and accuracy differ by {points(error).lstrip('+')}"
    if not is_measurable(error):
        text = "No difference between confidence and accuracy could be measured"
    text += f" (95% interval: {bounds})." if bounds else "."
    text += " Chance alone makes the bins below differ, too: it has been subtracted."
    if doubt := not_calibrated(found):
        text = f"{doubt.capitalize()}."
    before, temperature = calibration["ece_before"], calibration["temperature"]
    if before is None or temperature is None or not is_scaled(temperature):
        return text
    text += f" The logits are divided by a temperature of {temperature:.2f}, which was fitted to "
    text += "the validation images"
    if more := calibration.get("cross_validated"):
        text += f" and the cross-validated predictions for {count(more, 'training image')}"
    shown = f"the difference was {points(before).lstrip('+')}"
    if not is_measurable(before):
        shown = "no difference could be measured"
    return f"{text}." if doubt else f"{text}. Without it, {shown}."


def learning_text(found: CrossValidation, *, several: bool) -> str:
    """Return how a learning curve was measured, and what more images would bring."""
    exact = " An image is right if exactly its labels have a probability of at least 50%." * several
    more = growth_sentence(found["gain_interval"])
    if not more:
        more = "These points do not show how much more images would help."
        if all(b["top1"] <= a["top1"] for a, b in pairwise(found["curve"][-3:])):
            more = "The curve has stopped rising."
    return (
        "The chart shows the cross-validated accuracy of heads fitted to subsets of the images. "
        f"Every point was measured on the same {scored_images(found)}.{exact} {more}"
    )
