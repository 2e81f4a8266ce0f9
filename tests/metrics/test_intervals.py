"""Confidence intervals."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom, binomtest, chi2, t

from vitft.metrics import (
    accuracy_interval,
    binomial_tail,
    f1_with_interval,
    mean_fraction_interval,
    mean_interval,
    proportions_differ,
    score_interval,
    student_t_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(("correct", "total"), [(0, 10), (8, 10), (10, 10), (93, 100), (1, 3)])
def test_the_interval_of_a_fraction_is_that_of_scipy(correct: int, total: int) -> None:
    expected = binomtest(correct, total).proportion_ci(method="wilson")

    assert wilson_interval(correct, total) == pytest.approx(
        (expected.low, expected.high), abs=1e-12
    )


@pytest.mark.parametrize(("mistakes", "total"), [(1, 10), (1, 40), (2, 40), (3, 40), (3, 1000)])
def test_with_few_mistakes_the_interval_reaches_the_limit_of_a_poisson_distribution(
    mistakes: int, total: int
) -> None:
    low, high = wilson_interval(total - mistakes, total)

    limit = chi2.ppf(0.05, 2 * mistakes) / 2
    assert (1 - high) * total == pytest.approx(limit, abs=0.013)
    wilson = binomtest(total - mistakes, total).proportion_ci(method="wilson")
    assert low == pytest.approx(wilson.low)
    assert wilson_interval(mistakes, total) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(
    ("least", "trials", "chance"),
    [(4, 34, 0.0451), (10, 10, 0.7), (2, 300, 0.01), (1000, 5000, 0.19), (3, 9, 0), (3, 9, 1)],
)
def test_the_binomial_tail_is_that_of_scipy(least: int, trials: int, chance: float) -> None:
    expected = float(binom.sf(least - 1, trials, chance))

    found = binomial_tail(least, trials, chance)
    assert found == pytest.approx(expected, rel=1e-6)
    assert binomial_tail(0, trials, chance) == 1


def test_more_successes_than_trials_are_impossible() -> None:
    assert binomial_tail(11, 10, 0.5) == 0
    assert binomial_tail(10, 10, 0.5) == pytest.approx(0.5**10)
    assert binomial_tail(11, 10, 1.0) == 1  # as for any number if success is certain


def test_the_binomial_tail_is_never_negative() -> None:
    tails = [binomial_tail(n, n, chance) for n in range(1, 60) for chance in (1e-3, 0.1, 0.5)]

    assert min(tails) >= 0


def test_the_interval_without_images_is_zero_to_one() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert accuracy_interval(np.zeros(0, bool)) == (0.0, 1.0)


def test_intervals_stay_within_zero_and_one() -> None:
    ends = [(wilson_interval(0, n)[0], wilson_interval(n, n)[1]) for n in range(1, 200)]

    assert set(ends) == {(0.0, 1.0)}


@pytest.mark.parametrize("fraction", [0.5, 0.85, 0.97])
def test_equal_accuracies_are_said_to_differ_about_5_times_in_100(fraction: float) -> None:
    few, many = 34, 202
    found = [
        binom.pmf(a, few, fraction) * binom.pmf(b, many, fraction)
        for a, b in itertools.product(range(few + 1), range(many + 1))
        if proportions_differ(
            (a / few, wilson_interval(a, few)), (b / many, wilson_interval(b, many))
        )
    ]

    assert 0.025 < sum(found) < 0.06


def test_accuracies_differ_before_their_intervals_no_longer_overlap() -> None:
    few, many = wilson_interval(23, 34), wilson_interval(172, 202)

    assert few[1] > many[0]
    assert proportions_differ((23 / 34, few), (172 / 202, many))
    assert proportions_differ((172 / 202, many), (23 / 34, few))
    assert not proportions_differ((28 / 34, wilson_interval(28, 34)), (172 / 202, many))


@pytest.mark.parametrize("images", [20, 40, 100, 300])
def test_the_interval_of_an_accuracy_near_100_percent_covers_it_at_least_93_times_in_100(
    images: int,
) -> None:
    ends = [wilson_interval(k, images) for k in range(images + 1)]
    shares = np.linspace(0.96, 1 - 0.5 / images, 60)

    covered = [
        sum(binom.pmf(k, images, p) for k, (low, high) in enumerate(ends) if low <= p <= high)
        for p in shares
    ]

    assert min(covered) > 0.92  # 0.84 to 0.93 for the unmodified intervals
    assert np.mean(covered) > 0.95


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 200])
def test_student_t_quantile_is_where_the_distribution_of_scipy_reaches_its_level(
    freedom: int,
) -> None:
    # Not scipy's own quantile, which was off by 2e-11 in version 1.14.
    assert t.cdf(student_t_quantile(freedom), freedom) == pytest.approx(0.975, abs=1e-15)


@pytest.mark.parametrize(
    "counts", [[(7, 12)], [(35, 35), (30, 35), (35, 35), (34, 35)], [(20, 20)] * 3]
)
def test_the_mean_of_equally_large_classes_has_the_interval_of_the_accuracy(
    counts: list[tuple[int, int]],
) -> None:
    right, images = map(sum, zip(*counts, strict=True))

    assert mean_fraction_interval(counts) == pytest.approx(wilson_interval(right, images))


@pytest.mark.parametrize(
    ("images", "recalls"),
    [
        pytest.param((35,) * 10, (0.955,) * 10, id="as the digits of scikit-learn"),
        pytest.param((10,) * 5, (0.94,) * 5, id="five small classes"),
        pytest.param((10,) * 60, (0.9,) * 60, id="many classes"),
        pytest.param((1,) * 8, (0.8,) * 8, id="one image each"),
        pytest.param((100, 50, 20, 10, 5), (0.9,) * 5, id="classes of different sizes"),
        pytest.param((1000, 10), (0.99, 0.6), id="a weak rare class"),
        pytest.param((1000, 10), (0.9, 0.99), id="a strong rare class"),
        pytest.param((100,) * 9 + (3,), (0.99,) * 9 + (0.6,), id="a weak class of three images"),
        pytest.param((1000, 20), (0.999, 0.9), id="a weak class beside a perfect one"),
    ],
)
def test_no_side_of_the_interval_of_balanced_accuracy_is_too_short(
    images: tuple[int, ...], recalls: tuple[float, ...]
) -> None:
    truth = sum(recalls) / len(recalls)
    drawn = np.random.default_rng(0).binomial(images, recalls, size=(1000, len(images)))

    ends = [mean_fraction_interval(list(zip(counts, images, strict=True))) for counts in drawn]

    below, above = (np.array(end) for end in zip(*ends, strict=True))
    assert (above < truth).mean() < 0.075
    assert (below > truth).mean() < 0.05
    assert ((below <= truth) & (truth <= above)).mean() >= 0.925


@pytest.mark.parametrize("swapped", [False, True])
def test_the_interval_of_the_mean_recall_of_unequal_classes_is_that_of_its_sources(
    swapped: bool,
) -> None:
    few, many = (4, 95) if swapped else (6, 5)  # of 10 and of 100 images
    p, q = few / 10, many / 100
    mean = (p + q) / 2
    # The variance of each recall is estimated with two more images at the mean recall.
    small, large = (few + 2 * mean) / 12, (many + 2 * mean) / 102
    variance = (small * (1 - small) / 10 + large * (1 - large) / 100) / 4
    effective = min(4 / (1 / 10 + 1 / 100), mean * (1 - mean) / variance)
    low, high = score_interval(mean, effective)
    (p_low, p_high), (q_low, q_high) = wilson_interval(few, 10), wilson_interval(many, 100)
    low_of_sum = mean - np.hypot(p - p_low, q - q_low) / 2
    high_of_sum = mean + np.hypot(p_high - p, q_high - q) / 2
    weight = 1 - (2 / (1 / 10 + 1 / 100)) / 55  # harmonic and arithmetic mean of the images
    assert (low_of_sum < low, high < high_of_sum) == (not swapped, swapped)

    found = mean_fraction_interval([(few, 10), (many, 100)])

    assert found[0] == pytest.approx(low - weight * max(0, low - low_of_sum))
    assert found[1] == pytest.approx(high + weight * max(0, high_of_sum - high))


def test_the_interval_of_a_mean_of_very_unequal_classes_stays_within_zero_and_one() -> None:
    for few, many in itertools.product(range(4), (0, 1, 150, 299, 300)):
        low, high = mean_fraction_interval([(few, 3), (many, 300)])

        assert 0 <= low <= (few / 3 + many / 300) / 2 <= high <= 1


@pytest.mark.parametrize(
    ("right", "images", "named"),
    [
        pytest.param(8, 10, 12, id="some of each"),
        pytest.param(0, 10, 3, id="none right"),
        pytest.param(5, 5, 5, id="all right"),
    ],
)
def test_f1_is_the_harmonic_mean_of_recall_and_precision(
    right: int, images: int, named: int
) -> None:
    value, (low, high) = f1_with_interval(right, images + named - right)

    assert value == pytest.approx(2 * right / (images + named))
    assert 0 <= low <= value <= high <= 1


def test_the_interval_of_a_mean_is_skewed_towards_the_long_tail() -> None:
    values = np.random.default_rng(0).exponential(size=400)  # mean 1, deviation 1

    low, high = mean_interval(values) or (0, 0)

    assert low < values.mean() < high
    assert high - values.mean() > values.mean() - low
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.2)  # as wide as the normal one


@pytest.mark.parametrize(("images", "groups"), [(40, 0), (300, 0), (300, 30), (1000, 40)])
def test_the_interval_of_a_mean_covers_the_truth_about_95_times_in_100(
    images: int, groups: int
) -> None:
    random, inside = np.random.default_rng(images), 0
    for _ in range(400):
        own = random.integers(0, groups, images) if groups else np.arange(images)
        level = random.gamma(4, 1 / 4, groups or images)[own] if groups else 1.0
        low, high = mean_interval(random.exponential(level, images), own) or (1, 0)
        inside += low <= 1 <= high

    assert 0.93 <= inside / 400 <= 0.98


@pytest.mark.parametrize("values", [[0.5], [0.25] * 3, [4.5] * 3])
def test_equal_values_have_an_interval_of_zero_width(values: list[float]) -> None:
    assert mean_interval(np.array(values)) == (values[0], values[0])
