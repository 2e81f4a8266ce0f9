"""Comparison of exports with the original model on the same images.

Each model uses its own preprocessing. The original and the exports alternate batch by batch so that
other load on the machine affects them equally.

Notation: n images, C classes.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from vitft.export.formats.base import NumericArray, OpenedModel, count_same, predictions, same_rows
from vitft.export.trained import LabelledImage
from vitft.messages.results import export_accuracy
from vitft.metrics.intervals import Flags, accuracy_interval
from vitft.metrics.results import Interval
from vitft.predict.postprocess import not_finite
from vitft.system.errors import RunError
from vitft.system.text import scored_images

_BATCH_SIZE = 8
"""Number of images per batch."""
MAX_ERROR = 1e-4
"""Maximum difference in a float32 logit, relative to the larger of 1 and the largest logit."""
MAX_ERROR_RESIZED = 1e-2
"""Maximum relative logit difference for graphs that resize images (Pillow resizes differently)."""
_MAX_CHANGED = 0.05
"""Maximum fraction of images whose predicted class may differ after conversion to int8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportComparison:
    """Comparison of an export with the original."""

    name: str
    by: str
    """Name and version of the tool that opened the export."""
    images: int
    """Number of validation images compared; 0 if noise images were used instead."""
    difference: float
    largest: float
    """Largest absolute logit of the original."""
    changed: int
    """Number of images whose predicted class differs."""
    correct: tuple[int, int]
    """Numbers of images classified correctly by the original and by the export."""
    interval: Interval = (0.0, 1.0)
    """95% interval of the accuracy of the export."""
    groups: int = 0
    """Number of groups of the images; 0 if they have none."""
    size: int
    """Total size in bytes of the files that the export needs; of two graphs, only its own."""
    speed: float
    """Images per second, excluding preprocessing."""
    original_speed: float
    several_labels: bool = False
    """Whether the model is multi-label; an image is then correct only if every label is."""

    @property
    def cost(self) -> str:
        """Effect on the accuracy as text; empty for noise images or if no prediction changes."""
        return f"--{self.name}: {self.accuracy}" if self.images and self.changed else ""

    @property
    def accuracy(self) -> str:
        """Clause about the accuracy on validation images, compared with the original."""
        return export_accuracy(
            self.correct[0] / self.images,
            self.correct[1] / self.images,
            self.interval,
            self.compared_on,
            several_labels=self.several_labels,
        )

    @property
    def form(self) -> str:
        """Format to which the export belongs; an 8-bit graph can be a part of another format."""
        return self.name.removesuffix(", int8")

    @property
    def is_eight_bits(self) -> bool:
        """Whether the export is a graph with 8-bit weights."""
        return self.name.endswith("int8")

    @property
    def compared_on(self) -> str:
        """The images as text, e.g. `60 validation images of 12 groups`."""
        return scored_images({"images": self.images, "groups": self.groups}, "validation image")


