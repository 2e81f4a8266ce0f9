"""Validation predictions of a finished run.

The report, the thumbnails and the comparison of runs read the same predictions, so they show the
same mistakes in the same order. This module does not import torch or open images.
"""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from vitft.data.fixes import leaked_paths
from vitft.data.image_table import Images, Row, distinct_places, distinct_rows
from vitft.metrics.calibration import Ints, sigmoid
from vitft.metrics.intervals import Flags, Floats, Groups, accuracy_interval, number_groups
from vitft.metrics.results import AuditResults, Estimate, read_results
from vitft.predict.postprocess import Postprocess, ScoreArray, Scores
from vitft.system import rundir
from vitft.system.errors import RunError
from vitft.system.text import scored_images

THUMBS = "thumbs"
_VALIDATION_FILE = "validation.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPrediction:
    """The prediction for one validation image."""

    path: str  # relative to the data folder, with forward slashes
    sha256: str
    label: str  # class, or label set as text
    predicted: str
    probability: float  # of the predicted class or label set
    label_probability: float
    most_probable: str = ""  # the predicted class, or the most probable label

    @property
    def is_correct(self) -> bool:
        return self.predicted == self.label


def thumb_name(sha256: str, *, attention: bool = False) -> str:
    """Return the file name of an image's thumbnail, with or without overlaid attention."""
    return f"{sha256[:16]}{'-attention' if attention else ''}.jpg"


