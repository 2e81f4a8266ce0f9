"""Linear heads on fixed features: their penalty, the blocks that they read, and how good they are.

Cross-validation on the training images chooses the L2 penalty and one of three candidates: logistic
regression on the features of the last block, linear discriminant analysis on the features of
several blocks, or a mixture of the two. The mixture is a weighted sum of their log-probabilities.
Their normalisers are the same for all classes and can be omitted, so every candidate is a single
linear layer. The choice does not use validation images.

Notation: n images, D feature dimensions, C classes or labels, K folds; the features `x` are (n, D),
and the targets `y` are class indices (n,) or, for multi-label data, 0 or 1 for each label (n, C).
The leading columns of `x` are the features of the last block.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.folds import (
    CV_FOLDS,
    CV_IMAGES,
    Folded,
    Indices,
    held_out_logits,
    in_one_group,
    sample_classes,
    stratified_folds,
    stratified_subset,
)
from vitft.features.logistic import (
    CHUNK_ROWS,
    LARGE_VALUES,
    Penalty,
    Standardizer,
    class_balanced_weights,
    minimise,
    rough_fit,
    solve_logistic,
)
from vitft.metrics.classification import (
    are_right,
    classification_metrics,
    fraction_right,
    mean_loss,
)
from vitft.metrics.intervals import (
    RESAMPLES,
    Flags,
    Groups,
    Interval,
    accuracy_interval,
    mean_error,
    p_of_guessing,
)
from vitft.metrics.outputs import Outputs
from vitft.metrics.results import (
    LAST_BLOCK,
    MIXTURE,
    SEVERAL_BLOCKS,
    CrossValidation,
    HeadCandidate,
    LearningCurvePoint,
    LogLine,
    Metrics,
    WeakClass,
    mostly_taken_for,
)
from vitft.system.device import exact_float32, one_thread
from vitft.system.errors import UsageError

log = logging.getLogger(__name__)

LinearHead = tuple[Tensor, Tensor]
"""Weight (C, D) and bias (C,) of a linear head on raw features, in float32."""
HeldOutLogits = tuple[Tensor, Tensor]
"""Sorted indices (m,) of images, and their logits (m, C) from heads not fitted to them."""

# choice of the L2 penalty by cross-validation -----------------------------------------------------

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
"""L2 penalties to try, from strong to weak; each fit starts from the previous solution.

