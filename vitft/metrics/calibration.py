"""Whether 80 % means 80 %: calibration error with an interval, and the temperature that lowers it.

Everything here is numbers in, numbers out, in float64. The temperature goes into the head when a
run is saved (`train`), so nothing downstream needs to know of it.

Letters: n images, C classes, K bins, R simulations, L trial values. `logits` are (n, C),
`labels` (n,) class indices, `confidence` the probability of the best class, `right` 0 or 1 (n,).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitft.metrics.intervals import Floats
from vitft.metrics.results import CalibrationBin, Interval

Ints = np.ndarray[Any, np.dtype[np.int64]]

BINS = 15
"""As in Guo et al. 2017, but with equally many images in each: bins of equal width are nearly all
empty where most confidences are near 1."""
PER_BIN = 15
"""Images that a bin holds at least; with fewer images there are fewer bins."""
FOLDS = 10
COLDEST, HOTTEST = 0.02, 50.0
"""Temperatures outside are a sign that the data cannot tell."""
MIN_IMAGES, MIN_WRONG = 30, 5
"""One number is fitted, and what tells it is mostly how the wrong answers are scored."""
SIMULATIONS, TRIALS = 1000, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """What logits are divided by, and what each validation image was judged with."""

    value: float
    held_out: Floats
    """Per image (n,), fitted without that image; so figures made with it are not flattered."""
    note: str = ""
    """Why it was left at 1, or nothing."""


def temperature_for(logits: Floats, labels: Ints) -> Temperature:
    """The temperature with the smallest log-loss, or 1 with the reason why it is not to be had.

    It is kept only if it lowers the loss of images that it was fitted without.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks",
    https://arxiv.org/abs/1706.04599, section 4.2.
    """
    images = len(labels)
    wrong = int((logits.argmax(axis=1) != labels).sum())
    ones = np.ones(images)
    if images < MIN_IMAGES or not MIN_WRONG <= wrong < images:
        note = f"{images} validation images with {wrong} errors are too few to fit a temperature"
        return Temperature(value=1.0, held_out=ones, note=note)
    fitted = fit(logits, labels)
    if fitted is None:
        note = f"no temperature from {COLDEST} to {HOTTEST:.0f} minimises the loss"
        return Temperature(value=1.0, held_out=ones, note=note)
    held_out = np.empty(images)
    fold = np.random.default_rng(0).permutation(images) % FOLDS
    for k in range(FOLDS):
        held_out[fold == k] = fit(logits[fold != k], labels[fold != k], near=fitted) or 1.0
    before, after = (float(losses(logits / t[:, None], labels).mean()) for t in (ones, held_out))
    if after >= before:
        note = f"a temperature of {fitted:.3f} did not help on held-out images"
        return Temperature(value=1.0, held_out=ones, note=note)
    return Temperature(value=fitted, held_out=held_out)


def fit(logits: Floats, labels: Ints, *, near: float | None = None) -> float | None:
    """Where the mean log-loss of logits / T is smallest; None if not between the limits.

    In 1 / T the loss is convex, so its slope has one root. A thousandth of it is near enough: the
    data never tell as much. `near` is where to look first; it changes the time, not the answer.
    """
    below = (logits - logits.max(axis=1, keepdims=True)).astype(np.float32)  # the best is 0
    truth = float(below[np.arange(len(labels)), labels].mean(dtype=np.float64))

    @functools.cache
    def slope(sharpness: float) -> float:
        shares = np.exp(np.float32(sharpness) * below)
        means = np.einsum("nc,nc->n", shares, below) / shares.sum(axis=1)
        return float(means.mean(dtype=np.float64)) - truth

    brackets = [(1 / HOTTEST, 1 / COLDEST)]
    if near is not None:
        brackets.insert(0, (max(1 / HOTTEST, 0.7 / near), min(1 / COLDEST, 1.4 / near)))
    for low, high in brackets:
        if slope(low) < 0 < slope(high):
            return 1 / root_of(slope, low, high)
    return None


def root_of(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is zero between two places, to a ten-thousandth of the place.

    The regula falsi whose stale end counts half (Dowell and Jarratt 1971, "Illinois").
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


def logsumexp(logits: Floats) -> Floats:
    """Log of the sum of exponentials of each row: (n, C) to (n,)."""
    best = logits.max(axis=1)
    return np.asarray(best + np.log(np.exp(logits - best[:, None]).sum(axis=1)))


def losses(logits: Floats, labels: Ints) -> Floats:
    """Log-loss of each image in nats, (n,)."""
    loss: Floats = logsumexp(logits) - logits[np.arange(len(labels)), labels]
    return loss


def confidences(logits: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """Confidence (n,) and whether the answer is right (n,), 0 or 1."""
    best: Floats = np.exp(logits.max(axis=1) - logsumexp(logits))
    right = logits.argmax(axis=1) == labels
    return np.minimum(best, 1.0), right.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Images sorted by confidence, cut into K groups of equal size (within one)."""

    low: Floats
    """Confidence at which a bin begins, (K,): half-way to the bin before."""
    high: Floats
    images: Ints
    confidence: Floats
    """Mean of the bin, (K,)."""
    accuracy: Floats

    @property
    def gap(self) -> float:
        """The usual expected calibration error: mean over images of |accuracy - confidence|."""
        return float(gaps(self.images, self.confidence, self.accuracy))

    def rows(self) -> list[CalibrationBin]:
        """Return the bins as eval.json holds them."""
        columns = (self.low, self.high, self.images, self.confidence, self.accuracy)
        return [
            {
                "low": low,
                "high": high,
                "images": images,
                "confidence": confidence,
                "accuracy": accuracy,
            }
            for low, high, images, confidence, accuracy in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]


