"""Best weights so far in a run, and running metrics of an epoch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypedDict, cast

import torch
from torch import Tensor

from vitft.metrics.intervals import Z
from vitft.metrics.results import Metrics, RunResults, SolvedHeadResults
from vitft.models.timm_model import Model
from vitft.system.errors import RunError
from vitft.system.structure import Natural, Share
from vitft.training.loop import StepResult


class BestFacts(TypedDict):
    """Fields of `BestWeights` other than tensors, as saved in a training state."""

    epochs: Natural
    since: Natural
    highest: Share  # highest validation accuracy of an epoch
    figures: RunResults | None  # None before the end of the first epoch
    extra: SolvedHeadResults | None


class BestWeights:
    """Trained weights with the best validation metrics so far, and the metrics themselves.

    If `selects` is false, the latest weights are kept, whatever their metrics.
    """

    def __init__(self, model: Model, *, selects: bool = True) -> None:
        self.model, self.selects = model, selects
        self.epochs = 0  # number of validated epochs
        self.epochs_since_best = 0
        self.highest = 0.0  # highest validation accuracy so far
        self.weights: dict[str, Tensor] = {}
        self.file = ""  # in `resume/`, with `weights`; empty if they are not on disk
        self._validated = cast("RunResults", {})
        self.head_results: SolvedHeadResults | None = None  # reported for any later stage, too

    @property
    def results(self) -> RunResults:
        """Contents of eval.json so far; empty before the end of the first epoch."""
        if not self.epochs or self.head_results is None:
            return self._validated
        return cast("RunResults", {**self._validated, **self.head_results})

    def update(self, metrics: Metrics) -> None:
        """Count an epoch, and copy the model's weights if the metrics are the best so far."""
        self.epochs += 1
        self.epochs_since_best += 1
        self.highest = max(self.highest, metrics["top1"])
        first = self.epochs == 1 or not self.selects
        if first or is_better(metrics, self._validated, self.highest):
            found = cast("RunResults", {**metrics, "best_epoch": self.epochs})
            weights = self.copy_weights()
            self._validated, self.weights = found, weights  # signals cannot interrupt this line
            self.epochs_since_best, self.file = 0, ""
        self._validated["epochs"] = self.epochs
        self._validated["selected_on_validation"] = self.selects and self.epochs > 1

    def restore(self) -> None:
        """Load the best weights into the model; raise a RunError if those of a file do not fit."""
        with torch.no_grad():
            for name, tensor in self.trained_tensors():
                if name not in self.weights:  # this tensor never changes
                    continue
                if self.weights[name].shape != tensor.shape:
                    raise RunError(
                        f"the best weights in {self.file or 'resume/'} do not fit this model: "
                        f"{name} has the wrong shape",
                        fix="start a new run in another directory with --out",
                    )
                tensor.copy_(self.weights[name])

    def copy_weights(self) -> dict[str, Tensor]:
        """Return copies of the trained tensors, kept on the CPU to save GPU memory."""
        return {name: t.detach().to("cpu", copy=True) for name, t in self.trained_tensors()}

    def trained_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Return the names and values of all trainable parameters and buffers."""
        trained = (pair for pair in self.model.named_parameters() if pair[1].requires_grad)
        return chain(trained, self.model.named_buffers())

    def facts(self) -> BestFacts:
        """Return the fields that `load` restores, except the weights and `file`."""
        return {
            "epochs": self.epochs,
            "since": self.epochs_since_best,
            "highest": self.highest,
            "figures": self._validated or None,
            "extra": self.head_results,
        }

    def load(self, facts: BestFacts, weights: Mapping[str, Tensor], file: str) -> None:
        """Restore the fields and weights saved by an earlier process."""
        self.epochs, self.epochs_since_best = facts["epochs"], facts["since"]
        self.highest = facts["highest"]
        self._validated = facts["figures"] or cast("RunResults", {})
        self.head_results = facts["extra"] or None
        self.weights, self.file = dict(weights), file


def is_better(new: Metrics, best: Metrics, highest: float) -> bool:
    """Return whether the metrics `new` are better than `best` on the same validation images.

    Of the epochs whose accuracy is at most one standard error below the `highest`, the one with the
    lowest loss is the best (`BEST_RULE` in words). With few images, the accuracy stays the same for
    many epochs or changes by chance. Like the interval, the standard error counts groups.
    """
    new_fits, best_fits = (
        highest - one["top1"] <= (one["top1_interval"][1] - one["top1_interval"][0]) / (2 * Z)
        for one in (new, best)
    )
    return new_fits if new_fits != best_fits else new["loss"] < best["loss"]


@dataclass(slots=True)
class RunningMetrics:
    """Running mean loss and accuracy over the steps of an epoch."""

    first_loss: float | None = None  # of the stage; ln(classes) for a head of zeros
    steps: Natural = 0  # number of steps in the stage so far
    images: Natural = 0
    correct: Natural = 0
    total: float = 0.0  # sum of the losses over all images
    lr: float = 0.0

    def add(self, step: StepResult) -> None:
        """Include the metrics of one step."""
        if self.first_loss is None:
            self.first_loss = step.loss
        self.steps += 1
        self.images += step.images
        self.correct += step.correct
        self.total += step.loss * step.images
        self.lr = step.lr

    @property
    def loss(self) -> float:
        return self.total / max(1, self.images)

    @property
    def top1(self) -> float:
        return self.correct / max(1, self.images)
