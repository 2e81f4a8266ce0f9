"""Accuracies, differences and texts of a study."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from vitft.metrics import wilson_interval
from vitft.study import CurvePoint, difference, half_width_of_mean


def at_shots(shots: int, *rows: Sequence[int]) -> CurvePoint:
    return CurvePoint(shots=shots, correct=tuple(np.array(row, dtype=bool) for row in rows))


GOOD, POOR = [1] * 80 + [0] * 20, [1] * 40 + [0] * 60


def test_the_interval_over_seeds_is_that_of_student() -> None:
    values = [0.5, 0.6, 0.7]

    assert half_width_of_mean(values) == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-5)
    assert half_width_of_mean([0.5, 0.7]) == pytest.approx(
        12.706205 * math.sqrt(0.02) / math.sqrt(2), rel=1e-5
    )
    assert half_width_of_mean([0.5]) == 0.0
    assert half_width_of_mean([]) == 0.0


def test_the_wider_of_both_intervals_counts_on_each_side() -> None:
    apart = at_shots(5, [1] * 60 + [0] * 40, [1] * 70 + [0] * 30)
    half = half_width_of_mean([0.6, 0.7])

    assert apart.interval == pytest.approx((0.65 - half, 1.0))
    near = at_shots(5, [1] * 64 + [0] * 36, [1] * 65 + [0] * 35)
    low, high = wilson_interval(64, 100)  # 64.5 is rounded to the even number
    assert near.interval == (min(low, near.top1 - half_width_of_mean([0.64, 0.65])), high)


def test_a_difference_has_the_wider_interval_of_seeds_and_images() -> None:
    first = at_shots(5, [1] * 50 + [0] * 50, [1] * 60 + [0] * 40)
    second = at_shots(5, [1] * 40 + [0] * 60, [1] * 40 + [0] * 60)

    mean, (low, high) = difference(first, second)

    half = half_width_of_mean([0.1, 0.2])
    assert mean == pytest.approx(0.15)
    assert (low, high) == pytest.approx((0.15 - half, 0.15 + half))
    same = at_shots(5, [1] * 50 + [0] * 50, [1] * 50 + [0] * 50)
    mean, (low, high) = difference(same, second)  # seeds agree: the images decide
    images = 1.959963984540054 * math.sqrt(0.1 - 0.01) / 10
    assert (mean, low, high) == pytest.approx((0.1, 0.1 - images, 0.1 + images))
