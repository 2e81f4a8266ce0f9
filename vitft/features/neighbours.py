"""Nearest-neighbour classification of features by cosine similarity.

Notation: n images, m queries, D feature dimensions, C classes; the features `x` are (n, D), and
the class indices `y` are (n,). For multi-label data, `y` is 0 or 1 for each label (n, C), and a
query's vote for a label is the weighted fraction of its neighbours that have the label.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.folds import stratified_subset

_SIMILARITY_VALUES = 2**27  # maximum number of similarities in memory (512 MiB)
NEIGHBOURS, KNN_TEMPERATURE = 20, 0.07
"""Number of neighbours and softmax temperature, as in Caron et al. 2021 (DINO, 2104.14294)."""
_MAX_VOTERS = 50_000
"""Maximum number of images that vote. In larger datasets, a fixed sample stratified by class votes,
so the time grows with the number of images, not with its square."""


def nearest_neighbours(x: Tensor, y: Tensor, queries: Tensor, *, classes: int) -> Tensor:
    """Return the votes (m, C) of the training images nearest to each query (m, D).

    More similar images have more weight. At most `_MAX_VOTERS` of the training images vote.
    """
    voters = _voting_images(y)
    x, y = x[voters], y[voters]
    lengths, found = torch.linalg.vector_norm(x, dim=-1).clamp(min=1e-12), []
    for part in F.normalize(queries, dim=-1).split(_rows_at_once(len(x))):
        similarity = (part @ x.T).div_(lengths)  # (m, n)
        found.append(_votes(similarity, y, classes))
    return torch.cat(found)


def votes_outside_group(x: Tensor, y: Tensor, groups: Tensor, *, classes: int) -> Tensor:
    """Return, for each image, the votes (n, C) of its nearest neighbours in other groups.

    `groups` (n,) contains group numbers. The votes for the classes of an image sum to 1, or to 0 if
    there is only one group. At most `_MAX_VOTERS` images vote.
    """
    voters, known, found = _voting_images(y), F.normalize(x, dim=-1), []
    candidates, theirs = known[voters], groups[voters]
    rows = _rows_at_once(len(voters))
    for part, own in zip(known.split(rows), groups.split(rows), strict=True):
        similarity = part @ candidates.T  # (m, voters)
        similarity[own[:, None] == theirs[None]] = -torch.inf
        found.append(_votes(similarity, y[voters], classes))
    total = torch.cat(found)
    if y.ndim == 2:
        return total
    return total / total.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def _voting_images(y: Tensor) -> Tensor:
    """Return the ascending indices of the images that vote, given the targets (n,) or (n, C)."""
    if len(y) <= _MAX_VOTERS:
        return torch.arange(len(y))
    if y.ndim == 2:
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:_MAX_VOTERS]
        return chosen.sort().values
    return stratified_subset(y, _MAX_VOTERS, 0)


def _rows_at_once(voters: int) -> int:
    """Return the number of queries whose similarities to all voters fit into memory."""
    return max(1, min(1024, _SIMILARITY_VALUES // max(1, voters)))


def _votes(similarity: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return, for each query, the weights of the most similar images, summed by class: (m, C).

    `similarity` (m, n) contains cosines, and `y` (n,) the class indices of the images.
    """
    nearest = similarity.topk(min(NEIGHBOURS, similarity.shape[1]), dim=-1)  # (m, k)
    weight = (nearest.values / KNN_TEMPERATURE).exp()
    if y.ndim == 2:
        weight = weight / weight.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        return torch.einsum("mk,mkc->mc", weight, y[nearest.indices].to(weight))
    return torch.zeros(len(similarity), classes).scatter_add_(1, y[nearest.indices], weight)
