"""Probability calibration: temperature scaling, and the expected calibration error.

For multi-label data, each label is calibrated like a two-class classifier whose logits are 0 and
the label's logit; `labels` is then (n, C), with 1 where an image has a label.

Arithmetic is in float64, except in `softmax` and in the exponentials of `fit_temperature`. The
temperature is merged into the head when a run is saved.

Notation: n images, C classes, K bins, R simulations, L trial values; `logits` is (n, C), `labels`
(n,) are class indices, `confidence` (n,) is the probability of the predicted class, and `right`
(n,) is 1 where the prediction is correct and 0 otherwise.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from vitft.metrics.intervals import Flags, Floats, Groups, Interval, variance_ratio
from vitft.metrics.results import CalibrationBin

Ints = np.ndarray[Any, np.dtype[np.int64]]

_BINS = 15
"""Maximum number of bins, as in Guo et al. 2017. Unlike in that paper, all bins contain about the
same number of images: most bins of equal width would be empty."""
_MIN_IMAGES_PER_BIN = 15  # except in a single bin
_FOLDS = 10
_TEMPERATURES = (0.001, 50.0)
"""Lower and upper bounds on the temperature; an optimum outside these bounds is rejected. A head
that begins at zero and is trained for few steps needs 0.02 or less."""
_SCANNED = 12  # temperatures at which the search begins
_PRIOR_SPREADS = (0.3, 0.5)
"""Spreads of the prior on the logarithm of the temperature, which has mean 0: normal within one
spread, exponential beyond (the density of Huber's loss). The first is used for validation images
alone, the second if cross-validated training images are added. Models trained for few steps need
temperatures far below 1, which a normal prior would prevent (benchmarks/notebook/calibration.md).
"""
_MAX_DIFFERENCE = 4.0  # standard errors by which mean losses of comparable sets may differ
_SIMULATIONS, _TRIALS = 1000, 48
MAX_LOGITS = 2**25
"""Maximum number of logits to which a temperature is fitted (128 MiB in float32); of more images,
evenly spaced ones are used."""


class ScoredSet(NamedTuple):
    """Logits (n, C) and targets, (n,) or (n, C), of images that the model was not fitted to."""

    logits: Floats
    labels: Ints
    groups: Groups | None = None  # of each image, if images are not independent

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

    value: "float | Floats"  # divisor of the logits, or of those of each label (C,); 1 if unfitted
    held_out: Floats  # for unbiased metrics: fitted without each image, (n,) or (n, C)
    cross_validated: int = 0  # training images to whose cross-validated logits it was also fitted
    note: str = ""  # reason why none was fitted; empty if one was


def calibrate_temperature(
    validation: ScoredSet, training: ScoredSet | None = None
) -> FittedTemperature:
    """Fit the temperature to validation images and any cross-validated training predictions.

    For multi-label data, a temperature is fitted to each label.

    The result is the most probable temperature, given the log losses and a prior. The prior matters
    only if there are few images. Without it, the temperature would approach 0 whenever all images
    are predicted correctly. If the most probable temperature is outside `_TEMPERATURES`, the result
    is 1, with a note.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks",
    https://arxiv.org/abs/1706.04599, section 4.2.
    """
    images, (logits, labels) = len(validation.labels), validation.pooled(training)
    if labels.ndim == 2:
        others = [None] * labels.shape[1] if training is None else training.of_each_label()
        pairs = zip(validation.of_each_label(), others, strict=True)
        each = [calibrate_temperature(one, other) for one, other in pairs]
        notes = [one.note for one in each if one.note]
        return FittedTemperature(
            value=np.array([one.value for one in each]),
            held_out=np.stack([one.held_out for one in each], axis=1),
            cross_validated=len(labels) - images,
            note=f"{len(notes)} of {len(each)} labels: {notes[0]}" if notes else "",
        )
    fit = functools.partial(fit_temperature, spread=_PRIOR_SPREADS[training is not None])
    fitted = fit(logits, labels)
    if fitted is None:
        low, high = _TEMPERATURES
        note = f"no temperature between {low} and {high:.0f} minimises the loss"
        return FittedTemperature(value=1.0, held_out=np.ones(images), note=note)
    held_out = np.empty(images)
    for fold, rest in folds(images, len(labels)):
        found = fit(logits[rest], labels[rest], near=fitted) if rest.any() else None
        held_out[fold] = found or 1.0
    return FittedTemperature(value=fitted, held_out=held_out, cross_validated=len(labels) - images)


def folds(images: int, total: int) -> Iterator[tuple[Flags, Flags]]:
    """Yield flags of each fold of the first `images` of `total` images, and of all other images."""
    fold_id = np.full(total, -1)
    fold_id[:images] = np.random.default_rng(0).permutation(images) % min(_FOLDS, images)
    for k in range(fold_id.max() + 1):
        yield fold_id[:images] == k, fold_id != k


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
    one, other = np.split(losses, [len(first.labels)])
    variance = variance_ratio(one - one.mean(), first.groups) / len(one)
    variance += variance_ratio(other - other.mean(), second.groups) / len(other)
    error = float(losses.std()) * variance**0.5
    return abs(float(one.mean() - other.mean())) <= _MAX_DIFFERENCE * error


def fit_temperature(
    logits: Floats, labels: Ints, *, spread: float = _PRIOR_SPREADS[1], near: float | None = None
) -> float | None:
    """Return the most probable temperature T, or None if it is outside `_TEMPERATURES`.

    T minimises the summed log loss plus the prior term: Huber's loss of `log(T) / spread`, which is
    quadratic up to 1 and linear beyond. At a minimum, the derivative with respect to log(1 / T)
    changes sign; this root is found to a relative precision of 1e-4. With few images there may be
    two minima, one near T = 1, of which the lower one is returned. If `near` is given, the search
    starts near this temperature, which saves time.

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

    least, most = 1 / _TEMPERATURES[1], 1 / _TEMPERATURES[0]
    if near is not None:
        low, high = max(least, 0.7 / near), min(most, 1.4 / near)
        if slope(low) < 0 < slope(high):
            return 1 / _find_root(slope, low, high)
    scanned = np.geomspace(least, most, _SCANNED).tolist()
    brackets = [(low, high) for low, high in pairwise(scanned) if slope(low) < 0 <= slope(high)]
    minima = [_find_root(slope, low, high) for low, high in brackets]
    return 1 / min(minima, key=objective) if minima else None


def _find_root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a rising function between two positive numbers (regula falsi).

    If one end of the interval stays in place twice in a row, its function value is halved
    ("Illinois", Dowell & Jarratt 1971).
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
    return (low + high) / 2


def _logsumexp(logits: Floats) -> Floats:
    """Return the log-sum-exp of each image's logits (n,), with few exponentials in memory."""
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


def binned_error(bins: Sequence[CalibrationBin]) -> float:
    """Return the standard expected calibration error, without a correction for its bias."""
    return float(_mean_gap(*_columns(bins)))


def _columns(bins: Sequence[CalibrationBin]) -> tuple[Floats, Floats, Floats]:
    """Return the numbers of images, mean confidences and accuracies of bins, (K,) each."""
    images, confidence, accuracy = np.array(
        [(one["images"], one["confidence"], one["accuracy"]) for one in bins]
    ).T
    return images, confidence, accuracy


def _mean_gap(images: Floats, confidence: Floats, accuracy: Floats) -> Floats:
    """Return the mean of |accuracy - confidence| over bins (..., K), weighted by `images` (K,)."""
    return np.asarray((images * np.abs(accuracy - confidence)).sum(axis=-1) / images.sum())


def bin_by_confidence(confidence: Floats, right: Floats) -> list[CalibrationBin]:
    """Sort images by confidence and divide them into at most `_BINS` bins of about equal size.

    Between two bins, the limit is halfway between their images.
    """
    total = len(confidence)
    count = min(_BINS, max(1, total // _MIN_IMAGES_PER_BIN))
    order = np.argsort(confidence, kind="stable")
    ends = np.linspace(0, total, count + 1).round().astype(np.int64)
    images = np.diff(ends)
    ranked = confidence[order]
    between = (ranked[ends[1:-1] - 1] + ranked[ends[1:-1]]) / 2
    columns = (
        np.concatenate([ranked[:1], between]),
        np.concatenate([between, ranked[-1:]]),
        images,
        np.add.reduceat(ranked, ends[:-1]) / images,
        np.add.reduceat(right[order], ends[:-1]) / images,
    )
    return [
        {"low": low, "high": high, "images": number, "confidence": mean, "accuracy": accuracy}
        for low, high, number, mean, accuracy in zip(*map(np.ndarray.tolist, columns), strict=True)
    ]


def calibration_error(
    bins: Sequence[CalibrationBin], effect: float = 1.0
) -> tuple[float, Interval]:
    """Return the expected calibration error, corrected for bias, and its 95% interval.

    `effect` is the design effect of the images (`intervals.design_effect`).

    The plug-in estimate (`binned_error`) is biased: for a perfectly calibrated model and 240
    images, it is about 4%, and resampling images adds the same bias again. The true error is
    therefore estimated by simulation: for each trial error, the numbers of correct predictions in
    all bins are drawn many times. The interval consists of the trial errors for which the observed
    estimate is neither among the smallest nor among the largest 2.5% of the simulated estimates,
    and the point estimate is the one for which it is the simulated median.

    In the trials, the accuracy of every bin deviates from the confidence with the observed sign.
    Half of the deviation is proportional to the observed one, and half is the same in all bins. For
    the upper limit, an observed estimate below the median for perfect calibration is raised to that
    median (Cowan et al. 2011, "Power-constrained limits", https://arxiv.org/abs/1105.3166).
    """
    counts, confidence, accuracy = _columns(bins)
    observed = float(_mean_gap(counts, confidence, accuracy))
    images, random = np.maximum(1, np.round(counts / effect)), np.random.default_rng(0)

    def simulate(truth: Floats) -> Floats:
        """Return simulated plug-in estimates (L, R) for bins with true accuracies (L, K)."""
        chances = np.broadcast_to(truth[:, None], (len(truth), _SIMULATIONS, len(images)))
        return _mean_gap(
            images, confidence, random.binomial(images.astype(np.int64), chances) / images
        )

    chance = float(np.median(simulate(confidence[None])))
    deviation = accuracy - confidence
    shape = np.sign(deviation) * (np.abs(deviation) + observed)
    size = float(_mean_gap(images, 0 * shape, shape))
    if size == 0:
        shape, size = np.where(confidence < 0.5, 1.0, -1.0), 1.0
    reach = min(1.0, 2.5 * max(observed, chance) + 0.5 / float(np.sqrt(images.sum())))
    trials = reach * np.linspace(0, 1, _TRIALS) ** 1.5  # finer near zero
    truth = np.clip(confidence + trials[:, None] * shape / size, 0, 1)  # (L, K)
    errors = _mean_gap(images, confidence, truth)
    errors = np.maximum.accumulate(errors)  # clipping makes some of them smaller
    sums = simulate(truth)

    def error_at(quantile: float, estimate: float) -> float:
        """Return the trial error for which `estimate` is the given quantile of the simulations."""
        same = np.abs(sums - estimate) <= 1e-12
        smaller = ((sums < estimate) & ~same).mean(axis=1) + same.mean(axis=1) / 2
        smaller = np.minimum.accumulate(smaller)  # decreasing except for noise
        return 0.0 if smaller[0] <= quantile else float(np.interp(-quantile, -smaller, errors))

    upper = error_at(0.025, max(observed, chance))
    return error_at(0.5, observed), (error_at(0.975, observed), upper)


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
