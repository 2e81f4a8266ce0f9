"""Class probabilities from a few answers: a linear head on the directions of frozen features.

The head is the sum of a logistic regression, which is better with many answers, and the directions
of the class means, which are better with one or two answers per class. The head is then also fitted
to its own guesses for unlabelled pictures, with small weights.

Notation: n pictures, D feature dimensions, C classes, m answers, u unlabelled pictures.

Source: pseudo-labels by Lee 2013, "Pseudo-Label: The Simple and Efficient Semi-Supervised Learning
Method for Deep Neural Networks".
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.logistic import class_balanced_weights, linear_logits, rough_fit
from vitft.features.penalty import default_penalty

_MEAN_SCALE = 5.0
"""Factor that brings cosine similarities to the scale of the regression's logits."""

PSEUDO_LABELLED = 500
"""Maximum number of unlabelled pictures to which the head is fitted."""
PSEUDO_WEIGHT, PSEUDO_FITS = 0.05, 3
"""Weight of a guess with probability 1, in units of one answer, and number of fits to guesses."""


def self_trained_head(
    z: Tensor, y: Tensor, weights: Tensor, unlabelled: Tensor, *, classes: int
) -> Tensor:
    """Fit a head to labelled pictures, then also to its own guesses for unlabelled pictures.

    Args:
        z: Directions (m, D) of the labelled pictures.
        y: Class indices (m,).
        weights: Weight of each answer (m,), before the classes are balanced.
        unlabelled: Directions (u, D) of unlabelled pictures.
        classes: Number of classes.

    Returns:
        A head as returned by `guess_head`.
    """
    head = guess_head(z, y, weights, classes=classes)
    for _ in range(PSEUDO_FITS if len(unlabelled) else 0):
        probability, guessed = guess(unlabelled, head).max(dim=1)
        head = guess_head(
            torch.cat([z, unlabelled]),
            torch.cat([y, guessed]),
            torch.cat([weights, PSEUDO_WEIGHT * probability]),
            classes=classes,
        )
    return head


def guess_head(z: Tensor, y: Tensor, weights: Tensor, *, classes: int) -> Tensor:
    """Fit a head to labelled pictures, giving every class with answers the same total weight.

    Args:
        z: Directions (m, D) of the labelled pictures, each of length 1.
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
        l2 = default_penalty(own, len(present))
        fitted = rough_fit(scale * z, own, weights[None], classes=len(present), l2=l2)
        head = fitted[0].float()
        head[:, :-1] *= scale
    sums = torch.zeros(len(present), z.shape[1]).index_add_(0, own, weights[:, None] * z)
    head[:, :-1] += _MEAN_SCALE * F.normalize(sums, dim=1)
    every = torch.zeros(classes, z.shape[1] + 1)
    every[:, -1] = -torch.inf
    every[present] = head
    return every


def guess(z: Tensor, head: Tensor) -> Tensor:
    """Return the class probabilities (n, C) of pictures with the directions `z` (n, D)."""
    return linear_logits(z, head).softmax(dim=1)