For more than `_PENALTY_CLASSES` classes, they are divided by the number of classes in proportion:
the loss is a mean over the images, so that of a class weighs 1 / C, and its penalty has to as well.
"""
_PENALTY_CLASSES = 100
_PENALTY_LOGITS = 10_000_000
"""Maximum number of logits (images x classes) that choose the penalty; of more, some of the images
and then some of the classes are used."""
_CALIBRATED_LOGITS = 2_000_000  # logits that estimate the calibrated loss of a penalty, at most
_DEFAULT_L2 = 0.1  # of up to `_DEFAULT_CLASSES` classes without cross-validation
_DEFAULT_CLASSES = 10


def default_penalty(y: Tensor, classes: int) -> float:
    """Return the L2 penalty for targets (n,) or (n, C) where cross-validation does not choose one.

    See `PENALTIES` for the dependence on the number of classes. Labels have a loss each.
    """
    return _DEFAULT_L2 * (min(1.0, _DEFAULT_CLASSES / classes) if y.ndim == 1 else 1.0)


_STRONG_PENALTIES = (100.0, 30.0, 10.0, 3.0)  # to try first if they pull towards another head


def choose_penalty(
    data: Folded, standardizer: Standardizer | None = None, centre: Tensor | None = None
) -> tuple[Penalty, list[LogLine]]:
    """Choose the penalty with the lowest cross-validated loss of calibrated logits.

    It differs less by chance than the accuracy (benchmarks/accuracy/README.md). `PENALTIES` are
    tried from strong to weak until the loss has risen twice in a row, on a sample if there are many
    images. `standardizer` is applied to features that are not standardised yet. The penalty is on
    the distance from `centre` (C, D), for standardised features. The scores of all penalties
    follow.
    """
    images, y, classes = sample_classes(
        data.truth,
        data.classes,
        most=CV_IMAGES,
        most_logits=_PENALTY_LOGITS,
        per_class=CV_FOLDS,
        seed=data.seed,
    )
    if y.ndim == 2 and len(images) < min(len(data.truth), CV_FOLDS * classes):
        log.debug(
            f"using the default penalty {_DEFAULT_L2:g}: too few images per class to choose one by "
            "cross-validation"
        )
        return _DEFAULT_L2, []
    some = replace(data.some(images), y=torch.cat([y] * data.views), classes=classes)
    if standardizer is not None:
        some = replace(some, x=standardizer(some.x))
    if centre is not None and classes < data.classes:
        problem = f"a head for {data.classes:,} classes cannot be shrunk towards another one"
        raise UsageError(problem, fix="remove --keep-head, or set optim.l2")
    path, by_label, start = list[LogLine](), list[Tensor](), None  # loss of each label
    scale = min(1.0, _PENALTY_CLASSES / classes) if y.ndim == 1 else 1.0
    ratio = classes / data.classes  # see `PENALTIES`
    kind: Any = {"classes": classes, "centre": centre}
    for relative in (() if centre is None else _STRONG_PENALTIES) + PENALTIES:
        l2 = relative * scale
        start = rough_fit(some.x, some.y, some.weights, l2=l2, start=start, **kind)
        logits = some.held_out(start)
        top1 = fraction_right(are_right(logits, y))
        if y.ndim == 2:
            loss = mean_loss(logits, y).item()
            each = F.binary_cross_entropy_with_logits(logits, y.to(logits), reduction="none")
            by_label.append(each.mean(dim=0))
        else:
            part = slice(None, None, -(-logits.numel() // _CALIBRATED_LOGITS))
            loss = F.nll_loss(tempered(logits[part], y[part])[1], y[part]).item()
        path.append({"l2": l2 * ratio, "cv_loss": loss, "cv_top1": top1})
        losses = [score["cv_loss"] for score in path[-3:]]
        if len(losses) > 2 and losses[2] > losses[1] > losses[0]:
            break  # the loss is nearly convex along the path, so it would keep rising
    if by_label:
        lowest = torch.stack(by_label).argmin(dim=0).tolist()
        return tuple(path[i]["l2"] for i in lowest), path
    if classes < data.classes:
        for score in path:
            score["cv_classes"] = classes
    return min(path, key=lambda score: score["cv_loss"])["l2"], path


# linear discriminant analysis with a shrunken covariance, in closed form --------------------------

_SINGLE_THREAD_VALUES = 5 * 10**6  # in a feature matrix, below which one thread is fast enough
_SMALLEST_VARIANCE = 1e-6  # of a class, on average; identical images would have 0


def _solve_discriminant(
    x: Tensor,
    y: Tensor,
    sample_weight: Tensor,
    *,
    classes: int,
    shrinkages: Sequence[float],
    standardizer: Standardizer | None = None,
) -> Tensor:
    """Fit a linear discriminant analysis for each of several values of the shrinkage in (0, 1].

    Each class is a Gaussian, and its prior is its fraction of the total `sample_weight` (n,). The
    logit of a class without images is log(0.5 / number of rows used) for every image. The heads are
    (S, C, D + 1), float64: weights and, in the last column, biases. The features are standardised
    chunk by chunk if a `standardizer` is given.
    """
    with one_thread(when=x.numel() < _SINGLE_THREAD_VALUES), exact_float32(x.device):
        used = torch.nonzero(sample_weight > 0)[:, 0]
        y, weight = y[used].to(x.device), sample_weight[used].to(x.device).double()
        weight = weight / weight.sum()
        is_dual = len(y) < x.shape[1]  # n equations, by the Woodbury identity, not D
        size = max(CHUNK_ROWS, x.shape[1])  # all rows if there are fewer than dimensions
        parts = [slice(first, first + size) for first in range(0, len(y), size)]

        def features(part: slice) -> Tensor:
            some = x[used[part].to(x.device)]
            return (some if standardizer is None else standardizer(some)).double()

        means = x.new_zeros(classes, x.shape[1], dtype=torch.float64)
        prior = means.new_zeros(classes)
        for part in parts:
            membership = means.new_zeros(len(y[part]), classes)  # (n, C)
            membership.scatter_(1, y[part, None], weight[part, None])
            prior += membership.sum(dim=0)
            means += membership.T @ features(part)
        means /= prior.clamp(min=torch.finfo(prior.dtype).tiny)[:, None]
        unbiased = len(y) / max(1, len(y) - int((prior > 0).sum()))
        residual, squares = means[:0], 0.0
        rows = x.new_empty(len(y), x.shape[1], dtype=torch.float32)
        for part in parts:  # R^T R is the covariance
            residual = features(part) - means[y[part]]
            residual *= (weight[part] * unbiased).sqrt()[:, None]
            squares += residual.square().sum().item()
            rows[part] = residual
        variance = max(squares / x.shape[1], _SMALLEST_VARIANCE)
        # For each shrinkage s, inverse((1 - s) R^T R + s * variance * I) @ means.T
        gram = _gram(rows.T if is_dual else rows)
        projected, found = residual @ means.T if is_dual else means.T, list[Tensor]()
        for shrinkage in shrinkages:
            ridge, kept = shrinkage * variance, 1 - shrinkage
            system = kept * gram
            system.diagonal().add_(ridge)
            solved = torch.cholesky_solve(projected, torch.linalg.cholesky(system))
            if is_dual:
                solved = (means.T - kept * residual.T @ solved) / ridge
            found.append(solved)
        weights = torch.stack(found).mT  # (S, C, D)
        floor = 0.5 / len(y)  # an unseen class is rarer than 1 in n images
        bias = prior.clamp(min=floor).log() - 0.5 * (weights * means).sum(dim=-1)  # (S, C)
        return torch.cat([weights, bias[..., None]], dim=-1)


def _gram(x: Tensor) -> Tensor:
    """Return x^T x of rows (n, D) in float32, as (D, D) in float64.

    Its rounding errors are far below the ridge. On a CPU, NumPy computes only one triangle of it,
    which takes less than half of torch's time.
    """
    if x.device.type != "cpu":
        return (x.T @ x).double()
    half = x.numpy()
    return torch.from_numpy(half.T @ half).double()


# cross-validated choice between linear heads that read one block and heads that read several ------

_SHRINKAGES = (0.02, 0.1, 0.3, 0.6, 0.9)
_MIN_IMAGES = 20  # for several blocks; with fewer, the evidence is too weak
_PRIOR = (0.0, -2.5)  # means of log weights; a priori, the second head has little weight
_PRIOR_STRENGTH = 3.0  # penalty per squared deviation, in losses of one image

_FACTOR_EXPONENTS = (-4.0, 2.0)  # base-10 logarithms of factors that calibrate logits


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMethod:
    """Method for fitting a linear head to standardised features."""

    l2: Penalty  # of the logistic regression, or of each label's
    read: int  # number of leading features that the logistic regression reads
    logistic: float = 1.0  # factor applied to the logits of the logistic regression
    discriminant: float = 0.0  # factor of the discriminant analysis; 0 if unused
    shrinkage: float = 0.0
    name: str = LAST_BLOCK
    alone: float = 1.0  # calibrates the logistic regression if used alone
    centre: Tensor | None = None  # weight (C, D) towards which the regression is shrunk, if any

    @property
    def reads_several(self) -> bool:
        """Whether the head reads more than the leading features."""
        return self.discriminant > 0

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        sample_weight: Tensor,
        *,
        classes: int,
        start: Tensor | None = None,
    ) -> Tensor:
        """Return one approximate head for each of K sets of sample weights (K, n).

        The heads are (K, C, D + 1), or (K, C, read + 1) if they read only the leading features. In
        this case, the optimisation starts from the heads `start`.
        """
        leading = x[:, : self.read]
        if not self.reads_several:
            kind: Any = {"classes": classes, "l2": self.l2, "centre": self.centre}
            return rough_fit(leading, y, sample_weight, start=start, **kind)
        logistic = rough_fit(leading, y, sample_weight, classes=classes, l2=self.l2)
        discriminant = [
            _solve_discriminant(x, y, one, classes=classes, shrinkages=[self.shrinkage])[0]
            for one in sample_weight
        ]
        return self.combine(logistic, torch.stack(discriminant))

    def scaled(self, standardizer: Standardizer) -> "HeadMethod":
        """Return the method for features scaled by a standardizer, given one for raw features."""
        return replace(self, centre=standardizer.scale_weight(self.centre))

    def combine(self, logistic: Tensor, discriminant: Tensor) -> Tensor:
        """Return the weighted sums of heads (..., C, read + 1) and (..., C, D + 1)."""
        total = self.discriminant * discriminant
        total[..., : self.read] += self.logistic * logistic[..., :-1]
        total[..., -1] += self.logistic * logistic[..., -1]
        return total


def choose_head_method(
    data: Folded, *, l2: Penalty, read: int
) -> tuple[HeadMethod, list[HeadCandidate]]:
    """Choose the method for fitting the head, and return it with the scores of all candidates.

    `l2` is the penalty of the logistic regression, and `read` the number of leading features that
    belong to the last block. Standard errors count groups.
    """
    truth, groups = data.truth, None if data.groups is None else data.groups.numpy()
    plain = HeadMethod(l2=l2, read=read)
    heads = plain.fit(data.x, data.y, data.weights, classes=data.classes)
    sharpness, scores = tempered(data.held_out(heads), truth)
    if len(truth) < _MIN_IMAGES:
        return plain, choose_candidate({LAST_BLOCK: scores}, truth, groups)[1]
    # The shrinkage of the discriminant analysis that has the lowest calibrated loss
    found = [
        _solve_discriminant(data.x, data.y, one, classes=data.classes, shrinkages=_SHRINKAGES)
        for one in data.weights
    ]
    tried = [tempered(data.held_out(heads), truth) for heads in torch.stack(found, dim=1)]
    losses = [F.cross_entropy(scores, truth).item() for _, scores in tried]
    best = losses.index(min(losses))
    factor, several = tried[best]
    alone = HeadMethod(
        l2=l2,
        read=read,
        logistic=0.0,
        discriminant=factor,
        shrinkage=_SHRINKAGES[best],
        name=SEVERAL_BLOCKS,
        alone=sharpness,
    )
    one, other = mixture_weights(scores, several, truth)
    both = replace(alone, logistic=one * sharpness, discriminant=other * factor, name=MIXTURE)
    summed = (one * scores + other * several).log_softmax(dim=-1)
    every = {LAST_BLOCK: scores, SEVERAL_BLOCKS: several, MIXTURE: summed}
    name, candidates = choose_candidate(every, truth, groups)
    return {LAST_BLOCK: plain, SEVERAL_BLOCKS: alone, MIXTURE: both}[name], candidates


def choose_candidate(
    scores: Mapping[str, Tensor], y: Tensor, groups: Groups | None = None
) -> tuple[str, list[HeadCandidate]]:
    """Return the name of the candidate to use, given log-probabilities (n, C), and all results.

    Discriminant analysis alone is preferred to the mixture if its loss is lower by more than one
    standard error and its accuracy is not lower. The preferred candidate is used only if its loss
    is lower than that of the head on the last block, too, by more than one standard error.
    """
    losses = {name: F.cross_entropy(one, y, reduction="none") for name, one in scores.items()}
    top1 = {name: fraction_right(are_right(one, y)) for name, one in scores.items()}

    def gain_and_error(one: str, other: str) -> tuple[float, float]:
        """Return how much lower the loss of `one` is than that of `other`, and its error."""
        gain = (losses[other] - losses[one]).double().numpy()
        return float(gain.mean()), mean_error(gain, groups)

    def is_lower(one: str, other: str) -> bool:
        gain, error = gain_and_error(one, other)
        return gain > error

    found = list[HeadCandidate]()
    for name, loss in losses.items():
        found.append({"reads": name, "cv_loss": loss.mean().item(), "cv_top1": top1[name]})
        if name != LAST_BLOCK:
            found[-1]["cv_gain"], found[-1]["cv_gain_error"] = gain_and_error(name, LAST_BLOCK)
    if MIXTURE not in scores:
        return LAST_BLOCK, found
    better = MIXTURE
    if is_lower(SEVERAL_BLOCKS, MIXTURE) and top1[SEVERAL_BLOCKS] >= top1[MIXTURE]:
        better = SEVERAL_BLOCKS
    return better if is_lower(better, LAST_BLOCK) else LAST_BLOCK, found


def tempered(logits: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """Return a factor that calibrates logits (n, C), and the calibrated log-probabilities (n, C).

    The factor minimises a loss in which each label is replaced by a random one with probability
    1 / n. Otherwise, if all images are classified correctly, the loss would fall without end.
    """
    images, classes = logits.shape
    target = F.one_hot(y, classes) * (1 - 1 / images) + 1 / (images * classes)

    def loss(exponent: float) -> float:
        log_probabilities = (10**exponent * logits).log_softmax(dim=-1)
        return -(target * log_probabilities).sum().item()

    # Golden-section search for the only minimum
    (low, high), ratio = _FACTOR_EXPONENTS, (5**0.5 - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = loss(a), loss(b)
    while high - low > 1e-3:
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = loss(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = loss(b)
    factor = 10 ** ((low + high) / 2)
    return factor, (factor * logits).log_softmax(dim=-1)


def mixture_weights(one: Tensor, other: Tensor, y: Tensor) -> tuple[float, float]:
    """Return weights of two log-probabilities (n, C) with the lowest loss, near `_PRIOR`."""
    prior, strength = torch.tensor(_PRIOR, dtype=torch.float64), _PRIOR_STRENGTH / len(y)
    parts = torch.stack([one, other]).double()  # (2, n, C)

    def value_and_gradient(point: Tensor) -> tuple[Tensor, Tensor]:  # (1, 2) -> (1,), (1, 2)
        weights = point[0].exp()
        logits = torch.einsum("m,mnc->nc", weights, parts)
        probabilities = logits.softmax(dim=-1)
        error = probabilities - F.one_hot(y, logits.shape[1])
        slope = weights * torch.einsum("nc,mnc->m", error, parts) / len(y)
        offset = point[0] - prior
        loss = F.cross_entropy(logits, y) + strength * offset.square().sum()
        return loss[None], (slope + 2 * strength * offset)[None]

    found = minimise(value_and_gradient, prior[None], steps=60, tolerance=1e-6)[0].exp()
    return found[0].item(), found[1].item()


# fit and cross-validation of a head ---------------------------------------------------------------

_CURVE_FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the images, in a learning curve
_CV_LOGITS = 100_000_000  # (images x classes) of a cross-validation of the accuracy, at most
_RANDOM_LABELS_EFFECT = 2.0
"""Design effect in `p_of_guessing`: heads with nothing to learn from the same images make the same
mistakes (benchmarks/notebook/intervals.md)."""
_SAVED_HEAD_EFFECT, _FEW_IMAGES = 0.2, 300
"""Addition to the design effect of cross-validation on up to so many images: the accuracy of the
saved head varies around that of the cross-validated heads (benchmarks/accuracy/README.md)."""
_METHOD_IMAGES = 8_000  # at most, to decide whether the head reads one block or several
_FLOAT64_VALUES, _FLOAT64_LOGITS = 10**7, 2 * 10**7
"""Maximum numbers of feature values and logits for which the head is fitted in float64."""


def cross_validation_rows(y: Tensor, classes: int, seed: int, *, most: int) -> Tensor | None:
    """Return the sorted indices of at most `most` images to cross-validate, or None.

    There are fewer if they would have more than `_CV_LOGITS` logits. The result is None if there
    are fewer images outside each fold than classes or, of a subset, fewer than `CV_FOLDS` images
    per class on average.
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


