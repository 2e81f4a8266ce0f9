"""Calibration error and temperature scaling."""

import numpy as np
import pytest

from vitft.metrics.calibration import (
    Ints,
    bin_by_confidence,
    calibrate_temperature,
    calibration_error,
    confidence_and_correctness,
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


def test_the_temperature_of_overconfident_logits_is_recovered() -> None:
    logits, labels = answered(4000, sharpness=2.5)

    found = calibrate_temperature(logits, labels)

    assert found.value == pytest.approx(2.5, rel=0.08)
    assert not found.note


def test_no_neighbouring_temperature_has_a_smaller_loss() -> None:
    logits, labels = answered(200, sharpness=0.4)

    best = fit_temperature(logits, labels)

    assert best is not None
    at, colder, hotter = (
        log_losses(logits / t, labels).mean() for t in (best, best / 1.02, best * 1.02)
    )
    assert at < min(colder, hotter)


def test_each_image_is_scored_with_a_temperature_fitted_without_it() -> None:
    logits, labels = answered(120, sharpness=2.0)
    first = calibrate_temperature(logits, labels)
    other = labels.copy()
    other[7] = (other[7] + 1) % 4

    second = calibrate_temperature(logits, other)

    assert first.value != second.value
    same = np.isclose(first.held_out, second.held_out, rtol=1e-5)
    assert same[7]
    assert same.sum() <= 12  # its fold; all others have seen the image


@pytest.mark.parametrize(
    ("images", "shown"),
    [pytest.param(20, "20 validation images", id="few"), pytest.param(400, "0 errors", id="right")],
)
def test_too_few_images_or_errors_leave_the_temperature_at_one(images: int, shown: str) -> None:
    logits, labels = answered(images, sharpness=2.0)
    if images > 20:
        labels = logits.argmax(axis=1)

    found = calibrate_temperature(logits, labels)

    assert found.value == 1
    assert (found.held_out == 1).all()
    assert shown in found.note


def test_logits_worse_than_chance_have_no_temperature() -> None:
    logits, _ = answered(200)
    labels = logits.argmin(axis=1)
    labels[:20] = logits[:20].argmax(axis=1)

    found = calibrate_temperature(logits, labels)

    assert found.value == 1
    assert "minimises the loss" in found.note


def test_a_temperature_that_does_not_help_held_out_images_is_not_used() -> None:
    logits, labels = answered(60, seed=3)  # well calibrated already, and few

    found = calibrate_temperature(logits, labels)

    assert found.value == 1
    assert "did not help on held-out images" in found.note


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
    right = np.array([1.0] * 12 + [0.0] * 3 + [1.0] * 12 + [0.0] * 3)  # 80 % in both

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
