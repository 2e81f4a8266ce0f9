"""Linear heads on fixed features, and their cross-validation.

Notation: n images, D feature dimensions, C classes or labels, K folds; the features `x` are (n, D),
and the targets `y` are class indices (n,) or, for multi-label data, 0 or 1 for each label (n, C).
"""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitft.features.folds import (
    CV_FOLDS,
    CV_IMAGES,
    Folded,
    Indices,
    in_one_group,
    rows_of_views,
    stratified_folds,
    stratified_subset,
)
from vitft.features.logistic import (
    Sharing,
    Standardizer,
    class_balanced_weights,
    is_large,
    rough_fit,
    sample_weights,
    solve_logistic,
)
from vitft.features.mixture import HeadMethod, choose_head_method, solve_discriminant
from vitft.features.penalty import PenaltyScore, choose_penalty
from vitft.metrics.classification import classification_metrics
from vitft.metrics.intervals import RESAMPLES, Flags, Groups, accuracy_interval, p_of_guessing
from vitft.metrics.results import (
    CrossValidation,
    HeadCandidate,
    Interval,
    LearningCurvePoint,
    Metrics,
    WeakClass,
    mostly_taken_for,
)
from vitft.metrics.targets import are_right, fraction_right

log = logging.getLogger(__name__)

LinearHead = tuple[Tensor, Tensor]
"""Weight (C, D) and bias (C,) of a linear head on raw features, in float32."""