def cross_validate(
    x: Tensor,
    y: Tensor,
    outputs: Outputs,
    *,
    method: HeadMethod,
    balanced: bool,
    seed: int,
    groups: Tensor | None = None,
    units: Groups | None = None,
    apart: Tensor | None = None,
    once: Tensor | None = None,
) -> tuple[CrossValidation, HeldOutLogits] | None:
    """Cross-validate a head-fitting method on increasing fractions of the images.

    If `balanced` is set, every class has the same total weight. Near-duplicates share a number in
    `groups` (n,). `units` (n,) are the groups that the intervals count. The images in `apart` (n,)
    are left out of every fit, and the classes that are in one group only are part of every fit; the
    results count neither, and no images but those in `once` (n,). The held-out logits come from
    heads fitted to the largest fraction.

    The result is None if there are too few images (see `cross_validation_rows`), or too few outside
    a fold, or if every class is in one group only.
    """
    total, classes = len(y), len(outputs.classes)
    most = _METHOD_IMAGES if method.reads_several else CV_IMAGES
    rows = cross_validation_rows(y, classes, seed, most=most)
    if rows is None:
        return None
    x, y, own = x[rows], y[rows], (torch.arange(total) if groups is None else groups)[rows]
    part = torch.ones(len(y), dtype=torch.bool) if apart is None else ~apart[rows]
    counted = part.clone()
    counted[part] = ~in_one_group(y[part], own[part])
    fold_id = torch.arange(len(y)) % CV_FOLDS
    fold_id[part] = stratified_folds(y[part], CV_FOLDS, seed, own[part])
    fold_id[part & ~counted] = -1  # held out by no fold
    counted &= torch.ones_like(part) if once is None else once[rows]
    if not counted.any():
        return None
    units = None if units is None else units[rows.numpy()][counted.numpy()]
    x = x if method.reads_several else x[:, : method.read]
    standardizer = Standardizer.fit(x if apart is None else x[part])
    scaled, method = standardizer(x), method.scaled(standardizer)
    effect = 1 + _SAVED_HEAD_EFFECT * min(1.0, _FEW_IMAGES / int(counted.sum()))
    curve, right = list[LearningCurvePoint](), list[Tensor]()
    logits, heads = torch.zeros(len(y), classes), None
    for fraction in _CURVE_FRACTIONS:
        chosen = torch.zeros_like(part)
        chosen[part] = _nested_subset(y[part], fold_id[part], fraction, seed)
        if chosen.sum() > 1.5 * fraction * part.sum():
            continue  # mostly the two images that every class keeps
        kept = torch.stack([(fold_id != k) & chosen for k in range(CV_FOLDS)]).float()
        if int(kept.sum(dim=1).min()) < classes:
            continue  # too few images to fit a head
        if balanced:
            kept = kept * class_balanced_weights(y, classes)
        heads = method.fit(scaled, y, kept, classes=classes, start=heads)
        logits = held_out_logits(scaled, fold_id, heads)
        right.append(are_right(logits, y)[counted])
        images, top1 = round(float((kept > 0).sum(dim=1).float().mean())), fraction_right(right[-1])
        bounds = accuracy_interval(right[-1].numpy(), units, effect=effect)
        curve.append({"images": images, "top1": top1, "top1_interval": bounds})
    if not curve:  # too few images outside a fold full of near-duplicates
        return None
    gain = gain_from_twice(
        [p["images"] for p in curve], torch.stack(right, dim=1).numpy(), own[counted].numpy()
    )
    measured = classification_metrics(
        logits[counted], y[counted], outputs, groups=units, effect=effect
    )
    results: CrossValidation = {
        "images": measured["images"],
        "of": measured["images"] + total - len(rows),
        "top1": measured["top1"],
        "top1_interval": curve[-1]["top1_interval"],
        "balanced": measured["balanced"],
        "balanced_interval": measured["balanced_interval"],
        "classes": sum(row["images"] > 0 for row in measured["per_class"].values()),
        "majority": measured["majority"],
        "curve": curve,
        "gain_from_twice": gain[0] if gain else None,
        "gain_interval": gain[1] if gain else None,
        # Labels are scored here without their thresholds
        "weak_spots": [] if y.ndim == 2 else _weakest_classes(measured),
    }
    if y.ndim == 1:
        results["p_guessing"] = p_of_guessing(
            logits[counted].numpy(), y[counted].numpy(), units, _RANDOM_LABELS_EFFECT
        )
    if units is not None:
        results["groups"] = len(np.unique(units))
    held = fold_id >= 0
    return results, (rows[held], logits[held])


