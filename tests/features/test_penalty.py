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
    logistic,
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


@pytest.mark.parametrize("processes", [2, 4])
def test_sums_over_the_rows_have_the_same_bits_for_1_2_and_4_processes(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(logistic, "CHUNK_ROWS", 7)
    x, y = many_classes(5, 30)
    x, generator = x.double(), torch.Generator().manual_seed(0)  # sums of float32 would be exact
    weights = torch.rand(2, len(y), generator=generator, dtype=torch.float64)
    flat = torch.randn(2, 5 * 25, generator=generator, dtype=torch.float64)

    def objective(own: Tensor, labels: Tensor, weight: Tensor) -> logistic.HeadObjective:
        return problem.objective(own, labels, weight, stride=count)

    found = []
    for count in (1, processes):
        problem = logistic.Problem(
            classes=5,
            l2=0.1,
            total_weight=weights.sum(dim=1, keepdim=True),
            standardizer=None,
            processes=count,
        )
        parts = [
            objective(x[7 * rank :], y[7 * rank :], weights[:, 7 * rank :]).sums(flat)
            for rank in range(count)
        ]
        found.append([logistic.add_in_pairs(terms) for terms in zip(*parts, strict=True)])

    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


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