class _HeldOutAnswers(NamedTuple):
    """What a model of one class per image predicted for n held-out images."""

    labels: Ints  # true classes (n,)
    predicted: Ints
    probability: Floats  # of the predicted classes (n,)
    label_probability: Floats  # of the true classes (n,)
    groups: Groups | None  # numbers of the groups of images (n,), if they have any

    @property
    def correct(self) -> Flags:
        return np.asarray(self.labels == self.predicted)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What a finished run predicted for images to which the predicting model was not fitted.

    These are the validation images and, of a cross-validated head, the training images. What the
    run does not have is empty.
    """

    run: Path
    split: Images  # content of split.csv (see `read_split`)
    logits: ScoreArray  # of the validation images (n, C), in the order of split.csv
    probability: Floats
    """Probability (m,) of the predicted class of training images, or of each label (m, C)."""
    correct: Flags
    """Whether each of these is right (m,), or whether each image has the label (m, C)."""
    label_probability: Floats
    """Probability (m,) of the true class of training images; none of a multi-label model."""
    train_logits: ScoreArray  # logits (m, C) of these images; none of a multi-label model
    cross_validated: Mapping[str, str]
    """Cross-validated class, or most probable label, of images by their SHA-256."""

    @classmethod
    def read(cls, run: Path) -> Self:
        """Read the predictions of a run; a RunError says that a file is damaged."""
        split, path = read_split(run), run / _VALIDATION_FILE
        arrays = (rundir.read_run_arrays(path) or {}) if split.rows else {}

        def array(
            name: str,
            kind: type,
            *shapes: tuple[int, ...],
            low: float = -math.inf,
            high: float = math.inf,
        ) -> Any:  # noqa: ANN401
            values = np.asarray(arrays.get(name, ()))
            # Values of another kind
            with contextlib.suppress(ValueError, TypeError), np.errstate(invalid="ignore"):
                values = values.astype(kind)
                is_valid = np.isfinite(values) & (values >= low) & (values <= high)
                if values.shape in shapes and is_valid.all():
                    return values
            raise rundir.damaged_file(path, f"{name} is not valid; its shape is {values.shape}")

        classes, none = split.outputs.classes, (0,)
        own = np.shape(arrays.get("train_probability", ()))
        trained = own if len(own) in (1, 2) else none  # (m,), or (m, C) of a multi-label model
        logits = none if not arrays else (len(split.val), len(classes))
        numbers = array(
            "cross_validated", np.int64, (len(split.rows),), none, low=-1, high=len(classes) - 1
        )
        return cls(
            run=run,
            split=split,
            logits=array("logits", np.float32, logits),
            probability=array("train_probability", np.float64, trained, low=0, high=1),
            correct=array("train_correct", np.bool_, trained),
            label_probability=array(
                "train_label_probability", np.float64, trained, none, low=0, high=1
            ),
            train_logits=array("train_logits", np.float32, (trained[0], len(classes)), none),
            cross_validated={
                row.sha256: classes[number]
                for row, number in zip(split.rows, numbers.tolist(), strict=False)
                if number >= 0
            },
        )

    @classmethod
    def read_existing(cls, run: Path, problem: str, *, fix: str) -> Self:
        """Read the predictions of a run, or raise a RunError if it has none."""
        held_out = cls.read(run)
        if not len(held_out.logits):
            raise RunError(f"{problem}: {run} has no validation predictions", fix=fix)
        return held_out

    @cached_property
    def validation(self) -> tuple[ValidationPrediction, ...]:
        """Predictions for the distinct validation images, in the order of split.csv."""
        if not len(self.logits):
            return ()
        split, path, outputs = self.split, rundir.RunDir(self.run).eval, self.split.outputs
        rows, logits = self._distinct
        if outputs.several:
            results = read_results(path)
            each = results["labels"]["per_label"] if results and "labels" in results else {}
            known = [name for name in outputs.classes if "threshold" in each.get(name, {})]
            if len(known) < len(outputs.classes):
                raise rundir.damaged_file(path, "it does not have a threshold for each label")
            outputs = replace(outputs, thresholds=tuple(each[name]["threshold"] for name in known))
        predictions = Postprocess(outputs=outputs)(
            [row.path for row in rows], Scores(logits), split.targets(rows)
        )
        return tuple(
            ValidationPrediction(
                path=row.path,
                sha256=row.sha256,
                label=split.classes[row.label],
                predicted=prediction.answer,
                probability=prediction.probability,
                label_probability=prediction.target_probability,
                most_probable=prediction.classes[0],
            )
            for row, prediction in zip(rows, predictions, strict=True)
        )

    @cached_property
    def _training(self) -> list[Row]:
        """Rows of the distinct training images of `probability`, which were cross-validated."""
        distinct = distinct_rows(self.split.where(self.split.column("split") != "test").rows)
        scored = {*self.cross_validated} - {row.sha256 for row in self.split.val}
        found = [row for row in distinct if row.sha256 in scored] if len(self.probability) else []
        if len(found) != len(self.probability):
            path = self.run / _VALIDATION_FILE
            raise rundir.damaged_file(path, "it does not belong to split.csv")
        return found

    def _incomplete(self, what: str) -> RunError:
        return RunError(
            f"{self.run} has no {what} of its cross-validated images, because it has many classes "
            "or was trained by an earlier version",
            fix="train again, or use --threshold",
        )

    @cached_property
    def _distinct(self) -> tuple[Sequence[Row], ScoreArray]:
        """Rows of the distinct validation images, and their logits (n, C)."""
        return distinct_rows(self.split.val), self.logits[distinct_places(self.split.val)]

    def answers(self) -> _HeldOutAnswers:
        """Return the answers for the distinct validation images, and then for training images.

        These follow if calibration used their cross-validated predictions, because then they are
        comparable.
        """
        validation, training = self.validation, self._training
        if len(self.label_probability) != len(training):
            raise self._incomplete("probabilities")
        rows = [*distinct_rows(self.split.val), *training]
        predicted = [one.predicted for one in validation]
        predicted += [self.cross_validated[row.sha256] for row in training]
        index = {name: number for number, name in enumerate(self.split.classes)}
        return _HeldOutAnswers(
            labels=np.array([row.label for row in rows]),
            predicted=np.array([index[name] for name in predicted]),
            probability=np.array([*(one.probability for one in validation), *self.probability]),
            label_probability=np.array(
                [*(one.label_probability for one in validation), *self.label_probability]
            ),
            groups=_groups_of(rows),
        )

    def scores(self) -> tuple[ScoreArray, Ints, Groups | None]:
        """Return the logits (n, C), classes and groups (n,) of the images of `answers`."""
        answers, training, logits = self.answers(), self.train_logits, self._distinct[1]
        if len(training) != len(self.probability):
            raise self._incomplete("logits")
        logits = np.concatenate([logits, training]) if len(training) else logits
        return logits, answers.labels, answers.groups

    def label_answers(self) -> tuple[Floats, Flags, Groups | None]:
        """Return probabilities of labels (n, C), which images have them, and groups (n,).

        The images are those of `answers`, for a multi-label model.
        """
        rows, logits = self._distinct
        values, truth = sigmoid(logits.astype(np.float64)), np.asarray(self.split.targets(rows))
        if len(self.probability):
            values = np.concatenate([values, self.probability])
            truth = np.concatenate([truth, self.correct])
        return values, truth, _groups_of([*rows, *self._training])

    def in_words(self, images: int, groups: Groups | None) -> str:
        """Return in words on how many images something was measured, and how exactly."""
        counts = {"images": images, "groups": 0 if groups is None else len({*groups})}
        kind = "image" if images > len(self.validation) else "validation image"
        reduced = ""
        if "confirmed_in_float32" in (read_results(rundir.RunDir(self.run).eval) or {}):
            environment = rundir.read_environment(self.run / "environment.json")
            reduced = f", computed in {environment['precision'] if environment else 'bf16 or fp16'}"
        return scored_images(counts, kind) + reduced

    @property
    def groups(self) -> Groups | None:
        """Groups of the distinct validation images, if they have any."""
        return _groups_of(distinct_rows(self.split.val))  # also of a run without predictions


def _groups_of(rows: Sequence[Row]) -> Groups | None:
    return number_groups([row.unit for row in rows], (row.sha256 for row in rows))


def read_split(run: Path) -> Images:
    """Return the content of split.csv, with the outputs of class_indices.json as its classes.

    Without split.csv, there are no rows. If each image has one class, the labels of the rows are
    indices of the outputs. A RunError says that a file is damaged.
    """
    path, indices = rundir.RunDir(run).split, rundir.RunDir(run).class_indices
    table = rundir.read_run_json(indices, dict[str, str]) or {}
    if any(str(i) not in table for i in range(len(table))):
        raise rundir.damaged_file(indices, "the class names are not numbered 0, 1, 2, ...")
    if len({*table.values()}) != len(table):
        raise rundir.damaged_file(indices, "a class name appears twice")
    classes = tuple(table[str(i)] for i in range(len(table)))
    if not os.path.lexists(path):
        return Images(run, classes, ())
    manifest = Images.from_csv(path, run)
    if unknown := {*manifest.outputs.classes} - {*classes}:
        raise rundir.damaged_file(indices, f"the class {min(unknown)!r} of split.csv is missing")
    if manifest.labels:
        return replace(manifest, labels=classes)
    return manifest.with_classes(classes)


def accuracy_without_copies(
    predictions: Sequence[ValidationPrediction], audit: AuditResults, groups: Groups | None = None
) -> Estimate | None:
    """Return the accuracy on the validation images that have no copies among the training images.

    Copies are identical or nearly identical images. The result is None if there are none, or if all
    validation images have some. `groups` are the groups of the images, if they have any.
    """
    leaked = leaked_paths(audit)
    kept = [i for i, one in enumerate(predictions) if one.path not in leaked]
    right = np.array([predictions[i].is_correct for i in kept])
    if not kept or len(kept) == len(predictions):
        return None
    units = None if groups is None else groups[kept]
    return Estimate(
        value=float(right.mean()),
        interval=accuracy_interval(right, units),
        images=len(kept),
        groups=0 if units is None else len({*units.tolist()}),
        kind="validation",
    )


def mistakes(predictions: Sequence[ValidationPrediction]) -> list[ValidationPrediction]:
    """Return the wrong predictions, most confident first."""
    wrong = (p for p in predictions if not p.is_correct)
    return sorted(wrong, key=lambda p: (-p.probability, p.path))


def least_confident(
    predictions: Sequence[ValidationPrediction], *, per_class: int, most: int, reverse: bool = False
) -> list[ValidationPrediction]:
    """Return up to `most` correct predictions, `per_class` per class, least (or most) confident."""
    sign, counts, found = -1 if reverse else 1, Counter[str](), list[ValidationPrediction]()
    correct = (p for p in predictions if p.is_correct)
    for prediction in sorted(correct, key=lambda p: (sign * p.probability, p.path)):
        if counts[prediction.label] < per_class:
            counts[prediction.label] += 1
            found.append(prediction)
    return found[:most]
