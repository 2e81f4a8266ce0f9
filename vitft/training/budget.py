"""Choice of the layers to train within a time budget, by trials on the training images.

A run with a budget first chooses its input size (see `start_trials`) and fits its head. It then
tries candidates, each of which trains further layers. A candidate is trained on four fifths of the
training images, starting from a head fitted to the same images, and is compared with this head on
the remaining fifth. While it is not clear which candidate is best, trials are repeated with other
images held out, as time allows. If a candidate is better than the head, the best one is trained
again on all training images, starting from the head of the run. Otherwise, only the head is
trained. The choice does not use validation images.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from vitft.config.run import to_toml
from vitft.features.head import SolvedHead
from vitft.features.mixture import HeadMethod
from vitft.messages.training import describe_trial
from vitft.metrics.results import BudgetResults, StartTrials, TrialResults
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.system.text import count
from vitft.training.head_stage import of_last_block, read_last_block
from vitft.training.stages import RunContext
from vitft.training.state import BUDGET_FILE, read_budget, write_for_resume
from vitft.training.trial import (
    EVIDENCE,
    MIN_STEPS,
    MIN_TRIAL_IMAGES,
    TRIAL_FOLDS,
    HeldOut,
    LayerSettings,
    Trial,
    folds_of,
    hold_out,
    pooled,
)

log = logging.getLogger(__name__)

_MARGIN = 0.85
"""Fraction of the remaining time that trials and training may take; the rest is reserved for
reports and for variations in machine speed."""

_FIRST_STEPS = 120
"""Number of steps of the first trial of each candidate, if time allows; rounded up to epochs."""
_LONGER = 1.5  # A candidate is tried again only for at least this many times as many epochs
_SLIGHT_EVIDENCE = 1.0
"""Difference of the held-out losses, in standard errors, within which a trial tells little."""

LAST_BLOCKS = MappingProxyType({"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "lr": 3e-4})
EVERYTHING = MappingProxyType({"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "layer_decay": 0.75})
CROPS = MappingProxyType({"augment": "crop", "crop_scale": 0.4})


def layers_to_try(model: Model) -> list[LayerSettings]:
    """Return the candidates for a model, in order of increasing time per training step."""
    everything = LayerSettings(layers="all", optim=EVERYTHING, train=CROPS)
    if not isinstance(model, VisionTransformer) or model.config.depth <= 4:
        return [everything]
    return [LayerSettings(layers="blocks:4", optim=LAST_BLOCKS), everything]


def choose_layers(context: RunContext, solved: SolvedHead) -> None:
    """Try the candidates, and add the best one to the run's stages if it is better than the head.

    Finished trials are saved, so a resumed run does not repeat them. In config.toml, the budget is
    replaced with the chosen settings, so the file describes what is trained. `solved` is the head
    that the run has fitted.
    """
    run, best, config = context.run, context.best, context.config
    found = _shared_budget(context)
    if found is None or found["chosen"] is None:
        found = _try_candidates(context, solved.method, found or _untried(context))
        write_for_resume(run, BUDGET_FILE, found)
    context.budget, context.config = found, replace(config, train=replace(config.train, budget=""))
    every = {candidate.layers: candidate for candidate in layers_to_try(best.model)}
    if found["chosen"] in every:
        context.config = every[found["chosen"]].config(
            config,
            found["epochs"],
            best.model,
            len(context.inputs.data.manifest.train),
            fraction=found.get("interpolation", 1.0),
        )
    run.write("config.toml", to_toml(context.config))
    if len(context.config.train.stages) > 1:
        # Once blocks are trained, a head does not gain from reading earlier blocks as well
        # (benchmarks/notebook/fine_tuning.md).
        context.inputs = of_last_block(context.inputs, best.model)
        read_last_block(best.model, solved.last)
        best.weights = best.copy_weights()
        if best.head_results is not None:
            best.head_results.pop("head", None)


def resume_budget(context: RunContext) -> None:
    """Restore the time used by a stopped run, and the layers that it had chosen, if any."""
    found = _shared_budget(context)
    if found is None:
        return
    context.started -= found["used"]
    context.best.selects = False
    if found["chosen"] is not None:
        context.budget = found


def _shared_budget(context: RunContext) -> BudgetResults | None:
    """Return the saved trials and the chosen layers, or None if there are none."""
    group = context.inputs.data.group  # the file could change before a slower process reads it
    return group.broadcast(read_budget(context.run.resume) if group.is_main else None)


def record_start_trials(context: RunContext, found: StartTrials) -> None:
    """Save the scores of other starts, if any, before any layers are tried."""
    if found:
        write_for_resume(context.run, BUDGET_FILE, {**_untried(context), **found})


def _untried(context: RunContext) -> BudgetResults:
    """Return the initial budget results of a run, before any trial."""
    return {
        "seconds": context.config.train.budget_s,
        "used": 0.0,
        "trials": [],
        "skipped": [],
        "chosen": None,
        "epochs": 0,
    }


def _try_candidates(context: RunContext, method: HeadMethod, found: BudgetResults) -> BudgetResults:
    """Run as many trials as time allows; return all results and the chosen layers."""
    images = len(context.inputs.data.manifest.train)
    if images < MIN_TRIAL_IMAGES:
        log.info(
            f"only the head is trained: {count(images, 'training image')} are too few for trials"
        )
    else:
        search = _Search(context, method, found)
        search.run()
        if (best := best_trial(found["trials"])) is not None:
            # Layers that gained usually gain more from longer training, as far as there is time
            trial, tried = search.prepare(search.candidates[best["layers"]]), best["epochs"]
            left, most = search.remaining(), trial.further_epochs(tried)
            fitting = [n for n in range(tried, most + 1) if trial.final_seconds(n) <= left]
            found["chosen"], found["epochs"] = best["layers"], max(fitting, default=tried)
            found["interpolation"] = best.get("interpolation", 1.0)
    chosen = found["chosen"] or "head"
    return {**found, "chosen": chosen, "used": _used_seconds(context)}


class _Search:
    """Trials of a run, one after the other, as far as its time budget allows."""

    def __init__(self, context: RunContext, method: HeadMethod, found: BudgetResults) -> None:
        self.context, self.method, self.found = context, method, found
        self.candidates = {one.layers: one for one in layers_to_try(context.best.model)}
        self.folds: dict[int, HeldOut] = {}
        self.times: dict[str, tuple[float, float]] = {}

    def run(self) -> None:
        """Run the trials; their results are added to `found` and saved."""
        self.found["skipped"] = []  # a resumed run may have time for what was skipped before
        # Every candidate is first tried for a few epochs
        tried = {trial["layers"] for trial in self.found["trials"]}
        waiting = [one for layers, one in self.candidates.items() if layers not in tried]
        for number, candidate in enumerate(waiting):
            if self.remaining() <= 0:
                break
            self.try_candidate(candidate, others=len(waiting) - number - 1)
        # Then for more, the leader first; close trials are repeated with other images held out
        first = sorted(self.found["trials"], key=_gain, reverse=True)
        for layers in dict.fromkeys(trial["layers"] for trial in first):
            self.try_longer(layers)
            trials = self.found["trials"]
            while trial := next(filter(self.has_time_to_repeat, undecided(trials)), None):
                self.repeat(trial)

    def remaining(self) -> float:
        """Return the time in seconds that trials and the final training may still take."""
        return _MARGIN * (self.found["seconds"] - _used_seconds(self.context))

    def try_candidate(self, candidate: LayerSettings, *, others: int) -> None:
        """Try a candidate for about `_FIRST_STEPS` steps, or record the time that it needs.

        The time left is divided between this candidate and the `others` that follow it, unless it
        would then not be tried at all; later candidates are slower still.
        """
        trial = self.prepare(candidate)
        left, least, after = self.remaining(), trial.epochs_of(MIN_STEPS), self.reserved()
        epochs = trial.affordable_epochs(left / (1 + others), after=after)
        if epochs < least:
            epochs = min(least, trial.affordable_epochs(left, after=after))
        if epochs < least:
            needed = _used_seconds(self.context) + trial.seconds(least) / _MARGIN
            self.found["skipped"].append({"layers": candidate.layers, "seconds_needed": needed})
            return  # the summary of the run names the budget that is needed
        self.record(trial.run(min(epochs, trial.epochs_of(_FIRST_STEPS))))

    def try_longer(self, layers: str) -> None:
        """Try a candidate for more epochs, if there is time and it is not clearly behind."""
        tried = [trial for trial in self.found["trials"] if trial["layers"] == layers]
        if len(tried) > 1 or _possible_gain(tried[0]) <= 0:  # two: the run was stopped after this
            return
        trial = self.prepare(self.candidates[layers])
        after = max(self.reserved(), self.final_seconds(tried[0]))
        epochs = trial.affordable_epochs(self.remaining(), after=after)
        if epochs >= _LONGER * tried[0]["epochs"]:
            self.record(trial.run(epochs))

    def has_time_to_repeat(self, trial: TrialResults) -> bool:
        once = trial["seconds"] / folds_of(trial)
        return once + max(self.reserved(), self.final_seconds(trial)) <= self.remaining()

    def repeat(self, before: TrialResults) -> None:
        """Repeat a trial with another fold held out, and combine the results."""
        trial = self.prepare(self.candidates[before["layers"]], fold=folds_of(before))
        place = self.found["trials"].index(before)
        self.record(pooled(before, trial.run(before["epochs"])), place)

    def final_seconds(self, trial: TrialResults) -> float:
        """Return the time in seconds of the longest final training of a trial's layers."""
        prepared = self.prepare(self.candidates[trial["layers"]])
        return prepared.final_seconds(prepared.further_epochs(trial["epochs"]))

    def prepare(self, candidate: LayerSettings, *, fold: int = 0) -> Trial:
        """Return a trial of a candidate; the times of its steps are measured only once."""
        if fold not in self.folds:
            self.folds[fold] = hold_out(self.context, self.method, fold)
        trial = Trial(
            self.context,
            candidate,
            self.folds[fold],
            seconds=self.remaining(),
            times=self.times.get(candidate.layers),
        )
        self.times[candidate.layers] = trial.times
        return trial

    def reserved(self) -> float:
        """Return the longest time in seconds that training a candidate ahead of the head takes."""
        ahead = [trial for trial in self.found["trials"] if _gain(trial) > 0]
        return max(map(self.final_seconds, ahead), default=0.0)

    def record(self, trial: TrialResults, place: int | None = None) -> None:
        """Add the results of a trial or replace those at a place, save them, and log them."""
        trials = self.found["trials"]
        if place is None:
            trials.append(trial)
        else:
            trials[place] = trial
        self.found["used"] = _used_seconds(self.context)
        write_for_resume(self.context.run, BUDGET_FILE, self.found)
        log.info(describe_trial(trial))


