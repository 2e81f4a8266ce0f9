"""How sure an answer has to be: a probability chosen on the run's own validation images.

Nothing here imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitft.metrics.intervals import wilson
from vitft.metrics.results import Interval
from vitft.predict.validation import Verdict, read_verdicts
from vitft.system.errors import RunError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """From which probability on answers were right as often as was asked for."""

    value: float
    """Answers with a smaller probability are not sure."""
    precision: float
    """Share of right answers among the validation images at or above it."""
    interval: Interval
    """Of the precision, 95 %; the threshold was chosen on the same images."""
    coverage: float
    """Share of the validation images at or above it."""
    images: int
    """Validation images in all."""


def threshold_for(run: Path, precision: float) -> Threshold:
    """The smallest threshold of a run folder with the requested share of right answers.

    Raises:
        RunError: The run keeps no answers to validation images.
        UsageError: No threshold reaches so much.
    """
    verdicts = read_verdicts(run)
    if not verdicts:
        raise RunError(
            f"{run} keeps no answers to validation images, on which a threshold could be chosen",
            fix="name the probability itself: --threshold 0.8",
        )
    found = chosen(verdicts, precision)
    if found is None:
        most = max(v.confidence for v in verdicts if not v.right)
        raise UsageError(
            f"no threshold gives a precision of {precision:.1%}: even at {most:.1%} an answer to a "
            f"validation image was wrong",
            fix="ask for less, or look at the doubtful labels: vitft report",
        )
    return found


def chosen(verdicts: Sequence[Verdict], precision: float) -> Threshold | None:
    """The smallest confidence of a verdict from which on enough of them are right."""
    ranked = sorted(verdicts, key=lambda v: -v.confidence)
    found: Threshold | None = None
    right = 0
    for count, verdict in enumerate(ranked, start=1):
        right += verdict.right
        is_tied = count < len(ranked) and ranked[count].confidence == verdict.confidence
        if not is_tied and right >= precision * count:
            found = Threshold(
                value=verdict.confidence,
                precision=right / count,
                interval=wilson(right, count),
                coverage=count / len(ranked),
                images=len(ranked),
            )
    return found
