"""Multi-label thresholds: the minimum probability at which each label is assigned to an image.

The thresholds maximise the F1 score of each label on images to which the model was not fitted.

Notation: n images, C labels.
"""

from dataclasses import dataclass

import numpy as np

from vitft.metrics.calibration import CALIBRATION_FOLDS, Ints, ScoredSet
from vitft.metrics.intervals import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _FittedThresholds:
    """Minimum logit at which each label is assigned, before temperature scaling."""

    value: Floats  # (C,)
    held_out: Floats
    """For each validation image, the thresholds chosen without it (n, C), for unbiased metrics."""


def fit_thresholds(validation: ScoredSet, training: ScoredSet | None = None) -> _FittedThresholds:
    """Choose the thresholds on validation images and any cross-validated training predictions."""
    logits, labels, _ = validation
    if training is not None:
        logits = np.concatenate([logits, training.logits])
        labels = np.concatenate([labels, training.labels])
    images, more = len(validation), len(labels) - len(validation)
    fold_id = np.random.default_rng(0).permutation(images) % min(CALIBRATION_FOLDS, images)
    held_out = np.empty((images, labels.shape[1]))
    for k in range(fold_id.max() + 1):
        rest = np.concatenate([fold_id != k, np.ones(more, bool)])
        held_out[fold_id == k] = _best_thresholds(logits[rest], labels[rest])
    return _FittedThresholds(value=_best_thresholds(logits, labels), held_out=held_out)


def _best_thresholds(logits: Floats, labels: Ints) -> Floats:
    """Return the logit thresholds (C,) that maximise the F1 scores of the labels.

    `labels` (n, C) is 1 where an image has a label, else 0. A threshold is halfway between two
    logits. The threshold of a label that no image has is 0.
    """
    return np.array([best_threshold(z, y) for z, y in zip(logits.T, labels.T, strict=True)])


def best_threshold(logits: Floats, has_label: Ints) -> float:
    """Return the logit threshold that maximises the F1 score of one label."""
    total = int(has_label.sum())
    if not total:
        return 0.0
    order = np.argsort(-logits, kind="stable")
    ranked = logits[order]
    number = np.arange(1, len(ranked) + 1)
    f1 = 2 * np.cumsum(has_label[order]) / (number + total)
    is_tied = np.append(ranked[1:] == ranked[:-1], False)  # no threshold can separate the two
    best = int(np.where(is_tied, -1.0, f1).argmax())
    below = ranked[best + 1] if best + 1 < len(ranked) else ranked[best] - 1
    return float((ranked[best] + below) / 2)
