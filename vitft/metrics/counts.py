"""Numbers of images of each class, from predictions and images of which the class is known.

C is the number of classes, L the number of levels of confidence, which is the probability of the
predicted class.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from vitft.metrics.intervals import PRIOR_IMAGES, Floats, Groups, design_effect, score_interval

LEVELS, _UNSURE = 2, 0.3  # levels of confidence; fraction of held-out images with the lower one
_CHAINS, _SWEEPS, _FEWEST_SWEEPS, _BURN_IN = 20, 1000, 600, 0.2
"""Numbers of parallel chains and of draws of each, and the additional part that is not used."""
_REJECTED = 0.025  # one-sided level of the test that a class is absent, or alone
_MOST_DRAWN = 2 * 10**7  # elements of all matrices of confusion; many classes have fewer draws
_PRIOR_LABELS = 5  # images with exact predictions, added where the weight of them is estimated
_Numbers = np.ndarray[Any, np.dtype[np.floating[Any]]]


class ClassCount(NamedTuple):
    """Estimated number of images of a class, and the ends of its 95% interval."""

    images: float
    low: int
    high: int


def confidence_levels(probability: Floats, held_out: Floats) -> Groups:
    """Return the level of confidence (n,) of predictions, given that of held-out images (m,)."""
    return (probability > np.quantile(held_out, _UNSURE)).astype(np.int64)


def adjusted_counts(predicted: Groups, confusion: Floats, effect: float = 1.0) -> list[ClassCount]:
    """Return how many of some images belong to each class, given the predictions for them.

    `predicted` (C, L) counts the images by predicted class and level of confidence, and `confusion`
    (C, C, L) held-out images by true class, predicted class and level. The class frequencies may
    differ from those of the held-out images, but not how the images of a class are predicted. The
    estimates are the means, and the intervals the quantiles, of the numbers given both, so they
    include the uncertainty of the confusion and of the predictions. The intervals are wider by the
    root of `effect`, the `design_effect` of the images.

    Gibbs sampling alternates between the true classes of the images and the class frequencies and
    rates of confusion, which have Dirichlet distributions. Each class has `PRIOR_IMAGES` additional
    held-out images, which are predicted as the average image is, so no rate is certain. These
    distributions almost exclude that a class is absent. An interval therefore begins at 0, or ends
    with all images, unless a test at 2.5% rejects this.

    Source: Ziegler & Czyz 2024, "Bayesian quantification with black-box estimators", Transactions
    on Machine Learning Research, https://arxiv.org/abs/2302.09159, without levels.
    """
    total, classes = int(predicted.sum()), len(predicted)
    if not total or classes == 1:
        return [ClassCount(float(n), n, n) for n in predicted.sum(axis=1).tolist()]
    rng, seen = np.random.default_rng(0), np.flatnonzero(predicted)
    images = predicted.ravel()[seen]  # of K pairs of a predicted class and a level
    fixed = _smoothed(confusion).reshape(classes, -1)  # (C, C * L)
    others = np.delete(fixed, seen, axis=1).sum(axis=1)  # of the pairs without images, together
    fixed = np.column_stack([fixed[:, seen], others])  # (C, K + 1)
    rates = fixed / fixed.sum(axis=1, keepdims=True)
    frequencies = (1 + predicted.sum(axis=1)) / (total + classes)
    most = _MOST_DRAWN // fixed.size
    chains = min(_CHAINS, max(1, most // _SWEEPS))  # R, the first axis
    sweeps = min(_SWEEPS, max(_FEWEST_SWEEPS, most // chains))
    frequencies, found = np.tile(frequencies, (chains, 1)), list[Groups]()
    for _ in range(round((1 + _BURN_IN) * sweeps)):
        joint = (frequencies[:, :, None] * rates)[:, :, :-1]
        chances = (joint / joint.sum(axis=1, keepdims=True)).swapaxes(1, 2)  # (R, K, C)
        true = rng.multinomial(images, chances).swapaxes(1, 2)  # (R, C, K)
        found.append(true.sum(axis=2))
        frequencies = _dirichlet(rng, 1.0 + found[-1])
        rates = _dirichlet(rng, fixed + np.pad(true, ((0, 0), (0, 0), (0, 1))))
    drawn = np.concatenate(found[-sweeps:])  # (R * sweeps, C)
    mean = drawn.mean(axis=0)
    low, high = mean + np.sqrt(effect) * (np.quantile(drawn, (0.025, 0.975), axis=0) - mean)
    low, high = np.floor(low.clip(0)).astype(int), np.ceil(high.clip(max=total)).astype(int)
    absent, alone = _possible_extremes(rng, predicted.sum(axis=1), confusion, mean)
    low, high = np.where(absent, 0, low), np.where(alone, total, high)
    columns = mean.tolist(), low.tolist(), high.tolist()
    return [ClassCount(*row) for row in zip(*columns, strict=True)]


def _possible_extremes(
    rng: np.random.Generator, shown: Groups, confusion: Floats, counts: Floats
) -> tuple[Groups, Groups]:
    """Return for each class (C,) whether no image, and whether every image, may belong to it.

    `shown` (C,) counts the predictions, which mistakes in images of the other classes, in
    proportion to `counts`, or mistakes in images of this class would have to explain.
    """
    classes, total = len(shown), int(shown.sum())
    draws = max(100, min(1000, _MOST_DRAWN // classes**2))
    rates = _dirichlet(rng, np.tile(_smoothed(confusion).sum(axis=2), (draws, 1, 1)))  # (R, C, C)
    others = (counts + 1e-9) * (1 - np.eye(classes))
    expected = np.einsum("kj,rjk->rk", total * others / others.sum(axis=1, keepdims=True), rates)
    own = np.einsum("rkk->rk", rates)
    absent = (rng.poisson(expected) >= shown).mean(axis=0) > _REJECTED
    alone = (rng.binomial(total, 1 - own) >= total - shown).mean(axis=0) > _REJECTED
    return absent, alone


def powered_counts(
    predicted: Groups,
    confusion: Floats,
    labels: Groups,
    answers: tuple[Groups, Groups],
    groups: Groups | None = None,
) -> list[ClassCount]:
    """Return how many of some images belong to each class, given the classes of a random sample.

    `predicted` and `confusion` are those of `adjusted_counts`, `labels` (n,) the true classes of
    the sample, and `answers` its predicted classes and levels (n,). Each image has a probability of
    each class, from its predicted class and level. The count is the sum of these probabilities,
    times a weight, plus the mean over the sample of what they lack, times the number of images. The
    weight, from 0 to 1, minimises the variance, and is the same for all classes so that the counts
    add up. It holds whatever the mistakes in these images are, because the sample shows them.

    The interval is Wilson's for the number of labels that would be as informative as the sample
    without predictions: more if the residuals vary less than the labels, fewer by the design
    effect of `groups` (n,), and more the fewer images are not in the sample. One image is added to
    both variances, so a class that is never seen has a width. A complete sample is exact.

    Source: Angelopoulos, Duchi & Zrnic 2023, "PPI++: efficient prediction-powered inference",
    https://arxiv.org/abs/2311.01453, for a batch instead of a distribution.
    """
    total, images, fixed = int(predicted.sum()), len(labels), _smoothed(confusion)
    joint = fixed / fixed.sum(axis=(1, 2), keepdims=True)
    joint *= (1.0 + predicted.sum(axis=1))[:, None, None]
    chances = joint / joint.sum(axis=0)  # of each class, given the prediction (C, C, L)
    means = (chances * predicted).sum(axis=(1, 2)) / max(1, total)
    if not images:
        return [ClassCount(float(total * mean), 0, total) for mean in means]
    own = labels == np.arange(len(chances))[:, None]  # (C, n)
    given = chances[:, *answers]
    around = given - given.mean(axis=1, keepdims=True)
    prior = float((chances**2 * predicted).sum() / total - (means**2).sum()) * _PRIOR_LABELS
    weight = (float((around * own).sum()) + prior) / (float((around**2).sum()) + prior + 1e-12)
    residuals = own - min(1.0, max(0.0, weight)) * given
    estimates = min(1.0, max(0.0, weight)) * means + residuals.mean(axis=1)
    known, found = own.sum(axis=1), list[ClassCount]()
    for seen, estimate, one in zip(known.tolist(), estimates.tolist(), residuals, strict=True):
        least, most = seen, total - images + seen
        fraction = min(most, max(least, estimate * total)) / total
        ratio = (images * one.var() + 1) / (seen * (1 - seen / images) + 1)
        ratio *= design_effect(one - one.mean(), groups) * max(1e-12, 1 - images / total)
        low, high = (total * end for end in score_interval(fraction, images / ratio))
        ends = max(least, math.floor(low + 1e-6)), min(most, math.ceil(high - 1e-6))
        found.append(ClassCount(fraction * total, *ends))
    return found


def _smoothed(confusion: Floats) -> Floats:
    """Add `PRIOR_IMAGES` held-out images to each class, which are predicted as the average is."""
    classes, _, levels = confusion.shape
    right = np.einsum("kkl->l", confusion)
    wrong = confusion.sum(axis=(0, 1)) - right
    right, wrong = right + 1 / levels, wrong + 1 / levels
    own = np.eye(classes)[:, :, None]
    rates = own * right + (1 - own) * wrong / max(1, classes - 1)
    return np.asarray(confusion + PRIOR_IMAGES * rates / (right.sum() + wrong.sum()))


def _dirichlet(rng: np.random.Generator, images: _Numbers) -> Floats:
    """Draw fractions that sum to 1 along the last axis."""
    drawn = rng.standard_gamma(images).clip(1e-300)  # small shapes underflow to 0
    return np.asarray(drawn / drawn.sum(axis=-1, keepdims=True))
