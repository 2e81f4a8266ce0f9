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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.system.device import exact_float32, one_thread

# batched L-BFGS for smooth convex functions -------------------------------------------------------

_Objective = Callable[[Tensor], tuple[Tensor, Tensor]]  # (K, P) -> (K,), (K, P)

_ARMIJO = 1e-4  # fraction of the predicted decrease that a step must achieve (Armijo condition)
_ROUNDING = 1e-6  # relative change that rounding of float32 features may hide
_STALLED = 1e-12  # smaller decreases, relative to max(1, abs(value)), end the minimisation


def _downhill(pairs: Sequence[tuple[Tensor, Tensor, Tensor]], gradient: Tensor) -> Tensor:
    """Return the quasi-Newton descent direction (K, P), given the last steps.

    Each pair has a step and the resulting change in the gradients, (K, P), and 1 / (step . change),
    (K,), which is 0 where the step is unusable.
    """
    way, pulls = -gradient, list[Tensor]()
    for step, change, weight in reversed(pairs):
        pull = weight * torch.linalg.vecdot(step, way)
        way.sub_(pull[:, None] * change)
        pulls.append(pull)
    if pairs:
        _, change, weight = pairs[-1]
        size = torch.where(weight > 0, weight * torch.linalg.vecdot(change, change), 1.0)
        way.div_(size[:, None])
    for (step, change, weight), pull in zip(pairs, reversed(pulls), strict=True):
        way.add_((pull - weight * torch.linalg.vecdot(change, way))[:, None] * step)
    return way


def minimise(objective: _Objective, start: Tensor, *, steps: int, tolerance: float) -> Tensor:
    """Minimise every function from `start` (K, P), and return the final points (K, P), float64.

    Iteration stops for a function when the largest absolute entry of its gradient is at most
    `tolerance`, when its value no longer decreases, or after `steps` steps.
    """
    point = start.clone()
    value, gradient = objective(point)
    pairs = list[tuple[Tensor, Tensor, Tensor]]()
    active = gradient.abs().amax(dim=1) > tolerance  # (K,)
    for number in range(steps):
        if not bool(active.any()):
            break
        way = _downhill(pairs, gradient) * active[:, None]
        length = torch.ones_like(value)
        if not number:  # there is no curvature estimate yet
            length /= way.norm(dim=1).clamp(min=1.0)
        step, new_value, new_gradient, taken = _line_search(
            objective, point, value, gradient, way * length[:, None]
        )
        point = point + step
        change = new_gradient - gradient
        along = torch.linalg.vecdot(step, change)
        usable = along > 1e-14 * torch.linalg.vecdot(change, change)
        weight = torch.where(usable, 1 / torch.where(usable, along, 1.0), 0.0)
        pairs = [*pairs[-9:], (step, change, weight)]
        fell = value - new_value > _STALLED * value.abs().clamp(min=1.0)
        value, gradient = new_value, new_gradient
        active = active & taken & fell & (gradient.abs().amax(dim=1) > tolerance)
    return point


