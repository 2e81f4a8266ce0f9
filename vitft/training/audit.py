"""Data audit at the end of a run: duplicates, leakage and suspected label errors.

Identical files are found by their digests. If one feature vector per image is cached, the features
are also used to find probable label errors and candidate near-duplicates. Only these candidates are
read again, to compare their fingerprints. The trained model does not depend on the audit.
"""

import logging
import re
from collections.abc import Mapping

from torch import Tensor

from vitft.check.audit import AuditedImage, audit_images, audit_summary, class_imbalance
from vitft.config.sections import DataSpec
from vitft.data.duplicates import IndexPair, copies_among, group_names
from vitft.data.fixes import settled_paths
from vitft.data.folder import File, Folder
from vitft.data.inspection import InspectedFolder
from vitft.data.view_facts import measure_view
from vitft.features.fingerprints import Fingerprints, fingerprint_folder
from vitft.features.folds import CV_IMAGES, in_one_group
from vitft.features.head import HeldOutLogits, cross_validation_rows
from vitft.features.label_errors import find_mislabels, out_of_fold_logits, score_given_labels
from vitft.features.near_copies import similar_images
from vitft.features.penalty import default_penalty
from vitft.metrics.results import AuditResults, Mislabel
from vitft.system.rundir import RunDir
from vitft.training.dataset import Dataset, StageInputs
from vitft.training.stages import ScoredImages

log = logging.getLogger(__name__)


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
