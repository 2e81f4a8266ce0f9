"""What a run with a time budget tries: a larger input, other weights, and layers to train.

A larger input shows a pretrained Vision Transformer more detail, with position embeddings that are
interpolated (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, section 3.2). It helps on
some data sets and not on others (benchmarks/notebook/heads.md), and it makes every later step
slower. If there is time, the run compares heads at both sizes by cross-validation. If recommended
other weights are in the local cache, a head is also fitted to their features, and the results show
what they would gain. The run keeps the weights that the user has named.

The run then fits its head and tries candidates, each of which trains further layers. A candidate is
trained on four fifths of the training images, starting from a head fitted to the same images, and
is compared with this head on the remaining fifth. While it is not clear which candidate is best,
trials are repeated with other images held out, as time allows. If a candidate is better than the
head, the best one is trained again on all training images, starting from the head of the run.
Otherwise, only the head is trained. No choice uses validation images.
"""

import copy
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitft.config.run import Config, to_toml
from vitft.config.sections import WeightsSpec, layers_text
from vitft.data.image_table import Images, Row
from vitft.data.transforms import eval_view
from vitft.features.cut import run_prefix
from vitft.features.extract import load_pipeline, read_several_blocks
from vitft.features.folds import stratified_folds, stratified_subset
from vitft.features.head import HeadMethod, LinearHead, SolvedHead, cross_validate, solve_head
from vitft.messages.results import describe_start, describe_trial
from vitft.metrics.calibration import fit_temperature, log_losses
from vitft.metrics.classification import are_right, fraction_right
from vitft.metrics.intervals import Floats, PairedDifference, mean_error
from vitft.metrics.results import BudgetResults, InterpolationResults, StartTrial, TrialResults
from vitft.models.pretrained.catalog import RANDOM, cached_alternatives, machine_speed
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.errors import WeightsError
from vitft.system.text import count
from vitft.training.batches import StageInputs, epoch_size, training_batches
from vitft.training.loop import RunningMetrics, with_step_defaults
from vitft.training.record import Fitted
from vitft.training.reports import COMPUTED_IMAGES
from vitft.training.runtime import Runtime
from vitft.training.setup import Start, compute_views, next_inputs
from vitft.training.stages import make_trainer, of_last_block, read_last_block

log = logging.getLogger(__name__)

_MIN_TRIAL_IMAGES = 60  # with fewer training images, too few are held out to show a gain
EVIDENCE = 2.0  # standard errors of a reduced held-out loss that need no confirmation


def _tempered_losses(logits: Tensor, y: np.ndarray[Any, Any]) -> Floats:
    """Return the cross-entropy (n,) of images after temperature scaling on these images."""
    values = logits.double().numpy()
    return log_losses(values / (fit_temperature(values, y) or 1.0), y)


# other starts: a larger input and other weights, compared by cross-validated heads ----------------

_ENLARGEMENT = 1.5  # factor between the sides of the larger and of the usual input
_START_FRACTION = 0.06
"""Maximum fraction of the remaining time spent on the features of another start, so that all layers
can still be trained at a larger size: trial and final training take about 16 times as long."""
_TIMED_BATCH = 4  # number of images per forward pass when the times of two models are compared
_TIMED_IMAGES = 32  # images whose features are timed to estimate the time for all


def try_other_starts(start: Start, runtime: Runtime) -> Start:
    """Try a larger input size and other weights, if a new run has a time budget that allows it.

    The larger size is chosen if the cross-validated loss of the head on the training images is
    clearly lower there (see `EVIDENCE`). The start at the better size is returned, with the scores
    of both trials.
    """
    spec, model, manifest = start.config.weights, start.pipeline.model, start.inputs.data.manifest
    is_new = spec.name == "none" or spec.name.startswith(RANDOM)
    has_time = start.config.train.budget and not runtime.resumed  # which has the size it has chosen
    if not has_time or is_new or len(manifest.train) < _MIN_TRIAL_IMAGES:
        return start
    chosen, found = start, dict[str, StartTrial]()
    if spec.image_size is None and (patch_size := model.config.patch_size):
        height, width = (
            round(_ENLARGEMENT * side / patch) * patch
            for side, patch in zip(model.config.image_size, patch_size, strict=True)
        )
        larger = _start_with(start, replace(spec, image_size=(height, width)))
        if (trial := _try_start(start, larger, runtime)) is not None:
            found["size"] = trial
            if trial["chosen"]:
                _extract(larger, manifest.rows)
                chosen = larger
    if (trial := _try_weights(chosen, spec, runtime)) is not None:
        found["weights"] = trial
    budget = _untried(start.config.train.budget_s, found) if found else None
    return replace(chosen, budget=budget)


