"""Metrics, calibration and thresholds of several labels per image."""

from typing import Any

import numpy as np
import pytest
import torch

from vitft.metrics import (
    Metrics,
    Outputs,
    ScoredSet,
    TrainingLoss,
    are_right,
    calibrate_temperature,
    calibrated_metrics,
    classification_metrics,
    confidence_and_correctness,
    f1_with_interval,
    fit_thresholds,
    log_losses,
    logit_of,
    mean_fraction_interval,
    mean_loss,
    probability_metrics,
    score_interval,
    sigmoid,
    wilson_interval,
)

Array = np.ndarray[Any, Any]


def scored(images: int = 200, labels: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Calibrated logits and the labels drawn from their probabilities."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 2, (images, labels))
    return logits, (random.random((images, labels)) < sigmoid(logits)).astype(np.int64)


def measured(logits: Array, truth: Array, names: str = "abc") -> Metrics:
    outputs = Outputs.of(names, several=True)
    return classification_metrics(torch.from_numpy(logits), torch.from_numpy(truth), outputs)


@pytest.mark.parametrize("digits", [0, 9])  # with 0, many scores are equal
def test_the_metrics_are_those_of_scikit_learn(digits: int) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, truth = scored()
    logits = logits.round(digits)

    found = measured(logits, truth)

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
    for i, label in enumerate("abc"):
        wanted = sklearn.average_precision_score(truth[:, i], logits[:, i])
        assert labels["per_label"][label]["ap"] == pytest.approx(wanted)
    assert labels["chance_map"] == pytest.approx(truth.mean())
    recalls = sklearn.recall_score(truth, given, average=None)
    assert found["balanced"] == pytest.approx(recalls.mean())
    hits = (truth * given).sum(axis=0).tolist()
    assert found["balanced_interval"] == mean_fraction_interval(
        list(zip(hits, truth.sum(axis=0).tolist(), strict=True))
    )
    assert found["majority"] == np.unique(truth, axis=0, return_counts=True)[1].max() / 200
    assert found["top1_interval"] == wilson_interval(round(found["top1"] * 200), 200)
    for name in ("map", "micro_f1", "macro_f1"):
        low, high = labels[f"{name}_interval"]  # type: ignore[literal-required]
        assert low < labels[name] < high
    assert (found["confusion"], found["top5"]) == ([], None)


def test_labels_that_are_ranked_perfectly_have_an_interval_that_counts_their_images() -> None:
    truth = np.zeros((40, 3), bool)
    truth[:6, 0] = truth[6:16, 1] = truth[16:20, 2] = True
    scores = np.where(truth, 3.0, -3.0)

    found = measured(scores, truth)["labels"]

    assert found["per_label"]["a"]["ap_interval"] == pytest.approx(wilson_interval(6, 6))
    assert found["map_interval"] == pytest.approx(
        mean_fraction_interval([(6, 6), (10, 10), (4, 4)])
    )
    assert found["micro_f1_interval"] == pytest.approx(f1_with_interval(20, 20)[1])
    assert found["macro_f1_interval"] is not None
    assert found["macro_f1_interval"][0] < 0.95


def test_the_interval_of_the_mean_of_one_label_is_not_narrower_than_its_own() -> None:
    logits, truth = scored(labels=1)

    found = measured(logits, truth, "a")["labels"]

    of_label = found["per_label"]["a"]
    assert found["map"] == of_label["ap"]
    (low, high), bounds = of_label["ap_interval"] or (0, 0), found["map_interval"] or (0, 0)
    assert bounds[0] <= low < found["map"] < high <= bounds[1]
    fraction = score_interval(found["map"], int(truth.sum()))
    assert 0.5 < (high - low) / (fraction[1] - fraction[0]) < 1.5


def test_images_without_any_label_have_no_average_precision_and_no_recall() -> None:
    logits, truth = scored()[0], np.zeros((200, 3), np.int64)

    found = measured(logits, truth)

    assert (found["balanced"], found["balanced_interval"]) == (0, (0, 1))
    assert (found["majority"], found["labels"]["chance_map"], found["labels"]["map"]) == (1, 0, 0)
    assert found["labels"]["per_label"]["a"] == {"ap": None, "ap_interval": None}
    assert found["labels"]["macro_f1"] == 0


def test_metrics_of_labels_use_the_temperature_fitted_without_the_image() -> None:
    logits, truth = scored(300)
    temperature = calibrate_temperature(ScoredSet(logits, truth))

    found = calibrated_metrics(torch.from_numpy(logits), torch.from_numpy(truth), temperature)

    assert found["loss"] == pytest.approx(log_losses(logits / temperature.held_out, truth).mean())
    assert found["calibration"] is not None
    assert found["calibration"]["temperature"] is None  # one per label


def test_a_label_that_no_image_has_is_undefined_and_left_out_of_the_means() -> None:
    logits, truth = scored()
    truth[:, 2] = 0

    found = measured(logits, truth)["labels"]

    ranks = found["per_label"]
    assert ranks["c"] == {"ap": None, "ap_interval": None}
    assert found["map"] == pytest.approx(((ranks["a"]["ap"] or 0) + (ranks["b"]["ap"] or 0)) / 2)
    given = logits >= 0
    assert given[:, 2].any()
    f1 = 2 * (truth * given).sum(axis=0) / (truth.sum(axis=0) + given.sum(axis=0))
    assert found["macro_f1"] == pytest.approx(f1[:2].mean())
    assert found["chance_map"] == pytest.approx(truth[:, :2].mean())


def test_the_loss_is_the_negative_log_likelihood_of_all_labels() -> None:
    logits, truth = scored()
    chance = np.where(truth, sigmoid(logits), 1 - sigmoid(logits)).prod(axis=1)
    x, y = torch.from_numpy(logits), torch.from_numpy(truth)

    assert np.allclose(log_losses(logits, truth), -np.log(chance))
    assert mean_loss(x, y).item() == pytest.approx(-np.log(chance).mean())
    assert TrainingLoss(several=True).total(x, y).item() == pytest.approx(-np.log(chance).sum())
    smooth = TrainingLoss(several=True).total(x, y, label_smoothing=1.0)  # every target is one half
    assert smooth.item() == pytest.approx(mean_loss(x, torch.full_like(x, 0.5)).item() * 200)


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


def best_threshold(logits: Array, has_label: Array) -> float:
    """Return the threshold of one label that is chosen on all images."""
    values, _ = fit_thresholds(ScoredSet(logits[:, None], has_label[:, None]))
    return float(values[0])


def test_the_best_threshold_is_that_of_an_exhaustive_search() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    for seed in range(5):
        logits, truth = scored(60, 1, seed)
        z, y = logits[:, 0].round(1), truth[:, 0]

        found = best_threshold(z, y)

        scores = [sklearn.f1_score(y, z >= t, zero_division=0) for t in np.unique(z)]
        assert sklearn.f1_score(y, z >= found) == pytest.approx(max(scores))
        assert found not in z  # halfway between two logits


@pytest.mark.parametrize(
    ("has_label", "threshold"),
    [
        pytest.param([1, 1, 0, 0], 0.25, id="halfway between the classes"),
        pytest.param([0, 1, 1, 1], -2.5, id="below the lowest"),
        pytest.param([1, 0, 0, 0], 2.25, id="only the highest"),
        pytest.param([1, 0, 0, 1], 2.25, id="of equal scores, the highest threshold"),
    ],
)
def test_a_threshold_is_halfway_between_two_logits(has_label: list[int], threshold: float) -> None:
    logits = np.array([3.0, 1.5, -1.0, -2.0])

    assert best_threshold(logits, np.array(has_label)) == threshold
    assert best_threshold(logits[::-1], np.array(has_label[::-1])) == threshold


def test_a_rare_label_that_is_not_ranked_above_chance_is_not_assigned_to_all_images() -> None:
    has_label = np.zeros(100, int)
    has_label[[20, 60, 95]] = 1

    assert best_threshold(np.linspace(-4, -6, 100), has_label) == 0
    assert best_threshold(-np.linspace(-4, -6, 100), has_label) == 0
    assert best_threshold(3.0 * has_label - 4, has_label) == -2.5


def test_thresholds_of_validation_images_are_chosen_without_them() -> None:
    logits, truth = scored(40, 2)

    values, held_out = fit_thresholds(ScoredSet(logits, truth))

    assert values.shape == (2,)
    assert held_out.shape == (40, 2)
    assert len(np.unique(held_out[:, 0])) > 1
    assert best_threshold(logits[:, 0], np.zeros(40, np.int64)) == 0.0


def test_an_image_is_right_only_if_all_labels_are() -> None:
    logits = torch.tensor([[2.0, -2.0], [2.0, 2.0], [-2.0, -2.0]])
    truth = torch.tensor([[1, 0], [1, 0], [0, 0]])

    assert are_right(logits, truth).tolist() == [True, False, True]
    strict = np.array([0.99, 0.5])
    assert are_right(logits, truth, strict).tolist() == [False, False, True]
    assert logit_of(sigmoid(np.array([-3.0]))) == pytest.approx(-3.0)
