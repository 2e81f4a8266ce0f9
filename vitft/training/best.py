"""What is kept of a training as it goes: the best weights so far, and running figures."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor

from vitft.features.cross_validation import HeldOutLogits
from vitft.metrics.results import Metrics, RunResults, SolvedHeadResults
from vitft.models.timm_model import Model
from vitft.training.loop import Step


class Best:
    """The trained weights that did best on the validation images so far, and their figures."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.epochs = 0
        self.figures = cast("RunResults", {})
        """Empty before the first epoch ends."""
        self.state: dict[str, Tensor] = {}
        self.since = 0
        """Epochs since the best one."""
        self.extra: SolvedHeadResults | None = None
        """Figures of the whole run, whichever weights are the best."""
        self.file = ""
        """Name of the file in which these weights lie already, if they do."""
        self.adapter: dict[str, Tensor] = {}
        """The matrices of LoRA, once they are folded into the model."""
        self.judged: tuple[Tensor, HeldOutLogits] | None = None
        """Features of every picture, each once, and scores by heads that did not see them."""

    def consider(self, figures: Metrics) -> None:
        """Keep a copy of the weights if accuracy, or at equal accuracy the loss, is better."""
        self.epochs += 1
        self.since += 1
        if self.epochs == 1 or rank(figures) > rank(self.figures):
            found = cast("RunResults", {**figures, "best_epoch": self.epochs})
            state = self.copied()
            self.figures, self.state = found, state  # no call between: no signal between
            self.since, self.file = 0, ""
        # The same images chose the epoch and measured it: slightly optimistic, so it is stated.
        self.figures["epochs"] = self.epochs
        self.figures["selected_on_validation"] = self.epochs > 1

    def copied(self) -> dict[str, Tensor]:
        """What is in the model now, on the CPU: a GPU's memory is for training."""
        return {name: t.detach().to("cpu", copy=True) for name, t in self.moving()}

    def restore(self) -> None:
        """Put the kept weights back into the model."""
        with torch.no_grad():
            for name, tensor in self.moving():
                if name in self.state:  # else it never moved
                    tensor.copy_(self.state[name])

    def widen(self) -> None:
        """Another stage moves more: what it starts from belongs to the best weights so far."""
        self.state, self.file = self.copied(), ""

    def facts(self) -> dict[str, Any]:
        """Everything but the tensors, for `take_up`."""
        names = ("epochs", "since", "figures", "extra")
        return {name: getattr(self, name) for name in names}

    def take_up(self, facts: Mapping[str, Any], state: Mapping[str, Tensor], file: str) -> None:
        """Go on from what an earlier process found."""
        for name, value in facts.items():
            setattr(self, name, value)
        self.state, self.file = dict(state), file

    def moving(self) -> Iterator[tuple[str, Tensor]]:
        """What training changes: parameters that train, and statistics (of BatchNorm)."""
        trained = (pair for pair in self.model.named_parameters() if pair[1].requires_grad)
        return chain(trained, self.model.named_buffers())


def rank(figures: Metrics) -> tuple[float, float]:
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

    def state(self) -> dict[str, Any]:
        """All of it, for `restore`."""
        return dict(vars(self))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        vars(self).update(state)

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


def validation_figures(figures: Metrics) -> dict[str, float]:
    """What of an evaluation goes into the log of epochs."""
    return {"val_loss": figures["loss"], "val_top1": figures["top1"]}