def _untried(seconds: float, starts: Mapping[str, StartTrial]) -> BudgetResults:
    """Return the results of a time budget before any layers are tried, given those of starts."""
    found = {"seconds": seconds, "used": 0.0, "trials": [], "skipped": []}
    return cast("BudgetResults", {**found, "chosen": None, "epochs": 0, **starts})


def _try_weights(start: Start, spec: WeightsSpec, runtime: Runtime) -> StartTrial | None:
    """Fit the head to features of other weights from the cache; None if there are none to try."""
    data, origin, group = start.inputs.data, start.report.provenance, runtime.group

    def most_accurate() -> str:
        """Return the most accurate other weights in the cache for which there is time, or ""."""
        left = start.config.train.budget_s - (time.monotonic() - runtime.started)
        others = cached_alternatives(origin.get("name", ""))
        speed, images = machine_speed(data.device.type), len(data.manifest.rows)
        fast = (one.name for one in others if one.seconds(images, speed) <= _START_FRACTION * left)
        return next(fast, "")

    if not (name := group.main_only(most_accurate)):
        return None
    other: Start | None = None
    try:
        other = _start_with(start, replace(spec, name=name))
    except WeightsError as error:  # e.g. a damaged file in the cache
        log.info(f"the weights {name} were not tried: {error.problem}")
    if group.all_reduce_max(int(other is None)) or other is None:
        return None
    if origin.get("sha256") == other.report.provenance.get("sha256"):  # a copy
        return None
    log.info(f"trying the weights {name} on the training images")
    return _try_start(start, other, runtime, weights=name)


def _try_start(
    start: Start, other: Start, runtime: Runtime, *, weights: str = ""
) -> StartTrial | None:
    """Compare another start, if there is time, and log it; None if classes are too small."""
    data, group, began = start.inputs.data, runtime.group, time.monotonic()
    seconds, rows, used = start.config.train.budget_s, data.manifest.train, runtime.used_s()
    # The time for all features, from that of a few or, if these are cached, of a forward pass
    seed, timed = other.config.train.seed, time.monotonic()
    few = stratified_subset(data.labels(rows).cpu(), _TIMED_IMAGES, seed).tolist()
    _extract(other, [rows[i] for i in few])
    each = group.broadcast(time.monotonic() - timed) / len(few)
    forward = group.broadcast(_forward_seconds(other)) / _TIMED_BATCH
    expected = max(each, forward) * len(data.manifest.rows)
    found: StartTrial | None
    if expected > _START_FRACTION * (seconds - used):
        found = {
            "image_size": other.inputs.data.transform.image_size,
            "chosen": False,
            "seconds_needed": used + expected / _START_FRACTION,
        }
    else:
        _extract(other, rows)
        found = group.main_only(lambda: _compare(start, other))
        if found is None:
            return None
        found["seconds"] = group.broadcast(time.monotonic() - began)
    if weights:
        found["weights"], found["chosen"] = weights, False
    if "seconds" in found:  # the summary of the run names what was not tried
        log.info(describe_start(found))
    return found


def _start_with(start: Start, weights: WeightsSpec) -> Start:
    """Return the same run, images and split with another input size or other weights."""
    config, data = replace(start.config, weights=weights), start.inputs.data
    stage = config.train.stages[0]
    pipeline, report = load_pipeline(data.manifest, stage, config, announce=False)
    pipeline = read_several_blocks(pipeline, images=len(data.manifest.rows))
    transform = replace(report.transform, grey_range=data.transform.grey_range)
    pipeline = replace(pipeline, transform=transform)
    extractor = pipeline.open_extractor()
    data = replace(data, transform=transform)
    inputs = replace(start.inputs, data=data, cut=pipeline.cut, extractor=extractor)
    return replace(start, config=config, pipeline=pipeline, report=report, inputs=inputs)


