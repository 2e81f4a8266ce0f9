"""Calibration error and temperature scaling."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import huber

from vitft.metrics import calibration
from vitft.metrics.calibration import (
    PRIOR_SPREADS,
    TEMPERATURES,
    Ints,
    ScoredSet,
    are_comparable,
    bin_by_confidence,
    calibrate_temperature,
    calibration_error,
    confidence_and_correctness,
    find_root,
    fit_temperature,
    log_losses,
)
from vitft.metrics.intervals import Floats


def answered(images: int, *, sharpness: float = 1.0, seed: int = 0) -> tuple[Floats, Ints]:
    """Return logits of four classes that are perfectly calibrated, times `sharpness`."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, images)
    seen = random.normal(size=(images, 4))
    seen[np.arange(images), labels] += 2.0
    return 2.0 * seen * sharpness, labels  # 2 x: the log-likelihood ratio of a shift by 2


def scored(images: int, *, sharpness: float = 1.0, seed: int = 0) -> ScoredSet:
    return ScoredSet(*answered(images, sharpness=sharpness, seed=seed))


def true_error(found: float, *, sharpness: float) -> float:
    """Return the calibration error on new images after division by a temperature."""
    logits, labels = answered(100_000, sharpness=sharpness, seed=99)
    return bin_by_confidence(*confidence_and_correctness(logits / found, labels)).gap


def test_the_temperature_of_overconfident_logits_is_recovered() -> None:
    found = calibrate_temperature(scored(4000, sharpness=2.5))

    assert found.value == pytest.approx(2.5, rel=0.08)
    assert not found.note


@pytest.mark.parametrize(
    "rising",
    [
        pytest.param(lambda x: x**9 - 100, id="convex"),
        pytest.param(lambda x: 1 - 30 / x**4, id="concave"),
        pytest.param(lambda x: x - 2, id="linear"),
        pytest.param(lambda x: np.tanh(9 * (x - 1.3)), id="a step"),
    ],
)
def test_few_evaluations_lead_to_a_root(rising: Callable[[float], float]) -> None:
    visited: list[float] = []

    def watched(x: float) -> float:
        visited.append(x)
        assert len(visited) <= 30
        return rising(x)

    found = find_root(watched, 0.2, 5.0)

    assert found == pytest.approx(brentq(rising, 0.2, 5.0), rel=1e-4)


@pytest.mark.parametrize("images", [10, 200])
def test_no_neighbouring_temperature_is_more_probable(images: int) -> None:
    logits, labels = answered(images, sharpness=0.4)

    best = fit_temperature(logits, labels)

    assert best is not None
    at, *others = (
        log_losses(logits / t, labels).sum() + huber(1.0, np.log(t) / PRIOR_SPREADS[1])
        for t in (best, best / 1.02, best * 1.02, *np.geomspace(*TEMPERATURES, 100))
    )
    assert at < min(others)


@pytest.mark.parametrize("images", [30, 60, 120])
def test_flat_logits_of_a_model_trained_for_few_steps_are_sharpened(images: int) -> None:
    errors = [
        true_error(
            float(calibrate_temperature(scored(images, sharpness=0.05, seed=s)).value),
            sharpness=0.05,
        )
        for s in range(5)
    ]

    assert max(errors) < 0.2 < 0.4 < true_error(1.0, sharpness=0.05)


def test_each_image_is_scored_with_a_temperature_fitted_without_it() -> None:
    logits, labels = answered(120, sharpness=2.0)
    first = calibrate_temperature(ScoredSet(logits, labels))
    other = labels.copy()
    other[7] = (other[7] + 1) % 4

    second = calibrate_temperature(ScoredSet(logits, other))

    assert first.value != second.value
    same = np.isclose(first.held_out, second.held_out, rtol=1e-5)
    assert same[7]
    assert same.sum() <= 12  # its fold; all others have seen the image


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


def test_few_images_move_the_temperature_part_of_the_way() -> None:
    sets = [scored(12, sharpness=4.0, seed=seed) for seed in range(10)]

    found = [float(calibrate_temperature(one).value) for one in sets]

    assert 1.3 < np.mean(found) < 3.0  # calibrated logits need 4
    for temperature, one in zip(found, sets, strict=True):
        free = fit_temperature(*one, spread=100.0)  # hardly any prior
        assert free is not None
        assert abs(np.log(temperature)) < abs(np.log(free))


def test_a_few_correct_predictions_do_not_make_the_model_certain() -> None:
    logits, _ = answered(10)
    labels = logits.argmax(axis=1)

    found = calibrate_temperature(ScoredSet(logits, labels))

    assert 0.4 < found.value < 1  # the likelihood alone has its maximum at 0


