"""A probability threshold that gives predictions a requested precision.

It is chosen on predictions by models that were not fitted to the image: those for the validation
images and, if a head was solved, the cross-validated ones for the training images. Does not import
torch.

Notation: n predictions at or above a threshold, k mistakes among them, e mistakes that their
calibrated probabilities predict, p the requested precision.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from vitft.metrics.intervals import Floats, wilson_interval
from vitft.metrics.results import Interval
from vitft.predict.validation import (
    Flags,
    read_training_predictions,
    read_validation_predictions,
)
from vitft.system.errors import RunError, UsageError
from vitft.system.text import count, interval, percent

SPARE_MISTAKES = 1.0
"""Number of mistakes above e that the requested precision must allow. Without it, a threshold could
rest on a single image; with it, p = 0.99 needs at least 100 predictions above the threshold."""
SIGNIFICANCE = 0.05
"""Probability of k or more mistakes at precision p below which the mistakes contradict p."""
LOWER_PRECISIONS = (0.99, 0.98, 0.97, 0.95, 0.9, 0.8, 0.7)
"""Precisions that are suggested instead of one that is not reached."""


class Answers(NamedTuple):
    """Predictions for images that the model was not fitted to, most probable first."""

    probability: Floats
    """Probability of each predicted class (n,)."""
    correct: Flags
    """Whether each prediction is right (n,)."""

    @classmethod
    def sorted(cls, probability: Sequence[float], correct: Sequence[bool]) -> Self:
        """Create an instance from predictions in any order."""
        values, flags = np.asarray(probability, np.float64), np.asarray(correct, bool)
        order = np.argsort(-values, kind="stable")
        return cls(values[order], flags[order])


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Smallest probability at or above which predictions have a requested precision."""

    value: float
    """Probability below which a prediction is marked `not sure`."""
    precision: float
    """Fraction of correct predictions among the `covered` ones."""
    interval: Interval
    """95 % interval of the precision; the threshold was chosen on the same images."""
    covered: int
    """Number of images whose predictions are at or above the threshold."""
    validation: int
    """Number of validation images."""
    training: int = 0
    """Number of training images with cross-validated predictions."""

    def __str__(self) -> str:
        images = count(self.validation, "validation image")
        if self.training:
            total = count(self.validation + self.training, "image")
            images = f"{total} ({self.validation:,} validation, {self.training:,} cross-validated)"
        return (
            f"threshold {percent(self.value)}: precision {percent(self.precision)} "
            f"(95 % interval {interval(self.interval)}) on {self.covered:,} of {images}"
        )


def choose_threshold(run: Path, precision: float) -> Threshold:
    """Return the smallest threshold that gives predictions of a run a requested precision.

    Raises:
        RunError: The run has no validation predictions, or they are damaged.
        UsageError: There are too few images or too many mistakes for any threshold.
    """
    validation = read_validation_predictions(run)
    if not validation:
        raise RunError(
            f"cannot choose a threshold: {run} has no validation predictions",
            fix="set the threshold directly, e.g. --threshold 0.8",
        )
    probability, correct = read_training_predictions(run)
    answers = Answers.sorted(
        [*(p.probability for p in validation), *probability.tolist()],
        [*(p.is_correct for p in validation), *correct.tolist()],
    )
    covered = smallest_cover(answers, precision)
    if not covered:
        raise unreachable(answers, precision)
    right = int(answers.correct[:covered].sum())
    return Threshold(
        value=float(answers.probability[covered - 1]),
        precision=right / covered,
        interval=wilson_interval(right, covered),
        covered=covered,
        validation=len(validation),
        training=len(probability),
    )


def smallest_cover(answers: Answers, precision: float) -> int:
    """Return how many predictions are at or above the smallest threshold, or 0 if there is none.

    A threshold is accepted if the mistakes that the probabilities predict, plus `SPARE_MISTAKES`,
    are at most the fraction 1 - p of the predictions, and if a binomial test does not reject p for
    the actual mistakes. The predicted mistakes vary less than the actual ones, of which a single
    wrong label is often half: on 300 photos of flowers, p = 0.99 by actual mistakes kept up to 38
    points fewer new photos than possible (docs/experiments.md).
    """
    probability, correct = answers
    n = np.arange(1, len(probability) + 1)
    mistakes = np.cumsum(~correct)
    is_tied = np.append(probability[1:] == probability[:-1], False)
    accepted = (spare_mistakes(answers, precision) >= SPARE_MISTAKES) & ~is_tied
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(n))])
    for i in np.flatnonzero(accepted)[::-1].tolist():
        if binomial_tail(int(mistakes[i]), i + 1, 1 - precision, log_factorial) >= SIGNIFICANCE:
            return i + 1
    return 0


def spare_mistakes(answers: Answers, precision: float) -> Floats:
    """Return, for the first n = 1, 2, ... predictions, (1 - p) n - e."""
    n = np.arange(1, len(answers.probability) + 1)
    return np.asarray((1 - precision) * n - np.cumsum(1 - answers.probability))


def binomial_tail(least: int, trials: int, chance: float, log_factorial: Floats) -> float:
    """Return the probability of at least `least` successes in `trials` of probability `chance`."""
    if least == 0 or not 0 < chance < 1:
        return 1.0 if least == 0 else 0.0
    k = np.arange(least)
    logs = log_factorial[trials] - log_factorial[k] - log_factorial[trials - k]
    logs += k * math.log(chance) + (trials - k) * math.log1p(-chance)
    return max(0.0, 1 - float(np.exp(logs).sum()))


def needed_images(answers: Answers, precision: float) -> int | None:
    """Return about how many images a threshold needs, or None if no number is enough.

    With m times as many images with the same probabilities, the spare mistakes grow by a factor of
    m. The number is rounded up to two digits.
    """
    most = float(spare_mistakes(answers, precision).max())
    if most <= 0:
        return None
    images = len(answers.probability) * SPARE_MISTAKES / most
    if images <= len(answers.probability):
        return None  # enough images, but too many mistakes among the most probable predictions
    unit = 10.0 ** max(0, math.floor(math.log10(images)) - 1)
    return round(math.ceil(images / unit - 0.05) * unit)


def unreachable(answers: Answers, precision: float) -> UsageError:
    """Return the error for a precision that no threshold reaches."""
    have = len(answers.probability)
    lower = (p for p in LOWER_PRECISIONS if p < precision and smallest_cover(answers, p))
    reachable = next(lower, None)
    fix = "set the threshold directly, e.g. --threshold 0.8"
    if reachable is not None:
        fix = f"use --precision {reachable}, or {fix}"
    if needed := needed_images(answers, precision):
        return UsageError(
            f"choosing a threshold for a precision of {percent(precision)} needs about {needed:,} "
            f"images, but this run has {have:,}",
            fix=fix,
        )
    wrong = np.flatnonzero(~answers.correct)
    if precision == 1:
        reason = "no number of images can prove that mistakes never happen"
    elif len(wrong):
        at = percent(float(answers.probability[wrong[0]]))
        reason = f"predictions with probabilities of up to {at} were wrong"
    else:
        reason = f"the largest of {have:,} probabilities is {percent(answers.probability[0])}"
    problem = f"no threshold reaches a precision of {percent(precision)}: {reason}"
    return UsageError(problem, fix=fix)
