"""Scores and labels to numbers: accuracy with an interval, per class, confusion.

Letters: n images, C classes; `logits` are (n, C), `labels` are (n,) class indices.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def wilson(correct: int, total: int, *, z: float = 1.959963984540054) -> tuple[float, float]:
    """95 % interval of a share; honest for few images and for shares near 0 and 1.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if total == 0:
        return 0.0, 1.0
    share = correct / total
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """How often true class (row) was taken for class (column): (C, C), whole numbers."""
    classes = logits.shape[-1]
    pairs = labels * classes + logits.argmax(dim=-1)
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def top_k(logits: Tensor, labels: Tensor, k: int) -> int:
    """How many images have their class among the `k` best scores."""
    best = logits.topk(min(k, logits.shape[-1]), dim=-1).indices  # (n, k)
    return int((best == labels[:, None]).any(dim=-1).sum())


def evaluation(logits: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """The figures of `eval.json`; shares are from 0 to 1, the loss is in nats."""
    total = len(labels)
    matrix = confusion(logits, labels)
    correct = int(matrix.diagonal().sum())
    per_class: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(classes):
        images, right, named = int(matrix[i].sum()), int(matrix[i, i]), int(matrix[:, i].sum())
        per_class[name] = {
            "images": images,
            "recall": right / images if images else None,
            "recall_interval": wilson(right, images),
            "precision": right / named if named else None,
        }
    recalls = [row["recall"] for row in per_class.values() if row["recall"] is not None]
    return {
        "images": total,
        "top1": correct / total,
        "top1_interval": wilson(correct, total),
        "top5": top_k(logits, labels, 5) / total if len(classes) > 5 else None,
        "balanced": sum(recalls) / len(recalls),
        "majority": int(matrix.sum(dim=1).max()) / total,
        "loss": F.cross_entropy(logits, labels).item(),
        "per_class": per_class,
        "confusion": matrix.tolist(),
    }
