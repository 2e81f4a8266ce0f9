"""Scores and labels to numbers: accuracy, per class, confusion, calibration; each with an interval.

Letters: n images, C classes; `logits` are (n, C), `labels` are (n,) class indices.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.metrics.calibration import (
    Temperature,
    binned,
    calibration_error,
    confidences,
    losses,
)
from vitft.metrics.intervals import Floats, f1_of, mean_of_shares, mean_of_values, wilson
from vitft.metrics.results import ClassMetrics, Metrics, ProbabilityMetrics


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """How often true class (row) was taken for class (column): (C, C), whole numbers."""
    classes = logits.shape[-1]
    pairs = labels * classes + logits.argmax(dim=-1)
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def top_k(logits: Tensor, labels: Tensor, k: int) -> int:
    """How many images have their class among the `k` best scores."""
    best = logits.topk(min(k, logits.shape[-1]), dim=-1).indices  # (n, k)
    return int((best == labels[:, None]).any(dim=-1).sum())


def evaluation(logits: Tensor, labels: Tensor, classes: Sequence[str]) -> Metrics:
    """The figures of `eval.json` that take no time; shares are from 0 to 1, the loss is in nats.

    What is undefined, such as the recall of a class without images, is None. `probabilities`
    adds how good the probabilities are.
    """
    total = len(labels)
    matrix = confusion(logits, labels)
    rows, columns = matrix.sum(dim=1).tolist(), matrix.sum(dim=0).tolist()
    hits = matrix.diagonal().tolist()
    correct = sum(hits)
    fifth = top_k(logits, labels, 5) if len(classes) > 5 else None
    recalls = [(hit, images) for hit, images in zip(hits, rows, strict=True) if images]
    return {
        "images": total,
        "top1": correct / total,
        "top1_interval": wilson(correct, total),
        "top5": None if fifth is None else fifth / total,
        "top5_interval": None if fifth is None else wilson(fifth, total),
        "balanced": sum(hit / images for hit, images in recalls) / len(recalls),
        "balanced_interval": mean_of_shares(recalls),
        "majority": max(rows) / total,
        "loss": F.cross_entropy(logits, labels).item(),
        "loss_interval": None,
        "per_class": {
            name: of_class(hits[i], rows[i], columns[i]) for i, name in enumerate(classes)
        },
        "confusion": matrix.tolist(),
        "calibration": None,
    }


def of_class(right: int, images: int, named: int) -> ClassMetrics:
    """The figures of one class.

    Args:
        right: Images of the class that were named so.
        images: Images of the class.
        named: Images of any class that were named so.
    """
    union = images + named - right
    f1, f1_interval = f1_of(right, union) if union else (None, None)
    return {
        "images": images,
        "recall": right / images if images else None,
        "recall_interval": wilson(right, images) if images else None,
        "precision": right / named if named else None,
        "precision_interval": wilson(right, named) if named else None,
        "f1": f1,
        "f1_interval": f1_interval,
    }


def probabilities(logits: Tensor, labels: Tensor, temperature: Temperature) -> ProbabilityMetrics:
    """The figures of `eval.json` that depend on the temperature.

    Each image is judged with a temperature that was fitted without it, so the loss, the bins and
    the error are those to expect of new images.

    Args:
        logits: As the model gives them before the temperature is folded into it.
        labels: Class indices.
        temperature: What was fitted on them.
    """
    scores, truth = logits.double().numpy(), labels.numpy()
    before, _ = calibration_error(binned(*confidences(scores, truth)))
    judged = scores / temperature.held_out[:, None]
    return fixed_probabilities(
        judged,
        labels,
        ece_before=before,
        temperature=temperature.value,
        note=temperature.note or None,
    )


def fixed_probabilities(
    scores: Floats,
    labels: Tensor,
    *,
    ece_before: float | None = None,
    temperature: float | None = None,
    note: str | None = None,
) -> ProbabilityMetrics:
    """Return the same metrics for logits (n, C) to which no temperature was fitted here.

    Args:
        scores: Logits, to which a temperature was applied elsewhere or not at all.
        labels: Class indices (n,).
        ece_before: Calibration error without that temperature, if it is known.
        temperature: The temperature, if it is known.
        note: Why no temperature was fitted.
    """
    truth = labels.numpy()
    loss = losses(scores, truth)
    low, high = mean_of_values(loss)
    bins = binned(*confidences(scores, truth))
    error, interval = calibration_error(bins)
    return {
        "loss": float(loss.mean()),
        "loss_interval": (max(0.0, low), high),
        "calibration": {
            "ece": error,
            "ece_interval": interval,
            "ece_binned": bins.gap,
            "ece_before": ece_before,
            "temperature": temperature,
            "note": note,
            "bins": bins.rows(),
        },
    }
