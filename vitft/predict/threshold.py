"""Probability thresholds for a requested precision, and prediction sets for a requested coverage.

They are chosen from predictions for images that were not used to fit the model. These are
the validation images and, if the head was fitted by L-BFGS, the training images with their
cross-validated predictions. This module does not import torch.

Notation: n is the number of predictions at or above a threshold, k is the number of mistakes among
them, e is the number of mistakes expected from their calibrated probabilities, and p is the
requested precision.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from vitft.messages.results import within
from vitft.metrics.calibration import Ints, softmax
from vitft.metrics.intervals import (
    Flags,
    Floats,
    Groups,
    Interval,
    accuracy_interval,
    binomial_tail,
    design_effect,
    log_factorials,
)
from vitft.predict.postprocess import Postprocess
from vitft.predict.request import Marks
from vitft.predict.tree import ClassTree
from vitft.system.errors import UsageError
from vitft.system.text import count, listing, percent, requested_percent

if TYPE_CHECKING:
    from vitft.predict.validation import HeldOut

log = logging.getLogger(__name__)

_STATE_THRESHOLD = (
    "run `vitft predict --run RUN --precision P IMAGE` with the run directory, which states the "
    "threshold, and pass it here as --threshold"
)

_SPARE_MISTAKES = 1.0
"""The requested precision must allow this many mistakes in addition to the e expected ones. Without
this margin, a threshold could be based on a single image; with it, p = 0.99 needs at least 100
predictions at or above the threshold."""
_SIGNIFICANCE = 0.05  # p is rejected if k or more mistakes at precision p are less probable
_LOWER_PRECISIONS = (0.99, 0.98, 0.97, 0.95, 0.9, 0.8, 0.7)  # to suggest instead


class Answers(NamedTuple):
    """Predictions for images that were not used to fit the model, most probable first."""

    probability: Floats  # of each predicted class (n,)
    correct: Flags  # whether each prediction is right (n,)
    groups: Groups | None = None  # group of each image (n,)

    @classmethod
    def sorted(
        cls,
        probability: Sequence[float] | Floats,
        correct: Sequence[bool] | Flags,
        groups: Sequence[str] | Groups | None = None,
    ) -> Self:
        """Create an instance from predictions in any order."""
        values, flags = np.asarray(probability, np.float64), np.asarray(correct, bool)
        order = np.argsort(-values, kind="stable")
        own = None if groups is None else np.unique(groups, return_inverse=True)[1][order]
        return cls(values[order], flags[order], own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Smallest probability at or above which predictions have a requested precision."""

    value: float  # probability below which a prediction is marked `not sure`
    precision: float  # fraction of correct predictions among the `covered` predictions
    expected: float  # the same as expected from the probabilities
    interval: Interval  # 95% interval of the precision
    covered: int  # number of images whose predictions are at or above the threshold
    images: str  # all images on which it was chosen, in words
    guaranteed: tuple[float, float] | None = None  # precision, and the confidence that it holds

    def __str__(self) -> str:
        text = f"threshold {percent(self.value)}: precision "
        if self.guaranteed:
            promise, confidence = map(requested_percent, self.guaranteed)
            text += f"at least {promise} with {confidence} confidence, measured "
        text += f"{percent(self.precision)}{within(self.interval)} on {self.covered:,} of "
        if self.expected <= self.precision:
            return text + self.images
        return f"{text}{self.images}, {percent(self.expected)} expected from the probabilities"


def marking(postprocess: Postprocess, marks: Marks, run: Path) -> Postprocess:
    """Return a copy that marks predictions below a threshold as `not sure`.

    A multi-label model assigns the labels from the threshold on instead. For a precision or a
    coverage, thresholds are chosen from the held-out predictions in the folder `run`.
    """
    outputs, threshold = postprocess.outputs, marks.threshold or 0.0
    for option in ("confidence", "coverage", "tree"):
        if getattr(marks, option) is not None:
            outputs.require_one_class(f"--{option}")
    if outputs.several:
        each = (threshold,) * len(outputs.classes) if threshold else outputs.thresholds
        if marks.precision is not None:
            each = choose_label_thresholds(run, marks.precision, outputs.classes)
        return replace(postprocess, outputs=replace(outputs, thresholds=each))
    tree, limits = None, postprocess.set_limits
    if marks.coverage is not None:
        limits, text = _choose_set_limits(run, marks.coverage)
        log.info(text)
    if marks.tree is not None:
        tree = ClassTree.read(Path(marks.tree), outputs.classes)
        tree = replace(tree, thresholds=(threshold,) * len(tree.nodes) if threshold else ())
    if marks.precision is not None:
        chosen = choose_threshold(run, marks.precision, confidence=marks.confidence)
        log.info(str(chosen))
        threshold = chosen.value
        if tree is not None:
            levels = _choose_level_thresholds(run, marks.precision, tree, threshold)
            tree = replace(tree, thresholds=levels)
    return replace(postprocess, threshold=threshold, set_limits=limits, tree=tree)


