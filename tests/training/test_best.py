"""Which epoch is the best: accuracy beyond its noise, otherwise the loss; and its weights."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from vitft.metrics import Metrics, score_interval
from vitft.system import RunError
from vitft.training import BestWeights, is_better


def metrics(top1: float, loss: float, images: int = 100) -> Metrics:
    bounds = score_interval(top1, images)
    return cast("Metrics", {"top1": top1, "top1_interval": bounds, "loss": loss, "images": images})


@pytest.mark.parametrize(
    ("new", "best", "expected"),
    [
        pytest.param(metrics(0.90, 0.5), metrics(0.80, 0.4), True, id="far more accurate"),
        pytest.param(metrics(0.80, 0.3), metrics(0.90, 0.4), False, id="far less accurate"),
        pytest.param(metrics(0.91, 0.5), metrics(0.90, 0.4), False, id="one image, worse loss"),
        pytest.param(metrics(0.89, 0.3), metrics(0.90, 0.4), True, id="one image, better loss"),
        pytest.param(metrics(0.90, 0.3), metrics(0.90, 0.4), True, id="equal, better loss"),
        pytest.param(metrics(0.90, 0.4), metrics(0.90, 0.4), False, id="equal in both"),
        pytest.param(metrics(0.99, 0.1), metrics(1.00, 0.2), True, id="one image below 100%"),
        # the standard error is 0.30 points with 10,000 images
        pytest.param(
            metrics(0.904, 0.5, 10_000), metrics(0.9, 0.4, 10_000), True, id="many images, 0.4"
        ),
        pytest.param(
            metrics(0.902, 0.5, 10_000), metrics(0.9, 0.4, 10_000), False, id="many images, 0.2"
        ),
    ],
)
def test_accuracy_decides_beyond_its_noise_and_the_loss_within_it(
    new: Metrics, best: Metrics, expected: bool
) -> None:
    highest = max(new["top1"], best["top1"])

    assert is_better(new, best, highest) is expected


def test_the_best_epoch_does_not_drift_below_the_highest_accuracy() -> None:
    model = nn.Linear(2, 2)
    best = BestWeights(cast("Any", model))

    for top1, loss in [(0.90, 0.50), (0.88, 0.45), (0.86, 0.40), (0.84, 0.35)]:
        best.update(metrics(top1, loss))  # one standard error of 90% of 100 images is 3 points

    assert best.results["best_epoch"] == 2
    assert best.results["epochs"] == 4


def test_the_noise_counts_groups() -> None:
    few = cast("Metrics", {**metrics(0.88, 0.4), "top1_interval": (0.6, 0.97)})  # few groups

    assert is_better(few, metrics(0.95, 0.5), 0.95)
    assert not is_better(metrics(0.88, 0.4), metrics(0.95, 0.5), 0.95)


def small_model() -> Any:
    """Return a model of which the second layer is frozen, with running statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].requires_grad_(False)
    return model


EPOCHS = [metrics(0.5, 0.4), metrics(0.5, 0.3), metrics(0.5, 0.6), metrics(0.5, 0.35)]


def test_what_was_saved_is_loaded() -> None:
    best, again = BestWeights(small_model()), BestWeights(small_model())
    assert best.facts()["figures"] is None
    again.load(best.facts(), {}, "")
    assert not again.results
    assert (again.head_results, again.epochs) == (None, 0)
    for found in EPOCHS:
        best.update(found)
    best.head_results = cast("Any", {"l2": 0.1})

    again.load(best.facts(), best.weights, "best.safetensors")

    assert again.results == best.results
    assert (again.epochs, again.epochs_since_best) == (4, 2)
    assert again.weights == best.weights
    assert again.file == "best.safetensors"
    again.update(metrics(0.5, 0.5))
    assert (again.epochs_since_best, again.results["best_epoch"]) == (3, 2)


def test_weights_of_another_shape_are_refused_with_the_name_of_their_file() -> None:
    best = BestWeights(small_model())
    best.update(EPOCHS[0])
    weights = {"0.weight": torch.zeros(1, 2)}

    best.load(best.facts(), weights, "best-0.safetensors")
    with pytest.raises(
        RunError, match=r"weights in best-0\.safetensors do not fit .* 0\.weight has"
    ):
        best.restore()
    best.load(best.facts(), weights, "")
    with pytest.raises(RunError, match=r"weights in resume/ do not fit"):
        best.restore()
