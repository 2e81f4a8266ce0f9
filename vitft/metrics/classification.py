"""Metrics from logits and labels: accuracy, per-class metrics, confusion matrix and calibration.

Notation: n images, C classes; `logits` is (n, C), and `labels` are class indices (n,) or, for
multi-label data, 0 or 1 for each label (n, C).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from vitft.metrics.calibration import (
    FittedTemperature,
    bin_by_confidence,
    calibration_error,
    confidence_and_correctness,
    log_losses,
)
from vitft.metrics.intervals import (
    Flags,
    Floats,
    Groups,
    accuracy_interval,
    design_effect,
    f1_with_interval,
    mean_fraction_interval,
    mean_interval,
    p_of_guessing,
    too_few,
    wilson_interval,
)
from vitft.metrics.label_metrics import label_results
from vitft.metrics.results import MAX_DENSE_CLASSES, ClassMetrics, Metrics, ProbabilityMetrics
from vitft.metrics.targets import are_right, chosen, mean_loss


def classification_metrics(
    logits: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    *,
    thresholds: Floats | float = 0.5,
    groups: Groups | None = None,
    effect: float = 1.0,
) -> Metrics:
    """Return all metrics except those that take much longer to compute.

    `loss_interval` and `calibration` are None; `probability_metrics` computes them. `thresholds`
    apply only to multi-label data: the minimum probabilities at which labels are assigned, as a
    number or an array (C,) or (n, C). The intervals count `groups` (n,), if there are any.
    `effect` is a further design effect of the metrics of classes and of the balanced accuracy, but
    not of multi-label data.
    """
    total, several = len(labels), labels.ndim == 2
    right, given, truth = are_right(logits, labels, thresholds).numpy(), None, labels.numpy()
    if several:  # both (n, C)
        effect = 1.0
        given, truth = chosen(logits, thresholds).numpy(), truth.astype(bool)
        hits, images = (given & truth).sum(axis=0), truth.sum(axis=0)
        of_class = np.maximum(1, images)
        deviations = (truth * (given - hits / of_class) / of_class).sum(axis=1)
        _, sizes = np.unique(truth, axis=0, return_counts=True)
        decisions: Iterable[tuple[Flags, Flags]] = zip(truth.T, given.T, strict=True)
    else:  # both (n,)
        given = logits.argmax(dim=-1).numpy()
        images, hits = (np.bincount(c, minlength=len(classes)) for c in (truth, truth[right]))
        deviations = (right - (hits / np.maximum(1, images))[truth]) / images[truth]
        sizes, decisions = images, ((truth == i, given == i) for i in range(len(classes)))
    recalls = [pair for pair in zip(hits.tolist(), images.tolist(), strict=True) if pair[1]]
    effects = effect * design_effect(deviations, groups)
    fifth: Flags | None = None
    if len(classes) > 5 and not several:
        fifth = (logits.topk(5, dim=-1).indices == labels[:, None]).any(dim=-1).numpy()
    found: Metrics = {
        "images": total,
        "top1": int(right.sum()) / total,
        "top1_interval": accuracy_interval(right, groups),
        "top5": None if fifth is None else int(fifth.sum()) / total,
        "top5_interval": None if fifth is None else accuracy_interval(fifth, groups),
        "balanced": sum(hit / number for hit, number in recalls) / max(1, len(recalls)),
        "balanced_interval": mean_fraction_interval(recalls, effects) if recalls else (0.0, 1.0),
        "p_guessing": 1.0 if several else p_of_guessing(logits.numpy(), truth, groups),
        "majority": int(sizes.max()) / total,
        "loss": mean_loss(logits, labels).item(),
        "loss_interval": None,
        "per_class": {
            name: _class_metrics(own, predicted, groups, effect)
            for name, (own, predicted) in zip(classes, decisions, strict=True)
        },
        "confusion": [],
        "calibration": None,
    }
    if several:
        del found["p_guessing"]
        found["labels"] = label_results(logits.double().numpy(), truth, given, classes, groups)
        bare, empty = np.asarray(~truth.any(axis=1)), np.asarray(~given.any(axis=1))
        found["labels"]["none"] = _class_metrics(bare, empty, groups)
    if groups is not None:
        found["groups"] = len(np.unique(groups))
    if not several:
        pairs, counts = np.unique(truth * len(classes) + given, return_counts=True)
        rows, columns = np.divmod(pairs, len(classes))
        if len(classes) <= MAX_DENSE_CLASSES:
            matrix = np.zeros((len(classes), len(classes)), np.int64)
            matrix[rows, columns] = counts
            found["confusion"] = matrix.tolist()
        else:
            entries = (one.tolist() for one in (rows, columns, counts))
            found["confused_pairs"] = list(zip(*entries, strict=True))
    return found


def _class_metrics(
    own: Flags, given: Flags, groups: Groups | None, effect: float = 1.0
) -> ClassMetrics:
    """Return the metrics of a class.

    `own` and `given` (n,) state whether each image belongs to the class and is predicted as it.
    """
    hits, either = own & given, own | given
    right, images, predicted, union = (int(x.sum()) for x in (hits, own, given, either))
    of_recall, of_precision, of_f1 = (
        effect
        if groups is None
        else effect * design_effect(hits[some] - right / max(1, int(some.sum())), groups[some])
        for some in (own, given, either)
    )
    f1, f1_interval = f1_with_interval(right, union, of_f1) if union else (None, None)
    return {
        "images": images,
        "recall": right / images if images else None,
        "recall_interval": wilson_interval(right, images, of_recall) if images else None,
        "precision": right / predicted if predicted else None,
        "precision_interval": (
            wilson_interval(right, predicted, of_precision) if predicted else None
        ),
        "f1": f1,
        "f1_interval": f1_interval,
    }


def calibrated_metrics(
    logits: Tensor, labels: Tensor, temperature: FittedTemperature, groups: Groups | None = None
) -> ProbabilityMetrics:
    """Return unbiased estimates of the metrics that depend on the temperature.

    `logits` must not have been divided by a temperature. The logits of each image are divided here
    by the temperature fitted without that image.
    """
    scores, truth = logits.double().numpy(), labels.numpy()
    before, _ = calibration_error(bin_by_confidence(*confidence_and_correctness(scores, truth)))
    held_out = scores / (
        temperature.held_out if labels.ndim == 2 else temperature.held_out[:, None]
    )
    metrics = probability_metrics(
        held_out,
        labels,
        ece_before=before,
        temperature=temperature.value if isinstance(temperature.value, float) else None,
        note=temperature.note or None,
        groups=groups,
    )
    if metrics["calibration"] is not None:
        metrics["calibration"]["cross_validated"] = temperature.cross_validated
    return metrics


def probability_metrics(
    scores: Floats,
    labels: Tensor,
    *,
    ece_before: float | None = None,
    temperature: float | None = None,
    note: str | None = None,
    groups: Groups | None = None,
) -> ProbabilityMetrics:
    """Return the metrics that depend on the temperature.

    `scores` (n, C) are logits that have already been divided by the temperature. The result also
    contains the optional arguments: `ece_before`, the calibration error before temperature scaling;
    `temperature`; and `note`, the reason why no temperature was fitted. The intervals count the
    `groups` (n,), if there are any, and are None if these are too few.
    """
    truth = labels.numpy()
    loss = log_losses(scores, truth)
    confidence, right = confidence_and_correctness(scores, truth)
    bins, effect = bin_by_confidence(confidence, right), 1.0
    if groups is not None:
        effect = design_effect(right - confidence, np.repeat(groups, len(right) // len(groups)))
    error, interval = calibration_error(bins, effect)
    return {
        "loss": float(loss.mean()),
        "loss_interval": mean_interval(loss, groups),
        "calibration": {
            "ece": error,
            "ece_interval": None if too_few(groups) else interval,
            "ece_binned": bins.gap,
            "ece_before": ece_before,
            "temperature": temperature,
            "note": note,
            "bins": bins.rows(),
        },
    }
