"""Iterative stratification: division of multi-label data into subsets, label by label.

Notation: U units (images, or groups of images that must stay together), C labels, P subsets.

Source: Sechidis, Tsoumakas & Vlahavas 2011, "On the stratification of multi-label data", ECML PKDD,
algorithm 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitft.config.sections import DataSpec
from vitft.data.folder import Folder
from vitft.data.inspection import InspectedFile
from vitft.data.membership import membership

_Counts = np.ndarray[Any, np.dtype[np.int64]]


def stratify(
    counts: _Counts,
    sizes: _Counts,
    fractions: Sequence[float],
    *,
    seed: int | None,
    at_least: int = 0,
    fixed: _Counts | None = None,
) -> _Counts:
    """Return the index of the subset to which each unit is assigned: (U,).

    The rarest label is divided first: each of its units is assigned to the subset that lacks the
    most images with this label. Units without labels are assigned last, to the subset that lacks
    the most images.

    Args:
        counts: Number of images with each label in each unit, (U, C).
        sizes: Number of images in each unit, (U,).
        fractions: Target fraction of the images in each subset; the fractions sum to 1.
        seed: Seed for shuffling the units; None to keep the given order.
        at_least: Target minimum number of images with each label in each subset.
        fixed: Index of the subset of each unit that is already assigned, -1 for all others, (U,).
    """
    share = np.asarray(fractions)
    totals = counts.sum(axis=0)
    lacking = share[:, None] * totals  # (P, C)
    lacking = np.maximum(lacking, np.minimum(at_least, totals / len(share)))
    lacking_images = share * sizes.sum()  # (P,)
    part, order = np.full(len(counts), -1), np.arange(len(counts))
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order)
    remaining = totals.astype(np.float64)

    def assign(unit: int, wanted: Any) -> None:  # noqa: ANN401 - an array (P,)
        best = np.flatnonzero(np.isclose(wanted, wanted.max()))
        place(unit, int(best[np.argmax(lacking_images[best])]))

    def place(unit: int, chosen: int) -> None:
        part[unit] = chosen
        lacking[chosen] -= counts[unit]
        lacking_images[chosen] -= sizes[unit]
        np.subtract(remaining, counts[unit], out=remaining)

    for unit, chosen in enumerate(() if fixed is None else fixed.tolist()):
        if chosen >= 0:
            place(unit, chosen)
    while (remaining > 0).any():
        label = int(np.argmin(np.where(remaining > 0, remaining, np.inf)))
        own = order[(part[order] < 0) & (counts[order, label] > 0)]
        for unit in own[np.argsort(-counts[own, label], kind="stable")]:
            assign(int(unit), lacking[:, label])
    for unit in order[part[order] < 0]:
        assign(int(unit), lacking_images)
    return part


def draw_by_labels(
    folder: Folder, members: Sequence[Sequence[InspectedFile]], spec: DataSpec
) -> set[str]:
    """Draw the validation images of multi-label data, and return their paths.

    Approximately the fraction `spec.val_rate` of the images with each label is drawn; the target is
    at least one image. Each group in `members` stays together. The groups are processed in the
    given order, which is shuffled with the seed unless `spec.split` is `content`. Groups already
    assigned to `val` are always drawn, and groups assigned to `train` are never drawn.
    """
    has = membership(folder.classes, folder.labels).astype(np.int64)
    counts = np.stack([has[[file.label for file in unit]].sum(axis=0) for unit in members])
    side = {"val": 0, "train": 1}
    part = stratify(
        counts,
        np.array([len(unit) for unit in members]),
        (spec.val_rate, 1 - spec.val_rate),
        seed=None if spec.split == "content" else spec.seed,
        at_least=1,
        fixed=np.array([side.get(unit[0].part, -1) for unit in members]),
    )
    return {f.path for unit, own in zip(members, part, strict=True) if own == 0 for f in unit}
