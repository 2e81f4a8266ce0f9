"""Which epoch is the best: accuracy beyond its noise, otherwise the loss."""

import math
from typing import cast

import pytest

from vitft.metrics.results import Metrics
from vitft.training.best import accuracy_noise, is_better


def metrics(top1: float, loss: float, images: int = 100) -> Metrics:
    return cast("Metrics", {"top1": top1, "loss": loss, "images": images})


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
    assert is_better(new, best) is expected


def test_the_noise_is_the_binomial_standard_error() -> None:
    assert accuracy_noise(0.5, 98) == pytest.approx(math.sqrt(0.25 / 100))
    assert accuracy_noise(1.0, 98) == pytest.approx(math.sqrt(0.99 * 0.01 / 100))
