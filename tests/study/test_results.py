"""Accuracies, differences and texts of a study."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vitft.metrics import wilson_interval
from vitft.study import accuracy, difference


def seeds(*rows: Sequence[int]) -> list[np.ndarray[Any, np.dtype[np.bool_]]]:
    return [np.array(row, dtype=bool) for row in rows]


def student(*values: float) -> float:
    """Return the half-width of the 95% interval of the mean of two or three values."""
    quantile = {2: 12.706205, 3: 4.302653}[len(values)]
    return float(quantile * np.std(values, ddof=1) / math.sqrt(len(values)))


def test_the_wider_of_both_intervals_counts_on_each_side() -> None:
    apart = seeds([1] * 60 + [0] * 40, [1] * 70 + [0] * 30)
    near = seeds([1] * 64 + [0] * 36, [1] * 65 + [0] * 35)
    low, high = wilson_interval(64, 100)  # 64.5 is rounded to the even number

    top1, interval = accuracy(apart)
    assert top1 == pytest.approx(0.65)
    assert interval == pytest.approx((0.65 - student(0.6, 0.7), 1.0), abs=1e-6)
    top1, interval = accuracy(near)
    assert interval == pytest.approx((min(low, top1 - student(0.64, 0.65)), high), abs=1e-6)
    assert accuracy(near[:1]) == (0.64, wilson_interval(64, 100))


def test_a_difference_has_the_wider_interval_of_seeds_and_images() -> None:
    first = seeds([1] * 50 + [0] * 50, [1] * 60 + [0] * 40)
    second = seeds([1] * 40 + [0] * 60, [1] * 40 + [0] * 60)

    mean, (low, high) = difference(first, second)

    half = student(0.1, 0.2)
    assert mean == pytest.approx(0.15)
    assert (low, high) == pytest.approx((0.15 - half, 0.15 + half), abs=1e-6)
    same = seeds([1] * 50 + [0] * 50, [1] * 50 + [0] * 50)
    mean, (low, high) = difference(same, second)  # seeds agree: the images decide
    images = 1.959963984540054 * math.sqrt(0.1 - 0.01) / 10
    assert (mean, low, high) == pytest.approx((0.1, 0.1 - images, 0.1 + images))
