"""Rows of predictions as a table, JSON, JSONL or CSV; `output` writes them to files."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vitft.data.image_table import JOINER, join_labels
from vitft.messages.results import expected_accuracy
from vitft.system.console import visible
from vitft.system.text import count, csv_line, percent

if TYPE_CHECKING:
    from vitft.metrics.results import Results

# the prediction for one image and its conversion to table cells and JSON --------------------------

NOT_SURE, OUT_OF_DISTRIBUTION = "not sure", "unlike the training images"  # notes
_DECIMALS = 6  # decimal places of probabilities; further digits differ between machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The most probable classes of one image, or the reason why the image is unusable."""

    path: str
    classes: tuple[str, ...] = ()  # most probable first; all labels of a multi-label model
    probabilities: tuple[float, ...] = ()  # of each of `classes`
    prediction_set: tuple[str, ...] = ()  # most probable first, if requested
    labels: tuple[str, ...] | None = None  # labels of the image; None for a model of one class
    labels_probability: float = 0.0
    """Probability that the image has exactly `labels`, assuming that labels are independent."""
    level: int | None = None  # of `answer` in a tree of classes; 0 if not sure, None without one
    notes: tuple[str, ...] = ()  # such as `NOT_SURE` and `OUT_OF_DISTRIBUTION`
    error: str = ""
    run: str = ""  # name of the run that produced the model; empty if unknown
    target_probability: float = 0.0  # probability of the target class, if one was given
    view: np.ndarray[Any, np.dtype[np.uint8]] | None = field(default=None, compare=False)
    """The preprocessed image (S, S, 3), if requested."""
    logits: np.ndarray[Any, np.dtype[np.float32]] | None = field(default=None, compare=False)
    """Logits (C,) of the model; None for an unusable image."""
    group: str = ""  # name of the image's group, if there will be one answer per group
    images: int = 0
    """Number of readable and unreadable images, if this is the answer for a group, which `path`
    names; otherwise 0."""
    unreadable: int = 0  # of these images

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
        if self.images:
            row = {"group": self.path, "images": self.images, "unreadable": self.unreadable}
        if self.run:
            row["run"] = self.run
        if self.group:  # a row of an unfinished file
            row["group"] = self.group
            row["logits"] = [] if self.logits is None else [float(str(x)) for x in self.logits]
        if self.error:
            return {**row, "error": self.error}
        if self.labels is not None:
            row["labels"] = [*self.labels]
        pairs = zip(self.classes, self.probabilities, strict=True)
        row["classes"] = [{"class": name, "probability": round(p, _DECIMALS)} for name, p in pairs]
        if self.level is not None:
            row["level"] = self.level
        if self.prediction_set:
            row["prediction_set"] = [*self.prediction_set]
        return {**row, "notes": [*self.notes]} if self.notes else row

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """Return the prediction of a row of JSONL output (`to_dict`)."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        }
        ranked, logits = fields.pop("classes", ()), fields.pop("logits", ())
        return cls(
            **fields,
            classes=tuple(one["class"] for one in ranked),
            probabilities=tuple(one["probability"] for one in ranked),
            logits=np.array(logits, np.float32) if logits else None,
        )


def _summarise(prediction: Prediction) -> str:
    """Return a prediction or its error as text, such as `rose 97.1%, lily 2.0% (not sure)`."""
    notes = [count(prediction.images, "image")] * bool(prediction.images)
    notes += [f"{prediction.unreadable:,} unreadable"] * bool(prediction.unreadable)
    notes += prediction.notes
    remarks = f" ({', '.join(notes)})" * bool(notes)
    if prediction.error:
        return visible(f"error: {prediction.error}{remarks}")
    pairs = [*zip(prediction.classes, prediction.probabilities, strict=True)]
    if prediction.labels is not None:
        pairs = [pair for pair in pairs if pair[0] in prediction.labels]
    best = ", ".join(f"{visible(name)} {percent(probability)}" for name, probability in pairs)
    best = best or "no label"
    if len(prediction.prediction_set) > 1:
        best += f" {{{visible(', '.join(prediction.prediction_set))}}}"
    return f"{best}{remarks}"


# number of images per predicted class and per note, as lines for the end of a prediction job ------

_MARKS = (NOT_SURE, OUT_OF_DISTRIBUTION, "blank")  # notes that are counted up to a colon
_UNREADABLE = "unreadable"
_MOST_COUNTED = 6  # maximum number of classes with their counts, if there are at least two more


class Tally:
    """Counter of rows, classes and notes; an image may have several notes and several labels."""

    def __init__(self) -> None:
        self.rows = 0
        self.answers: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()
        self.right = self.right_of_unlike = 0.0  # sums of the probabilities of single answers
        self.counted: Counter[tuple[str, float]] = Counter()
        """Single answers, with their probability in thousandths, of images that are not unlike."""

    @property
    def errors(self) -> int:
        return self.marks[_UNREADABLE]

    def counting(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Yield the predictions unchanged, and count them."""
        for prediction in predictions:
            self.rows += 1
            if prediction.error:
                self.marks[_UNREADABLE] += not prediction.unreadable
            else:
                answers = prediction.classes[:1] if prediction.labels is None else prediction.labels
                self.answers.update(answers or ["no label"])
                if prediction.labels is None and not prediction.images:
                    self.right += prediction.probability
                    if OUT_OF_DISTRIBUTION in prediction.notes:
                        self.right_of_unlike += prediction.probability
                    else:
                        self.counted[prediction.answer, round(prediction.probability, 3)] += 1
                self.marks.update(note.partition(":")[0] for note in prediction.notes)
            self.marks[_UNREADABLE] += prediction.unreadable
            yield prediction

    def lines(
        self, run: "Results | None", *, has_threshold: bool = False, has_counts: bool = False
    ) -> Iterator[str]:
        """Yield lines with the most frequent classes, the expected accuracy and the notes.

        The classes are left out if there will be counts of all of them.
        """
        if self.answers and not has_counts:
            frequent = sorted(self.answers.items(), key=lambda item: (-item[1], item[0]))
            shown = frequent if len(frequent) <= _MOST_COUNTED + 1 else frequent[:_MOST_COUNTED]
            classes = ", ".join(f"{visible(name)}: {number:,}" for name, number in shown)
            if more := len(frequent) - len(shown):
                classes += f" and {more:,} more"
            if foreign := self.marks[OUT_OF_DISTRIBUTION]:
                classes += f", including {foreign:,} {OUT_OF_DISTRIBUTION}"
            yield f"predicted: {classes}"
        if run and self.right:
            images, unlike = self.rows - self.errors, self.marks[OUT_OF_DISTRIBUTION]
            if text := expected_accuracy(
                run, images, self.right, unlike=unlike, right_of_unlike=self.right_of_unlike
            ):
                yield f"expected: {text}"
        always = {NOT_SURE} if has_threshold else set()
        found = [n for n in (*_MARKS, _UNREADABLE) if self.marks[n] or n in always]
        if marked := ", ".join(f"{self.marks[name]:,} {name}" for name in found):
            yield f"marked: {marked}"


