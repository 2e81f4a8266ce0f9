"""Interface of export formats, and the comparison of an export with a run.

Each model uses its own preprocessing. The original and the exports alternate batch by batch so that
other load on the machine affects them equally.

Notation: n images, B images of a batch, C classes, S image side.
"""

import contextlib
import logging
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.export.plan import ExportPlan
from vitft.export.trained import Sample, TrainedRun
from vitft.messages.results import within
from vitft.metrics.intervals import Flags, Interval, accuracy_interval
from vitft.metrics.outputs import Outputs
from vitft.models.card import Card
from vitft.predict.postprocess import not_finite
from vitft.system import console
from vitft.system.errors import RunError
from vitft.system.text import percent, scored_images

log = logging.getLogger(__name__)
NumericArray = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """An exported model as opened by its target tool."""

    by: str
    outputs: Outputs
    """Without thresholds in formats that cannot contain them."""
    prepare: Callable[[Image.Image], NumericArray]
    """Function that converts an RGB image to model input, with the tool's own preprocessing if it
    has one."""
    logits: Callable[[NumericArray], NumericArray]
    """Function that computes float32 logits (B, C) from stacked inputs."""
    one_by_one: bool = False  # whether inputs may differ in size and therefore cannot be stacked

    def predict(self, inputs: Sequence[NumericArray]) -> NumericArray:
        """Return the logits (B, C) of prepared images."""
        if not self.one_by_one:
            return self.logits(np.stack(inputs))
        return np.concatenate([self.logits(each[None]) for each in inputs])


class ExportFormat(ABC):
    """A file format for a trained model, and the files written in it."""

    name: ClassVar[str]  # key of `EXPORT_FORMATS`
    reads_last_block = False  # whether this format requires a head that reads only the last block
    is_model = True  # whether the folder contains a model, which is described by a model card
    max_error = 1e-4
    """Maximum difference in a logit, relative to the larger of 1 and the largest logit."""

    def __init__(self, trained: TrainedRun, plan: ExportPlan) -> None:
        self.plan = plan
        self.trained = trained.of_last_block if self.reads_last_block else trained
        self.card = self.trained.card

    def obstacle(self) -> str:
        """Return why this format cannot represent the model exactly; empty if it can."""
        return ""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the model to an existing, empty folder."""

    @abstractmethod
    def open(self, folder: Path) -> OpenedModel:
        """Use the format's target tool to open a folder written by `write`."""

    def reopen(self, folder: Path) -> dict[str, tuple[OpenedModel, int]]:
        """Return each model of a folder by name, with the bytes of the files that it needs."""
        size = sum(path.stat().st_size for path in folder.rglob("*"))
        return {self.name: (self.open(folder), size)}

    def notes(self) -> Sequence[str]:
        """Return notes for the user on the files that `write` has written."""
        return ()


@contextlib.contextmanager
def timed_step(label: str) -> Iterator[None]:
    """Show that a step without a count is running, and log its duration unless it fails."""
    started = time.monotonic()
    with console.quiet_step(label, after=0):
        yield
    log.info(f"{label}: done in {time.monotonic() - started:.1f} s")


def open_module(model: torch.nn.Module, card: Card) -> OpenedModel:
    """Return an opened model that applies vitft's preprocessing and then runs a module."""
    return OpenedModel(
        by="vitft",
        outputs=card,
        prepare=lambda image: normalised_input(card.transform, image),
        logits=module_logits(model),
    )


def normalised_input(transform: EvalTransform, image: Image.Image) -> NumericArray:
    """Convert an image to model input, float32 (channels, S, S)."""
    view = torch.from_numpy(transform.pixels(image)[None])
    return np.asarray(transform.normalise(view)[0].contiguous().numpy())


def module_logits(
    model: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[NumericArray], NumericArray]:
    """Return the function that computes a module's logits for stacked inputs."""

    def logits(inputs: NumericArray) -> NumericArray:
        with torch.inference_mode():
            return np.asarray(model(torch.from_numpy(inputs)).numpy())

    return logits


# comparison of exports with the original model on the same images --------------------------------

