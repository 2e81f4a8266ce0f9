"""The linear head, compared with an independent solver."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitft.features import (
    PENALTIES,
    Folded,
    Standardizer,
    choose_penalty,
    class_balanced_weights,
    default_penalty,
    linear_logits,
    out_of_fold_logits,
    rough_fit,
    solve_head,
    solve_logistic,
    stratified_folds,
)


def blobs(per_class: int = 60, classes: int = 3, width: int = 8) -> tuple[torch.Tensor, ...]:
    """Overlapping Gaussian clouds far from the origin, with unequal scales."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(classes).repeat(per_class)
    centres = torch.randn(classes, width, generator=generator)
    x = centres[y] + torch.randn(len(y), width, generator=generator)
    return x * torch.linspace(0.1, 10, width) + 5, y


@pytest.mark.parametrize("l2", [1e-3, 1e-1])
def test_the_solution_is_scikit_learns(l2: float) -> None:
    x, y = blobs()
    scaled = Standardizer.fit(x)(x).double()

    head = solve_logistic(scaled, y, torch.ones(1, len(y)), classes=3, l2=l2, tolerance=1e-8)[0]

    # Their C multiplies the sum of losses, our l2 the penalty beside the mean: C = 1 / (n l2).
    theirs = LogisticRegression(C=1 / (len(y) * l2), tol=1e-10, max_iter=10_000)
    theirs.fit(scaled.numpy(), y.numpy())
    ours = (scaled @ head[:, :-1].T + head[:, -1]).softmax(dim=-1).numpy()
    assert np.abs(ours - theirs.predict_proba(scaled.numpy())).max() < 1e-4


def test_problems_solved_together_equal_problems_solved_alone() -> None:
    x, y = blobs()
    x = Standardizer.fit(x)(x).double()
    counted = (torch.rand(4, len(y), generator=torch.Generator().manual_seed(1)) > 0.3).float()

    together = solve_logistic(x, y, counted, classes=3, l2=0.01, tolerance=1e-7, steps=500)
    alone = torch.cat(
        [
            solve_logistic(x, y, c[None], classes=3, l2=0.01, tolerance=1e-7, steps=500)
            for c in counted
        ]
    )

    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


def test_the_head_on_raw_features_scores_like_the_head_on_scaled_ones() -> None:
    x, y = blobs()
    solved = solve_head(x, y, classes=3, l2=0.01, balanced=False, seed=0)
    scaled = Standardizer.fit(x)(x)
    head = solve_logistic(scaled.double(), y, torch.ones(1, len(y)), classes=3, l2=0.01)[0]

    raw = x @ solved.weight.T + solved.bias

    torch.testing.assert_close(
        raw, scaled @ head[:, :-1].T.float() + head[:, -1].float(), atol=1e-3, rtol=0
    )


def test_noise_is_penalised_more_than_signal() -> None:
    x, y = blobs()
    noise = torch.randn(len(y), 200, generator=torch.Generator().manual_seed(2))

    signal = solve_head(x, y, classes=3, l2=0, balanced=False, seed=0)
    buried = solve_head(noise, y, classes=3, l2=0, balanced=False, seed=0)

    assert buried.l2 > signal.l2
    assert buried.l2 == max(PENALTIES)
    assert len(signal.path) > 2


def test_views_of_an_image_are_held_out_together() -> None:
    _, y = blobs()
    noisy = torch.randn(len(y), 30, generator=torch.Generator().manual_seed(3))

    # Two identical views: were one held out without the other, noise would look learnable.
    solved = solve_head(
        torch.cat([noisy, noisy]), y.repeat(2), classes=3, l2=0, balanced=False, seed=0, views=2
    )

    assert max(tried["cv_top1"] for tried in solved.path) < 0.5  # a third is chance