def _extract(start: Start, rows: Sequence[Row]) -> None:
    """Compute and cache the features of images with the weights and input size of `start`."""
    data, extractor = start.inputs.data, start.inputs.extractor
    assert extractor is not None
    height, width = data.transform.image_size
    what = f"extracting features at {width}x{height} pixels"
    compute_views(extractor, data, rows, [eval_view(data.transform)], what)


def _compare(usual: Start, other: Start) -> StartTrial | None:
    """Compare cross-validated heads for two starts; None if there are too few images per class."""
    with console.quiet_step("comparing heads by cross-validation"):
        first, second = _held_out_scores(usual), _held_out_scores(other)
    if first is None or second is None:
        return None
    data = usual.inputs.data
    rows, of_first, of_second = np.intersect1d(first[0], second[0], return_indices=True)
    images = [data.manifest.train[i] for i in rows.tolist()]
    truth, groups = data.labels(images).cpu(), data.units(images)
    usual_logits, logits = first[1][of_first], second[1][of_second]
    usual_losses, losses = (
        _tempered_losses(some, truth.numpy()) for some in (usual_logits, logits)
    )
    gain, error = usual_losses - losses, mean_error(usual_losses - losses, groups)
    right, usual_right = are_right(logits, truth), are_right(usual_logits, truth)
    paired = PairedDifference.of(right.numpy(), usual_right.numpy(), groups)
    return {
        "image_size": other.inputs.data.transform.image_size,
        "chosen": bool(gain.mean() > EVIDENCE * error),
        "usual_size": [*data.transform.image_size],
        "images": len(images),
        "top1": fraction_right(right),
        "usual_top1": fraction_right(usual_right),
        "loss": float(losses.mean()),
        "usual_loss": float(usual_losses.mean()),
        "error": error,
        "gain_interval": paired.interval(),
        "relative_time": _forward_seconds(other) / _forward_seconds(usual),
    }


def _held_out_scores(start: Start) -> tuple[np.ndarray[Any, Any], Tensor] | None:
    """Return indices (m,) of training images and their logits (m, C) from cross-validated heads."""
    inputs, config, data = start.inputs, start.config, start.inputs.data
    rows, outputs = data.manifest.train, data.manifest.outputs
    x, y = inputs.inputs_to_head(start.pipeline.model, rows), data.labels(rows).cpu()
    groups, seed, balanced = data.training_group_ids(), config.train.seed, config.balances
    assert inputs.extractor is not None
    solved = solve_head(
        x,
        y,
        classes=len(outputs.classes),
        l2=config.optim.l2,
        balanced=balanced,
        seed=seed,
        groups=groups,
        read=inputs.extractor.prefix.leading,
    )
    method = solved.method
    scores = cross_validate(
        x, y, outputs, method=method, balanced=balanced, seed=seed, groups=groups
    )
    return None if scores is None else (scores[1][0].numpy(), scores[1][1])


def _forward_seconds(start: Start) -> float:
    """Return the time in seconds to compute the features of a few blank images, once warm."""
    extractor, transform = start.inputs.extractor, start.inputs.data.transform
    assert extractor is not None
    shape = (_TIMED_BATCH, len(transform.mean), *transform.image_size)
    pixels = torch.zeros(shape, device=extractor.device)
    run_prefix(extractor.prefix, pixels).cpu()
    began = time.perf_counter()
    run_prefix(extractor.prefix, pixels).cpu()
    return time.perf_counter() - began


# candidates: layers to train after the head, and their trials -------------------------------------

MAX_EPOCHS, _MAX_STEPS = 12, 200
"""Maximum number of epochs of a trial and of the final training, or of steps if that is more."""
_TRIAL_FOLDS = 5  # of the training images; each trial holds out one
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