_CURVE_FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Fractions of the training images at which the learning curve is measured."""
_CV_LOGITS = 100_000_000
"""Maximum number of logits (images x classes) of a cross-validation of the accuracy."""
_RANDOM_LABELS_EFFECT = 2.0
"""Design effect in `p_of_guessing`: heads with nothing to learn from the same images make the same
mistakes. With labels in random order, the variance of its statistic was 1.2 to 2.4 times that of
independent images (benchmarks/notebook/intervals.md)."""
_METHOD_IMAGES = 8_000
"""Maximum number of images used to decide whether the head reads one block or several."""
_FLOAT64_VALUES = 10**7
"""Maximum number of values in a feature matrix for which the head is fitted in float64."""
_FLOAT64_LOGITS = 2 * 10**7
"""Maximum number of logits (images x classes) for which the head is fitted in float64."""


def cross_validation_rows(y: Tensor, classes: int, seed: int, *, most: int) -> Tensor | None:
    """Return the sorted indices of at most `most` images to cross-validate, or None.

    There are fewer if they would have more than `_CV_LOGITS` logits. The result is None if there
    are too few images for a meaningful accuracy. If all images are used, there must be at least as
    many images outside each fold as there are classes. If only a subset is used, it must have at
    least
    `CV_FOLDS` images per class on average.
    """
    rows = stratified_subset(y, max(1, min(most, _CV_LOGITS // classes)), seed)
    least = classes * (CV_FOLDS if len(rows) < len(y) else CV_FOLDS / (CV_FOLDS - 1))
    if len(rows) >= least:
        return rows
    log.info(
        f"skipping cross-validation and the check for label errors: {len(rows):,} images "
        f"(of {len(y):,} in total) are too few for {classes:,} classes"
    )
    return None


class HeldOutLogits(NamedTuple):
    """Sorted indices (m,) of images, and their logits (m, C) from heads not fitted to them."""

    rows: Tensor
    logits: Tensor


def cross_validate(
    x: Tensor,
    y: Tensor,
    names: Sequence[str],
    *,
    method: HeadMethod,
    balanced: bool,
    seed: int,
    groups: Tensor | None = None,
    units: Groups | None = None,
    apart: Tensor | None = None,
) -> tuple[CrossValidation, HeldOutLogits] | None:
    """Cross-validate a head-fitting method on increasing fractions of the images.

    If `balanced` is set, every class has the same total weight. Near-duplicates share a number in
    `groups` (n,). `units` (n,) are the groups that the intervals count. The images in `apart` (n,)
    are left out of every fit, and the classes that are in one group only are part of every fit; the
    results count neither.

    Returns:
        The results, and the held-out logits of the images from heads fitted to the largest
        fraction. None if there are too few images (see `cross_validation_rows`), if every class is
        in one group only, or if one fold has so many near-duplicates that too few images are
        outside it.
    """
    most = min(_METHOD_IMAGES, CV_IMAGES) if method.reads_several else CV_IMAGES
    total, rows = len(y), cross_validation_rows(y, len(names), seed, most=most)
    if rows is None:
        return None
    x, y = x[rows], y[rows]
    own = torch.arange(len(y)) if groups is None else groups[rows]
    part = torch.ones(len(y), dtype=torch.bool) if apart is None else ~apart[rows]
    counted = part.clone()
    counted[part] = ~in_one_group(y[part], own[part])
    if not counted.any():
        return None
    units = None if units is None else units[rows.numpy()][counted.numpy()]
    fold_id = torch.arange(len(y)) % CV_FOLDS
    fold_id[part] = stratified_folds(y[part], CV_FOLDS, seed, own[part])
    fold_id[part & ~counted] = -1  # held out by no fold
    x = x if method.reads_several else x[:, : method.read]
    scaled, classes = Standardizer.fit(x if apart is None else x[part])(x), len(names)
    effect, curve = _cross_validation_effect(int(counted.sum())), list[LearningCurvePoint]()
    right, logits, heads = list[Tensor](), torch.zeros(len(y), classes), None
    for fraction in _CURVE_FRACTIONS:
        chosen = torch.zeros_like(part)
        chosen[part] = nested_subset(y[part], fold_id[part], fraction, seed)
        if chosen.sum() > 1.5 * fraction * part.sum():
            continue  # mostly the two images that every class keeps
        kept = torch.stack([(fold_id != k) & chosen for k in range(CV_FOLDS)]).float()
        if int(kept.sum(dim=1).min()) < classes:
            continue  # too few images to fit a head
        if balanced:
            kept = kept * class_balanced_weights(y, classes)
        heads = method.fit(scaled, y, kept, classes=classes, start=heads)
        logits = Folded(scaled, y, classes, fold_id, kept).held_out(heads)
        right.append(are_right(logits, y)[counted])
        images, top1 = round(float((kept > 0).sum(dim=1).float().mean())), fraction_right(right[-1])
        bounds = accuracy_interval(right[-1].numpy(), units, effect=effect)
        curve.append({"images": images, "top1": top1, "top1_interval": bounds})
    if not curve:  # too few images outside a fold full of near-duplicates
        return None
    sizes = [point["images"] for point in curve]
    gain = gain_from_twice(sizes, torch.stack(right, dim=1).numpy(), own[counted].numpy())
    truth, scores = y[counted], logits[counted]
    measured = classification_metrics(scores, truth, names, groups=units, effect=effect)
    results: CrossValidation = {
        "images": measured["images"],
        "of": total if apart is None else int((~apart).sum()),
        "top1": measured["top1"],
        "top1_interval": curve[-1]["top1_interval"],
        "balanced": measured["balanced"],
        "balanced_interval": measured["balanced_interval"],
        "classes": sum(row["images"] > 0 for row in measured["per_class"].values()),
        "majority": measured["majority"],
        "curve": curve,
        "gain_from_twice": gain[0] if gain else None,
        "gain_interval": gain[1] if gain else None,
        "weak_spots": weakest_classes(measured),
    }
    if y.ndim == 1:
        results["p_guessing"] = p_of_guessing(
            scores.numpy(), truth.numpy(), units, _RANDOM_LABELS_EFFECT
        )
    if units is not None:
        results["groups"] = len(np.unique(units))
    held = fold_id >= 0
    return results, HeldOutLogits(rows[held], logits[held])


def _cross_validation_effect(images: int) -> float:
    """Return the design effect of cross-validation on a number of images.

    The accuracy of the head that is saved varies around that of the cross-validated heads, which
    were fitted to fewer images: with up to 300 photos, the difference from the accuracy on new
    photos had 1.2 times the binomial variance (benchmarks/accuracy/README.md).
    """
    return 1 + 0.2 * min(1.0, 300 / images)


def nested_subset(y: Tensor, fold_id: Tensor, fraction: float, seed: int) -> Tensor:
    """Return which images (n,) are in a fraction of each class, at least two images of each.

    Smaller subsets are nested in larger ones. The images of a class are taken from its folds in
    turn, so that a class with two images is not held out as a whole. Labels are not stratified.
    """
    label = np.zeros(len(y), np.int64) if y.ndim == 2 else y.numpy()
    random = np.random.default_rng([seed, 1])
    drawn = random.permutation(len(y))
    cell = np.stack([label, fold_id.numpy()])[:, drawn]
    turn = ranks(cell[0] * (cell[1].max() + 2) + cell[1])
    order = np.argsort(turn, kind="stable")
    place = np.empty(len(y), np.int64)
    place[drawn[order]] = ranks(cell[0][order])
    sizes = np.bincount(label)
    most = np.maximum(2, np.ceil(fraction * sizes - random.random(len(sizes))))  # on average, so
    return torch.from_numpy(place < most[label])


def ranks(values: Indices) -> Indices:
    """Return for each value how many equal values are before it: (n,)."""
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - np.searchsorted(values[order], values[order])
    return rank


def gain_from_twice(
    images: Sequence[int], right: Flags, groups: Indices
) -> tuple[float, Interval] | None:
    """Return the expected gain in accuracy from doubling the number of images, and its interval.

    `right` (n, P) states which images are right at each point of the learning curve, and `images`
    how many training images each point has, in ascending order. A power law is fitted to the last
    three points. The 95% interval comes from a bootstrap over `groups` (n,). The result is None if
    there are fewer than three points, if any error is zero, or if the whole interval is below 0.

    Source: Hestness et al. 2017, "Deep Learning Scaling is Predictable, Empirically".
    """
    right = right[:, -3:]  # omit the smallest subset, which is the least informative
    if len(images) < 3 or right.all(axis=0).any():
        return None
    _, unit = np.unique(groups, return_inverse=True)
    sums = np.zeros((unit.max() + 1, 4), np.int64)  # wrong at each point, and images
    np.add.at(sums, unit, np.column_stack([~right, np.ones(len(right), bool)]))
    kinds, counts = np.unique(sums, axis=0, return_counts=True)
    random = np.random.default_rng(0)
    drawn = random.multinomial(len(sums), counts / len(sums), size=RESAMPLES)
    totals = np.vstack([sums.sum(axis=0), drawn @ kinds]).T  # (4, 1 + resamples)
    errors = np.maximum(totals[:3], 0.5) / totals[3]
    slopes = np.polyfit(np.log(images[-3:]), np.log(errors), 1)[0]
    gains = errors[-1] * (1 - 2**slopes)
    low, high = (np.quantile(gains[1:], [0.025, 0.975]).round(9) + 0.0).tolist()
    return (float(gains[0]), (low, high)) if high > 0 else None


def weakest_classes(found: Metrics) -> list[WeakClass]:
    """Return the three classes with the lowest recall, each with its most frequent confusion.

    For multi-label data, which is scored here without its thresholds, the result is empty.
    """
    others, weak = mostly_taken_for(found), list[WeakClass]()
    for name, row in found["per_class"].items():
        if row["recall"] is not None and row["recall_interval"] and "labels" not in found:
            weak.append(
                {
                    "class": name,
                    "recall": row["recall"],
                    "recall_interval": row["recall_interval"],
                    "images": row["images"],
                    "taken_for": others.get(name),
                }
            )
    return sorted(weak, key=lambda one: one["recall"])[:3]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedHead:
    """Linear layer on raw features, with the scores that determined how it was fitted."""

    weight: Tensor  # (C, D), or (C, read) if the head reads only the leading features; float32
    bias: Tensor  # (C,), float32
    last: tuple[
        Tensor, Tensor
    ]  # weight (C, read) and bias (C,) of the head on the leading features
    method: HeadMethod
    path: Sequence[PenaltyScore]  # empty if the penalty was given
    candidates: Sequence[HeadCandidate]  # empty if cross-validation did not choose the blocks

    @property
    def l2(self) -> float:
        """L2 penalty of the logistic regression on standardised features.

        If each label has its own penalty, this is their median.
        """
        penalty = self.method.l2
        return penalty if isinstance(penalty, float) else median(penalty)


def solve_head(  # noqa: PLR0913 - independent keyword-only options
    x: Tensor,
    y: Tensor,
    *,
    classes: int,
    l2: "float | tuple[float, ...]" = 0.0,
    balanced: bool,
    seed: int,
    views: int = 1,
    groups: Tensor | None = None,
    read: int | None = None,
    method: HeadMethod | None = None,
    sharing: Sharing | None = None,
) -> SolvedHead:
    """Fit a linear head to raw float32 features (n, D).

    The rows of `x` and `y` form `views` blocks, one for each view of the same images. If `balanced`
    is set, every class has the same total weight; a class may have no rows. Near-duplicates share a
    number in `groups` (n / views,). `sharing` helps to fit a large matrix (see `_fit_logistic`).
    `l2` is the penalty on standardised features. If it is 0, cross-validation chooses the penalty.

    The first `read` columns (default: all) are features of the last block. If there are more
    columns, cross-validation also chooses which blocks the head reads; with too few images per
    class, it reads only the last block. With a `method`, nothing is chosen.
    """
    weights = sample_weights(y, classes, balanced=balanced)[None]
    standardizer, read = Standardizer.fit(x), read or x.shape[1]
    path, candidates = list[PenaltyScore](), list[HeadCandidate]()
    if method is None and l2 == 0:
        l2, path = choose_penalty(
            x[:, :read],
            y,
            weights,
            classes=classes,
            seed=seed,
            views=views,
            groups=groups,
            standardizer=standardizer.leading(read),
        )
    images = len(y) // views
    some = stratified_subset(y[:images], min(_METHOD_IMAGES, CV_IMAGES), seed)
    if method is None and read < x.shape[1] and len(some) >= min(images, CV_FOLDS * classes):
        rows = rows_of_views(some, images, views)
        own = None if groups is None else groups[some]
        scaled, chosen = standardizer(x[rows]), weights[:, rows]
        data = Folded.of(
            scaled, y[rows], chosen, classes=classes, seed=seed, views=views, groups=own
        )
        method, candidates = choose_head_method(
            data, l2=l2, read=read, groups=None if own is None else own.numpy()
        )
    method = method or HeadMethod(l2=l2, read=read)
    leading = standardizer.leading(method.read)
    logistic = _fit_logistic(
        x[:, : method.read], y, weights, leading, classes=classes, l2=method.l2, sharing=sharing
    )
    head = last = leading.unscale_head(logistic)
    if method.reads_several:
        discriminant = solve_discriminant(
            standardizer(x), y, weights[0], classes=classes, shrinkages=[method.shrinkage]
        )[0]
        head = standardizer.unscale_head(method.combine(logistic, discriminant))
    return SolvedHead(
        weight=head[0], bias=head[1], last=last, method=method, path=path, candidates=candidates
    )


def _fit_logistic(
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    standardizer: Standardizer,
    *,
    classes: int,
    l2: "float | tuple[float, ...]",
    sharing: Sharing | None = None,
) -> Tensor:
    """Return the optimal head (C, D + 1) on standardised features, given raw features (n, D).

    `weights` (1, n) contains the sample weights. With `sharing`, other processes help to sum over
    the rows if there are so many that the matrix is read in chunks.
    """
    fit = functools.partial(solve_logistic, y=y, sample_weight=weights, classes=classes, l2=l2)
    if is_large(x):  # read in place, leaving memory-mapped features on disk
        return fit(x, standardizer=standardizer, sharing=sharing)[0]
    scaled = standardizer(x)
    rough = rough_fit(scaled, y, weights, classes=classes, l2=l2)
    is_small = x.numel() <= _FLOAT64_VALUES and len(x) * classes <= _FLOAT64_LOGITS
    exact = scaled.double() if is_small else scaled
    return fit(exact, start=rough)[0]
