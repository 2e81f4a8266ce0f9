"""The stages of a run: a head that is solved, or optimiser steps that can be resumed."""

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitft.config.run import Config
from vitft.data.augment import batch_augmentation
from vitft.data.transforms import View, eval_view
from vitft.features.cut import cut_model
from vitft.features.folds import CV_FOLDS
from vitft.features.head import HeadMethod, LinearHead, SolvedHead, cross_validate, solve_head
from vitft.features.label_errors import nearest_neighbours
from vitft.features.logistic import threads_for
from vitft.messages import results as messages
from vitft.metrics.calibration import MAX_LOGITS
from vitft.metrics.classification import (
    TrainingLoss,
    are_right,
    classification_metrics,
    fraction_right,
    mean_loss,
)
from vitft.metrics.results import (
    CrossValidation,
    HeadChoice,
    LogLine,
    Metrics,
    SolvedHeadResults,
)
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.device import one_thread, to_device
from vitft.system.errors import ResourceError
from vitft.system.rundir import read_run_lines
from vitft.system.text import count, duration, percent
from vitft.training.batches import (
    Dataset,
    StageInputs,
    are_first,
    epoch_size,
    training_batches,
    training_views,
)
from vitft.training.loop import RunningMetrics, StepResult, Trainer, batch_slices, diverged
from vitft.training.record import Fitted, ScoredImages, State

log = logging.getLogger(__name__)


# a linear head, fitted without a training loop and cross-validated --------------------------------

_GPU_COST = 10**9
"""Multiplications per step above which a head is solved on the GPU; estimated, not measured."""
_GPU_ROOM_BYTES = 2**31  # memory for logits and for other tensors of the solver


def solve_head_stage(fitted: Fitted) -> SolvedHead:
    """Fit the linear head, validate it, and score all images by cross-validation."""
    best, model, config, inputs = fitted.best, fitted.model, fitted.config, fitted.inputs
    data, group = inputs.data, inputs.data.group
    views = [eval_view(data.transform)]
    if config.solvable:
        views = training_views(data.transform, config.train, config.optim)
    features = functools.cache(lambda: _head_features(model, inputs, views))  # for the main process

    def solve() -> SolvedHead:
        training, extractor = features()[0], inputs.extractor
        return solve_head(
            training,
            torch.cat([data.labels(data.manifest.train).cpu()] * len(views)),
            classes=len(data.manifest.outputs.classes),
            l2=config.optim.l2,
            balanced=config.balances,
            seed=config.train.seed,
            views=len(views),
            groups=data.training_group_ids(),
            read=training.shape[1] if extractor is None else extractor.prefix.leading,
            centre=fitted.centre,
        )

    images, classes = len(views) * len(data.manifest.train), len(data.manifest.outputs.classes)
    with (
        fitted.runtime.stopper.deferred_to_next(when=group.size > 1),  # none waits for another
        threads_for(images, model.feature_size, heads=CV_FOLDS * classes),
    ):
        with console.quiet_step("fitting the head"):
            solved = group.main_only(solve)
        if not solved.method.reads_several:
            fitted.inputs = of_last_block(fitted.inputs, model)
        _set_linear(model.head, solved.weight, solved.bias)
        if model.last_head is not None:
            _set_linear(model.last_head, *(part * solved.method.alone for part in solved.last))
        for tried in solved.path:
            fitted.run.log(tried)
        best.update(validate(fitted.inputs))
        with console.quiet_step("cross-validating the head"):
            results = group.main_only(lambda: _score(fitted, features(), solved))
            best.facts["extra"] = results
    if solved.candidates:
        log.debug(_describe_head(results["head"]))
    return solved


def _describe_head(choice: HeadChoice) -> str:
    """Return which blocks a head uses, and the cross-validated scores that decided it."""
    last = choice["candidates"][0]
    chosen = next(one for one in choice["candidates"] if one["reads"] == choice["reads"])
    own, other = percent(chosen["cv_top1"]), percent(last["cv_top1"])
    if chosen is last:
        return f"the head uses the last block (cross-validated on the training images: {own})"
    return (
        f"the head uses the last {count(choice['blocks'], 'block')}: on the training images, the "
        f"cross-validated loss is {chosen['cv_loss']:.3f} (accuracy {own}), with the last block "
        f"alone {last['cv_loss']:.3f} ({other})"
    )


