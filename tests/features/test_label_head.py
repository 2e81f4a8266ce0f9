"""Heads with one logistic output per label, solved on features."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vitft.features import (
    HeadMethod,
    Standardizer,
    cross_validate,
    solve_head,
    solve_logistic,
    stratified_folds,
)
from vitft.metrics import Outputs


def features(images: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features (n, 8) and labels (n, 3) that depend on them, with images of none."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 1, (images, 8))
    logits = 2 * x[:, :3] + random.normal(0, 1, (images, 3)) - (0, 1, 2)
    return torch.from_numpy(x).float(), torch.from_numpy(logits > 0).float()


def test_the_solution_is_that_of_scikit_learn_for_each_label() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = features()
    scaled, penalties = Standardizer.fit(x)(x).double(), (0.01, 0.1, 1.0)

    (head,) = solve_logistic(scaled, y, torch.ones(1, len(x)), classes=3, l2=penalties)

    for i, l2 in enumerate(penalties):
        theirs = linear.LogisticRegression(C=1 / (l2 * len(x)), tol=1e-10, max_iter=5000)
        theirs.fit(scaled.numpy(), y[:, i].numpy())
        assert np.allclose(head[i, :-1], theirs.coef_[0], atol=2e-4)
        assert head[i, -1].item() == pytest.approx(theirs.intercept_[0], abs=2e-4)


def test_the_penalty_of_each_label_is_chosen_and_the_head_reads_raw_features() -> None:
    x, y = features()
    y[:, 2] = (torch.arange(len(x)) % 10 == 0).float()  # unrelated to the features

    solved = solve_head(5 * x + 3, y, classes=3, l2=0.0, balanced=False, seed=0)

    assert isinstance(solved.method.l2, tuple)
    assert solved.method.l2[2] > solved.method.l2[0]
    given = (5 * x + 3) @ solved.weight.T + solved.bias >= 0
    assert (given[:, 0] == y[:, 0].bool()).float().mean() > 0.85


def test_the_folds_are_stratified_by_label_and_do_not_divide_groups() -> None:
    _, y = features()
    groups = torch.arange(len(y)) // 3

    fold_id = stratified_folds(y, 5, 0, groups)

    per_fold = torch.stack([y[fold_id == k].sum(dim=0) for k in range(5)])
    assert ((per_fold - y.sum(dim=0) / 5).abs() <= 3).all()
    assert all(len(fold_id[groups == g].unique()) == 1 for g in range(100))


def test_cross_validation_scores_every_image_by_heads_not_fitted_to_it() -> None:
    x, y = features()

    found: Any = cross_validate(
        x,
        y,
        Outputs.of("abc", several=True),
        method=HeadMethod(l2=(0.1, 0.1, 0.1), read=8),
        balanced=False,
        seed=0,
    )

    results, (_, logits) = found
    assert logits.shape == (300, 3)
    assert results["top1"] == pytest.approx(
        ((logits >= 0) == y.bool()).all(dim=1).float().mean().item()
    )
