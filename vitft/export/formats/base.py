"""Interface of export formats, what each can represent, and the comparison of an export with a run.

Each model uses its own preprocessing. The original and the exports alternate batch by batch so that
other load on the machine affects them equally.

Notation: n images, B images of a batch, C classes, S image side.
"""

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.export.trained import LabelledImage, TrainedRun
from vitft.messages.results import export_accuracy
from vitft.metrics.calibration import logit_of, sigmoid, softmax
from vitft.metrics.intervals import Flags, Interval, accuracy_interval
from vitft.models.card import AnyConfig, Card
from vitft.models.vit_config import ViTConfig
from vitft.predict.postprocess import not_finite
from vitft.system.errors import RunError
from vitft.system.text import scored_images

NumericArray = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """An exported model as opened by its target tool."""

    by: str
    classes: tuple[str, ...]
    prepare: Callable[[Image.Image], NumericArray]
    """Function that converts an RGB image to model input, with the tool's own preprocessing if it
    has one."""
    logits: Callable[[NumericArray], NumericArray]
    """Function that computes float32 logits (B, C) from stacked inputs."""
    thresholds: tuple[float, ...] = ()
    """Minimum probability at which each label is predicted; empty for models that are not
    multi-label, and for formats that cannot contain thresholds."""
    one_by_one: bool = False  # whether inputs may differ in size and therefore cannot be stacked

    def predict(self, inputs: Sequence[NumericArray]) -> NumericArray:
        """Return the logits (B, C) of prepared images."""
        if not self.one_by_one:
            return self.logits(np.stack(inputs))
        return np.concatenate([self.logits(each[None]) for each in inputs])


class ExportFormat(ABC):
    """A file format for trained models."""

    reads_last_block: bool = False
    """Whether this format requires a head that reads only the last block."""
    is_model: bool = True  # whether the folder contains a model, which is described by a model card
    max_error: float = 1e-4
    """Maximum difference in a logit, relative to the larger of 1 and the largest logit."""
    graphs: tuple[str, str] | None = None
    """Files of the float32 and the 8-bit graph, if the folder contains both."""
    notes: Sequence[str] = ()  # notes for the user on the files that `write` has written

    def source(self, trained: TrainedRun) -> TrainedRun:
        """Return the run to export, with a head that reads only the last block if required."""
        return trained.of_last_block if self.reads_last_block else trained

    def obstacle(self, card: Card) -> str:  # noqa: ARG002 - for subclasses
        """Return why this format cannot represent a model exactly, or an empty string if it can."""
        return ""

    @abstractmethod
    def write(self, trained: TrainedRun, folder: Path) -> None:
        """Write a model to an existing, empty folder."""

    @abstractmethod
    def open(self, folder: Path) -> OpenedModel:
        """Use the format's target tool to open a folder written by `write`."""


def open_module(model: torch.nn.Module, card: Card, *, by: str) -> OpenedModel:
    """Return an opened model that applies vitft's preprocessing and then runs a module."""
    return OpenedModel(
        by=by,
        classes=card.classes,
        thresholds=card.thresholds,
        prepare=lambda image: normalised_input(card.transform, image),
        logits=lambda inputs: module_logits(model, inputs),
    )


def normalised_input(transform: EvalTransform, image: Image.Image) -> NumericArray:
    """Convert an image to model input, float32 (channels, S, S)."""
    view = torch.from_numpy(transform.pixels(image)[None])
    return np.asarray(transform.normalise(view)[0].contiguous().numpy())


def module_logits(
    model: Callable[[torch.Tensor], torch.Tensor], inputs: NumericArray
) -> NumericArray:
    """Return a module's logits for stacked inputs."""
    with torch.inference_mode():
        return np.asarray(model(torch.from_numpy(inputs)).numpy())


# what the formats of other programs can represent ------------------------------------------------

