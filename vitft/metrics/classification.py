"""Losses, correctness and metrics of logits for both kinds of targets.

Targets are class indices (n,) or, for multi-label data, 0 or 1 for each label (n, C). The loss of
an image is the negative log-likelihood of its target or, for multi-label data, the sum over all
labels.

Notation: n images, C classes or labels; `logits` and `scores` are (n, C).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.metrics.calibration import (
    FittedTemperature,
    Ints,
    ScoredSet,
    bin_by_confidence,
    binned_error,
    calibration_error,
    confidence_and_correctness,
    folds,
    log_losses,
    logit_of,
)
from vitft.metrics.intervals import (
    PRIOR_IMAGES,
    Flags,
    Floats,
    Groups,
    IndependentDifference,
    Interval,
    accuracy_interval,
    binomial_range,
    design_effect,
    f1_with_interval,
    holm,
    mean_fraction_interval,
    mean_interval,
    p_of_guessing,
    score_interval,
    too_few,
    wilson_interval,
)
from vitft.metrics.outputs import Outputs
from vitft.metrics.results import (
    MAX_DENSE_CLASSES,
    CalibrationBin,
    ClassMetrics,
    LabelMetrics,
    LabelResults,
    Metrics,
    ProbabilityMetrics,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoss:
    """Training loss for one kind of target."""

    class_weights: Tensor | None = None
    """Loss factors of the classes (C,), with mean 1 over the images; None if all are 1."""
    several: bool = False  # whether the targets are multi-label: 0 or 1 for each label

    def total(self, logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the total loss of the images in nats; targets may also be class probabilities.

        With label smoothing s, a multi-label target y becomes y (1 - s) + s / 2.
        """
        if self.several:
            smooth = targets.to(logits) * (1 - label_smoothing) + label_smoothing / 2
            return _every_loss(logits, smooth).sum(dim=1).sum()
        weights = self.class_weights
        return F.cross_entropy(
            logits, targets, weights, label_smoothing=label_smoothing, reduction="sum"
        )


DEFAULT_LOSS = TrainingLoss()


