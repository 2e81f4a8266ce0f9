"""Calibration error and temperature scaling."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import huber
from scipy.special import softmax as scipys_softmax
from scipy.stats import binom

from vitft.metrics import (
    ScoredSet,
    are_comparable,
    bin_by_confidence,
    binned_error,
    calibrate_temperature,
    calibration_error,
    confidence_and_correctness,
    fit_temperature,
    log_losses,
    softmax,
)

Array = np.ndarray[Any, np.dtype[Any]]


def answered(images: int, *, sharpness: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    """Return logits of four classes that are perfectly calibrated, times `sharpness`."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, images)
    seen = random.normal(size=(images, 4))
    seen[np.arange(images), labels] += 2.0
    return 2.0 * seen * sharpness, labels  # 2 x: the log-likelihood ratio of a shift by 2


def scored(images: int, *, sharpness: float = 1.0, seed: int = 0) -> ScoredSet:
    return ScoredSet(*answered(images, sharpness=sharpness, seed=seed))


def bins_of(logits: Array, labels: Array) -> Any:
    return bin_by_confidence(*confidence_and_correctness(logits, labels))


def true_error(found: float, *, sharpness: float) -> float:
    """Return the calibration error on new images after division by a temperature."""
    logits, labels = answered(100_000, sharpness=sharpness, seed=99)
    return binned_error(bins_of(logits / found, labels))


def test_the_temperature_of_overconfident_logits_is_recovered() -> None:
    found = calibrate_temperature(scored(4000, sharpness=2.5))

    assert found.value == pytest.approx(2.5, rel=0.08)
    assert not found.note


@pytest.mark.parametrize("images", [10, 200])
def test_no_neighbouring_temperature_is_more_probable(images: int) -> None:
    logits, labels = answered(images, sharpness=0.4)

    best = fit_temperature(logits, labels)

    assert best is not None
    at, *others = (
        log_losses(logits / t, labels).sum() + huber(1.0, np.log(t) / 0.5)
        for t in (best, best / 1.02, best * 1.02, *np.geomspace(0.001, 50.0, 100))
    )
    assert at < min(others)


def test_of_two_minima_the_lower_one_is_the_temperature() -> None:
    temperatures, found = np.geomspace(0.001, 50.0, 400), []
    for images in range(8, 34, 2):  # with few flat logits, the prior has a minimum of its own
        logits, labels = answered(images, sharpness=0.003, seed=images)
        losses = [log_losses(logits / t, labels).sum() for t in temperatures]
        best = temperatures[np.argmin(losses + huber(1.0, np.log(temperatures) / 0.3))]

        found.append(fit_temperature(logits, labels, spread=0.3))

        assert found[-1] == pytest.approx(best, rel=0.03)
    assert min(filter(None, found)) < 0.01 < 0.9 < max(filter(None, found))


@pytest.mark.parametrize(
    ("temperature", "is_fitted"), [(0.00101, True), (0.00099, False), (49.5, True), (50.5, False)]
)
def test_temperatures_from_a_thousandth_to_fifty_are_accepted(
    temperature: float, is_fitted: bool
) -> None:
    logits, labels = answered(500)
    own = fit_temperature(logits, labels, spread=1e9)  # no prior: proportional to the logits
    assert own is not None

    found = fit_temperature(logits * (temperature / own), labels, spread=1e9)

    assert found == (pytest.approx(temperature, rel=1e-3) if is_fitted else None)


def test_few_images_are_calibrated_by_cross_validated_training_images() -> None:
    errors = []
    for seed in range(5):
        validation = scored(20, sharpness=3.0, seed=seed)
        training = scored(400, sharpness=3.0, seed=100 + seed)

        found = calibrate_temperature(validation, training)

        assert found.cross_validated == 400
        assert len(found.held_out) == 20  # of the validation images only
        errors.append(true_error(float(found.value), sharpness=3.0))
    assert max(errors) < 0.03 < 0.12 < true_error(1.0, sharpness=3.0)


def test_a_few_correct_predictions_do_not_make_the_model_certain() -> None:
    logits, _ = answered(10)
    labels = logits.argmax(axis=1)

    found = calibrate_temperature(ScoredSet(logits, labels))

    assert 0.4 < found.value < 1  # the likelihood alone has its maximum at 0


def test_logits_worse_than_chance_have_no_temperature() -> None:
    logits, _ = answered(200, sharpness=10.0)
    labels = logits.argmin(axis=1)
    labels[:20] = logits[:20].argmax(axis=1)

    found = calibrate_temperature(ScoredSet(logits, labels))
    together = calibrate_temperature(ScoredSet(logits, labels), ScoredSet(logits, labels))

    assert found.value == 1
    assert "minimises the loss" in found.note
    assert (together.value, together.cross_validated) == (1, 0)  # none was used


