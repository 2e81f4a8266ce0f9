"""The lowest points of several smooth convex functions at once, by L-BFGS.

The functions are evaluated together, because one reading of the data serves all of them, but each
has its own curvature, its own step and its own end: folds that are done cost no further steps.

Letters: K functions of P numbers each.

Source: Nocedal and Wright 2006, "Numerical Optimization", algorithm 7.4 (the two loops); Hager and
Zhang 2005, section 4 (when to accept a step although rounding hides that it went down).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Points (K, P) to values (K,) and gradients (K, P), all float64."""

MEMORY = 10
"""Steps that are remembered."""
DOWN = 1e-4
"""Share of the promised descent that a step must bring (Armijo)."""
NOISE = 1e-6
"""Share of the value that rounding may hide, where features are float32."""
STILL = 1e-12
"""Descent, as a share of the value, that counts as none."""
HALVINGS = 25


@dataclass(slots=True)
class Memory:
    """The last steps of all functions and how the gradients changed along them."""

    steps: list[Tensor]
    """Each (K, P), the oldest first."""
    changes: list[Tensor]
    weights: list[Tensor]
    """1 / (step . change), (K,); 0 where a step says nothing."""

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a step and forget the one made `MEMORY` steps before it."""
        along = dot(step, change)
        said = along > 1e-14 * dot(change, change)
        self.steps.append(step)
        self.changes.append(change)
        self.weights.append(torch.where(said, 1 / torch.where(said, along, 1.0), 0.0))
        if len(self.steps) > MEMORY:
            del self.steps[0], self.changes[0], self.weights[0]

    def downhill(self, gradient: Tensor) -> Tensor:
        """The quasi-Newton direction (K, P)."""
        way = -gradient
        pulls = []
        pairs = list(zip(self.steps, self.changes, self.weights, strict=True))
        for step, change, weight in reversed(pairs):
            pull = weight * dot(step, way)
            way.sub_(pull[:, None] * change)
            pulls.append(pull)
        if pairs:
            _, change, weight = pairs[-1]
            said = weight > 0
            size = torch.where(said, weight * dot(change, change), 1.0)
            way.div_(size[:, None])
        for (step, change, weight), pull in zip(pairs, reversed(pulls), strict=True):
            way.add_((pull - weight * dot(change, way))[:, None] * step)
        return way


def minimise(objective: Objective, start: Tensor, *, steps: int, tolerance: float) -> Tensor:
    """Where each function is lowest, (K, P).

    A function is left alone when the largest entry of its gradient is at most `tolerance`, when it
    no longer falls, or after `steps` steps.

    Args:
        objective: Convex functions.
        start: (K, P), float64; not changed.
        steps: At most so many of each.
        tolerance: Of the gradient.
    """
    point = start.clone()
    value, gradient = objective(point)
    memory = Memory([], [], [])
    active = gradient.abs().amax(dim=1) > tolerance  # (K,)
    for number in range(steps):
        if not bool(active.any()):
            break
        way = memory.downhill(gradient) * active[:, None]
        length = torch.ones_like(value)
        if not number:  # nothing is known of the curvature yet
            length /= way.norm(dim=1).clamp(min=1.0)
        step, new_value, new_gradient, taken = stepped(
            objective, point, value, gradient, way * length[:, None]
        )
        point = point + step
        memory.add(step, new_gradient - gradient)
        fell = value - new_value > STILL * value.abs().clamp(min=1.0)
        value, gradient = new_value, new_gradient
        active = active & taken & fell & (gradient.abs().amax(dim=1) > tolerance)
    return point


def stepped(
    objective: Objective, point: Tensor, value: Tensor, gradient: Tensor, step: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The step, halved for those functions that do not fall by it until they do.

    Returns:
        Step (K, P), zero where none goes down; value (K,) and gradient (K, P) behind it; and where
        there was one (K,).
    """
    slope = dot(gradient, step)  # (K,), negative or 0
    good = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(HALVINGS):
        new_value, new_gradient = objective(point + step)
        fell = new_value <= value + DOWN * slope
        is_hidden = (new_value <= value + NOISE * value.abs()) & (
            dot(new_gradient, step) <= (2 * DOWN - 1) * slope
        )
        good = fell | is_hidden
        if bool(good.all()):
            return step, new_value, new_gradient, good
        halves = torch.where(good, 1.0, 0.5)
        step, slope = step * halves[:, None], slope * halves
    step = step * good[:, None]
    new_value, new_gradient = objective(point + step)
    return step, new_value, new_gradient, good


def dot(one: Tensor, other: Tensor) -> Tensor:
    """Of each row: (K, P) and (K, P) to (K,)."""
    return torch.linalg.vecdot(one, other)
