"""`vitft predict --counts`: the number of images of each class, adjusted for mistakes."""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from vitft.data.parts import AUDIT, CHOSEN
from vitft.data.sources import ImageSource
from vitft.data.table import TableReader
from vitft.data.web import is_url
from vitft.messages.results import USUALLY_UNLIKE
from vitft.metrics.counts import LEVELS, adjusted_counts, confidence_levels, powered_counts
from vitft.metrics.intervals import Floats, Groups, design_effect
from vitft.predict.rows import OUT_OF_DISTRIBUTION, Prediction, Tally
from vitft.system.errors import DataError, UsageError
from vitft.system.suggest import misspelt_name
from vitft.system.text import count, listing, percent, scored_images

log = logging.getLogger(__name__)

COUNT_COLUMNS = ("class", "images", "low", "high", "predicted")
_MOST_CLASSES = 500  # with which counting takes less than a minute
_FEWEST_LABELS = 30  # unless all images have a label
_FIX = "use a table with the columns path and label, one image per line, and paths relative to it"


def read_sample(
    path: Path, classes: Sequence[str], images: Iterable[ImageSource]
) -> dict[str, tuple[int, int]]:
    """Return the numbers of the class and group of images drawn at random from those to count.

    They are in a table with the columns path and label, perhaps group and that of `vitft label`,
    and returned by the name of the image. A DataError says that the table is invalid, or names an
    image that is not to be counted.
    """
    reader = TableReader(path, missing="check the path", fix=_FIX)
    files = dict[str, list[str]]()
    for image in images:
        files.setdefault(image.url or os.path.abspath(image.path), []).append(image.name)  # noqa: PTH100
    found, lines, others = dict[str, tuple[int, int]](), dict[str, int](), 0
    index, groups = {name: i for i, name in enumerate(classes)}, dict[str, int]()
    for row in reader.records("path", "label"):
        if row.get(CHOSEN, AUDIT) != AUDIT:
            others += 1
            continue
        name, label = reader.checked(row["path"], "path", is_path=True), row["label"].strip()
        file = name if is_url(name) else os.path.abspath(path.parent / name)  # noqa: PTH100
        if label not in index:
            meant = misspelt_name(label, classes)
            problem = f"{reader.checked(label, 'label') or 'nothing'} is not a class of the model"
            fix = f"write {meant}" if meant else "correct the label, or remove the line"
            raise reader.error(problem, column="label", fix=fix)
        problem, fix = "", "keep one of the lines"
        if file in lines:
            problem = f"{name} is also in {reader.unit} {lines[file]}"
        elif file not in files:
            problem = f"{name} is not one of the images to count"
            fix = "correct the path, which is relative to the table, or name the same images"
        if problem:
            raise reader.error(problem, column="path", fix=fix)
        lines[file] = reader.line
        group = groups.setdefault(_group_in(row, reader) or file, len(groups))
        found |= dict.fromkeys(files[file], (index[label], group))
    if others:
        log.info(
            f"not used: {count(others, 'line')} of {path} that vitft label did not draw at "
            "random, or skipped"
        )
    if len(lines) < min(_FEWEST_LABELS, len(files)):
        problem = f"{path} has the labels of {count(len(lines), 'image')} drawn at random"
        raise DataError(problem, fix=f"label at least {_FEWEST_LABELS}, or all images")
    return found


