"""Trials: a candidate trained on most of the training images and scored on the rest."""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitft.config.run import Config
from vitft.config.sections import layers_text
from vitft.data.split import Manifest
from vitft.data.transforms import eval_view
from vitft.features.folds import stratified_folds, stratified_subset
from vitft.features.head import LinearHead, solve_by_method
from vitft.features.mixture import HeadMethod
from vitft.features.pipeline import build_pipeline
from vitft.metrics.calibration import fit_temperature, log_losses
from vitft.metrics.intervals import mean_error
from vitft.metrics.results import InterpolationResults, TrialResults
from vitft.metrics.targets import are_right, fraction_right
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.training.batches import StageInputs, epoch_size, training_batches
from vitft.training.best import RunningMetrics
from vitft.training.head_stage import inputs_to_head, read_last_block
from vitft.training.loop import with_step_defaults
from vitft.training.reference import COMPUTED_IMAGES
from vitft.training.setup import compute_views, with_stage_data
from vitft.training.stages import RunContext, make_trainer, validation_logits

MIN_TRIAL_IMAGES = 60  # with fewer training images, too few are held out to show a gain
EVIDENCE = 2.0  # standard errors of a reduced held-out loss that need no confirmation
TRIAL_FOLDS = 5  # of the training images; each trial holds out one
MAX_EPOCHS, MAX_STEPS = 12, 200
"""Maximum number of epochs of a trial and of the final training, or of steps if that is more."""
_FURTHER = 3.0  # the chosen layers train for at most this many times the trial's epochs
MIN_STEPS = 80
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
    optim: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    train: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def config(
        self, config: Config, epochs: int, model: Model, images: int, *, fraction: float = 1.0
    ) -> Config:
        """Return the settings of a run that fits the head and then trains this candidate.

        The number of training `images` determines the batch size; `fraction` is that of the trained
        weights in those that are saved.
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
class HeldOut:
    """Training images, some of which are held out, and heads fitted to the other images."""

    manifest: Manifest  # of the training images; the held-out ones are its validation images
    last_head: LinearHead  # reads only the last block; fitted to the other images
    logits: Tensor  # (m, C) of held-out images, from a head fitted as the run does


def hold_out(context: RunContext, method: HeadMethod, fold: int) -> HeldOut:
    """Hold out one of `TRIAL_FOLDS` folds of the training images, and fit heads to the others."""
    inputs, seed = context.inputs, context.config.train.seed
    data, rows = inputs.data, inputs.data.manifest.train
    labels = data.labels(rows).cpu()
    held = stratified_folds(labels, TRIAL_FOLDS, seed, data.group_ids(rows)) == fold
    parts = [
        replace(row, split="val" if is_held else "train")
        for row, is_held in zip(rows, held.tolist(), strict=True)
    ]

    def solve() -> tuple[LinearHead, Tensor]:
        x = inputs_to_head(context.best.model, inputs, rows)
        (weight, bias), last_head = solve_by_method(
            x[~held],
            labels[~held],
            method=method,
            classes=len(data.manifest.classes),
            balanced=context.config.balances,
        )
        return last_head, x[held][:, : weight.shape[1]] @ weight.T + bias

    last_head, logits = data.group.main_only(solve)
    manifest = replace(data.manifest, rows=tuple(parts))
    return HeldOut(manifest=manifest, last_head=last_head, logits=logits)


class Trial:
    """Trial of a candidate on a copy of the run's model; the original model is not changed."""

    def __init__(
        self,
        context: RunContext,
        candidate: LayerSettings,
        held_out: HeldOut,
        *,
        seconds: float,
        times: tuple[float, float] | None = None,
    ) -> None:
        """Prepare a trial; `times` in seconds per image are those of extraction and of steps.

        If they are not given, they are measured in a small fraction of the `seconds` that remain.
        """
        self.context, self.candidate, self.held_out = context, candidate, held_out
        self.data = replace(context.inputs.data, manifest=held_out.manifest)
        self.images = len(held_out.manifest.rows)
        self.times = times or self.time_steps(_TIMED_FRACTION * seconds)
        self.extraction_s, self.step_s = self.times

    def config(self, epochs: int) -> Config:
        """Return the settings of a run that trains this candidate for `epochs` epochs."""
        return self.candidate.config(
            self.context.config,
            epochs,
            self.context.best.model,
            self.images,
            fraction=min(_FRACTIONS),  # so that the weights before training are kept
        )

    def inputs(
        self, config: Config, manifest: Manifest, what: str = "extracting features"
    ) -> tuple[StageInputs, Model]:
        """Return inputs for the images of `manifest`, and the copy of the model that is trained."""
        model, layers = copy.deepcopy(self.context.best.model), self.candidate.layers
        read_last_block(model, self.held_out.last_head)
        pipeline = build_pipeline(
            model,
            self.data.transform,
            layers,
            config.train,
            device=self.data.device,
            precision=self.context.precision,
        )
        extractor = pipeline.open_extractor(config.train, max_pixels=self.data.max_pixels)
        if extractor is not None:
            view = eval_view(self.data.transform)
            compute_views(extractor, manifest, manifest.rows, [view], what, self.data.group)
        data = replace(self.data, manifest=manifest)
        inputs = StageInputs(data=data, cut=pipeline.cut, extractor=extractor)
        return with_stage_data(inputs, config, layers), model

    def time_steps(self, seconds: float) -> tuple[float, float]:
        """Measure feature extraction and training steps; return both times in seconds per image."""
        config, manifest = self.config(1), self.held_out.manifest
        labels = torch.tensor([row.label for row in manifest.rows])
        few = stratified_subset(labels, _TIMED_STEP_IMAGES, config.train.seed)
        rows = tuple(replace(manifest.rows[i], split="train") for i in few.tolist())
        started = time.monotonic()
        what = f"measuring the time to train {layers_text(self.candidate.layers)}"
        inputs, _ = self.inputs(config, replace(manifest, rows=rows), what)
        extracted = time.monotonic()
        trainer = make_trainer(config.train, config.optim, inputs, self.context.precision)
        times, images, group = [time.monotonic()], list[int](), self.data.group
        with console.quiet_step(what):
            for batch in training_batches(config.train, config.optim, inputs)(0, 0):
                with self.context.stopper.deferred():
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
        data = self.context.inputs.data
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
        """Return the number of epochs with at least that many steps."""
        config = self.config(1)
        images = epoch_size(self.held_out.manifest.train, config.train)
        return math.ceil(steps / math.ceil(images / config.optim.images_per_step))

    def affordable_epochs(self, seconds: float, *, after: float) -> int:
        """Return the largest number of epochs, perhaps 0, that fits (see the method `seconds`)."""
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
        stopper, group = self.context.stopper, self.data.group
        inputs, _ = self.inputs(config, self.held_out.manifest)
        trainer = make_trainer(config.train, config.optim, inputs, self.context.precision)
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
                    scored = validation_logits(inputs, precision=self.context.precision)
                logits[fraction], _ = scored
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
        best = _lowest_loss(tried)
        return {
            "layers": self.candidate.layers,
            "epochs": epochs,
            "folds": 1,
            "images": len(self.held_out.manifest.train),
            "held_out": len(y),
            "top1": best["top1"],
            "head_top1": fraction_right(are_right(heads, labels)),
            "loss": best["loss"],
            "head_loss": float(head_losses.mean()),
            "error": best["error"],
            "interpolation": best["fraction"],
            "tried": tried,
            "seconds": seconds,
            "final_seconds": self.final_seconds(epochs),
        }


def folds_of(trial: TrialResults) -> int:
    """Return how many folds of the training images have been held out."""
    return trial.get("folds", 1)


def _lowest_loss(tried: Sequence[InterpolationResults]) -> InterpolationResults:
    """Return the results of the fraction of the trained weights with the lowest held-out loss."""
    return min(tried, key=lambda found: found["loss"])


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
    best = _lowest_loss(tried)
    return {
        **one,
        "folds": folds_of(one) + folds_of(other),
        "held_out": total,
        "top1": best["top1"],
        "head_top1": mean(one["head_top1"], other["head_top1"]),
        "loss": best["loss"],
        "head_loss": mean(one["head_loss"], other["head_loss"]),
        "error": best["error"],
        "interpolation": best["fraction"],
        "tried": tried,
        "seconds": one["seconds"] + other["seconds"],
    }


def tempered_losses(logits: Tensor, y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the cross-entropy (n,) of images after temperature scaling on these images."""
    values = logits.double().numpy()
    return log_losses(values / (fit_temperature(values, y) or 1.0), y)
