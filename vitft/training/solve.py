"""A linear head solved on cached features, and what those features show by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.data.transforms import View
from vitft.features.head import HeldOutLogits, SolvedHead, cross_validate, solve_head
from vitft.features.neighbours import nearest_neighbours
from vitft.metrics.results import SolvedHeadResults
from vitft.models.timm_model import Model
from vitft.training.dataset import Dataset, StageInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFeatures:
    """Inputs of the head: float32 on the CPU."""

    training: Tensor
    """(views * n, D): one block of rows for each view, the plain view first."""
    validation: Tensor
    """(m, D)"""
    distinct: Tensor
    """One row for each distinct image of either part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredImages:
    """Features of the distinct images, and their logits by heads that were not fitted to them."""

    features: Tensor
    held_out: HeldOutLogits


def read_head_features(model: Model, inputs: StageInputs, views: Sequence[View]) -> HeadFeatures:
    """Read the cached features and pass them through the pre-logits layer, if there is one."""
    manifest = inputs.data.manifest
    pre_logits = model.pre_logits.cpu()
    with torch.no_grad():
        parts = [pre_logits(inputs.features(manifest.train, view)) for view in views]
        found = HeadFeatures(
            training=torch.cat(parts) if len(parts) > 1 else parts[0],  # one may be a mapped file
            validation=pre_logits(inputs.features(manifest.val)),
            distinct=pre_logits(inputs.features(inputs.data.distinct)),
        )
    pre_logits.to(inputs.data.device)
    return found


def fit_head(
    model: Model, features: HeadFeatures, data: Dataset, *, l2: float, balanced: bool, seed: int
) -> tuple[SolvedHead, float]:
    """Put the optimal linear head into the model.

    Returns:
        The head with the penalties that were tried, and the training loss of the head before.
    """
    head, rows = model.head, data.manifest.train
    assert isinstance(head, nn.Linear)
    labels = data.labels(rows).cpu()
    views = len(features.training) // len(rows)
    solved = solve_head(
        features.training,
        labels.repeat(views),
        classes=len(data.manifest.classes),
        l2=l2,
        balanced=balanced,
        seed=seed,
        views=views,
        groups=data.group_ids(rows),
    )
    weight, bias = data.group.broadcast(solved.weight), data.group.broadcast(solved.bias)
    with torch.no_grad():
        logits = head(features.training[: len(rows)].to(data.device))
        first_loss = F.cross_entropy(logits, labels.to(data.device)).item()
        head.weight.copy_(weight)
        head.bias.copy_(bias)
    return solved, first_loss


def score_features(
    features: HeadFeatures,
    data: Dataset,
    *,
    l2: float,
    balanced: bool,
    seed: int,
    first_loss: float,
) -> tuple[SolvedHeadResults, ScoredImages]:
    """Classify by nearest neighbours and cross-validate the head over all distinct images."""
    rows, classes, distinct = data.manifest.train, data.manifest.classes, data.distinct
    votes = nearest_neighbours(
        features.training[: len(rows)],
        data.labels(rows).cpu(),
        features.validation,
        classes=len(classes),
    )
    truth = data.labels(data.manifest.val).cpu()
    cross_validation, held_out = cross_validate(
        features.distinct,
        data.labels(distinct).cpu(),
        classes,
        l2=l2,
        balanced=balanced,
        seed=seed,
        groups=data.group_ids(distinct),
    )
    results: SolvedHeadResults = {
        "first_loss": first_loss,
        "l2": l2,
        "knn_top1": (votes.argmax(dim=-1) == truth).float().mean().item(),
        "cross_validation": cross_validation,
    }
    return results, ScoredImages(features=features.distinct, held_out=held_out)
