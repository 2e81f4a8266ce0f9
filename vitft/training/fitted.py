"""The head or the weights that a run has fitted so far, and how they were found."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from torch import Tensor

from vitft.features.head import HeldOutLogits
from vitft.metrics.intervals import Z
from vitft.metrics.results import BudgetResults, Metrics, RunResults
from vitft.models.timm_model import Model
from vitft.system.rundir import RunDir, damaged_file
from vitft.system.text import count
from vitft.training.runtime import Runtime
from vitft.training.setup import Start
from vitft.training.state import (
    BestFacts,
    State,
    check_shapes,
    newest_state,
    read_budget,
    remove_temporary_files,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredImages:
    """Features of the distinct images, and their logits from heads fitted to other images."""

    features: Tensor
    held_out: HeldOutLogits | None  # held-out logits; None if there are too few images per class


class BestWeights:
    """Trained weights with the best validation metrics so far, and the metrics themselves.

    Of the epochs whose accuracy is at most one standard error below the highest, the one with the
    lowest loss is the best (`BEST_RULE` in words). With few images, the accuracy stays the same for
    many epochs or changes by chance. Like the interval, the standard error counts groups. If
    `selects` is false, the latest weights are kept, whatever their metrics.
    """

    def __init__(self, model: Model, *, selects: bool = True) -> None:
        self.model, self.selects = model, selects
        self.facts = BestFacts(epochs=0, since=0, highest=0.0, figures=None, extra=None)
        self.weights: Mapping[str, Tensor] = {}

    @property
    def results(self) -> RunResults:
        """Contents of eval.json so far; empty before the end of the first epoch."""
        figures, more = self.facts["figures"], self.facts["extra"] or {}
        return cast("RunResults", {**figures, **more} if figures else {})

    def update(self, metrics: Metrics) -> None:
        """Count an epoch, and copy the model's weights if the metrics are the best so far."""
        facts, before = self.facts, self.facts["figures"]
        number, highest = facts["epochs"] + 1, max(facts["highest"], metrics["top1"])

        def fits(one: Metrics) -> bool:
            low, high = one["top1_interval"]
            return highest - one["top1"] <= (high - low) / (2 * Z)

        is_better = before is None or not self.selects
        if before is not None and self.selects:
            is_lower = metrics["loss"] < before["loss"]
            is_better = fits(metrics) if fits(metrics) != fits(before) else is_lower
        weights = self.copy_weights() if is_better else self.weights
        figures: Any = {**metrics, "best_epoch": number} if is_better else before
        selected = self.selects and number > 1
        figures = {**figures, "epochs": number, "selected_on_validation": selected}
        new: BestFacts = {
            "epochs": number,
            "since": 0 if is_better else facts["since"] + 1,
            "highest": highest,
            "figures": figures,
            "extra": facts["extra"],
        }
        self.facts, self.weights = new, weights  # signals cannot come between

    def restore(self) -> None:
        """Load the best weights into the model; a RunError if it has other names or shapes.

        Without `weights`, those of the model are the best ones, or no epoch has ended.
        """
        trained = dict(self.trained_tensors())
        if self.weights:
            saved = {name: value.shape for name, value in self.weights.items()}
            check_shapes(saved, {name: value.shape for name, value in trained.items()})
        for name, value in self.weights.items():
            trained[name].detach().copy_(value)

    def copy_weights(self) -> dict[str, Tensor]:
        """Return copies of the trained tensors, kept on the CPU to save GPU memory."""
        return {name: t.detach().to("cpu", copy=True) for name, t in self.trained_tensors()}

    def trained_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Return the names and values of all trainable parameters and buffers."""
        trained = (pair for pair in self.model.named_parameters() if pair[1].requires_grad)
        return chain(trained, self.model.named_buffers())


class Fitted:
    """The head or the weights that a run has fitted so far, and how: solved, stepped, searched."""

    def __init__(self, start: Start, run: RunDir, runtime: Runtime) -> None:
        self.start, self.run, self.runtime = start, run, runtime
        self.config = start.config  # with the layers that a search within a budget has chosen
        self.inputs = start.inputs  # to the current stage
        self.precision = start.pipeline.precision
        self.best = BestWeights(start.pipeline.model, selects=not start.config.train.budget)
        self.budget: BudgetResults | None = None  # trials and chosen layers, once they are chosen
        self.scored: ScoredImages | None = None  # of the distinct images, once computed
        self.adapter: Mapping[str, Tensor] = {}  # LoRA matrices, once merged into the weights
        self.saved: State | None = None  # the state at which a resumed run continues
        self.final: RunResults | None = None  # of the evaluation, once the model is written
        self.is_reported = False

    def resume(self) -> None:
        """Continue a stopped run: its trials and the time used, best weights and newest state."""
        run, group = self.run, self.runtime.group
        # One process reads the budget: it could change before a slower one reads it
        budget = group.broadcast(read_budget(run.resume) if group.is_main else None)
        if budget is not None:
            self.runtime.started -= budget["used"]
            self.best.selects = False
            self.budget = budget if budget["chosen"] is not None else None
        if group.is_main:
            remove_temporary_files(run.path)
        else:
            group.barrier()  # wait until damaged states have been renamed
        self.saved = newest_state(run.resume)
        if self.saved is None:
            run.cut_log(0)
        else:
            facts = self.saved.facts
            if facts["stage"] >= len(self.config.train.stages):
                raise damaged_file(run.resume, "its newest state has an unknown stage")
            epochs = self.config.optim.epochs
            log.info(
                f"resuming after {count(facts['step'], 'step')}, in epoch "
                f"{min(facts['epochs'] + 1, epochs)} of {epochs}"
            )
        if group.is_main:
            group.barrier()

    @property
    def model(self) -> Model:
        return self.best.model

    @property
    def results(self) -> RunResults:
        """Contents of eval.json so far; empty before the end of the first epoch."""
        if self.final is not None:
            return self.final
        best = self.best.results
        return {**best, "budget": self.budget} if self.budget else best
