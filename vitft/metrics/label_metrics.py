"""Metrics of multi-label predictions: average precision and F1.

Notation: n images, C labels, m images that have a label; `scores` and `truth` are (n, C); `truth`
is True where an image has a label and False elsewhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitft.metrics.calibration import Ints, ScoredSet, folds
from vitft.metrics.intervals import (
    PRIOR_IMAGES,
    Flags,
    Floats,
    Groups,
    design_effect,
    f1_with_interval,
    mean_fraction_interval,
    score_interval,
)
from vitft.metrics.results import Interval, LabelMetrics, LabelResults


def average_precision(scores: Floats, truth: Flags) -> tuple[float, Floats]:
    """Return the average precision and by how much each image (n,) makes it deviate.

    This is the mean, over images with the label, of the precision among all images with scores at
    least as high, which include those of equal score. Both arguments are (n,).
    """
    order = np.argsort(-scores, kind="stable")
    ranked, images = -scores[order], truth.sum()
    first, last = (np.searchsorted(ranked, -scores, side=side) for side in ("left", "right"))
    precision = np.cumsum(truth[order])[last - 1] / last
    value = float(precision[truth].mean())
    terms = (np.stack([1 / last, precision / last]) * truth)[:, order[::-1]]
    gain, loss = terms.cumsum(axis=1)[:, ::-1][:, first]  # sums over images ranked no higher
    return value, (truth * (precision - value + gain) - loss) / images


def label_results(
    scores: Floats, truth: Flags, given: Flags, names: Sequence[str], groups: Groups | None = None
) -> LabelResults:
    """Return `results.LabelResults`, given which labels are predicted, `given` (n, C).

    The interval of an average precision is a Wilson interval with its variance, averaged with that
    of a fraction (`PRIOR_IMAGES`): it has a width even if the m images with the label rank first.
    Labels of one image are not independent: the intervals of means over labels count images.

    Source: Boyd, Eng & Page 2013, "Area under the precision-recall curve: point estimates and
    confidence intervals", Machine Learning and Knowledge Discovery in Databases.
    """
    units = np.arange(len(truth)) if groups is None else groups
    per_label: dict[str, LabelMetrics] = {}
    ranked, together, apart = list[tuple[float, int]](), np.zeros(len(truth)), 0.0
    for name, score, flags in zip(names, scores.T, truth.T, strict=True):
        if not (images := int(flags.sum())):
            per_label[name] = {"ap": None, "ap_interval": None}
            continue
        value, changes = average_precision(score, flags)
        usual = value * (1 - value) / images  # variance of a fraction
        ratio = float((changes**2).sum()) / usual if usual else 1.0
        ratio = (images * ratio + PRIOR_IMAGES) / (images + PRIOR_IMAGES)
        effect = design_effect(changes, groups) * ratio
        per_label[name] = {"ap": value, "ap_interval": score_interval(value, images / effect)}
        ranked.append((value * images, images))
        together, apart = together + changes, apart + usual
    hits, decided = given & truth, given | truth
    right, union = hits.sum(axis=0), decided.sum(axis=0)
    place, label = np.nonzero(decided)
    micro: tuple[float, Interval] = (0.0, (0.0, 1.0))
    if total := int(union.sum()):
        effect = design_effect(hits[decided] - right.sum() / total, units[place])
        micro = f1_with_interval(int(right.sum()), total, effect)
    known = np.asarray(truth.any(axis=0))
    share = right / np.maximum(1, union)
    own = known[label]
    change = ((hits[decided] - share[label]) / (union * (1 + share) ** 2)[label])[own]
    # Like a fraction of (1 + share)^2 / 2 * union images, which has the same variance.
    f1 = [
        (float(2 * s / (1 + s) * w), float(w))
        for s, w in zip(share[known], (union * (1 + share) ** 2 / 2)[known], strict=True)
    ]
    has_label = bool(ranked)
    shared = max(1.0, float((together**2).sum()) / max(apart, 1e-12))  # 1 if labels are independent
    return {
        "map": _mean_fraction(ranked),
        "map_interval": mean_fraction_interval(ranked, shared * design_effect(together, groups))
        if has_label
        else None,
        "chance_map": float(truth[:, known].mean()) if has_label else 0.0,
        "micro_f1": micro[0],
        "micro_f1_interval": micro[1],
        "macro_f1": _mean_fraction(f1),
        "macro_f1_interval": mean_fraction_interval(f1, design_effect(change, units[place][own]))
        if has_label
        else None,
        "per_label": per_label,
    }


def _mean_fraction(counts: Sequence[tuple[float, float]]) -> float:
    """Return the mean of fractions, given as (correct, total), or 0 if there are none."""
    return math.fsum(right / total for right, total in counts) / max(1, len(counts))


# multi-label thresholds: the minimum probability at which each label is assigned to an image ------


@dataclass(frozen=True, slots=True, kw_only=True)
class _FittedThresholds:
    """Minimum logit at which each label is assigned, before temperature scaling."""

    value: Floats  # (C,)
    held_out: Floats
    """For each validation image, the thresholds chosen without it (n, C), for unbiased metrics."""


def fit_thresholds(validation: ScoredSet, training: ScoredSet | None = None) -> _FittedThresholds:
    """Choose the thresholds on validation images and any cross-validated training predictions."""
    logits, labels = validation.pooled(training)
    held_out = np.empty(validation.labels.shape)
    for fold, rest in folds(len(validation), len(labels)):
        held_out[fold] = _best_thresholds(logits[rest], labels[rest])
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
