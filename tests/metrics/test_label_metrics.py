"""Metrics, calibration and thresholds of several labels per image."""

from typing import Any

import numpy as np
import pytest
import torch

from vitft.metrics.calibration import (
    ScoredSet,
    calibrate_temperature,
    confidence_and_correctness,
    log_losses,
    logit_of,
    sigmoid,
)
from vitft.metrics.classification import classification_metrics, probability_metrics
from vitft.metrics.label_metrics import average_precision
from vitft.metrics.targets import TrainingLoss, are_right, losses, mean_loss
from vitft.metrics.thresholds import best_threshold, fit_thresholds

Array = np.ndarray[Any, Any]


def scored(images: int = 200, labels: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Calibrated logits and the labels drawn from their probabilities."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 2, (images, labels))
    return logits, (random.random((images, labels)) < sigmoid(logits)).astype(np.int64)


def test_average_precision_is_that_of_scikit_learn_also_for_equal_scores() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, truth = scored()
    scores = logits[:, 0].round()  # many are equal
    weights = np.random.default_rng(1).integers(0, 3, (2, len(scores))).astype(float)
    weights[0] = 1

    found = average_precision(scores, truth[:, 0] == 1, weights)

    for row, value in zip(weights, found, strict=True):
        wanted = sklearn.average_precision_score(truth[:, 0], scores, sample_weight=row)
        assert value == pytest.approx(wanted)


def test_the_metrics_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, truth = scored()

    found = classification_metrics(
        torch.from_numpy(logits), torch.from_numpy(truth), ("a", "b", "c"), resampled=True
    )

    given, labels = logits >= 0, found["labels"]
    assert labels["map"] == pytest.approx(sklearn.average_precision_score(truth, logits))
    assert labels["macro_f1"] == pytest.approx(sklearn.f1_score(truth, given, average="macro"))
    assert labels["micro_f1"] == pytest.approx(sklearn.f1_score(truth, given, average="micro"))
    assert found["top1"] == pytest.approx(sklearn.accuracy_score(truth, given))
    assert found["per_class"]["b"]["recall"] == pytest.approx(
        sklearn.recall_score(truth[:, 1], given[:, 1])
    )
    bare = truth.sum(axis=1) == 0
    assert labels["none"]["images"] == bare.sum()
    assert labels["none"]["recall"] == pytest.approx((given[bare].sum(axis=1) == 0).mean())
    for name in ("map", "micro_f1", "macro_f1"):
        low, high = labels[f"{name}_interval"]  # type: ignore[literal-required]
        assert low < labels[name] < high
    assert (found["confusion"], found["top5"]) == ([], None)


def test_a_label_that_no_image_has_is_undefined_and_left_out_of_the_means() -> None:
    logits, truth = scored()
    truth[:, 2] = 0

    found = classification_metrics(
        torch.from_numpy(logits), torch.from_numpy(truth), ("a", "b", "c"), resampled=True
    )["labels"]

    ranks = found["per_label"]
    assert ranks["c"] == {"ap": None, "ap_interval": None}
    assert found["map"] == pytest.approx(((ranks["a"]["ap"] or 0) + (ranks["b"]["ap"] or 0)) / 2)


def test_the_loss_is_the_negative_log_likelihood_of_all_labels() -> None:
    logits, truth = scored()
    chance = np.where(truth, sigmoid(logits), 1 - sigmoid(logits)).prod(axis=1)
    x, y = torch.from_numpy(logits), torch.from_numpy(truth)

    assert np.allclose(log_losses(logits, truth), -np.log(chance))
    assert mean_loss(x, y).item() == pytest.approx(-np.log(chance).mean())
    assert TrainingLoss(several=True).total(x, y).item() == pytest.approx(-np.log(chance).sum())
    smooth = losses(x, y, label_smoothing=1.0)  # every target becomes one half
    assert torch.allclose(smooth, losses(x, torch.full_like(x, 0.5)))


def test_each_label_gets_its_own_temperature() -> None:
    logits, truth = scored(2000)
    wrong = logits * (3.0, 1.0, 0.5)

    found = calibrate_temperature(ScoredSet(wrong, truth))

    assert np.allclose(found.value, (3.0, 1.0, 0.5), rtol=0.15)
    assert found.held_out.shape == (2000, 3)


def test_every_label_of_every_image_counts_for_the_calibration_error() -> None:
    logits, truth = scored(300)

    confidence, right = confidence_and_correctness(logits, truth)
    metrics = probability_metrics(logits, torch.from_numpy(truth))

    assert len(confidence) == len(right) == 900
    assert abs(confidence.mean() - right.mean()) < 0.03
    assert metrics["calibration"] is not None
    assert metrics["calibration"]["ece"] < 0.04


def test_the_best_threshold_is_that_of_an_exhaustive_search() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    for seed in range(5):
        logits, truth = scored(60, 1, seed)
        z, y = logits[:, 0].round(1), truth[:, 0]

        found = best_threshold(z, y)

        scores = [sklearn.f1_score(y, z >= t, zero_division=0) for t in np.unique(z)]
        assert sklearn.f1_score(y, z >= found) == pytest.approx(max(scores))
        assert found not in z  # halfway between two logits


def test_thresholds_of_validation_images_are_chosen_without_them() -> None:
    logits, truth = scored(40, 2)

    found = fit_thresholds(ScoredSet(logits, truth))

    assert found.value.shape == (2,)
    assert found.held_out.shape == (40, 2)
    assert len(np.unique(found.held_out[:, 0])) > 1
    assert best_threshold(logits[:, 0], np.zeros(40, np.int64)) == 0.0


def test_an_image_is_right_only_if_all_labels_are() -> None:
    logits = torch.tensor([[2.0, -2.0], [2.0, 2.0], [-2.0, -2.0]])
    truth = torch.tensor([[1, 0], [1, 0], [0, 0]])

    assert are_right(logits, truth).tolist() == [True, False, True]
    strict = np.array([0.99, 0.5])
    assert are_right(logits, truth, strict).tolist() == [False, False, True]
    assert logit_of(sigmoid(np.array([-3.0]))) == pytest.approx(-3.0)