def _every_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none")


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the images in nats, for either kind of target."""
    if targets.ndim == 1:
        return F.cross_entropy(logits, targets)
    return _every_loss(logits, targets).sum(dim=1).mean()


def are_right(logits: Tensor, targets: Tensor, thresholds: Floats | float = 0.5) -> Tensor:
    """Return whether the prediction for each image is correct (n,), for either kind of target.

    A multi-label prediction is correct if exactly the image's labels reach their thresholds, which
    are probabilities: a number, or an array (C,) or (n, C).
    """
    if targets.ndim == 1:
        return logits.argmax(dim=-1) == targets
    return (_reached(logits, thresholds) == targets.bool()).all(dim=-1)


def _reached(logits: Tensor, thresholds: Floats | float) -> Tensor:
    """Return whether each label reaches its threshold (n, C)."""
    return logits.double() >= torch.as_tensor(logit_of(thresholds))


def fraction_right(right: Tensor) -> float:
    """Return the accuracy, given which predictions are right (n,), computed in float64.

    Every place then rounds it in the same way: in float32, 71 of 80 is less than 0.8875.
    """
    return int(right.sum()) / len(right)


def classification_metrics(
    logits: Tensor,
    labels: Tensor,
    outputs: Outputs,
    *,
    held_out: Floats | None = None,
    groups: Groups | None = None,
    effect: float = 1.0,
) -> Metrics:
    """Return all metrics except those that take much longer to compute.

    `loss_interval` and `calibration` are None; `probability_metrics` computes them. `held_out` are
    thresholds (n, C) that replace those of the `outputs`. The intervals count `groups` (n,), if
    there are any. `effect` is a further design effect of the metrics of classes and of the balanced
    accuracy, but not of multi-label data.
    """
    total, several, classes = len(labels), outputs.several, outputs.classes
    thresholds = np.array(outputs.thresholds) if held_out is None else held_out
    right, given, truth = are_right(logits, labels, thresholds).numpy(), None, labels.numpy()
    if several:  # both (n, C)
        effect = 1.0
        given, truth = _reached(logits, thresholds).numpy(), truth.astype(bool)
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
        found["labels"] = _label_results(logits.double().numpy(), truth, given, classes, groups)
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
    """Return the metrics of a class, given which images (n,) belong to it and are predicted as it.

    A metric without images is None.
    """
    hits = own & given
    found: dict[str, Any] = {"images": int(own.sum())}
    for name, some in (("recall", own), ("precision", given), ("f1", own | given)):
        right, number = int(hits.sum()), int(some.sum())
        found |= {name: None, f"{name}_interval": None}
        if number:
            chosen = None if groups is None else groups[some]
            spread = effect * design_effect(hits[some] - right / number, chosen)
            value, bounds = right / number, wilson_interval(right, number, spread)
            if name == "f1":
                value, bounds = f1_with_interval(right, number, spread)
            found |= {name: value, f"{name}_interval": bounds}
    return cast("ClassMetrics", found)


def accuracy_by(
    values: Sequence[str], right: Flags, groups: Groups | None = None
) -> dict[str, dict[str, Any]]:
    """Return the accuracy by value (n,), given which images (n,) are right, and differences.

    Each value is compared with all others together, with p-values that Holm's method corrects.
    Intervals and tests count the `groups` (n,), if there are any.
    """
    names, own = np.unique(values, return_inverse=True)
    several = range(len(names) if len(names) > 1 else 0)
    compared = [IndependentDifference.of(right, own == i, groups) for i in several]
    tests = compared[:1] if len(names) == 2 else compared  # both comparisons would be the same
    corrected = holm([one.p for one in tests]) * (1 + (len(names) == 2))
    found = dict[str, dict[str, Any]]()
    for i, name in enumerate(names.tolist()):
        some = own == i
        units = None if groups is None else groups[some]
        found[name] = {
            "images": int(some.sum()),
            "top1": float(right[some].mean()),
            "top1_interval": accuracy_interval(right[some], units),
            "difference": compared[i].difference if several else None,
            "difference_interval": compared[i].interval(corrected[i]) if several else None,
            "p_holm": corrected[i] if several else None,
        }
        if units is not None:
            found[name]["groups"] = len(np.unique(units))
    return found


def calibrated_metrics(
    logits: Tensor, labels: Tensor, temperature: FittedTemperature, groups: Groups | None = None
) -> ProbabilityMetrics:
    """Return unbiased estimates of the metrics that depend on the temperature.

    The `logits` of each image are divided by the temperature fitted without that image.
    """
    scores, truth, divisor = logits.double().numpy(), labels.numpy(), temperature.held_out
    metrics = probability_metrics(
        scores / (divisor if labels.ndim == 2 else divisor[:, None]),
        labels,
        ece_before=error_of_probabilities(scores, truth, groups)[1],
        temperature=temperature.value if isinstance(temperature.value, float) else None,
        note=temperature.note or None,
        groups=groups,
    )
    if metrics["calibration"] is not None:
        metrics["calibration"]["cross_validated"] = temperature.cross_validated
    return metrics


def error_of_probabilities(
    scores: Floats, truth: Ints, groups: Groups | None
) -> tuple[list[CalibrationBin], float, Interval]:
    """Return the bins, the calibration error and its interval of scores (n, C)."""
    confidence, right = confidence_and_correctness(scores, truth)
    bins, effect = bin_by_confidence(confidence, right), 1.0
    if groups is not None:
        effect = design_effect(right - confidence, np.repeat(groups, len(right) // len(groups)))
    return bins, *calibration_error(bins, effect)


def probability_metrics(
    scores: Floats,
    labels: Tensor,
    *,
    ece_before: float | None = None,
    temperature: float | None = None,
    note: str | None = None,
    groups: Groups | None = None,
) -> ProbabilityMetrics:
    """Return the metrics that depend on the temperature, by which `scores` (n, C) are divided.

    The result contains the optional arguments (see `_CalibrationMetrics`). The intervals count the
    `groups` (n,), if there are any, and are None if these are too few.
    """
    truth = labels.numpy()
    loss = log_losses(scores, truth)
    bins, error, interval = error_of_probabilities(scores, truth, groups)
    return {
        "loss": float(loss.mean()),
        "loss_interval": mean_interval(loss, groups),
        "calibration": {
            "ece": error,
            "ece_interval": None if too_few(groups) else interval,
            "ece_binned": binned_error(bins),
            "ece_before": ece_before,
            "temperature": temperature,
            "note": note,
            "bins": bins,
        },
    }


# metrics and thresholds of multi-label data; `truth` (n, C) is True where an image has a label ----


def _average_precision(scores: Floats, truth: Flags) -> tuple[float, Floats]:
    """Return the average precision of scores (n,), and by how much each image makes it deviate.

    This is the mean, over images with the label, of the precision among all images with scores at
    least as high, which include those of equal score.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, images = -scores[order], truth.sum()
    first, last = (np.searchsorted(ranked, -scores, side=side) for side in ("left", "right"))
    precision = np.cumsum(truth[order])[last - 1] / last
    value = float(precision[truth].mean())
    terms = (np.stack([1 / last, precision / last]) * truth)[:, order[::-1]]
    gain, loss = terms.cumsum(axis=1)[:, ::-1][:, first]  # sums over images ranked no higher
    return value, (truth * (precision - value + gain) - loss) / images


