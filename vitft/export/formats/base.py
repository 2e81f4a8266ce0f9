"""Interface of export formats: write a model, and reopen it with the target tool."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.export.trained import TrainedRun
from vitft.metrics.calibration import logit_of
from vitft.metrics.intervals import Flags
from vitft.models.card import Card

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


def first_unsupported(parts: Mapping[str, bool]) -> str:
    """Return the first name whose value is true, or an empty string if there is none."""
    return next((name for name, is_present in parts.items() if is_present), "")


def predictions(logits: NumericArray, thresholds: Sequence[float]) -> NumericArray:
    """Return the predicted classes (n,) or, given thresholds, the predicted label flags (n, C)."""
    if not thresholds:
        return np.asarray(logits.argmax(axis=1))
    return np.asarray(logits >= logit_of(np.asarray(thresholds)))


def same_rows(one: NumericArray, other: NumericArray) -> Flags:
    """Return the images (n,) on which two arrays of predictions or targets agree."""
    return np.asarray((one == other).reshape(len(one), -1).all(axis=1))
