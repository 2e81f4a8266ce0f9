"""The prediction for one image and its conversion to table cells and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypedDict

from vitft.data.label_sets import join_labels
from vitft.system.console import visible
from vitft.system.text import percent

if TYPE_CHECKING:
    import numpy as np

NOT_SURE, OUT_OF_DISTRIBUTION = "not sure", "unlike the training images"
"""Notes for a probability below the threshold and for an out-of-distribution image."""
DECIMALS = 6
"""Number of decimal places of probabilities in output; further digits differ between machines."""

_ClassProbability = TypedDict("_ClassProbability", {"class": str, "probability": float})


class _PredictionDict(TypedDict, total=False):
    """A prediction as JSON; empty fields are omitted."""

    path: str
    run: str
    labels: list[str]  # labels assigned to the image; absent if each image has exactly one class
    classes: list[_ClassProbability]
    notes: list[str]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The most probable classes of one image, or the reason why the image is unusable."""

    path: str
    classes: tuple[str, ...] = ()
    """Class names, most probable first; all labels of a multi-label model."""
    probabilities: tuple[float, ...] = ()
    """Probability of each of `classes`; the probabilities of all classes of the model sum to 1,
    unless it is a multi-label model."""
    labels: tuple[str, ...] | None = None
    """Labels assigned to the image, most probable first; None if each image has exactly one
    class.
    """
    labels_probability: float = 0.0
    """Probability that the image has exactly `labels`, assuming that labels are independent."""
    notes: tuple[str, ...] = ()
    """Notes such as `NOT_SURE` and `OUT_OF_DISTRIBUTION`."""
    error: str = ""
    run: str = ""
    """Name of the run that produced the model; empty if unknown."""
    target_probability: float = 0.0
    """Probability of the target class; 0 if no target was given."""
    view: "np.ndarray[Any, np.dtype[np.uint8]] | None" = field(
        default=None, repr=False, compare=False
    )
    """The preprocessed image (S, S, 3), if requested."""

    def __repr__(self) -> str:
        return f"Prediction({visible(self.path)!r}: {summarise(self)})"

    @property
    def answer(self) -> str:
        """The most probable class, or the assigned labels joined in sorted order."""
        return self.classes[0] if self.labels is None else join_labels(self.labels)

    @property
    def probability(self) -> float:
        """Probability of `answer`."""
        return self.probabilities[0] if self.labels is None else self.labels_probability

    def top(self, k: int) -> Self:
        """Return a copy of the prediction with at most `k` classes, but all `labels`."""
        k = max(k, len(self.labels or ()))
        return replace(self, classes=self.classes[:k], probabilities=self.probabilities[:k])

    def to_dict(self) -> _PredictionDict:
        """Return the prediction as a dict for JSON and JSONL output and for the server."""
        row: _PredictionDict = {"path": self.path}
        if self.run:
            row["run"] = self.run
        if self.error:
            return {**row, "error": self.error}
        pairs = zip(self.classes, self.probabilities, strict=True)
        classes: list[_ClassProbability] = [
            {"class": name, "probability": round(value, DECIMALS)} for name, value in pairs
        ]
        if self.labels is not None:
            row["labels"] = [*self.labels]
        row["classes"] = classes
        return {**row, "notes": [*self.notes]} if self.notes else row

    def to_cells(self, top_k: int, labels: Sequence[str] = ()) -> list[str | float | None]:
        """Return the cells of a CSV or Parquet row, with None for missing values.

        `labels` contains all labels of a multi-label model; it is empty for other models.
        """
        if labels:
            known = dict(zip(self.classes, self.probabilities, strict=True))
            values = [round(known[name], DECIMALS) if known else None for name in labels]
            answer = None if self.labels is None else self.answer
            return [self.path, answer, *values, "; ".join(self.notes), self.error]
        pairs = zip(self.classes, self.probabilities, strict=True)
        cells = [cell for name, value in pairs for cell in (name, round(value, DECIMALS))]
        padding = [None] * (2 * top_k - len(cells))
        return [self.path, *cells, *padding, "; ".join(self.notes), self.error]


def column_names(top_k: int, labels: Sequence[str] = ()) -> list[str]:
    """Return the column names of CSV and Parquet output with `top_k` classes per image.

    For a multi-label model, `labels` contains all its labels. The columns are then the assigned
    labels and the probability of each label.
    """
    if labels:
        return ["path", "labels", *(f"probability_{name}" for name in labels), "notes", "error"]
    ranks: Sequence[str] = ["", *(f"_{rank}" for rank in range(2, top_k + 1))]
    columns = [f"{name}{rank}" for rank in ranks for name in ("class", "probability")]
    return ["path", *columns, "notes", "error"]


def summarise(prediction: Prediction) -> str:
    """Return a prediction or its error as text, such as `rose 97.1%, lily 2.0% (not sure)`."""
    if prediction.error:
        return visible(f"error: {prediction.error}")
    pairs = [*zip(prediction.classes, prediction.probabilities, strict=True)]
    if prediction.labels is not None:
        pairs = [pair for pair in pairs if pair[0] in prediction.labels]
    best = ", ".join(f"{visible(name)} {percent(probability)}" for name, probability in pairs)
    best = best or "no label"
    return f"{best} ({', '.join(prediction.notes)})" if prediction.notes else best