def wrong_labels(seed: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixty points around three centres, a tenth of them with a wrong label."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(3).repeat(20)
    centres = torch.randn(3, 8, generator=generator)
    x = centres[truth] + noise * torch.randn(60, 8, generator=generator)
    return x, (truth + (torch.rand(60, generator=generator) < 0.1)) % 3


def unfolded(x: torch.Tensor, y: torch.Tensor, *, classes: int = 3) -> Folded:
    """Return equally weighted images, each of which is its own group."""
    return Folded(x=x, y=y, sample_weight=torch.ones(len(y)), classes=classes, seed=0)


def scikit_learns_path(
    x: torch.Tensor, y: torch.Tensor, folds: torch.Tensor
) -> list[tuple[float, float, float]]:
    """Cross-validate every penalty with scikit-learn's solver, and calibrate by a temperature."""
    path, x = [], x.double()
    for l2 in PENALTIES:
        logits = np.empty((len(y), 3))
        for fold in range(5):
            kept = folds != fold
            theirs = LogisticRegression(C=1 / (int(kept.sum()) * l2), tol=1e-8, max_iter=10_000)
            theirs.fit(x[kept].numpy(), y[kept].numpy())
            logits[~kept] = theirs.decision_function(x[~kept].numpy())
        right = float((logits.argmax(axis=1) == y.numpy()).mean())
        path.append((l2, right, calibrated_loss(logits, y.numpy())))
    return path


def calibrated_loss(logits: np.ndarray, y: np.ndarray) -> float:
    """Return the log loss at the temperature that minimises it, if 1 of n labels were random."""
    soft = np.eye(3)[y] * (1 - 1 / len(y)) + 1 / (3 * len(y))

    def loss(exponent: float, target: np.ndarray) -> float:
        return -float((target * log_softmax(10**exponent * logits, axis=1)).sum(axis=1).mean())

    return loss(minimize_scalar(loss, bounds=(-4, 2), args=(soft,)).x, np.eye(3)[y])


@pytest.mark.parametrize(
    ("seed", "noise", "chosen", "tried"),
    [
        pytest.param(1, 1.5, 1.0, 3, id="the strongest of others"),
        pytest.param(2, 1.5, 1.0, 3, id="the strongest"),
        pytest.param(6, 0.8, 0.1, 5, id="the third"),
        pytest.param(0, 0.4, 0.03, 6, id="the path goes on while the loss falls"),
    ],
)
def test_the_penalty_has_the_lowest_calibrated_loss_of_a_path_that_ends_when_it_rises(
    seed: int, noise: float, chosen: float, tried: int
) -> None:
    x, y = wrong_labels(seed, noise)
    expected = scikit_learns_path(x, y, stratified_folds(y, 5, 0))[:tried]

    l2, path = choose_penalty(unfolded(x, y))

    for ours, (penalty, top1, loss) in zip(path, expected, strict=True):
        assert ours["l2"] == penalty
        assert ours["cv_top1"] == pytest.approx(top1)
        assert ours["cv_loss"] == pytest.approx(loss, abs=2e-3)
    assert l2 == chosen == min(expected, key=lambda score: score[2])[0]
    _, path = choose_penalty(unfolded(x, y), centre=torch.zeros(3, 8))  # another head
    assert [score["l2"] for score in path[:4]] == [100, 30, 10, 3]


def test_balanced_classes_have_the_same_total_weight() -> None:
    y = torch.tensor([0] * 7 + [2] * 2 + [1])

    weights = class_balanced_weights(y, 4)  # the last class has no images

    assert [float(weights[y == label].sum()) for label in range(3)] == pytest.approx([1, 1, 1])


def test_a_balanced_head_is_scikit_learns() -> None:
    x, y = blobs()
    kept = (y != 1) | (torch.arange(len(y)) % 5 == 0)
    x, y = x[kept], y[kept]
    scaled = Standardizer.fit(x)(x).numpy()

    solved = solve_head(x, y, classes=3, l2=0.05, balanced=True, seed=0)

    theirs = LogisticRegression(
        C=1 / (len(y) * 0.05), class_weight="balanced", tol=1e-10, max_iter=10_000
    ).fit(scaled, y.numpy())
    ours = (x @ solved.weight.T + solved.bias).softmax(dim=-1).numpy()
    assert np.abs(ours - theirs.predict_proba(scaled)).max() < 1e-4


@pytest.mark.parametrize(
    ("images", "read", "is_chosen"), [(15, 4, True), (14, 4, True), (20, 8, False)]
)
def test_blocks_are_chosen_only_if_there_are_features_of_several(
    images: int, read: int, is_chosen: bool
) -> None:
    x, y = blobs(per_class=20)
    x, y = x[:images], y[:images]

    solved = solve_head(x, y, classes=3, l2=0.1, balanced=False, seed=0, read=read)

    assert bool(solved.candidates) == is_chosen


@pytest.mark.parametrize("seed", range(8))
def test_the_gradient_of_a_solution_is_below_its_limit(seed: int) -> None:
    x, y = wrong_labels(seed, 1.0)
    x, weights = x.double(), torch.ones(1, len(y))

    def gradient(heads: torch.Tensor) -> torch.Tensor:
        head = heads[0].clone().requires_grad_()
        loss = cross_entropy(x @ head[:, :-1].T + head[:, -1], y)
        (found,) = torch.autograd.grad(loss + 0.005 * head[:, :-1].square().sum(), head)
        return found.abs().max()

    exact = solve_logistic(x, y, weights, classes=3, l2=0.01)
    rough = rough_fit(x, y, weights, classes=3, l2=0.01)

    assert gradient(exact) <= 1e-6 * (1 + 1e-6)
    assert 1e-6 < gradient(rough) <= 1e-4


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


def test_a_head_fitted_in_parts_is_that_of_the_images_themselves() -> None:
    x, y = blobs(per_class=4)
    x = Standardizer.fit(x)(x)

    one, many = (
        solve_logistic(x.repeat(n, 1), y.repeat(n), torch.ones(1, 12 * n), classes=3, l2=0.1)
        for n in (1, 1500)
    )

    torch.testing.assert_close(many, one, rtol=1e-3, atol=1e-4)


def test_a_large_matrix_is_standardised_in_parts() -> None:
    x = torch.arange(4.0).repeat(25_001)[:, None].expand(-1, 1000)  # more than 10^8 values

    found = Standardizer.fit(x)

    torch.testing.assert_close(found.mean, torch.full((1000,), 1.5))
    torch.testing.assert_close(found.std, torch.full((1000,), 1.25**0.5))


def test_a_head_is_shrunk_towards_another_one_as_far_as_that_helps() -> None:
    x, y = blobs(per_class=400)
    good = solve_head(x, y, classes=3, balanced=False, seed=0).weight

    def right(weight: Tensor | None) -> float:
        head = solve_head(x[:15], y[:15], classes=3, balanced=False, seed=0, centre=weight)
        return accuracy(x @ head.weight.T + head.bias, y)

    assert right(good) > right(None) > right(-good) - 0.05


def test_the_penalty_of_a_solution_is_on_the_distance_from_another_head() -> None:
    x, y = blobs()
    x, ones = Standardizer.fit(x)(x).double(), torch.ones(1, len(y))
    centre = torch.randn(3, x.shape[1], generator=torch.Generator().manual_seed(1)).double()

    head = solve_logistic(x, y, ones, classes=3, l2=0.3, centre=centre, tolerance=1e-8)[0]

    head.requires_grad_()
    loss = cross_entropy(x @ head[:, :-1].T + head[:, -1], y)
    (loss + 0.15 * (head[:, :-1] - centre).square().sum()).backward()
    assert head.grad is not None
    assert head.grad.abs().max() < 1e-6
