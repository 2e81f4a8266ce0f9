"""Probability calibration: temperature scaling, and the expected calibration error.

For multi-label data, each label is calibrated like a two-class classifier whose logits are 0 and
the label's logit; `labels` is then (n, C), with 1 where an image has a label.

Arithmetic is in float64, except in `softmax` and in the exponentials of `fit_temperature`. The
temperature is merged into the head when a run is saved, so predictions and exports do not need to
apply it.

Notation: n images, C classes, K bins, R simulations, L trial values; `logits` is (n, C), `labels`
(n,) are class indices, `confidence` (n,) is the probability of the predicted class, and `right`
(n,) is 1 where the prediction is correct and 0 otherwise.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from vitft.metrics.intervals import Flags, Floats, Groups, variance_ratio
from vitft.metrics.results import CalibrationBin, Interval

Ints = np.ndarray[Any, np.dtype[np.int64]]

_BINS = 15
"""Maximum number of bins, as in Guo et al. 2017. Unlike in that paper, all bins contain about the
same number of images: most bins of equal width would be empty if most confidences were close to
1."""
_MIN_IMAGES_PER_BIN = 15
"""Minimum number of images per bin, which limits the number of bins for small datasets. There is
always at least one bin."""
_FOLDS = 10
TEMPERATURES = (0.001, 50.0)
"""Lower and upper bounds on the temperature; an optimum outside these bounds is rejected. A head
that begins at zero and is trained for few steps needs 0.02 or less."""
_SCANNED = 12
"""Number of temperatures at which the search begins, evenly spaced on a logarithmic scale."""
PRIOR_SPREADS = (0.3, 0.5)
"""Spreads of the prior on the logarithm of the temperature, which has mean 0: normal within one
spread, exponential beyond (the density of Huber's loss). The first is used for validation images
alone, the second if cross-validated training images are added. Models from the training loop need
temperatures near 1, heads fitted by L-BFGS need 0.3 to 1.5, and models trained for few steps far
smaller ones, which a normal prior would prevent (benchmarks/notebook/calibration.md). With 150
images, the prior has hardly any effect.
"""
_MAX_DIFFERENCE = 4.0
"""Maximum number of standard errors by which the mean losses of two comparable sets may differ."""
SIMULATIONS, TRIALS = 1000, 48
MAX_LOGITS = 2**25
"""Maximum number of logits to which a temperature is fitted (128 MiB in float32); of more images,
evenly spaced ones are used. With 1,000 classes, these are 33,554 images, which determine the
temperature to a fraction of a percent."""


class ScoredSet(NamedTuple):
    """Logits (n, C) and targets of images that the model was not fitted to.

    The targets are true class indices (n,), or 0 or 1 for each label (n, C).
    """

    logits: Floats
    labels: Ints
    groups: Groups | None = None
    """Group of each image, if images are not independent."""

    def __len__(self) -> int:
        return len(self.labels)

    def pooled(self, other: "ScoredSet | None") -> tuple[Floats, Ints]:
        """Return the logits and labels of both sets."""
        if other is None:
            return self.logits, self.labels
        logits = np.concatenate([self.logits, other.logits])
        return logits, np.concatenate([self.labels, other.labels])

    def of_each_label(self) -> "list[ScoredSet]":
        """Return one two-class set per label; class 1 contains the images that have the label."""
        return [
            ScoredSet(np.stack([np.zeros_like(z), z], axis=1), y.astype(np.int64), self.groups)
            for z, y in zip(self.logits.T, self.labels.T, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTemperature:
    """A temperature and, for each validation image, a temperature fitted without that image."""

    value: "float | Floats"
    """Divisor of the logits, or of the logits of each label (C,); 1 if none was fitted."""
    held_out: Floats
    """Temperatures for unbiased metrics: for each validation image, the temperature fitted without
    it (n,) or, for multi-label data, one temperature for each label (n, C)."""
    cross_validated: int = 0
    """Number of training images whose cross-validated logits were also used to fit `value`."""
    note: str = ""  # reason why none was fitted; empty if one was


def calibrate_temperature(
    validation: ScoredSet, training: ScoredSet | None = None
) -> FittedTemperature:
    """Fit the temperature to validation images and any cross-validated training predictions.

    For multi-label data, a temperature is fitted to each label.

    The result is the most probable temperature, given the log losses and a prior. The prior matters
    only if there are few images. Without it, the temperature would approach 0 whenever all images
    are predicted correctly. If the most probable temperature is outside `TEMPERATURES`, the result
    is 1, with a note.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks",
    https://arxiv.org/abs/1706.04599, section 4.2.
    """
    if validation.labels.ndim == 2:
        return _calibrate_labels(validation, training)
    images, (logits, labels) = len(validation), validation.pooled(training)
    fit = functools.partial(fit_temperature, spread=PRIOR_SPREADS[training is not None])
    fitted = fit(logits, labels)
    if fitted is None:
        low, high = TEMPERATURES
        note = f"no temperature between {low} and {high:.0f} minimises the loss"
        return FittedTemperature(value=1.0, held_out=np.ones(images), note=note)
    held_out = np.empty(images)
    for fold, rest in folds(images, len(labels)):
        found = fit(logits[rest], labels[rest], near=fitted) if rest.any() else None
        held_out[fold] = found or 1.0
    return FittedTemperature(value=fitted, held_out=held_out, cross_validated=len(labels) - images)


def folds(images: int, total: int) -> Iterator[tuple[Flags, Flags]]:
    """Yield, for each fold of the first `images` of `total` images, itself and all other images.

    The former are flags (images,), the latter (total,).
    """
    fold_id = np.full(total, -1)
    fold_id[:images] = np.random.default_rng(0).permutation(images) % min(_FOLDS, images)
    for k in range(fold_id.max() + 1):
        yield fold_id[:images] == k, fold_id != k


def _calibrate_labels(validation: ScoredSet, training: ScoredSet | None) -> FittedTemperature:
    """Fit a temperature to each label of multi-label data (see `calibrate_temperature`)."""
    others = [None] * validation.labels.shape[1] if training is None else training.of_each_label()
    pairs = zip(validation.of_each_label(), others, strict=True)
    fitted = [calibrate_temperature(one, other) for one, other in pairs]
    notes = [one.note for one in fitted if one.note]
    return FittedTemperature(
        value=np.array([one.value for one in fitted]),
        held_out=np.stack([one.held_out for one in fitted], axis=1),
        cross_validated=0 if training is None else len(training),
        note=f"{len(notes)} of {len(fitted)} labels: {notes[0]}" if notes else "",
    )


def are_comparable(first: ScoredSet, second: ScoredSet) -> bool:
    """Return whether the losses of a model on two sets are similar enough to pool the sets.

    The mean losses, at the temperature fitted to both sets, must differ by at most
    `_MAX_DIFFERENCE` standard errors. They differ by more if, for example, the training images
    contain undetected near-duplicates. For multi-label data, this must hold for each label.
    """
    if first.labels.ndim == 2:
        pairs = zip(first.of_each_label(), second.of_each_label(), strict=True)
        return all(are_comparable(one, other) for one, other in pairs)
    logits, labels = first.pooled(second)
    losses = log_losses(logits / (fit_temperature(logits, labels) or 1.0), labels)
    one, other = losses[: len(first)], losses[len(first) :]
    variance = variance_ratio(one - one.mean(), first.groups) / len(first)
    variance += variance_ratio(other - other.mean(), second.groups) / len(second)
    error = float(losses.std()) * variance**0.5
    return abs(float(one.mean() - other.mean())) <= _MAX_DIFFERENCE * error


def fit_temperature(
    logits: Floats, labels: Ints, *, spread: float = PRIOR_SPREADS[1], near: float | None = None
) -> float | None:
    """Return the most probable temperature T, or None if it is outside `TEMPERATURES`.

    T minimises the summed log loss plus the prior term: Huber's loss of `log(T) / spread`, which is
    quadratic up to 1 and linear beyond. At a minimum, the derivative with respect to log(1 / T)
    changes sign; this root is found to a relative precision of 1e-4, far below the statistical
    uncertainty. With few images there may be two minima, one near T = 1, of which the lower one is
    returned. If `near` is given, the search starts near this temperature, which saves time; the
    precision is the same.

    Source of Huber's loss: Huber 1964, "Robust estimation of a location parameter".
    """
    step = max(1, math.ceil(logits.size / MAX_LOGITS))
    logits, labels = logits[::step], labels[::step]
    below = (logits - logits.max(axis=1, keepdims=True)).astype(np.float32)  # the largest is 0
    truth = float(below[np.arange(len(labels)), labels].mean(dtype=np.float64))

    @functools.cache
    def slope(sharpness: float) -> float:
        weights = np.exp(np.float32(sharpness) * below)
        means = np.einsum("nc,nc->n", weights, below) / weights.sum(axis=1)
        data = sharpness * (float(means.mean(dtype=np.float64)) - truth)
        prior = min(max(math.log(sharpness) / spread, -1.0), 1.0) / spread
        return data + prior / len(labels)

    def objective(sharpness: float) -> float:
        sums = np.exp(np.float32(sharpness) * below).sum(axis=1)
        data = float(np.log(sums).mean(dtype=np.float64)) - sharpness * truth
        distance = abs(math.log(sharpness)) / spread
        prior = distance**2 / 2 if distance < 1 else distance - 0.5
        return data + prior / len(labels)

    least, most = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]
    if near is not None:
        low, high = max(least, 0.7 / near), min(most, 1.4 / near)
        if slope(low) < 0 < slope(high):
            return 1 / find_root(slope, low, high)
    scanned = np.geomspace(least, most, _SCANNED).tolist()
    brackets = [(low, high) for low, high in pairwise(scanned) if slope(low) < 0 <= slope(high)]
    minima = [find_root(slope, low, high) for low, high in brackets]
    return 1 / min(minima, key=objective) if minima else None


def find_root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a function between `low` and `high`, to a relative precision of 1e-4.

    The function must be negative below the root and positive above it; `low` must be positive.

    Method: regula falsi. If one end of the interval stays in place twice in a row, its function
    value is halved ("Illinois", Dowell & Jarratt 1971).
    """
    below, above, last = rising(low), rising(high), 0
    while high - low > 1e-4 * low:
        middle = (low * above - high * below) / (above - below)
        middle = min(max(middle, low + 1e-5 * low), high - 1e-5 * low)  # so that both ends move
        value = rising(middle)
        if value < 0:
            low, below, above = middle, value, above / 2 if last < 0 else above
        else:
            high, above, below = middle, value, below / 2 if last > 0 else below
        last = -1 if value < 0 else 1
        if value == 0:
            return middle
    return (low + high) / 2


def _logsumexp(logits: Floats) -> Floats:
    """Return the log-sum-exp of each image's logits: (n, C) to (n,).

    The exponentials of at most `MAX_LOGITS` logits are in memory at a time.
    """
    best, rows = logits.max(axis=1), max(1, MAX_LOGITS // max(1, logits.shape[1]))
    parts = [slice(begin, begin + rows) for begin in range(0, max(1, len(logits)), rows)]
    sums = [np.exp(logits[part] - best[part, None]).sum(axis=1) for part in parts]
    return np.asarray(best + np.log(np.concatenate(sums)))


def log_losses(logits: Floats, labels: Ints) -> Floats:
    """Return the log loss of each image in nats (n,); multi-label losses are summed over labels."""
    if labels.ndim == 2:
        return np.asarray(np.logaddexp(0, np.where(labels, -logits, logits)).sum(axis=1))
    loss: Floats = _logsumexp(logits) - logits[np.arange(len(labels)), labels]
    return loss


def confidence_and_correctness(logits: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """Return `confidence` (n,) and `right` (n,), as defined in the module docstring.

    For multi-label data, each label of each image counts as a separate prediction: (n C,).
    """
    if labels.ndim == 2:
        right = (logits >= 0) == labels.astype(bool)
        return np.ravel(sigmoid(np.abs(logits))), np.ravel(right).astype(np.float64)
    best: Floats = np.exp(logits.max(axis=1) - _logsumexp(logits))
    right = logits.argmax(axis=1) == labels
    return best, right.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bins:
    """Statistics of images in K bins of increasing confidence; bin sizes differ by at most one."""

    low: Floats  # (K,): halfway to the bin below; the smallest confidence for the first
    high: Floats
    images: Ints
    confidence: Floats  # mean over the images in the bin
    accuracy: Floats

    @property
    def gap(self) -> float:
        """Standard expected calibration error without bias correction (see `_binned_error`)."""
        return float(_binned_error(self.images, self.confidence, self.accuracy))

    def rows(self) -> list[CalibrationBin]:
        """Return the bins in the form stored in eval.json."""
        columns = (self.low, self.high, self.images, self.confidence, self.accuracy)
        return [
            CalibrationBin(low=low, high=high, images=images, confidence=mean, accuracy=accuracy)
            for low, high, images, mean, accuracy in zip(
                *map(np.ndarray.tolist, columns), strict=True
            )
        ]


def _binned_error(images: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    """Return the mean of |accuracy - confidence| over bins, weighted by the number of images.

    `images` and `confidence` are (K,), `accuracy` is (..., K), and the result is (...).
    """
    return np.asarray((images * np.abs(accuracy - confidence)).sum(axis=-1) / images.sum())


def bin_by_confidence(confidence: Floats, right: Floats) -> _Bins:
    """Sort images by confidence and divide them into at most `_BINS` bins."""
    total = len(confidence)
    count = min(_BINS, max(1, total // _MIN_IMAGES_PER_BIN))
    order = np.argsort(confidence, kind="stable")
    ends = np.linspace(0, total, count + 1).round().astype(np.int64)
    images = np.diff(ends)
    ranked = confidence[order]
    between = (ranked[ends[1:-1] - 1] + ranked[ends[1:-1]]) / 2
    return _Bins(
        low=np.concatenate([ranked[:1], between]),
        high=np.concatenate([between, ranked[-1:]]),
        images=images,
        confidence=np.add.reduceat(ranked, ends[:-1]) / images,
        accuracy=np.add.reduceat(right[order], ends[:-1]) / images,
    )


def calibration_error(bins: _Bins, effect: float = 1.0) -> tuple[float, Interval]:
    """Return the expected calibration error, corrected for bias, and its 95% interval.

    `effect` is the design effect of the images (`intervals.design_effect`).

    The plug-in estimate (`Bins.gap`) is biased: for a perfectly calibrated model and 240 images, it
    is about 4%, and resampling images adds the same bias again. The true error is therefore
    estimated by simulation: for each trial error, the numbers of correct predictions in all bins
    are drawn many times. The interval consists of the trial errors for which the observed estimate
    is neither among the smallest 2.5% of the simulated estimates nor among the largest 2.5%. Small
    true errors are in 97 to 100% of the intervals, because these do not end below 0. The point
    estimate is the trial error for which the observed estimate is the simulated median.

    In the trials, the accuracy of every bin deviates from the confidence with the observed sign.
    Half of the deviation is proportional to the observed one, and half is the same in all bins. For
    the upper limit, an observed estimate below the median for perfect calibration is raised to that
    median (Cowan et al. 2011, "Power-constrained limits", https://arxiv.org/abs/1105.3166).
    """
    observed = bins.gap
    bins = replace(bins, images=np.maximum(1, np.round(bins.images / effect)).astype(np.int64))
    random = np.random.default_rng(0)
    chance = float(np.median(_simulate_errors(bins, bins.confidence[None], random)))
    deviation = bins.accuracy - bins.confidence
    shape = np.sign(deviation) * (np.abs(deviation) + observed)
    size = float(_binned_error(bins.images, 0 * shape, shape))
    if size == 0:
        shape, size = np.where(bins.confidence < 0.5, 1.0, -1.0), 1.0
    reach = min(1.0, 2.5 * max(observed, chance) + 0.5 / float(np.sqrt(bins.images.sum())))
    trials = reach * np.linspace(0, 1, TRIALS) ** 1.5  # finer near zero
    truth = np.clip(bins.confidence + trials[:, None] * shape / size, 0, 1)  # (L, K)
    errors = _binned_error(bins.images, bins.confidence, truth)
    errors = np.maximum.accumulate(errors)  # clipping makes some of them smaller
    sums = _simulate_errors(bins, truth, random)  # (L, R)

    def error_at(quantile: float, estimate: float) -> float:
        """Return the trial error for which `estimate` is the given quantile of the simulations."""
        same = np.abs(sums - estimate) <= 1e-12
        smaller = ((sums < estimate) & ~same).mean(axis=1) + same.mean(axis=1) / 2
        smaller = np.minimum.accumulate(smaller)  # decreasing except for noise
        return 0.0 if smaller[0] <= quantile else float(np.interp(-quantile, -smaller, errors))

    upper = error_at(0.025, max(observed, chance))
    return error_at(0.5, observed), (error_at(0.975, observed), upper)


def _simulate_errors(bins: _Bins, truth: Floats, random: np.random.Generator) -> Floats:
    """Return simulated plug-in estimates (L, R) for bins with true accuracies `truth` (L, K)."""
    chances = np.broadcast_to(truth[:, None], (len(truth), SIMULATIONS, len(bins.images)))
    drawn = random.binomial(bins.images, chances) / bins.images  # (L, R, K)
    return _binned_error(bins.images, bins.confidence, drawn)


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert logits to probabilities along the last axis, in the precision of the logits.

    The array `logits` is overwritten; pass a copy, e.g. `logits.astype(np.float64)`, to keep it.
    """
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits


def sigmoid(logits: Floats) -> Floats:
    """Convert the logits of labels to their probabilities."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))


def logit_of(probability: Floats | float) -> Floats:
    """Return the logits of probabilities from 0 to 1; those of 0 and 1 are infinite."""
    with np.errstate(divide="ignore"):
        p = np.asarray(probability, dtype=np.float64)
        return np.asarray(np.log(p) - np.log1p(-p))
