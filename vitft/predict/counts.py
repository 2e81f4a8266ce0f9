"""`vitft predict --counts`: the number of images of each class, adjusted for mistakes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from vitft.messages.results import counted_text
from vitft.metrics.counts import LEVELS, adjusted_counts, confidence_levels
from vitft.metrics.intervals import Floats, design_effect
from vitft.predict.rows import OUT_OF_DISTRIBUTION, Tally
from vitft.system.errors import UsageError

COUNT_COLUMNS = ("class", "images", "low", "high", "predicted")
_MOST_CLASSES = 500  # with which counting takes less than a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Held-out images of a run (C, C, L) by true class, predicted class and level of confidence."""

    classes: tuple[str, ...]
    matrix: Floats  # the third axis is the level of confidence
    probability: Floats  # of each predicted class
    held_out: dict[str, int]  # numbers of images, and of groups of dependent images or 0
    effect: float  # design effect of the groups

    @classmethod
    def read(cls, run: Path) -> Self:
        """Read the held-out predictions of a run.

        Raises:
            RunError: The run has none, or a file of the run is damaged.
            UsageError: An image may have several labels, or there are too many classes.
        """
        from vitft.predict.validation import HeldOut  # it imports the modules of training data

        held_out = HeldOut.read_existing(
            run,
            "cannot count the images of each class",
            fix="use --run with the run directory, which has the mistakes on held-out images",
        )
        classes = held_out.split.classes
        if held_out.split.labels or len(classes) > _MOST_CLASSES:
            raise UsageError(
                f"--counts does not support several labels per image or over {_MOST_CLASSES} "
                "classes",
                fix="remove --counts",
            )
        answers = held_out.answers()
        probability, groups = answers.probability.round(3), answers.groups
        levels = confidence_levels(probability, probability)
        matrix = np.zeros((len(classes), len(classes), LEVELS))
        np.add.at(matrix, (answers.labels, answers.predicted, levels), 1)
        return cls(
            classes=classes,
            matrix=matrix,
            probability=probability,
            held_out={
                "images": len(levels),
                "groups": 0 if groups is None else len(np.unique(groups)),
            },
            effect=design_effect(answers.correct - answers.correct.mean(), groups),
        )

    def rows(self, tally: Tally) -> list[tuple[str, int, int, int, int]]:
        """Return the cells of `COUNT_COLUMNS` for each class."""
        index = {name: i for i, name in enumerate(self.classes)}
        own = np.array([index[name] for name, _ in tally.counted], int)
        levels = confidence_levels(np.array([p for _, p in tally.counted]), self.probability)
        images = np.zeros((len(index), LEVELS), int)
        np.add.at(images, (own, levels), [*tally.counted.values()])
        predicted = images.sum(axis=1).tolist()
        counts = adjusted_counts(images, self.matrix, self.effect)
        return [
            (name, round(found.images), found.low, found.high, own)
            for name, found, own in zip(self.classes, counts, predicted, strict=True)
        ]

    def to_json(self, tally: Tally) -> dict[str, Any]:
        """Return the number of images of each class, and of those that are not counted."""
        rows = self.rows(tally)
        return {
            "images": sum(own for *_, own in rows),
            "unlike": tally.marks[OUT_OF_DISTRIBUTION],
            "unreadable": tally.errors,
            "held_out": self.held_out,
            "classes": [
                {"class": name, "images": images, "interval": (low, high), "predicted": own}
                for name, images, low, high, own in rows
            ],
        }

    def summary(self, tally: Tally) -> str:
        """Return what was counted and what was not."""
        unlike, images = tally.marks[OUT_OF_DISTRIBUTION], tally.counted.total()
        return counted_text(images, self.held_out, unlike=unlike, unreadable=tally.errors)
