"""The penalty of a head: its sample of images and classes, and its fall with their number."""

import pytest
import torch
from torch import Tensor

from tests.features.test_head import unfolded
from vitft.features import (
    PENALTIES,
    choose_penalty,
    default_penalty,
    linear_logits,
    out_of_fold_logits,
    rough_fit,
    solve_logistic,
)


def many_classes(
    classes: int, each: int, *, width: int = 24, noise: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Draw overlapping Gaussian clouds."""
    generator = torch.Generator().manual_seed(classes)
    centres = torch.randn(classes, width, generator=generator)
    y = torch.arange(classes).repeat(each)
    return centres[y] + noise * torch.randn(len(y), width, generator=generator), y


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Return the fraction of correct predictions."""
    return (logits.argmax(dim=1) == y).float().mean().item()


def test_penalties_fall_with_the_number_of_classes_beyond_a_hundred() -> None:
    x, y = many_classes(200, 2, width=3, noise=3.0)
    few = y < 100

    _, of_200 = choose_penalty(unfolded(x, y, classes=200))
    _, of_100 = choose_penalty(unfolded(x[few], y[few], classes=100))

    assert [score["l2"] for score in of_100] == list(PENALTIES[: len(of_100)])
    assert [2 * score["l2"] for score in of_200] == list(PENALTIES[: len(of_200)])


def test_heads_of_many_classes_are_fitted_to_their_optimum() -> None:
    x, y = many_classes(400, 4)
    x, y, fresh, truth = x[:1200], y[:1200], x[1200:], y[1200:]
    one = torch.ones(1, len(y))

    rough = rough_fit(x, y, one, classes=400, l2=1e-5)[0]

    exact = solve_logistic(x, y, one, classes=400, l2=1e-5, tolerance=1e-7)[0]
    wanted = accuracy(linear_logits(fresh, exact), truth)
    assert accuracy(linear_logits(fresh, rough), truth) == pytest.approx(wanted, abs=0.01)
    assert wanted > 0.5


def test_the_default_penalty_suits_many_classes() -> None:
    x, y = many_classes(150, 5, noise=0.8)
    groups = torch.arange(len(y))

    logits = [
        out_of_fold_logits(x, y, groups, classes=150, seed=0, l2=l2)
        for l2 in (default_penalty(y, 150), default_penalty(y, 10))
    ]

    assert accuracy(logits[0], y) > accuracy(logits[1], y) + 0.05
    assert default_penalty(y, 2) == default_penalty(y, 10)
    assert default_penalty(torch.eye(150), 150) == default_penalty(y, 10)  # one loss for each label