def choose_threshold(run: Path, precision: float, *, confidence: float | None = None) -> Threshold:
    """Return the smallest threshold at which a run's predictions reach a requested precision.

    With a `confidence`, the precision is at least this with that probability (`certain_cover`).

    Raises:
        RunError: The run has no validation predictions, or a file of the run is damaged.
        UsageError: No threshold reaches the precision.
    """
    held_out = _held_out(run)
    found = held_out.answers()
    answers = Answers.sorted(found.probability, found.correct, found.groups)
    guaranteed = None if confidence is None else (precision, confidence)
    confidence = confidence if precision < 1 else None
    if not (covered := _cover(answers, precision, confidence)):
        raise _unreachable(answers, precision, confidence)
    images = held_out.in_words(len(answers.correct), answers.groups)
    return _threshold(answers, covered, images, guaranteed)


def _threshold(
    answers: Answers, covered: int, images: str, guaranteed: tuple[float, float] | None = None
) -> Threshold:
    """Return the threshold at or above which so many answers are."""
    right, groups = answers.correct[:covered], answers.groups
    return Threshold(
        value=float(answers.probability[covered - 1]),
        precision=int(right.sum()) / covered,
        expected=float(answers.probability[:covered].mean()),
        interval=accuracy_interval(right, None if groups is None else groups[:covered]),
        covered=covered,
        images=images,
        guaranteed=guaranteed,
    )


def _held_out(run: Path, fix: str = _STATE_THRESHOLD) -> "HeldOut":
    """Return the predictions of a run; raise a RunError if it has none."""
    from vitft.predict.validation import HeldOut  # reads tables

    return HeldOut.read_existing(run, "cannot choose thresholds", fix=fix)


def smallest_cover(answers: Answers, precision: float) -> int:
    """Return the number of predictions at or above the smallest accepted threshold.

    The number is 0 if no threshold is accepted. A threshold is accepted if e + `_SPARE_MISTAKES` is
    at most (1 - p) n and a binomial test does not reject p, given the k actual mistakes. With
    groups, all numbers of images are divided by the design effect.

    The first condition is based on e because k varies more: it also counts confident predictions
    for mislabelled images. With 300 photos of flowers and p = 0.99, one such image moved a
    threshold based on k by up to 38 percentage points (benchmarks/notebook/calibration.md).
    """
    probability, correct, groups = answers
    n = np.arange(1, len(probability) + 1)
    mistakes = np.cumsum(~correct)
    is_tied = np.append(probability[1:] == probability[:-1], False)
    spare = _spare_mistakes(answers, precision)
    factorials = log_factorials(len(n))
    for i in np.flatnonzero((spare >= _SPARE_MISTAKES) & ~is_tied)[::-1].tolist():
        own = None if groups is None else groups[: i + 1]
        effect = design_effect(correct[: i + 1] - correct[: i + 1].mean(), own)
        few, all_images = round(mistakes[i] / effect), round((i + 1) / effect)
        tail = binomial_tail(few, all_images, 1 - precision, factorials)
        if spare[i] >= _SPARE_MISTAKES * effect and tail >= _SIGNIFICANCE:
            return i + 1
    return 0


def _spare_mistakes(answers: Answers, precision: float) -> Floats:
    """Return (1 - p) n - e for the first n predictions, for n = 1, 2, and so on."""
    n = np.arange(1, len(answers.probability) + 1)
    return np.asarray((1 - precision) * n - np.cumsum(1 - answers.probability))


def needed_images(answers: Answers, precision: float) -> int | None:
    """Return the approximate number of images needed, or None if more images would not help.

    With m times as many images and the same distribution of probabilities, the number of spare
    mistakes is m times as large. The result is rounded up to two significant digits.
    """
    most = float(_spare_mistakes(answers, precision).max())
    if most <= 0:
        return None
    images = len(answers.probability) * _SPARE_MISTAKES / most
    if images <= len(answers.probability):
        return None  # enough images, but too many mistakes among the most probable predictions
    unit = 10.0 ** max(0, math.floor(math.log10(images)) - 1)
    return round(math.ceil(images / unit - 0.05) * unit)


