"""Discriminant analysis: the closed form against scikit-learn, in both of its shapes."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from vitft.features import HeadMethod, linear_logits


def solve(x: Tensor, y: Tensor, weight: Tensor, *, shrinkage: float, classes: int = 3) -> Tensor:
    """Fit a discriminant analysis that is not mixed with a logistic regression: (C, D + 1)."""
    method = HeadMethod(l2=1.0, read=1, logistic=0.0, discriminant=1.0, shrinkage=shrinkage)
    return method.fit(x, y, weight[None], classes=classes)[0]


def classes_in_noise(images: int, dimensions: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(images) % 3
    centres = torch.randn(3, dimensions, generator=generator)
    mixing = torch.randn(dimensions, dimensions, generator=generator) / dimensions**0.5
    return centres[y] + torch.randn(images, dimensions, generator=generator) @ mixing, y


@pytest.mark.parametrize(
    ("images", "dimensions"),
    [
        pytest.param(90, 12, id="more images"),
        pytest.param(30, 60, id="more dimensions"),
        pytest.param(4, 3, id="one image more than classes"),
    ],
)
@pytest.mark.parametrize("shrinkage", [0.1, 0.6])
def test_the_probabilities_are_those_of_scikit_learn(
    images: int, dimensions: int, shrinkage: float
) -> None:
    x, y = classes_in_noise(images, dimensions)

    head = solve(x, y, torch.ones(images), shrinkage=shrinkage)

    # scikit-learn divides the covariance by n, we by n - C, and shrinks towards its mean variance
    # of each class; so the same means and priors with our covariance must give our probabilities.
    means = torch.stack([x[y == c].mean(dim=0) for c in range(3)]).double()
    residual = (x.double() - means[y]).numpy()
    covariance = residual.T @ residual / (images - 3)
    mean_variance = np.trace(covariance) / dimensions
    shrunk = (1 - shrinkage) * covariance + shrinkage * mean_variance * np.eye(dimensions)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=Given(shrunk))
    theirs.fit(x.numpy(), y.numpy())
    expected = theirs.predict_proba(x.numpy())
    ours = linear_logits(x.double(), head).softmax(dim=-1).numpy()
    assert ours == pytest.approx(expected, abs=1e-4)


class Given:
    """A covariance estimator for scikit-learn that returns a known matrix."""

    def __init__(self, covariance_: np.ndarray) -> None:
        self.covariance_ = covariance_

    def fit(self, _: np.ndarray) -> "Given":
        return self

    def get_params(self, **_: bool) -> dict[str, np.ndarray]:
        return {"covariance_": self.covariance_}


def test_rows_without_weight_do_not_count() -> None:
    x, y = classes_in_noise(60, 8)
    weight = (torch.arange(60) < 45).float()

    masked = solve(x, y, weight, shrinkage=0.3)
    alone = solve(x[:45], y[:45], torch.ones(45), shrinkage=0.3)

    assert torch.allclose(masked, alone)


def test_balanced_weights_give_every_class_the_same_prior() -> None:
    x, y = classes_in_noise(90, 5)
    keep = (y != 0) | (torch.arange(90) < 12)  # four images of the first class
    x, y = x[keep], y[keep]
    counts = torch.bincount(y)

    plain = solve(x, y, torch.ones(len(y)), shrinkage=1.0)
    fair = solve(x, y, 1 / counts[y].float(), shrinkage=1.0)

    near = x[y == 0].mean(dim=0, keepdim=True).double()
    assert (
        linear_logits(near, fair).softmax(-1)[0, 0] > linear_logits(near, plain).softmax(-1)[0, 0]
    )


def test_identical_images_and_a_class_without_images_have_finite_scores() -> None:
    x, y = torch.zeros(20, 4), torch.arange(20) % 2
    x[:, 0] = y.float()

    head = solve(x, y, torch.ones(20), shrinkage=0.1)

    logits = linear_logits(x.double(), head)
    assert bool(torch.isfinite(logits).all())
    assert torch.equal(logits.argmax(dim=-1), y)


def test_a_class_without_images_changes_no_other_and_is_rarer_than_one_image() -> None:
    x, y = classes_in_noise(30, 6)

    head = solve(x, y, torch.ones(30), classes=4, shrinkage=0.3)
    without = solve(x, y, torch.ones(30), shrinkage=0.3)

    torch.testing.assert_close(head[:3], without)
    logits = linear_logits(x.double(), head)[:, 3]
    assert logits.tolist() == pytest.approx([np.log(0.5 / 30)] * 30)


def test_one_image_per_class_has_the_smallest_variance() -> None:
    x, y = torch.eye(3), torch.arange(3)

    head = solve(x, y, torch.ones(3), shrinkage=0.5)

    variance = 0.5 * 1e-6  # of identical images, times the shrinkage
    torch.testing.assert_close(head[:, :3], torch.eye(3).double() / variance)
    expected = np.log(1 / 3) - 0.5 / variance
    assert head[:, 3].tolist() == pytest.approx([expected] * 3)
