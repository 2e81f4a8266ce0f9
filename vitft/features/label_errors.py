"""Detection of probable label errors from out-of-fold predictions and nearest neighbours.

The probabilities of a linear head that was not fitted to an image and the votes of its nearest
neighbours are multiplied; the product ranks wrong labels better than either factor, and better
than the thresholds of confident learning (docs/experiments.md).

Letters: n images, C classes, D dimensions of a feature; `x` is (n, D), `y` is (n,).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitft.features.head import (
    CV_FOLDS,
    CV_IMAGES,
    choose_penalty,
    held_out_logits,
    stratified_folds,
    stratified_subset,
)
from vitft.features.logistic import Standardizer, solve_logistic
from vitft.features.neighbours import votes_outside_group
from vitft.metrics.results import Mislabel

ODDS = 30.0
"""Ratio of the probabilities of another label and the given one from which it is reported."""
DEFAULT_L2 = 0.1
"""Penalty where choosing one by cross-validation would take too long."""


@dataclass(frozen=True, slots=True)
class LabelError:
    """An image whose label is probably wrong."""

    row: int
    suggested: int  # class index
    given_probability: float
    suggested_probability: float

    def to_mislabel(self, path: str, label: int, classes: Sequence[str]) -> Mislabel:
        """Return the entry of audit.json for a file with this image."""
        return {
            "path": path,
            "label": classes[label],
            "suggested": classes[self.suggested],
            "given_probability": self.given_probability,
            "suggested_probability": self.suggested_probability,
        }


def find_label_errors(probabilities: Tensor, y: Tensor) -> list[LabelError]:
    """Return the images whose label is far less likely than another, the most certain first."""
    given = probabilities.gather(1, y[:, None])[:, 0]
    most, best = probabilities.max(dim=-1)
    rows = torch.nonzero(most >= ODDS * given).flatten().tolist()
    found = [LabelError(i, int(best[i]), float(given[i]), float(most[i])) for i in rows]
    return sorted(found, key=lambda e: (e.given_probability / e.suggested_probability, e.row))


def label_probabilities(
    logits: Tensor, x: Tensor, y: Tensor, groups: Sequence[int] | Tensor
) -> Tensor:
    """Return class probabilities from head and neighbours together, (n, C), rows sum to 1.

    `logits` (n, C) are by heads that were not fitted to the image. Near-duplicates, which share a
    number in `groups` (n,), do not vote for each other.
    """
    votes = votes_outside_group(x, y, torch.as_tensor(groups), classes=logits.shape[1])
    product = logits.softmax(dim=-1) * (votes + 0.05)  # twenty neighbours cannot exclude a class
    return product / product.sum(dim=-1, keepdim=True)


def out_of_fold_logits(
    x: Tensor,
    y: Tensor,
    groups: Tensor,
    *,
    classes: int,
    seed: int,
    sample_weight: Tensor | None = None,
    l2: float | None = None,
) -> Tensor:
    """Return the logits (n, C) of each image by a head fitted to neither it nor a duplicate.

    Near-duplicates share a number in `groups` (n,). `sample_weight` (n,) is 1 by default, and the
    penalty `l2` is chosen by cross-validation.
    """
    sample_weight = torch.ones(len(y)) if sample_weight is None else sample_weight
    scaled = Standardizer.fit(x)(x)
    if l2 is None:
        rows = stratified_subset(y, CV_IMAGES, seed)
        l2, _ = choose_penalty(
            scaled[rows],
            y[rows],
            sample_weight[None, rows],
            classes=classes,
            seed=seed,
            groups=groups[rows],
        )
    fold_id = stratified_folds(y, CV_FOLDS, seed, groups)
    kept = torch.stack([fold_id != k for k in range(CV_FOLDS)]).float() * sample_weight
    heads = solve_logistic(scaled, y, kept, classes=classes, l2=l2, steps=60, tolerance=3e-4)
    return held_out_logits(scaled, heads, fold_id)
