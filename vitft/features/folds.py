"""Folds for cross-validation, stratified by class, that keep groups of images together.

Notation: n images, C labels; the targets `y` are class indices (n,) or, for multi-label data, 0 or
1 for each label (n, C).
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitft.data.split import stratify
from vitft.features.logistic import linear_logits

Indices = np.ndarray[Any, np.dtype[np.int64]]

CV_FOLDS = 5
CV_IMAGES = 20_000  # to cross-validate at most; of more, a stratified subset is used


def stratified_folds(y: Tensor, count: int, seed: int, groups: Tensor | None = None) -> Tensor:
    """Return, for each image, the index of the fold that holds it out: (n,).

    The folds are stratified by class. Images that share a number in `groups` (n,) form a group and
    are in the same fold. A class with several groups is in at least two folds. For multi-label
    data, the folds are approximately stratified by label.
    """
    own = np.arange(len(y)) if groups is None else groups.numpy()
    _, group = np.unique(own, return_inverse=True)
    if y.ndim == 2:
        counts = np.zeros((group.max() + 1, y.shape[1]), dtype=np.int64)
        np.add.at(counts, group, y.numpy().astype(np.int64))
        part = stratify(counts, np.bincount(group), [1 / count] * count, seed=seed)
        return torch.from_numpy(part[group])
    random, labels = np.random.default_rng(seed), y.numpy()
    fold_id = _place_groups(labels, group, count, random)
    single, offset = fold_id < 0, 0
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero((labels == label) & single))
        # Fill the folds with fewer images of the class, then take turns
        filled = np.bincount(fold_id[(labels == label) & ~single], minlength=count)
        filled = np.roll(filled, -offset)
        few = np.nonzero(np.arange(filled.max())[:, None] >= filled)[1]
        turns = np.concatenate([few, np.arange(len(rows))])[: len(rows)]
        fold_id[rows] = (turns + offset) % count
        offset += len(rows)  # do not always put the remainder of a class in the first folds
    if groups is not None:
        fold_id = _spread_classes(fold_id, labels, group, count)
    return torch.from_numpy(fold_id)


def in_one_group(y: Tensor, groups: Tensor) -> Tensor:
    """Return which images (n,) have a class or label in one group, unknown to heads without it."""
    if y.ndim == 2:
        names, number = groups.unique(return_inverse=True)
        images = torch.zeros(len(names), y.shape[1]).index_add_(0, number, y.float())
        return (y.bool() & ((images > 0).sum(dim=0) == 1)).any(dim=1)
    pairs = torch.stack([y, groups.to(y)], dim=1).unique(dim=0)
    return torch.bincount(pairs[:, 0])[y] == 1


def _place_groups(
    labels: Indices, group: Indices, count: int, random: np.random.Generator
) -> Indices:
    """Return the fold of each image (n,) whose group has several images, and -1 for the others."""
    fold_id, sizes = np.full(len(labels), -1), np.bincount(group)
    if len(sizes) == len(labels):
        return fold_id
    _, label = np.unique(labels, return_inverse=True)
    totals, taken = np.bincount(label), np.zeros(count)
    fractions = np.zeros((count, len(totals)))  # of the images of each class
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(sizes)[:-1])
    order = random.permutation(np.flatnonzero(sizes > 1))
    # By size, largest first, into the fold with the smallest fractions of the classes, then images
    for chosen in order[np.argsort(-sizes[order], kind="stable")]:
        rows = members[chosen]
        own, images = np.unique(label[rows], return_counts=True)
        parts = images / totals[own]
        best = np.lexsort((taken, (fractions[:, own] @ parts).round(9)))[0]
        fold_id[rows] = best
        fractions[best, own] += parts
        taken[best] += len(rows)
    return fold_id


def stratified_subset(y: Tensor, most: int, seed: int) -> Tensor:
    """Return the sorted indices of at most `most` rows, drawn in proportion to the class sizes."""
    if len(y) <= most:
        return torch.arange(len(y))
    fold_id = stratified_folds(y, -(-len(y) // most), seed)
    return torch.nonzero(fold_id == 0).flatten()


@dataclass(frozen=True, kw_only=True)
class Folded:
    """Features and targets of images in folds, and the weights of the heads fitted to them.

    The rows form blocks, one for each of `views` of the same images. Only the first view is scored.
    All views of images that share a number in `groups` (n,) are held out together.
    """

    x: Tensor  # (rows, D)
    y: Tensor  # (rows,) or (rows, C)
    sample_weight: Tensor  # (rows,)
    classes: int
    seed: int
    views: int = 1
    groups: Tensor | None = None

    @functools.cached_property
    def fold_id(self) -> Tensor:
        """Fold that holds out each image with its views, (n,)."""
        return stratified_folds(self.truth, CV_FOLDS, self.seed, self.groups)

    @functools.cached_property
    def weights(self) -> Tensor:
        """Weights of the rows in the fits (K, rows), zero for the rows that each fold holds out."""
        kept = torch.stack([self.fold_id != k for k in range(CV_FOLDS)]).repeat(1, self.views)
        return kept * self.sample_weight

    @property
    def truth(self) -> Tensor:
        """Targets of the images, (n,) or (n, C)."""
        return self.y[: len(self.y) // self.views]

    def some(self, images: Tensor) -> "Folded":
        """Return all views of some images, in folds of their own."""
        total, views, groups = len(self.truth), self.views, self.groups
        rows = torch.cat([images + v * total for v in range(views)])
        x, y, weight = self.x[rows], self.y[rows], self.sample_weight[rows]
        groups = None if groups is None else groups[images]
        return replace(self, x=x, y=y, sample_weight=weight, groups=groups)

    def held_out(self, heads: Tensor) -> Tensor:
        """Return `held_out_logits` of the images, given the heads of the folds."""
        return held_out_logits(self.x[: len(self.fold_id)], self.fold_id, heads)


def held_out_logits(x: Tensor, fold_id: Tensor, heads: Tensor) -> Tensor:
    """Return each image's logits (n, C), on the CPU, from the head of the fold that held it out.

    The heads (K, C, read + 1) may read the leading features only. The logits of an image that no
    fold holds out are undefined.
    """
    logits = torch.empty(len(x), heads.shape[1])
    for k, head in enumerate(heads):
        rows = fold_id == k
        logits[rows] = linear_logits(x[rows, : head.shape[1] - 1], head).float().cpu()
    return logits


def sample_classes(
    y: Tensor, classes: int, *, most: int, most_logits: int, per_class: int, seed: int
) -> tuple[Tensor, Tensor, int]:
    """Draw a sample of at most about `most` images and `most_logits` logits (images x classes).

    The images are stratified by class. If fewer than `per_class` images per class would remain on
    average, classes are left out instead of further images, first those with a single image. The
    result has the sorted indices (m,) of the images, and their targets among so many classes.
    """
    total, rows = len(y), stratified_subset(y, max(1, min(most, most_logits // classes)), seed)
    if y.ndim == 2 or len(rows) >= min(total, per_class * classes):
        return rows, y[rows], classes
    random = np.random.default_rng([seed, classes])
    counts = np.bincount(y.numpy(), minlength=classes)
    usable = random.permutation(np.flatnonzero(counts >= min(2, counts.max())))
    each = max(per_class, min(total / classes, most * most / most_logits))
    kept = np.sort(usable[: max(2, int(min(most / each, (most_logits / each) ** 0.5)))])
    images = torch.nonzero(torch.from_numpy(np.isin(y.numpy(), kept))).flatten()
    images = images[stratified_subset(y[images], most, seed)]
    return images, torch.searchsorted(torch.from_numpy(kept), y[images]), len(kept)


def _spread_classes(fold_id: Indices, labels: Indices, group: Indices, count: int) -> Indices:
    """Return folds (n,) in which every class with several groups is in at least two folds.

    One of the groups of any other class is moved to the smallest fold. Empty folds are removed.
    """
    _, label = np.unique(labels, return_inverse=True)
    if not len(label):
        return fold_id
    for alone in np.flatnonzero((_spread(fold_id, label) == 0) & (_spread(group, label) > 0)):
        own = label == alone
        moved = group == group[own].max()
        if len(np.unique(fold_id[own])) == 1:
            fold_id = np.where(moved, np.bincount(fold_id, minlength=count).argmin(), fold_id)
    return np.unique(fold_id, return_inverse=True)[1]


def _spread(values: Indices, label: Indices) -> Indices:
    """Return the largest minus the smallest of the values of each label."""
    low = np.full(label.max() + 1, values.max())
    high = np.full(label.max() + 1, values.min())
    np.minimum.at(low, label, values)
    np.maximum.at(high, label, values)
    return high - low