LAST_BLOCKS = MappingProxyType({"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "lr": 3e-4})
EVERYTHING = MappingProxyType({"weight_decay": 0.05, "clip": 1.0, "ema": 0.99, "layer_decay": 0.75})
CROPS = MappingProxyType({"augment": "crop", "crop_scale": 0.4})


def layers_to_try(model: Model) -> list[str]:
    """Return the candidates for a model, in order of increasing time per training step."""
    return ["all"] if model.config.depth <= 4 else ["blocks:4", "all"]


def _config_of(
    layers: str, config: Config, epochs: int, model: Model, images: int, *, fraction: float = 1.0
) -> Config:
    """Return the settings of a run that fits the head, then trains the layers of a candidate."""
    own, views = (EVERYTHING, CROPS) if layers == "all" else (LAST_BLOCKS, {})
    optim: dict[str, Any] = {"solver": "adamw", "lr": None, "epochs": epochs, **own}
    spec = replace(config.optim, **optim, interpolation=fraction)
    train: dict[str, Any] = {"layers": f"head,{layers}", "views": 0, "budget": "", **views}
    return replace(
        config,
        optim=with_step_defaults(spec, train["layers"], model, images),
        train=replace(config.train, **train),
    )


_HeldOut = tuple[Images, LinearHead, Tensor]
"""Training images, of which the held-out ones are its validation images; a head that reads only the
last block and is fitted to the others; and logits (m, C) of the held-out images from a head fitted
to the others as the run does."""


def _hold_out(fitted: Fitted, method: HeadMethod, fold: int) -> _HeldOut:
    """Hold out one of `_TRIAL_FOLDS` folds of the training images, and fit heads to the others."""
    inputs, seed = fitted.inputs, fitted.config.train.seed
    data, rows = inputs.data, inputs.data.manifest.train
    labels = data.labels(rows).cpu()
    held = stratified_folds(labels, _TRIAL_FOLDS, seed, data.training_group_ids()) == fold
    parts = [
        row._replace(split="val" if is_held else "train")
        for row, is_held in zip(rows, held.tolist(), strict=True)
    ]

    def solve() -> tuple[LinearHead, Tensor]:
        x = inputs.inputs_to_head(fitted.model, rows)
        solved = solve_head(
            x[~held],
            labels[~held],
            method=method,
            classes=len(data.manifest.classes),
            balanced=fitted.config.balances,
            seed=seed,
        )
        return solved.last, x[held][:, : solved.weight.shape[1]] @ solved.weight.T + solved.bias

    return replace(data.manifest, rows=parts), *data.group.main_only(solve)


class _Trial:
    """Layers that may be trained, and their trials on copies of the run's model."""

    def __init__(
        self, fitted: Fitted, layers: str, held_out: Callable[[int], _HeldOut], seconds: float
    ) -> None:
        self.fitted, self.layers, self.held_out = fitted, layers, held_out
        self.data, self.manifest = fitted.inputs.data, held_out(0)[0]
        config = self.config(1)
        images = epoch_size([row.label for row in self.manifest.train], config.train)
        self.steps_per_epoch = math.ceil(images / config.optim.images_per_step)
        self.most_epochs = max(MAX_EPOCHS, self.epochs_of(_MAX_STEPS))
        self.extraction_s, self.step_s = self.time_steps(_TIMED_FRACTION * seconds)  # per image

    def config(self, epochs: int) -> Config:
        """Return the settings of a run that trains these layers for `epochs` epochs."""
        fitted, images = self.fitted, len(self.manifest.rows)
        least = min(_FRACTIONS)  # so that the weights before training are kept
        return _config_of(self.layers, fitted.config, epochs, fitted.model, images, fraction=least)

    def inputs(self, config: Config, manifest: Images, head: LinearHead, what: str) -> StageInputs:
        """Return inputs to a copy of the model that is trained on the images of `manifest`."""
        model = copy.deepcopy(self.fitted.model)
        read_last_block(model, head)
        inputs = replace(self.fitted.inputs, data=replace(self.data, manifest=manifest))
        return next_inputs(model, inputs, config, self.layers, trial=what)

    def time_steps(self, seconds: float) -> tuple[float, float]:
        """Measure feature extraction and training steps; return both times in seconds per image."""
        config, (manifest, head, _) = self.config(1), self.held_out(0)
        labels = torch.tensor([row.label for row in manifest.rows])
        few = stratified_subset(labels, _TIMED_STEP_IMAGES, config.train.seed)
        rows = [manifest.rows[i]._replace(split="train") for i in few.tolist()]
        started = time.monotonic()
        what = f"measuring the time to train {layers_text(self.layers)}"
        inputs = self.inputs(config, replace(manifest, rows=rows), head, what)
        extracted = time.monotonic()
        trainer = make_trainer(config, inputs, self.fitted.precision)
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
        training, validation = len(self.data.manifest.train), len(self.data.manifest.val)
        evaluated = (epochs + 2) * validation + 2 * min(training, COMPUTED_IMAGES)
        return self.step_s * (epochs * training + _FORWARD * evaluated)

    def seconds(self, epochs: int, *, after: float = 0.0) -> float:
        """Return the expected seconds of a trial and a final training of at least `after`."""
        fitted, images = len(self.manifest.train), len(self.manifest.rows)
        trial = epochs * fitted + _FORWARD * len(_FRACTIONS) * (images - fitted)
        final = max(after, self.final_seconds(epochs))
        return self.extraction_s * images + self.step_s * trial + final

    def epochs_of(self, steps: int) -> int:
        """Return the number of epochs that have at least this many steps."""
        return math.ceil(steps / self.steps_per_epoch)

    def affordable_epochs(self, seconds: float, *, after: float) -> int:
        """Return the largest number of epochs that fits, possibly 0 (see the method `seconds`)."""
        epochs = range(1, self.most_epochs + 1)
        return max((n for n in epochs if self.seconds(n, after=after) <= seconds), default=0)

    def further_epochs(self, tried: int) -> int:
        """Return the maximum number of epochs of the final training after a trial of `tried`."""
        return max(tried, min(round(_FURTHER * tried), self.most_epochs))

    def run(self, epochs: int, fold: int = 0) -> TrialResults:
        """Train for `epochs` epochs, and compare the model with the head on the held-out images."""
        started, config = time.monotonic(), self.config(epochs)
        manifest, head, held_out = self.held_out(fold)  # the logits of the head on held-out images
        stopper, group = self.fitted.runtime.stopper, self.data.group
        inputs = self.inputs(config, manifest, head, "extracting features")
        trainer = make_trainer(config, inputs, self.fitted.precision)
        batches = training_batches(config.train, config.optim, inputs)
        total = epochs * epoch_size([row.label for row in manifest.train], config.train)
        label = f"trial: training {layers_text(self.layers)}"
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
            for part in _FRACTIONS:
                with trainer.evaluated(part):
                    precision = self.fitted.precision
                    logits[part] = inputs.logits(manifest.val, precision=precision)
        seconds = group.broadcast(time.monotonic() - started)
        labels, groups = self.data.labels(manifest.val).cpu(), self.data.group_ids(manifest.val)
        head_losses = _tempered_losses(held_out, labels.numpy())
        tried: list[InterpolationResults] = []
        for fraction, ours in logits.items():
            losses = _tempered_losses(ours, labels.numpy())
            tried.append(
                {
                    "fraction": fraction,
                    "top1": fraction_right(are_right(ours, labels)),
                    "loss": float(losses.mean()),
                    "error": mean_error(head_losses - losses, groups.numpy()),
                }
            )
        found = {
            "layers": self.layers,
            "epochs": epochs,
            "folds": 1,
            "images": len(manifest.train),
            "held_out": len(labels),
            "head_top1": fraction_right(are_right(held_out, labels)),
            "head_loss": float(head_losses.mean()),
            "seconds": seconds,
            "final_seconds": self.final_seconds(epochs),
        }
        return _with_best(found, tried)


def _with_best(found: Mapping[str, Any], tried: list[InterpolationResults]) -> TrialResults:
    """Return results with those of the fraction of the trained weights that has the lowest loss."""
    best: dict[str, Any] = {**min(tried, key=lambda one: one["loss"])}
    more = {"interpolation": best.pop("fraction"), **best, "tried": tried}
    return cast("TrialResults", {**found, **more})


def pooled(one: TrialResults, other: TrialResults) -> TrialResults:
    """Return the results of two trials of the same candidate that held out different images."""
    total = one["held_out"] + other["held_out"]

    def mean(first: Mapping[str, Any], second: Mapping[str, Any], name: str) -> float:
        return float(one["held_out"] * first[name] + other["held_out"] * second[name]) / total

    tried: list[InterpolationResults] = [
        {
            "fraction": a["fraction"],
            "top1": mean(a, b, "top1"),
            "loss": mean(a, b, "loss"),
            "error": math.hypot(one["held_out"] * a["error"], other["held_out"] * b["error"])
            / total,
        }
        for a, b in zip(one["tried"], other["tried"], strict=True)
    ]
    found = {
        **one,
        "folds": one["folds"] + other["folds"],
        "held_out": total,
        "head_top1": mean(one, other, "head_top1"),
        "head_loss": mean(one, other, "head_loss"),
        "seconds": one["seconds"] + other["seconds"],
    }
    return _with_best(found, tried)


# search: trials as far as the time allows, and the choice of the layers to train ------------------

_MARGIN = 0.85
"""Fraction of the remaining time that trials and training may take; the rest is reserved for
reports and for variations in machine speed."""
_FIRST_STEPS = 120
"""Number of steps of the first trial of each candidate, if time allows; rounded up to epochs."""
_LONGER = 1.5  # A candidate is tried again only for at least this many times as many epochs
_SLIGHT_EVIDENCE = 1.0
"""Difference of the held-out losses, in standard errors, within which a trial tells little."""


def choose_layers(fitted: Fitted, solved: SolvedHead) -> None:
    """Try the candidates, and add the best one to the run's stages if it is better than the head.

    Finished trials are saved, so a resumed run does not repeat them. In config.toml, the budget is
    replaced with the chosen settings, so the file describes what is trained. `solved` is the head
    that the run has fitted.
    """
    best, config, found = fitted.best, fitted.config, fitted.budget
    images = len(fitted.inputs.data.manifest.train)
    if found is None or found["chosen"] is None:
        found = found or _untried(config.train.budget_s, {})
        if images < _MIN_TRIAL_IMAGES:
            few = count(images, "training image")
            log.info(f"only the head is trained: {few} are too few for trials")
        else:
            _Search(fitted, solved.method, found).run()
        found |= {"chosen": found["chosen"] or "head", "used": fitted.runtime.used_s()}
        fitted.record_budget(found)
    fitted.config = replace(config, train=replace(config.train, budget=""))
    chosen, epochs = found["chosen"], found["epochs"]
    if chosen in layers_to_try(best.model):
        fraction = found.get("interpolation", 1.0)
        fitted.config = _config_of(chosen, config, epochs, best.model, images, fraction=fraction)
    fitted.run.write("config.toml", to_toml(fitted.config))
    if len(fitted.config.train.stages) > 1:
        # Once blocks are trained, a head does not gain from reading earlier blocks as well
        # (benchmarks/notebook/fine_tuning.md).
        fitted.inputs = of_last_block(fitted.inputs, best.model)
        read_last_block(best.model, solved.last)
        best.weights = best.copy_weights()
        if (results := best.facts["extra"]) is not None:
            results.pop("head", None)


class _Search:
    """Trials of a run, one after the other, as far as its time budget allows, added to `found`."""

    def __init__(self, fitted: Fitted, method: HeadMethod, found: BudgetResults) -> None:
        self.fitted, self.found = fitted, found
        held_out = functools.cache(functools.partial(_hold_out, fitted, method))
        self.prepared = functools.cache(
            lambda layers: _Trial(fitted, layers, held_out, self.remaining())
        )

    def run(self) -> None:
        """Run the trials, and choose the layers to train."""
        found, trials = self.found, self.found["trials"]
        found["skipped"] = []  # a resumed run may have time for what was skipped before
        # Every candidate is first tried for a few epochs
        tried = {trial["layers"] for trial in trials}
        waiting = [one for one in layers_to_try(self.fitted.model) if one not in tried]
        for number, layers in enumerate(waiting):
            if self.remaining() <= 0:
                break
            self.try_candidate(layers, others=len(waiting) - number - 1)
        # Then for more, the leader first; close trials are repeated with other images held out
        first = sorted(trials, key=_gain, reverse=True)
        for layers in dict.fromkeys(trial["layers"] for trial in first):
            self.try_longer(layers)
            while trial := next(filter(self.has_time_to_repeat, undecided(trials)), None):
                again = self.prepared(trial["layers"]).run(trial["epochs"], trial["folds"])
                self.record(pooled(trial, again), trials.index(trial))
        # Layers that gained usually gain more from longer training, as far as there is time
        if (best := best_trial(trials)) is not None:
            prepared, epochs, left = self.prepared(best["layers"]), best["epochs"], self.remaining()
            longer = range(epochs, prepared.further_epochs(epochs) + 1)
            fitting = [n for n in longer if prepared.final_seconds(n) <= left]
            found["chosen"], found["epochs"] = best["layers"], max(fitting, default=epochs)
            found["interpolation"] = best.get("interpolation", 1.0)

    def remaining(self) -> float:
        """Return the time in seconds that trials and the final training may still take."""
        return _MARGIN * (self.found["seconds"] - self.fitted.runtime.used_s())

    def try_candidate(self, layers: str, *, others: int) -> None:
        """Try a candidate for about `_FIRST_STEPS` steps, or record the time that it needs."""
        trial = self.prepared(layers)
        left, least, after = self.remaining(), trial.epochs_of(_MIN_STEPS), self.reserved()
        epochs = trial.affordable_epochs(left / (1 + others), after=after)
        if epochs < least:
            epochs = min(least, trial.affordable_epochs(left, after=after))
        if epochs < least:
            needed = self.fitted.runtime.used_s() + trial.seconds(least) / _MARGIN
            self.found["skipped"].append({"layers": layers, "seconds_needed": needed})
            return  # the summary of the run names the budget that is needed
        self.record(trial.run(min(epochs, trial.epochs_of(_FIRST_STEPS))))

    def try_longer(self, layers: str) -> None:
        """Try a candidate for more epochs, if there is time and it is not clearly behind."""
        tried = [trial for trial in self.found["trials"] if trial["layers"] == layers]
        if len(tried) > 1 or _possible_gain(tried[0]) <= 0:  # two: the run was stopped after this
            return
        trial, after = self.prepared(layers), max(self.reserved(), self.final_seconds(tried[0]))
        epochs = trial.affordable_epochs(self.remaining(), after=after)
        if epochs >= _LONGER * tried[0]["epochs"]:
            self.record(trial.run(epochs))

    def has_time_to_repeat(self, trial: TrialResults) -> bool:
        once = trial["seconds"] / trial["folds"]
        return once + max(self.reserved(), self.final_seconds(trial)) <= self.remaining()

    def final_seconds(self, trial: TrialResults) -> float:
        """Return the time in seconds of the longest final training of a trial's layers."""
        prepared = self.prepared(trial["layers"])
        return prepared.final_seconds(prepared.further_epochs(trial["epochs"]))

    def reserved(self) -> float:
        """Return the longest time in seconds that training a candidate ahead of the head takes."""
        ahead = [trial for trial in self.found["trials"] if _gain(trial) > 0]
        return max(map(self.final_seconds, ahead), default=0.0)

    def record(self, trial: TrialResults, place: int | None = None) -> None:
        """Add the results of a trial or replace those at a place, save them, and log them."""
        trials = self.found["trials"]
        place = len(trials) if place is None else place
        trials[place : place + 1] = [trial]
        self.found["used"] = self.fitted.runtime.used_s()
        self.fitted.record_budget(self.found)
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
    waiting = [trial for trial in possible if trial["folds"] < _TRIAL_FOLDS]
    return sorted(waiting, key=lambda trial: (trial["folds"], -_possible_gain(trial)))


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
        needed = 0.0 if trial["folds"] > 1 else _SLIGHT_EVIDENCE * trial["error"]
        return _gain(trial) > needed and trial["top1"] >= trial["head_top1"]

    better = [trial for trial in trials if _is_clear(trial) or is_likely(trial)]
    return max(better, key=_gain, default=None)