def test_a_single_validation_image_has_a_temperature_without_it() -> None:
    found = calibrate_temperature(scored(1))

    assert found.held_out.tolist() == [1.0]


def test_logits_worse_than_chance_have_no_temperature() -> None:
    logits, _ = answered(200, sharpness=10.0)
    labels = logits.argmin(axis=1)
    labels[:20] = logits[:20].argmax(axis=1)

    found = calibrate_temperature(ScoredSet(logits, labels))

    assert found.value == 1
    assert "minimises the loss" in found.note


def test_sets_of_equal_difficulty_are_comparable_and_others_are_not() -> None:
    equal = [are_comparable(scored(60, seed=s), scored(240, seed=100 + s)) for s in range(40)]
    easier = scored(240)
    easier.logits[np.arange(240), easier.labels] += 6.0  # as if copies had been memorised

    assert all(equal)
    assert not are_comparable(scored(60, seed=1), easier)


def test_bins_hold_the_same_number_of_images() -> None:
    confidence, right = confidence_and_correctness(*answered(457))

    bins = bin_by_confidence(confidence, right)

    assert len(bins.images) == 15
    assert bins.images.sum() == 457
    assert set(bins.images.tolist()) <= {30, 31}
    assert (bins.images * bins.accuracy).sum() == pytest.approx(right.sum())
    assert bins.low[0] == confidence.min()
    assert bins.high[-1] == confidence.max()
    assert (bins.high[:-1] == bins.low[1:]).all()


@pytest.mark.parametrize(("images", "bins"), [(1, 1), (14, 1), (60, 4), (224, 14), (9000, 15)])
def test_few_images_make_few_bins(images: int, bins: int) -> None:
    assert len(bin_by_confidence(*confidence_and_correctness(*answered(images))).images) == bins


def test_the_plug_in_error_is_the_mean_gap() -> None:
    confidence = np.repeat([0.6, 0.9], 15)
    right = np.array([1.0] * 12 + [0.0] * 3 + [1.0] * 12 + [0.0] * 3)  # 80% in both

    assert bin_by_confidence(confidence, right).gap == pytest.approx((0.2 + 0.1) / 2)


@pytest.mark.parametrize("images", [60, 240])
def test_calibrated_probabilities_have_an_error_near_zero_for_any_number_of_images(
    images: int,
) -> None:
    every = [
        bin_by_confidence(*confidence_and_correctness(*answered(images, seed=seed)))
        for seed in range(10)
    ]

    found = [calibration_error(bins) for bins in every]

    assert sum(low == 0 for _, (low, _) in found) >= 9  # in 97.5 of 100
    plain = np.mean([bins.gap for bins in every])
    assert np.mean([error for error, _ in found]) < 0.6 * plain  # that takes chance for an error


def test_a_true_calibration_error_is_estimated() -> None:
    truth = bin_by_confidence(
        *confidence_and_correctness(*answered(400_000, sharpness=2.5, seed=1))
    ).gap

    error, (low, high) = calibration_error(
        bin_by_confidence(*confidence_and_correctness(*answered(1000, sharpness=2.5, seed=2)))
    )

    assert low < truth < high
    assert error == pytest.approx(truth, abs=0.03)
    assert low > 0.05  # so it is not chance


def test_the_error_and_its_interval_are_in_order_and_the_same_every_time() -> None:
    for images in (1, 5, 33, 400):
        bins = bin_by_confidence(*confidence_and_correctness(*answered(images, sharpness=3.0)))

        first, second = calibration_error(bins), calibration_error(bins)

        assert first == second
        assert 0 <= first[1][0] <= first[0] <= first[1][1] <= 1


def test_certain_and_correct_predictions_have_no_error() -> None:
    error, (low, high) = calibration_error(bin_by_confidence(np.ones(50), np.ones(50)))

    assert (error, low) == (0, 0)
    assert high > 0.01  # 50 images cannot rule out one in a hundred


def test_a_dominant_logit_means_certainty_without_overflow() -> None:
    confidence, _ = confidence_and_correctness(
        np.array([[1e4, 0.0], [-1e4, 1e4]]), np.array([0, 1])
    )

    assert confidence.tolist() == [1.0, 1.0]


def test_the_temperature_of_many_logits_is_fitted_to_evenly_spaced_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits, labels = answered(1000, sharpness=3.0)
    some = fit_temperature(logits[::4], labels[::4])

    monkeypatch.setattr(calibration, "MAX_LOGITS", logits.size // 4)

    assert fit_temperature(logits, labels) == some
