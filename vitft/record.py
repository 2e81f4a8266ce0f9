"""What is kept of a training as it goes: the best weights so far, and running figures."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from vitft.backbone import Model
from vitft.loop import Step


class Best:
    """The trained weights that did best on the validation images so far, and their figures."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.epochs = 0
        self.figures: dict[str, Any] = {}
        self.state: dict[str, Tensor] = {}

    def consider(self, figures: dict[str, Any]) -> None:
        """Keep a copy of the weights if accuracy, or at equal accuracy the loss, is better."""
        self.epochs += 1
        if not self.figures or rank(figures) > rank(self.figures):
            self.figures = figures | {"best_epoch": self.epochs}
            self.state = {name: t.detach().clone() for name, t in self.moving()}
        # The same images chose the epoch and measured it: slightly optimistic, so it is stated.
        self.figures |= {"epochs": self.epochs, "selected_on_validation": self.epochs > 1}

    def restore(self) -> None:
        """Put the kept weights back into the model."""
        with torch.no_grad():
            for name, tensor in self.moving():
                tensor.copy_(self.state[name])

    def moving(self) -> Iterator[tuple[str, Tensor]]:
        """What training changes: parameters that train, and statistics (of BatchNorm)."""
        trained = (pair for pair in self.model.named_parameters() if pair[1].requires_grad)
        return chain(trained, self.model.named_buffers())


def rank(figures: dict[str, Any]) -> tuple[float, float]:
    """Larger is better."""
    return figures["top1"], -figures["loss"]


class Tally:
    """Running mean of loss and accuracy over the steps of an epoch."""

    def __init__(self) -> None:
        self.first_loss: float | None = None
        self.steps = 0
        self.reset()

    def reset(self) -> None:
        """Start the next epoch."""
        self.images = self.correct = 0
        self.total = self.lr = 0.0

    def add(self, step: Step) -> None:
        """Count one step."""
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

    def figures(self) -> dict[str, float | None]:
        """What goes into the log of epochs; the first loss of a zero head is ln(classes)."""
        return {
            "lr": self.lr,
            "first_loss": self.first_loss,
            "train_loss": self.loss,
            "train_top1": self.top1,
        }


def validation_figures(figures: dict[str, Any]) -> dict[str, float]:
    """What of an evaluation goes into the log of epochs."""
    return {"val_loss": figures["loss"], "val_top1": figures["top1"]}