# rows of predictions as a table, JSON, JSONL or CSV -----------------------------------------------

COUNTS = ("images", "unreadable")  # columns of rows about groups
INTEGERS = (*COUNTS, "level")
_ALIGNED = 100  # number of rows by which the width of the first column is determined


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Format of the rows of predictions, and their columns."""

    style: str  # one of `request.ROW_FORMATS`
    top_k: int = 1  # number of classes per image
    labels: Sequence[str] = ()  # all labels of a multi-label model; empty for other models
    bom: bool = False  # whether a CSV file begins with a byte order mark
    has_sets: bool = False  # whether there are prediction sets
    groups: bool = False  # whether a row is about a group of images
    has_levels: bool = False  # whether classes may be nodes of a tree

    @property
    def columns(self) -> list[str]:
        columns = ["labels", *(f"probability_{name}" for name in self.labels)]
        if not self.labels:
            ranks = ["", *(f"_{rank}" for rank in range(2, self.top_k + 1))]
            columns = [f"{name}{rank}" for rank in ranks for name in ("class", "probability")]
            columns += ["level"] * self.has_levels + ["prediction_set"] * self.has_sets
        first = ["group", *COUNTS] if self.groups else ["path"]
        return [*first, *columns, "notes", "error"]

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
            found += [one.level] * self.has_levels
            found += [JOINER.join(one.prediction_set)] * self.has_sets
        counts = [one.images, one.unreadable] if self.groups else []
        return [one.path, *counts, *found, "; ".join(one.notes), one.error]


def text_lines(form: RowFormat, predictions: Iterable[Prediction]) -> Iterator[str]:
    """Yield the lines of predictions as a table, JSON, JSONL or CSV, without line breaks."""
    predictions = iter(predictions)
    first = [*islice(predictions, 1)]  # nothing is written before an image is scored
    predictions = chain(first, predictions)
    if form.style == "table":
        pairs = ((visible(one.path), _summarise(one)) for one in predictions)
        aligned = [(form.columns[0], "prediction"), *islice(pairs, _ALIGNED)]
        width = max(len(path) for path, _ in aligned)
        yield from (f"{path:<{width}}  {text}" for path, text in chain(aligned, pairs))
    elif form.style == "csv":
        yield "\ufeff" * form.bom + csv_line(form.columns)
        yield from (csv_line([*map(format_csv_cell, form.cells(one))]) for one in predictions)
    elif form.style == "jsonl":
        yield from (json.dumps(one.to_dict(), allow_nan=False) for one in predictions)
    else:
        begin = "["  # a comma follows every row but the last
        for one in predictions:
            yield begin
            begin = f"  {json.dumps(one.to_dict(), allow_nan=False)},"
        yield begin.removesuffix(",")
        yield "]"


def format_csv_cell(cell: str | float | None) -> str:
    """Format a CSV cell: probabilities with fixed decimal places, None as an empty string."""
    return f"{cell:.{_DECIMALS}f}" if isinstance(cell, float) else str("" if cell is None else cell)
