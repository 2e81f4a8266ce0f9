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

from vitft.data.fixes import is_leak
from vitft.data.split import Manifest, distinct_rows
from vitft.messages import results as messages
from vitft.metrics.intervals import Flags, Floats, Groups, accuracy_interval
from vitft.metrics.results import AuditResults, read_results
from vitft.predict.postprocess import Postprocess, ScoreArray, Scores
from vitft.system.rundir import RunDir, damaged_file, read_run_arrays, read_run_json
from vitft.system.text import scored_images

THUMBS = "thumbs"
_VALIDATION_FILE = "validation.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPrediction:
    """The prediction for one validation image."""

    path: str
    """Path relative to the data folder, with forward slashes."""
    sha256: str
    label: str
    """Class, or label set as text."""
    predicted: str
    probability: float
    """Probability of the predicted class or label set."""
    label_probability: float
    most_probable: str = ""
    """The most probable output of the model: the predicted class, or the most probable label."""

    @property
    def is_correct(self) -> bool:
        return self.predicted == self.label


def thumb_name(sha256: str, *, attention: bool = False) -> str:
    """Return the file name of an image's thumbnail, with or without overlaid attention."""
    return f"{sha256[:16]}{'-attention' if attention else ''}.jpg"


def read_classes(run: Path) -> tuple[str, ...]:
    """Return the class names in logit order, or () if class_indices.json does not exist.

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


def read_split(run: Path, classes: Sequence[str]) -> Manifest:
    """Return the content of split.csv; it has no rows if the file is missing.

    `classes` contains the names of the model's outputs. If each image has one class, the labels of
    the rows are indices into `classes`.

    Raises:
        RunError: The table is damaged, or contains a class that is not in `classes`.
    """
    path = RunDir(run).split
    if not os.path.lexists(path):
        return Manifest(run, tuple(classes), ())
    manifest = Manifest.read(path, run)
    if unknown := {*manifest.outputs} - {*classes}:
        raise damaged_file(path, f"class {min(unknown)!r} is not in class_indices.json")
    if manifest.labels:
        return replace(manifest, labels=tuple(classes))
    index = {name: number for number, name in enumerate(classes)}
    rows = (replace(row, label=index[manifest.classes[row.label]]) for row in manifest.rows)
    return Manifest(run, tuple(classes), tuple(rows))


def read_logits(run: Path, images: int, classes: int) -> ScoreArray | None:
    """Return the validation logits (n, C) in the order of split.csv.

    Return None if validation.npz does not exist.

    Raises:
        RunError: The file is damaged, or the logits are missing, not finite, or not of shape
            (images, classes).
    """
    path = run / _VALIDATION_FILE
    arrays = read_run_arrays(path)
    if arrays is None:
        return None
    if "logits" not in arrays:
        raise damaged_file(path, "it has no logits")
    logits = _as_array(path, arrays["logits"], np.float32)
    if logits.shape != (images, classes) or not np.isfinite(logits).all():
        raise damaged_file(
            path,
            f"logits must be finite and of shape {(images, classes)}, but the shape is "
            f"{logits.shape}",
        )
    return logits


def read_training_predictions(run: Path) -> tuple[Floats, Flags]:
    """Return the cross-validated predictions for the training images.

    Returns:
        The probability of each predicted class (m,), and whether each prediction is correct (m,).
        For a multi-label model, the probability of each label (m, C), and whether each image has
        the label (m, C). Both arrays are empty if the run has no such predictions.

    Raises:
        RunError: The arrays are damaged.
    """
    path = run / _VALIDATION_FILE
    arrays = read_run_arrays(path) or {}
    probability = _as_array(path, arrays.get("train_probability", ()), np.float64)
    correct = _as_array(path, arrays.get("train_correct", ()), np.bool_)
    inside = ((probability >= 0) & (probability <= 1)).all()
    if probability.ndim > 2 or probability.shape != correct.shape or not inside:
        raise damaged_file(path, "train_probability or train_correct is not valid")
    return probability, correct


def read_cross_validated(run: Path, split: Manifest) -> dict[str, str]:
    """Return the cross-validated class of each image by its SHA-256; empty if the run has none.

    Raises:
        RunError: The array is damaged.
    """
    path = run / _VALIDATION_FILE
    arrays = read_run_arrays(path) or {}
    if "cross_validated" not in arrays:
        return {}
    classes = _as_array(path, arrays["cross_validated"], np.int64)
    inside = ((classes >= -1) & (classes < len(split.classes))).all()
    if classes.shape != (len(split.rows),) or not inside:
        raise damaged_file(path, "cross_validated is not valid")
    chosen = zip(split.rows, classes.tolist(), strict=True)
    return {row.sha256: split.classes[number] for row, number in chosen if number >= 0}


def read_groups(run: Path, images: int) -> list[str] | None:
    """Return the group of each validation image and of each cross-validated training image.

    The order is the same as in `read_validation_predictions` and `read_training_predictions`, which
    have `images` images together. An image without a group is its own group. The result is None if
    no image has a group.

    Raises:
        RunError: A file of the run is damaged.
    """
    split = read_split(run, read_classes(run))
    scored = {*read_cross_validated(run, split)} - {row.sha256 for row in split.val}
    distinct = distinct_rows([row for row in split.rows if row.split != "test"])
    training = [row for row in distinct if row.sha256 in scored]
    rows = (*distinct_rows(split.val), *training)
    if not any(row.group for row in rows) or len(rows) < images:
        return None
    return [row.group or row.sha256 for row in rows[:images]]


def _as_array(path: Path, values: Any, dtype: Any) -> Any:  # noqa: ANN401 - an array of that type
    """Convert `values`, read from the file `path`, to an array of `dtype`."""
    try:
        return np.asarray(values).astype(dtype)
    except (ValueError, TypeError) as error:
        raise damaged_file(path, str(error)) from error


def read_validation_predictions(run: Path) -> tuple[ValidationPrediction, ...]:
    """Return a run's validation predictions in the order of split.csv, or () if there are none.

    Raises:
        RunError: A file of the run is damaged.
    """
    return validation_predictions(run, read_split(run, read_classes(run)))


def validation_predictions(run: Path, split: Manifest) -> tuple[ValidationPrediction, ...]:
    """Return the predictions for the distinct validation images, or () if the run has no logits.

    Raises:
        RunError: The logits are damaged or do not match the images and classes.
    """
    rows = split.val
    logits = read_logits(run, len(rows), len(split.outputs)) if rows else None
    if logits is None:
        return ()
    path, thresholds = RunDir(run).eval, list[float]()
    if split.labels:
        results = read_results(path)
        each = results["labels"]["per_label"] if results and "labels" in results else {}
        known = [name for name in split.labels if "threshold" in each.get(name, {})]
        thresholds = [each[name]["threshold"] for name in known]
    if len(thresholds) != len(split.labels):
        raise damaged_file(path, "it does not have a threshold for each label")
    predictions = Postprocess(classes=split.outputs, thresholds=tuple(thresholds))(
        [row.path for row in rows], Scores(logits), split.targets(rows)
    )
    by_path = {
        row.path: ValidationPrediction(
            path=row.path,
            sha256=row.sha256,
            label=split.classes[row.label],
            predicted=prediction.answer,
            probability=prediction.probability,
            label_probability=prediction.target_probability,
            most_probable=prediction.classes[0],
        )
        for row, prediction in zip(rows, predictions, strict=True)
    }
    return tuple(by_path[row.path] for row in distinct_rows(rows))


def accuracy_without_copies(
    predictions: Sequence[ValidationPrediction],
    audit: AuditResults,
    groups: Sequence[str] | Groups | None = None,
) -> str:
    """Return the accuracy on the validation images that have no copies among the training images.

    Copies are identical or nearly identical images. The result is empty if there are none, or if
    all validation images have some. `groups` are the groups of the images, if they have any.
    """
    leaks = [group for group in audit.get("duplicates", []) if is_leak(group)]
    leaked = {member["path"] for group in leaks for member in group["members"]}
    kept = [i for i, one in enumerate(predictions) if one.path not in leaked]
    right = np.array([predictions[i].is_correct for i in kept])
    if not kept or len(kept) == len(predictions):
        return ""
    units = None if groups is None else np.unique([groups[i] for i in kept], return_inverse=True)[1]
    found = {"images": len(kept), "groups": units is not None and len({*units.tolist()})}
    images = scored_images(found, "validation image")
    return messages.accuracy_without_copies(
        float(right.mean()), accuracy_interval(right, units), images
    )


def mistakes(predictions: Sequence[ValidationPrediction]) -> list[ValidationPrediction]:
    """Return the wrong predictions, most confident first."""
    wrong = (p for p in predictions if not p.is_correct)
    return sorted(wrong, key=lambda p: (-p.probability, p.path))


def most_confident(
    predictions: Sequence[ValidationPrediction], *, most: int
) -> list[ValidationPrediction]:
    """Return up to `most` correct predictions, at most one per class, most confident first."""
    best: dict[str, ValidationPrediction] = {}
    correct = (p for p in predictions if p.is_correct)
    for prediction in sorted(correct, key=lambda p: (-p.probability, p.path)):
        best.setdefault(prediction.label, prediction)
    return [*best.values()][:most]


def least_confident(
    predictions: Sequence[ValidationPrediction], *, per_class: int, most: int
) -> list[ValidationPrediction]:
    """Return up to `most` correct predictions, `per_class` per class, least confident first."""
    counts: dict[str, int] = {}
    found: list[ValidationPrediction] = []
    correct = (p for p in predictions if p.is_correct)
    for prediction in sorted(correct, key=lambda p: (p.probability, p.path)):
        if counts.setdefault(prediction.label, 0) < per_class:
            counts[prediction.label] += 1
            found.append(prediction)
    return found[:most]
