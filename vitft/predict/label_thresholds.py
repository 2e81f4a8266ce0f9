"""Choice of a threshold for each label of a multi-label model, given a requested precision.

The rule, defined in `threshold`, is applied to each label separately. It uses only images that were
not used to fit the model; a prediction is right if the image has the label.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitft.metrics.calibration import sigmoid
from vitft.predict.threshold import Answers, smallest_cover
from vitft.predict.validation import (
    read_classes,
    read_logits,
    read_split,
    read_training_predictions,
)
from vitft.system.errors import RunError, UsageError
from vitft.system.spelling import Spelling, option
from vitft.system.text import count, listing, percent

log = logging.getLogger(__name__)

_NEVER = 1.0
"""Threshold of a label that is never assigned, because no threshold reaches the precision."""


def choose_label_thresholds(
    run: Path, precision: float, labels: Sequence[str], spell: Spelling = option
) -> tuple[float, ...]:
    """Return and log the smallest threshold at which each label reaches a requested precision.

    A label that does not reach the precision at any threshold is never assigned.

    Raises:
        RunError: The run has no validation predictions, or a file of the run is damaged.
        UsageError: No label reaches the precision.
    """
    split = read_split(run, read_classes(run))
    logits = read_logits(run, len(split.val), len(labels)) if split.val else None
    if logits is None or not split.labels:
        raise RunError(
            f"cannot choose thresholds: {run} has no validation predictions",
            fix=f"set one threshold directly, e.g. {spell('threshold', 0.8)}",
        )
    probability, has_label = read_training_predictions(run)
    values = sigmoid(logits.astype(np.float64))
    truth = np.asarray(split.targets(split.val))
    if len(probability):
        values, truth = np.concatenate([values, probability]), np.concatenate([truth, has_label])
    thresholds, unreachable = [], []
    for i, name in enumerate(labels):
        answers = Answers.sorted(values[:, i].tolist(), truth[:, i].tolist())
        covered = smallest_cover(answers, precision)
        if not covered:
            unreachable.append(name)
            thresholds.append(_NEVER)
            continue
        thresholds.append(float(answers.probability[covered - 1]))
        right = int(answers.correct[:covered].sum())
        log.info(
            f"{name}: threshold {percent(thresholds[-1])}, precision {percent(right / covered)} "
            f"on {count(covered, 'image')}, recall {percent(right / max(1, truth[:, i].sum()))}"
        )
    if len(unreachable) == len(labels):
        raise UsageError(
            f"no label reaches a precision of {percent(precision)} at any threshold on "
            f"{count(len(values), 'image')}",
            fix=f"use a lower {spell('precision')}, or set one threshold directly, e.g. "
            f"{spell('threshold', 0.8)}",
        )
    if unreachable:
        log.warning(
            "labels that are never assigned, because no threshold reaches a precision of "
            f"{percent(precision)}: {listing(unreachable)}"
        )
    return tuple(thresholds)
