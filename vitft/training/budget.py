"""Choice of the layers to train within a time budget, by trials on the training images.

A run with a budget first chooses its input size (see `start_trials`) and fits its head. It then
tries candidates, each of which trains further layers. A candidate is trained on four fifths of the
training images, starting from a head fitted to the same images, and is compared with this head on
the remaining fifth. While it is not clear which candidate is best, trials are repeated with other
images held out, as time allows. If a candidate is better than the head, the best one is trained
again on all training images, starting from the head of the run. Otherwise, only the head is
trained. The choice does not use validation images.
"""

import copy
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitft.config.run import Config, to_toml
from vitft.config.sections import layers_text
from vitft.data.image_table import Images
from vitft.features.folds import stratified_folds, stratified_subset
from vitft.features.head import HeadMethod, LinearHead, SolvedHead, solve_head
from vitft.messages.training import describe_trial
from vitft.metrics.calibration import fit_temperature, log_losses
from vitft.metrics.classification import are_right, fraction_right
from vitft.metrics.intervals import mean_error
from vitft.metrics.results import BudgetResults, InterpolationResults, TrialResults
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.text import count
from vitft.training.batches import StageInputs, epoch_size, training_batches
from vitft.training.best import RunningMetrics
from vitft.training.fitted import Fitted
from vitft.training.head_stage import inputs_to_head, of_last_block, read_last_block
from vitft.training.loop import with_step_defaults
from vitft.training.reports import COMPUTED_IMAGES
from vitft.training.setup import next_inputs
from vitft.training.stages import image_logits, make_trainer
from vitft.training.state import BUDGET_FILE, read_budget, untried, write_for_resume

log = logging.getLogger(__name__)


# trials: a candidate trained on most of the training images and scored on the rest ----------------