def _score(
    fitted: Fitted, features: tuple[Tensor, Tensor, Tensor], solved: SolvedHead
) -> SolvedHeadResults:
    """Score the solved head, and score all images by cross-validation, for later steps too."""
    data, read, (training, validation, distinct) = fitted.inputs.data, solved.method.read, features
    labels, classes = data.labels(data.manifest.train).cpu(), data.manifest.outputs.classes
    plain, held_out = training[: len(labels), :read], validation[:, :read]
    votes = nearest_neighbours(plain, labels, held_out, classes=len(classes))
    truth = data.labels(data.validated).cpu()
    zeros = torch.zeros(min(len(labels), max(1, MAX_LOGITS // len(classes))), len(classes))
    results: SolvedHeadResults = {
        "first_loss": sum(
            mean_loss(zeros[: len(some)], some).item() * (len(some) / len(labels))
            for some in labels.split(len(zeros))
        ),
        "l2": solved.l2,
        "knn_top1": fraction_right(are_right(votes - 0.5 * (truth.ndim == 2), truth)),
    }
    if isinstance(solved.method.l2, tuple):
        results["label_l2"] = list(solved.method.l2)
    cross_validation, fitted.scored = _cross_validate_images(
        data, distinct, fitted.config, solved.method
    )
    if cross_validation is not None:
        results["cross_validation"] = cross_validation
        if lacking := len(classes) - cross_validation["classes"]:
            log.info(
                f"cross-validation does not count {count(lacking, 'class', 'classes')}, whose "
                "images are in one group or copies of each other"
            )
    if solved.candidates:
        # Which blocks the head reads, and the scores that led to this choice
        weight, bias = solved.last
        right = (held_out @ weight.to(held_out).T + bias.to(held_out)).argmax(dim=1).cpu() == truth
        blocks = fitted.model.config.read_blocks
        results["head"] = {
            "blocks": blocks,
            "reads": solved.method.name,
            "candidates": list(solved.candidates),
            "last_block_top1": fraction_right(right) if blocks > 1 else None,
        }
    return results


def of_last_block(inputs: StageInputs, model: Model) -> StageInputs:
    """Make the head read only the last block, and return inputs with the features of that block."""
    if model.config.read_blocks == 1 or inputs.extractor is None:
        return inputs
    extractor = inputs.extractor.of_last_block()
    model.read_last_blocks(1)
    return replace(inputs, extractor=extractor, cut=cut_model(model, "head"))


def _cross_validate_images(
    data: Dataset, distinct: Tensor, config: Config, method: HeadMethod
) -> tuple[CrossValidation | None, ScoredImages]:
    """Cross-validate a method of fitting the head, given features (n, D) of the distinct images."""
    # No head is fitted to validation images that the data names: they may come from elsewhere
    apart = torch.tensor([row.split == "val" for row in data.distinct])
    scores = cross_validate(
        distinct,
        data.labels(data.distinct).cpu(),
        data.manifest.outputs,
        method=method,
        balanced=config.balances,
        seed=config.train.seed,
        groups=data.group_ids(data.distinct),
        units=data.units(data.distinct),
        apart=apart if data.own_split else None,
        once=torch.from_numpy(are_first(data.distinct, data.copies)),
    )
    results, held_out = scores or (None, None)
    if not _stands_for_new_images(data, config):
        results = None
    features = distinct[:, : method.read].cpu()
    return results, ScoredImages(features=features, held_out=held_out)


def _stands_for_new_images(data: Dataset, config: Config) -> bool:
    """Return whether cross-validation says something about the answers to new images.

    It does not if the weights have seen the images, if the model is not fitted as its heads are, or
    if the question is how good the answers to later images are: its folds mix the dates.
    """
    is_new = data.seen.count(data.distinct) == 0
    return is_new and not config.train.views and config.data.split != "time"


def representative_scores(fitted: Fitted) -> ScoredImages | None:
    """Return cross-validated logits that represent the model's logits on new images, or None.

    They do if the best head was also solved, without augmented views. Only the main process has
    them. A run resumed after the first stage computes them again from its inputs.
    """
    config, best, first = fitted.config, fitted.best, fitted.start.inputs
    is_first = config.solves(config.train.stages[0]) and best.results["best_epoch"] == 1
    solved = best.facts["extra"] if is_first else None
    if solved is None or not _stands_for_new_images(first.data, config):
        return None
    if fitted.scored is None and first.data.group.is_main:
        _, _, distinct = _head_features(best.model, first, [eval_view(first.data.transform)])
        l2 = tuple(solved.get("label_l2", ())) or solved["l2"]
        method = HeadMethod(l2=l2, read=distinct.shape[1], centre=fitted.centre)
        _, fitted.scored = _cross_validate_images(first.data, distinct, config, method)
    return fitted.scored


def _head_features(
    model: Model, inputs: StageInputs, views: Sequence[View]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs to the head: training (views * n, D), by view, validation, and distinct.

    They are on the GPU if a head is solved faster there and they fit into its memory.
    """
    data = inputs.data
    parts = [inputs.inputs_to_head(model, data.manifest.train, view) for view in views]
    found = [torch.cat(parts) if len(parts) > 1 else parts[0]]  # a single part is not copied
    for rows in (data.validated, data.distinct):
        found.append(inputs.inputs_to_head(model, rows))
    heads = CV_FOLDS * len(data.manifest.outputs.classes)
    if data.device.type == "cuda" and found[0].numel() * heads > _GPU_COST:
        room = torch.cuda.mem_get_info(data.device)[0] - _GPU_ROOM_BYTES
        if 2 * sum(x.nbytes for x in found) < room:  # the features, and a standardised copy
            found = [to_device(x, data.device) for x in found]
    return found[0], found[1], found[2]


def read_last_block(model: Model, head: LinearHead) -> None:
    """Replace the head of a model with one that reads the last block only."""
    model.read_last_blocks(1)
    _set_linear(model.head, *head)


@torch.no_grad()
def _set_linear(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Copy a weight (C, D) and a bias (C,) into a linear layer."""
    assert isinstance(layer, nn.Linear)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


# optimiser steps that can be resumed --------------------------------------------------------------

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
        self.trainer = make_trainer(config, inputs, self.precision)
        self.metrics = RunningMetrics()
        self.unread: Callable[[], StepResult] | None = None  # metrics of the last step, if not read
        self.epochs = 0  # number of finished and validated epochs
        # The earlier stages take this many steps if none of them stops early
        stepping = [s for s in config.train.stages[:number] if not config.solves(s)]
        self.steps_before = len(stepping) * self.trainer.total_steps
        self.saved_at, self.save_s = time.monotonic(), 0.0
        self.epoch_s = 0.0  # duration of the last epoch; 0 before this process has finished one

    def run(self, saved: State | None = None) -> None:
        """Train to the end of the stage, from its start or a saved state; if stopped, save it."""
        optim, run = self.config.optim, self.fitted.run
        if saved is not None:
            facts = saved.facts
            self.trainer.load_state(saved.tensors, facts)
            self.metrics, self.epochs = facts["tally"], facts["epochs"]
            run.cut_log(facts["log_bytes"])
            lines = read_run_lines(run.path / "metrics.jsonl", LogLine)
            entries = [line for line in lines if line.keys() >= _EPOCH_FIGURES]
            for entry in entries[max(0, len(entries) - self.epochs) :]:
                self.log_epoch(entry, "earlier")
        images = epoch_size([row.label for row in self.data.manifest.train], self.config.train)
        epochs, steps = divmod(self.trainer.steps, self.trainer.steps_per_epoch)
        done = epochs * images + steps * optim.images_per_step  # only the last batch is smaller
        with (
            one_thread(when=self.inputs.cut.pooled),
            console.Progress("training", images * optim.epochs, done=done) as self.progress,
        ):
            try:
                with self.stopper.deferred_to_next(when=self.data.group.size > 1):
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
            if epoch and self.ends_early():
                return
            started, first = time.monotonic(), self.trainer.steps
            for batch in batches(epoch, first - epoch * self.trainer.steps_per_epoch):
                with self.stopper.deferred():  # a signal waits for the end of the step
                    read = self.trainer.start(batch)
                    self.read_step()  # the one before, while a GPU computes this one
                    self.unread = read
                    self.save_if_due(max(SAVE_INTERVAL_S, self.save_s / SAVE_FRACTION))
            if self.trainer.steps > first:  # in every process; one that saved has read its step
                with self.stopper.deferred():
                    self.read_step()
            self.on_epoch(epoch, started)

    def ends_early(self) -> bool:
        """Return whether patience or the time budget ends the stage before its last epoch."""
        optim, best, budget = self.config.optim, self.fitted.best, self.fitted.budget
        if 0 < optim.patience <= best.facts["since"]:
            log.info(
                messages.stopped_early(self.epochs, optim.epochs, optim.patience, best.results)
            )
            return True
        if budget is None or not self.epoch_s:
            return False
        ends = time.monotonic() + 2 * self.epoch_s  # the final evaluation takes up to an epoch
        is_late = ends > self.fitted.runtime.started + budget["seconds"]
        if self.data.group.broadcast(is_late):
            self.fitted.budget = {**budget, "epochs": self.epochs}
            log.info(
                f"stopped after {self.epochs} of {optim.epochs} epochs: training is slower than "
                "expected, and another epoch would exceed the time budget"
            )
        return self.fitted.budget is not budget

    def read_step(self) -> None:
        """Wait for the metrics of the last step, if they have not been read, and log them."""
        if self.unread is not None:
            read, self.unread = self.unread, None
            self.on_step(read())

    def on_step(self, step: StepResult) -> None:
        """Log a step."""
        self.metrics.add(step)
        self.progress.advance(
            step.images, loss=f"{self.metrics.loss:.3f}", accuracy=percent(self.metrics.top1)
        )
        values = {"loss": step.loss, "lr": step.lr}
        self.trackers.log_step(self.steps_before + step.step + 1, values)

    def save_if_due(self, seconds: float) -> None:
        """Save the state if more than `seconds` have passed since it was saved or loaded."""
        elapsed, group = time.monotonic() - self.saved_at, self.data.group
        is_due = group.is_main and elapsed > seconds
        if self.trainer.sharded:  # every rank must take part in saving
            is_due = bool(group.all_reduce_max(is_due))
        if is_due:
            self.save()

    def on_epoch(self, epoch: int, started: float) -> None:
        """Validate, keep the best weights and log the metrics of an epoch."""
        metrics = self.metrics
        with self.trainer.evaluated():
            found = validate(self.inputs, precision=self.precision)
            if not math.isfinite(found["loss"]):
                clause = f"the validation loss is {found['loss']}"
                raise diverged(metrics.steps - 1, metrics.lr, clause)
            with self.stopper.deferred():
                number, of_steps = epoch + 1, {"lr": metrics.lr, "first_loss": metrics.first_loss}
                entry = {
                    "epoch": number,
                    "train_loss": metrics.loss,
                    "train_top1": metrics.top1,
                    "val_loss": found["loss"],
                    "val_top1": found["top1"],
                }
                # If this fails, the epoch does not count
                self.fitted.run.log({"epoch": number, **of_steps, **entry})
                self.fitted.best.update(found)
                self.epoch_s, self.epochs = time.monotonic() - started, number
                self.log_epoch(entry, duration(self.epoch_s))
                self.metrics = RunningMetrics(metrics.first_loss, metrics.steps)
                self.trackers.log_epoch(self.steps_before + self.trainer.steps, entry)

    def log_epoch(self, entry: Mapping[str, Any], when: str) -> None:
        """Log the metrics of an epoch as a table row; `when` is its duration or "earlier"."""
        best, is_first = self.fitted.best, entry["epoch"] == 1
        if is_first and best.selects:
            log.debug(f"best on the validation images so far: {messages.BEST_RULE}")
        if is_first:
            log.info(messages.EPOCH_COLUMNS)
        is_best = best.selects and best.facts["since"] == 0 and when != "earlier"
        number = f"{entry['epoch']:.0f}/{self.config.optim.epochs}"
        log.info(
            f"{number:>9}  {entry['train_loss']:>10.4f}  {percent(entry['train_top1']):>14}  "
            f"{entry['val_loss']:>9.4f}  {percent(entry['val_top1']):>13}  {when:>8}"
            f"{'  best' * is_best}"
        )

    def save(self) -> None:
        """Save the training state; if the model is sharded, every rank must call this method."""
        self.read_step()
        started, is_main = time.monotonic(), self.data.group.is_main
        if not (is_main or self.trainer.sharded):
            return
        tensors, facts = self.trainer.state()
        if not is_main:
            return
        self.trackers.flush()
        own = {"stage": self.number, "epochs": self.epochs, "tally": self.metrics}
        self.fitted.save_state(tensors, {**facts, **own})
        self.saved_at = time.monotonic()
        self.save_s = self.saved_at - started


def make_trainer(config: Config, inputs: StageInputs, precision: str) -> Trainer:
    """Return the trainer for a stage."""
    train, optim, data, cut, weights = config.train, config.optim, inputs.data, inputs.cut, None
    if optim.class_weights:  # factors that balance the classes; the mean over the images is 1
        labels = data.labels(data.manifest.train)
        counts = torch.bincount(labels, minlength=len(data.manifest.classes))
        weights = len(labels) / (counts * len(counts)).float()
    images = epoch_size([row.label for row in data.manifest.train], train)
    sharded = train.shard and data.group.size > 1 and not cut.pooled
    classes, reads_pixels = len(data.manifest.outputs.classes), cut.prefix is None
    return Trainer(
        cut.suffix,
        optim,
        steps_per_epoch=len(batch_slices(images, optim.images_per_step, cut.suffix)),
        precision=precision,
        seed=train.seed,
        mix=batch_augmentation(train, classes) if reads_pixels else None,
        loss=TrainingLoss(class_weights=weights, several=data.manifest.outputs.several),
        compiled=train.compile,
        group=data.group,
        sharded=sharded,
    )


def validate(inputs: StageInputs, *, precision: str = "fp32") -> Metrics:
    """Return the metrics of the trained layers on the validation images."""
    data, rows = inputs.data, inputs.data.validated
    logits = inputs.logits(rows, precision=precision)
    labels, groups = data.labels(rows).cpu(), data.units(rows)
    metrics = classification_metrics(logits, labels, data.manifest.outputs, groups=groups)
    return {**metrics, **data.known_to_weights(rows)}
