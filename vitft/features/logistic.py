"""Logistic regression on fixed features, solved to the optimum by L-BFGS.

The regression is multinomial if each image has exactly one class. For multi-label data, there is
one binary regression per label, and all of them are solved together.

Problems that differ only in their sample weights (folds, subsets of the data) are solved together
so that each pass over the features serves all of them.

Notation: n images, D feature dimensions, C classes or labels, K problems; the features `x` are
(n, D), and the targets `y` are class indices (n,) or, for multi-label data, 0 or 1 for each label
(n, C).
"""

import functools
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.features.lbfgs import minimise
from vitft.system.device import one_thread

LARGE_VALUES = 10**8
"""Number of values above which a feature matrix is read in chunks instead of copied."""
CHUNK_ROWS = 16_384
SINGLE_THREAD_COST = 10**8
"""Number of multiplications per step below which one thread is faster than two."""


def is_large(x: Tensor) -> bool:
    """Return whether a feature matrix should be read in chunks instead of copied."""
    return x.numel() > LARGE_VALUES


@dataclass(frozen=True, slots=True)
class Standardizer:
    """Feature scaling to zero mean and unit variance; it can be folded into a head."""

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, x: Tensor) -> Self:
        """Fit to training features (n, D), leaving constant dimensions unscaled.

        For a large matrix, mean and variance are computed in float64, chunk by chunk.
        """
        if not is_large(x):
            std, mean = torch.std_mean(x, dim=0, correction=0)
        else:
            total = x.new_zeros(x.shape[1], dtype=torch.float64)
            squares = torch.zeros_like(total)
            for part in x.split(CHUNK_ROWS):
                total += part.double().sum(dim=0)
            for part in x.split(CHUNK_ROWS):
                squares += (part.double() - total / len(x)).square().sum(dim=0)
            std, mean = (squares / len(x)).sqrt().to(x), (total / len(x)).to(x)
        return cls(mean, torch.where(std > 1e-6 * (1 + mean.abs()), std, torch.ones_like(std)))

    def __call__(self, x: Tensor) -> Tensor:
        return x.sub(self.mean).div_(self.std)

    def leading(self, count: int) -> Self:
        """Return the standardizer of the first `count` dimensions."""
        return type(self)(self.mean[:count], self.std[:count])

    def unscale_head(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """Convert a head (C, D + 1) on standardised features to an equivalent one on raw features.

        Returns:
            The weight (C, D) and bias (C,) of the head on raw features, float32.
        """
        raw, bias = head[:, :-1].float() / self.std, head[:, -1].float()
        return raw, bias - raw @ self.mean


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropyObjective:
    """Weighted mean cross-entropy plus l2/2 |W|^2, with gradient, for each of K linear heads."""

    x: Tensor
    y: Tensor
    weights: Tensor
    """Weight of each image in each problem, (K, n); each row sums to 1."""
    classes: int
    l2: float
    standardizer: Standardizer | None
    """Scaling applied to each chunk of `x` as it is read; None if `x` is already standardised."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the heads: (K, C, D + 1), with biases in the last column."""
        return len(self.weights), self.classes, self.x.shape[1] + 1

    def __call__(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values (K,) and gradients (K, C * (D + 1)) as float64 on the CPU."""
        problems, width = self.shape[0], self.x.shape[1]
        head = flat.view(self.shape).to(self.x)
        weight, bias = head[..., :-1], head[..., -1]  # (K, C, D), (K, C)
        matrix = weight.reshape(problems * self.classes, width)
        slope = torch.zeros_like(matrix)
        slope_bias = torch.zeros_like(bias)
        loss = torch.zeros(problems, dtype=torch.float64)
        for begin in range(0, len(self.x), CHUNK_ROWS):
            part = slice(begin, begin + CHUNK_ROWS)
            x = self.x[part] if self.standardizer is None else self.standardizer(self.x[part])
            # Images are on the last axis: a last axis of few classes would leave SIMD lanes empty.
            logits = (matrix @ x.T).unflatten(0, (problems, self.classes))  # (K, C, n)
            log_probabilities = logits.add_(bias[..., None]).log_softmax(dim=1)
            target = self.y[None, None, part].expand(problems, 1, -1)
            picked = log_probabilities.gather(1, target)[:, 0]  # (K, n)
            loss -= (picked * self.weights[:, part]).sum(dim=1).double().cpu()
            error = log_probabilities.exp_()
            error.scatter_add_(1, target, error.new_full((1,), -1.0).expand(target.shape))
            error *= self.weights[:, None, part]
            slope += error.flatten(0, 1) @ x
            slope_bias += error.sum(dim=2)
        loss += 0.5 * self.l2 * weight.square().sum(dim=(1, 2)).double().cpu()
        gradient = torch.cat(
            [slope.view_as(weight) + self.l2 * weight, slope_bias[..., None]], dim=-1
        )
        return loss, gradient.double().cpu().flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsObjective:
    """Weighted mean binary cross-entropy plus l2/2 |w|^2, with gradient, for each of K * C heads.

    The heads of a problem, one for each label, are independent functions of their own weights.
    """

    x: Tensor
    y: Tensor
    weights: Tensor
    """Weight of each image in each problem, (K, n); each row sums to 1."""
    classes: int
    l2: "float | tuple[float, ...]"
    """One penalty for all labels, or one for each label."""
    standardizer: Standardizer | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the heads: (K, C, D + 1), with biases in the last column."""
        return len(self.weights), self.classes, self.x.shape[1] + 1

    def __call__(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values (K * C,) and gradients (K * C, D + 1) as float64 on the CPU."""
        problems = self.shape[0]
        head = flat.to(self.x)
        matrix, bias = head[:, :-1], head[:, -1]
        l2 = torch.as_tensor(self.l2).to(head).expand(self.classes).repeat(problems)  # (K * C,)
        slope, slope_bias = torch.zeros_like(matrix), torch.zeros_like(bias)
        loss = torch.zeros(len(flat), dtype=torch.float64)
        for begin in range(0, len(self.x), CHUNK_ROWS):
            part = slice(begin, begin + CHUNK_ROWS)
            x = self.x[part] if self.standardizer is None else self.standardizer(self.x[part])
            logits = matrix @ x.T + bias[:, None]  # (K * C, n)
            target = self.y[part].to(head).T.repeat(problems, 1)
            weights = self.weights[:, part].repeat_interleave(self.classes, dim=0)
            losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
            loss += (losses * weights).sum(dim=1).double().cpu()
            error = (logits.sigmoid() - target) * weights
            slope += error @ x
            slope_bias += error.sum(dim=1)
        loss += 0.5 * (l2 * matrix.square().sum(dim=1)).double().cpu()
        gradient = torch.cat([slope + l2[:, None] * matrix, slope_bias[:, None]], dim=1)
        return loss, gradient.double().cpu()


def solve_logistic(
    x: Tensor,
    y: Tensor,
    sample_weight: Tensor,
    *,
    classes: int,
    l2: "float | tuple[float, ...]",
    standardizer: Standardizer | None = None,
    start: Tensor | None = None,
    steps: int = 200,
    tolerance: float = 1e-6,
) -> Tensor:
    """Minimise the penalised cross-entropy for K sets of sample weights (K, n) at once.

    Computations use the dtype of the features, float32 or float64. The features must be
    standardised unless `standardizer` is given; it scales them chunk by chunk, which avoids a copy
    of the whole matrix. Biases are not penalised. Iterations start from the heads `start`
    (K, C, D + 1; default: zeros) and stop as in `lbfgs.minimise`. For multi-label data, each label
    may have its own penalty.

    Returns:
        The heads (K, C, D + 1), float64: weights and, in the last column, biases.
    """
    kind: Any = CrossEntropyObjective if y.ndim == 1 else LabelsObjective
    objective = kind(
        x=x,
        y=y,
        weights=(sample_weight / sample_weight.sum(dim=1, keepdim=True)).to(x.dtype),
        classes=classes,
        l2=l2,
        standardizer=standardizer,
    )
    shape = objective.shape
    first = torch.zeros(shape, dtype=torch.float64) if start is None else start.double()
    flat = first.flatten(1) if y.ndim == 1 else first.flatten(0, 1)
    with one_thread(when=x.numel() * shape[0] * classes < SINGLE_THREAD_COST):
        found = minimise(objective, flat, steps=steps, tolerance=tolerance)
    return found.view(shape)


rough_fit = functools.partial(solve_logistic, steps=60, tolerance=1e-4)
"""Approximate solver for heads that are fitted only to evaluate a penalty or a subset size. On real
photos, such a head and the optimal one differ in accuracy by at most 3 images in 1,000."""


def held_out_logits(x: Tensor, heads: Tensor, fold_id: Tensor) -> Tensor:
    """Return each image's logits (n, C) from the head of the fold that held it out."""
    logits = torch.empty(len(x), heads.shape[1])
    for k, head in enumerate(heads):
        rows = fold_id == k
        logits[rows] = linear_logits(x[rows], head).float()
    return logits


def linear_logits(x: Tensor, head: Tensor) -> Tensor:
    """Return the logits (n, C) of a fitted head (C, D + 1) for features (n, D)."""
    return x @ head[:, :-1].T.to(x) + head[:, -1].to(x)


def class_balanced_weights(y: Tensor, classes: int) -> Tensor:
    """Return sample weights (n,) that give every non-empty class the same total weight."""
    return (1 / torch.bincount(y, minlength=classes).clamp(min=1).float())[y]
