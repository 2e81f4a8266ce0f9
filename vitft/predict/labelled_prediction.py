"""Predictions of labelled images: rows of predictions.csv, and those kept above a threshold."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitft.metrics.intervals import Groups, accuracy_interval
from vitft.metrics.results import KeptResults
from vitft.predict.prediction import NOT_SURE, Prediction
from vitft.predict.rows import format_csv_cell
from vitft.system.text import csv_line

PREDICTION_COLUMNS = (
    "path", "label", "class", "probability", "label_probability", "correct", "notes", "error",
)  # fmt: skip


class LabelledPrediction(NamedTuple):
    """The label and prediction of an image; the prediction of a skipped image has no classes."""

    label: str
    prediction: Prediction
    group: str = ""
    """Name of the image's group (patient, video, ...); empty if there is none."""

    @property
    def is_correct(self) -> bool:
        return bool(self.prediction.classes) and self.prediction.answer == self.label

    def to_csv(self, columns: int = len(PREDICTION_COLUMNS)) -> str:
        """Return the prediction as a row of predictions.csv: `PREDICTION_COLUMNS` and the group."""
        one = self.prediction
        found: tuple[str | float | None, ...] = (None, None, None, None)
        if one.classes:
            is_correct = str(int(self.is_correct))
            found = (one.answer, one.probability, one.target_probability, is_correct)
        cells = (one.path, self.label, *found, "; ".join(one.notes), one.error, self.group)
        return csv_line([format_csv_cell(cell) for cell in cells[:columns]])


def kept_results(
    predictions: Sequence[LabelledPrediction], threshold: float, groups: Groups | None = None
) -> KeptResults | None:
    """Return how many predictions are not marked `not sure`, and how many of them are right.

    The intervals count the `groups` (n,) of the scored images, if there are any. The result is None
    if the threshold is 0, with which no prediction is marked.
    """
    if not threshold:
        return None
    scored = [row for row in predictions if row.prediction.classes]
    sure = np.array([NOT_SURE not in row.prediction.notes for row in scored])
    kept = np.array([row.is_correct for row in scored])[sure]
    return {
        "threshold": threshold,
        "images": len(kept),
        "fraction": len(kept) / len(scored),
        "fraction_interval": accuracy_interval(sure, groups),
        "top1": int(kept.sum()) / len(kept) if len(kept) else None,
        "top1_interval": (
            accuracy_interval(kept, None if groups is None else groups[sure]) if len(kept) else None
        ),
    }
