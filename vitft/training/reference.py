"""Reference distribution of a run's features, used to detect out-of-distribution images.

The features are the pooled features of the last block of the trained model. If layers before the
head were trained, these features are not cached; they are computed for a small, stratified sample,
together with intermediate features (see `features.ood`).
"""

import functools
import logging
import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from vitft.check.audit import AuditedImage, audit_images, audit_summary, class_imbalance
from vitft.config.sections import DataSpec
from vitft.data.duplicates import IndexPair, copies_among, group_names
from vitft.data.fixes import settled_paths
from vitft.data.folder import File, Folder
from vitft.data.inspection import InspectedFolder
from vitft.data.split import Row
from vitft.data.transforms import measure_view
from vitft.features.cut import Cut
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.features.folds import CV_IMAGES, in_one_group, stratified_subset
from vitft.features.head import HeldOutLogits, cross_validation_rows
from vitft.features.label_errors import find_mislabels, out_of_fold_logits, score_given_labels
from vitft.features.neighbours import similar_images
from vitft.features.ood import TOO_HIGH, alarms_text, fit_reference, no_reference
from vitft.features.penalty import default_penalty
from vitft.features.reference import REFERENCE_FILE, Features, power_text
from vitft.metrics.results import AuditResults, Mislabel, OodResults
from vitft.models.timm_model import Model
from vitft.models.vit import VisionTransformer
from vitft.system import console
from vitft.system.device import exact_float32
from vitft.system.rundir import RunDir
from vitft.system.text import count
from vitft.training.batches import Dataset, StageInputs, evaluation_batches
from vitft.training.stages import ScoredImages

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


# data audit at the end of a run: duplicates, leakage and suspected label errors -------------------


def audit_run(
    inputs: StageInputs,
    inspected: InspectedFolder,
    scored: ScoredImages | None,
    *,
    seed: int,
    cache: str,
    find_copies: bool,
) -> AuditResults:
    """Return the contents of audit.json.

    Args:
        inputs: The inputs to the first stage.
        inspected: The loaded images and the files that could not be read.
        scored: Features and held-out logits of the distinct images, or None if they have not been
            computed.
        seed: Seed for the cross-validation folds, used if `scored` is None.
        cache: The setting `train.cache`, which determines where fingerprints are cached.
        find_copies: Whether to search for near-duplicates instead of reusing those found for the
            split.
    """
    data = inputs.data
    groups: Mapping[str, str] = data.duplicates
    mislabels, probabilities = list[Mislabel](), dict[str, dict[str, float]]()
    if inputs.cut.pooled:
        scored = scored or score_by_default_head(inputs, seed=seed)
        if find_copies:
            pairs = find_near_copies(data, scored.features, cache=cache)
            groups = group_names([row.sha256 for row in data.distinct], pairs)
        mislabels, probabilities = score_labels(data, scored)
    names = data.manifest.classes
    audit = audit_images(
        [AuditedImage(path=r.path, label=names[r.label], split=r.split, sha256=r.sha256)
         for r in data.manifest.rows],
        unused=inspected.folder.unused,
        notes=(*inspected.folder.warnings, *inspected.folder.notes),
        bad=inspected.bad,
        odd=[(file.path, remark) for file in inspected.good for remark in file.odd],
        groups=groups,
        mislabels=mislabels,
        probabilities=probabilities,
        view=measure_view(data.transform, ((file.width, file.height) for file in inspected.good)),
        own_split=inspected.folder.layout == "split",
    )  # fmt: skip
    if data.manifest.labels:
        every = (name for row in data.manifest.rows for name in data.manifest.names(row))
        audit["imbalance"] = class_imbalance(every)
    return audit


def log_audit(audit: AuditResults, run: RunDir, spec: DataSpec, *, is_several: bool) -> None:
    """Log the number of findings to review, if any, and the page that shows them."""
    if summary := audit_summary(audit, settled_paths(spec)):
        what = "it" if re.fullmatch("1 [^,]*", summary) else "them"
        verb = f"look at {what}" if is_several else f"decide on {what}"
        log.debug(f"found {summary}: {verb} in {run.path / 'report.html'}")


def score_by_default_head(inputs: StageInputs, *, seed: int) -> ScoredImages:
    """Return features of the distinct images, and out-of-fold logits at the default L2 penalty.

    The logits are None if there are too few images per class.
    """
    data = inputs.data
    distinct = data.distinct
    x, y = inputs.last_features(distinct), data.labels(distinct).cpu()
    groups = data.group_ids(distinct)
    rows = cross_validation_rows(y, len(data.manifest.outputs), seed, most=CV_IMAGES)
    if rows is None:
        return ScoredImages(features=x, held_out=None)
    logits = out_of_fold_logits(
        x[rows],
        y[rows],
        groups[rows],
        classes=len(data.manifest.outputs),
        seed=seed,
        l2=default_penalty(y, len(data.manifest.outputs)),
    )
    known = ~in_one_group(y[rows], groups[rows])
    return ScoredImages(features=x, held_out=HeldOutLogits(rows[known], logits[known]))


def find_near_copies(data: Dataset, features: Tensor, *, cache: str) -> list[IndexPair]:
    """Return index pairs of near-duplicates among distinct images, given their features (n, D).

    The list is empty if there are more than `CV_IMAGES` images or a candidate file has changed.
    """
    distinct = data.distinct
    pairs = similar_images(features)
    rows = sorted({row for pair in pairs for row in pair})
    digests = [distinct[row].sha256 for row in rows]
    fingerprints = Fingerprints(cache, data.transform.grey_range)
    folder = Folder(
        root=data.manifest.root,
        classes=data.manifest.classes,
        files=tuple(File(distinct[row].path, distinct[row].label) for row in rows),
        layout="classes",
    )
    fingerprint_folder(folder, fingerprints, max_pixels=data.max_pixels)
    if {*digests} != {*fingerprints.by_digest}:
        return []  # a file has changed since the start of the run
    position = {row: i for i, row in enumerate(rows)}
    table = fingerprints.table(digests)
    copies = copies_among(table, [(position[one], position[other]) for one, other in pairs])
    return [(rows[one], rows[other]) for one, other in copies]


def score_labels(
    data: Dataset, scored: ScoredImages
) -> tuple[list[Mislabel], dict[str, dict[str, float]]]:
    """Return the probable label errors among the distinct images, each with one path.

    An image is left out if an identical image has another label. For the paths of such images, the
    class probabilities by name are returned, too.
    """
    if scored.held_out is None:
        return [], {}
    rows, distinct = scored.held_out.rows, data.distinct
    some = [distinct[row] for row in rows.tolist()]
    y = data.labels(some).cpu()
    scores = score_given_labels(
        scored.held_out.logits, scored.features[rows], y, data.group_ids(some)
    )
    labels: dict[str, set[int]] = {}
    for row in data.manifest.rows:
        labels.setdefault(row.sha256, set()).add(row.label)
    paths = [[row.path] if len(labels[row.sha256]) == 1 else [] for row in some]
    names = data.manifest.outputs
    conflicts = {
        row.sha256: dict(zip(names, found.tolist(), strict=True))
        for row, found in zip(some, scores.probabilities, strict=True)
        if len(labels[row.sha256]) > 1
    }
    by_path = {r.path: conflicts[r.sha256] for r in data.manifest.rows if r.sha256 in conflicts}
    return find_mislabels(scores, y, paths, names), by_path
