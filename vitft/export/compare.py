"""Compare exports with the original: the same images through both, each with its own preprocessing.

Letters: n images, C classes. The original and the exports alternate batch by batch, so that other
load on the machine affects all of them alike.
"""

import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from vitft.export.formats.base import NumericArray, OpenedModel
from vitft.export.trained import LabelledImage
from vitft.metrics.intervals import wilson_interval
from vitft.system.errors import RunError
from vitft.system.text import count, interval, percent

BATCH_SIZE = 8
"""Images per batch. The first batch is not timed."""
MAX_ERROR = 1e-4
"""Largest allowed difference of a float32 logit, as a fraction of the largest logit or of 1."""
MAX_ERROR_RESIZED = 1e-2
"""The same for graphs that resize, where single values of a view differ by a grey level."""
MAX_CHANGED = 0.05
"""Largest fraction of images whose predicted class int8 may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportComparison:
    """Difference between an export and the original."""

    name: str
    by: str
    """Name and version of the tool that opened it."""
    images: int
    """Number of validation images compared; 0 if noise was used instead."""
    difference: float
    largest: float
    """Largest absolute logit of the original."""
    changed: int
    """Number of images with another predicted class."""
    correct: tuple[int, int]
    """Number of correctly classified images, by the original and by the export."""
    size: int
    """Bytes of all files."""
    speed: float
    """Images per second without preprocessing."""
    original_speed: float

    @property
    def cost(self) -> str:
        """Effect on the accuracy, if any predicted class changes; otherwise empty."""
        if not self.images or not self.changed:
            return ""
        before, after = (number / self.images for number in self.correct)
        bounds = wilson_interval(self.correct[1], self.images)
        return (
            f"--{self.name} has an accuracy of {percent(after)} on {self.images} validation images "
            f"(95 % interval {interval(bounds)}), the original {percent(before)}"
        )


@dataclass
class PredictionLog:
    """Logits and times of one model so far."""

    logits: list[NumericArray] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Seconds per image of each batch."""


def compare_exports(
    original: OpenedModel,
    exports: Mapping[str, OpenedModel],
    samples: Iterable[LabelledImage],
    sizes: Mapping[str, int],
) -> list[ExportComparison]:
    """Return one comparison per export, in their order; `sizes` are the bytes of their files.

    Raises:
        RunError: An export has other class names than the run.
    """
    models = {"": original, **exports}
    logs = {name: PredictionLog() for name in models}
    labels: list[int] = []
    images = iter(samples)
    order = [*models]
    while batch := list(islice(images, BATCH_SIZE)):
        labels += [sample.label for sample in batch]
        for name in order:
            predict_batch(models[name], batch, logs[name])
        order = [*order[1:], order[0]]  # so that no model always follows the same one
    for name, model in exports.items():
        if model.classes != original.classes:
            raise RunError(
                f"the --{name} export has other class names than the run",
                fix="this is a bug: please keep the run folder and report it",
            )
    return [
        comparison_row(name, exports[name].by, logs[name], logs[""], labels, sizes[name])
        for name in exports
    ]


def predict_batch(model: OpenedModel, batch: list[LabelledImage], log: PredictionLog) -> None:
    """Predict a batch with a model and measure the time; the first batch is predicted twice."""
    inputs = [model.prepare(sample.image) for sample in batch]
    if not log.logits:
        model.predict(inputs)  # set-up at the first call is not timed
    started = time.perf_counter()
    log.logits.append(model.predict(inputs))
    log.seconds.append((time.perf_counter() - started) / len(batch))


def comparison_row(
    name: str, by: str, export: PredictionLog, original: PredictionLog, labels: list[int], size: int
) -> ExportComparison:
    """Return the comparison of one export."""
    before, after = np.concatenate(original.logits), np.concatenate(export.logits)  # (n, C)
    truth = np.array(labels)
    predicted = before.argmax(axis=1), after.argmax(axis=1)
    is_finite = before.shape == after.shape and bool(np.isfinite(after).all())
    return ExportComparison(
        name=name,
        by=by,
        images=len(truth) if (truth >= 0).all() else 0,
        difference=float(np.abs(before - after).max()) if is_finite else float("inf"),
        largest=float(np.abs(before).max()),
        changed=int((predicted[0] != predicted[1]).sum()),
        correct=(int((predicted[0] == truth).sum()), int((predicted[1] == truth).sum())),
        size=size,
        speed=1 / statistics.median(export.seconds),
        original_speed=1 / statistics.median(original.seconds),
    )


def check_comparison(row: ExportComparison, *, max_error: float = MAX_ERROR) -> None:
    """Refuse an export whose logits differ by more than `max_error`, relative to the largest or 1.

    Raises:
        RunError: The difference is above the tolerance of the format.
    """
    on = count(row.images, "validation image") if row.images else "noise"
    problem = (
        f"the --{row.name} export predicts differently: logits differ by up to "
        f"{row.difference:.2g}, the predicted class on {row.changed} of {on}; it was removed"
    )
    if row.name == "int8":
        if not row.images:
            raise RunError(
                "the accuracy of --int8 cannot be measured because the validation images no longer "
                "exist",
                fix="restore them at data.path in the run's config.toml, or export without --int8",
            )
        if row.changed > max(1, MAX_CHANGED * row.images) or not np.isfinite(row.difference):
            raise RunError(problem, fix="export without --int8; 8 bits are too few for this model")
    elif row.difference > max_error * max(1.0, row.largest):
        raise RunError(problem, fix="this is a bug: please keep the run folder and report it")