def _cover(answers: Answers, precision: float, confidence: float | None) -> int:
    """Return the number of predictions at or above the smallest threshold, or 0 without one."""
    if confidence is None:
        return smallest_cover(answers, precision)
    return certain_cover(answers, precision, confidence)


def _unreachable(answers: Answers, precision: float, confidence: float | None) -> UsageError:
    """Return the error for a precision that no threshold reaches, or not with this confidence."""
    have, asked = len(answers.probability), requested_percent(precision)
    fix = "set the threshold directly, e.g. --threshold 0.8"
    problem = f"no threshold reaches a precision of {asked}"
    if confidence is not None:
        fix = "remove --confidence"
        what = f"a precision of {asked} with {requested_percent(confidence)} confidence"
        few = "so few images" if answers.groups is None else "so few images and groups"
        problem = f"the test of {what} fails: there are too many mistakes for {few}"
        if have < (needed := _needed_certain(precision, confidence)):
            problem = f"{what} needs at least {needed:,} held-out images, but this run has {have:,}"
    elif about := needed_images(answers, precision):
        problem = (
            f"choosing a threshold for a precision of {asked} needs about {about:,} images, but "
            f"this run has {have:,}"
        )
    lower = (p for p in _LOWER_PRECISIONS if p < precision and _cover(answers, p, confidence))
    if (reachable := next(lower, None)) is not None:
        fix = f"use --precision {reachable:g}, or {fix}"
    return UsageError(problem, fix=fix)


# choice of a threshold whose precision is certain with a requested confidence ---------------------

_STEPS = 500  # thresholds that are tested one after the other, at most


def certain_cover(answers: Answers, precision: float, confidence: float) -> int:
    """Return the number of predictions at or above a threshold that passes all tests, or 0.

    A threshold passes if so few mistakes would have a probability of at most 1 - `confidence` at
    this precision. The tests go down from a first threshold, and end before one that fails: in a
    fixed sequence, no test needs a correction. The first threshold is the one whose test is most
    likely to pass, judged by the probabilities alone. Beginning with the fewest predictions kept
    up to 11 points less on photos (benchmarks/notebook/calibration.md). With groups, all numbers of
    images are divided by the design effect.

    Sources: Angelopoulos et al. 2021, "Learn then Test: Calibrating Predictive Algorithms to
    Achieve Risk Control", https://arxiv.org/abs/2110.01052, and Geifman & El-Yaniv 2017, "Selective
    Classification for Deep Neural Networks".
    """
    probability, correct, groups = answers
    n, mistakes = np.arange(1, len(probability) + 1), np.cumsum(~correct)
    is_last = np.append(probability[1:] != probability[:-1], True)  # of equal probabilities
    tested = np.flatnonzero(is_last & (n >= _needed_certain(precision, confidence)))
    if not len(tested):
        return 0
    clearness = (_spare_mistakes(answers, precision) / np.sqrt(n))[tested]
    tested = tested[int(clearness.argmax()) :]
    steps = np.linspace(0, len(tested) - 1, min(_STEPS, len(tested))).round().astype(int)
    factorials, covered = log_factorials(len(n)), 0
    for i in tested[steps].tolist():
        own = None if groups is None else groups[: i + 1]
        effect = design_effect(correct[: i + 1] - correct[: i + 1].mean(), own)
        few, all_images = math.ceil(mistakes[i] / effect), math.floor((i + 1) / effect)
        if binomial_tail(few + 1, all_images, 1 - precision, factorials) < confidence:
            break
        covered = i + 1
    return covered


def _needed_certain(precision: float, confidence: float) -> int:
    """Return the smallest number of images that pass the test without a mistake."""
    return math.ceil(math.log(1 - confidence) / math.log(precision) - 1e-9)


# choice of a threshold for each label of a multi-label model, given a requested precision ---------

_NEVER = 1.0  # threshold of a label that is never assigned, because none reaches the precision


