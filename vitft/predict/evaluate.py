"""Evaluation of a trained model on labelled images.

The model's training images and their near-duplicates are recognised (`predict.run_images`) and
left out, because results on them would measure memorisation rather than generalisation.
"""

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitft.data.images import read_bytes
from vitft.data.label_sets import split_labels
from vitft.data.labelled import LabelledImages
from vitft.data.loading import in_order
from vitft.metrics.calibration import (
    bin_by_confidence,
    calibration_error,
    confidence_and_correctness,
)
from vitft.metrics.classification import classification_metrics, probability_metrics
from vitft.metrics.results import EvaluatedData, EvaluationResults, Metrics, read_results
from vitft.models.find import find_model
from vitft.predict.engine import FIRST_PAGE_NOTE, Views, notes_on, with_notes
from vitft.predict.onnx_engine import OnnxEngine
from vitft.predict.open_engine import open_engine
from vitft.predict.postprocess import Postprocess, ScoreArray
from vitft.predict.prediction import Prediction
from vitft.predict.rows import format_csv_cell
from vitft.predict.run_images import LEFT_OUT, Recognised, RunImages
from vitft.predict.run_labels import as_in_run
from vitft.predict.torch_engine import PREDICT_BATCH_SIZE, Predictor
from vitft.system import console
from vitft.system.device import worker_threads
from vitft.system.errors import DataError, ImageError
from vitft.system.files import write_atomically
from vitft.system.near_paths import misspelt_name
from vitft.system.rundir import RunDir, create_run
from vitft.system.text import count, csv_line, listing

log = logging.getLogger(__name__)

MOST_NAMED = 10  # maximum number of unreadable files listed in the log
PREDICTION_COLUMNS = (
    "path", "label", "class", "probability", "label_probability", "correct", "notes", "error",
)  # fmt: skip