def _line_search(
    objective: _Objective, point: Tensor, value: Tensor, gradient: Tensor, step: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Halve each function's step (K, P) until the function decreases, at most 25 times.

    The result is the step, zero where none was accepted, the value (K,) and gradient (K, P) after
    it, and a mask (K,) of the functions whose step was accepted.
    """
    slope = torch.linalg.vecdot(gradient, step)  # (K,), negative or 0
    good = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(25):
        new_value, new_gradient = objective(point + step)
        fell = new_value <= value + _ARMIJO * slope
        is_hidden = (new_value <= value + _ROUNDING * value.abs()) & (
            torch.linalg.vecdot(new_gradient, step) <= (2 * _ARMIJO - 1) * slope
        )  # by rounding, but the new gradient confirms the decrease
        good = fell | is_hidden
        if bool(good.all()):
            return step, new_value, new_gradient, good
        halves = torch.where(good, 1.0, 0.5)
        step, slope = step * halves[:, None], slope * halves
    step = step * good[:, None]
    new_value, new_gradient = objective(point + step)
    return step, new_value, new_gradient, good


# logistic regression on fixed features, solved to the optimum by L-BFGS ---------------------------

Penalty = float | tuple[float, ...]
"""Penalty on the weights of a head or, for multi-label data, also one for each label."""
LARGE_VALUES = 10**8  # larger feature matrices are read in chunks instead of copied
CHUNK_ROWS = 16_384
_CHUNK_LOGITS = 2**26  # maximum number of logits (problems x classes x rows) to hold at a time
_SINGLE_THREAD_COST = 10**8  # multiplications per step; below, one thread is faster
_TOLERANCE_CLASSES = 10
"""Number of classes up to which the tolerance of the gradient is as given; it then falls as 1 / C,
as the gradients do."""


@dataclass(frozen=True, slots=True)
class Standardizer:
    """Feature scaling to zero mean and unit variance; it can be folded into a head."""

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, x: Tensor) -> Self:
        """Fit to training features (n, D), leaving constant dimensions unscaled."""
        if x.numel() <= LARGE_VALUES:
            std, mean = torch.std_mean(x, dim=0, correction=0)
        else:  # chunk by chunk, in float64
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

    def scale_weight(self, weight: Tensor | None) -> Tensor | None:
        """Convert the weight (C, D) of a head on raw features to one on scaled features."""
        return None if weight is None else weight.to(self.std) * self.std

    def unscale_head(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """Convert a head on scaled features (C, D + 1) to weight (C, D) and bias (C,) on raw."""
        raw, bias = head[:, :-1].float() / self.std, head[:, -1].float()
        return raw, bias - raw @ self.mean


def _head_objective(
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    *,
    classes: int,
    l2: Penalty,
    centre: Tensor | None,
    standardizer: Standardizer | None,
) -> _Objective:
    """Return the weighted mean cross-entropy plus l2/2 |W - centre|^2 of K heads, with gradient.

    Each row of `weights` (K, n) sums to 1. Points are (K, C * (D + 1)), and values (K,). For
    multi-label data, the cross-entropy is binary, and the heads of a problem, one for each label,
    are independent functions of their own weights: points are (K * C, D + 1), values (K * C,).
    """
    problems, penalties = len(weights), torch.as_tensor(l2).to(x).expand(classes)
    penalties = penalties.repeat(problems)  # (K * C,)
    centres = None if centre is None else centre.to(x).repeat(problems, 1)  # (K * C, D)
    rows = max(1, min(CHUNK_ROWS, _CHUNK_LOGITS // (problems * classes)))

    def sums(head: Tensor, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss and the gradients of weights and biases, summed over some rows."""
        own, weight = x[part], weights[:, part]
        own = own if standardizer is None else standardizer(own)
        if y.ndim == 2:
            logits = head[:, :-1] @ own.T + head[:, -1:]  # (K * C, n)
            target = y[part].to(head).T.repeat(problems, 1)
            weight = weight.repeat_interleave(classes, dim=0)
            losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
            error = (logits.sigmoid() - target) * weight
            return (losses * weight).sum(dim=1), error @ own, error.sum(dim=1)
        # Images are on the last axis: a last axis of few classes would leave SIMD lanes empty.
        logits = (head[:, :-1] @ own.T).add_(head[:, -1:])  # (K * C, n)
        log_probabilities = logits.unflatten(0, (problems, classes)).log_softmax(dim=1)
        target = y[None, None, part].expand(problems, 1, -1)
        picked = log_probabilities.gather(1, target)[:, 0]  # (K, n)
        loss = -(picked * weight).sum(dim=1)
        error = log_probabilities.exp_()
        error.scatter_add_(1, target, error.new_full((1,), -1.0).expand(target.shape))
        error *= weight[:, None]
        return loss, error.flatten(0, 1) @ own, error.sum(dim=2).flatten()

    def objective(flat: Tensor) -> tuple[Tensor, Tensor]:
        head = flat.to(x).view(-1, x.shape[1] + 1)  # (K * C, D + 1)
        total: list[Tensor] = []  # float64
        for first in range(0, max(1, len(x)), rows):
            terms = [term.double() for term in sums(head, slice(first, first + rows))]
            for one, term in zip(total, terms, strict=False):  # none for the first rows
                one += term
            total = total or terms
        loss, slope, slope_bias = total
        offset = head[:, :-1] if centres is None else head[:, :-1] - centres
        penalty = (0.5 * penalties * offset.square().sum(dim=1)).double()
        slope = slope.to(head) + penalties[:, None] * offset
        gradient = torch.cat([slope, slope_bias.to(head)[:, None]], dim=1).double()
        return loss + penalty.view(len(loss), -1).sum(dim=1), gradient.view_as(flat)

    return objective


def solve_logistic(
    x: Tensor,
    y: Tensor,
    sample_weight: Tensor,
    *,
    classes: int,
    l2: Penalty,
    centre: Tensor | None = None,
    standardizer: Standardizer | None = None,
    start: Tensor | None = None,
    steps: int = 200,
    tolerance: float = 1e-6,
) -> Tensor:
    """Minimise the penalised cross-entropy for K sets of sample weights (K, n) at once.

    The heads are (K, C, D + 1), float64: weights and, in the last column, biases, which are not
    penalised. The penalty is on their distance from `centre` (C, D), for standardised features, or
    from zero. Computations use the dtype of the features, float32 or float64. The features must be
    standardised unless `standardizer` is given; it scales them chunk by chunk, without a copy of
    the whole matrix. Iterations start from the heads `start` (default: the centre) and stop as in
    `minimise`, with a `tolerance` for up to `_TOLERANCE_CLASSES` classes. All is computed on the
    device of the features.
    """
    weights = (sample_weight / sample_weight.sum(dim=1, keepdim=True)).to(x)
    y = y.to(x.device)
    objective = _head_objective(
        x, y, weights, classes=classes, l2=l2, centre=centre, standardizer=standardizer
    )
    shape = len(weights), classes, x.shape[1] + 1
    first = x.new_zeros(shape, dtype=torch.float64) if start is None else start.double()
    if start is None and centre is not None:
        first[:, :, :-1] = centre
    flat = first.flatten(1) if y.ndim == 1 else first.flatten(0, 1)
    if y.ndim == 1:  # the gradient of a class is about 1 / C of the gradient of its own mean loss
        tolerance *= min(1.0, _TOLERANCE_CLASSES / classes)
    with threads_for(*x.shape, heads=shape[0] * classes), exact_float32(x.device):
        found = minimise(objective, flat, steps=steps, tolerance=tolerance)
    return found.view(shape)


def threads_for(images: int, features: int, *, heads: int) -> AbstractContextManager[None]:
    """Use one thread in the `with` block if steps that fit so many rows of heads are short."""
    return one_thread(when=images * features * heads < _SINGLE_THREAD_COST)


rough_fit = functools.partial(solve_logistic, steps=60, tolerance=1e-4)
"""Approximate solver for heads that are fitted only to evaluate a penalty or a subset size."""


def linear_logits(x: Tensor, head: Tensor) -> Tensor:
    """Return the logits (n, C) of a fitted head (C, D + 1) for features (n, D)."""
    return x @ head[:, :-1].T.to(x) + head[:, -1].to(x)


def class_balanced_weights(y: Tensor, classes: int) -> Tensor:
    """Return sample weights (n,) that give every non-empty class the same total weight."""
    return (1 / torch.bincount(y, minlength=classes).clamp(min=1).float())[y]
