"""Sentences that advise on an accuracy: whether to trust it, and what would raise it."""

from vitft.messages.results import chance_clause
from vitft.metrics.summary import AtChance, Results
from vitft.system.text import count, interval, percent

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
        f"{guessing}, that of guessing."
    )


def copies_reason(groups: int, without: str, *, own_split: bool) -> str:
    """Return why and how to remove duplicates across training and validation.

    Args:
        groups: Number of groups of duplicates.
        without: Accuracy without them as text; empty if unknown.
        own_split: Whether the split is that of the data.
    """
    remedy = "the option --group-duplicates keeps each group on one side of the split."
    if own_split:
        remedy = (
            "the split is that of your data: drop the copies on one side, or correct the split."
        )
    known = f" It is {without}." if without else ""
    return (
        f"{count(groups, 'group')} of identical or nearly identical images "
        f"{'contains' if groups == 1 else 'contain'} both training and validation images, so the "
        f"accuracy may be too high.{known} vitft check lists them, and {remedy}"
    )


def growth_advice(gain: str) -> str:
    """Return what twice as many images would bring, given the result of `growth_text`."""
    return f"With twice as many images, the accuracy would be {gain}."


def more_validation_images(needed: int) -> str:
    """Return how many validation images a usual precision needs."""
    return f"To measure the accuracy to within ±4 points, use about {needed:,} validation images."