def _group_in(row: Mapping[str, str], reader: TableReader) -> str:
    """Return the group in a row of a table, or an empty string."""
    from vitft.data.label_table import GROUP, bare_name  # it imports modules of training data

    named = [name for name in row if GROUP.fullmatch(bare_name(name))]
    if len(named := ["group"] if "group" in named else named) > 1:
        problem = f"several columns may contain the group: {listing(named)}"
        raise reader.error(problem, fix="rename the one that does to group")
    return "".join(row[name] for name in named).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Held-out images of a run (C, C, L) by true class, predicted class and level of confidence."""

    classes: tuple[str, ...]
    matrix: Floats  # the third axis is the level of confidence
    probability: Floats  # of each predicted class
    held_out: dict[str, int]  # numbers of images, and of groups of dependent images or 0
    effect: float  # design effect of the groups
    sample: Mapping[str, tuple[int, int]] | None = None  # labelled images (`read_sample`)
    sampled: list[tuple[str, float, int, int]] = field(default_factory=list)
    """Class and rounded probability, and both numbers of the `sample`, of those counted."""

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
        missing = [classes[i] for i in np.flatnonzero(matrix.sum(axis=(1, 2)) == 0)]
        if missing:
            log.warning(
                f"no held-out image shows {listing(missing)}, so the mistakes on such images are "
                "unknown, and all counts may be wrong. --labels counts by a labelled sample"
            )
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

    def noting(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Yield the predictions unchanged, and note those for the sample."""
        sample = self.sample or {}
        for one in predictions:
            if one.path in sample and not (one.error or OUT_OF_DISTRIBUTION in one.notes):
                probability = round(one.probability, 3)
                self.sampled.append((one.answer, probability, *sample[one.path]))
            yield one

    def rows(self, tally: Tally) -> list[tuple[str, int, int, int, int]]:
        """Return the cells of `COUNT_COLUMNS` for each class."""
        images = np.zeros((len(self.classes), LEVELS), int)
        np.add.at(images, self._places(tally.counted), [*tally.counted.values()])
        predicted = images.sum(axis=1).tolist()
        if self.sample is None:
            counts = adjusted_counts(images, self.matrix, self.effect)
        else:
            labels, groups = np.array([one[2:] for one in self.sampled], int).reshape(-1, 2).T
            places = self._places(self.sampled)
            counts = powered_counts(images, self.matrix, labels, places, groups)
        return [
            (name, round(found.images), found.low, found.high, own)
            for name, found, own in zip(self.classes, counts, predicted, strict=True)
        ]

    def _places(self, answers: Collection[tuple[Any, ...]]) -> tuple[Groups, Groups]:
        """Return the classes and levels (n,) of tuples of a class, a probability and more."""
        index = {name: i for i, name in enumerate(self.classes)}
        probability = np.array([p for _, p, *_ in answers])
        own = np.array([index[name] for name, *_ in answers], int)
        return own, confidence_levels(probability, self.probability)

    @property
    def labelled(self) -> dict[str, int]:
        """Numbers of labelled images, and of their groups or 0."""
        images, groups = len(self.sampled), len({group for *_, group in self.sampled})
        return {"images": images, "groups": groups if groups < images else 0}

    def to_json(self, tally: Tally) -> dict[str, Any]:
        """Return the number of images of each class, and of those that are not counted."""
        rows = self.rows(tally)
        return {
            "images": sum(own for *_, own in rows),
            "unlike": tally.marks[OUT_OF_DISTRIBUTION],
            "unreadable": tally.errors,
            "held_out": self.held_out,
            "labelled": self.labelled,
            "classes": [
                {"class": name, "images": images, "interval": (low, high), "predicted": own}
                for name, images, low, high, own in rows
            ],
        }

    def summary(self, tally: Tally) -> str:
        """Return what was counted and what was not."""
        unlike, images = tally.marks[OUT_OF_DISTRIBUTION], tally.counted.total()
        used, kind = self.held_out, "held-out image"
        if self.sample is not None:
            used, kind = self.labelled, "labelled image"
        text = (
            f"counted: {count(images, 'image')}, adjusted for the mistakes on "
            f"{scored_images(used, kind)}"
        )
        usually = f"unlike the training images (usually {percent(USUALLY_UNLIKE, 0)})"
        marks = {usually: unlike, "unreadable": tally.errors}
        left_out = ", ".join(f"{number:,} {mark}" for mark, number in marks.items() if number)
        return f"{text}. Not counted: {left_out}" if left_out else text
