"""Significance of differences between two models on the same images."""

import numpy as np
import pytest
from scipy.stats import binomtest

from vitft.metrics.intervals import holm, mcnemar, paired_interval, sample_size, score_interval


@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 0), (5, 5), (3, 12), (40, 17), (200, 301)])
def test_mcnemar_is_the_exact_binomial_test(one: int, other: int) -> None:
    expected = binomtest(one, one + other).pvalue if one + other else 1.0

    assert mcnemar(one, other) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(other, one) == mcnemar(one, other)


@pytest.mark.parametrize(
    ("raw", "corrected"),
    [
        pytest.param([0.04], [0.04], id="one pair stays"),
        pytest.param([0.01, 0.04, 0.03], [0.03, 0.06, 0.06], id="in any order, never falling"),
        pytest.param([0.9, 0.8], [1.0, 1.0], id="never over one"),
    ],
)
def test_holm_corrects_for_the_number_of_pairs(raw: list[float], corrected: list[float]) -> None:
    assert holm(raw) == pytest.approx(corrected)


def test_the_interval_of_a_difference_covers_it_in_95_of_100_draws() -> None:
    random = np.random.default_rng(0)
    draws = random.multinomial(80, [0.15, 0.05, 0.8], size=2000)  # truth: 0.15 - 0.05

    inside = [
        low <= 0.1 <= high
        for one, other, _ in draws.tolist()
        for low, high in [paired_interval(one, other, 80)]
    ]

    assert 0.94 <= sum(inside) / len(inside) <= 0.975


def test_the_interval_of_a_difference_is_the_adjusted_wald_interval() -> None:
    # One image is added to each kind of difference: 4 and 2 of 10 differ.
    half_width = 1.959964 * np.sqrt((0.4 + 0.2 - 0.2**2) / 10)

    assert paired_interval(3, 1, 8) == pytest.approx((0.2 - half_width, 0.2 + half_width))
    assert paired_interval(4, 0, 4)[1] == 1
    assert paired_interval(0, 4, 4)[0] == -1


def test_few_images_are_enough_for_a_wide_interval() -> None:
    assert sample_size(0.5, 0.5) == 1
    assert sample_size(0.3, 0.5) == 7
    low, high = score_interval(0.5, 7)
    assert high - low <= 0.6
    low, high = score_interval(0.5, 6)
    assert high - low > 0.6


def test_sample_size_follows_the_normal_approximation() -> None:
    for accuracy, needed in ((0.5, 597), (0.77, 423), (1.0, 45)):  # 1 on a sample is not certain
        assert sample_size(0.04, accuracy) == needed
        low, high = score_interval(accuracy, needed)
        assert high - low <= 0.08
        low, high = score_interval(accuracy, needed - 1)
        assert high - low > 0.08