def gaps(images: Ints, confidence: Floats, accuracy: Floats) -> Floats:
    """Mean over images of |accuracy - confidence|; `accuracy` may be (..., K)."""
    return np.asarray((images * np.abs(accuracy - confidence)).sum(axis=-1) / images.sum())


def binned(confidence: Floats, right: Floats) -> Bins:
    """Cut into at most `BINS` groups."""
    total = len(confidence)
    count = min(BINS, max(1, total // PER_BIN))
    order = np.argsort(confidence, kind="stable")
    ends = np.linspace(0, total, count + 1).round().astype(np.int64)
    images = np.diff(ends)
    ranked = confidence[order]
    between = (ranked[ends[1:-1] - 1] + ranked[ends[1:-1]]) / 2
    return Bins(
        low=np.concatenate([ranked[:1], between]),
        high=np.concatenate([between, ranked[-1:]]),
        images=images,
        confidence=np.add.reduceat(ranked, ends[:-1]) / images,
        accuracy=np.add.reduceat(right[order], ends[:-1]) / images,
    )


def calibration_error(bins: Bins) -> tuple[float, Interval]:
    """Expected calibration error, freed of chance, and its 95 % interval.

    The plain sum over bins (`Bins.gap`) is never zero: of 240 images of a perfectly calibrated
    model it shows about 4 %, and resampling images adds the same error again. So the errors that
    could have given what was seen are searched: for trial errors, right answers are drawn in every
    bin, and the interval holds those under which the sum seen is neither among the 2.5 % smallest
    nor the 2.5 % largest; the figure is the one under which it is the median. In a trial every
    bin is off in the direction seen, half in proportion to what was seen and half by the same
    amount. Luck does not make sure: for the upper end, a sum below the median of perfect
    calibration counts as that median (Cowan et al. 2011, "Power-constrained limits",
    https://arxiv.org/abs/1105.3166).
    """
    seen = bins.gap
    random = np.random.default_rng(0)
    chance = float(np.median(drawn_sums(bins, bins.confidence[None], random)))
    apart = bins.accuracy - bins.confidence
    shape = np.sign(apart) * (np.abs(apart) + seen) / 2
    size = float(gaps(bins.images, 0 * shape, shape))
    if size == 0:
        shape, size = np.sign(0.5 - bins.confidence), 1.0
    reach = min(1.0, 2.5 * max(seen, chance) + 0.5 / float(np.sqrt(bins.images.sum())))
    trials = reach * np.linspace(0, 1, TRIALS) ** 1.5  # finer near zero
    truth = np.clip(bins.confidence + trials[:, None] * shape / size, 0, 1)  # (L, K)
    errors = np.maximum.accumulate(gaps(bins.images, bins.confidence, truth))  # less where cut off
    sums = drawn_sums(bins, truth, random)  # (L, R)

    def error_at(share: float, observed: float) -> float:
        """The error under which `share` of the sums are smaller than the one observed."""
        same = np.abs(sums - observed) <= 1e-12
        smaller = ((sums < observed) & ~same).mean(axis=1) + same.mean(axis=1) / 2
        smaller = np.minimum.accumulate(smaller)  # it falls as the error grows, but for chance
        return 0.0 if smaller[0] <= share else float(np.interp(-share, -smaller, errors))

    upper = error_at(0.025, max(seen, chance))
    return error_at(0.5, seen), (error_at(0.975, seen), upper)


def drawn_sums(bins: Bins, truth: Floats, random: np.random.Generator) -> Floats:
    """Plain errors (L, R) that would be seen if the shares of right answers were `truth` (L, K)."""
    chances = np.broadcast_to(truth[:, None], (len(truth), SIMULATIONS, len(bins.images)))
    drawn = random.binomial(bins.images, chances) / bins.images  # (L, R, K)
    return gaps(bins.images, bins.confidence, drawn)