@dataclass
class PredictionLog:
    """Logits and batch times recorded for one model."""

    logits: list[NumericArray] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Seconds per image in each batch."""


def compare_exports(
    original: OpenedModel,
    exports: Mapping[str, OpenedModel],
    samples: Iterable[LabelledImage],
    sizes: Mapping[str, int],
    *,
    done: Callable[[int], None] = lambda _: None,
) -> list[ExportComparison]:
    """Return one comparison per export, in order.

    `exports` and their `sizes` (see `ExportComparison.size`) are given by name, and `done` is
    called with the number of images of each batch. The first batch is predicted twice, and only the
    second pass is timed.

    Raises:
        RunError: Some logits of the original are not finite, or an export and the run have
            different class names.
    """
    models = {"": original, **exports}
    logs = {name: PredictionLog() for name in models}
    labels: list[int | Flags] = []
    units: list[str] = []
    images = iter(samples)
    order = [*models]
    while batch := list(islice(images, _BATCH_SIZE)):
        labels += [sample.label for sample in batch]
        units += [sample.group for sample in batch]
        for name in order:
            model, log = models[name], logs[name]
            inputs = [model.prepare(sample.image) for sample in batch]
            if not log.logits:
                model.predict(inputs)  # excludes initialisation from the timing
            started = time.perf_counter()
            log.logits.append(model.predict(inputs))
            log.seconds.append((time.perf_counter() - started) / len(batch))
        done(len(batch))
        order = [*order[1:], order[0]]  # varies the order of the models
    if not all(np.isfinite(logits).all() for logits in logs[""].logits):
        raise not_finite()
    for name, model in exports.items():
        if model.classes != original.classes:
            raise RunError(
                f"the --{name} export and the run have different class names",
                fix="report this as a bug, and keep the run directory",
            )
    return [
        comparison_row(
            name,
            exports[name].by,
            logs[name],
            logs[""],
            labels,
            sizes[name],
            thresholds=original.thresholds,
            units=units if any(units) else (),
        )
        for name in exports
    ]


def comparison_row(
    name: str,
    by: str,
    export: PredictionLog,
    original: PredictionLog,
    labels: "list[int | Flags]",
    size: int,
    *,
    thresholds: tuple[float, ...] = (),
    units: Sequence[str] = (),
) -> ExportComparison:
    """Return the comparison of one export with the original.

    A multi-label prediction (with `thresholds`) is correct only if every label is. `units` are the
    groups of the images, if they have any.
    """
    before, after = np.concatenate(original.logits), np.concatenate(export.logits)  # (n, C)
    truth = np.array(labels)
    predicted = predictions(before, thresholds), predictions(after, thresholds)
    is_noise = truth.ndim == 1 and bool((truth < 0).any())
    if predicted[0].ndim > truth.ndim:  # a multi-label model, but noise images
        truth = truth[:, None]
    right = [same_rows(one, truth) for one in predicted]
    groups = np.unique(units, return_inverse=True)[1] if units else None
    is_finite = before.shape == after.shape and bool(np.isfinite(after).all())
    return ExportComparison(
        name=name,
        by=by,
        images=0 if is_noise else len(truth),
        difference=float(np.abs(before - after).max()) if is_finite else float("inf"),
        largest=float(np.abs(before).max()),
        changed=len(truth) - count_same(*predicted),
        correct=(int(right[0].sum()), int(right[1].sum())),
        interval=accuracy_interval(right[1], groups),
        groups=0 if groups is None else len({*units}),
        size=size,
        speed=1 / statistics.median(export.seconds),
        original_speed=1 / statistics.median(original.seconds),
        several_labels=bool(thresholds),
    )


def check_comparison(row: ExportComparison, *, max_error: float = MAX_ERROR) -> None:
    """Check that the predictions of an export agree with the original predictions.

    For int8, the predicted class may change on at most one image, or on the fraction `_MAX_CHANGED`
    of the images if that is more. For other formats, logits may differ by at most `max_error`,
    relative to the larger of 1 and the largest logit.

    Raises:
        RunError: The difference exceeds the tolerance of the format, or there are no validation
            images to measure the accuracy of int8.
    """
    on = f"of {row.compared_on}" if row.images else "noise images"
    problem = (
        f"the predictions of the --{row.name} export differ from the run's: logits by up to "
        f"{row.difference:.2g}, predicted classes on {row.changed} {on}. The export was removed"
    )
    if row.is_eight_bits:
        if not row.images:
            raise RunError(
                f"--{row.name} cannot be checked, because the validation images no longer exist",
                fix="restore them at data.path (see the run's config.toml), or remove "
                f"--{row.form}",
            )
        if row.changed > max(1, _MAX_CHANGED * row.images) or not np.isfinite(row.difference):
            raise RunError(
                problem, fix=f"remove --{row.form}, because 8 bits are too few for this model"
            )
    elif row.difference > max_error * max(1.0, row.largest):
        raise RunError(problem, fix="report this as a bug, and keep the run directory")
