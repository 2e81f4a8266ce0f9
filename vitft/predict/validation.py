"""Validation predictions of a finished run.

The report, the thumbnails and the comparison of runs read the same predictions, so they show the
same mistakes in the same order. This module does not import torch or open images.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitft.data.split import Manifest, Row
from vitft.metrics.intervals import Floats
from vitft.predict.postprocess import Postprocess, ScoreArray, Scores
from vitft.system.run_content import damaged_file, read_run_arrays, read_run_json
from vitft.system.rundir import RunDir

THUMBS = "thumbs"
VALIDATION_FILE = "validation.npz"
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPrediction:
    """The prediction for one validation image."""

    path: str
    """Path relative to the data folder, with forward slashes."""
    sha256: str
    label: str
    predicted: str
    probability: float
    """Probability of the predicted class."""
    label_probability: float

    @property
    def is_correct(self) -> bool:
        return self.predicted == self.label


def thumb_name(sha256: str, *, attention: bool = False) -> str:
    """Return the file name of an image's thumbnail, with or without overlaid attention."""
    return f"{sha256[:16]}{'-attention' if attention else ''}.jpg"


def read_classes(run: Path) -> tuple[str, ...]:
    """Return the class names in the order of the logits; () if class_indices.json does not exist.

    Raises:
        RunError: The file is damaged.
    """
    path = RunDir(run).class_indices
    table = read_run_json(path, dict[str, str])
    if table is None:
        return ()
    if any(str(i) not in table for i in range(len(table))):
        raise damaged_file(path, "the class names are not numbered 0, 1, 2, ...")
    if len({*table.values()}) != len(table):
        raise damaged_file(path, "a class name appears twice")
    return tuple(table[str(i)] for i in range(len(table)))


def read_rows(run: Path, classes: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of split.csv, or () if the file is missing.

    The labels of the rows are indices into `classes`.

    Raises:
        RunError: The table is damaged, or contains a class that is not in `classes`.
    """
    path = RunDir(run).split
    if not os.path.lexists(path):
        return ()
    manifest = Manifest.read(path, run)
    if unknown := {*manifest.classes} - {*classes}:
        raise damaged_file(path, f"class {min(unknown)!r} is not in class_indices.json")
    index = {name: number for number, name in enumerate(classes)}
    return tuple(replace(row, label=index[manifest.classes[row.label]]) for row in manifest.rows)


def read_logits(run: Path, images: int, classes: int) -> ScoreArray | None:
    """Return the validation logits (n, C) in the order of split.csv.

    Return None if validation.npz does not exist.

    Raises:
        RunError: The file is damaged, or the logits are missing, not finite, or not of shape
            (images, classes).
    """
    arrays = read_validation_arrays(run)
    if arrays is None:
        return None
    path = run / VALIDATION_FILE
    if "logits" not in arrays:
        raise damaged_file(path, "it has no logits")
    logits = as_array(path, arrays["logits"], np.float32)
    if logits.shape != (images, classes) or not np.isfinite(logits).all():
        raise damaged_file(
            path,
            f"logits must be finite and of shape {(images, classes)}; the shape is {logits.shape}",
        )
    return logits


def read_training_predictions(run: Path) -> tuple[Floats, Flags]:
    """Return the cross-validated predictions for the training images.

    Returns:
        The probability of each predicted class (m,), and whether each prediction is correct (m,).
        Both arrays are empty if the run has no such predictions.

    Raises:
        RunError: The arrays are damaged.
    """
    arrays, path = read_validation_arrays(run) or {}, run / VALIDATION_FILE
    probability = as_array(path, arrays.get("train_probability", ()), np.float64)
    correct = as_array(path, arrays.get("train_correct", ()), np.bool_)
    inside = ((probability >= 0) & (probability <= 1)).all()
    if probability.ndim != 1 or probability.shape != correct.shape or not inside:
        raise damaged_file(path, "train_probability or train_correct is not valid")
    return probability, correct


def read_validation_arrays(run: Path) -> dict[str, Any] | None:
    """Return the arrays of validation.npz, or None if the file does not exist.

    Raises:
        RunError: The file is damaged.
    """
    return read_run_arrays(run / VALIDATION_FILE)


def as_array(path: Path, values: Any, dtype: Any) -> Any:  # noqa: ANN401 - an array of that type
    """Convert `values`, read from the file `path`, to an array of `dtype`.

    Raises:
        RunError: The values cannot be converted to `dtype`.
    """
    try:
        return np.asarray(values).astype(dtype)
    except (ValueError, TypeError) as error:
        raise damaged_file(path, str(error)) from error


def read_validation_predictions(run: Path) -> tuple[ValidationPrediction, ...]:
    """Return a run's validation predictions in the order of split.csv, or () if there are none.

    Raises:
        RunError: A file of the run is damaged.
    """
    classes = read_classes(run)
    rows = [row for row in read_rows(run, classes) if row.split == "val"]
    return validation_predictions(run, rows, classes)


def validation_predictions(
    run: Path, rows: Sequence[Row], classes: Sequence[str]
) -> tuple[ValidationPrediction, ...]:
    """Return the predictions for the given validation rows, or () if the run has no logits.

    Raises:
        RunError: The logits are damaged or do not match the rows and classes.
    """
    logits = read_logits(run, len(rows), len(classes)) if rows else None
    if logits is None:
        return ()
    predictions = Postprocess(classes=classes)(
        [row.path for row in rows], Scores(logits), [row.label for row in rows]
    )
    return tuple(
        ValidationPrediction(
            path=row.path,
            sha256=row.sha256,
            label=classes[row.label],
            predicted=prediction.classes[0],
            probability=prediction.probabilities[0],
            label_probability=prediction.target_probability,
        )
        for row, prediction in zip(rows, predictions, strict=True)
    )


def mistakes(predictions: Sequence[ValidationPrediction]) -> list[ValidationPrediction]:
    """Return the wrong predictions, most confident first."""
    wrong = (p for p in predictions if not p.is_correct)
    return sorted(wrong, key=lambda p: (-p.probability, p.path))


def least_confident(
    predictions: Sequence[ValidationPrediction], *, per_class: int, most: int
) -> list[ValidationPrediction]:
    """Return correct predictions, least confident first.

    At most `per_class` predictions are returned for each class, and at most `most` overall.
    """
    counts: dict[str, int] = {}
    found: list[ValidationPrediction] = []
    correct = (p for p in predictions if p.is_correct)
    for prediction in sorted(correct, key=lambda p: (p.probability, p.path)):
        if counts.setdefault(prediction.label, 0) < per_class:
            counts[prediction.label] += 1
            found.append(prediction)
    return found[:most]