class LabelledPrediction(NamedTuple):
    """The label and prediction of an image; the prediction of a skipped image has no classes."""

    label: str
    prediction: Prediction

    @property
    def is_correct(self) -> bool:
        return bool(self.prediction.classes) and self.prediction.answer == self.label

    def to_csv(self) -> str:
        """Return the prediction as a row of predictions.csv with `PREDICTION_COLUMNS`."""
        path, _, _, notes, error = self.prediction.to_cells(1)[-5:]
        found: tuple[str | float | None, ...] = (None, None, None, None)
        if self.prediction.classes:
            one = self.prediction
            is_correct = str(int(self.is_correct))
            found = (one.answer, one.probability, one.target_probability, is_correct)
        cells = (path, self.label, *found, notes, error)
        return csv_line([format_csv_cell(cell) for cell in cells])


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Metrics and predictions of an evaluation."""

    results: EvaluationResults
    """Contents of eval.json."""
    predictions: tuple[LabelledPrediction, ...]
    """One prediction per image, in the order of the data, followed by one per path in
    `LabelledImages.bad`."""

    def write(self, folder: Path) -> Path:
        """Write eval.json and predictions.csv to a new folder, and return its path.

        Raises:
            RunError: The folder is not writable or not empty.
            ResourceError: The disk is full.
        """
        run = create_run(folder)
        run.write_json("eval.json", self.results)
        rows = [csv_line(PREDICTION_COLUMNS), *(row.to_csv() for row in self.predictions)]
        table = "".join(f"{row}\r\n" for row in rows).encode("utf-8", "surrogateescape")
        write_atomically(run.path / "predictions.csv", table)
        return run.path


class HashedImage(NamedTuple):
    """A labelled image with its digest and either a view or the reason for leaving it out."""

    path: str
    label: str
    sha256: str = ""
    view: Views | None = None
    notes: tuple[str, ...] = ()
    error: str = ""
    is_validation: bool = False
    """Whether the image is a validation image of the run, or a near-duplicate of one."""


def evaluate(data: LabelledImages, run: str | None, *, device: str = "auto") -> Evaluation:
    """Evaluate a run, checkpoint or ONNX graph (None for the latest run) on labelled images.

    Log warnings about images that are left out and about anything that biases the results.

    Raises:
        RunError: The model does not exist, a file in its folder is damaged or belongs to another
            run, or some logits are not finite.
        WeightsError: The repository `hf:owner/name` cannot be found.
        UsageError: The device cannot be used, or onnxruntime is not installed.
        DataError: A class is unknown to the model, or no images are left to evaluate.
    """
    engine = open_engine(run, device)
    classes = engine.classes
    folder = find_model(run, graphs=True).parent
    data = as_in_run(data, folder, classes)
    check_classes(data, classes)
    known = RunImages.read(folder, engine.split, engine.transform.grey_range)
    index = targets_by_label(data, classes, several=bool(engine.thresholds))
    postprocess = Postprocess.for_run(
        run, classes, engine.feature_size, thresholds=engine.thresholds, facts=engine.facts
    )
    log.info(postprocess.describe())
    predictions: list[LabelledPrediction] = []
    logits: list[ScoreArray] = []
    digests: list[str] = []
    validated = 0
    with console.Progress("evaluating", len(data.images)) as progress:
        for group in image_groups(data, engine, known):
            usable = [image for image in group if image.view is not None]
            scored: Iterator[Prediction] = iter(())
            if usable:
                views = [image.view for image in usable if image.view is not None]
                scores = engine.scores(np.stack(views))
                targets: Any = [index[image.label] for image in usable]
                paths, crops = [i.path for i in usable], map(engine.transform.without_border, views)
                scored = iter(postprocess(paths, scores, targets, views=[*crops]))
                logits.append(scores.logits)
                digests += [image.sha256 for image in usable]
                validated += sum(image.is_validation for image in usable)
            for image in group:
                left_out = Prediction(path=image.path, notes=image.notes, error=image.error)
                prediction = (
                    left_out if image.view is None else with_notes(next(scored), image.notes)
                )
                predictions.append(LabelledPrediction(image.label, prediction))
            progress.advance(len(group))
    if not logits:
        raise nothing_left(data, predictions)
    all_logits = torch.from_numpy(np.concatenate(logits))
    labels = torch.tensor(np.array([index[p.label] for p in predictions if p.prediction.classes]))
    predictions += [LabelledPrediction("", Prediction(path=p, error=e)) for p, e in data.bad]
    results: EvaluationResults = {
        **all_metrics(engine, folder, all_logits, labels),
        "data": evaluated_data(data, predictions, digests, None if known is None else validated),
    }
    warn_of_bias(results)
    warn_of_own_answers(data, predictions)
    log_first_pages(predictions)
    return Evaluation(results=results, predictions=tuple(predictions))


def all_metrics(
    engine: Predictor | OnnxEngine, folder: Path, logits: Tensor, labels: Tensor
) -> Metrics:
    """Return the metrics of a model, given the folder of its run, logits (n, C) and targets.

    Raises:
        RunError: The file eval.json of the run is damaged.
    """
    ece_before, temperature = before_temperature(folder, logits, labels)
    thresholds = np.array(engine.thresholds)
    return {
        **classification_metrics(
            logits, labels, engine.classes, thresholds=thresholds, resampled=True
        ),
        **probability_metrics(
            logits.double().numpy(), labels, ece_before=ece_before, temperature=temperature
        ),
    }


def targets_by_label(
    data: LabelledImages, outputs: Sequence[str], *, several: bool
) -> Mapping[str, Any]:
    """Map each class to its index or, if `several` is set, each label set to 0 or 1 per label (C,).

    Raises:
        DataError: The data is multi-label, but the model assigns each image one class.
    """
    if not several and data.labels:
        raise DataError(
            f"the data in {data.source} is multi-label, but the model assigns one class per image",
            fix="use a multi-label model, or add --set data.labels=one",
        )
    if not several:
        return {name: number for number, name in enumerate(outputs)}
    names = [split_labels(text) if data.labels else (text,) for text in data.classes]
    return {text: np.isin(outputs, own) for text, own in zip(data.classes, names, strict=True)}


def check_classes(data: LabelledImages, known: Sequence[str]) -> None:
    """Check that every class of the data is a class of the model; the data may have fewer classes.

    Raises:
        DataError: A class is unknown to the model.
    """
    present = {*(data.labels or data.classes)}
    unknown, missing = sorted(present - {*known}), sorted({*known} - present)
    if not unknown:
        return
    fix = "use the class names of the model, and remove images of other classes"
    if near := misspelt_name(unknown[0], known):
        fix = f"rename {unknown[0]} to {near} if they are the same class"
    raise DataError(
        f"the classes of {data.source} do not match the model (unknown to the model: "
        f"{listing(unknown, 10)}; missing from the data: {listing(missing, 10) or 'none'})",
        fix=fix,
    )


def image_groups(
    data: LabelledImages, engine: Predictor | OnnxEngine, known: RunImages | None
) -> Iterator[list[HashedImage]]:
    """Yield batches of hashed images in the order of the data; excluded images have no view."""

    def load(item: tuple[str, str]) -> HashedImage:
        path, label = item
        digest = ""
        try:
            content = read_bytes(data.locate(path))
            digest = hashlib.sha256(content).hexdigest()
            group = data.groups.get(path, "")
            found = Recognised() if known is None else known.recognise(path, content, group)
            if found.note:
                return HashedImage(path, label, digest, notes=(found.note,))
            view, is_validation = engine.view(content, path), found.split == "val"
            notes = notes_on(content)
            return HashedImage(path, label, digest, view, notes, is_validation=is_validation)
        except ImageError as error:
            return HashedImage(path, label, digest, error=error.reason)

    size = PREDICT_BATCH_SIZE if isinstance(engine, Predictor) else engine.batch
    results = in_order(load, data.images, workers=worker_threads())
    with contextlib.closing(results):
        while group := list(islice(results, size)):
            yield group


def nothing_left(data: LabelledImages, predictions: Sequence[LabelledPrediction]) -> DataError:
    """Return the error for data in which no image can be evaluated."""
    total = len(predictions)
    if trained := sum({*LEFT_OUT} & {*row.prediction.notes} != set() for row in predictions):
        unread = f", and {total - trained:,} cannot be read" if total > trained else ""
        return DataError(
            f"no images left to evaluate: the model was trained on {trained:,} of "
            f"{count(total, 'image')} in {data.source}{unread}",
            fix="use images on which the model was not trained",
        )
    examples = "; ".join(f"{p.path}: {p.error}" for _, p in predictions[:3])
    return DataError(
        f"cannot read any image in {data.source} ({examples})",
        fix="check the paths: in a table, they are relative to the folder of the table",
    )


def before_temperature(
    folder: Path, logits: Tensor, labels: Tensor
) -> tuple[float | None, float | None]:
    """Return the calibration error before temperature scaling, and the run's temperature.

    Both are None if the run has no temperature. For a multi-label model, only the temperature is
    None, because each label has its own.

    Raises:
        RunError: The file eval.json of the run is damaged.
    """
    kept = read_results(RunDir(folder).eval)
    calibration = kept["calibration"] if kept else None
    if kept and "labels" in kept:
        every = kept["labels"]["per_label"].values()
        divisors = np.array([row.get("temperature", 1.0) for row in every])
        bins = bin_by_confidence(
            *confidence_and_correctness(logits.double().numpy() * divisors, labels.numpy())
        )
        return calibration_error(bins)[0], None
    temperature = calibration["temperature"] if calibration else None
    if temperature is None:
        return None, None
    raw = logits.double().numpy() * temperature
    bins = bin_by_confidence(*confidence_and_correctness(raw, labels.numpy()))
    return calibration_error(bins)[0], float(temperature)


def evaluated_data(
    data: LabelledImages,
    predictions: Sequence[LabelledPrediction],
    digests: Sequence[str],
    validated: int | None,
) -> EvaluatedData:
    """Return the entry `data` of eval.json: the source, the unreadable files and numbers of images.

    `validated` is the number of evaluated images that are validation images of the run, or None if
    the images of the run are unknown.
    """
    rows = [row.prediction for row in predictions]
    is_known = validated is not None
    exact, near, same_path, same_group = (
        sum(note in row.notes for row in rows) for note in LEFT_OUT
    )
    return {
        "path": str(data.source),
        "unreadable": [{"path": row.path, "reason": row.error} for row in rows if row.error],
        "trained": exact if is_known else None,
        "trained_copies": near if is_known else None,
        "trained_paths": same_path if is_known else None,
        "trained_groups": same_group if is_known else None,
        "validated": validated,
        "copies": len(digests) - len({*digests}),
    }


def warn_of_own_answers(data: LabelledImages, predictions: Sequence[LabelledPrediction]) -> None:
    """Warn if the labels are the model's own predictions, as in a table of `vitft predict`."""
    if data.predicted and all(row.is_correct for row in predictions if row.prediction.classes):
        log.warning(
            f"the labels in {data.source} are the predictions of this model (the table has the "
            "columns of vitft predict, and every label equals the prediction), so these results "
            f"say nothing about its accuracy; first correct the column "
            f"{'labels' if data.labels else 'class'}"
        )


