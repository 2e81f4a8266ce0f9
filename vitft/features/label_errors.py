"""Labels that the pictures themselves speak against.

Each picture is judged by a linear head that did not see it, and by its nearest neighbours. Both
are posteriors over the classes; multiplied they rank wrong labels better than either, and better
than the thresholds of confident learning (docs/experiments.md).

Letters: n images, C classes, D numbers per feature; `x` is (n, D), `y` is (n,).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.probe import (
    CV_IMAGES,
    FOLDS,
    KNN_TEMPERATURE,
    NEIGHBOURS,
    Scaling,
    choose_penalty,
    evenly,
    folds,
    held_out_scores,
    solve,
)

ODDS = 30.0
"""A label is suspected if another one is so many times as likely."""
DOUBT = 0.05
"""Added to the neighbours' votes: twenty neighbours cannot exclude a class."""
USUAL_L2 = 0.1
"""Penalty where the cost of choosing one is not worth it."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """One image whose label is probably another."""

    row: int
    suggested: int
    """Class index."""
    given_probability: float
    suggested_probability: float


def suspects_in(shares: Tensor, y: Tensor) -> list[Suspect]:
    """The images whose label is far less likely than another, the surest first.

    Args:
        shares: Posteriors (n, C) of `posteriors`.
        y: The labels as they are given, (n,).
    """
    given = shares.gather(1, y[:, None])[:, 0]
    most, best = shares.max(dim=-1)
    rows = torch.nonzero(most >= ODDS * given).flatten().tolist()
    found = [Suspect(i, int(best[i]), float(given[i]), float(most[i])) for i in rows]
    return sorted(found, key=lambda s: (s.given_probability / s.suggested_probability, s.row))


def posteriors(logits: Tensor, x: Tensor, y: Tensor, groups: Sequence[int] | Tensor) -> Tensor:
    """What head and neighbours say together, (n, C), rows sum to 1.

    Args:
        logits: Of heads that did not see the image, (n, C).
        x: Features (n, D).
        y: Labels (n,).
        groups: Copies of one picture have the same number and do not vote for each other, (n,).
    """
    votes = votes_of_others(x, y, torch.as_tensor(groups), classes=logits.shape[1])
    shares = logits.softmax(dim=-1) * (votes + DOUBT)
    return shares / shares.sum(dim=-1, keepdim=True)


def votes_of_others(x: Tensor, y: Tensor, groups: Tensor, *, classes: int) -> Tensor:
    """Shares (n, C) of the nearest images outside of the own group, weighted by similarity."""
    known, votes = F.normalize(x, dim=-1), []
    for part, own in zip(known.split(1024), groups.split(1024), strict=True):
        alike = part @ known.T  # (m, n)
        alike[own[:, None] == groups[None]] = -torch.inf
        nearest = alike.topk(min(NEIGHBOURS, len(x)), dim=-1)
        weight = (nearest.values / KNN_TEMPERATURE).exp()
        votes.append(torch.zeros(len(part), classes).scatter_add_(1, y[nearest.indices], weight))
    total = torch.cat(votes)
    return total / total.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def out_of_fold(
    x: Tensor,
    y: Tensor,
    groups: Tensor,
    *,
    classes: int,
    seed: int,
    counted: Tensor | None = None,
    l2: float | None = None,
) -> Tensor:
    """Logits (n, C) of each image by a head that saw neither it nor a copy of it.

    Args:
        x: Features (n, D).
        y: Labels (n,).
        groups: Copies of one picture have the same number, (n,).
        classes: C.
        seed: Of the folds.
        counted: How much each image counts in learning, (n,); default: all the same.
        l2: Penalty; default: chosen by cross-validation.
    """
    counted = torch.ones(len(y)) if counted is None else counted
    scaled = Scaling.of(x)(x)
    if l2 is None:
        rows = evenly(y, CV_IMAGES, seed)
        l2, _ = choose_penalty(
            scaled[rows],
            y[rows],
            counted[None, rows],
            classes=classes,
            seed=seed,
            groups=groups[rows],
        )
    held = folds(y, FOLDS, seed, groups)
    kept = torch.stack([held != k for k in range(FOLDS)]).float() * counted
    heads = solve(scaled, y, kept, classes=classes, l2=l2, steps=60, tolerance=3e-4)
    return held_out_scores(scaled, heads, held)
