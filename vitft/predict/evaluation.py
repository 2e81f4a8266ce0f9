"""Evaluation of a trained model on labelled images.

The model's training images and their near-duplicates are recognised (`predict.run_images`) and
left out, because results on them would measure memorisation rather than generalisation.
"""

import contextlib
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitft.data.image_table import GROUP_COLUMN, JOINER, Images, membership
from vitft.data.images import read_bytes
from vitft.metrics.calibration import Ints, softmax
from vitft.metrics.classification import (
    accuracy_by,
    classification_metrics,
    error_of_probabilities,
    probability_metrics,
    two_class_metrics,
)
from vitft.metrics.intervals import Flags, Floats, Groups, accuracy_interval, number_groups
from vitft.metrics.results import read_results
from vitft.models.find import find_model
from vitft.predict.engine import DARK_NOTE, FIRST_PAGE_NOTE, LoadedImage, Pipeline, warn_of_dark
from vitft.predict.postprocess import Postprocess, answer_groups
from vitft.predict.request import Marks
from vitft.predict.rows import NOT_SURE, Prediction, format_csv_cell
from vitft.predict.run_images import LEFT_OUT, RunImages
from vitft.predict.threshold import marking
from vitft.predict.torch_engine import open_engine
from vitft.predict.tree import ClassTree
from vitft.system import console
from vitft.system.errors import DataError, ImageError
from vitft.system.files import write_atomically
from vitft.system.rundir import RunDir, create_run
from vitft.system.suggest import misspelt_name
from vitft.system.text import count, csv_line, listing

log = logging.getLogger(__name__)


# predictions of labelled images: rows of predictions.csv, and those kept above a threshold --------

_PREDICTION_COLUMNS = (
    "path", "label", "class", "probability", "label_probability", "correct", "notes", "error",
    "sha256",
)  # fmt: skip


class _LabelledPrediction(NamedTuple):
    """The label and prediction of an image; the prediction of a skipped image has no classes."""

    label: str
    prediction: Prediction
    group: str = ""  # name of the image's group (patient, video, ...), if there is one
    run_group: str = ""  # the same as the run defines groups, which may be others
    sha256: str = ""
    split: str = ""  # split of the run that has the image, or nearly the same one, if any

    @property
    def is_correct(self) -> bool:
        return bool(self.prediction.classes) and self.prediction.answer == self.label

    def to_csv(self, columns: int) -> str:
        """Return a row of predictions.csv: the first of `_PREDICTION_COLUMNS` and the group."""
        one = self.prediction
        found: tuple[str | float | None, ...] = (None, None, None, None)
        if one.classes:
            is_correct = str(int(self.is_correct))
            found = (one.answer, one.probability, one.target_probability, is_correct)
        cells = (one.path, self.label, *found, "; ".join(one.notes), one.error, self.sha256)
        return csv_line([format_csv_cell(cell) for cell in (*cells, self.group)[:columns]])


def _kept_results(
    sure: Flags, right: Flags, threshold: float, groups: Groups | None
) -> dict[str, Any] | None:
    """Return how many of n images have an answer above a threshold, and how many are right.

    The intervals count the `groups` (n,). The result is None without a threshold, which is 0, and
    for a level without answers.
    """
    if not 0 < threshold <= 1:
        return None
    kept = right[sure]
    return {
        "threshold": threshold,
        "images": len(kept),
        "fraction": len(kept) / len(sure),
        "fraction_interval": accuracy_interval(sure, groups),
        "top1": int(kept.sum()) / len(kept) if len(kept) else None,
        "top1_interval": (
            accuracy_interval(kept, None if groups is None else groups[sure]) if len(kept) else None
        ),
    }


def _level_results(
    tree: ClassTree | None, logits: Floats, labels: Ints, groups: Groups | None
) -> list[dict[str, Any]] | None:
    """Return the accuracy at each level of a tree, and of the answers given there."""
    if tree is None:
        return None
    probabilities, found = softmax(logits.copy()), list[dict[str, Any]]()
    answered, nodes, _ = tree.answers(probabilities)
    thresholds = tree.thresholds or (0.0,) * len(tree.nodes)
    for level, threshold in enumerate(thresholds, start=1):
        true = tree.above[level - 1][labels]
        right = tree.best(probabilities, level)[1] == true
        found.append(
            {
                "level": level,
                "classes": len(tree.nodes[level - 1]),
                "top1": float(right.mean()),
                "top1_interval": accuracy_interval(right, groups),
                "kept": _kept_results(answered == level, nodes == true, threshold, groups),
            }
        )
    return found


