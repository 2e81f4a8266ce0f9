"""Predictions for the images of a run by heads that were not fitted to them."""

import numpy as np
from numpy.typing import NDArray

from vitft.metrics.calibration import ScoredSet
from vitft.training.dataset import Dataset
from vitft.training.stages import ScoredImages


def cross_validated_set(data: Dataset, scored: ScoredImages) -> ScoredSet | None:
    """Return the cross-validated logits (m, C) and labels (m,) of the training images, or None.

    Images that are also in the validation set are left out. The result is None if there are no
    cross-validated logits or all images are left out.
    """
    if scored.held_out is None:
        return None
    validated = {row.sha256 for row in data.manifest.val}
    distinct, (rows, logits) = data.distinct, scored.held_out
    kept = [i for i, row in enumerate(rows.tolist()) if distinct[row].sha256 not in validated]
    if not kept:
        return None
    own = [distinct[int(rows[i])] for i in kept]
    labels, groups = data.labels(own).cpu().numpy(), data.user_groups(own)
    return ScoredSet(logits[kept].double().numpy(), labels, groups)


def cross_validated_classes(data: Dataset, scored: ScoredImages) -> NDArray[np.int32] | None:
    """Return the cross-validated class of each image (n,), in the order of split.csv, or None.

    The class is -1 for test images, for validation images that the data names, and for images that
    were not cross-validated. The result is None for multi-label data, and if there are no
    cross-validated logits.
    """
    if scored.held_out is None or data.manifest.labels:
        return None
    distinct, (rows, logits) = data.distinct, scored.held_out
    predicted = logits.argmax(dim=1).tolist()
    by_digest = {distinct[row].sha256: c for row, c in zip(rows.tolist(), predicted, strict=True)}
    apart = ("val", "test") if data.own_split else ("test",)
    return np.array(
        [-1 if r.split in apart else by_digest.get(r.sha256, -1) for r in data.manifest.rows],
        np.int32,
    )
