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
    find_mislabels,
    score_given_labels,
    solve_head,
    solve_logistic,
    stratified_folds,
)


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
        x, y, ("a", "b", "c"), method=HeadMethod(l2=(0.1, 0.1, 0.1), read=8), balanced=False, seed=0
    )

    results, held_out = found
    assert held_out.logits.shape == (300, 3)
    assert results["top1"] == pytest.approx(
        ((held_out.logits >= 0) == y.bool()).all(dim=1).float().mean().item()
    )


def test_a_wrong_and_a_missing_label_are_found() -> None:
    x, y = features(400)
    x[:, :3] = 4 * (2 * y - 1) + x[:, :3] / 10  # clear cases
    wrong = y.clone()
    missing = 10 + int(torch.nonzero(y[10:, 2])[0])
    wrong[5, 0], wrong[9, 1], wrong[missing, 2] = 1 - wrong[5, 0], 1 - wrong[9, 1], 0
    logits = 2 * x[:, :3]

    scores = score_given_labels(logits, x, wrong, torch.arange(400))
    found = find_mislabels(scores, wrong, [[str(i)] for i in range(400)], ("a", "b", "c"))

    named = {one["path"]: (one["label"], one["suggested"]) for one in found}
    words = {1.0: ("a", "not a"), 0.0: ("not a", "a")}
    assert named["5"] == words[wrong[5, 0].item()]
    assert named[str(missing)] == ("not c", "c")
    assert set(named) == {"5", "9", str(missing)}
    assert all(0 <= one["given_probability"] < 0.03 for one in found)
    assert all(0.97 < one["suggested_probability"] <= 1 for one in found)
