"""Reference distribution of a run's features, used to detect out-of-distribution images.

The features are the pooled features of the last block of the trained model. If layers before the
head were trained, these features are not cached; they are computed for a small, stratified sample.
"""

import functools
import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitft.data.split import Row
from vitft.features.folds import stratified_subset
from vitft.features.ood import (
    REFERENCE_FILE,
    TOO_HIGH,
    Features,
    fit_reference,
    no_reference,
    power_text,
)
from vitft.metrics.results import OodResults
from vitft.models.timm_model import Model
from vitft.system import console
from vitft.system.device import exact_float32
from vitft.system.rundir import RunDir
from vitft.system.text import count, interval, percent
from vitft.training.batches import evaluation_batches
from vitft.training.dataset import StageInputs

log = logging.getLogger(__name__)

NEVER_FLAGGED = "this is not supported for multi-label models"

CACHED_IMAGES, COMPUTED_IMAGES = 20_000, 2_000
"""Maximum number of images sampled from each set (training and validation): `CACHED_IMAGES` if the
features are cached, `COMPUTED_IMAGES` if they have to be computed."""


def write_reference(
    run: RunDir, inputs: StageInputs, model: Model, *, frozen: bool, seed: int
) -> OodResults:
    """Write the reference distribution if there are enough images, and log how reliable it is.

    Args:
        run: The run directory.
        inputs: Inputs to the last stage.
        model: The trained model.
        frozen: Whether training has left the features unchanged.
        seed: Seed of the sample.

    Returns:
        The results for audit.json.
    """
    if inputs.data.manifest.labels:
        log.info(f"no images will be flagged as unlike the training images: {NEVER_FLAGGED}")
        return no_reference(NEVER_FLAGGED)
    manifest, most = inputs.data.manifest, CACHED_IMAGES if inputs.cut.pooled else COMPUTED_IMAGES
    sampled = [sample(rows, most, seed) for rows in (manifest.train, manifest.val)]
    rows = [row for part in sampled for row in part]
    is_validation = np.arange(len(rows)) >= len(sampled[0])
    reference, results = fit_reference(
        head_inputs(inputs, model, rows),
        inputs.data.labels(rows).cpu().numpy(),
        is_validation | frozen,
        inputs.data.group_ids(rows).numpy(),
        trained=not frozen,
    )
    if reference is not None:
        run.write_arrays(REFERENCE_FILE, **reference.arrays())
    elif run.writes:
        (run.path / REFERENCE_FILE).unlink(missing_ok=True)  # may remain from an earlier attempt
    log.log(
        logging.DEBUG if results["reason"] is None else logging.INFO, describe_reference(results)
    )
    return results


def describe_reference(results: OodResults) -> str:
    """Return a log line that states how often images are flagged as unlike the training images."""
    if results["reason"] is not None:
        return f"no images will be flagged as unlike the training images: {results['reason']}"
    alarms = percent(results["false_alarms"], 0)
    text = f"flagged as unlike the training images: {alarms} of new images"
    if results["unknown_class"] is None:
        return text
    power = power_text(results["unknown_class"])
    left_out = count(results["classes_left_out"], "class", "classes")
    bounds = interval(results["unknown_class_interval"], 0)
    by_class = interval(results["unknown_class_range"], 0)
    return (
        f"{text}, {power} (95% interval {bounds}; by class, with {left_out} left out in turn: "
        f"{by_class})"
        f"{f'; the rate {TOO_HIGH}' * results['features_trained']}"
    )


def sample(rows: Sequence[Row], most: int, seed: int) -> list[Row]:
    """Return at most `most` rows, drawn in proportion to the class sizes."""
    labels = torch.tensor([row.label for row in rows])
    return [rows[i] for i in stratified_subset(labels, most, seed).tolist()]


@torch.inference_mode()
def head_inputs(inputs: StageInputs, model: Model, rows: Sequence[Row]) -> Features:
    """Return the pooled features (n, D) of the last block of the trained model."""
    if inputs.cut.pooled:
        return inputs.last_features(rows).numpy()
    parts: list[Tensor] = []
    with console.Progress("features of the trained model", len(rows)) as progress:
        for batch in evaluation_batches(inputs, rows):
            compute = functools.partial(trained_features, inputs, model, batch.inputs)
            parts += inputs.limit.split(compute, len(batch.inputs))
            progress.advance(len(batch.inputs))
    return torch.cat(parts).numpy()


def trained_features(inputs: StageInputs, model: Model, batch: Tensor, part: slice) -> Tensor:
    """Return the features (B, D) of the trained model on the CPU for a slice of a batch.

    The batch contains inputs to the trained layers: pixels, or tokens from the frozen layers.
    """
    with exact_float32(inputs.data.device):
        if inputs.cut.prefix is None:
            return model.eval().features(batch[part]).float().cpu()
        return model.eval().finish(batch[part], inputs.cut.prefix.stop).float().cpu()
