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
    """Write the reference distribution if there are enough images; return results for audit.json.

    `inputs` are those to the last stage. If `frozen`, training has left the features unchanged.
    """
    if inputs.data.manifest.labels:
        log.debug(f"no images will be flagged as unlike the training images: {_NEVER_FLAGGED}")
        return no_reference(_NEVER_FLAGGED)
    manifest, most = inputs.data.manifest, CACHED_IMAGES if inputs.cut.pooled else COMPUTED_IMAGES
    rows: list[Row] = []
    for part in (manifest.train, manifest.val):  # samples in proportion to the class sizes
        some = stratified_subset(torch.tensor([row.label for row in part]), most, seed)
        rows += [part[i] for i in some.tolist()]
    is_validation = np.array([row.split == "val" for row in rows])
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
    if results["reason"] is not None:
        log.info(f"no images will be flagged as unlike the training images: {results['reason']}")
        return results
    text = f"flagged as unlike the training images: {alarms_text(results)} of new images"
    if results["unknown_class_range"] is not None:
        left_out = count(results["classes_left_out"], "class", "classes")
        text += f"; {power_text(results['unknown_class_range'])} ({left_out} left out in turn)"
        text += f", which {TOO_HIGH}" * results["features_trained"]
    log.debug(text)
    return results


def intermediate_blocks(cut: Cut, model: Model) -> int:
    """Return the number of blocks before the intermediate feature of a trained model; 0 for none.

    Blocks whose output the head reads are not used, and neither are blocks whose output is not
    computed again because they are frozen.
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
    """Return pooled features (n, D), any intermediate ones (n, D), and the blocks before them."""
    if inputs.cut.pooled:
        return inputs.last_features(rows).numpy(), None, 0
    blocks, parts = intermediate_blocks(inputs.cut, model), list[Tensor]()

    def compute(batch: Tensor, part: slice) -> Tensor:
        with exact_float32(inputs.data.device):
            if inputs.cut.prefix is None:
                return model.eval().features(batch[part], blocks).float().cpu()
            start = inputs.cut.prefix.stop  # the batch has tokens from frozen layers, not pixels
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
    """Return the contents of audit.json, given the inputs to the first stage.

    Near-duplicates are those of the split, or are searched for if `find_copies` is set; their
    fingerprints are cached in `cache`, as `train.cache` has it.
    """
    data = inputs.data
    groups: Mapping[str, str] = data.duplicates
    mislabels, probabilities = list[Mislabel](), dict[str, dict[str, float]]()
    if inputs.cut.pooled:
        scored = scored or _score_by_default_head(inputs, seed=seed)
        if find_copies:
            pairs = _find_near_copies(data, scored.features, cache=cache)
            groups = group_names([row.sha256 for row in data.distinct], pairs)
        mislabels, probabilities = _score_labels(data, scored)
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


def _score_by_default_head(inputs: StageInputs, *, seed: int) -> ScoredImages:
    """Return features of the distinct images, and out-of-fold logits at the default L2 penalty."""
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


def _find_near_copies(data: Dataset, features: Tensor, *, cache: str) -> list[IndexPair]:
    """Return index pairs of near-duplicates among distinct images, given their features (n, D)."""
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


def _score_labels(
    data: Dataset, scored: ScoredImages
) -> tuple[list[Mislabel], dict[str, dict[str, float]]]:
    """Return the probable label errors among the distinct images, each with one path.

    Images whose copies have other labels are left out; by their paths, class probabilities follow.
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
