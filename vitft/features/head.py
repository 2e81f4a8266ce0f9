"""The linear head of a classifier on fixed features, with a cross-validated penalty."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitft.features.cross_validation import (
    CV_IMAGES,
    ROUGH_TOLERANCE,
    PenaltyScore,
    choose_penalty,
    stratified_subset,
)
from vitft.features.logistic import (
    Standardizer,
    class_balanced_weights,
    is_large,
    solve_logistic,
)

FLOAT64_VALUES = 10**7
"""Values in a feature matrix up to which a head is solved in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedHead:
    """A linear layer on raw features and how its penalty was chosen."""

    weight: Tensor
    """(C, D), float32."""
    bias: Tensor
    """(C,), float32."""
    l2: float
    path: Sequence[PenaltyScore]
    """Empty if the penalty was given."""


def solve_head(
    x: Tensor,
    y: Tensor,
    *,
    classes: int,
    l2: float,
    balanced: bool,
    seed: int,
    views: int = 1,
    groups: Tensor | None = None,
) -> SolvedHead:
    """Fit a linear head.

    Args:
        x: Raw features (n, D), float32; `views` blocks of the same images in the same order.
        y: Class indices (n,).
        classes: C; a class may have no rows.
        l2: Penalty on standardised features; 0 chooses it by cross-validation.
        balanced: Give every class the same total weight.
        seed: Seed of the folds.
        views: Number of blocks of views among the rows.
        groups: Near-duplicates share a number, (n / views,).
    """
    standardizer = Standardizer.fit(x)
    weights = (class_balanced_weights(y, classes) if balanced else torch.ones(len(y)))[None]
    path: list[PenaltyScore] = []
    if l2 == 0:
        images = len(y) // views
        subset = stratified_subset(y[:images], CV_IMAGES, seed)
        rows = torch.cat([subset + v * images for v in range(views)])
        l2, path = choose_penalty(
            standardizer(x[rows]),
            y[rows],
            weights[:, rows],
            classes=classes,
            seed=seed,
            views=views,
            groups=None if groups is None else groups[subset],
        )
    fit = functools.partial(solve_logistic, y=y, sample_weight=weights, classes=classes, l2=l2)
    if is_large(x):  # read in place: memory-mapped features stay on disk
        head = fit(x, standardizer=standardizer)[0]
    else:
        scaled = standardizer(x)
        rough = fit(scaled, steps=60, tolerance=ROUGH_TOLERANCE)
        exact = scaled.double() if x.numel() <= FLOAT64_VALUES else scaled
        head = fit(exact, start=rough)[0]
    weight, bias = standardizer.unscale_head(head[:, :-1].float(), head[:, -1].float())
    return SolvedHead(weight=weight, bias=bias, l2=l2, path=path)
