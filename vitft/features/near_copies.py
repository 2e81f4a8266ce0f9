"""Pairs of similar images by their features, as candidates for near-duplicates.

Perceptual hashes miss copies of images with little structure, e.g. almost empty screenshots.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.data.duplicates import IndexPair
from vitft.features.folds import CV_IMAGES

_MIN_SIMILARITY = 0.75
"""Minimum cosine similarity between the centred features of candidate near-duplicates. Features
alone cannot tell copies from similar subjects (benchmarks/notebook/duplicates.md), so candidates
are confirmed by fingerprints."""


def similar_images(x: Tensor) -> list[IndexPair]:
    """Return the index pairs (i < j) of similar images to compare, given their features (n, D).

    There are at most a tenth as many pairs as images, but up to 100, and at most 500. The list is
    empty for more than `CV_IMAGES` images.
    """
    most = min(500, max(100, round(0.1 * len(x))))
    return most_similar(x, most) if len(x) <= CV_IMAGES else []


def most_similar(x: Tensor, most: int) -> list[IndexPair]:
    """Return up to `most` index pairs (i < j) of similar features (n, D), most similar first.

    After centring, the cosine similarity of each pair is at least `_MIN_SIMILARITY`.
    """
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