@pytest.mark.parametrize("factor", [0.2, 0.5, 0.8, 1.0, 1.3, 2.0, 5.0])
def test_the_temperature_does_not_depend_on_where_the_search_begins(factor: float) -> None:
    logits, labels = answered(100, sharpness=3.0)
    best = fit_temperature(logits, labels)
    assert best is not None

    assert fit_temperature(logits, labels, near=factor * best) == pytest.approx(best, rel=2e-4)


def test_sets_of_equal_difficulty_are_comparable_and_others_are_not() -> None:
    equal = [are_comparable(scored(60, seed=s), scored(240, seed=100 + s)) for s in range(40)]
    easier = scored(240)
    easier.logits[np.arange(240), easier.labels] += 6.0  # as if copies had been memorised

    assert all(equal)
    assert not are_comparable(scored(60, seed=1), easier)


def test_losses_of_a_few_groups_may_differ_by_chance() -> None:
    def differing(groups: Any) -> int:
        copied = [scored(12, seed=seed) for seed in range(40)]  # 12 groups of 20 equal images
        sets = [ScoredSet(o.logits.repeat(20, 0), o.labels.repeat(20), groups) for o in copied]
        others = [scored(240, seed=100 + seed) for seed in range(40)]
        return sum(not are_comparable(*pair) for pair in zip(sets, others, strict=True))

    assert differing(None) > 8
    assert differing(np.arange(240) // 20) <= 1


def test_comparable_losses_differ_by_at_most_four_standard_errors() -> None:
    first, second, compared = scored(60, seed=3), scored(240, seed=4), []
    for shift in np.linspace(0, 3, 61):
        harder = second.logits.copy()
        harder[np.arange(240), second.labels] += shift
        logits = np.concatenate([first.logits, harder])
        labels = np.append(first.labels, second.labels)
        losses = log_losses(logits / (fit_temperature(logits, labels) or 1), labels)
        difference = abs(losses[:60].mean() - losses[60:].mean())
        errors = difference / (losses.std() * np.sqrt(1 / 60 + 1 / 240))

        found = are_comparable(first, ScoredSet(harder, second.labels))

        assert found == (errors <= 4)
        compared.append(errors)
    assert any(3.5 < errors < 4 for errors in compared)
    assert any(4 < errors < 4.5 for errors in compared)


def test_labels_are_comparable_only_if_each_of_them_is() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(-1, 2, (400, 2))
    truth = (random.random((400, 2)) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    easier = logits + np.outer(np.arange(400) >= 100, [0, 9]) * (2 * truth - 1)

    for scores, is_comparable in ((logits, True), (easier, False)):
        sets = ScoredSet(scores[:100], truth[:100]), ScoredSet(scores[100:], truth[100:])
        assert are_comparable(*sets) == is_comparable


def test_bins_are_listed_with_limits_halfway_between_their_images() -> None:
    confidence = np.arange(60, 90) / 100
    right = (np.arange(30) % 3 > 0).astype(np.float64)
    right[:3] = 0

    rows = bin_by_confidence(confidence[::-1], right[::-1])

    expected = [(0.6, 0.745, 15, 0.67, 8 / 15), (0.745, 0.89, 15, 0.82, 10 / 15)]
    for row, (low, high, images, mean, accuracy) in zip(rows, expected, strict=True):
        assert [row["low"], row["high"]] == pytest.approx([low, high])
        assert row["images"] == images
        assert [row["confidence"], row["accuracy"]] == pytest.approx([mean, accuracy])


def test_bins_hold_the_same_number_of_images() -> None:
    confidence, right = confidence_and_correctness(*answered(457))

    bins = bin_by_confidence(confidence, right)

    images = [one["images"] for one in bins]
    assert len(images) == 15
    assert sum(images) == 457
    assert set(images) <= {30, 31}
    correct = sum(one["images"] * one["accuracy"] for one in bins)
    assert correct == pytest.approx(right.sum())
    assert bins[0]["low"] == confidence.min()
    assert bins[-1]["high"] == confidence.max()
    assert all(one["high"] == other["low"] for one, other in pairwise(bins))


def test_the_plug_in_error_is_the_mean_gap() -> None:
    confidence = np.repeat([0.6, 0.9], 15)
    right = np.array([1.0] * 12 + [0.0] * 3 + [1.0] * 12 + [0.0] * 3)  # 80% in both

    assert binned_error(bin_by_confidence(confidence, right)) == pytest.approx((0.2 + 0.1) / 2)


def test_a_true_calibration_error_is_estimated() -> None:
    truth = binned_error(bins_of(*answered(400_000, sharpness=2.5, seed=1)))

    error, (low, high) = calibration_error(bins_of(*answered(1000, sharpness=2.5, seed=2)))

    assert low < truth < high
    assert error == pytest.approx(truth, abs=0.03)
    assert low > 0.05  # so it is not chance


@pytest.mark.parametrize(("confidence", "right"), [(0.6, 13), (0.9, 8), (0.5, 12)])
def test_the_error_of_one_bin_and_its_interval_follow_from_the_binomial_distribution(
    confidence: float, right: int
) -> None:
    images = 14
    observed = abs(right / images - confidence)
    sign = 1 if right / images > confidence else -1
    gaps = np.abs(np.arange(images + 1) / images - confidence)

    def fraction_below(error: float) -> float:
        """Return the probability of a smaller gap, plus half of that of an equal one."""
        chances = binom.pmf(np.arange(images + 1), images, np.clip(confidence + sign * error, 0, 1))
        is_equal = np.isclose(gaps, observed)
        return float(chances @ ((gaps < observed) & ~is_equal) + chances @ is_equal / 2)

    def error_at(fraction: float) -> float:
        if fraction_below(0) <= fraction:
            return 0.0
        most = 1 - confidence if sign > 0 else confidence
        return float(brentq(lambda error: fraction_below(error) - fraction, 0, most))

    bins = bin_by_confidence(np.full(images, confidence), (np.arange(images) < right).astype(float))
    error, (low, high) = calibration_error(bins)

    expected = [error_at(fraction) for fraction in (0.5, 0.975, 0.025)]
    assert [error, low, high] == pytest.approx(expected, abs=0.02)  # 1,000 simulations


def test_the_error_and_its_interval_are_in_order_and_the_same_every_time() -> None:
    for images in (1, 5, 33, 400):
        bins = bins_of(*answered(images, sharpness=3.0))

        first, second = calibration_error(bins), calibration_error(bins)

        assert first == second
        assert 0 <= first[1][0] <= first[0] <= first[1][1] <= 1


def test_certain_and_correct_predictions_have_no_error() -> None:
    error, (low, high) = calibration_error(bin_by_confidence(np.ones(50), np.ones(50)))

    assert (error, low) == (0, 0)
    assert high == pytest.approx(1 - 0.05 ** (1 / 50), abs=0.01)  # 50 right with a chance of 5%


def test_a_dominant_logit_means_certainty_without_overflow() -> None:
    confidence, _ = confidence_and_correctness(
        np.array([[1e4, 0.0], [-1e4, 1e4]]), np.array([0, 1])
    )

    assert confidence.tolist() == [1.0, 1.0]


def test_softmax_is_that_of_scipy_in_the_precision_of_the_logits() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32) * 100 + 1e4
    expected = scipys_softmax(logits.astype(np.float64), axis=1)

    found = softmax(logits)

    assert found is logits
    assert found == pytest.approx(expected, abs=1e-6)
    cube = np.arange(24.0).reshape(2, 3, 4) ** 1.5
    assert softmax(cube.copy()) == pytest.approx(scipys_softmax(cube, axis=-1))


def test_if_no_bin_deviates_the_trial_errors_are_equal_and_towards_the_middle() -> None:
    confidence, images = np.array([0.25, 0.75]), 16
    right = np.arange(images) < images * confidence[:, None]
    exact = bin_by_confidence(np.repeat(confidence, images), right.ravel().astype(np.float64))
    counts = np.arange(images + 1)
    one, other = np.abs(counts / images - confidence[:, None])
    gaps = (one[:, None] + other) / 2

    def chances(error: float) -> Array:
        low, high = binom.pmf(counts, images, confidence[:, None] + [[error], [-error]])
        return np.asarray(low[:, None] * high)

    values = np.unique(gaps.round(9))
    below = [chances(0.0)[gaps < value - 1e-6].sum() for value in values]
    median = values[np.searchsorted(below, 0.5) - 1]
    is_equal = np.isclose(gaps, median)

    def too_much(error: float) -> float:
        of = chances(error)
        return float(of[(gaps < median) & ~is_equal].sum() + of[is_equal].sum() / 2 - 0.025)

    error, (low, high) = calibration_error(exact)

    assert (error, low) == (0, 0)
    assert high == pytest.approx(brentq(too_much, 0, 0.5), abs=0.01)
