"""The best linear head on features that do not change, and what the same features tell for free.

Multinomial logistic regression from the zero head, solved to the optimum by L-BFGS; its penalty
chosen by cross-validation. Many problems that differ only in which rows count (folds, shares of
the data) are solved side by side, so that the features are read once for all of them.

Letters: n images, D numbers per feature, C classes, K problems; `x` is (n, D), `y` is (n,).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.lbfgs import minimise
from vitft.metrics.intervals import wilson
from vitft.metrics.results import CrossValidation, LearningCurvePoint, WeakClass
from vitft.system.device import one_thread

FOLDS = 5
PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
"""Tried from strong to weak, each started at the solution of the one before."""
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Parts of the training images on the learning curve."""
CV_IMAGES = 20_000
"""Cross-validation looks at no more images than this, drawn evenly over the classes."""
ROUGH = 1e-4
"""Gradient at which heads that only judge a penalty or a share of the images are good enough: of
real photos the accuracies are those of the optimum within three images of 1,000."""
FEW, MANY = 10**7, 10**8
"""Numbers up to which a head is solved in float64, and beyond which no copy is made of them."""
ALIKE_NUMBERS = 2**27
"""Similarities held at a time: 512 MiB."""
CHUNK = 16_384
SMALL = 10**8
"""Multiplications of one step below which one thread is faster than two."""
NEIGHBOURS, KNN_TEMPERATURE = 20, 0.07
"""As in Caron et al. 2021 (DINO), https://arxiv.org/abs/2104.14294."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Features to zero mean and unit variance, and a head back to raw features."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "Scaling":
        """From the training features; a number that never changes is left as it is.

        Of many rows the moments are summed in float64, some rows at a time.
        """
        if x.numel() <= MANY:
            std, mean = torch.std_mean(x, dim=0, correction=0)
        else:
            total = x.new_zeros(x.shape[1], dtype=torch.float64)
            squares = torch.zeros_like(total)
            for part in x.split(CHUNK):
                total += part.double().sum(dim=0)
            for part in x.split(CHUNK):
                squares += (part.double() - total / len(x)).square().sum(dim=0)
            std, mean = (squares / len(x)).sqrt().to(x), (total / len(x)).to(x)
        return cls(mean, torch.where(std > 1e-6 * (1 + mean.abs()), std, torch.ones_like(std)))

    def __call__(self, x: Tensor) -> Tensor:
        return x.sub(self.mean).div_(self.std)

    def fold_back(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The head on raw features that gives the same scores: a plain Linear."""
        raw = weight / self.std
        return raw, bias - raw @ self.mean


def solve(
    x: Tensor,
    y: Tensor,
    counted: Tensor,
    *,
    classes: int,
    l2: float,
    scaling: Scaling | None = None,
    start: Tensor | None = None,
    steps: int = 200,
    tolerance: float = 1e-6,
) -> Tensor:
    """Minimise mean cross-entropy + l2/2 |W|^2 for K choices of rows at once.

    Args:
        x: Standardised features (n, D), float32 or float64; the arithmetic is done in its type.
        y: Class indices (n,).
        counted: How much each row counts in each problem, (K, n), not negative.
        classes: C.
        l2: Penalty on the weights; the biases are free.
        scaling: Standardises raw features as they are read, so that no copy of them is needed.
        start: Where to begin, (K, C, D + 1); default: the zero head.
        steps: Most L-BFGS iterations.
        tolerance: Largest entry of the gradient at which to stop.

    Returns:
        Weights and, in the last column, biases: (K, C, D + 1), float64.
    """
    problems, width = len(counted), x.shape[1]
    shape = (problems, classes, width + 1)
    shares = (counted / counted.sum(dim=1, keepdim=True)).to(x.dtype)  # (K, n)

    def objective(flat: Tensor) -> tuple[Tensor, Tensor]:
        head = flat.view(shape).to(x)
        weight, bias = head[..., :-1], head[..., -1]  # (K, C, D), (K, C)
        matrix = weight.reshape(problems * classes, width)
        slope = torch.zeros_like(matrix)
        slope_bias = torch.zeros_like(bias)
        loss = torch.zeros(problems, dtype=torch.float64)
        for begin in range(0, len(x), CHUNK):
            part = slice(begin, begin + CHUNK)
            some = x[part] if scaling is None else scaling(x[part])
            # Images last: few classes at a time would leave the processor's lanes empty.
            logits = (matrix @ some.T).unflatten(0, (problems, classes))  # (K, C, n)
            logs = logits.add_(bias[..., None]).log_softmax(dim=1)
            truth = y[None, None, part].expand(problems, 1, -1)
            told = logs.gather(1, truth)[:, 0]  # (K, n)
            loss -= (told * shares[:, part]).sum(dim=1).double().cpu()
            error = logs.exp_()
            error.scatter_add_(1, truth, error.new_full((1,), -1.0).expand(truth.shape))
            error *= shares[:, None, part]
            slope += error.flatten(0, 1) @ some
            slope_bias += error.sum(dim=2)
        loss += 0.5 * l2 * weight.square().sum(dim=(1, 2)).double().cpu()
        gradient = torch.cat([slope.view_as(weight) + l2 * weight, slope_bias[..., None]], dim=-1)
        return loss, gradient.double().cpu().flatten(1)

    first = torch.zeros(shape, dtype=torch.float64) if start is None else start.double()
    with one_thread(when=x.numel() * problems * classes < SMALL):
        found = minimise(objective, first.flatten(1), steps=steps, tolerance=tolerance)
    return found.view(shape)


