"""Class probabilities from a few answers: a linear head on the directions of frozen features.

The head is the sum of a logistic regression, which is better with many answers, and of the
directions of the class means, which are better with one or two answers per class.

Notation: n pictures, D feature dimensions, C classes, m answers.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.head import DEFAULT_L2
from vitft.features.logistic import class_balanced_weights, linear_logits, rough_fit

MEAN_SCALE = 5.0
"""Factor of the cosine to a class mean, which makes the logits as large as the regression's."""


def guess_head(z: Tensor, y: Tensor, weights: Tensor, *, classes: int) -> Tensor:
    """Fit a head to answered pictures, giving every class with answers the same total weight.

    Args:
        z: Directions (m, D) of the answered pictures, each of length 1.
        y: Class indices (m,).
        weights: Weight of each answer (m,), before the classes are balanced.
        classes: Number of classes.

    Returns:
        Weights and, in the last column, biases of the classes, (C, D + 1). Classes without answers
        have a bias of minus infinity, and therefore a probability of 0.
    """
    present, own = torch.unique(y, return_inverse=True)
    scale = math.sqrt(z.shape[1])
    weights = weights * class_balanced_weights(own, len(present))
    head = torch.zeros(len(present), z.shape[1] + 1)
    if len(present) > 1:
        fitted = rough_fit(scale * z, own, weights[None], classes=len(present), l2=DEFAULT_L2)
        head = fitted[0].float()
        head[:, :-1] *= scale
    sums = torch.zeros(len(present), z.shape[1]).index_add_(0, own, weights[:, None] * z)
    head[:, :-1] += MEAN_SCALE * F.normalize(sums, dim=1)
    every = torch.zeros(classes, z.shape[1] + 1)
    every[:, -1] = -torch.inf
    every[present] = head
    return every


def guess(z: Tensor, head: Tensor) -> Tensor:
    """Return the class probabilities (n, C) of pictures with the directions `z` (n, D)."""
    return linear_logits(z, head).softmax(dim=1)