def _group_results(
    scored: Sequence[_LabelledPrediction], postprocess: Postprocess
) -> dict[str, Any] | None:
    """Return the accuracy of one answer for each group whose images have one label.

    The result is None for multi-label models and without groups. Groups that all have one image are
    not measured.
    """
    labels: dict[str, set[str]] = {}
    grouped = [row for row in scored if row.group]
    for row in grouped:
        labels.setdefault(row.group, set()).add(row.label)
    if postprocess.outputs.several or not labels:
        return None
    images = (replace(row.prediction, group=row.group) for row in grouped)
    answers = [a for a in answer_groups(images, postprocess) if len(labels[a.path]) == 1]
    several = len(labels) - len(answers)
    if len(labels) == len(grouped):
        answers = []
    right = np.array([{one.answer} == labels[one.path] for one in answers], bool)
    return {
        "groups": len(answers),
        "several": several,
        "ungrouped": len(scored) - len(grouped),
        "top1": float(right.mean()) if answers else None,
        "top1_interval": accuracy_interval(right) if answers else None,
        "confidence": math.fsum(a.probability for a in answers) / len(answers) if answers else None,
    }


# warnings about images that an evaluation leaves out, and about what biases its results -----------

_MOST_NAMED = 10  # maximum number of unreadable files listed in the log


def _warn_of_images(
    predictions: Sequence[_LabelledPrediction], used: Mapping[str, Any], images: int, unlisted: str
) -> None:
    """Log which images are left out, and what biases the results of `images` scored ones.

    `unlisted` are weights of which it is not known on which images they were trained, or "".
    """
    if unreadable := [f"{row['path']}: {row['reason']}" for row in used["unreadable"]]:
        log.warning(f"skipped {listing(unreadable, _MOST_NAMED)}")
    if used["trained"] is None or unlisted:
        log.warning(
            "the model may have been trained on some of these images. This cannot be checked "
            f"because there is no split.csv next to {unlisted or 'the model'}"
        )
    noted = Counter(note for row in predictions for note in row.prediction.notes)
    for note, reason in LEFT_OUT.values():
        if number := noted[note]:
            log.warning(f"skipped {number:,} of {count(len(predictions), 'image')}: {reason}")
    if used["validated"]:
        kind = "is a validation image" if used["validated"] == 1 else "are validation images"
        log.warning(
            f"the results may be slightly optimistic: {used['validated']:,} of "
            f"{count(images, 'image')} {kind} of the run, on which its "
            "probabilities were calibrated and, if it was trained in epochs, the epoch was selected"
        )
    if used["copies"]:
        log.warning(
            f"found {count(used['copies'], 'duplicate')} among the images, so the confidence "
            "intervals are too narrow"
        )
    if pages := noted[FIRST_PAGE_NOTE]:
        log.info(f"used only the {FIRST_PAGE_NOTE} in {count(pages, 'image')}")
    warn_of_dark(noted[DARK_NOTE])


def _warn_of_labels(
    data: Images, predictions: Sequence[_LabelledPrediction], known: RunImages
) -> None:
    """Log what is unusual about the groups and labels of images."""
    answered = [row.is_correct for row in predictions if row.prediction.classes]
    scored = [row for row in predictions if row.prediction.classes]
    if known.train_groups and not any(row.run_group for row in scored):
        independent = ", and the intervals count every image as independent"
        log.warning(
            "images in the groups that the run was trained on are not left out"
            f"{independent * (not any(row.group for row in scored))}, because the groups of the "
            "run are not known here: add them to the table of labels, and name the column with "
            "--set data.group=COLUMN"
        )
    if relabelled := sum(known.has_other_label(p.sha256, p.label) for p in predictions):
        log.warning(
            f"{count(relabelled, 'training image has', 'training images have')} a different label "
            "here than in training. To use the labels here, train again"
        )
    if apart := len({(r.sha256, r.label) for r in scored}) - len({r.sha256 for r in scored}):
        log.warning(
            f"{count(apart, 'duplicate has', 'duplicates have')} a different label than an "
            "identical image here, so at most one of the labels can be predicted"
        )
    # If most images are left out, e.g. because of training, the others are too few to decide.
    if data.predicted and all(answered) and 2 * len(answered) > len(data.rows):
        log.warning(
            f"every label in {data.source} equals the prediction of this model, and the table has "
            "the columns of vitft predict: unless someone has corrected the column "
            f"{'labels' if data.labels else 'class'}, these results mean nothing"
        )


