"""Results of a study: accuracies with intervals, and differences between curves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitft.metrics.intervals import Z, student_t_quantile, wilson_interval
from vitft.metrics.results import Interval
from vitft.study.plan import Plan


class AccuracyDifference(NamedTuple):
    """Difference in accuracy of two feature sources, with its 95 % interval."""

    mean: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Predictions of one feature source at one number of shots."""

    shots: int
    correct: tuple[NDArray[np.bool_], ...]
    """Which test images were classified correctly, (n,) for each seed."""

    @property
    def accuracies(self) -> list[float]:
        """Accuracy of each seed."""
        return [float(correct.mean()) for correct in self.correct]

    @property
    def top1(self) -> float:
        """Mean accuracy over the seeds."""
        return math.fsum(self.accuracies) / len(self.accuracies)

    @property
    def interval(self) -> Interval:
        """95 % interval of the accuracy.

        Each end is the more extreme of two intervals: Student's t of the mean over the seeds, which
        accounts for the choice of training images, and Wilson's for the test images of one seed,
        which accounts for their number and is valid even if three seeds agree by chance.
        """
        images = min(len(correct) for correct in self.correct)
        low, high = wilson_interval(round(self.top1 * images), images)
        half = half_width_of_mean(self.accuracies)
        return max(0.0, min(low, self.top1 - half)), min(1.0, max(high, self.top1 + half))


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShotCurve:
    """Accuracy of one feature source by number of shots."""

    name: str
    weights: str
    features: int
    """Dimensions of the feature vector."""
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResults:
    """Results of a study."""

    plan: Plan
    """The plan, with the shots that are possible without unreadable files and copies."""
    images: int
    """Number of distinct images."""
    test_images: int
    """Number of test images of each seed."""
    majority: float
    """Accuracy of always predicting the largest class of the test images."""
    device: str
    precision: str
    curves: tuple[FewShotCurve, ...]

    def leads(self) -> Mapping[str, tuple[AccuracyDifference, ...]]:
        """Return how far the first curve is ahead of each other one, by number of shots."""
        first, *others = self.curves
        return {
            other.name: tuple(
                difference(a, b) for a, b in zip(first.points, other.points, strict=True)
            )
            for other in others
        }


def difference(first: CurvePoint, second: CurvePoint) -> AccuracyDifference:
    """Return how far `first` is ahead of `second` on the same test images.

    The half-width of the interval is the larger of two: Student's t over the seeds, and that over
    the images of one seed, in which only images that one of the two classifies correctly count.
    """
    pairs = [
        a.astype(np.float64) - b.astype(np.float64)
        for a, b in zip(first.correct, second.correct, strict=True)
    ]
    means = [float(pair.mean()) for pair in pairs]
    mean = math.fsum(means) / len(means)
    by_images = Z * math.fsum(float(p.std()) / math.sqrt(len(p)) for p in pairs) / len(pairs)
    half = max(half_width_of_mean(means), by_images)
    return AccuracyDifference(mean, (max(-1.0, mean - half), min(1.0, mean + half)))


def half_width_of_mean(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean by Student's t; 0 for a single value.

    Source: Student 1908, "The probable error of a mean", Biometrika 6.
    """
    if len(values) < 2:
        return 0.0
    deviation = float(np.std(values, ddof=1))
    return student_t_quantile(len(values) - 1) * deviation / math.sqrt(len(values))
