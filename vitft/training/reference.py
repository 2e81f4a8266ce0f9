"""Reference distribution of a run's features, used to detect out-of-distribution images.

The features are the pooled features of the last block of the trained model. If layers before the
head were trained, these features are not cached; they are computed for a small, stratified sample,
together with intermediate features (see `features.ood`).
"""

import functools
import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitft.data.split import Row
from vitft.features.cut import Cut
from vitft.features.folds import stratified_subset
from vitft.features.ood import TOO_HIGH, alarms_text, fit_reference, no_reference
from vitft.features.reference import REFERENCE_FILE, Features, power_text
from vitft.metrics.results import OodResults
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.system import console
from vitft.system.device import exact_float32
from vitft.system.rundir import RunDir
from vitft.system.text import count
from vitft.training.batches import evaluation_batches
from vitft.training.dataset import StageInputs

log = logging.getLogger(__name__)

_NEVER_FLAGGED = "this is not supported for multi-label models"

_INTERMEDIATE_DEPTH = 0.75
"""Relative depth of the intermediate feature (benchmarks/notebook/out_of_distribution.md)."""
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
        log.debug(f"no images will be flagged as unlike the training images: {_NEVER_FLAGGED}")
        return no_reference(_NEVER_FLAGGED)
    manifest, most = inputs.data.manifest, CACHED_IMAGES if inputs.cut.pooled else COMPUTED_IMAGES
    sampled = [sample(rows, most, seed) for rows in (manifest.train, manifest.val)]
    rows = [row for part in sampled for row in part]
    is_validation = np.arange(len(rows)) >= len(sampled[0])
    features, intermediate, blocks = _reference_features(inputs, model, rows)
    reference, results = fit_reference(
        features,
        inputs.data.labels(rows).cpu().numpy(),
        is_validation | frozen,
        inputs.data.group_ids(rows).numpy(),
        trained=not frozen,
        intermediate=intermediate,
        intermediate_blocks=blocks,
    )
    if reference is not None:
        run.write_arrays(REFERENCE_FILE, **reference.arrays())
    elif run.writes:
        (run.path / REFERENCE_FILE).unlink(missing_ok=True)  # may remain from an earlier attempt
    log.log(
        logging.DEBUG if results["reason"] is None else logging.INFO, _describe_reference(results)
    )
    return results


def _describe_reference(results: OodResults) -> str:
    """Return a log line that states how often images are flagged as unlike the training images."""
    if results["reason"] is not None:
        return f"no images will be flagged as unlike the training images: {results['reason']}"
    text = f"flagged as unlike the training images: {alarms_text(results)} of new images"
    if results["unknown_class_range"] is None:
        return text
    left_out = count(results["classes_left_out"], "class", "classes")
    return (
        f"{text}; {power_text(results['unknown_class_range'])} ({left_out} left out in turn)"
        f"{f', which {TOO_HIGH}' * results['features_trained']}"
    )


def sample(rows: Sequence[Row], most: int, seed: int) -> list[Row]:
    """Return at most `most` rows, drawn in proportion to the class sizes."""
    labels = torch.tensor([row.label for row in rows])
    return [rows[i] for i in stratified_subset(labels, most, seed).tolist()]


def intermediate_blocks(cut: Cut, model: Model) -> int:
    """Return the number of blocks before the intermediate feature of a trained model.

    It is 0, which means that there is no such feature, if only the head was trained, if the model
    is from timm, or if the head reads all blocks. Blocks whose output the head reads are not used,
    and neither are blocks whose output is not computed again because they are frozen.
    """
    if cut.pooled or not isinstance(model, VisionTransformer):
        return 0
    depth = model.config.depth
    wanted = max(round(_INTERMEDIATE_DEPTH * depth), 0 if cut.prefix is None else cut.prefix.stop)
    return min(wanted, depth - model.config.read_blocks)


@torch.inference_mode()
def _reference_features(
    inputs: StageInputs, model: Model, rows: Sequence[Row]
) -> tuple[Features, Features | None, int]:
    """Return the pooled features (n, D) of the trained model, and its intermediate features (n, D).

    Returns:
        Both, and the number of blocks before the intermediate features: None and 0 if there are no
        such features.
    """
    if inputs.cut.pooled:
        return inputs.last_features(rows).numpy(), None, 0
    blocks, parts = intermediate_blocks(inputs.cut, model), list[Tensor]()

    def compute(batch: Tensor, part: slice) -> Tensor:
        """Compute from the inputs to the trained layers: pixels, or tokens from frozen layers."""
        with exact_float32(inputs.data.device):
            if inputs.cut.prefix is None:
                return model.eval().features(batch[part], blocks).float().cpu()
            start = inputs.cut.prefix.stop
            return model.eval().finish(batch[part], start, intermediate=blocks).float().cpu()

    with console.Progress("features of the trained model", len(rows)) as progress:
        for batch in evaluation_batches(inputs, rows):
            split = functools.partial(compute, batch.inputs)
            parts += inputs.limit.split(split, len(batch.inputs))
            progress.advance(len(batch.inputs))
    head, intermediate = torch.cat(parts).numpy(), None
    if blocks:
        head, intermediate = np.split(head, [model.feature_size], axis=1)
    return head, intermediate, blocks
