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

from vitft.export.formats.base import NumericArray, OpenedModel, predictions, same_rows
from vitft.export.trained import LabelledImage
from vitft.messages.results import export_accuracy
from vitft.metrics.calibration import sigmoid, softmax
from vitft.metrics.intervals import Flags, accuracy_interval
from vitft.metrics.results import Interval
from vitft.predict.postprocess import not_finite
from vitft.system.errors import RunError
from vitft.system.text import scored_images

_BATCH_SIZE = 8  # number of images per batch
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
    by: str  # name and version of the tool that opened the export
    images: int  # number of validation images compared; 0 if noise images were used instead
    difference: float
    moved: float = 0.0  # largest change in a probability
    largest: float  # largest absolute logit of the original
    changed: int  # number of images whose predicted class differs
    correct: tuple[int, int]
    """Numbers of images classified correctly by the original and by the export."""
    interval: Interval = (0.0, 1.0)  # 95% interval of the accuracy of the export
    groups: int = 0  # number of groups of the images; 0 if they have none
    size: int  # total size in bytes of the files that the export needs; of two graphs, only its own
    speed: float  # images per second, excluding preprocessing
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
        """Format of which the export is a part."""
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
    seconds: list[float] = field(default_factory=list)  # seconds per image in each batch


def compare_exports(
    original: OpenedModel,
    exports: Mapping[str, OpenedModel],
    samples: Iterable[LabelledImage],
    sizes: Mapping[str, int],
    *,
    done: Callable[[int], None] = lambda _: None,
) -> list[ExportComparison]:
    """Return one comparison per export, in order; `done` is called with the images of each batch.

    Raises:
        RunError: Some logits of the original are not finite, or an export and the run have
            different class names.
    """
    for name, model in exports.items():
        if model.classes != original.classes:
            raise RunError(
                f"the --{name} export and the run have different class names",
                fix="report this as a bug, and keep the run directory",
            )
    models = {"": original, **exports}
    logs = {name: PredictionLog() for name in models}
    labels: list[int | Flags] = []
    units: list[str] = []
    images, order = iter(samples), [*models]
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
    return [
        comparison_row(
            name,
            model.by,
            logs[name],
            logs[""],
            labels,
            sizes[name],
            thresholds=original.thresholds,
            units=units if any(units) else (),
        )
        for name, model in exports.items()
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
    """Return the comparison of one export with the original; `units` are the images' groups."""
    before, after = np.concatenate(original.logits), np.concatenate(export.logits)  # (n, C)
    truth = np.array(labels)
    predicted = predictions(before, thresholds), predictions(after, thresholds)
    is_noise = truth.ndim == 1 and bool((truth < 0).any())
    if predicted[0].ndim > truth.ndim:  # a multi-label model, but noise images
        truth = truth[:, None]
    right = [same_rows(one, truth) for one in predicted]
    groups = np.unique(units, return_inverse=True)[1] if units else None
    difference = moved = float("inf")
    if before.shape == after.shape and np.isfinite(after).all():
        probabilities = sigmoid if thresholds else softmax
        one, other = (probabilities(logits.astype(np.float64)) for logits in (before, after))
        difference, moved = float(np.abs(before - after).max()), float(np.abs(one - other).max())
    return ExportComparison(
        name=name,
        by=by,
        images=0 if is_noise else len(truth),
        difference=difference,
        moved=moved,
        largest=float(np.abs(before).max()),
        changed=len(truth) - int(same_rows(*predicted).sum()),
        correct=(int(right[0].sum()), int(right[1].sum())),
        interval=accuracy_interval(right[1], groups),
        groups=0 if groups is None else len({*units}),
        size=size,
        speed=1 / statistics.median(export.seconds),
        original_speed=1 / statistics.median(original.seconds),
        several_labels=bool(thresholds),
    )


def check_comparison(row: ExportComparison, *, max_error: float = MAX_ERROR) -> None:
    """Raise a RunError if the predictions of an export do not agree with the original predictions.

    For int8, the predicted class may change on at most one image, or on the fraction `_MAX_CHANGED`
    of the images if that is more. For other formats, logits may differ by at most `max_error`,
    relative to the larger of 1 and the largest logit.
    """
    is_off, fix = row.difference > max_error * max(1.0, row.largest), ""
    if row.is_eight_bits:
        if not row.images:
            raise RunError(
                f"--{row.name} cannot be checked, because the validation images no longer exist",
                fix="restore them at data.path (see the run's config.toml), or remove "
                f"--{row.form}",
            )
        is_off = row.changed > max(1, _MAX_CHANGED * row.images) or np.isinf(row.difference)
        fix = f"remove --{row.form}, because 8 bits are too few for this model"
    if is_off:
        raise RunError(
            f"the predictions of the --{row.name} export differ from the run's: logits by up to "
            f"{row.difference:.2g}, predicted classes on {row.changed} "
            f"{f'of {row.compared_on}' if row.images else 'noise images'}. The export was removed",
            fix=fix or "report this as a bug, and keep the run directory",
        )
