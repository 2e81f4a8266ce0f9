"""Classification targets, and the loss and correctness of predictions for each kind of target.

There are two kinds of targets. If every image has exactly one class, targets are class indices
(n,), and the probabilities of the classes sum to 1 (softmax). For multi-label data, targets are 0
or 1 for each label (n, C), and each label has its own probability (sigmoid). The loss of an image
is the negative log-likelihood of its target or, for multi-label data, the sum over all labels.

Notation: n images, C classes or labels; `logits` is (n, C).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.metrics.calibration import logit_of
from vitft.metrics.intervals import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoss:
    """Training loss for one kind of target."""

    class_weights: Tensor | None = None
    """Loss factors of the classes (C,), with mean 1 over the images; None if all are 1."""
    several: bool = False
    """Whether the targets are multi-label: 0 or 1 for each label."""

    def total(self, logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the total loss of the images in nats; targets may also be class probabilities."""
        if self.several:
            return losses(logits, targets, label_smoothing=label_smoothing).sum()
        return F.cross_entropy(
            logits,
            targets,
            weight=self.class_weights,
            label_smoothing=label_smoothing,
            reduction="sum",
        )


DEFAULT_LOSS = TrainingLoss()


def losses(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the loss of each image in nats (n,), given multi-label targets (n, C).

    With label smoothing s, a target y becomes y (1 - s) + s / 2.
    """
    smooth = targets.to(logits) * (1 - label_smoothing) + label_smoothing / 2
    found = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none")
    return found.sum(dim=1)


def label_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of each label in nats (C,), given multi-label targets (n, C)."""
    found = F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none")
    return found.mean(dim=0)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the images in nats, for either kind of target."""
    if targets.ndim == 1:
        return F.cross_entropy(logits, targets)
    return losses(logits, targets).mean()


def are_right(logits: Tensor, targets: Tensor, thresholds: Floats | float = 0.5) -> Tensor:
    """Return whether the prediction for each image is correct (n,), for either kind of target.

    A multi-label prediction is correct if exactly the image's labels reach their thresholds, which
    are probabilities.
    """
    if targets.ndim == 1:
        return logits.argmax(dim=-1) == targets
    return (chosen(logits, thresholds) == targets.bool()).all(dim=-1)


def fraction_right(right: Tensor) -> float:
    """Return the accuracy, given which predictions are right (n,).

    It is computed in float64, so that every place rounds it in the same way: in float32, 71 of 80
    is less than 0.8875.
    """
    return int(right.sum()) / len(right)


def chosen(logits: Tensor, thresholds: Floats | float = 0.5) -> Tensor:
    """Return whether each label reaches its threshold (n, C).

    `thresholds` are probabilities: a number, or an array (C,) or (n, C).
    """
    return logits.double() >= torch.as_tensor(logit_of(thresholds))
