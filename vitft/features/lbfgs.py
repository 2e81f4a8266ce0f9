"""Batched L-BFGS for smooth convex functions.

The functions are evaluated together, in one pass over the data, but each has its own curvature
estimate, step length and stopping point.

Notation: K functions of P parameters each.

Sources: Nocedal and Wright 2006, "Numerical Optimization", algorithm 7.4 (two-loop recursion);
Hager and Zhang 2005, section 4 (acceptance of a step whose decrease is hidden by rounding).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function from points (K, P) to values (K,) and gradients (K, P), all float64."""

_ARMIJO = 1e-4
"""Fraction of the predicted decrease that a step must achieve (Armijo condition)."""
_ROUNDING = 1e-6
"""Largest relative change in a function's value that rounding of float32 features may hide."""
_STALLED = 1e-12
"""Decrease, relative to max(1, abs(value)), below which the minimisation of a function is
considered converged."""


@dataclass(slots=True)
class CurvatureHistory:
    """The most recent steps of all functions and the resulting changes in their gradients."""

    steps: list[Tensor]  # each (K, P), oldest first
    changes: list[Tensor]
    weights: list[Tensor]  # 1 / (step . change), (K,); 0 where a step is unusable

    def add(self, step: Tensor, change: Tensor) -> None:
        """Add a step and the change in the gradients, both (K, P); only the last ten are kept."""
        along = _row_dot(step, change)
        usable = along > 1e-14 * _row_dot(change, change)
        self.steps.append(step)
        self.changes.append(change)
        self.weights.append(torch.where(usable, 1 / torch.where(usable, along, 1.0), 0.0))
        if len(self.steps) > 10:
            del self.steps[0], self.changes[0], self.weights[0]

    def downhill(self, gradient: Tensor) -> Tensor:
        """Return the quasi-Newton descent direction (K, P) for gradients (K, P)."""
        way = -gradient
        pulls = []
        pairs = list(zip(self.steps, self.changes, self.weights, strict=True))
        for step, change, weight in reversed(pairs):
            pull = weight * _row_dot(step, way)
            way.sub_(pull[:, None] * change)
            pulls.append(pull)
        if pairs:
            _, change, weight = pairs[-1]
            usable = weight > 0
            size = torch.where(usable, weight * _row_dot(change, change), 1.0)
            way.div_(size[:, None])
        for (step, change, weight), pull in zip(pairs, reversed(pulls), strict=True):
            way.add_((pull - weight * _row_dot(change, way))[:, None] * step)
        return way


def minimise(objective: _Objective, start: Tensor, *, steps: int, tolerance: float) -> Tensor:
    """Minimise every function, and return the final points (K, P).

    Iteration stops for a function when the largest absolute entry of its gradient is at most
    `tolerance`, when its value no longer decreases, or after `steps` steps. `start` (K, P) is
    float64.
    """
    point = start.clone()
    value, gradient = objective(point)
    memory = CurvatureHistory([], [], [])
    active = gradient.abs().amax(dim=1) > tolerance  # (K,)
    for number in range(steps):
        if not bool(active.any()):
            break
        way = memory.downhill(gradient) * active[:, None]
        length = torch.ones_like(value)
        if not number:  # there is no curvature estimate yet
            length /= way.norm(dim=1).clamp(min=1.0)
        step, new_value, new_gradient, taken = _line_search(
            objective, point, value, gradient, way * length[:, None]
        )
        point = point + step
        memory.add(step, new_gradient - gradient)
        fell = value - new_value > _STALLED * value.abs().clamp(min=1.0)
        value, gradient = new_value, new_gradient
        active = active & taken & fell & (gradient.abs().amax(dim=1) > tolerance)
    return point


def _line_search(
    objective: _Objective, point: Tensor, value: Tensor, gradient: Tensor, step: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Halve each function's step until the function decreases, trying at most 25 lengths.

    A step is also accepted if rounding may hide a decrease that the new gradient confirms.

    Returns:
        The step (K, P), which is zero where no length was accepted; the value (K,) and gradient
        (K, P) after the step; and a mask (K,) of the functions whose step was accepted.
    """
    slope = _row_dot(gradient, step)  # (K,), negative or 0
    good = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(25):
        new_value, new_gradient = objective(point + step)
        fell = new_value <= value + _ARMIJO * slope
        is_hidden = (new_value <= value + _ROUNDING * value.abs()) & (
            _row_dot(new_gradient, step) <= (2 * _ARMIJO - 1) * slope
        )
        good = fell | is_hidden
        if bool(good.all()):
            return step, new_value, new_gradient, good
        halves = torch.where(good, 1.0, 0.5)
        step, slope = step * halves[:, None], slope * halves
    step = step * good[:, None]
    new_value, new_gradient = objective(point + step)
    return step, new_value, new_gradient, good


def _row_dot(one: Tensor, other: Tensor) -> Tensor:
    """Return the row-wise dot products (K,) of two matrices (K, P)."""
    return torch.linalg.vecdot(one, other)