HYBRIDS: Mapping[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
"""Name of the timm model with each ResNet stem, keyed by the numbers of bottlenecks per stage."""


def is_eva(shape: ViTConfig) -> bool:
    """Return whether only timm's `Eva` can build this architecture, not its `VisionTransformer`."""
    pools_prefix = shape.pool == "map" and bool(shape.num_prefix or shape.pool_heads)
    has_gate = shape.gated_mlp and shape.norm_layer == "layernorm"
    return shape.rope is not None or not shape.positions or has_gate or pools_prefix


_PROGRAMS = {
    "timm": "the timm format",
    "transformers": "ViTForImageClassification",
    "html": "the page",
}
_OTHERS, _BOTH = "transformers html", "timm transformers"
_PARTS: tuple[tuple[str, Callable[[Any], object], str], ...] = (
    ("a network of timm", lambda s: s.timm, _OTHERS),
    # The other rows are about Vision Transformers: only timm knows the parts of its networks.
    ("pre_logits (a Linear + Tanh before the head)", lambda s: s.pre_logits, _BOTH),
    ("a post-norm encoder", lambda s: s.norm == "post", _BOTH),
    ("a distillation token", lambda s: s.distilled, _BOTH),
    ("a convolutional stem", lambda s: s.convs, f"timm {_OTHERS}"),
    ("a hybrid stem", lambda s: s.stem is not None, _OTHERS),
    ("attention pooling", lambda s: s.pool == "map", _OTHERS),
    ("rotary position embeddings", lambda s: s.rope, _OTHERS),
    ("a SwiGLU MLP", lambda s: s.gated_mlp, _OTHERS),
    ("RMSNorm", lambda s: s.norm_layer == "rmsnorm", _OTHERS),
    ("no final LayerNorm", lambda s: not s.final_norm, _OTHERS),
    ("additional LayerNorms", lambda s: s.attn_norm or s.mlp_norm or s.patch_norm, _OTHERS),
    ("layers without biases", lambda s: not s.proj_bias, _OTHERS),
    ("no learned position embeddings", lambda s: not s.positions, _OTHERS),
    ("mean pooling", lambda s: s.pool == "mean", "transformers"),
    ("a LayerNorm before the first block", lambda s: s.embed_norm, "transformers"),
    ("LayerScale", lambda s: s.layer_scale, "transformers"),
    ("registers", lambda s: s.registers, "transformers"),
    ("position embeddings for the patches only", lambda s: not s.prefix_positions, "transformers"),
    ("neither learned nor rotary positions", lambda s: not (s.positions or s.rope), "timm"),
    ("a LayerNorm eps other than 1e-6 or 1e-5", lambda s: s.norm_eps not in (1e-6, 1e-5), "timm"),
    ("a non-standard ResNet stem", lambda s: s.stem not in (None, *HYBRIDS), "timm"),
    (
        "a hybrid stem with a LayerNorm eps of 1e-5",
        lambda s: s.stem is not None and s.norm_eps == 1e-5,
        "timm",
    ),
    (
        "RMSNorm without SwiGLU or with an eps other than 1e-5",
        lambda s: s.norm_layer == "rmsnorm" and not (s.gated_mlp and s.norm_eps == 1e-5),
        "timm",
    ),
    (
        "RMSNorm with attention pooling or rotary position embeddings",
        lambda s: s.norm_layer == "rmsnorm" and (s.pool == "map" or is_eva(s)),
        "timm",
    ),
    (
        "a norm after the patch projection without RMSNorm or without a bias",
        lambda s: s.patch_norm and (s.norm_layer != "rmsnorm" or s.embed_norm),
        "timm",
    ),
    (
        "rotary position embeddings or SwiGLU in layers without biases",
        lambda s: is_eva(s) and not s.proj_bias,
        "timm",
    ),
    (
        "rotary position embeddings or SwiGLU without the activation GELU",
        lambda s: is_eva(s) and s.activation != "gelu" and (not s.gated_mlp or s.pool == "map"),
        "timm",
    ),
)
"""Parts of a model, whether an architecture has them, and formats that cannot represent them."""


def unsupported_part(form: str, shape: AnyConfig) -> str:
    """Return which part of a model a format cannot represent, as a clause; empty if there is none.

    Formats that `_PARTS` does not name can represent every model.
    """
    for part, has_part, formats in _PARTS[:1] if shape.timm else _PARTS:
        if form in formats.split() and has_part(shape):
            return f"the model has {part}, which {_PROGRAMS[form]} does not support"
    return ""


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
        several = self.several_labels
        return export_accuracy(
            before, after, self.interval, self.compared_on, several_labels=several
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
    logs = {name: (list[NumericArray](), list[float]()) for name in models}
    labels: list[int | Flags] = []
    units: list[str] = []
    images, order = iter(samples), [*models]
    while batch := list(islice(images, _BATCH_SIZE)):
        labels += [sample.label for sample in batch]
        units += [sample.group for sample in batch]
        for name in order:
            model, (logits, seconds) = models[name], logs[name]
            inputs = [model.prepare(sample.image) for sample in batch]
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
    export: _Log,
    original: _Log,
    labels: "list[int | Flags]",
    size: int,
    *,
    thresholds: tuple[float, ...] = (),
    units: Sequence[str] = (),
) -> ExportComparison:
    """Return the comparison of one export with the original; `units` are the images' groups."""

    def predicted(logits: NumericArray) -> NumericArray:
        """The predicted classes (n,) or, given thresholds, the predicted label flags (n, C)."""
        if not thresholds:
            return np.asarray(logits.argmax(axis=1))
        return np.asarray(logits >= logit_of(np.asarray(thresholds)))

    def same(one: NumericArray, other: NumericArray) -> Flags:
        return np.asarray((one == other).reshape(len(one), -1).all(axis=1))

    before, after = np.concatenate(original[0]), np.concatenate(export[0])  # (n, C)
    truth = np.array(labels)
    is_noise = truth.ndim == 1 and bool((truth < 0).any())
    if thresholds and truth.ndim == 1:  # a multi-label model, but noise images
        truth = truth[:, None]
    right = [same(predicted(logits), truth) for logits in (before, after)]
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
        changed=len(truth) - int(same(predicted(before), predicted(after)).sum()),
        correct=(int(right[0].sum()), int(right[1].sum())),
        interval=accuracy_interval(right[1], groups),
        groups=0 if groups is None else len({*units}),
        size=size,
        speed=1 / statistics.median(export[1]),
        original_speed=1 / statistics.median(original[1]),
        several_labels=bool(thresholds),
    )


def check_comparison(row: ExportComparison, *, max_error: float = ExportFormat.max_error) -> None:
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
