"""Best weights so far and running metrics of a training run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypedDict, cast

import torch
from torch import Tensor

from vitft.metrics.results import Metrics, RunResults, SolvedHeadResults
from vitft.models.timm_model import Model
from vitft.training.loop import StepResult


class BestFacts(TypedDict):
    """What a state for resuming holds of `BestWeights`, besides the tensors."""

    epochs: int
    since: int
    figures: RunResults
    extra: SolvedHeadResults | None


class BestWeights:
    """The trained weights with the best validation metrics so far, and those metrics."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.epochs = 0
        """Epochs validated."""
        self.epochs_since_best = 0
        self.weights: dict[str, Tensor] = {}
        self.file = ""
        """Name of the file in `resume/` that holds these weights, if there is one."""
        self._validated = cast("RunResults", {})
        self.head_results: SolvedHeadResults | None = None
        """Added to the results of whichever weights are the best."""

    @property
    def results(self) -> RunResults:
        """The contents of eval.json so far; empty before the first epoch ends."""
        if not self.epochs or self.head_results is None:
            return self._validated
        return cast("RunResults", {**self._validated, **self.head_results})

    def update(self, metrics: Metrics) -> None:
        """Copy the model's weights if the accuracy, or at equal accuracy the loss, is better."""
        self.epochs += 1
        self.epochs_since_best += 1
        if self.epochs == 1 or rank(metrics) > rank(self._validated):
            found = cast("RunResults", {**metrics, "best_epoch": self.epochs})
            weights = self.copy_weights()
            self._validated, self.weights = found, weights  # no call between: no signal between
            self.epochs_since_best, self.file = 0, ""
        self._validated["epochs"] = self.epochs
        self._validated["selected_on_validation"] = self.epochs > 1

    def restore(self) -> None:
        """Load the best weights into the model."""
        with torch.no_grad():
            for name, tensor in self.trained_tensors():
                if name in self.weights:  # else it never changed
                    tensor.copy_(self.weights[name])

    def copy_weights(self) -> dict[str, Tensor]:
        """Copy the trained tensors to the CPU, which leaves the memory of a GPU to training."""
        return {name: t.detach().to("cpu", copy=True) for name, t in self.trained_tensors()}

    def trained_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Return what training changes: trainable parameters, and buffers such as running means."""
        trained = (pair for pair in self.model.named_parameters() if pair[1].requires_grad)
        return chain(trained, self.model.named_buffers())

    def facts(self) -> BestFacts:
        """Return everything but the tensors, for `load`."""
        return {
            "epochs": self.epochs,
            "since": self.epochs_since_best,
            "figures": self._validated,
            "extra": self.head_results,
        }

    def load(self, facts: BestFacts, weights: Mapping[str, Tensor], file: str) -> None:
        """Set everything to what an earlier process saved."""
        self.epochs, self.epochs_since_best = facts["epochs"], facts["since"]
        self._validated, self.head_results = facts["figures"], facts["extra"] or None
        self.weights, self.file = dict(weights), file


def rank(metrics: Metrics) -> tuple[float, float]:
    """Return a key by which better metrics are larger."""
    return metrics["top1"], -metrics["loss"]


@dataclass(slots=True)
class RunningMetrics:
    """Mean loss and accuracy over the steps of an epoch."""

    first_loss: float | None = None
    """Loss of the first step of the stage; of a zero head it is ln(classes)."""
    steps: int = 0
    """Steps of the stage so far."""
    images: int = 0
    correct: int = 0
    total: float = 0.0
    """Sum of the losses of the images."""
    lr: float = 0.0

    def add(self, step: StepResult) -> None:
        """Add one step."""
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
