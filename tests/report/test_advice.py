"""Advice on the page of a run: when each piece is given, and its numbers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.run_files import make_run
from vitft.metrics import wilson_interval
from vitft.report import (
    ClassRecall,
    Run,
    compared_with_accuracy,
    read_run,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of three classes with 6 training and 4 validation images each."""
    return read_run(make_run(tmp_path / "run"))


# which advice ------------------------------------------------------------------------------------


# confused pairs ----------------------------------------------------------------------------------


# weak classes ------------------------------------------------------------------------------------


def a_recall(recall: float, images: int, accuracy: float) -> ClassRecall:
    """Return a recall of class a."""
    bounds = wilson_interval(round(recall * images), images)
    return ClassRecall("a", recall, images, f"{images} images", bounds, accuracy)


def test_a_low_recall_is_clear_if_it_is_too_unlikely_for_any_of_the_classes() -> None:
    worst = a_recall(20 / 30, 30, 0.9)
    # the probability of at least 10 wrong predictions of 30 at an error of 10%
    tail = sum(math.comb(30, k) * 0.1**k * 0.9 ** (30 - k) for k in range(10, 31))
    many = int(0.05 / tail)

    assert many > 10
    assert compared_with_accuracy(worst, many) == "clearly below the overall accuracy."
    assert f"The lowest of {many + 1} recalls" in compared_with_accuracy(worst, many + 1)


def test_a_recall_whose_interval_reaches_the_accuracy_may_be_low_by_chance() -> None:
    reaching = ClassRecall("a", 0.5, 100, "100 images", (0.4, 0.6), 0.6)

    assert compared_with_accuracy(reaching, 2) == (
        "but its 95% interval (40 to 60%) is so wide that this may be due to chance."
    )
    assert "chance" not in compared_with_accuracy(replace(reaching, accuracy=0.65), 2)


# more images -------------------------------------------------------------------------------------
