"""Choice of the pictures to ask about: first typical ones, then uncertain and varied ones.

The first pictures are centres of clusters of features. They are found without labels, so their
order is known before the first answer. Most of the later pictures represent many unlabelled
pictures with uncertain predictions. Chosen pictures are not a random sample, so the accuracy must
be measured on other pictures.

Notation: n pictures, D feature dimensions, C classes, k clusters.

Sources: k-means++ by Arthur & Vassilvitskii 2007; typical pictures first as in Hacohen, Dekel &
Weinshall 2022, "Active Learning on a Budget"; margins by Scheffer, Decomain & Wrobel 2001;
coverage weighted by uncertainty as in Bae et al. 2024, "Uncertainty Herding".
"""

import hashlib
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.head import default_penalty
from vitft.features.logistic import Standardizer, class_balanced_weights, linear_logits, rough_fit

_ROUNDS = (10, 20, 40, 80)  # clusters; each round adds a picture from each that has none
_CLUSTERED = 10_000  # maximum number of pictures that are clustered, a random subset of more
_RESTARTS, _ITERATIONS = 4, 25
_CANDIDATES = 1000  # maximum number of pictures from which an uncertain one is chosen
_SHARPNESS = 8.0  # rate at which the similarity of two pictures decreases with 1 - cosine


def directions(x: Tensor) -> Tensor:
    """Return standardised features (n, D), each row scaled to length 1."""
    return F.normalize(Standardizer.fit(x)(x), dim=1)


def first_pictures(z: Tensor, *, seed: int = 0) -> list[int]:
    """Return the indices of the pictures to ask about first, at most `ROUNDS[-1]` of them.

    `z` (n, D) is the result of `directions`. Within a round, each picture is chosen to minimise the
    distances of all pictures to the nearest chosen one, so each prefix of the list covers the
    pictures well.
    """
    generator = torch.Generator().manual_seed(seed)
    if len(z) > _CLUSTERED:
        rows = torch.randperm(len(z), generator=generator)[:_CLUSTERED]
        return [int(rows[i]) for i in first_pictures(z[rows], seed=seed)]
    chosen: list[int] = []
    nearest = torch.full((len(z),), torch.inf)  # squared distance to the nearest chosen picture
    for k in _ROUNDS:
        clusters, typical = min(k, len(z)), []
        centres = min(
            (_k_means(z, clusters, generator) for _ in range(_RESTARTS)),
            key=lambda found: float(torch.cdist(z, found).amin(dim=1).square().sum()),
        )
        distances = torch.cdist(z, centres)  # (n, k)
        cluster = distances.argmin(dim=1)
        covered = {*cluster[chosen].tolist()}
        for j in range(clusters):
            members = torch.where(cluster == j)[0]
            if len(members) and j not in covered:
                typical.append(int(members[distances[members, j].argmin()]))
        distances = torch.cdist(z[typical], z).square()  # (candidates, n)
        for _ in range(min(k - len(chosen), len(typical))):
            best = int(torch.minimum(distances, nearest).sum(dim=1).argmin())
            chosen.append(typical[best])
            nearest = torch.minimum(nearest, distances[best])
            distances[best] = torch.inf
    return chosen


