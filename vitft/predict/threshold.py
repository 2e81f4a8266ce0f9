"""Choice of the threshold below which predictions are not sure, from a run's validation images.

Nothing here imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitft.metrics.intervals import wilson_interval
from vitft.metrics.results import Interval
from vitft.predict.validation import ValidationPrediction, read_validation_predictions
from vitft.system.errors import RunError, UsageError
from vitft.system.text import count, interval, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The smallest probability above which predictions reach a requested precision."""

    value: float
    """Predictions with a smaller probability are noted as not sure."""
    precision: float
    """Fraction of correct predictions among the validation images at or above it."""
    interval: Interval
    """95 % interval of the precision; the threshold was chosen on the same images."""
    coverage: float
    """Fraction of the validation images at or above it."""
    images: int
    """Number of validation images."""

    def __str__(self) -> str:
        covered = round(self.coverage * self.images)
        return (
            f"threshold {percent(self.value)}: precision {percent(self.precision)} "
            f"(95 % interval {interval(self.interval)}) on {covered:,} of "
            f"{count(self.images, 'validation image')}"
        )


def choose_threshold(run: Path, precision: float) -> Threshold:
    """Return the smallest threshold at which a run reaches a precision on its validation images.

    Raises:
        RunError: The run has no validation predictions.
        UsageError: No threshold reaches the precision.
    """
    predictions = read_validation_predictions(run)
    if not predictions:
        raise RunError(
            f"cannot choose a threshold: {run} has no validation predictions",
            fix="give the probability itself: --threshold 0.8",
        )
    threshold = smallest_threshold(predictions, precision)
    if threshold is None:
        highest = max(p.probability for p in predictions if not p.is_correct)
        raise UsageError(
            f"no threshold reaches a precision of {percent(precision)}: a validation image was "
            f"misclassified with a probability of {percent(highest)}",
            fix="ask for a lower --precision, or check the doubtful labels: vitft report",
        )
    return threshold


def smallest_threshold(
    predictions: Sequence[ValidationPrediction], precision: float
) -> Threshold | None:
    """Return the smallest probability at or above which enough predictions are correct."""
    ranking = sorted(predictions, key=lambda p: -p.probability)
    threshold: Threshold | None = None
    correct = 0
    for covered, prediction in enumerate(ranking, start=1):
        correct += prediction.is_correct
        is_tied = covered < len(ranking) and ranking[covered].probability == prediction.probability
        if not is_tied and correct >= precision * covered:
            threshold = Threshold(
                value=prediction.probability,
                precision=correct / covered,
                interval=wilson_interval(correct, covered),
                coverage=covered / len(ranking),
                images=len(ranking),
            )
    return threshold