def _nested_subset(y: Tensor, fold_id: Tensor, fraction: float, seed: int) -> Tensor:
    """Return which images (n,) are in a fraction of each class, at least two images of each.

    Smaller subsets are nested in larger ones. The images of a class are taken from its folds in
    turn, so that a class with two images is not held out as a whole. Labels are not stratified.
    """
    label = np.zeros(len(y), np.int64) if y.ndim == 2 else y.numpy()
    random = np.random.default_rng([seed, 1])
    drawn = random.permutation(len(y))
    cell = np.stack([label, fold_id.numpy()])[:, drawn]
    turn = _ranks(cell[0] * (cell[1].max() + 2) + cell[1])
    order = np.argsort(turn, kind="stable")
    place = np.empty(len(y), np.int64)
    place[drawn[order]] = _ranks(cell[0][order])
    sizes = np.bincount(label)
    most = np.maximum(2, np.ceil(fraction * sizes - random.random(len(sizes))))  # on average, so
    return torch.from_numpy(place < most[label])


def _ranks(values: Indices) -> Indices:
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
    how many training images each point has, in ascending order. A power law, whose error vanishes,
    is fitted to the last three points. The 95% interval also covers e0 + a / n, fitted to the last
    two, because neither curve is known to be right. It comes from a bootstrap over `groups` (n,).
    The result is None if there are fewer than three points, if any error is zero, or if the whole
    interval is below 0.

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
    rise = (errors[-2] - errors[-1]) / (1 / images[-2] - 1 / images[-1])  # of e0 + rise / n
    gains = np.stack([errors[-1] * (1 - 2**slopes), rise / (2 * images[-1])])  # (2, 1 + resamples)
    ends = np.quantile(gains[:, 1:], [0.025, 0.975], axis=1).round(9) + 0.0  # (2, 2)
    low, high = float(ends[0].min()), float(ends[1].max())
    return (float(gains[0, 0]), (low, high)) if high > 0 else None


