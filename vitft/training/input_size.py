"""Choice of the input size within a time budget, by cross-validation on the training images.

A larger input shows a pretrained Vision Transformer more detail, with position embeddings that are
interpolated (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929, section 3.2). It helps on
some data sets and not on others (docs/experiments.md), and it makes every later step slower. A run
with a budget therefore fits the head at both sizes, if there is time, before it tries other layers.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from vitft.config.sections import WeightsSpec
from vitft.data.split import Row
from vitft.data.transforms import eval_view
from vitft.features.folds import stratified_subset
from vitft.features.head import cross_validate, solve_head
from vitft.features.pipeline import load_pipeline, read_several_blocks
from vitft.metrics.results import SizeTrial
from vitft.metrics.verdict import describe_size
from vitft.models.pretrained.locate import RANDOM
from vitft.models.vit import VisionTransformer
from vitft.training.extraction import compute_views
from vitft.training.head_stage import inputs_to_head
from vitft.training.setup import Setup, Start
from vitft.training.trial import EVIDENCE, MIN_TRIAL_IMAGES, tempered_losses

log = logging.getLogger(__name__)

ENLARGEMENT = 1.5
"""Factor between the sides of the larger and of the usual input."""
SIZE_FRACTION = 0.06
"""Maximum fraction of the remaining time spent on features of the larger input, so that all layers
can still be trained at this size: trial and final training take about 16 times as long."""
TIMED_IMAGES = 32
"""Number of images whose features are computed to estimate the time for all of them."""


def choose_input_size(start: Start, *, started: float) -> tuple[Start, SizeTrial | None]:
    """Fit the head at a larger input size, if there is time, and return the better start of a run.

    The larger size is chosen if the cross-validated loss of the head on the training images is
    clearly lower there (see `EVIDENCE`). Validation images are not used. No other size is tried if
    the settings specify one, if the weights are random, if the model is one of timm's, or if there
    are too few training images.

    Args:
        start: The run at its usual input size.
        started: Value of `time.monotonic()` at the start of the run.

    Returns:
        The start at the chosen size, and the scores of both sizes. The scores are None if there is
        no other size to try.
    """
    size, data = larger_size(start), start.inputs.data
    if size is None:
        return start, None
    group, began = data.group, time.monotonic()
    larger, seconds = at_size(start, size), start.setup.config.train.budget_s
    used = group.broadcast(time.monotonic() - started)
    expected = expected_seconds(larger)
    if expected > SIZE_FRACTION * (seconds - used):
        needed = used + expected / SIZE_FRACTION
        skipped: SizeTrial = {"image_size": [*size], "chosen": False, "seconds_needed": needed}
        log.info(describe_size(skipped))
        return start, skipped
    extract(larger, data.manifest.train)
    found = group.main_only(lambda: compare(start, larger))
    if found is None:
        return start, None
    if found["chosen"]:
        extract(larger, data.manifest.rows)
    found["seconds"] = group.broadcast(time.monotonic() - began)
    log.info(describe_size(found))
    return (larger if found["chosen"] else start), found


def larger_size(start: Start) -> tuple[int, int] | None:
    """Return the larger input size (height, width) to try, or None if none should be tried."""
    config, model = start.setup.config, start.setup.pipeline.model
    weights, training = config.weights, start.inputs.data.manifest.train
    if (
        not config.train.budget
        or is_random(weights)
        or weights.image_size is not None
        or not isinstance(model, VisionTransformer)
        or len(training) < MIN_TRIAL_IMAGES
    ):
        return None
    height, width = (
        round(ENLARGEMENT * side / patch) * patch
        for side, patch in zip(model.config.image_size, model.config.patch_size, strict=True)
    )
    return height, width


def is_random(weights: WeightsSpec) -> bool:
    """Return whether the weights are not pretrained."""
    return weights.name == "none" or weights.name.startswith(RANDOM)


def at_size(start: Start, size: tuple[int, int]) -> Start:
    """Return the same run, images and split with another input size; no features are computed."""
    setup, config = start.setup, start.setup.config
    config = replace(config, weights=replace(config.weights, image_size=size))
    pipeline, report = load_pipeline(
        setup.folder,
        config.train.stages[0],
        weights=config.weights,
        model=config.model,
        train=config.train,
        max_pixels=config.data.max_pixels,
        local_rank=start.inputs.data.group.local_rank,
        announce=False,
    )
    pipeline = read_several_blocks(pipeline, config.train, images=len(setup.folder.files))
    transform = replace(report.transform, grey_range=setup.report.transform.grey_range)
    pipeline = replace(pipeline, transform=transform)
    changed = Setup(
        config=config,
        folder=setup.folder,
        pipeline=pipeline,
        report=replace(report, transform=transform),
    )
    extractor = pipeline.open_extractor(config.train, max_pixels=config.data.max_pixels)
    data = replace(start.inputs.data, transform=transform)
    inputs = replace(start.inputs, data=data, cut=pipeline.cut, extractor=extractor)
    return replace(start, setup=changed, inputs=inputs)


def extract(start: Start, rows: Sequence[Row]) -> None:
    """Compute and cache the features of images at the input size of `start`."""
    data, extractor = start.inputs.data, start.inputs.extractor
    assert extractor is not None
    height, width = data.transform.image_size
    what = f"extracting features at {width}x{height} pixels"
    view = eval_view(data.transform)
    compute_views(extractor, data.manifest, rows, [view], what, data.group)


def expected_seconds(start: Start) -> float:
    """Return the expected time in seconds to compute the features of all images.

    It follows from the time of a few training images, whose features are cached.
    """
    data, seed = start.inputs.data, start.setup.config.train.seed
    rows = data.manifest.train
    few = stratified_subset(data.labels(rows).cpu(), TIMED_IMAGES, seed).tolist()
    began = time.monotonic()
    extract(start, [rows[i] for i in few])
    seconds = data.group.broadcast(time.monotonic() - began)
    return seconds * len(data.manifest.rows) / len(few)


def compare(usual: Start, larger: Start) -> SizeTrial | None:
    """Compare cross-validated heads on the training images at two input sizes.

    The result is None if there are too few images per class for cross-validation.
    """
    one, other = held_out_scores(usual), held_out_scores(larger)
    if one is None or other is None:
        return None
    labels = usual.inputs.data.labels(usual.inputs.data.manifest.train).cpu().numpy()
    rows, at_usual, at_larger = np.intersect1d(one[0], other[0], return_indices=True)
    y, usual_logits, logits = labels[rows], one[1][at_usual], other[1][at_larger]
    losses, usual_losses = tempered_losses(logits, y), tempered_losses(usual_logits, y)
    gain = usual_losses - losses
    error = float(gain.std(ddof=1) / len(y) ** 0.5)
    return {
        "image_size": [*larger.inputs.data.transform.image_size],
        "chosen": bool(gain.mean() > EVIDENCE * error),
        "usual_size": [*usual.inputs.data.transform.image_size],
        "images": len(y),
        "top1": accuracy(logits, y),
        "usual_top1": accuracy(usual_logits, y),
        "loss": float(losses.mean()),
        "usual_loss": float(usual_losses.mean()),
        "error": error,
    }


def held_out_scores(start: Start) -> tuple[np.ndarray[Any, Any], Tensor] | None:
    """Return indices (m,) of training images and their logits (m, C) from cross-validated heads."""
    inputs, config, data = start.inputs, start.setup.config, start.inputs.data
    rows, names = data.manifest.train, data.manifest.outputs
    x, y = inputs_to_head(start.setup.pipeline.model, inputs, rows), data.labels(rows).cpu()
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
    return None if scores is None else (scores[1].rows.numpy(), scores[1].logits)


def accuracy(logits: Tensor, y: np.ndarray[Any, Any]) -> float:
    """Return the fraction of logits (n, C) whose largest value is at the class index `y` (n,)."""
    return float((logits.argmax(dim=-1).numpy() == y).mean())