def log_first_pages(predictions: Sequence[LabelledPrediction]) -> None:
    """Log the number of images of which only the first page was used."""
    if pages := sum(FIRST_PAGE_NOTE in row.prediction.notes for row in predictions):
        log.info(f"used only the {FIRST_PAGE_NOTE} in {count(pages, 'image')}")


def warn_of_bias(results: EvaluationResults) -> None:
    """Log warnings about images that are left out and about anything that biases the results."""
    data, images = results["data"], results["images"]
    unreadable = data["unreadable"]
    for row in unreadable[:MOST_NAMED]:
        log.warning(f"skipped {row['path']}: {row['reason']}")
    if len(unreadable) > MOST_NAMED:
        more = count(len(unreadable) - MOST_NAMED, "more unreadable file")
        log.warning(f"skipped {more}")
    if data["trained"] is None:
        log.warning(
            "the model may have been trained on some of these images; this cannot be checked "
            "because there is no split.csv next to the model"
        )
    reasons = (
        (data["trained"], "used to train the model"),
        (data["trained_copies"], "nearly identical to training images"),
        (
            data["trained_paths"],
            "same paths as training images, and the contents could not be compared",
        ),
        (data["trained_groups"], "in the same groups as training images"),
    )
    total = images + sum(number or 0 for number, _ in reasons) + len(unreadable)
    for number, reason in reasons:
        if number:
            log.warning(f"skipped {number:,} of {count(total, 'image')}: {reason}")
    if data["validated"]:
        log.warning(
            f"the results may be slightly optimistic: {data['validated']:,} of "
            f"{count(images, 'image')} served the run for validation, to calibrate its "
            "probabilities and, if it was trained in epochs, to select the epoch"
        )
    if data["copies"]:
        log.warning(
            f"found {count(data['copies'], 'duplicate')} among the images, so the confidence "
            "intervals are too narrow"
        )