_Log = tuple[list[NumericArray], list[float]]
"""The logits (B, C) of each batch, and the seconds that it took per image."""
_BATCH_SIZE = 8  # number of images per batch
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
        before, after = (right / self.images for right in self.correct)
        measure = "the accuracy"
        if self.several_labels:
            measure = "the fraction of images with all labels right"
        return (
            f"{measure} is {percent(after)}{within(self.interval)} on {self.compared_on}, compared "
            f"with {percent(before)} for the original"
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

    @classmethod
    def of(
        cls,
        name: str,
        by: str,
        export: _Log,
        original: _Log,
        labels: list[int | Flags],
        size: int,
        *,
        outputs: Outputs,
        units: Sequence[str] = (),
    ) -> Self:
        """Return the comparison of one export with the original; `units` are the images' groups."""

        def same(one: NumericArray, other: NumericArray) -> Flags:
            return np.asarray((one == other).all(axis=1))

        before, after = np.concatenate(original[0]), np.concatenate(export[0])  # (n, C)
        truth = np.array(labels).reshape(len(labels), -1)
        is_noise = bool((truth < 0).any())
        answers = [outputs.predicted(logits) for logits in (before, after)]
        right = [same(answer, truth) for answer in answers]
        groups = np.unique(units, return_inverse=True)[1] if units else None
        difference = moved = float("inf")
        if before.shape == after.shape and np.isfinite(after).all():
            one, other = map(outputs.probabilities, (before, after))
            difference = float(np.abs(before - after).max())
            moved = float(np.abs(one - other).max())
        return cls(
            name=name,
            by=by,
            images=0 if is_noise else len(truth),
            difference=difference,
            moved=moved,
            largest=float(np.abs(before).max()),
            changed=len(truth) - int(same(*answers).sum()),
            correct=(int(right[0].sum()), int(right[1].sum())),
            interval=accuracy_interval(right[1], groups),
            groups=0 if groups is None else len({*units}),
            size=size,
            speed=1 / statistics.median(export[1]),
            original_speed=1 / statistics.median(original[1]),
            several_labels=outputs.several,
        )

    def check(self, max_error: float = ExportFormat.max_error, *, is_half: bool = False) -> None:
        """Raise a RunError if the predictions do not agree with the original predictions.

        For int8, the predicted class may change on at most one image, or on the fraction
        `_MAX_CHANGED` of the images if that is more. For other formats, logits may differ by at
        most `max_error`, relative to the larger of 1 and the largest logit. With 16-bit weights
        (`is_half`), no predicted class may change.
        """
        is_off, fix = self.difference > max_error * max(1.0, self.largest), ""
        if is_half:
            is_off = is_off or self.changed > 0
            fix = "remove --half, because 16 bits are too few for this model"
        if self.is_eight_bits:
            if not self.images:
                raise RunError(
                    f"--{self.name} cannot be checked without the validation images",
                    fix="export from the run directory, with the images at data.path (see its "
                    f"config.toml), or remove --{self.form}",
                )
            is_off = self.changed > max(1, _MAX_CHANGED * self.images) or np.isinf(self.difference)
            fix = f"remove --{self.form}, because 8 bits are too few for this model"
        if is_off:
            on = f"of {self.compared_on}" if self.images else "noise images"
            raise RunError(
                f"the predictions of the --{self.name} export differ from the run's: logits by up "
                f"to {self.difference:.2g}, predicted classes on {self.changed} {on}. The export "
                "was removed",
                fix=fix or "report this as a bug, and keep the run directory",
            )


def compare_exports(
    original: OpenedModel,
    exports: Mapping[str, tuple[OpenedModel, int]],
    samples: Iterable[Sample],
    *,
    done: Callable[[int], None] = lambda _: None,
) -> list[ExportComparison]:
    """Return one comparison per export, a model and its size in bytes, in order.

    `done` is called with the number of images of each batch.

    Raises:
        RunError: Some logits of the original are not finite, or an export and the run have
            different class names.
    """
    for name, (model, _) in exports.items():
        if model.outputs.classes != original.outputs.classes:
            raise RunError(
                f"the --{name} export and the run have different class names",
                fix="report this as a bug, and keep the run directory",
            )
    models = {"": original, **{name: model for name, (model, _) in exports.items()}}
    logs = {name: (list[NumericArray](), list[float]()) for name in models}
    labels: list[int | Flags] = []
    units: list[str] = []
    images, order = iter(samples), [*models]
    while batch := list(islice(images, _BATCH_SIZE)):
        labels += [label for _, label, _ in batch]
        units += [group for _, _, group in batch]
        for name in order:
            model, (logits, seconds) = models[name], logs[name]
            inputs = [model.prepare(image) for image, _, _ in batch]
            if not logits:
                model.predict(inputs)  # excludes initialisation from the timing
            started = time.perf_counter()
            logits.append(model.predict(inputs))
            seconds.append((time.perf_counter() - started) / len(batch))
        done(len(batch))
        order = [*order[1:], order[0]]  # varies the order of the models
    if not all(np.isfinite(logits).all() for logits in logs[""][0]):
        raise not_finite()
    return [
        ExportComparison.of(
            name,
            model.by,
            logs[name],
            logs[""],
            labels,
            size,
            outputs=original.outputs,
            units=units if any(units) else (),
        )
        for name, (model, size) in exports.items()
    ]
