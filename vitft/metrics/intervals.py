"""95% confidence intervals for fractions and means, and significance tests for differences.

Single fractions have Wilson intervals, means of several fractions have Wilson intervals with an
effective number of images, and differences between paired fractions have adjusted Wald intervals.
Means of other values, such as losses, have the interval that Wilson's becomes for rare events.
Bootstrap intervals would be misleading: for 20 correct out of 20, the width would be zero.

Images of one group (patient, video, camera) are not independent. Every interval and test therefore
takes the groups (n,) of its images, as integers, and counts groups instead of images: it divides
the number of images by their `design_effect`. Without groups, this is 1.
"""

import bisect
import functools
import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from msgspec import Meta

_Bound = Annotated[float, Meta(ge=-1e6, le=1e6)]
Interval = tuple[_Bound, _Bound]  # lower and upper bounds
Floats = np.ndarray[Any, np.dtype[np.float64]]
_Reals = np.ndarray[Any, np.dtype[np.floating[Any]]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Groups = np.ndarray[Any, np.dtype[np.int64]]
"""Integers (n,), one per image; the images of a group share an integer."""

Z = 1.959963984540054
"""Half the width, in standard deviations, of the central 95% of a normal distribution."""
RESAMPLES = 1000
_FEW = 3  # mistakes up to which Wilson's interval is too short
PRIOR_IMAGES = 2  # added to each class when the variance of its recall is estimated
_PRIOR_GROUPS, _PRIOR_CORRELATION, PRIOR_OF_CHANGES = 2, 0.4, 0.05
"""Correlation within groups that is assumed a priori (that of the differences between two models is
lower), and the degrees of freedom that it counts as: the variance between few groups, or of few
mistakes, can be too small by chance."""
_LEAST_GROUPS = 30
"""Fewest groups whose losses have an interval: one group can have most of the loss, and the others
do not show it. With 10 groups, 80 to 93 of 100 intervals contained the truth."""
_LEAST_FREEDOM = 4  # of 5 or fewer groups: their variance rests on the prior, too
_MOST_FREEDOM = 1000  # from which on the quantile of Student's t distribution hardly changes
_MOST_LOGITS = 10**6  # from which on `p_of_guessing` uses only some images


def design_effect(
    residuals: _Reals, groups: Groups | None, correlation: float = _PRIOR_CORRELATION
) -> float:
    """Return how many images of these groups are worth one independent image; at least 1.

    `residuals` (n,) are the contributions of the images to the deviation of an estimate, e.g. 1
    or 0 for a right or wrong prediction, minus the accuracy. The result includes the ratio of the
    quantiles of Student's t distribution, so that few groups result in wide intervals.

    Source: Korn & Graubard 1998, "Confidence intervals for proportions with small expected number
    of positive counts estimated from survey data", Survey Methodology 24.
    """
    images = len(residuals)
    sizes = _group_sums(np.ones(images), groups)
    numbers = round(images**2 / float((sizes**2).sum())) if images else 0, images
    few, many = (
        student_t_quantile(min(max(n - 1, _LEAST_FREEDOM), _MOST_FREEDOM)) for n in numbers
    )
    return variance_ratio(residuals, groups, correlation) * (few / many) ** 2


def variance_ratio(
    residuals: _Reals, groups: Groups | None, correlation: float = _PRIOR_CORRELATION
) -> float:
    """Return the variance of the sum of `residuals`, relative to independent images; at least 1.

    The variance between the sums of the groups is averaged with a prior (`_PRIOR_GROUPS`). Its own
    degrees of freedom are at most the number of images that carry the variance. Sums of large
    groups are corrected as by CR2 (Bell & McCaffrey 2002, Survey Methodology 28).
    """
    images = len(residuals)
    units = np.arange(images) if groups is None else groups
    _, own, sizes = np.unique(units, return_inverse=True, return_counts=True)
    if (number := len(sizes)) == images:
        return 1.0
    squares = residuals**2
    effect = 1 + (float((sizes**2).sum()) / images - 1) * correlation
    if number > 1 and (total := float(squares.sum())) > 1e-12:
        between = float((np.bincount(own, residuals) ** 2 / (1 - sizes / images)).sum())
        measured = between / (total * images / (images - 1))
        freedom = min(number - 1, total**2 / float((squares**2).sum()))
        effect = (freedom * measured + _PRIOR_GROUPS * effect) / (freedom + _PRIOR_GROUPS)
    return max(1.0, effect)


def accuracy_interval(
    right: Flags, groups: Groups | None = None, *, effect: float = 1.0
) -> Interval:
    """Return the 95% interval of the fraction of images (n,) that are right (`design_effect`)."""
    fraction = float(right.sum()) / max(1, len(right))
    effect *= design_effect(right - fraction, groups)
    return wilson_interval(int(right.sum()), len(right), effect)


def mean_error(values: Floats, groups: Groups | None = None) -> float:
    """Return the standard error of the mean of `values` (n,), from sums per group if given."""
    sums = _group_sums(values - values.mean(), groups)
    return math.sqrt(float((sums**2).sum()) * len(sums) / max(1, len(sums) - 1)) / len(values)


def number_groups(names: Sequence[str], keys: Iterable[object]) -> Groups | None:
    """Return the numbers of the groups of images (n,) by name, or None if no image has a group.

    Images without a group are in the same one only if they have the same key.
    """
    if not any(names):
        return None
    own = [name or f"image {key}" for name, key in zip(names, keys, strict=True)]
    return np.unique(own, return_inverse=True)[1]


def _group_sums(values: np.ndarray[Any, np.dtype[Any]], groups: Groups | None) -> Floats:
    own = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    return np.bincount(own, values).astype(np.float64)


def wilson_interval(correct: int, total: int, effect: float = 1.0) -> Interval:
    """Return the 95% Wilson interval of a fraction, or (0, 1) if `total` is 0.

    `effect` is the `design_effect` of the images.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    return score_interval(correct / total, total / effect) if total else (0.0, 1.0)


def score_interval(fraction: float, total: float) -> Interval:
    """Return the 95% Wilson interval of a fraction; `total` need not be an integer."""
    low, high = _wilson(fraction, total, Z)
    low = min(low, _fewest(fraction * total, total) / total)
    high = max(high, 1 - _fewest((1 - fraction) * total, total) / total)
    return low if fraction > 0 else 0.0, high if fraction < 1 else 1.0


def _wilson(fraction: float, total: float, z: float) -> Interval:
    centre = fraction + z * z / (2 * total)
    spread = z * math.sqrt(fraction * (1 - fraction) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return (centre - spread) / scale, (centre + spread) / scale


def _fewest(events: float, total: float) -> float:
    """Return the one-sided 95% limit (Byar's) of rare `events`, or their number if not rare.

    Wilson's interval ends at least as far out as this limit of right or wrong images.

    Source: Brown, Cai & DasGupta 2001, "Interval estimation for a binomial proportion", Statistical
    Science 16, section 4.1.1 (the modified Wilson interval).
    """
    if not 0 < events <= min(_FEW, total / 10) + 1e-9:  # 1 - 0.997 is above 0.003
        return events
    return events * max(0.0, 1 - 1 / (9 * events) - 1.6448536 / (3 * math.sqrt(events))) ** 3


def log_factorials(largest: int) -> Floats:
    """Return the logarithms of 0!, 1!, 2! and so on, up to the factorial of `largest`."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, largest + 1)))])


def binomial_tail(
    least: int, trials: int, chance: float, factorials: Floats | None = None
) -> float:
    """Return the probability of `least` or more successes in `trials` independent trials.

    `factorials` is the result of `log_factorials` for at least `trials`; None to compute it here.
    """
    if least == 0 or not 0 < chance < 1:
        return 1.0 if least == 0 or chance >= 1 else 0.0
    if least > trials:
        return 0.0
    table = log_factorials(trials) if factorials is None else factorials
    return max(0.0, 1 - float(_binomial(least, trials, chance, table).sum()))


def _binomial(numbers: int, trials: int, chance: float, factorials: Floats) -> Floats:
    """Return the probabilities of 0, 1, ... `numbers` - 1 successes."""
    k = np.arange(numbers)
    logs = factorials[trials] - factorials[k] - factorials[trials - k]
    return np.exp(logs + k * math.log(chance) + (trials - k) * math.log1p(-chance))


def binomial_range(trials: int, chance: float) -> tuple[int, int]:
    """Return two numbers: fewer successes, and more, have a probability of at most 2.5% each."""
    chances = _binomial(trials + 1, trials, chance, log_factorials(trials))
    low, high = np.searchsorted(chances.cumsum(), (0.025, 0.975))
    return int(low), int(high)


@functools.cache
def student_t_quantile(freedom: int) -> float:
    """Return the two-sided 95% quantile of Student's t distribution with `freedom` degrees.

    Source: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4, solved for the angle by bisection.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        power = 1.0 if freedom % 2 == 0 else math.cos(angle)
        terms = []
        for k in range(1 + freedom % 2, freedom, 2):  # cos^0, cos^2, ... or cos, cos^3, ...
            terms.append(power)
            power *= math.cos(angle) ** 2 * k / (k + 1)
        fraction = math.sin(angle) * math.fsum(terms)
        if freedom % 2:
            fraction = 2 / math.pi * (angle + fraction)
        low, high = (angle, high) if fraction < 0.95 else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def mean_fraction_interval(counts: Sequence[tuple[float, float]], effect: float = 1.0) -> Interval:
    """Return the 95% interval for the mean of independent fractions, given as (correct, total).

    `effect` is the `design_effect` of the images.

    This is the Wilson interval for an effective number of images: the number at which the mean
    would have its estimated variance if all images were drawn with the same probability, at most
    that of equal fractions. The variance of each fraction is estimated after `PRIOR_IMAGES` images
    with the mean fraction have been added to it, so that a fraction of 1 does not count as certain.
    With unequal totals, the estimate for a small class rests on the other classes. Each end is then
    extended towards that of `square_and_add` if this lies further out: by the fraction 1 - h / a,
    where h is the harmonic and a the arithmetic mean of the totals
    (benchmarks/notebook/intervals.md).

    Source: Korn & Graubard 1998 (see `design_effect`) for the effective size, and Dean & Pagano
    2015, Journal of Survey Statistics and Methodology 3, with the Wilson interval.
    """
    counts = [(right / effect, total / effect) for right, total in counts]
    number = len(counts)
    mean = math.fsum(right / total for right, total in counts) / number
    effective = number**2 / math.fsum(1 / total for _, total in counts)
    smoothed = [
        ((right + PRIOR_IMAGES * mean) / (total + PRIOR_IMAGES), total) for right, total in counts
    ]
    variance = math.fsum(p * (1 - p) / total for p, total in smoothed) / number**2
    if variance > 0:
        effective = min(effective, mean * (1 - mean) / variance)
    low, high = score_interval(mean, effective)
    sizes = [total for _, total in counts]
    weight = 1 - number**2 / (math.fsum(1 / size for size in sizes) * math.fsum(sizes))
    wide_low, wide_high = square_and_add(counts, mean)
    return low - weight * max(0.0, low - wide_low), high + weight * max(0.0, wide_high - high)


def square_and_add(counts: Sequence[tuple[float, float]], mean: float) -> Interval:
    """Return a mean of fractions with the single Wilson intervals added in quadrature.

    Source: Zou, Huang & Zhang 2009, "A note on confidence interval estimation for a linear function
    of binomial proportions", Computational Statistics & Data Analysis 53.
    """
    parts = [(right / total, score_interval(right / total, total)) for right, total in counts]
    below = math.hypot(*(p - low for p, (low, _) in parts)) / len(counts)
    above = math.hypot(*(high - p for p, (_, high) in parts)) / len(counts)
    return mean - below, mean + above


def proportions_differ(first: tuple[float, Interval], second: tuple[float, Interval]) -> bool:
    """Return whether two independent fractions, each with its Wilson interval, differ at 5%.

    Source: Newcombe 1998, "Interval estimation for the difference between independent
    proportions", Statistics in Medicine 17, method 10.
    """
    (above, (low, _)), (below, (_, high)) = sorted((first, second), reverse=True)
    return above - below > math.hypot(above - low, high - below)


def f1_with_interval(right: int, union: int, effect: float = 1.0) -> tuple[float, Interval]:
    """Return the F1 score of a class and its 95% interval, given a `design_effect`.

    `union` is the number of images that belong to the class, are predicted as this class, or both,
    and `right` of them are predicted correctly. With s = right / union, F1 = 2 s / (1 + s)
    increases with s, so the interval of F1 follows from the Wilson interval of s.

    Source of the formula: Hand, Christen & Kirielle 2021, "F*: an interpretable transformation of
    the F-measure", Machine Learning 110.
    """
    low, high = wilson_interval(right, union, effect)
    fraction = right / union
    return 2 * fraction / (1 + fraction), (2 * low / (1 + low), 2 * high / (1 + high))


def too_few(groups: Groups | None) -> bool:
    """Return whether values of images of these groups have no interval (see `_LEAST_GROUPS`)."""
    return groups is not None and len(np.unique(groups)) < min(_LEAST_GROUPS, len(groups))


def mean_interval(values: Floats, groups: Groups | None = None) -> Interval | None:
    """Return the 95% interval of the mean of values (n,) that are not negative, e.g. of losses.

    It is the Wilson interval of as many rare events as have the relative standard error of the
    mean, wider if few images or groups carry the variance, of no width if all values are equal, and
    None if there are too few groups.
    """
    if too_few(groups):
        return None
    mean, deviation = float(values.mean()), float(values.std())
    if values.min() == values.max():
        return mean, mean
    squares = _group_sums(values - mean, groups) ** 2
    carriers = squares.sum() ** 2 / max(1e-300, (squares**2).sum())
    freedom = round(min(len(squares) - 1, carriers, _MOST_FREEDOM)) + _PRIOR_GROUPS
    variance = deviation**2 / (len(values) - 1) * variance_ratio(values - mean, groups)
    half = student_t_quantile(freedom) ** 2 * variance / mean / 2
    width = math.sqrt(2 * half * mean + half**2)
    return mean + half - width, mean + half + width


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided mid-p-value of McNemar's test of two models on the same images.

    The arguments are the numbers of images that only one of the models predicts correctly. With few
    images, the exact p-value would be too large.

    Source: Fagerland, Lydersen & Laake 2013, "The McNemar test for binary matched-pairs data: mid-p
    and asymptotic are better than exact conditional", BMC Medical Research Methodology 13.
    """
    discordant, fewer = only_first + only_second, min(only_first, only_second)
    tail = 2 * sum(math.comb(discordant, k) for k in range(fewer)) + math.comb(discordant, fewer)
    return 1.0 if only_first == only_second else tail / 2**discordant


def _sign_flip(sums: Groups) -> float:
    """Return the two-sided mid-p-value of the sign-flip test of one difference per group (G,).

    With one image in each group, this is McNemar's test.
    """
    total, chances = abs(int(sums.sum())), np.ones(1)  # chances of each total from -reach to reach
    for size in np.abs(sums).tolist():
        chances = (np.pad(chances, (2 * size, 0)) + np.pad(chances, (0, 2 * size))) / 2
    distance = np.abs(np.arange(len(chances)) - len(chances) // 2)
    p = chances[distance > total].sum() + chances[distance == total].sum() / 2
    return float(p) if total else 1.0


def p_of_guessing(
    logits: _Reals, labels: Groups, groups: Groups | None = None, effect: float = 1.0
) -> float:
    """Return the one-sided p-value of a permutation test: do logits (n, C) separate the classes?

    The statistic is the mean, over the classes, of their standardised logits on their own images.
    Over all orders of the labels (n,), it is nearly normal with mean 0. No p-value is below
    1 / number of orders. `effect` is a further design effect.

    Source: Hoeffding 1951, "A combinatorial central limit theorem" (the variance).
    """
    step = 1 + logits.size // _MOST_LOGITS
    scores, groups = logits[::step].astype(np.float64), None if groups is None else groups[::step]
    classes, own, sizes = np.unique(labels[::step], return_inverse=True, return_counts=True)
    scores = (scores - scores.mean(axis=1, keepdims=True))[:, classes]
    scores = (scores - scores.mean(axis=0)) / np.maximum(1e-12, scores.std(axis=0)) / sizes
    given, images = scores[np.arange(len(own)), own], len(own)
    around = scores - (scores @ sizes)[:, None] / images
    variance = float((around**2 @ sizes).sum()) / max(1, images - 1)
    if variance == 0:
        return 1.0
    variance *= effect * design_effect(given - given.mean(), groups)
    orders = math.lgamma(images + 1) - math.fsum(math.lgamma(n + 1) for n in sizes.tolist())
    p = NormalDist().cdf(-float(given.sum()) / math.sqrt(variance))
    return min(1.0, max(p, math.exp(-orders)))


class PairedDifference(NamedTuple):
    """Difference in accuracy of two models on the same images, the first minus the second."""

    only_first: int  # number of images that only the first model predicts correctly
    only_second: int
    images: int
    p: float  # two-sided mid-p-value of McNemar's test or, with groups, of the sign-flip test
    effect: float = 1.0  # design effect of the groups

    @classmethod
    def of(cls, first: Flags, second: Flags, groups: Groups | None = None) -> Self:
        """Compare two models, given which images (n,) each of them predicts correctly."""
        changes = first.astype(np.int64) - second
        counts = int((changes > 0).sum()), int((changes < 0).sum())
        if groups is None:
            return cls(*counts, len(first), mcnemar(*counts))
        sums = _group_sums(changes, groups)
        effect = design_effect(changes - changes.mean(), groups, PRIOR_OF_CHANGES)
        return cls(*counts, len(first), _sign_flip(sums.astype(np.int64)), effect)

    @property
    def difference(self) -> float:
        """Accuracy of the first model minus that of the second."""
        return (self.only_first - self.only_second) / self.images

    def interval(self, corrected: float | None = None) -> Interval:
        """Return the 95% interval of the difference.

        `corrected` is the p-value after a correction for several tests; the interval is widened
        in the same way. It contains 0 if and only if that p-value is at least 5%: where the two
        disagree by a fraction of a point, it ends at 0.

        Source: Bonett & Price 2012, "Adjusted Wald confidence interval for a difference of binomial
        proportions based on paired data".
        """
        p = self.p if corrected is None else corrected
        level = 0.025 * min(1.0, self.p / p) if p else 0.025
        z = NormalDist().inv_cdf(1 - level) if level < 0.025 else Z
        total = self.images / self.effect + 2
        first = (self.only_first / self.effect + 1) / total
        second = (self.only_second / self.effect + 1) / total
        half_width = z * math.sqrt((first + second - (first - second) ** 2) / total)
        low, high = max(-1.0, first - second - half_width), min(1.0, first - second + half_width)
        if p >= 0.05 or self.only_first == self.only_second:
            return min(low, 0.0), max(high, 0.0)
        return (max(low, 0.0), high) if self.difference > 0 else (low, min(high, 0.0))


class IndependentDifference(NamedTuple):
    """Difference in accuracy between two sets of images, the first minus the second.

    Source: Newcombe 1998 (see `proportions_differ`), with effective numbers of images.
    """

    accuracies: Sequence[float]  # of both sets
    numbers: Sequence[float]  # effective numbers of images
    p: float = 1.0  # two-sided p-value: the interval at the level 1 - p ends at 0

    @classmethod
    def of(cls, right: Flags, member: Flags, groups: Groups | None = None) -> Self:
        """Compare the images (n,) that are members of a set with the others; neither set is empty.

        Groups in both sets count as two. If images of a group are similar, p-values are then too
        large rather than too small.
        """
        accuracies, numbers = list[float](), list[float]()
        for some in (member, ~member):
            accuracies.append(float(right[some].mean()))
            units = None if groups is None else groups[some]
            effect = design_effect(right[some] - accuracies[-1], units)
            numbers.append(float(some.sum()) / effect)
        found, (low, high) = cls(accuracies, numbers), (0.0, 37.0)  # standard deviations
        for _ in range(60 if found.difference else 0):
            z = (low + high) / 2
            below, above = found._ends(z)
            low, high = (low, z) if below <= 0 <= above else (z, high)
        return found._replace(p=math.erfc(low / math.sqrt(2)))

    @property
    def difference(self) -> float:
        return self.accuracies[0] - self.accuracies[1]

    def interval(self, corrected: float) -> Interval:
        """Return the 95% interval, widened as `PairedDifference.interval` for a corrected p."""
        return self._ends(-NormalDist().inv_cdf(0.025 * min(1.0, self.p / corrected)))

    def _ends(self, z: float) -> Interval:
        first, second = self.accuracies
        (low, high), (least, most) = map(_wilson, self.accuracies, self.numbers, (z, z))
        return (
            self.difference - math.hypot(first - low, most - second),
            self.difference + math.hypot(high - first, second - least),
        )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple testing by Holm's method, in the order of `p_values`.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def sample_size(half_width: float, accuracy: float) -> int:
    """Return the smallest number of images whose Wilson interval is `accuracy` +/- `half_width`."""

    def is_enough(images: int) -> bool:
        low, high = score_interval(accuracy, images)
        return high - low <= 2 * half_width

    return bisect.bisect_left(range(2**60), True, lo=1, key=is_enough)
