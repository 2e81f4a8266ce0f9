"""Significance of differences between two models on the same images."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from vitft.metrics import (
    IndependentDifference,
    PairedDifference,
    accuracy_by,
    accuracy_interval,
    holm,
    mcnemar,
    sample_size,
    score_interval,
)


@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 0), (5, 5), (3, 12), (40, 17), (200, 301)])
def test_mcnemar_is_the_binomial_test_with_half_the_chance_of_the_counts(
    one: int, other: int
) -> None:
    total = one + other
    exact = binomtest(one, total).pvalue if total else 1.0

    wanted = 1.0 if one == other else exact - binom.pmf(one, total, 0.5)

    assert mcnemar(one, other) == pytest.approx(wanted, rel=1e-9)
    assert mcnemar(other, one) == mcnemar(one, other)


def test_mcnemar_is_that_of_a_published_table() -> None:
    # Fagerland, Lydersen & Laake 2013, table 1: airway hyper-responsiveness before and after a
    # transplantation, 1 and 7 discordant pairs: exact 0.0703, mid-p 0.0391.
    assert mcnemar(1, 7) == pytest.approx(0.0391, abs=5e-5)


def sign_flip(sums: np.ndarray) -> float:
    """Return the p-value of groups in which one of two models is right on so many more images."""
    sizes = np.maximum(1, np.abs(sums))
    first, second = np.repeat(sums >= 0, sizes), np.repeat(sums <= 0, sizes)
    return PairedDifference.of(first, second, np.repeat(np.arange(len(sums)), sizes)).p


def test_flipping_the_signs_of_single_images_is_mcnemars_test() -> None:
    sums = np.array([1] * 9 + [-1] * 2 + [0] * 30)

    assert sign_flip(sums) == pytest.approx(mcnemar(9, 2))


def test_signs_are_flipped_exactly() -> None:
    sums = np.array([3, -1, 2, 5, 0, -2, 4])
    totals = [abs(np.dot(signs, sums)) for signs in itertools.product((-1, 1), repeat=len(sums))]

    found = sign_flip(sums)

    wanted = np.mean([total > sums.sum() for total in totals])
    wanted += np.mean([total == sums.sum() for total in totals]) / 2
    assert found == pytest.approx(wanted)
    assert sign_flip(-sums) == pytest.approx(found)
    assert sign_flip(np.array([4, -4])) == 1


def test_a_difference_in_one_of_few_groups_is_not_significant() -> None:
    groups = np.repeat(np.arange(10), 12)
    first = np.ones(120, bool)
    second = groups != 3  # all 12 images of one patient are wrong

    alone, grouped = (PairedDifference.of(first, second, g) for g in (None, groups))

    assert alone.p < 0.001 < 0.4 < grouped.p
    assert alone.interval()[0] > 0 >= grouped.interval()[0]
    assert alone.difference == grouped.difference == 0.1


@pytest.mark.parametrize("images", [40, 240])
@pytest.mark.parametrize("factor", [1, 3])
def test_an_interval_contains_zero_if_and_only_if_the_difference_is_not_significant(
    images: int, factor: int
) -> None:
    for one, other in itertools.product(range(20), repeat=2):
        paired = PairedDifference(one, other, images, mcnemar(one, other))
        p = min(1.0, factor * paired.p)
        low, high = paired.interval(p)

        assert (low < 0 < high or 0 in (low, high)) or p < 0.05
        assert not low < 0 < high or p >= 0.05
        assert low <= paired.difference <= high


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
        for low, high in [PairedDifference(one, other, 80, mcnemar(one, other)).interval()]
    ]

    assert 0.94 <= sum(inside) / len(inside) <= 0.975


def test_the_interval_of_a_difference_is_the_adjusted_wald_interval() -> None:
    # One image is added to each kind of difference: 4 and 2 of 10 differ.
    half_width = 1.959964 * np.sqrt((0.4 + 0.2 - 0.2**2) / 10)

    def interval(one: int, other: int, images: int) -> tuple[float, float]:
        return PairedDifference(one, other, images, mcnemar(one, other)).interval()

    assert interval(3, 1, 8) == pytest.approx((0.2 - half_width, 0.2 + half_width))
    assert interval(4, 0, 4)[1] == 1
    assert interval(0, 4, 4)[0] == -1


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


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
    ],
)
def test_the_difference_of_independent_images_has_the_published_interval(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    # Newcombe 1998, table II, method 10.
    right = np.concatenate([np.arange(total) < hits for hits, total in (first, second)])
    own = np.arange(len(right)) < first[1]

    found = IndependentDifference.of(right, own)

    assert found.interval(found.p) == pytest.approx((low, high), abs=5e-5)
    assert (found.p < 0.05) == (low > 0)
    if low > 0:  # at the level 1 - p, the interval ends at 0
        assert found.interval(0.05)[0] == pytest.approx(0, abs=1e-9)


def test_values_are_compared_with_all_others_and_corrected_together() -> None:
    random = np.random.default_rng(0)
    values = random.choice(["x", "y", "z"], 300).tolist()
    right = random.random(300) < np.where(np.array(values) == "z", 0.7, 0.9)
    groups = random.integers(0, 60, 300)

    found = accuracy_by(values, right, groups)

    assert [*found] == ["x", "y", "z"]
    p = []
    for name, row in found.items():
        own = np.array([value == name for value in values])
        assert row["images"] == own.sum()
        assert row["groups"] == len({*groups[own].tolist()})
        assert row["top1"] == right[own].mean()
        assert row["top1_interval"] == accuracy_interval(right[own], groups[own])
        assert row["difference"] == pytest.approx(right[own].mean() - right[~own].mean())
        p.append(IndependentDifference.of(right, own, groups).p)
    corrected = [row["p_holm"] for row in found.values()]
    assert corrected == pytest.approx(holm(p))
    bounds = [row["difference_interval"] for row in found.values()]
    assert [value < 0.05 for value in corrected if value is not None] == [
        ends[0] > 0 or ends[1] < 0 for ends in bounds if ends
    ]


def test_two_values_are_one_comparison_and_one_value_is_none() -> None:
    right = np.arange(40) % 10 > 2
    two = accuracy_by(["x", "y"] * 20, right)
    (one,) = accuracy_by([""] * 40, right).values()

    assert two["x"]["p_holm"] == IndependentDifference.of(right, np.arange(40) % 2 == 0).p
    assert two["x"]["p_holm"] == pytest.approx(two["y"]["p_holm"])
    assert (one["p_holm"], one["difference"], one["difference_interval"]) == (None, None, None)
    assert one["top1_interval"] == accuracy_interval(right)


def test_groups_count_in_the_difference() -> None:
    right, own = np.arange(80) >= 16, np.arange(80) >= 40

    alone = IndependentDifference.of(right, own)
    grouped = IndependentDifference.of(right, own, np.arange(80) // 8)

    assert alone.p < 0.05 < grouped.p
