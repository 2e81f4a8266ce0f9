"""Trials of other starts within a time budget, by cross-validation on the training images.

A larger input shows a pretrained Vision Transformer more detail, with position embeddings that are
interpolated (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, section 3.2). It helps on
some data sets and not on others (benchmarks/notebook/heads.md), and it makes every later step
slower. A run with a budget therefore fits the head at both sizes, if there is time, before it tries
other layers.

Other weights may help more. If recommended ones are in the local cache and there is time, a head is
also fitted to their features, and the results show what they would gain and how much longer they
would take. The run keeps the weights that the user has named.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitft.config.sections import WeightsSpec
from vitft.data.image_table import Row
from vitft.data.transforms import eval_view
from vitft.features.cut import run_prefix
from vitft.features.folds import stratified_subset
from vitft.features.head import cross_validate, solve_head
from vitft.features.pipeline import load_pipeline, read_several_blocks
from vitft.messages.training import describe_start
from vitft.metrics.classification import are_right, fraction_right
from vitft.metrics.intervals import PairedDifference, mean_error
from vitft.metrics.results import StartTrial
from vitft.models.pretrained.catalog import RANDOM, cached_alternatives, machine_speed
from vitft.system import console
from vitft.system.errors import WeightsError
from vitft.training.budget import EVIDENCE, MIN_TRIAL_IMAGES, tempered_losses
from vitft.training.head_stage import inputs_to_head
from vitft.training.runtime import Runtime
from vitft.training.setup import Start, compute_views

log = logging.getLogger(__name__)

_ENLARGEMENT = 1.5  # factor between the sides of the larger and of the usual input
_SIZE_FRACTION = 0.06
"""Maximum fraction of the remaining time spent on features of the larger input, so that all layers
can still be trained at this size: trial and final training take about 16 times as long."""
_WEIGHTS_FRACTION = 0.06  # the same for other weights, which are only reported
_TIMED_BATCH = 4  # number of images per forward pass when the times of two models are compared
_TIMED_IMAGES = 32  # images whose features are timed to estimate the time for all


def try_other_starts(start: Start, runtime: Runtime) -> Start:
    """Try a larger input size and other weights, if a new run has a time budget that allows it.

    The larger size is chosen if the cross-validated loss of the head on the training images is
    clearly lower there (see `EVIDENCE`). Validation images are not used. The start at the better
    size is returned, with the scores of both trials.
    """
    spec, few, model = start.config.weights, MIN_TRIAL_IMAGES, start.pipeline.model
    is_new = spec.name == "none" or spec.name.startswith(RANDOM)
    if not start.config.train.budget or is_new or len(start.inputs.data.manifest.train) < few:
        return start
    if runtime.resumed:  # config.toml contains the size that was chosen
        return start
    chosen, found = start, dict[str, StartTrial]()
    if spec.image_size is None and (patch_size := model.config.patch_size):
        height, width = (
            round(_ENLARGEMENT * side / patch) * patch
            for side, patch in zip(model.config.image_size, patch_size, strict=True)
        )
        larger = _start_with(start, replace(spec, image_size=(height, width)))
        trial = _try_start(start, larger, runtime, fraction=_SIZE_FRACTION)
        if trial is not None:
            if trial["chosen"]:
                extract(larger, start.inputs.data.manifest.rows)
                chosen = larger
            _log_trial(trial)
            found["size"] = trial
    weights = _try_weights(chosen, spec, runtime)
    if weights is not None:
        found["weights"] = weights
    return replace(chosen, trials=found)


def _try_weights(start: Start, spec: WeightsSpec, runtime: Runtime) -> StartTrial | None:
    """Fit the head to features of other weights from the cache; None if there are none to try.

    `spec` are the settings of the run's weights before a size was chosen; the others share them.
    """
    group = runtime.group
    name = group.main_only(lambda: _weights_to_try(start, runtime))
    if not name:
        return None
    other: Start | None = None
    try:
        other = _start_with(start, replace(spec, name=name))
    except WeightsError as error:  # e.g. a damaged file in the cache
        log.info(f"the weights {name} were not tried: {error.problem}")
    if group.all_reduce_max(int(other is None)) or other is None:
        return None
    if start.report.provenance.get("sha256") == other.report.provenance.get("sha256"):  # a copy
        return None
    log.info(f"trying the weights {name} on the training images")
    found = _try_start(start, other, runtime, fraction=_WEIGHTS_FRACTION)
    if found is not None:
        found["weights"], found["chosen"] = name, False
        _log_trial(found)
    return found


def _log_trial(found: StartTrial) -> None:
    """Log the results of a trial; what was not tried is named in the summary of the run."""
    if "seconds_needed" not in found:
        log.info(describe_start(found))


def _try_start(
    start: Start, other: Start, runtime: Runtime, *, fraction: float
) -> StartTrial | None:
    """Compare another start in `fraction` of the remaining time; None if classes are too small."""
    data, group, began = start.inputs.data, runtime.group, time.monotonic()
    seconds, rows, used = start.config.train.budget_s, data.manifest.train, runtime.used_s()
    # The time for all features, from that of a few or, if these are cached, of a forward pass
    seed, timed = other.config.train.seed, time.monotonic()
    few = stratified_subset(data.labels(rows).cpu(), _TIMED_IMAGES, seed).tolist()
    extract(other, [rows[i] for i in few])
    each = group.broadcast(time.monotonic() - timed) / len(few)
    forward = group.broadcast(_forward_seconds(other)) / _TIMED_BATCH
    expected = max(each, forward) * len(data.manifest.rows)
    if expected > fraction * (seconds - used):
        return {
            "image_size": other.inputs.data.transform.image_size,
            "chosen": False,
            "seconds_needed": used + expected / fraction,
        }
    extract(other, data.manifest.train)
    found = group.main_only(lambda: compare(start, other))
    if found is not None:
        found["seconds"] = group.broadcast(time.monotonic() - began)
    return found


def _weights_to_try(start: Start, runtime: Runtime) -> str:
    """Return the most accurate other weights in the cache for which there is time, or ""."""
    data, origin = start.inputs.data, start.report.provenance
    others = cached_alternatives(origin.get("name", ""), origin.get("licence", ""))
    if not others:
        return ""
    left = start.config.train.budget_s - (time.monotonic() - runtime.started)
    speed, images = machine_speed(data.device.type), len(data.manifest.rows)
    fitting = [one.name for one in others if one.seconds(images, speed) <= _WEIGHTS_FRACTION * left]
    return fitting[-1] if fitting else ""


def _start_with(start: Start, weights: WeightsSpec) -> Start:
    """Return the same run, images and split with another input size or other weights."""
    config, data = replace(start.config, weights=weights), start.inputs.data
    pipeline, report = load_pipeline(
        data.manifest,
        config.train.stages[0],
        weights=config.weights,
        model=config.model,
        train=config.train,
        max_pixels=config.data.max_pixels,
        announce=False,
    )
    pipeline = read_several_blocks(pipeline, config.train, images=len(data.manifest.rows))
    transform = replace(report.transform, grey_range=data.transform.grey_range)
    pipeline = replace(pipeline, transform=transform)
    extractor = pipeline.open_extractor(config.train, max_pixels=config.data.max_pixels)
    data = replace(data, transform=transform)
    inputs = replace(start.inputs, data=data, cut=pipeline.cut, extractor=extractor)
    return replace(start, config=config, pipeline=pipeline, report=report, inputs=inputs)


def extract(start: Start, rows: Sequence[Row]) -> None:
    """Compute and cache the features of images with the weights and input size of `start`."""
    data, extractor = start.inputs.data, start.inputs.extractor
    assert extractor is not None
    height, width = data.transform.image_size
    what = f"extracting features at {width}x{height} pixels"
    view = eval_view(data.transform)
    compute_views(extractor, data, rows, [view], what)


def compare(usual: Start, other: Start) -> StartTrial | None:
    """Compare cross-validated heads for two starts; None if there are too few images per class."""
    with console.quiet_step("comparing heads by cross-validation"):
        first, second = _held_out_scores(usual), _held_out_scores(other)
    if first is None or second is None:
        return None
    labels = usual.inputs.data.labels(usual.inputs.data.manifest.train).cpu().numpy()
    rows, of_first, of_second = np.intersect1d(first[0], second[0], return_indices=True)
    y, usual_logits, logits = labels[rows], first[1][of_first], second[1][of_second]
    losses, usual_losses = tempered_losses(logits, y), tempered_losses(usual_logits, y)
    gain, manifest = usual_losses - losses, usual.inputs.data.manifest
    groups = usual.inputs.data.user_groups([manifest.train[i] for i in rows.tolist()])
    error = mean_error(gain, groups)
    truth = torch.from_numpy(y)
    right, usual_right = are_right(logits, truth), are_right(usual_logits, truth)
    paired = PairedDifference.of(right.numpy(), usual_right.numpy(), groups)
    return {
        "image_size": other.inputs.data.transform.image_size,
        "chosen": bool(gain.mean() > EVIDENCE * error),
        "usual_size": [*usual.inputs.data.transform.image_size],
        "images": len(y),
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
    rows, names = data.manifest.train, data.manifest.outputs
    x, y = inputs_to_head(start.pipeline.model, inputs, rows), data.labels(rows).cpu()
    groups, seed = data.group_ids(rows), config.train.seed
    assert inputs.extractor is not None
    solved = solve_head(
        x,
        y,
        classes=len(names),
        l2=config.optim.l2,
        balanced=config.balances,
        seed=seed,
        groups=groups,
        read=inputs.extractor.prefix.leading,
    )
    scores = cross_validate(
        x, y, names, method=solved.method, balanced=config.balances, seed=seed, groups=groups
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