def _weakest_classes(found: Metrics) -> list[WeakClass]:
    """Return the three classes with the lowest recall, each with its most frequent confusion."""
    others = mostly_taken_for(found)
    weak: list[WeakClass] = [
        {
            "class": name,
            "recall": row["recall"],
            "recall_interval": row["recall_interval"],
            "images": row["images"],
            "taken_for": others.get(name),
        }
        for name, row in found["per_class"].items()
        if row["recall"] is not None and row["recall_interval"] is not None
    ]
    return sorted(weak, key=itemgetter("recall"))[:3]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedHead:
    """Linear layer on raw features, with the scores that determined how it was fitted."""

    weight: Tensor  # (C, D), or (C, read) if the head reads only the leading features; float32
    bias: Tensor  # (C,), float32
    last: LinearHead  # on the leading features
    method: HeadMethod
    path: Sequence[LogLine]  # penalties tried with their scores; empty if the penalty was given
    candidates: Sequence[HeadCandidate]  # empty if cross-validation did not choose the blocks

    @property
    def l2(self) -> float:
        """L2 penalty on standardised features or, if each label has its own, their median."""
        penalty = self.method.l2
        return penalty if isinstance(penalty, float) else median(penalty)


def solve_head(  # noqa: PLR0913 - independent keyword-only options
    x: Tensor,
    y: Tensor,
    *,
    classes: int,
    l2: Penalty = 0.0,
    balanced: bool,
    seed: int,
    views: int = 1,
    groups: Tensor | None = None,
    read: int | None = None,
    method: HeadMethod | None = None,
    centre: Tensor | None = None,
) -> SolvedHead:
    """Fit a linear head to raw float32 features (n, D), on their device; it is returned on the CPU.

    The rows of `x` and `y` form `views` blocks, one for each view of the same images. If `balanced`
    is set, every class has the same total weight; a class may have no rows. Near-duplicates share a
    number in `groups` (n / views,). `l2` is the penalty on standardised features. If it is 0,
    cross-validation chooses the penalty.

    The first `read` columns (default: all) are features of the last block. If there are more
    columns, cross-validation also chooses which blocks the head reads; with too few images per
    class, it reads only the last block. With a `method`, nothing is chosen. A head on the last
    block is shrunk towards the weight `centre` (C, D) of another one, or towards zero.
    """
    weights = class_balanced_weights(y, classes) if balanced else torch.ones(len(y))
    standardizer, read = Standardizer.fit(x), read or x.shape[1]
    data = Folded(
        x=x, y=y, sample_weight=weights, classes=classes, seed=seed, views=views, groups=groups
    )
    path, candidates = list[LogLine](), list[HeadCandidate]()
    if method is None and l2 == 0:
        leading = standardizer.leading(read)
        l2, path = choose_penalty(
            replace(data, x=x[:, :read]), leading, leading.scale_weight(centre)
        )
    some = stratified_subset(data.truth, min(_METHOD_IMAGES, CV_IMAGES), seed)
    is_enough = len(some) >= min(len(data.truth), CV_FOLDS * classes)
    if method is None and read < x.shape[1] and is_enough:
        chosen = data.some(some)
        chosen = replace(chosen, x=standardizer(chosen.x))
        method, candidates = choose_head_method(chosen, l2=l2, read=read)
    method = method or HeadMethod(l2=l2, read=read, centre=centre)
    # Logistic regression on the leading features
    leading, own = standardizer.leading(method.read), x[:, : method.read]
    fit = functools.partial(
        solve_logistic,
        y=y,
        sample_weight=weights[None],
        classes=classes,
        l2=method.l2,
        centre=leading.scale_weight(method.centre),
    )
    if own.numel() > LARGE_VALUES:  # read in place, leaving memory-mapped features on disk
        logistic = fit(own, standardizer=leading)[0]
    else:
        scaled = leading(own)
        rough = rough_fit(scaled, **fit.keywords)
        is_small = own.numel() <= _FLOAT64_VALUES and len(own) * classes <= _FLOAT64_LOGITS
        logistic = fit(scaled.double() if is_small else scaled, start=rough)[0]
    head = last = leading.unscale_head(logistic)
    if method.reads_several:
        discriminant = _solve_discriminant(
            x,
            y,
            weights,
            classes=classes,
            shrinkages=[method.shrinkage],
            standardizer=standardizer,
        )[0]
        head = standardizer.unscale_head(method.combine(logistic, discriminant))
    return SolvedHead(
        weight=head[0].cpu(),
        bias=head[1].cpu(),
        last=(last[0].cpu(), last[1].cpu()),
        method=method,
        path=path,
        candidates=candidates,
    )
