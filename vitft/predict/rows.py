"""Rows of predictions as a table, JSON, JSONL or CSV; `output` writes them to files."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from vitft.data.label_sets import join_labels
from vitft.system.console import visible
from vitft.system.text import csv_line, json_line, percent

if TYPE_CHECKING:
    import numpy as np


# the prediction for one image and its conversion to table cells and JSON --------------------------

NOT_SURE, OUT_OF_DISTRIBUTION = "not sure", "unlike the training images"
"""Notes for a probability below the threshold and for an out-of-distribution image."""
_DECIMALS = 6
"""Number of decimal places of probabilities in output; further digits differ between machines."""


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
        return f"Prediction({visible(self.path)!r}: {_summarise(self)})"

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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of JSON and JSONL output and of the server, without empty ones."""
        row: dict[str, Any] = {"path": self.path}
        if self.run:
            row["run"] = self.run
        if self.error:
            return {**row, "error": self.error}
        if self.labels is not None:
            row["labels"] = [*self.labels]
        pairs = zip(self.classes, self.probabilities, strict=True)
        row["classes"] = [{"class": name, "probability": round(p, _DECIMALS)} for name, p in pairs]
        return {**row, "notes": [*self.notes]} if self.notes else row


def _summarise(prediction: Prediction) -> str:
    """Return a prediction or its error as text, such as `rose 97.1%, lily 2.0% (not sure)`."""
    if prediction.error:
        return visible(f"error: {prediction.error}")
    pairs = [*zip(prediction.classes, prediction.probabilities, strict=True)]
    if prediction.labels is not None:
        pairs = [pair for pair in pairs if pair[0] in prediction.labels]
    best = ", ".join(f"{visible(name)} {percent(probability)}" for name, probability in pairs)
    best = best or "no label"
    return f"{best} ({', '.join(prediction.notes)})" if prediction.notes else best


# number of images per predicted class and per note, as lines for the end of a prediction job ------

_MARKS = (NOT_SURE, OUT_OF_DISTRIBUTION, "blank")
"""Notes that are counted, as far as the first colon."""
_UNREADABLE = "unreadable"
_MOST_COUNTED = 6
"""Maximum number of classes with their counts, if there are at least two more."""


class _Tally:
    """Counter of classes and notes; an image may have several notes or, if multi-label, labels."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()

    def add(self, prediction: Prediction) -> None:
        """Count a prediction."""
        if prediction.error:
            self.marks[_UNREADABLE] += 1
            return
        answers = prediction.classes[:1] if prediction.labels is None else prediction.labels
        self.answers.update(answers or ["no label"])
        self.marks.update(note.partition(":")[0] for note in prediction.notes)

    def lines(self, beginning: str = "", *, has_threshold: bool = False) -> Iterator[str]:
        """Yield a line with the most frequent classes, and one with the notes, if there are any.

        `beginning` says which rows are counted. With a threshold, `not sure` is always stated.
        """
        if self.answers:
            frequent = sorted(self.answers.items(), key=lambda item: (-item[1], item[0]))
            shown = frequent if len(frequent) <= _MOST_COUNTED + 1 else frequent[:_MOST_COUNTED]
            classes = ", ".join(f"{visible(name)}: {number:,}" for name, number in shown)
            if more := len(frequent) - len(shown):
                classes += f" and {more:,} more"
            if foreign := self.marks[OUT_OF_DISTRIBUTION]:
                classes += f", including {foreign:,} {OUT_OF_DISTRIBUTION}"
            yield f"predicted{beginning}: {classes}"
        always = {NOT_SURE} if has_threshold else set()
        found = [n for n in (*_MARKS, _UNREADABLE) if self.marks[n] or n in always]
        if marked := ", ".join(f"{self.marks[name]:,} {name}" for name in found):
            yield f"marked{beginning}: {marked}"


# rows of predictions as a table, JSON, JSONL or CSV -----------------------------------------------

BYTE_ORDER_MARK = "\ufeff"
"""First character of a CSV file that Excel is to read as UTF-8."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Format of the rows of predictions, and their columns."""

    style: str
    """One of `request.ROW_FORMATS`."""
    top_k: int = 1
    """Number of classes per image."""
    labels: Sequence[str] = ()
    """All labels of a multi-label model; empty for other models."""
    bom: bool = False
    """Whether a CSV file begins with a byte order mark."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns of CSV, Parquet and Excel output."""
        columns = ["labels", *(f"probability_{name}" for name in self.labels)]
        if not self.labels:
            ranks = ["", *(f"_{rank}" for rank in range(2, self.top_k + 1))]
            columns = [f"{name}{rank}" for rank in ranks for name in ("class", "probability")]
        return ["path", *columns, "notes", "error"]

    def cells(self, prediction: Prediction) -> list[str | float | None]:
        """Return the cells of a row, with None for missing values."""
        one, found = prediction, list[str | float | None]()
        pairs = zip(one.classes, (round(p, _DECIMALS) for p in one.probabilities), strict=True)
        if self.labels:
            known = dict(pairs)
            found = [None if one.labels is None else one.answer, *map(known.get, self.labels)]
        else:
            found = [cell for pair in pairs for cell in pair]
            found += [None] * (2 * self.top_k - len(found))
        return [one.path, *found, "; ".join(one.notes), one.error]


