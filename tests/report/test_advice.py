"""Advice on the page of a run: when each piece is given, and its numbers."""

import math
from dataclasses import replace

from vitft.messages import compared_with_accuracy
from vitft.metrics import ClassEstimate, wilson_interval

# weak classes ------------------------------------------------------------------------------------


def a_recall(recall: float, images: int) -> ClassEstimate:
    """Return a recall of class a."""
    bounds = wilson_interval(round(recall * images), images)
    return ClassEstimate(name="a", value=recall, interval=bounds, images=images, kind="validation")


def test_a_low_recall_is_clear_if_it_is_too_unlikely_for_any_of_the_classes() -> None:
    worst = a_recall(20 / 30, 30)
    # the probability of at least 10 wrong predictions of 30 at an error of 10%
    tail = sum(math.comb(30, k) * 0.1**k * 0.9 ** (30 - k) for k in range(10, 31))
    many = int(0.05 / tail)

    assert many > 10
    assert "clearly below" in compared_with_accuracy(worst, 0.9, many)
    assert f"The lowest of {many + 1} recalls" in compared_with_accuracy(worst, 0.9, many + 1)


def test_a_recall_whose_interval_reaches_the_accuracy_may_be_low_by_chance() -> None:
    reaching = replace(a_recall(0.5, 100), interval=(0.4, 0.6))

    assert "due to chance" in compared_with_accuracy(reaching, 0.6, 2)
    assert "chance" not in compared_with_accuracy(reaching, 0.65, 2)
