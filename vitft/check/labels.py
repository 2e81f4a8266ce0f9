"""Check of the labels: class probabilities of every image, and probable label errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitft.check.proposals import ClassProbabilities
from vitft.data.inspection import InspectedFile
from vitft.features.head import number_groups
from vitft.features.label_errors import (
    find_label_errors,
    label_probabilities,
    out_of_fold_logits,
)
from vitft.metrics.results import Mislabel


@dataclass(frozen=True, slots=True)
class LabelCheck:
    """Result of the check of the labels."""

    probabilities: Mapping[str, ClassProbabilities]
    """By path."""
    mislabels: list[Mislabel]


def check_labels(
    files: Sequence[InspectedFile],
    classes: Sequence[str],
    groups: Mapping[str, str],
    features: Callable[[Sequence[str]], Tensor],
    *,
    seed: int,
) -> LabelCheck:
    """Find probable label errors by heads that were not fitted to the image.

    An image with two labels is not used for fitting, and is not reported: it is a finding of its
    own.

    Args:
        files: Readable files, at least one.
        classes: Class names.
        groups: Groups of near-duplicates: digest to name of the group.
        features: Returns the features (n, D) of images by their digests.
        seed: Of the cross-validation.
    """
    by_digest: dict[str, list[InspectedFile]] = {}
    for file in files:
        by_digest.setdefault(file.sha256, []).append(file)
    has_one_label = [len({file.label for file in same}) == 1 for same in by_digest.values()]
    x = features(list(by_digest))
    y = torch.tensor([same[0].label for same in by_digest.values()])
    group_ids = number_groups(by_digest, groups)
    logits = out_of_fold_logits(
        x,
        y,
        group_ids,
        classes=len(classes),
        seed=seed,
        sample_weight=torch.tensor(has_one_label).float(),
    )
    probabilities = label_probabilities(logits, x, y, group_ids)
    copies = list(by_digest.values())
    mislabels = [
        error.to_mislabel(file.path, file.label, classes)
        for error in find_label_errors(probabilities, y)
        if has_one_label[error.row]
        for file in copies[error.row]
    ]
    by_path = {
        file.path: dict(zip(classes, row, strict=True))
        for same, row in zip(copies, probabilities.tolist(), strict=True)
        for file in same
    }
    return LabelCheck(by_path, mislabels)
