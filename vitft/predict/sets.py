"""Prediction sets: the classes among which the true class is with a requested probability.

A class is in the set of an image if its probability is at least the limit of the class. The limits
come from held-out images by split conformal prediction with the score 1 - p(true class): of all
scores, it gives the smallest sets on average. The coverage holds for new images that are drawn like
the held-out ones. This module does not import torch.

Sources: Sadinle, Lei & Wasserman 2019, "Least Ambiguous Set-Valued Classifiers with Bounded Error
Levels", Journal of the American Statistical Association 114 (the score, and limits by class), and
Lee, Barber & Willett 2023, "Distribution-free inference with hierarchical data",
https://arxiv.org/abs/2306.06342 (groups, each with a total weight of 1).

Notation: n held-out images, C classes.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from vitft.messages.results import within
from vitft.metrics.calibration import Ints, softmax
from vitft.metrics.intervals import Flags, Floats, Groups, Interval, accuracy_interval
from vitft.predict.validation import HeldOut
from vitft.system.errors import UsageError
from vitft.system.text import count, listing, percent, requested_percent

_OWN_LIMIT = 20
"""Fewest images, or groups, from which a class has a limit of its own. Classes with fewer share a
limit, so that the coverage holds for all of them together."""
_EFFECT = 1.6
"""Design effect of a measured coverage: it varies with the images, and the coverage of new images
varies with the limits (benchmarks/notebook/calibration.md)."""
_LOWER_COVERAGES = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5)  # to suggest instead
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimits:
    """Smallest probability with which each class is in a prediction set."""

    limits: Floats  # (C,)
    pools: Ints  # (C,): classes with the same number share a limit
    covered: Flags
    """Whether the set of each held-out image (n,) contains its class, if the limits are chosen
    without its group."""

    def measured(self, correct: Flags, groups: Groups | None = None) -> tuple[float, Interval]:
        """Return the coverage of held-out images (n,), and its 95% interval.

        The most probable class is in every set, so the sets of `correct` predictions are right.
        """
        right = self.covered | correct
        return int(right.sum()) / len(right), accuracy_interval(right, groups, effect=_EFFECT)

    @classmethod
    def fit(
        cls,
        probability: Floats,
        labels: Ints,
        coverage: float,
        *,
        classes: int,
        groups: Groups | None = None,
    ) -> Self | None:
        """Choose limits, given the probability of the true class (n,); None if n is too small."""
        groups = np.arange(len(labels)) if groups is None else groups
        needed = _needed_groups(coverage)
        pools = _pools(labels, groups, classes, max(needed, _OWN_LIMIT))
        limits, covered = np.zeros(classes), np.zeros(len(labels), bool)
        by_pool = np.argsort(pools[labels], kind="stable")
        ends = np.cumsum(np.bincount(pools[labels], minlength=int(pools.max()) + 1))
        for number, rows in enumerate(np.split(by_pool, ends[:-1])):
            _, group, sizes = np.unique(groups[rows], return_inverse=True, return_counts=True)
            if len(sizes) < needed:
                return None
            order = np.lexsort((-probability[rows], group))  # by group, most probable first
            rows, group = rows[order], group[order]
            score, weight = -probability[rows], 1 / sizes[group]
            ranked = np.argsort(score, kind="stable")
            total = np.cumsum(weight[ranked])
            last = np.searchsorted(total, coverage * (len(sizes) + 1) - _ROUNDING)
            limits[pools == number] = -score[ranked][min(int(last), len(rows) - 1)]
            # Without the group of an image, its class is in its set if the more probable images of
            # the other groups have too little weight
            above = np.append(0.0, total)[np.searchsorted(score[ranked], score)]
            is_first = np.append(True, (np.diff(group) != 0) | (np.diff(score) != 0))
            first = np.maximum.accumulate(np.where(is_first, np.arange(len(rows)), 0))
            above -= (first - np.searchsorted(group, group)) * weight
            covered[rows] = above < coverage * len(sizes) - _ROUNDING
        return cls(limits=limits, pools=pools, covered=covered)


def _needed_groups(coverage: float) -> int:
    """Return the smallest number of images or groups whose quantile gives a coverage."""
    return math.ceil(coverage / (1 - coverage) * (1 - _ROUNDING))


def _pools(labels: Ints, groups: Groups, classes: int, least: int) -> Ints:
    """Return numbers of pools (C,): classes with the same number share a limit.

    Classes in fewer than `least` groups are in one pool. If they are too few together, the next
    larger class joins them.
    """
    pairs = np.unique(labels * (groups.max() + 1) + groups)
    label, group = np.divmod(pairs, groups.max() + 1)
    sizes = np.bincount(label, minlength=classes)
    order = np.argsort(sizes, kind="stable")
    shared = int((sizes < least).sum())
    while 0 < shared < classes:
        if len(np.unique(group[np.isin(label, order[:shared])])) >= least:
            break
        shared += 1
    pools = np.zeros(classes, np.int64)
    pools[order[shared:]] = np.arange(classes - shared) + (shared > 0)
    return pools


def choose_set_limits(run: Path, coverage: float) -> tuple[tuple[float, ...], str]:
    """Return the limits of a run's prediction sets, and a sentence about their coverage.

    The coverage is measured on the held-out images: each one is left out, with its group, when its
    limits are chosen.

    Raises:
        RunError: The run has no validation predictions, or a file of the run is damaged.
        UsageError: There are too few images or groups.
    """
    held_out = HeldOut.read_existing(
        run, "cannot choose prediction sets", fix="use the run directory"
    )
    answers, classes = held_out.answers(), held_out.split.classes
    probability, labels, groups = answers.label_probability, answers.labels, answers.groups
    found = SetLimits.fit(probability, labels, coverage, classes=len(classes), groups=groups)
    if found is None:
        have = len(labels) if groups is None else len(np.unique(groups))
        unit = "held-out image" if groups is None else "group"
        lower = [p for p in _LOWER_COVERAGES if p < coverage and _needed_groups(p) <= have]
        raise UsageError(
            f"a coverage of {requested_percent(coverage)} needs at least "
            f"{count(_needed_groups(coverage), unit)}, but this run has {have:,}",
            fix=f"use --coverage {lower[0]:g}" if lower else "train with more images",
        )
    sizes = (softmax(held_out.logits.astype(np.float64)) >= found.limits).sum(axis=1)
    measured, bounds = found.measured(answers.correct, groups)
    text = (
        f"sets: coverage at least {requested_percent(coverage)}, measured {percent(measured)}"
        f"{within(bounds)} on {held_out.in_words(len(labels), groups)}, "
        f"{np.maximum(1, sizes).mean():.2f} classes on average"
    )
    is_shared = np.bincount(found.pools)[found.pools] > 1
    if shared := [classes[i] for i in np.flatnonzero(is_shared)]:
        text += f". These classes have few images and are covered together: {listing(shared)}"
    return tuple(found.limits.tolist()), text