def scores(x: Tensor, head: Tensor) -> Tensor:
    """Logits (n, C) of one solved head (C, D + 1)."""
    return x @ head[:, :-1].T.to(x) + head[:, -1].to(x)


def folds(y: Tensor, count: int, seed: int, groups: Tensor | None = None) -> Tensor:
    """Which fold each image is held out in, (n,), every class spread evenly over them.

    Images of one group, copies of one picture, are held out where the first of them is.
    """
    random = np.random.default_rng(seed)
    held = np.empty(len(y), dtype=np.int64)
    labels = y.numpy()
    offset = 0
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        held[rows] = (np.arange(len(rows)) + offset) % count
        offset += len(rows)  # the rest of one class does not always fall into the first folds
    if groups is not None:
        _, first, group = np.unique(groups.numpy(), return_index=True, return_inverse=True)
        held = held[first[group]]
    return torch.from_numpy(held)


def evenly(y: Tensor, most: int, seed: int) -> Tensor:
    """At most `most` rows, drawn from every class in proportion; sorted."""
    if len(y) <= most:
        return torch.arange(len(y))
    held = folds(y, -(-len(y) // most), seed)
    return torch.nonzero(held == 0).flatten()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One penalty of the path, judged on images that its heads did not see."""

    l2: float
    top1: float
    loss: float
    """Mean cross-entropy in nats."""


def choose_penalty(
    x: Tensor,
    y: Tensor,
    counted: Tensor,
    *,
    classes: int,
    seed: int,
    views: int = 1,
    groups: Tensor | None = None,
) -> tuple[float, list[Tried]]:
    """The penalty with the best cross-validated accuracy, at a tie the smallest loss; and the path.

    Rows come in `views` blocks of the same images; an image is held out with all its views and
    the others of its group, and judged by the first view.
    """
    images = len(y) // views
    first = y[:images]
    held = folds(first, FOLDS, seed, groups)
    kept = torch.stack([held != k for k in range(FOLDS)]).repeat(1, views) * counted  # (K, n)
    path: list[Tried] = []
    start = None
    for l2 in PENALTIES:
        start = solve(x, y, kept, classes=classes, l2=l2, start=start, steps=60, tolerance=ROUGH)
        logits = held_out_scores(x[:images], start, held)
        path.append(
            Tried(
                l2=l2,
                top1=(logits.argmax(dim=-1) == first).float().mean().item(),
                loss=F.cross_entropy(logits, first).item(),
            )
        )
        if len(path) > 2 and path[-1].loss > path[-2].loss > path[-3].loss:
            break  # the loss is convex enough along the path: it only gets worse from here
    return max(path, key=lambda tried: (tried.top1, -tried.loss)).l2, path


def held_out_scores(x: Tensor, heads: Tensor, held: Tensor) -> Tensor:
    """Logits (n, C) of each image by the head of the fold it was held out in."""
    logits = torch.empty(len(x), heads.shape[1])
    for k, head in enumerate(heads):
        rows = held == k
        logits[rows] = scores(x[rows], head).float()
    return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A head and how its penalty was chosen."""

    weight: Tensor
    """(C, D), float32, on raw features."""
    bias: Tensor
    l2: float
    path: Sequence[Tried]


def solve_head(
    x: Tensor,
    y: Tensor,
    *,
    classes: int,
    l2: float,
    balanced: bool,
    seed: int,
    views: int = 1,
    groups: Tensor | None = None,
) -> Solved:
    """Fit the linear head.

    Args:
        x: Raw features (n, D), float32; `views` blocks of the same images in the same order.
        y: Class indices (n,).
        classes: C; a class may have no rows.
        l2: Penalty on standardised features; 0 chooses it by cross-validation.
        balanced: Let every class count the same.
        seed: Of the folds.
        views: How many blocks of views the rows consist of.
        groups: Copies of one picture have the same number, (n / views,).
    """
    scaling = Scaling.of(x)
    counted = (balance(y, classes) if balanced else torch.ones(len(y)))[None]
    path: list[Tried] = []
    if l2 == 0:
        few = evenly(y[: len(y) // views], CV_IMAGES, seed)
        rows = torch.cat([few + v * (len(y) // views) for v in range(views)])
        l2, path = choose_penalty(
            scaling(x[rows]),
            y[rows],
            counted[:, rows],
            classes=classes,
            seed=seed,
            views=views,
            groups=None if groups is None else groups[few],
        )
    settle = functools.partial(solve, y=y, counted=counted, classes=classes, l2=l2)
    if x.numel() > MANY:  # read where they lie: mapped files stay on the disk
        head = settle(x, scaling=scaling)[0]
    else:
        scaled = scaling(x)
        rough = settle(scaled, steps=60, tolerance=ROUGH)
        exact = scaled.double() if x.numel() <= FEW else scaled
        head = settle(exact, start=rough)[0]
    weight, bias = scaling.fold_back(head[:, :-1].float(), head[:, -1].float())
    return Solved(weight=weight, bias=bias, l2=l2, path=path)


def balance(y: Tensor, classes: int) -> Tensor:
    """Weights (n,) with which every class counts the same."""
    return (1 / torch.bincount(y, minlength=classes).clamp(min=1).float())[y]


def nearest_neighbours(x: Tensor, y: Tensor, queries: Tensor, *, classes: int) -> Tensor:
    """Votes (m, C) of the nearest training images by cosine, weighted by similarity."""
    lengths, votes = torch.linalg.vector_norm(x, dim=-1).clamp(min=1e-12), []
    at_once = max(1, min(1024, ALIKE_NUMBERS // max(1, len(x))))
    for part in F.normalize(queries, dim=-1).split(at_once):
        alike = (part @ x.T).div_(lengths)  # (m, n)
        nearest = alike.topk(min(NEIGHBOURS, len(x)), dim=-1)  # (m, k)
        weight = (nearest.values / KNN_TEMPERATURE).exp()
        votes.append(torch.zeros(len(part), classes).scatter_add_(1, y[nearest.indices], weight))
    return torch.cat(votes)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Scores of images by heads that did not see them."""

    rows: Tensor
    """Which of the images, (m,), in order."""
    logits: Tensor
    """(m, C)"""


def answers(
    x: Tensor,
    y: Tensor,
    names: Sequence[str],
    *,
    l2: float,
    balanced: bool,
    seed: int,
    groups: Tensor | None = None,
) -> tuple[CrossValidation, HeldOut]:
    """What all images together tell: cross-validated accuracy, learning curve, weak spots.

    Every image is judged by a head that did not see it, so all of them count, not only those held
    back for validation. `x` holds each picture once; near copies share a number of `groups` (n,).
    """
    total = len(y)
    rows = evenly(y, CV_IMAGES, seed)
    x, y = x[rows], y[rows]
    held = folds(y, FOLDS, seed, None if groups is None else groups[rows])
    scaled, classes = Scaling.of(x)(x), len(names)
    nested = torch.from_numpy(np.random.default_rng([seed, 1]).permutation(len(y)))
    place = torch.empty_like(nested)
    place[nested] = torch.arange(len(y))  # smaller shares are parts of larger ones
    curve: list[LearningCurvePoint] = []
    right, logits, heads = 0, torch.zeros(len(y), classes), None
    for share in SHARES:
        some = place < round(share * len(y))
        kept = torch.stack([(held != k) & some for k in range(FOLDS)]).float()
        if int(kept.sum(dim=1).min()) < classes:
            continue  # too few images to learn from
        if balanced:
            kept = kept * balance(y, classes)
        heads = solve(
            scaled, y, kept, classes=classes, l2=l2, start=heads, steps=60, tolerance=ROUGH
        )
        logits = held_out_scores(scaled, heads, held)
        right = int((logits.argmax(dim=-1) == y).sum())
        images = round(float((kept > 0).sum(dim=1).float().mean()))
        curve.append({"images": images, "top1": right / len(y)})
    told: CrossValidation = {
        "images": len(y),
        "of": total,
        "top1": right / len(y),
        "top1_interval": wilson(right, len(y)),
        "curve": curve,
        "gain_from_twice": gain_from_twice([(p["images"], 1 - p["top1"]) for p in curve]),
        "weak_spots": weak_spots(logits, y, names),
    }
    return told, HeldOut(rows, logits)


def gain_from_twice(points: Sequence[tuple[float, float]]) -> float | None:
    """How much accuracy twice the images would add, by a power law through (images, error).

    Source: Hestness et al. 2017, "Deep Learning Scaling is Predictable, Empirically". An
    extrapolation: None if the error does not fall, or is zero somewhere.
    """
    if len(points) < 3 or any(error <= 0 for _, error in points):
        return None
    logs = np.log(np.array(points[-3:]))  # the smallest share says least
    slope, _ = np.polyfit(logs[:, 0], logs[:, 1], 1)
    if slope >= 0:
        return None
    return float(points[-1][1] * (1 - 2**slope))


def weak_spots(logits: Tensor, y: Tensor, names: Sequence[str]) -> list[WeakClass]:
    """The three classes found least often, and what they are taken for most."""
    best = logits.argmax(dim=-1)
    spots: list[WeakClass] = []
    for label, name in enumerate(names):
        taken = best[y == label]
        if not len(taken):
            continue
        others = torch.bincount(taken[taken != label], minlength=len(names))
        spots.append(
            {
                "class": name,
                "recall": (taken == label).float().mean().item(),
                "images": len(taken),
                "taken_for": names[int(others.argmax())] if int(others.sum()) else None,
            }
        )
    return sorted(spots, key=lambda spot: spot["recall"])[:3]