def _used_seconds(context: RunContext) -> float:
    """Return the time in seconds that the run has used, the same in all processes."""
    return context.inputs.data.group.broadcast(time.monotonic() - context.started)


def _gain(trial: TrialResults) -> float:
    """Return by how much a trial's held-out loss is below that of the head."""
    return trial["head_loss"] - trial["loss"]


def _is_clear(trial: TrialResults) -> bool:
    """Return whether a trial is better than the head without further confirmation."""
    return _gain(trial) > EVIDENCE * trial["error"]


def undecided(trials: Sequence[TrialResults]) -> list[TrialResults]:
    """Return the trials to repeat with other images held out, the one to repeat next first.

    A trial may be the best one if the upper end of the interval of its gain is above the lower end
    of the leader's. The leader is repeated with these trials, and as long as it is not clearly
    better than the head. Trials that have held out every image are not repeated.

    Source: the confidence bounds of LUCB, Kalyanakrishnan et al. 2012, "PAC Subset Selection in
    Stochastic Multi-armed Bandits".
    """
    leader = max(trials, key=_gain, default=None)
    if leader is None:
        return []
    least = max(0.0, _gain(leader) - EVIDENCE * leader["error"])
    possible = [trial for trial in trials if trial is not leader and _possible_gain(trial) > least]
    if possible or not _is_clear(leader):
        possible += [leader] if _possible_gain(leader) > 0 else []
    waiting = [trial for trial in possible if folds_of(trial) < TRIAL_FOLDS]
    return sorted(waiting, key=lambda trial: (folds_of(trial), -_possible_gain(trial)))


def _possible_gain(trial: TrialResults) -> float:
    """Return the upper end of the interval of a trial's gain."""
    return _gain(trial) + EVIDENCE * trial["error"]


def best_trial(trials: list[TrialResults]) -> TrialResults | None:
    """Return the trial whose layers are to be trained, or None to keep the head.

    A trial counts if it is clearly better than the head. It also counts if it is ahead, its
    accuracy is not lower, and it was either repeated or is ahead by more than `_SLIGHT_EVIDENCE`
    standard errors: trained layers gain more than a head from the images that trials hold out
    (benchmarks/notebook/fine_tuning.md). Of the trials that count, the one with the largest gain is
    returned.
    """

    def is_likely(trial: TrialResults) -> bool:
        needed = 0.0 if folds_of(trial) > 1 else _SLIGHT_EVIDENCE * trial["error"]
        return _gain(trial) > needed and trial["top1"] >= trial["head_top1"]

    better = [trial for trial in trials if _is_clear(trial) or is_likely(trial)]
    return max(better, key=_gain, default=None)
