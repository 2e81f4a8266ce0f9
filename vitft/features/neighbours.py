"""Nearest-neighbour classification of features by cosine similarity.

Notation: n images, m queries, D feature dimensions, C classes; the features `x` are (n, D), and
the class indices `y` are (n,). For multi-label data, `y` is 0 or 1 for each label (n, C), and a
query's vote for a label is the weighted fraction of its neighbours that have the label.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.data.duplicates import IndexPair
from vitft.features.folds import CV_IMAGES, stratified_subset

_SIMILARITY_VALUES = 2**27  # maximum number of similarities in memory (512 MiB)
_NEIGHBOURS, _KNN_TEMPERATURE = 20, 0.07  # as in Caron et al. 2021 (DINO, 2104.14294)
_MAX_VOTERS = 50_000  # of more images, a fixed sample stratified by class votes


def nearest_neighbours(x: Tensor, y: Tensor, queries: Tensor, *, classes: int) -> Tensor:
    """Return the votes (m, C), on the CPU, of the training images nearest to each query (m, D).

    More similar images have more weight. At most `_MAX_VOTERS` of the training images vote.
    """
    voters = stratified_subset(y, _MAX_VOTERS, 0)
    x, y = x[voters], y[voters].to(x.device)
    lengths, found = torch.linalg.vector_norm(x, dim=-1).clamp(min=1e-12), []
    for part in F.normalize(queries, dim=-1).split(_rows_at_once(len(x))):
        similarity = (part @ x.T).div_(lengths)  # (m, n)
        found.append(_votes(similarity, y, classes))
    return torch.cat(found).cpu()


def votes_outside_group(x: Tensor, y: Tensor, groups: Tensor, *, classes: int) -> Tensor:
    """Return, for each image, the votes (n, C) of its nearest neighbours in other groups (n,).

    The votes for an image sum to 1, or to 0 if there is only one group.
    """
    voters, known = stratified_subset(y, _MAX_VOTERS, 0), F.normalize(x, dim=-1)
    found = list[Tensor]()
    y, groups = y.to(x.device), groups.to(x.device)
    candidates, theirs, rows = known[voters], groups[voters], _rows_at_once(len(voters))
    for part, own in zip(known.split(rows), groups.split(rows), strict=True):
        similarity = part @ candidates.T  # (m, voters)
        similarity[own[:, None] == theirs[None]] = -torch.inf
        found.append(_votes(similarity, y[voters], classes))
    total = torch.cat(found).cpu()
    if y.ndim == 2:
        return total
    return total / total.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def _rows_at_once(voters: int) -> int:
    """Return the number of queries whose similarities to all voters fit into memory."""
    return max(1, min(1024, _SIMILARITY_VALUES // max(1, voters)))


def _votes(similarity: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the weights of each query's most similar images, summed by class: (m, C)."""
    nearest = similarity.topk(min(_NEIGHBOURS, similarity.shape[1]), dim=-1)  # (m, k)
    weight = (nearest.values / _KNN_TEMPERATURE).exp()
    if y.ndim == 2:
        weight = weight / weight.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        return torch.einsum("mk,mkc->mc", weight, y[nearest.indices].to(weight))
    return weight.new_zeros(len(similarity), classes).scatter_add_(1, y[nearest.indices], weight)


# pairs of similar images by their features, as candidates for near-duplicates ---------------------

_MIN_SIMILARITY = 0.75
"""Minimum cosine similarity between the centred features of candidate near-duplicates. Features
alone cannot tell copies from similar subjects (benchmarks/notebook/duplicates.md), so candidates
are confirmed by fingerprints."""


def similar_images(x: Tensor) -> list[IndexPair]:
    """Return the index pairs (i < j) of similar images to compare, most similar first.

    After centring, the cosine similarity of the features (n, D) of each pair is at least
    `_MIN_SIMILARITY`. There are up to n / 10 pairs, but at least 100 and at most 500 may be
    returned. The list is empty for more than `CV_IMAGES` images.
    """
    if len(x) > CV_IMAGES:
        return []
    most = min(500, max(100, round(0.1 * len(x))))
    centred = F.normalize(x - x.mean(dim=0))
    found: list[tuple[float, int, int]] = []
    for begin in range(0, len(centred), 1024):
        cosines = centred[begin : begin + 1024] @ centred.T  # (m, n)
        cosines.masked_fill_(
            torch.arange(len(centred)) <= torch.arange(begin, begin + len(cosines))[:, None], -1.0
        )
        # Few pairs reach the threshold; sorting all pairs would take much longer.
        near = torch.nonzero(cosines.flatten() >= _MIN_SIMILARITY).flatten()
        best = cosines.flatten()[near].topk(min(most, len(near)))
        places = near[best.indices].tolist()
        for cosine, place in zip(best.values.tolist(), places, strict=True):
            found.append((-cosine, begin + place // len(centred), place % len(centred)))
    return [(i, j) for _, i, j in sorted(found)[:most]]
