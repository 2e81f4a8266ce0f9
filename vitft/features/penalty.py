"""Choice of the L2 penalty of a linear head by cross-validation.

Notation: n images, D feature dimensions, C classes or labels, K folds; the features `x` are (n, D),
and the targets `y` are class indices (n,) or, for multi-label data, 0 or 1 for each label (n, C).
"""

import logging
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.folds import CV_FOLDS, CV_IMAGES, Folded, rows_of_views, sample_classes
from vitft.features.logistic import Standardizer, rough_fit
from vitft.features.mixture import tempered
from vitft.metrics.targets import are_right, fraction_right, label_losses, mean_loss

log = logging.getLogger(__name__)

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
"""L2 penalties to try, from strong to weak; each fit starts from the previous solution.

For more than `_PENALTY_CLASSES` classes, they are divided by the number of classes in proportion.
The loss is a mean over the images, so that of a class weighs 1 / C, and its penalty has to as well.
"""
_PENALTY_CLASSES = 100
_PENALTY_LOGITS = 10_000_000
"""Maximum number of logits (images x classes) of a cross-validation that chooses the penalty. If it
is exceeded, the penalty is chosen for some of the images, then for some of the classes."""
_CALIBRATED_LOGITS = 2_000_000  # logits that estimate the calibrated loss of a penalty, at most
_DEFAULT_L2 = 0.1  # of up to `_DEFAULT_CLASSES` classes without cross-validation
_DEFAULT_CLASSES = 10


def default_penalty(y: Tensor, classes: int) -> float:
    """Return the L2 penalty for targets (n,) or (n, C) where cross-validation does not choose one.

    See `PENALTIES` for the dependence on the number of classes. Labels have a loss each.
    """
    return _DEFAULT_L2 * (min(1.0, _DEFAULT_CLASSES / classes) if y.ndim == 1 else 1.0)


class PenaltyScore(NamedTuple):
    """Cross-validated accuracy and mean cross-entropy (in nats, calibrated) for a penalty."""

    l2: float
    top1: float
    loss: float
    classes: int | None = None  # number of classes in the sample, if not all


def choose_penalty(
    x: Tensor,
    y: Tensor,
    sample_weight: Tensor,
    *,
    classes: int,
    seed: int,
    views: int = 1,
    groups: Tensor | None = None,
    standardizer: Standardizer | None = None,
) -> tuple["float | tuple[float, ...]", list[PenaltyScore]]:
    """Choose the penalty with the lowest cross-validated loss of calibrated logits.

    It differs less by chance than the accuracy (benchmarks/accuracy/README.md). `PENALTIES` are
    tried from strong to weak until the loss has risen twice in a row, on a sample if there are many
    images. The rows form `views` blocks, one for each view of the same images. All views of an
    image and of its near-duplicates, which share a number in `groups` (n / views,), are held out
    together. Only the first view is scored. `standardizer` is applied to features that are not
    standardised yet.

    Returns:
        The penalty, or that of each label of multi-label data, and the scores of all tried.
    """
    images = len(y) // views
    some = sample_classes(
        y[:images],
        classes,
        most=CV_IMAGES,
        most_logits=_PENALTY_LOGITS,
        per_class=CV_FOLDS,
        seed=seed,
    )
    if y.ndim == 2 and len(some.images) < min(images, CV_FOLDS * classes):
        log.debug(
            f"using the default penalty {_DEFAULT_L2:g}: too few images per class to choose one by "
            "cross-validation"
        )
        return _DEFAULT_L2, []
    rows = rows_of_views(some.images, images, views)
    data = Folded.of(
        x[rows] if standardizer is None else standardizer(x[rows]),
        torch.cat([some.y] * views),
        sample_weight[:, rows],
        classes=some.classes,
        seed=seed,
        views=views,
        groups=None if groups is None else groups[some.images],
    )
    l2, path = _follow_path(data)
    if some.classes == classes:
        return l2, path
    ratio = some.classes / classes  # see `PENALTIES`
    assert isinstance(l2, float)
    log.debug(f"the penalty was chosen for {some.classes:,} of {classes:,} classes")
    return l2 * ratio, [s._replace(l2=s.l2 * ratio, classes=some.classes) for s in path]


def _follow_path(data: Folded) -> tuple["float | tuple[float, ...]", list[PenaltyScore]]:
    """Try the penalties on images in folds, and return the same as `choose_penalty`."""
    y, path = data.truth, list[PenaltyScore]()
    by_label: list[Tensor] = []  # loss of each label, for each penalty
    start, scale = None, min(1.0, _PENALTY_CLASSES / data.classes) if y.ndim == 1 else 1.0
    for relative in PENALTIES:
        l2 = relative * scale
        start = rough_fit(data.x, data.y, data.weights, classes=data.classes, l2=l2, start=start)
        logits = data.held_out(start)
        top1 = fraction_right(are_right(logits, y))
        if y.ndim == 2:
            loss = mean_loss(logits, y).item()
            by_label.append(label_losses(logits, y))
        else:
            some = slice(None, None, -(-logits.numel() // _CALIBRATED_LOGITS))
            loss = F.nll_loss(tempered(logits[some], y[some])[1], y[some]).item()
        path.append(PenaltyScore(l2, top1, loss))
        if len(path) > 2 and path[-1].loss > path[-2].loss > path[-3].loss:
            break  # the loss is nearly convex along the path, so it would keep rising
    if by_label:
        lowest = torch.stack(by_label).argmin(dim=0).tolist()
        return tuple(path[i].l2 for i in lowest), path
    return min(path, key=lambda score: score.loss).l2, path
