"""Detection of probable label errors from out-of-fold predictions and nearest neighbours.

For each image, the probabilities from a linear head that was not fitted to the image are multiplied
by the votes of the nearest neighbours. The product ranks wrong labels better than either factor
alone, and better than the thresholds of confident learning (benchmarks/notebook/label_errors.md).

Both factors are raised to powers that calibrate the product, and that are fitted to the given
labels together with the fraction of labels that are wrong: otherwise, an overconfident head reports
many correct labels of a difficult dataset. A label is reported if, by Bayes' theorem, it is more
probably wrong than right. A wrong label is assumed to be one of the few classes that resemble the
true one.

For multi-label data, each label is checked separately for each image, including the labels that the
image does not have, without a fit.

Notation: n images, C classes, D feature dimensions; the features `x` are (n, D), and the targets
`y` are class indices (n,) or, for multi-label data, 0 or 1 for each label (n, C). A query's vote
for a label is the weighted fraction of its neighbours that have the label.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.data.image_table import Row, membership
from vitft.features.folds import CV_IMAGES, Folded, stratified_subset
from vitft.features.head import choose_penalty
from vitft.features.logistic import Penalty, Standardizer, minimise, solve_logistic
from vitft.metrics.results import MAX_DENSE_CLASSES, Mislabel

_MIN_WRONG, _MAX_WRONG = 0.03, 0.5
"""Bounds on the assumed fraction of wrong labels. The lower one is the mean of ten published test
sets (3.3%, Northcutt et al. 2021, "Pervasive Label Errors in Test Sets Destabilize Machine Learning
Benchmarks", https://arxiv.org/abs/2103.14749)."""
_WRONG_PRIOR = (1.5, 49.0)  # beta prior on the fraction of wrong labels between the bounds
_POWER_SPREAD = 0.7  # spread of the normal prior on the logarithms of the powers, which has mean 0


def check_labels(
    files: Sequence[Row],
    classes: Sequence[str],
    groups: Mapping[str, str],
    features: Callable[[Sequence[str]], Tensor],
    *,
    seed: int,
    labels: Sequence[str] = (),
) -> tuple[list[Mislabel], dict[str, dict[str, float]]]:
    """Find probable label errors, scoring each image with heads that were not fitted to it.

    Images with identical copies under other labels are neither used for fitting nor reported.
    `groups` maps the digests of near-duplicates to the name of their group, and `features` returns
    the features (n, D) of digests. For multi-label data, `labels` are label names, and `classes`
    label sets. Class probabilities follow, by the path of each file with a copy of another label.
    """
    by_digest: dict[str, list[Row]] = {}
    for file in files:
        by_digest.setdefault(file.sha256, []).append(file)
    copies = list(by_digest.values())
    has_one_label = [len({file.label for file in same}) == 1 for same in copies]
    x, y = features(list(by_digest)), torch.tensor([same[0].label for same in copies])
    if labels:
        y = torch.from_numpy(membership(classes, labels))[y].float()
        classes = labels
    group_ids = number_names(groups.get(sha256, sha256) for sha256 in by_digest)
    weight = torch.tensor(has_one_label).float()
    logits = out_of_fold_logits(
        x, y, group_ids, classes=len(classes), seed=seed, sample_weight=weight
    )
    return check_scored_labels(logits, x, y, group_ids, copies, classes)


def check_scored_labels(
    logits: Tensor,
    x: Tensor,
    y: Tensor,
    groups: Tensor,
    copies: Sequence[Sequence[Row]],
    classes: Sequence[str],
) -> tuple[list[Mislabel], dict[str, dict[str, float]]]:
    """Find probable label errors as `check_labels`, given logits as for `score_given_labels`.

    `copies` are the files of each image (n,).
    """
    chances, wrong = score_given_labels(logits, x, y, groups)
    paths, by_path = list[list[str]](), dict[str, dict[str, float]]()
    for same, row in zip(copies, chances, strict=True):
        own = [file.path for file in same]
        if len({file.label for file in same}) > 1:
            known, own = dict(zip(classes, row.tolist(), strict=True)), []
            by_path |= {file.path: known for file in same}
        paths.append(own)
    return find_mislabels(chances, wrong, y, paths, classes), by_path


def number_names(names: Iterable[str]) -> Tensor:
    """Return an integer for each name, (n,): equal names get equal integers, counted from 0."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names])


def find_mislabels(
    probabilities: Tensor,
    wrong: Tensor,
    y: Tensor,
    paths: Sequence[Sequence[str]],
    classes: Sequence[str],
) -> list[Mislabel]:
    """Return the files whose label is more probably wrong than right, the most probable first.

    The first two arguments come from `score_given_labels`. For multi-label data, the suggestion is
    to add or remove a label. `paths` lists the files of each image to report.
    """
    found: list[tuple[tuple[float, ...], Mislabel]] = []
    for row, *column in torch.nonzero(wrong > 0.5).tolist():
        chances, order = probabilities[row], tuple[float, ...]()
        if y.ndim == 2:
            (i,), has = column, bool(y[row, column[0]])
            label, other = (classes[i], f"not {classes[i]}")[:: 1 if has else -1]
            given = float(chances[i] if has else 1 - chances[i])
            suggested, order = 1 - given, (given, row, i)
        else:
            own, best = int(y[row]), int(chances.argmax())
            label, other = classes[own], classes[best]
            given, suggested = float(chances[own]), float(chances[best])
            order = (-float(wrong[row]), given, row)
        for path in paths[row]:
            mislabel = Mislabel(
                path=path,
                label=label,
                suggested=other,
                given_probability=given,
                suggested_probability=suggested,
            )
            found.append((order, mislabel))
    return [mislabel for _, mislabel in sorted(found, key=lambda each: each[0])]


def score_given_labels(
    logits: Tensor, x: Tensor, y: Tensor, groups: Sequence[int] | Tensor
) -> tuple[Tensor, Tensor]:
    """Return class probabilities (n, C), and the probability that each given label is wrong.

    The latter are (n,) or, for multi-label data, (n, C), where a label may also be missing. Each
    row of `logits` (n, C) must come from a head that was not fitted to that image. Near-duplicates,
    which share a number in `groups` (n,), do not vote for each other.
    """
    votes = votes_outside_group(x, y, torch.as_tensor(groups), classes=logits.shape[1])
    if y.ndim == 2:
        has, lacks = logits.sigmoid() * (votes + 0.05), (-logits).sigmoid() * (1.05 - votes)
        probabilities = has / (has + lacks)
        given = torch.where(y.bool(), probabilities, 1 - probabilities)
        return probabilities, _probably_wrong(given, _MIN_WRONG, others=1)
    # 20 neighbours cannot rule out a class, hence the constant
    factors = torch.stack([logits.log_softmax(dim=-1), (votes + 0.05).log()])  # (2, n, C)
    rows = stratified_subset(y, CV_IMAGES, 0)
    powers, wrong, others = fit_powers(factors[:, rows].double(), y[rows])
    probabilities = torch.einsum("f,fnc->nc", powers.to(factors), factors).softmax(dim=-1)
    given = probabilities.gather(1, y[:, None])[:, 0]
    return probabilities, _probably_wrong(given, wrong, others=others)


def fit_powers(factors: Tensor, y: Tensor) -> tuple[Tensor, float, float]:
    """Return the most probable powers (2,) and fraction of wrong labels, and `others`.

    `factors` (2, n, C) are logarithms in float64. A wrong label is assumed to be one of `others`
    classes with equal probability: first any other class, then the effective number of classes with
    which this fit confuses the true one.
    """
    others = max(1.0, factors.shape[2] - 1)
    powers, _ = _fit_given_others(factors, y, others)
    # exp(H), where H is the mean over the classes of the expected entropy of their wrong labels
    probabilities = torch.einsum("f,fnc->nc", powers, factors).softmax(dim=-1)
    columns = probabilities[:, :MAX_DENSE_CLASSES]  # limits the memory
    counts = columns.new_zeros(probabilities.shape[1], columns.shape[1])
    counts.index_add_(0, y, columns).fill_diagonal_(0)  # by given (row) and true class
    fractions = counts / counts.sum(dim=0).clamp(min=1e-30)
    others = float(torch.special.entr(fractions).sum(dim=0).mean().exp())
    return *_fit_given_others(factors, y, others), others


def _fit_given_others(factors: Tensor, y: Tensor, others: float) -> tuple[Tensor, float]:

    def values(free: Tensor) -> tuple[Tensor, Tensor]:
        return free[:2].exp(), free[2].sigmoid()

    def negative_log_posterior(point: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            free = point[0].clone().requires_grad_()
            powers, share = values(free)
            wrong = _MIN_WRONG + (_MAX_WRONG - _MIN_WRONG) * share
            chances = torch.einsum("f,fnc->nc", powers, factors).softmax(dim=-1)
            given = chances.gather(1, y[:, None])[:, 0]
            likelihood = (1 - wrong) * given + wrong * (1 - given) / others
            a, b = _WRONG_PRIOR
            loss = (
                -likelihood.log().sum()
                - (a - 1) * share.log()
                - (b - 1) * (1 - share).log()
                + 0.5 * (free[:2] / _POWER_SPREAD).square().sum()
            )
            (gradient,) = torch.autograd.grad(loss, free)
        return loss.detach()[None], gradient[None]

    start = torch.tensor([[0.0, 0.0, -3.5]], dtype=torch.float64)
    powers, share = values(minimise(negative_log_posterior, start, steps=100, tolerance=1e-6)[0])
    return powers, _MIN_WRONG + (_MAX_WRONG - _MIN_WRONG) * float(share)


def _probably_wrong(given: Tensor, wrong: float, *, others: float) -> Tensor:
    """Return the probability that each label is wrong, given its calibrated probability.

    `wrong` is the fraction of wrong labels, and `others` the number of classes that one may be.
    """
    if_wrong = wrong * (1 - given) / others
    return if_wrong / (if_wrong + (1 - wrong) * given)


def out_of_fold_logits(
    x: Tensor,
    y: Tensor,
    groups: Tensor,
    *,
    classes: int,
    seed: int,
    sample_weight: Tensor | None = None,
    l2: Penalty | None = None,
) -> Tensor:
    """Return each image's logits (n, C) from a head fitted without it or its near-duplicates.

    Near-duplicates share a number in `groups` (n,). The default `sample_weight` (n,) is 1; if the
    penalty `l2` is None, cross-validation chooses it.
    """
    data = Folded(
        x=Standardizer.fit(x)(x),
        y=y,
        sample_weight=torch.ones(len(y)) if sample_weight is None else sample_weight,
        classes=classes,
        seed=seed,
        groups=groups,
    )
    if l2 is None:
        l2, _ = choose_penalty(data)
    heads = solve_logistic(
        data.x, y, data.weights, classes=classes, l2=l2, steps=60, tolerance=3e-4
    )
    return data.held_out(heads)


# nearest neighbours by the cosine similarity of features ------------------------------------------

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
