"""Training stage that takes resumable optimiser steps, and the logits of its model."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vitft.config.sections import OptimSpec, TrainSpec
from vitft.data.augment import batch_augmentation
from vitft.data.image_table import Row
from vitft.messages.training import BEST_RULE, EPOCH_COLUMNS, epoch_row, stopped_early
from vitft.metrics.classification import TrainingLoss, classification_metrics
from vitft.metrics.results import LogLine, Metrics
from vitft.system import console
from vitft.system.device import one_thread
from vitft.system.errors import ResourceError
from vitft.system.rundir import read_run_lines
from vitft.system.text import duration, percent
from vitft.training.batches import (
    EVAL_BATCH,
    StageInputs,
    epoch_size,
    evaluation_batches,
    training_batches,
)
from vitft.training.best import RunningMetrics
from vitft.training.distributed import shard_module, unshard_into
from vitft.training.fitted import Fitted
from vitft.training.loop import StepResult, Trainer, batch_slices, diverged, predict_logits
from vitft.training.state import State, StateFacts, load_trainer_state, save_state, trainer_state

log = logging.getLogger(__name__)

_EPOCH_FIGURES = frozenset({"epoch", "train_loss", "train_top1", "val_loss", "val_top1"})
"""Keys that a line of metrics.jsonl needs to be shown as an epoch."""
SAVE_INTERVAL_S = 30.0  # minimum time in seconds between two saved states
SAVE_FRACTION = 0.05  # maximum fraction of the running time spent on saving states
_LAST_SAVE_S = 3.0
"""Minimum time in seconds between the state saved last and one at the end of a stage."""


class StepStage:
    """Resumable training stage that runs optimiser steps; `number` is its index, starting at 0."""

    def __init__(self, fitted: Fitted, number: int) -> None:
        config, inputs = fitted.config, fitted.inputs
        self.fitted, self.config, self.inputs, self.number = fitted, config, inputs, number
        self.stopper, self.trackers = fitted.runtime.stopper, fitted.runtime.trackers
        self.data = inputs.data
        self.precision = "fp32" if inputs.cut.pooled else fitted.precision
        self.trainer = make_trainer(config.train, config.optim, inputs, self.precision)
        self.metrics = RunningMetrics()
        self.epochs = 0  # number of finished and validated epochs
        stepping = [s for s in config.train.stages[:number] if not config.solves(s)]
        self.steps_before = len(stepping) * self.trainer.total_steps
        """Number of steps that the earlier stages take if none of them stops early."""
        self.saved_at, self.save_s = time.monotonic(), 0.0
        self.epoch_started = self.saved_at
        self.has_header = False  # whether the header of the table of epochs has been logged

    def run(self, saved: State | None = None) -> None:
        """Train to the end of the stage, from its start or a saved state; if stopped, save it."""
        if saved is not None:
            facts = cast("StateFacts", saved.facts)
            load_trainer_state(self.trainer, saved.tensors, facts)
            self.metrics, self.epochs = facts["tally"], facts["epochs"]
            self.fitted.run.cut_log(facts["log_bytes"])
            self.log_earlier_epochs()
        optim, is_shared = self.config.optim, self.data.group.size > 1
        images = epoch_size(self.data.manifest.train, self.config.train)
        epochs, steps = divmod(self.trainer.steps, self.trainer.steps_per_epoch)
        done = epochs * images + steps * optim.images_per_step  # only the last batch is smaller
        with (
            one_thread(when=self.inputs.cut.pooled),
            console.Progress("training", images * optim.epochs, done=done) as self.progress,
        ):
            try:
                with self.stopper.deferred_to_next(when=is_shared):
                    if saved is None or not self.is_out_of_patience():
                        self.take_steps()
                    with self.stopper.deferred():  # the evaluation that follows may be interrupted
                        self.save_if_due(max(_LAST_SAVE_S, self.save_s))
            except (KeyboardInterrupt, ResourceError) as end:
                # After a second signal, a step may be incomplete; after a process is lost, parts
                # of sharded weights are missing. States saved earlier are complete.
                incomplete = isinstance(end, ResourceError) and self.trainer.sharded
                if not (self.stopper.is_urgent or incomplete):
                    with self.stopper.deferred_locally():
                        self.save()
                raise

    def take_steps(self) -> None:
        """Train for the rest of the first epoch and the remaining ones, or until an early stop."""
        batches = training_batches(self.config.train, self.config.optim, self.inputs)
        for epoch in range(self.epochs, self.config.optim.epochs):
            self.epoch_started = time.monotonic()
            done = self.trainer.steps - epoch * self.trainer.steps_per_epoch
            for batch in batches(epoch, done):
                with self.stopper.deferred():  # a signal waits for the end of the step
                    self.on_step(self.trainer.step(batch))
            self.on_epoch(epoch)
            if self.stops_early() or self.is_last_in_budget():
                return

    def is_last_in_budget(self) -> bool:
        """Return whether another epoch would exceed the time budget; if so, record the epochs."""
        budget = self.fitted.budget
        if budget is None or self.epochs == self.config.optim.epochs:
            return False
        now = time.monotonic()
        ends = now + 2 * (now - self.epoch_started)  # the final evaluation takes up to an epoch
        is_late = ends > self.fitted.runtime.started + budget["seconds"]
        if not self.data.group.broadcast(is_late):
            return False
        self.fitted.budget = {**budget, "epochs": self.epochs}
        log.info(
            f"stopped after {self.epochs} of {self.config.optim.epochs} epochs: training is slower "
            "than expected, and another epoch would exceed the time budget"
        )
        return True

    def on_step(self, step: StepResult) -> None:
        """Log a step, and save the state if a save is due."""
        self.metrics.add(step)
        self.progress.advance(
            step.images, loss=f"{self.metrics.loss:.3f}", accuracy=percent(self.metrics.top1)
        )
        values = {"loss": step.loss, "lr": step.lr}
        self.trackers.log_step(self.steps_before + step.step + 1, values)
        self.save_if_due(max(SAVE_INTERVAL_S, self.save_s / SAVE_FRACTION))

    def save_if_due(self, seconds: float) -> None:
        """Save the state if more than `seconds` have passed since it was saved or loaded."""
        elapsed, group = time.monotonic() - self.saved_at, self.data.group
        is_due = group.is_main and elapsed > seconds
        if self.trainer.sharded:  # every rank must take part in saving
            is_due = bool(group.all_reduce_max(is_due))
        if is_due:
            self.save()

    def on_epoch(self, epoch: int) -> None:
        """Validate, keep the best weights and log the metrics of an epoch."""
        fitted, metrics = self.fitted, self.metrics
        with self.trainer.average.swapped_in():
            if self.trainer.sharded:
                unshard_into(self.inputs.cut.suffix, self.trainer.model)
            found = validate(self.inputs, precision=self.precision)
            if not math.isfinite(found["loss"]):
                clause = f"the validation loss is {found['loss']}"
                raise diverged(metrics.steps - 1, metrics.lr, clause)
            with self.stopper.deferred():
                entry = {
                    "epoch": epoch + 1,
                    "lr": metrics.lr,
                    "first_loss": metrics.first_loss,
                    "train_loss": metrics.loss,
                    "train_top1": metrics.top1,
                    "val_loss": found["loss"],
                    "val_top1": found["top1"],
                }
                fitted.run.log(entry)  # if this fails, the epoch does not count
                fitted.best.update(found)
                self.log_epoch(entry, duration(time.monotonic() - self.epoch_started))
                self.metrics = RunningMetrics(metrics.first_loss, metrics.steps)
                self.epochs = epoch + 1
                for logged in ("lr", "first_loss"):  # logged by `log_step`
                    del entry[logged]
                self.trackers.log_epoch(self.steps_before + self.trainer.steps, entry)

    def is_out_of_patience(self) -> bool:
        """Return whether there was no improvement in the last `optim.patience` epochs."""
        return 0 < self.config.optim.patience <= self.fitted.best.epochs_since_best

    def stops_early(self) -> bool:
        """Return whether there is no patience for another epoch; if there is one left, log this."""
        optim, stops = self.config.optim, self.is_out_of_patience()
        if stops and self.epochs < optim.epochs:
            best = self.fitted.best.results
            log.info(stopped_early(self.epochs, optim.epochs, optim.patience, best))
        return stops

    def log_earlier_epochs(self) -> None:
        """Log the epochs of this stage that were finished before the run was resumed."""
        lines = read_run_lines(self.fitted.run.path / "metrics.jsonl", LogLine)
        entries = [line for line in lines if line.keys() >= _EPOCH_FIGURES]
        for entry in entries[max(0, len(entries) - self.epochs) :]:
            self.log_epoch(entry, "earlier")

    def log_epoch(self, entry: Mapping[str, Any], when: str) -> None:
        """Log the metrics of an epoch as a table row; `when` is its duration or "earlier"."""
        if not self.has_header:
            if self.fitted.best.selects:
                log.debug(f"best on the validation images so far: {BEST_RULE}")
            log.info(EPOCH_COLUMNS)
            self.has_header = True
        best = self.fitted.best
        is_best = best.selects and best.epochs_since_best == 0 and when != "earlier"
        log.info(epoch_row(entry, self.config.optim.epochs, when, is_best=is_best))

    def save(self) -> None:
        """Save the training state; if the model is sharded, every rank must call this method."""
        started = time.monotonic()
        fitted, best, step = self.fitted, self.fitted.best, self.trainer.steps
        if not (self.data.group.is_main or self.trainer.sharded):
            return
        tensors, trainer_facts = trainer_state(self.trainer)
        if not self.data.group.is_main:
            return
        self.trackers.flush()
        facts: StateFacts = {
            **trainer_facts,
            "stage": self.number,
            "epochs": self.epochs,
            "tally": self.metrics,
            "best": best.facts(),
            "log_bytes": fitted.run.log_size(),
            "best_file": best.file,
        }
        unsaved = None if best.file or not best.epochs else best.weights
        state = State(tensors, facts)
        best.file = save_state(fitted.run.resume, self.number, step, state, unsaved)
        self.saved_at = time.monotonic()
        self.save_s = self.saved_at - started


def make_trainer(
    train: TrainSpec, optim: OptimSpec, inputs: StageInputs, precision: str
) -> Trainer:
    """Return the trainer for a stage."""
    data, cut, weights = inputs.data, inputs.cut, None
    if optim.class_weights:  # factors that balance the classes; the mean over the images is 1
        labels = data.labels(data.manifest.train)
        counts = torch.bincount(labels, minlength=len(data.manifest.classes))
        weights = len(labels) / (counts * len(counts)).float()
    sharded = train.shard and data.group.size > 1 and not cut.pooled
    classes, reads_pixels = len(data.manifest.outputs), cut.prefix is None
    return Trainer(
        shard_module(cut.suffix, data.group) if sharded else cut.suffix,
        optim,
        steps_per_epoch=len(
            batch_slices(epoch_size(data.manifest.train, train), optim.images_per_step, cut.suffix)
        ),
        precision=precision,
        seed=train.seed,
        mix=batch_augmentation(train, classes) if reads_pixels else None,
        loss=TrainingLoss(class_weights=weights, several=bool(data.manifest.labels)),
        compiled=train.compile,
        group=data.group,
        sharded=sharded,
    )


def validate(inputs: StageInputs, *, precision: str = "fp32") -> Metrics:
    """Return the metrics of the trained layers on the validation images."""
    data, rows = inputs.data, inputs.data.manifest.val
    logits = image_logits(inputs, rows, precision=precision)
    labels, groups = data.labels(rows).cpu(), data.user_groups(rows)
    return classification_metrics(logits, labels, data.manifest.outputs, groups=groups)


def image_logits(inputs: StageInputs, rows: Sequence[Row], *, precision: str = "fp32") -> Tensor:
    """Return the logits (n, C) of images, in the order of `rows`."""
    data = inputs.data
    unit = EVAL_BATCH * 8 if inputs.cut.pooled else 1  # if pooled: same batches as with one process
    batches = evaluation_batches(inputs, data.group.shard(rows, unit))
    logits, _ = predict_logits(
        inputs.cut.suffix, batches, device=data.device, precision=precision, limit=inputs.limit
    )
    return data.group.all_gather(logits, len(rows), unit)