# evaluation of a trained model on labelled images -------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Metrics and predictions of an evaluation."""

    results: dict[str, Any]  # content of eval.json (see docs/schemas/evaluation.json)
    predictions: tuple[_LabelledPrediction, ...]  # in the order of the data, then of `Images.bad`

    def write(self, folder: Path) -> Path:
        """Write eval.json and predictions.csv to a new folder, and return its path."""
        run = create_run(folder)
        run.write_json("eval.json", self.results)
        columns: Sequence[str] = (*_PREDICTION_COLUMNS, GROUP_COLUMN)
        if not any(row.group for row in self.predictions):
            columns = _PREDICTION_COLUMNS
        rows = [csv_line(columns), *(row.to_csv(len(columns)) for row in self.predictions)]
        table = "".join(f"{row}\r\n" for row in rows).encode("utf-8", "surrogateescape")
        write_atomically(run.path / "predictions.csv", table)
        return run.path


def evaluate(
    data: Images,
    run: str | None,
    *,
    device: str = "auto",
    marks: Marks | None = None,
    by: tuple[str, Mapping[str, str]] | None = None,
    run_groups: Mapping[str, str] | None = None,
) -> Evaluation:
    """Evaluate a run, checkpoint or ONNX graph (None for the latest run) on labelled images.

    Log warnings about images that are left out and about anything that biases the results. With
    `marks`, as in `vitft predict`, less probable predictions are marked `not sure`, and the results
    state how many are kept; a multi-label model uses other thresholds. `by`
    is the name of a column and its cells by path; the results then have the accuracy by cell.
    `run_groups` are the groups by path as the run defines them, if the data has other groups.

    Raises:
        RunError: A file of the model or its run is missing, damaged or belongs to another run.
        UsageError: The device cannot be used, or no threshold reaches the precision.
        DataError: A class is unknown to the model, or no images are left to evaluate.
    """
    engine = open_engine(run, device)
    classes, several = engine.outputs.classes, engine.outputs.several
    folder = find_model(run, graphs=True).parent
    known = RunImages(folder, engine.split)
    data = known.relabel(data, classes)
    _check_classes(data, classes, several=several)
    known.read_fingerprints(engine.transform.grey_range)
    index: Mapping[str, Any] = {name: number for number, name in enumerate(classes)}
    if several:  # 0 or 1 per label (C,)
        index = dict(zip(data.classes, membership(data.classes, classes), strict=True))
    postprocess = marking(Postprocess.for_run(run, engine), marks or Marks(), folder)
    postprocess.announce()
    pipeline = Pipeline(engine, replace(postprocess, tree=None))  # the answers are classes
    predictions = _score_labelled(data, pipeline, known, index, run_groups)
    scored = [row for row in predictions if row.prediction.classes]
    if not scored:
        raise _nothing_left(data, predictions)
    logits = torch.from_numpy(np.array([row.prediction.logits for row in scored]))
    labels = torch.tensor(np.array([index[row.label] for row in scored]))
    scores, truth = logits.double().numpy(), labels.numpy()
    units = [row.group or known.units.get(row.sha256, "") for row in scored]
    groups = number_groups(units, range(len(scored)))
    predictions += [_LabelledPrediction("", Prediction(path=p, error=e)) for p, e in data.bad]
    ece_before, temperature = _before_temperature(folder, scores, truth, groups)
    rows = [row.prediction for row in predictions]
    counts = {k: sum(note in row.notes for row in rows) for k, (note, _) in LEFT_OUT.items()}
    counts["validated"] = sum(row.split == "val" for row in scored)
    used = {
        "path": str(data.source),
        "unreadable": [{"path": row.path, "reason": row.error} for row in rows if row.error],
        **(counts if known.manifest is not None or engine.prompts else dict.fromkeys(counts)),
        "copies": len(scored) - len({row.sha256 for row in scored}),
    }
    right = np.array([row.is_correct for row in scored])
    sure = np.array([NOT_SURE not in row.prediction.notes for row in scored])
    results: dict[str, Any] = {
        **classification_metrics(logits, labels, postprocess.outputs, groups=groups),
        **probability_metrics(
            scores, labels, ece_before=ece_before, temperature=temperature, groups=groups
        ),
        "data": used,
        "kept": _kept_results(sure, right, postprocess.threshold, groups),
        "levels": _level_results(postprocess.tree, scores, truth, groups),
        "by_group": _group_results(scored, pipeline.postprocess),
        "by": None,
        "two_classes": two_class_metrics(scores, truth, classes, groups),
    }
    if by is not None:
        values = accuracy_by([by[1][row.prediction.path] for row in scored], right, groups)
        results["by"] = {"column": by[0], "values": values}
    _warn_of_images(predictions, results["data"], len(scored), known.seen.unlisted)
    _warn_of_labels(data, predictions, known)
    return Evaluation(results=results, predictions=tuple(predictions))