def choose_label_thresholds(
    run: Path, precision: float, labels: Sequence[str]
) -> tuple[float, ...]:
    """Return and log the smallest threshold at which each label reaches a requested precision.

    A label that does not reach the precision at any threshold is never assigned. The errors are
    those of `choose_threshold`.
    """
    values, truth, groups = _held_out(run).label_answers()
    thresholds, unreachable = [], []
    for i, name in enumerate(labels):
        answers = Answers.sorted(values[:, i], truth[:, i], groups)
        covered = smallest_cover(answers, precision)
        if not covered:
            unreachable.append(name)
            thresholds.append(_NEVER)
            continue
        thresholds.append(float(answers.probability[covered - 1]))
        right = int(answers.correct[:covered].sum())
        log.info(
            f"{name}: threshold {percent(thresholds[-1])}, precision {percent(right / covered)} "
            f"on {count(covered, 'image')}, recall {percent(right / max(1, truth[:, i].sum()))}"
        )
    if len(unreachable) == len(labels):
        raise UsageError(
            f"no label reaches a precision of {requested_percent(precision)} at any threshold on "
            f"{count(len(values), 'image')}",
            fix="use a lower --precision, or set one threshold directly, e.g. --threshold 0.8",
        )
    if unreachable:
        log.warning(
            "labels that are never assigned, because no threshold reaches a precision of "
            f"{requested_percent(precision)}: {listing(unreachable)}"
        )
    return tuple(thresholds)


# choice of a threshold for each level of a tree of classes, given a requested precision -----------

_NO_ANSWER = 2.0  # threshold of a level without answers, because none reaches the precision


def _choose_level_thresholds(
    run: Path, precision: float, tree: ClassTree, lowest: float
) -> tuple[float, ...]:
    """Return and log the smallest threshold of each level at which it reaches a precision.

    `lowest` is that of the classes. A level above them answers the images that no level below it
    answers, and its precision holds for these.
    """
    logits, labels, groups = _held_out(run).scores()
    probabilities = softmax(logits.astype(np.float64))
    covers = level_covers(tree, probabilities, labels, precision, lowest, groups)
    thresholds = [lowest]
    for level, answers, covered in covers:
        images = count(len(answers.correct), "unsure image")
        if covered:
            chosen = _threshold(answers, covered, images)
            log.info(f"level {level}: {chosen}")
            thresholds.insert(0, chosen.value)
        else:
            log.warning(
                f"level {level} has no answers: no threshold reaches a precision of "
                f"{requested_percent(precision)} on {images}"
            )
            thresholds.insert(0, _NO_ANSWER)
    return tuple(thresholds)


def level_covers(
    tree: ClassTree,
    probabilities: Floats,
    labels: Ints,
    precision: float,
    lowest: float,
    groups: Groups | None = None,
) -> Iterator[tuple[int, Answers, int]]:
    """Yield each level above the classes, from below: its answers, and how many are sure enough.

    The answers are those for images (n, C) that have no answer at a level below.
    """
    rest = probabilities.max(axis=1) < lowest
    for level in range(len(tree.nodes) - 1, 0, -1):
        probability, best = tree.best(probabilities, level)
        some = rest & tree.has_answer(best, level)
        right = best == tree.above[level - 1][labels]
        own = None if groups is None else groups[some]
        answers = Answers.sorted(probability[some], right[some], own)
        covered = smallest_cover(answers, precision)
        yield level, answers, covered
        if covered:
            rest &= ~(some & (probability >= answers.probability[covered - 1]))


# prediction sets: the classes among which the true class is with a requested probability ----------

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
    """Smallest probability with which each class is in a prediction set.

    The limits come from n held-out images by split conformal prediction with the score 1 - p(true
    class): of all scores, it gives the smallest sets on average. The coverage holds for new images
    that are drawn like the held-out ones. C is the number of classes.

    Sources: Sadinle, Lei & Wasserman 2019, "Least Ambiguous Set-Valued Classifiers with Bounded
    Error Levels", Journal of the American Statistical Association 114 (the score, and limits by
    class), and Lee, Barber & Willett 2023, "Distribution-free inference with hierarchical data",
    https://arxiv.org/abs/2306.06342 (groups, each with a total weight of 1).
    """

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


def _choose_set_limits(run: Path, coverage: float) -> tuple[tuple[float, ...], str]:
    """Return the limits of a run's prediction sets, and a sentence about their coverage.

    The coverage is measured on the held-out images: each one is left out, with its group, when its
    limits are chosen.

    Raises:
        RunError: The run has no validation predictions, or a file of the run is damaged.
        UsageError: There are too few images or groups.
    """
    held_out = _held_out(run, fix="use the run directory")
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