MIN_TRIAL_IMAGES = 60  # with fewer training images, too few are held out to show a gain
EVIDENCE = 2.0  # standard errors of a reduced held-out loss that need no confirmation
_TRIAL_FOLDS = 5  # of the training images; each trial holds out one
MAX_EPOCHS, MAX_STEPS = 12, 200
"""Maximum number of epochs of a trial and of the final training, or of steps if that is more."""
_FURTHER = 3.0  # the chosen layers train for at most this many times the trial's epochs
_MIN_STEPS = 80
"""Minimum number of steps of a trial. After fewer steps, layers that gain from training are often
still behind the head."""
_TIMED_STEP_IMAGES = 96  # at most, in timed steps; the first step is slower and left out
_TIMED_FRACTION = 0.05  # fraction of the remaining time after which no further step is timed
_FRACTIONS = (0.25, 0.5, 0.75, 1.0)
"""Fractions of the trained weights, the rest being those before training, among which the held-out
loss chooses (`optim.interpolation`)."""
_FORWARD = 1 / 3  # fraction of a training step's time that a forward pass takes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSettings:
    """Candidate of a run with a time budget: layers to train after the head, and their settings."""

    layers: str  # layers in the notation of `train.layers`
    optim: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)

    def config(
        self, config: Config, epochs: int, model: Model, images: int, *, fraction: float = 1.0
    ) -> Config:
        """Return the settings of a run that fits the head and then trains this candidate.

        The number of training `images` determines the batch size; `fraction` is the fraction of the
        trained weights in the saved ones.
        """
        layers = f"head,{self.layers}"
        optim: dict[str, Any] = {
            "solver": "adamw",
            "lr": None,
            "epochs": epochs,
            "interpolation": fraction,
            **self.optim,
        }
        train = {"layers": layers, "views": 0, "budget": "", **self.train}
        return replace(
            config,
            optim=with_step_defaults(replace(config.optim, **optim), layers, model, images),
            train=replace(config.train, **train),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldOut:
    """Training images, some of which are held out, and heads fitted to the other images."""

    manifest: Images  # of the training images; the held-out ones are its validation images
    last_head: LinearHead  # reads only the last block; fitted to the other images
    logits: Tensor  # (m, C) of held-out images, from a head fitted as the run does


def hold_out(fitted: Fitted, method: HeadMethod, fold: int) -> _HeldOut:
    """Hold out one of `_TRIAL_FOLDS` folds of the training images, and fit heads to the others."""
    inputs, seed = fitted.inputs, fitted.config.train.seed
    data, rows = inputs.data, inputs.data.manifest.train
    labels = data.labels(rows).cpu()
    held = stratified_folds(labels, _TRIAL_FOLDS, seed, data.group_ids(rows)) == fold
    parts = [
        row._replace(split="val" if is_held else "train")
        for row, is_held in zip(rows, held.tolist(), strict=True)
    ]

    def solve() -> tuple[LinearHead, Tensor]:
        x = inputs_to_head(fitted.model, inputs, rows)
        solved = solve_head(
            x[~held],
            labels[~held],
            method=method,
            classes=len(data.manifest.classes),
            balanced=fitted.config.balances,
            seed=seed,
        )
        logits = x[held][:, : solved.weight.shape[1]] @ solved.weight.T + solved.bias
        return solved.last, logits

    last_head, logits = data.group.main_only(solve)
    manifest = replace(data.manifest, rows=parts)
    return _HeldOut(manifest=manifest, last_head=last_head, logits=logits)


class Trial:
    """Trial of a candidate on a copy of the run's model; the original model is not changed."""

    def __init__(
        self,
        fitted: Fitted,
        candidate: LayerSettings,
        held_out: _HeldOut,
        *,
        seconds: float,
        times: tuple[float, float] | None = None,
    ) -> None:
        """Prepare a trial; `times` are the seconds per image of extraction and of steps.

        If they are not given, they are measured in a small fraction of the `seconds` that remain.
        """
        self.fitted, self.candidate, self.held_out = fitted, candidate, held_out
        self.data = replace(fitted.inputs.data, manifest=held_out.manifest)
        self.images = len(held_out.manifest.rows)
        self.times = times or self.time_steps(_TIMED_FRACTION * seconds)
        self.extraction_s, self.step_s = self.times

    def config(self, epochs: int) -> Config:
        """Return the settings of a run that trains this candidate for `epochs` epochs."""
        return self.candidate.config(
            self.fitted.config,
            epochs,
            self.fitted.model,
            self.images,
            fraction=min(_FRACTIONS),  # so that the weights before training are kept
        )

    def inputs(self, config: Config, manifest: Images, what: str) -> StageInputs:
        """Return inputs to a copy of the model that is trained on the images of `manifest`."""
        model = copy.deepcopy(self.fitted.model)
        read_last_block(model, self.held_out.last_head)
        return next_inputs(
            model,
            replace(self.fitted.inputs, data=replace(self.data, manifest=manifest)),
            config,
            self.candidate.layers,
            precision=self.fitted.precision,
            trial=what,
        )

    def time_steps(self, seconds: float) -> tuple[float, float]:
        """Measure feature extraction and training steps; return both times in seconds per image."""
        config, manifest = self.config(1), self.held_out.manifest
        labels = torch.tensor([row.label for row in manifest.rows])
        few = stratified_subset(labels, _TIMED_STEP_IMAGES, config.train.seed)
        rows = [manifest.rows[i]._replace(split="train") for i in few.tolist()]
        started = time.monotonic()
        what = f"measuring the time to train {layers_text(self.candidate.layers)}"
        inputs = self.inputs(config, replace(manifest, rows=rows), what)
        extracted = time.monotonic()
        trainer = make_trainer(config.train, config.optim, inputs, self.fitted.precision)
        times, images, group = [time.monotonic()], list[int](), self.data.group
        with console.quiet_step(what):
            for batch in training_batches(config.train, config.optim, inputs)(0, 0):
                with self.fitted.runtime.stopper.deferred():
                    images.append(trainer.step(batch).images)
                times.append(time.monotonic())
                if group.broadcast(times[-1] - started > seconds):
                    break
        first = min(1, len(images) - 1)
        step_s = (times[-1] - times[first]) / sum(images[first:])
        extraction_s = (extracted - started) / len(rows) if inputs.extractor else 0.0
        return group.broadcast((extraction_s, step_s))

    def final_seconds(self, epochs: int) -> float:
        """Return the expected time in seconds of the final training and evaluation."""
        data = self.fitted.inputs.data
        training, validation = len(data.manifest.train), len(data.manifest.val)
        evaluated = (epochs + 2) * validation + 2 * min(training, COMPUTED_IMAGES)
        return self.step_s * (epochs * training + _FORWARD * evaluated)

    def seconds(self, epochs: int, *, after: float = 0.0) -> float:
        """Return the expected time in seconds of the trial and the final training after it.

        The longer final training counts: this candidate's, or `after` for the best earlier one.
        """
        fitted = len(self.held_out.manifest.train)
        scored = len(_FRACTIONS) * (self.images - fitted)
        trial = self.step_s * (epochs * fitted + _FORWARD * scored)
        extraction = self.extraction_s * self.images
        return extraction + trial + max(after, self.final_seconds(epochs))

    def epochs_of(self, steps: int) -> int:
        """Return the number of epochs that have at least this many steps."""
        config = self.config(1)
        images = epoch_size(self.held_out.manifest.train, config.train)
        return math.ceil(steps / math.ceil(images / config.optim.images_per_step))

    def affordable_epochs(self, seconds: float, *, after: float) -> int:
        """Return the largest number of epochs that fits, possibly 0 (see the method `seconds`)."""
        epochs = range(1, self.most_epochs() + 1)
        return max((n for n in epochs if self.seconds(n, after=after) <= seconds), default=0)

    def most_epochs(self) -> int:
        """Return the maximum number of epochs of a trial and of the final training."""
        return max(MAX_EPOCHS, self.epochs_of(MAX_STEPS))

    def further_epochs(self, tried: int) -> int:
        """Return the maximum number of epochs of the final training after a trial of `tried`."""
        return max(tried, min(round(_FURTHER * tried), self.most_epochs()))

    def run(self, epochs: int) -> TrialResults:
        """Train for `epochs` epochs, and compare the model with the head on the held-out images."""
        started, config = time.monotonic(), self.config(epochs)
        stopper, group = self.fitted.runtime.stopper, self.data.group
        inputs = self.inputs(config, self.held_out.manifest, "extracting features")
        trainer = make_trainer(config.train, config.optim, inputs, self.fitted.precision)
        batches = training_batches(config.train, config.optim, inputs)
        total = epoch_size(inputs.data.manifest.train, config.train) * epochs
        label = f"trial: training {layers_text(self.candidate.layers)}"
        with stopper.deferred_to_next(when=group.size > 1), console.Progress(label, total) as shown:
            for epoch in range(epochs):
                metrics = RunningMetrics()
                for batch in batches(epoch, 0):
                    with stopper.deferred():
                        step = trainer.step(batch)
                    metrics.add(step)
                    shown.advance(step.images, loss=f"{metrics.loss:.3f}")
        logits = dict[float, Tensor]()
        with console.quiet_step("trial: evaluating on the held-out images"):
            for fraction in _FRACTIONS:
                with trainer.average.swapped_in(fraction):
                    rows = inputs.data.manifest.val
                    logits[fraction] = image_logits(inputs, rows, precision=self.fitted.precision)
        return self.results(epochs, logits, group.broadcast(time.monotonic() - started))

    def results(self, epochs: int, logits: Mapping[float, Tensor], seconds: float) -> TrialResults:
        """Return the results for logits (m, C) of held-out images, by trained fraction."""
        rows = self.held_out.manifest.val
        labels, groups = self.data.labels(rows).cpu(), self.data.group_ids(rows).numpy()
        heads, y = self.held_out.logits, labels.numpy()
        head_losses = tempered_losses(heads, y)
        tried: list[InterpolationResults] = []
        for fraction, ours in logits.items():
            losses = tempered_losses(ours, y)
            tried.append(
                {
                    "fraction": fraction,
                    "top1": fraction_right(are_right(ours, labels)),
                    "loss": float(losses.mean()),
                    "error": mean_error(head_losses - losses, groups),
                }
            )
        found: dict[str, Any] = {
            "layers": self.candidate.layers,
            "epochs": epochs,
            "folds": 1,
            "images": len(self.held_out.manifest.train),
            "held_out": len(y),
            "head_top1": fraction_right(are_right(heads, labels)),
            "head_loss": float(head_losses.mean()),
            "seconds": seconds,
            "final_seconds": self.final_seconds(epochs),
        }
        return _with_best(found, tried)


def _with_best(found: Mapping[str, Any], tried: Sequence[InterpolationResults]) -> TrialResults:
    """Return results with those of the fraction of the trained weights that has the lowest loss."""
    best = min(tried, key=lambda one: one["loss"])
    scores = {name: value for name, value in best.items() if name != "fraction"}
    more = {**scores, "interpolation": best["fraction"], "tried": list(tried)}
    return cast("TrialResults", {**found, **more})


def _folds_of(trial: TrialResults) -> int:
    """Return how many folds of the training images have been held out."""
    return trial.get("folds", 1)


def pooled(one: TrialResults, other: TrialResults) -> TrialResults:
    """Return the results of two trials of the same candidate that held out different images."""
    total = one["held_out"] + other["held_out"]

    def mean(of_one: float, of_other: float) -> float:
        return (one["held_out"] * of_one + other["held_out"] * of_other) / total

    def error(of_one: float, of_other: float) -> float:
        return math.hypot(one["held_out"] * of_one, other["held_out"] * of_other) / total

    tried: list[InterpolationResults] = [
        {
            "fraction": first["fraction"],
            "top1": mean(first["top1"], second["top1"]),
            "loss": mean(first["loss"], second["loss"]),
            "error": error(first["error"], second["error"]),
        }
        for first, second in zip(one["tried"], other["tried"], strict=True)
    ]
    found = {
        **one,
        "folds": _folds_of(one) + _folds_of(other),
        "held_out": total,
        "head_top1": mean(one["head_top1"], other["head_top1"]),
        "head_loss": mean(one["head_loss"], other["head_loss"]),
        "seconds": one["seconds"] + other["seconds"],
    }
    return _with_best(found, tried)


def tempered_losses(logits: Tensor, y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the cross-entropy (n,) of images after temperature scaling on these images."""
    values = logits.double().numpy()
    return log_losses(values / (fit_temperature(values, y) or 1.0), y)


# choice of the layers to train within a time budget, by trials on the training images -------------

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
    if model.config.depth <= 4:
        return [everything]
    return [LayerSettings(layers="blocks:4", optim=LAST_BLOCKS), everything]


def choose_layers(fitted: Fitted, solved: SolvedHead) -> None:
    """Try the candidates, and add the best one to the run's stages if it is better than the head.

    Finished trials are saved, so a resumed run does not repeat them. In config.toml, the budget is
    replaced with the chosen settings, so the file describes what is trained. `solved` is the head
    that the run has fitted.
    """
    run, best, config, group = fitted.run, fitted.best, fitted.config, fitted.runtime.group
    found = group.broadcast(read_budget(run.resume) if group.is_main else None)
    if found is None or found["chosen"] is None:
        found = found or untried(config.train.budget_s, {})
        found = _try_candidates(fitted, solved.method, found)
        write_for_resume(run, BUDGET_FILE, found)
    fitted.budget, fitted.config = found, replace(config, train=replace(config.train, budget=""))
    every = {candidate.layers: candidate for candidate in layers_to_try(best.model)}
    if found["chosen"] in every:
        fitted.config = every[found["chosen"]].config(
            config,
            found["epochs"],
            best.model,
            len(fitted.inputs.data.manifest.train),
            fraction=found.get("interpolation", 1.0),
        )
    run.write("config.toml", to_toml(fitted.config))
    if len(fitted.config.train.stages) > 1:
        # Once blocks are trained, a head does not gain from reading earlier blocks as well
        # (benchmarks/notebook/fine_tuning.md).
        fitted.inputs = of_last_block(fitted.inputs, best.model)
        read_last_block(best.model, solved.last)
        best.weights = best.copy_weights()
        if best.head_results is not None:
            best.head_results.pop("head", None)


def _try_candidates(fitted: Fitted, method: HeadMethod, found: BudgetResults) -> BudgetResults:
    """Run as many trials as time allows; return all results and the chosen layers."""
    images = len(fitted.inputs.data.manifest.train)
    if images < MIN_TRIAL_IMAGES:
        log.info(
            f"only the head is trained: {count(images, 'training image')} are too few for trials"
        )
    else:
        search = _Search(fitted, method, found)
        search.run()
        if (best := best_trial(found["trials"])) is not None:
            # Layers that gained usually gain more from longer training, as far as there is time
            trial, tried = search.prepare(search.candidates[best["layers"]]), best["epochs"]
            left, most = search.remaining(), trial.further_epochs(tried)
            fitting = [n for n in range(tried, most + 1) if trial.final_seconds(n) <= left]
            found["chosen"], found["epochs"] = best["layers"], max(fitting, default=tried)
            found["interpolation"] = best.get("interpolation", 1.0)
    chosen = found["chosen"] or "head"
    return {**found, "chosen": chosen, "used": fitted.runtime.used_s()}


class _Search:
    """Trials of a run, one after the other, as far as its time budget allows."""

    def __init__(self, fitted: Fitted, method: HeadMethod, found: BudgetResults) -> None:
        self.fitted, self.method, self.found = fitted, method, found
        self.candidates = {one.layers: one for one in layers_to_try(fitted.model)}
        self.folds: dict[int, _HeldOut] = {}
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
        return _MARGIN * (self.found["seconds"] - self.fitted.runtime.used_s())

    def try_candidate(self, candidate: LayerSettings, *, others: int) -> None:
        """Try a candidate for about `_FIRST_STEPS` steps, or record the time that it needs.

        The time left is divided between this candidate and the `others` that follow it, unless it
        would then not be tried at all; later candidates are slower still.
        """
        trial = self.prepare(candidate)
        left, least, after = self.remaining(), trial.epochs_of(_MIN_STEPS), self.reserved()
        epochs = trial.affordable_epochs(left / (1 + others), after=after)
        if epochs < least:
            epochs = min(least, trial.affordable_epochs(left, after=after))
        if epochs < least:
            needed = self.fitted.runtime.used_s() + trial.seconds(least) / _MARGIN
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
        once = trial["seconds"] / _folds_of(trial)
        return once + max(self.reserved(), self.final_seconds(trial)) <= self.remaining()

    def repeat(self, before: TrialResults) -> None:
        """Repeat a trial with another fold held out, and combine the results."""
        trial = self.prepare(self.candidates[before["layers"]], fold=_folds_of(before))
        place = self.found["trials"].index(before)
        self.record(pooled(before, trial.run(before["epochs"])), place)

    def final_seconds(self, trial: TrialResults) -> float:
        """Return the time in seconds of the longest final training of a trial's layers."""
        prepared = self.prepare(self.candidates[trial["layers"]])
        return prepared.final_seconds(prepared.further_epochs(trial["epochs"]))

    def prepare(self, candidate: LayerSettings, *, fold: int = 0) -> Trial:
        """Return a trial of a candidate; the times of its steps are measured only once."""
        if fold not in self.folds:
            self.folds[fold] = hold_out(self.fitted, self.method, fold)
        trial = Trial(
            self.fitted,
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
        self.found["used"] = self.fitted.runtime.used_s()
        write_for_resume(self.fitted.run, BUDGET_FILE, self.found)
        log.info(describe_trial(trial))


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
    waiting = [trial for trial in possible if _folds_of(trial) < _TRIAL_FOLDS]
    return sorted(waiting, key=lambda trial: (_folds_of(trial), -_possible_gain(trial)))


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
        needed = 0.0 if _folds_of(trial) > 1 else _SLIGHT_EVIDENCE * trial["error"]
        return _gain(trial) > needed and trial["top1"] >= trial["head_top1"]

    better = [trial for trial in trials if _is_clear(trial) or is_likely(trial)]
    return max(better, key=_gain, default=None)
