"""Metrics of multi-label predictions: average precision and F1.

Notation: n images, C labels, R resamples; `scores` and `truth` are (n, C); `truth` is True where an
image has a label and False elsewhere.
"""

from collections.abc import Sequence

import numpy as np

from vitft.metrics.intervals import RESAMPLES, Flags, Floats
from vitft.metrics.results import LabelMetrics, LabelResults
from vitft.metrics.values import Interval

MAX_VALUES = 2 * 10**8
"""Maximum number of resampled values (images x labels x resamples). For larger data, there are
fewer resamples, but at least 200."""


def average_precision(scores: Floats, truth: Flags, weights: Floats) -> Floats:
    """Return the average precision of one label for R weightings of the images: (R,).

    The average precision is the mean, over the images with the label, of the precision among all
    images with scores at least as high. It is NaN if the images with the label have no weight.

    Args:
        scores: Scores (n,); images with equal scores share one rank.
        truth: Whether each image has the label (n,).
        weights: How often each image counts, (R, n).
    """
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], weights[:, order] * truth[order]
    ends = np.searchsorted(-ranked, -ranked, side="right") - 1  # last image with the same score
    total = np.cumsum(weights[:, order], axis=1)
    precision = np.cumsum(hits, axis=1) / np.maximum(total, 1e-12)
    with np.errstate(invalid="ignore"):
        return np.asarray((hits * precision[:, ends]).sum(axis=1) / hits.sum(axis=1))


def f1_scores(given: Flags, truth: Flags, weights: Floats) -> tuple[Floats, Floats]:
    """Return the micro- and macro-averaged F1 for R weightings of the images: (R,) each.

    The micro average weights all decisions equally; the macro average is the mean over the labels
    that at least one image has.
    """
    hits = weights @ (given & truth)  # (R, C)
    both = weights @ given + weights @ truth
    with np.errstate(invalid="ignore"):
        per_label = np.where(weights @ truth > 0, 2 * hits / both, np.nan)
        micro = np.nan_to_num(2 * hits.sum(axis=1) / both.sum(axis=1))
    return micro, mean_defined(per_label)


def mean_defined(values: Floats) -> Floats:
    """Return the means of the non-NaN values along the last axis; 0 where there are none."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0).sum(axis=-1) / np.maximum(1, known.sum(axis=-1)))


def label_results(
    scores: Floats, truth: Flags, given: Flags, names: Sequence[str], *, resampled: bool
) -> LabelResults:
    """Return `results.LabelResults`; intervals are None unless `resampled` is set.

    `given` (n, C) states which labels are predicted. The intervals are percentiles over bootstrap
    resamples of the images.
    """
    one = np.ones((1, len(truth)))
    points = measure(scores, truth, given, one)
    intervals: list[Interval | None] = [None] * len(points)
    if resampled:
        random = np.random.default_rng(0)
        rounds = max(200, min(RESAMPLES, MAX_VALUES // max(1, truth.size)))
        at_once = max(1, 2_000_000 // len(truth))
        drawn = [
            measure(scores, truth, given, resample(random, min(at_once, rounds - i), len(truth)))
            for i in range(0, rounds, at_once)
        ]
        values = np.concatenate(drawn, axis=1)  # (3 + C, R)
        intervals = [interval_of(row) for row in values]
    numbers = [None if np.isnan(row[0]) else float(row[0]) for row in points]
    per_label: dict[str, LabelMetrics] = {
        name: {"ap": numbers[3 + i], "ap_interval": intervals[3 + i]}
        for i, name in enumerate(names)
    }
    has_label = truth.any(axis=0)
    return {
        "map": numbers[0] or 0.0,
        "map_interval": intervals[0],
        "chance_map": float(truth[:, has_label].mean()) if has_label.any() else 0.0,
        "micro_f1": numbers[1] or 0.0,
        "micro_f1_interval": intervals[1],
        "macro_f1": numbers[2] or 0.0,
        "macro_f1_interval": intervals[2],
        "per_label": per_label,
    }


def measure(scores: Floats, truth: Flags, given: Flags, weights: Floats) -> Floats:
    """Return mAP, micro F1, macro F1 and the average precision of each label: (3 + C, R)."""
    every = [average_precision(scores[:, c], truth[:, c], weights) for c in range(truth.shape[1])]
    micro, macro = f1_scores(given, truth, weights)
    return np.stack([mean_defined(np.stack(every, axis=1)), micro, macro, *every])


def resample(random: np.random.Generator, rounds: int, images: int) -> Floats:
    """Return how often each image is drawn in each of R rounds: (R, n)."""
    drawn = random.multinomial(images, np.full(images, 1 / images), size=rounds)
    return np.asarray(drawn, dtype=np.float64)


def interval_of(values: Floats) -> Interval | None:
    """Return the bounds of the central 95% of the non-NaN values, or None if there are none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)
