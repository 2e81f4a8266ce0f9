"""The head or the weights that a run has fitted so far, and how they were found."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from vitft.features.head import HeldOutLogits
from vitft.metrics.results import BudgetResults, RunResults
from vitft.models.card import Card
from vitft.models.timm_model import Model
from vitft.system.rundir import RunDir, damaged_file
from vitft.system.text import count
from vitft.training.best import BestWeights
from vitft.training.runtime import Runtime
from vitft.training.setup import Start
from vitft.training.state import State, newest_state, read_budget, remove_temporary_files

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredImages:
    """Features of the distinct images, and their logits from heads fitted to other images."""

    features: Tensor
    held_out: HeldOutLogits | None  # held-out logits; None if there are too few images per class


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
        found = newest_state(run.resume)
        if found is None:
            run.cut_log(0)
        else:
            self.saved, facts = found[0], found[0].facts
            if facts["stage"] >= len(self.config.train.stages):
                raise damaged_file(run.resume, "its newest state has an unknown stage")
            self.best.load(facts["best"], found[1], str(facts.get("best_file", "")))
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

    def card(self, thresholds: tuple[float, ...] = ()) -> Card:
        """Return the card of the model; `thresholds` are those of several labels, once chosen."""
        report, data = self.start.report, self.inputs.data
        return Card(
            architecture=self.model.config,
            transform=data.transform,
            classes=data.manifest.outputs,
            thresholds=thresholds or (0.5,) * len(data.manifest.labels),
            weights=report.provenance,
            pos_embed=report.positions,
            split=data.manifest.digest,
        )
