"""Targets of classification, and what depends on their kind: the loss and when images are right.

There are two kinds of targets. If every image has exactly one class, targets are class indices
(n,), and the probabilities of the classes sum to 1 (softmax). If an image may have several labels,
targets are 0 or 1 for each label (n, C), and each label has its own probability (sigmoid). The loss
of an image is the negative log-likelihood of its class or, summed over the labels, of its labels.

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
    """Training loss for one kind of targets."""

    class_weights: Tensor | None = None
    """Loss factors of the classes (C,), with mean 1 over the images; None if all are 1."""
    several: bool = False
    """Whether the targets are 0 and 1 for each of several labels."""

    def total(self, logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the sum of the losses of images in nats; class targets may be probabilities."""
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
    """Return the loss of each image in nats (n,), given targets for several labels (n, C).

    With label smoothing s, a target y becomes y (1 - s) + s / 2.
    """
    smooth = targets.to(logits) * (1 - label_smoothing) + label_smoothing / 2
    found = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none")
    return found.sum(dim=1)


def label_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of each of several labels in nats: (C,)."""
    found = F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none")
    return found.mean(dim=0)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of images in nats, for either kind of targets."""
    if targets.ndim == 1:
        return F.cross_entropy(logits, targets)
    return losses(logits, targets).mean()


def are_right(logits: Tensor, targets: Tensor, thresholds: Floats | float = 0.5) -> Tensor:
    """Return whether the prediction for each image is right (n,), for either kind of targets.

    Several labels are right if exactly the image's labels reach their threshold, a probability.
    """
    if targets.ndim == 1:
        return logits.argmax(dim=-1) == targets
    return (chosen(logits, thresholds) == targets.bool()).all(dim=-1)


def chosen(logits: Tensor, thresholds: Floats | float = 0.5) -> Tensor:
    """Return whether each label reaches its threshold (n, C).

    `thresholds` are probabilities: a number, or an array (C,) or (n, C).
    """
    return logits.double() >= torch.as_tensor(logit_of(thresholds))
