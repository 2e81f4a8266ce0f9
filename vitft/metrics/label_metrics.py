"""Metrics of multi-label predictions: average precision and F1.

Notation: n images, C labels, m images that have a label; `scores` and `truth` are (n, C); `truth`
is True where an image has a label and False elsewhere.
"""

import math
from collections.abc import Sequence

import numpy as np

from vitft.metrics.intervals import (
    Flags,
    Floats,
    Groups,
    design_effect,
    f1_with_interval,
    mean_fraction_interval,
    score_interval,
)
from vitft.metrics.results import LabelMetrics, LabelResults
from vitft.metrics.values import Interval


def precisions(scores: Floats, truth: Flags) -> Floats:
    """Return the precision among all images with scores as high as that of an image with the label.

    There is one value for each image with the label, in their order (m,); their mean is the average
    precision. Images with equal scores share one rank. Both arguments are (n,).
    """
    order = np.argsort(-scores, kind="stable")
    ranked = -scores[order]
    at_least = np.searchsorted(ranked, -scores[truth], side="right")
    return np.asarray(np.cumsum(truth[order])[at_least - 1] / at_least)


def label_results(
    scores: Floats, truth: Flags, given: Flags, names: Sequence[str], groups: Groups | None = None
) -> LabelResults:
    """Return `results.LabelResults`, given which labels are predicted, `given` (n, C).

    The interval of an average precision is the Wilson interval of a fraction of the m images that
    have the label. The bootstrap interval would have no width if these are ranked first. Labels of
    the same image are not independent: the intervals of means over labels count images.

    Source: Boyd, Eng & Page 2013, "Area under the precision-recall curve: point estimates and
    confidence intervals", Machine Learning and Knowledge Discovery in Databases.
    """
    units = np.arange(len(truth)) if groups is None else groups
    per_label: dict[str, LabelMetrics] = {}
    ranked, rows, deviations = list[tuple[float, int]](), list[Groups](), list[Floats]()
    for name, score, flags in zip(names, scores.T, truth.T, strict=True):
        found, own, images = precisions(score, flags), units[flags], int(flags.sum())
        if not images:
            per_label[name] = {"ap": None, "ap_interval": None}
            continue
        value = float(found.mean())
        effect = design_effect(found - value, own)
        bounds = score_interval(value, images / effect)
        per_label[name] = {"ap": value, "ap_interval": bounds}
        ranked.append((value * images, images))
        rows.append(own)
        deviations.append((found - value) / images)
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
    return {
        "map": mean_fraction(ranked),
        "map_interval": mean_fraction_interval(
            ranked, design_effect(np.concatenate(deviations), np.concatenate(rows))
        )
        if has_label
        else None,
        "chance_map": float(truth[:, known].mean()) if has_label else 0.0,
        "micro_f1": micro[0],
        "micro_f1_interval": micro[1],
        "macro_f1": mean_fraction(f1),
        "macro_f1_interval": mean_fraction_interval(f1, design_effect(change, units[place][own]))
        if has_label
        else None,
        "per_label": per_label,
    }


def mean_fraction(counts: Sequence[tuple[float, float]]) -> float:
    """Return the mean of fractions, given as (correct, total), or 0 if there are none."""
    return math.fsum(right / total for right, total in counts) / max(1, len(counts))