def _score_labelled(
    data: Images,
    pipeline: Pipeline,
    known: RunImages,
    index: Mapping[str, Any],
    run_groups: Mapping[str, str] | None,
) -> list[_LabelledPrediction]:
    """Predict the images of the data in order, with a progress bar; leave out training images."""
    found = [
        _LabelledPrediction(data.classes[row.label], Prediction(path=row.path)) for row in data.rows
    ]

    def load(number: int) -> LoadedImage:
        image, path, label = data.rows[number], data.rows[number].path, found[number].label
        try:
            content = read_bytes(data.locate(image))
            digest = hashlib.sha256(content).hexdigest()
            in_run = known.group_of(path, digest)
            in_run = in_run or (image.group if run_groups is None else run_groups.get(path, ""))
            group = image.group or (in_run if run_groups is None else "")
            found[number] = row = found[number]._replace(sha256=digest)
            split, note = known.recognise(path, content, digest, label, in_run)
            if note:
                return LoadedImage(path, None, notes=(note,))
            loaded = pipeline.loaded(path, content)
            found[number] = row._replace(split=split, group=group, run_group=in_run)
            return loaded._replace(target=index[label])
        except ImageError as error:
            return LoadedImage(path, None, error.reason)

    predictions = pipeline.run(range(len(found)), load)
    with console.Progress("evaluating", len(found)) as progress, contextlib.closing(predictions):
        for number, prediction in enumerate(predictions):
            found[number] = found[number]._replace(prediction=prediction)
            progress.advance()
    return found


def _check_classes(data: Images, known: Sequence[str], *, several: bool) -> None:
    """Check that the model has every class of the data, which may have fewer."""
    present = {*(data.labels or data.classes)}
    unknown, missing = sorted(present - {*known}), sorted({*known} - present)
    if not several and (data.labels or any(JOINER in name for name in unknown)):
        raise DataError(
            f"{data.source} gives images several labels, but the model gives them one class",
            fix="use a multi-label model, or a table with one class per image (--set "
            "data.labels=one if it is one)",
        )
    if several and missing:
        labels, them = ("labels", "them") if len(missing) > 1 else ("label", "it")
        log.warning(
            f"no image in {data.source} has the {labels} {listing(missing, 5)}. If nobody has "
            f"looked for {them} here, the results are wrong"
        )
    if not unknown:
        return
    near, fix = misspelt_name(unknown[0], known), "use the class names of the model"
    if near:
        fix = f"rename {unknown[0]} to {near} if they are the same class"
    elif unknown == sorted(present):
        fix = "choose the model that was trained on these classes with --run RUN"
    raise DataError(
        f"the classes of {data.source} do not match the model (unknown to the model: "
        f"{listing(unknown, 10)}, missing from the data: {listing(missing, 10) or 'none'})",
        fix=fix,
    )


def _nothing_left(data: Images, predictions: Sequence[_LabelledPrediction]) -> DataError:
    """Return the error for data in which no image can be evaluated."""
    uses = Counter(note for row in predictions for note in row.prediction.notes)
    left_out = [f"{uses[note]:,} {reason}" for note, reason in LEFT_OUT.values() if uses[note]]
    if left_out:
        unread = sum(bool(row.prediction.error) for row in predictions)
        left_out += [f"{unread:,} unreadable"] * bool(unread)
        return DataError(
            f"none of the {count(len(predictions), 'image')} in {data.source} is left to evaluate: "
            f"{listing(left_out)}",
            fix="use images on which the model was not trained",
        )
    first = predictions[0].prediction
    return DataError(
        f"cannot read any image in {data.source}, e.g. {first.path}: {first.error}",
        fix="replace the files, or choose other data",
    )


def _before_temperature(
    folder: Path, logits: Floats, labels: Ints, groups: Groups | None
) -> tuple[float | None, float | None]:
    """Return the calibration error before temperature scaling, and the run's only temperature."""
    kept = read_results(RunDir(folder).eval)
    calibration = kept["calibration"] if kept else None
    temperature = calibration["temperature"] if calibration else None
    divisors: Any = temperature
    if kept and "labels" in kept:
        every, temperature = kept["labels"]["per_label"].values(), None
        divisors = np.array([row.get("temperature", 1.0) for row in every])
    if divisors is None:
        return None, None
    return error_of_probabilities(logits * divisors, labels, groups)[1], temperature