def _interval_of_ranks(
    value: float, changes: Floats, images: int, groups: Groups | None
) -> Interval:
    """Return the interval of a mean over ranked `images`, given how each image makes it deviate.

    It is a Wilson interval with the variance of the mean, averaged with that of a fraction
    (`PRIOR_IMAGES`): it has a width even if the images with the label rank first.

    Source: Boyd, Eng & Page 2013, "Area under the precision-recall curve: point estimates and
    confidence intervals", Machine Learning and Knowledge Discovery in Databases.
    """
    usual = value * (1 - value) / images  # variance of a fraction
    ratio = float((changes**2).sum()) / usual if usual else 1.0
    ratio = (images * ratio + PRIOR_IMAGES) / (images + PRIOR_IMAGES)
    return score_interval(value, images / (design_effect(changes, groups) * ratio))


def _label_results(
    scores: Floats, truth: Flags, given: Flags, names: Sequence[str], groups: Groups | None = None
) -> LabelResults:
    """Return the metrics of labels, given which of them are predicted, `given` (n, C).

    Labels of one image are not independent: the intervals of means over labels count images.
    """
    units = np.arange(len(truth)) if groups is None else groups
    per_label: dict[str, LabelMetrics] = {}
    ranked, together, apart = list[tuple[float, int]](), np.zeros(len(truth)), 0.0
    for name, score, flags in zip(names, scores.T, truth.T, strict=True):
        per_label[name] = {"ap": None, "ap_interval": None}
        if not (images := int(flags.sum())):
            continue
        value, changes = _average_precision(score, flags)
        per_label[name] = {
            "ap": value,
            "ap_interval": _interval_of_ranks(value, changes, images, groups),
        }
        ranked.append((value * images, images))
        together, apart = together + changes, apart + value * (1 - value) / images
    hits, decided = given & truth, given | truth
    right, union = hits.sum(axis=0), decided.sum(axis=0)
    place, label = np.nonzero(decided)
    micro: tuple[float, Interval] = (0.0, (0.0, 1.0))
    if total := int(union.sum()):
        effect = design_effect(hits[decided] - right.sum() / total, units[place])
        micro = f1_with_interval(int(right.sum()), total, effect)
    known = np.asarray(truth.any(axis=0))
    share = right / np.maximum(1, union)
    own = known[label]
    change = ((hits[decided] - share[label]) / (union * (1 + share) ** 2)[label])[own]
    # Like a fraction of (1 + share)^2 / 2 * union images, which has the same variance.
    f1 = [
        (float(2 * s / (1 + s) * w), float(w))
        for s, w in zip(share[known], (union * (1 + share) ** 2 / 2)[known], strict=True)
    ]
    found: LabelResults = {
        "map": 0.0,
        "map_interval": None,
        "chance_map": 0.0,
        "micro_f1": micro[0],
        "micro_f1_interval": micro[1],
        "macro_f1": 0.0,
        "macro_f1_interval": None,
        "per_label": per_label,
    }
    if ranked:
        shared = max(1.0, float((together**2).sum()) / max(apart, 1e-12))  # 1 if independent
        found["map"] = _mean_fraction(ranked)
        found["map_interval"] = mean_fraction_interval(
            ranked, shared * design_effect(together, groups)
        )
        found["chance_map"] = float(truth[:, known].mean())
        found["macro_f1"] = _mean_fraction(f1)
        effect = design_effect(change, units[place][own])
        found["macro_f1_interval"] = mean_fraction_interval(f1, effect)
    return found


# metrics of two classes, by the ranks of their images ---------------------------------------------

_SPECIFICITY = 0.95


def two_class_metrics(
    scores: Floats, truth: Ints, names: Sequence[str], groups: Groups | None = None
) -> dict[str, Any] | None:
    """Return how well scores (n, 2) separate images of two classes (n,); None for other data.

    Each class has an average precision, and the sensitivity at the threshold where the other class
    has a specificity of `_SPECIFICITY`. The intervals count the `groups` (n,), if there are any.
    That of the sensitivity includes the error of the threshold (MOVER).

    Sources: DeLong, DeLong & Clarke-Pearson 1988, "Comparing the areas under two or more correlated
    receiver operating characteristic curves", Biometrics 44. Zou & Donner 2008, "Construction of
    confidence limits about effect measures", Statistics in Medicine 27.
    """
    if truth.ndim == 2 or len(names) != 2 or len(np.unique(truth)) < 2:
        return None
    margin, first = scores[:, 0] - scores[:, 1], truth == 0
    auroc, changes = _auroc(margin, first)
    fewest = int(min(first.sum(), (~first).sum()))
    classes: dict[str, Any] = {}
    for name, score, own in zip(names, (margin, -margin), (first, ~first), strict=True):
        ap, moved = _average_precision(score, own)
        bounds = _interval_of_ranks(ap, moved, int(own.sum()), groups)
        classes[name] = {"ap": ap, "ap_interval": bounds, **_sensitivity(score, own, groups)}
    return {
        "auroc": auroc,
        "auroc_interval": _interval_of_ranks(auroc, changes, fewest, groups),
        "specificity": _SPECIFICITY,
        "classes": classes,
    }