def _k_means(z: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return the centres (k, D) of clusters found by Lloyd's algorithm with k-means++ seeding."""
    picks = [int(torch.randint(len(z), (1,), generator=generator))]
    nearest = (z - z[picks[0]]).square().sum(dim=1)
    while len(picks) < k:
        picks.append(int(torch.multinomial(nearest.clamp(min=1e-12), 1, generator=generator)))
        nearest = torch.minimum(nearest, (z - z[picks[-1]]).square().sum(dim=1))
    centres = z[picks]
    for _ in range(_ITERATIONS):
        cluster = torch.cdist(z, centres).argmin(dim=1)
        sizes = torch.bincount(cluster, minlength=k)[:, None]
        moved = torch.zeros_like(centres).index_add_(0, cluster, z) / sizes.clamp(min=1)
        moved = torch.where(sizes > 0, moved, centres)  # an empty cluster stays where it is
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def unsure_pictures(
    probabilities: Tensor,
    z: Tensor,
    *,
    candidates: Tensor,
    answered: Tensor,
    others: Tensor,
    most: int,
) -> list[int]:
    """Return up to `most` candidates to ask about next, in order.

    Each one maximises the sum, over `others`, of the uncertainty times the increase in the
    similarity to the most similar labelled or chosen picture. Uncertainty is 1 minus the margin
    between the two largest probabilities; similarity is exp(SHARPNESS (cosine - 1)).

    Args:
        probabilities: Class probabilities (n, C) of all pictures, with at least two classes.
        z: Directions (n, D) of all pictures.
        candidates: Indices (m,) of the pictures that may be asked about.
        answered: Indices of the answered pictures, at least one.
        others: Indices of a sample of the unlabelled pictures.
        most: Maximum number of pictures to return.
    """
    candidates = candidates[:_CANDIDATES]
    best = probabilities[others].topk(2, dim=1).values
    uncertainty = 1 - (best[:, 0] - best[:, 1])
    covered = _similarity(z[others], z[answered]).amax(dim=1)
    similarities = _similarity(z[candidates], z[others])  # (m, others)
    chosen: list[int] = []
    for _ in range(min(most, len(candidates))):
        gains = (similarities - covered).clamp(min=0) @ uncertainty
        gains[chosen] = -1
        chosen.append(int(gains.argmax()))
        covered = torch.maximum(covered, similarities[chosen[-1]])
    return [int(i) for i in candidates[chosen]]


def _similarity(a: Tensor, b: Tensor) -> Tensor:
    """Return the similarities (m, n) of directions (m, D) and (n, D), from 0 to 1."""
    return (_SHARPNESS * (a @ b.T - 1)).exp()


def random_order(digests: list[str]) -> list[int]:
    """Return the indices of the pictures in a random order determined by their contents.

    The order of two pictures does not change if others are added, so the pictures at the front
    remain a random sample.
    """

    def position(i: int) -> bytes:
        return hashlib.sha256(f"vitft label {digests[i]}".encode()).digest()

    return sorted(range(len(digests)), key=position)


# class probabilities from a few answers: a linear head on the directions of frozen features -------

_MEAN_SCALE = 5.0  # brings cosine similarities to the scale of the regression's logits
PSEUDO_LABELLED = 500  # maximum number of unlabelled pictures to which the head is fitted
_PSEUDO_WEIGHT, _PSEUDO_FITS = 0.05, 3
"""Weight of a guess with probability 1, in units of one answer, and number of fits to guesses."""


def self_trained_head(
    z: Tensor, y: Tensor, weights: Tensor, unlabelled: Tensor, *, classes: int
) -> Tensor:
    """Fit a head to the answers, then again with its guesses for unlabelled pictures.

    Args:
        z: Directions (m, D) of the labelled pictures, each of length 1.
        y: Class indices (m,).
        weights: Weight of each answer (m,), before the classes are balanced.
        unlabelled: Directions (u, D) of unlabelled pictures.
        classes: Number of classes C.

    Returns:
        Weights and, in the last column, biases of the classes, (C, D + 1). Classes without answers
        have a bias of minus infinity, and therefore a probability of 0.
    """
    head = _guess_head(z, y, weights, classes=classes)
    for _ in range(_PSEUDO_FITS if len(unlabelled) else 0):
        probability, guessed = linear_logits(unlabelled, head).softmax(dim=1).max(dim=1)
        head = _guess_head(
            torch.cat([z, unlabelled]),
            torch.cat([y, guessed]),
            torch.cat([weights, _PSEUDO_WEIGHT * probability]),
            classes=classes,
        )
    return head


def _guess_head(z: Tensor, y: Tensor, weights: Tensor, *, classes: int) -> Tensor:
    """Fit a head to labelled pictures, giving every class with answers the same total weight."""
    present, own = torch.unique(y, return_inverse=True)
    scale = math.sqrt(z.shape[1])
    weights = weights * class_balanced_weights(own, len(present))
    head = torch.zeros(len(present), z.shape[1] + 1)
    if len(present) > 1:
        l2 = default_penalty(own, len(present))
        fitted = rough_fit(scale * z, own, weights[None], classes=len(present), l2=l2)
        head = fitted[0].float()
        head[:, :-1] *= scale
    sums = torch.zeros(len(present), z.shape[1]).index_add_(0, own, weights[:, None] * z)
    head[:, :-1] += _MEAN_SCALE * F.normalize(sums, dim=1)
    every = torch.zeros(classes, z.shape[1] + 1)
    every[:, -1] = -torch.inf
    every[present] = head
    return every