class RowWriter:
    """Writer of predictions as a table, JSON, JSONL or CSV, as lines without line breaks."""

    def __init__(self, form: RowFormat, write: Callable[[str], object]) -> None:
        self.form, self.style, self.write = form, form.style, write
        self.count = self.errors = 0
        self.tally = _Tally()
        """Classes and notes of the rows written by this process, but not before a resumption."""
        self.has_begun = False
        self.pending_json = ""
        """Latest JSON row, held back because a comma must follow every row but the last."""
        self.unaligned: list[tuple[str, str]] | None = [("path", "prediction")]
        """Rows held back until the width of the first column is known; None afterwards."""
        self.width = 0

    def begin(self) -> None:
        """Write the CSV header or the opening bracket of JSON, if not yet written."""
        if not self.has_begun and self.style in ("csv", "json"):
            header = BYTE_ORDER_MARK * self.form.bom + csv_line(self.form.columns)
            self.write(header if self.style == "csv" else "[")
        self.has_begun = True

    def add(self, prediction: Prediction) -> None:
        """Count a prediction and write its row."""
        self.begin()
        self.count += 1
        self.errors += bool(prediction.error)
        self.tally.add(prediction)
        self.write_row(prediction)

    def write_row(self, prediction: Prediction) -> None:
        """Write the row of a prediction, or hold it back."""
        if self.style == "csv":
            self.write(csv_line([*map(format_csv_cell, self.form.cells(prediction))]))
        elif self.style == "jsonl":
            self.write(json_line(prediction.to_dict()))
        elif self.style == "json":
            if self.pending_json:
                self.write(f"{self.pending_json},")
            self.pending_json = f"  {json_line(prediction.to_dict())}"
        else:
            self.write_table_row(visible(prediction.path), _summarise(prediction))

    def write_table_row(self, path: str, text: str) -> None:
        """Write a row of the table, or hold it back until the first column's width is known."""
        if self.unaligned is None:
            self.write(f"{path:<{self.width}}  {text}")
            return
        self.unaligned.append((path, text))
        if len(self.unaligned) > 100:
            self.align()

    def align(self) -> None:
        """Determine the width of the first column from the rows held back, and write them."""
        rows, self.unaligned = self.unaligned or [], None
        self.width = max(len(path) for path, _ in rows)
        for path, text in rows:
            self.write_table_row(path, text)

    def close(self) -> None:
        """Write everything still pending, including the closing bracket of JSON."""
        self.begin()
        if self.style == "json":
            if self.pending_json:
                self.write(self.pending_json)
            self.write("]")
        elif self.style == "table" and self.unaligned is not None:
            self.align()


def format_csv_cell(cell: str | float | None) -> str:
    """Format a CSV cell: probabilities with fixed decimal places, None as an empty string."""
    return f"{cell:.{_DECIMALS}f}" if isinstance(cell, float) else cell or ""
