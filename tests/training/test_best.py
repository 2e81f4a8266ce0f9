"""Which epoch is the best: accuracy beyond its noise, otherwise the loss; and its weights."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from vitft.metrics import Metrics, score_interval
from vitft.system import RunError
from vitft.training import BestWeights


def metrics(top1: float, loss: float, images: int = 100) -> Metrics:
    bounds = score_interval(top1, images)
    return cast("Metrics", {"top1": top1, "top1_interval": bounds, "loss": loss, "images": images})


@pytest.mark.parametrize(
    ("new", "best", "expected"),
    [
        pytest.param((0.90, 0.5), (0.80, 0.4), True, id="far more accurate"),
        pytest.param((0.80, 0.3), (0.90, 0.4), False, id="far less accurate"),
        pytest.param((0.91, 0.5), (0.90, 0.4), False, id="one image, worse loss"),
        pytest.param((0.89, 0.3), (0.90, 0.4), True, id="one image, better loss"),
        pytest.param((0.90, 0.3), (0.90, 0.4), True, id="equal, better loss"),
        pytest.param((0.90, 0.4), (0.90, 0.4), False, id="equal in both"),
        pytest.param((0.99, 0.1), (1.00, 0.2), True, id="one image below 100%"),
        # the standard error is 0.30 points with 10,000 images
        pytest.param((0.904, 0.5, 10_000), (0.9, 0.4, 10_000), True, id="many images, 0.4"),
        pytest.param((0.902, 0.5, 10_000), (0.9, 0.4, 10_000), False, id="many images, 0.2"),
    ],
)
def test_accuracy_decides_beyond_its_noise_and_the_loss_within_it(
    new: Any, best: Any, expected: bool
) -> None:
    found = BestWeights(small_model())
    for one in (best, new):
        found.update(metrics(*one))

    assert found.results["best_epoch"] == (2 if expected else 1)
    assert (found.results["epochs"], found.results["loss"]) == (2, (best, new)[expected][1])


def test_the_best_epoch_does_not_drift_below_the_highest_accuracy() -> None:
    model = nn.Linear(2, 2)
    best = BestWeights(cast("Any", model))

    for top1, loss in [(0.90, 0.50), (0.88, 0.45), (0.86, 0.40), (0.84, 0.35)]:
        best.update(metrics(top1, loss))  # one standard error of 90% of 100 images is 3 points

    assert best.results["best_epoch"] == 2
    assert best.results["epochs"] == 4


@pytest.mark.parametrize(("interval", "best"), [((0.6, 0.97), 2), ((0.8, 0.93), 1)])
def test_the_noise_counts_groups(interval: tuple[float, float], best: int) -> None:
    found = BestWeights(small_model())

    found.update(metrics(0.95, 0.5))
    found.update(cast("Metrics", {**metrics(0.88, 0.4), "top1_interval": interval}))

    assert found.results["best_epoch"] == best


def small_model() -> Any:
    """Return a model of which the second layer is frozen, with running statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].requires_grad_(False)
    return model


def test_what_was_saved_is_loaded() -> None:
    best, again = BestWeights(small_model()), BestWeights(small_model())
    for loss in (0.4, 0.3, 0.6, 0.35):
        best.update(metrics(0.5, loss))
    assert not again.results

    again.facts, again.weights = best.facts, best.weights
    again.restore()

    assert again.results == best.results
    assert torch.equal(again.model[0].weight, best.weights["0.weight"])
    again.update(metrics(0.5, 0.5))
    assert (again.facts["since"], again.results["best_epoch"]) == (3, 2)


@pytest.mark.parametrize("change", [{}, {"0.weight": torch.zeros(1)}, {"5.weight": torch.zeros(3)}])
def test_best_weights_of_another_model_are_refused(change: dict[str, torch.Tensor]) -> None:
    best = BestWeights(small_model())
    best.update(metrics(0.5, 0.4))
    kept = {name: value for name, value in best.weights.items() if change or name != "0.bias"}
    best.weights = {**kept, **change}

    with pytest.raises(RunError, match="does not fit this model"):
        best.restore()