def _auroc(score: Floats, own: Flags) -> tuple[float, Floats]:
    """Return how often an image of a class scores above one of the other, and the deviations (n,).

    Equal scores count as one half.
    """
    above = np.empty(len(score))
    for some, others in ((own, score[~own]), (~own, score[own])):
        ranked = np.sort(others)
        lower, upper = (np.searchsorted(ranked, score[some], side) for side in ("left", "right"))
        above[some] = (lower + upper) / (2 * len(ranked))
    value = float(above[own].mean())
    above[~own] = 1 - above[~own]
    return value, (above - value) / np.where(own, own.sum(), (~own).sum())


def _sensitivity(score: Floats, own: Flags, groups: Groups | None) -> dict[str, Any]:
    """Return which fraction of the images of a class (n,) score above almost all others."""
    hits, false = score[own], score[~own]
    ranked, size = np.sort(false), len(false)
    limit = ranked[math.ceil(_SPECIFICITY * size) - 1]
    of_own, of_others = (None if groups is None else groups[some] for some in (own, ~own))
    value = float((hits > limit).mean())
    low, high = accuracy_interval(hits > limit, of_own)
    effect = design_effect((false > limit) - float((false > limit).mean()), of_others)
    # The threshold for infinitely many images of the other class lies between two of their scores
    fewest, most = (
        count * effect for count in binomial_range(round(size / effect), 1 - _SPECIFICITY)
    )
    ends = (
        ranked[max(0, size - math.ceil(most) - 1)],
        ranked[size - math.floor(fewest)] if fewest >= 1 else np.inf,
    )
    easy, hard = (float((hits > end).mean()) for end in ends)
    interval = (
        max(0.0, value - math.hypot(value - low, value - hard)),
        min(1.0, value + math.hypot(high - value, easy - value)),
    )
    return {"sensitivity": value, "sensitivity_interval": interval}


def _mean_fraction(counts: Sequence[tuple[float, float]]) -> float:
    """Return the mean of fractions, given as (correct, total)."""
    return math.fsum(right / total for right, total in counts) / len(counts)


def fit_thresholds(
    validation: ScoredSet, training: ScoredSet | None = None
) -> tuple[Floats, Floats]:
    """Choose the logit at which each label is assigned, before temperature scaling, by its F1.

    The thresholds (C,) are chosen on the validation images and any cross-validated training
    predictions; for unbiased metrics, those that are chosen without each validation image (n, C)
    follow. A threshold is halfway between two logits, or 0 for a label that no image has, or
    for a rare one whose images are not ranked above others (a rank test at 5%): by F1, nearly all
    images would have it.
    """
    logits, labels = validation.pooled(training)
    held_out = np.empty(validation.labels.shape)
    for fold, rest in folds(len(validation.labels), len(labels)):
        held_out[fold] = _best_thresholds(logits[rest], labels[rest])
    return _best_thresholds(logits, labels), held_out


_RARE_LABEL = 0.2  # fraction of the images below which a label is rare
_ABOVE_CHANCE = 1.645  # standard deviations of the sum of ranks (Mann and Whitney 1947), one-sided


def _best_thresholds(logits: Floats, labels: Ints) -> Floats:
    """Return the logit thresholds (C,) that maximise the F1 scores of the labels (n, C)."""
    found = np.zeros(labels.shape[1])
    for label in np.flatnonzero(labels.any(axis=0)):
        order = np.argsort(-logits[:, label], kind="stable")
        ranked, has_label = logits[order, label], labels[order, label]
        number, positive = np.arange(1, len(ranked) + 1), int(has_label.sum())
        spread = math.sqrt(positive * (len(ranked) - positive) * (len(ranked) + 1) / 12)
        highest = positive * (len(ranked) + 1) / 2 - _ABOVE_CHANCE * spread
        if positive < _RARE_LABEL * len(ranked) and number @ has_label > highest:
            continue
        f1 = 2 * np.cumsum(has_label) / (number + positive)
        is_tied = np.append(ranked[1:] == ranked[:-1], False)  # no threshold can separate the two
        best = int(np.where(is_tied, -1.0, f1).argmax())
        below = ranked[best + 1] if best + 1 < len(ranked) else ranked[best] - 1
        found[label] = (ranked[best] + below) / 2
    return found
