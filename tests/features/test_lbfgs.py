"""Minima of several functions, compared with closed forms."""

import pytest
import torch
from torch import Tensor

from vitft.features.lbfgs import CurvatureHistory, line_search, minimise


def bowls() -> tuple[Tensor, Tensor, Tensor]:
    """Three quadratic functions: their matrices (K, P, P), lowest points (K, P) and slopes."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 12, 12, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + 0.1 * torch.eye(12, dtype=torch.float64)
    matrix *= torch.tensor([1e-3, 1.0, 1e3], dtype=torch.float64)[:, None, None]
    lowest = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    return matrix, lowest, (matrix @ lowest[..., None])[..., 0]


def test_each_of_several_bowls_is_followed_to_its_bottom() -> None:
    matrix, lowest, slope = bowls()

    def bowl(point: Tensor) -> tuple[Tensor, Tensor]:
        pulled = (matrix @ point[..., None])[..., 0]
        return (point * (0.5 * pulled - slope)).sum(dim=1), pulled - slope

    found = minimise(bowl, torch.zeros_like(lowest), steps=2000, tolerance=1e-9)

    torch.testing.assert_close(bowl(found)[0], bowl(lowest)[0], rtol=1e-9, atol=0)
    torch.testing.assert_close(found, lowest, atol=1e-3, rtol=0)


def test_few_evaluations_lead_to_the_bottom_of_a_bowl() -> None:
    matrix, lowest, slope = bowls()
    visited: list[Tensor] = []

    def bowl(point: Tensor) -> tuple[Tensor, Tensor]:
        visited.append(point)
        pulled = (matrix @ point[..., None])[..., 0]
        return (point * (0.5 * pulled - slope)).sum(dim=1), pulled - slope

    minimise(bowl, torch.zeros_like(lowest), steps=2000, tolerance=1e-9)

    assert visited[1].norm(dim=1)[1:].tolist() == pytest.approx([1, 1])  # no curvature is known
    torch.testing.assert_close(visited[1][0], slope[0])  # a gradient shorter than one
    assert len(visited) < 120


@pytest.mark.parametrize("upwards", [8, 12])
def test_the_direction_is_that_of_dense_bfgs_with_the_last_ten_steps(upwards: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = bowls()[0][1]
    memory = CurvatureHistory([], [], [])
    steps = torch.randn(13, 12, generator=generator, dtype=torch.float64)
    steps[11] = 0  # has no curvature and is left out
    changes = steps @ matrix
    changes[upwards] *= -1  # has a negative curvature and is left out, too
    for step, change in zip(steps, changes, strict=True):
        memory.add(step[None], change[None])
    gradient = torch.randn(12, generator=generator, dtype=torch.float64)

    found = memory.downhill(gradient[None])[0]

    one = torch.eye(12, dtype=torch.float64)
    last = changes[-1]
    inverse = one.clone() if upwards == 12 else one * (steps[-1] @ last) / (last @ last)
    for step, change in zip(steps[3:], changes[3:], strict=True):
        if (along := step @ change) > 0:
            left = one - torch.outer(step, change) / along
            inverse = left @ inverse @ left.T + torch.outer(step, step) / along
    torch.testing.assert_close(found, -inverse @ gradient)


def test_a_function_that_is_done_stays_where_it_is() -> None:
    visited: list[float] = []

    def valleys(point: Tensor) -> tuple[Tensor, Tensor]:
        visited.append(float(point[0, 0]))
        return torch.cosh(point).sum(dim=1), torch.sinh(point)

    start = torch.tensor([[0.0], [5.0]], dtype=torch.float64)

    found = minimise(valleys, start, steps=100, tolerance=1e-8)

    assert set(visited) == {0.0}
    assert len(visited) > 3
    assert found.abs().max() < 1e-8
    assert start[1, 0] == 5.0


def test_a_step_that_overshoots_is_halved() -> None:
    """From -g the first step would land at 1 - 40, where the function is far higher."""

    def steep(point: Tensor) -> tuple[Tensor, Tensor]:
        return 10 * (point**4).sum(dim=1), 40 * point**3

    values: list[float] = []

    def watched(point: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = steep(point)
        values.append(float(value[0]))
        return value, slope

    found = minimise(
        watched, torch.full((1, 1), 9.0, dtype=torch.float64), steps=200, tolerance=1e-6
    )

    assert 40 * abs(float(found[0, 0])) ** 3 <= 1e-6
    assert min(values) == pytest.approx(0, abs=1e-8)


def test_a_function_that_is_nan_stops_at_its_start() -> None:
    def broken(point: Tensor) -> tuple[Tensor, Tensor]:
        nothing = torch.where(point.sum(dim=1) == 2, 1.0, torch.nan).double()
        return nothing, torch.ones_like(point)

    start = torch.ones(1, 2, dtype=torch.float64)

    assert torch.equal(minimise(broken, start, steps=5, tolerance=0.1), start)


def test_the_value_after_a_search_is_that_of_each_functions_own_step() -> None:
    """The first function falls along its step; the second, |x|, is already at its lowest point."""

    def both(point: Tensor) -> tuple[Tensor, Tensor]:
        x = point[:, 0]
        return torch.stack([x[0] ** 2, x[1].abs()]), torch.stack([2 * x[0], x[1].sign()])[:, None]

    start = torch.tensor([[3.0], [0.0]], dtype=torch.float64)
    value, gradient = torch.tensor([9.0, 0.0]).double(), torch.tensor([[6.0], [-1.0]]).double()

    step, new_value, new_gradient, taken = line_search(
        both, start, value, gradient, torch.tensor([[-2.0], [1.0]]).double()
    )

    assert step.tolist() == [[-2.0], [0.0]]
    assert new_value.tolist() == [1.0, 0.0]
    assert new_gradient.tolist() == [[2.0], [0.0]]
    assert taken.tolist() == [True, False]


def tried(
    value: float, slope: float, *, before: float = 1.0, at_start: float = -1.0
) -> tuple[bool, int]:
    """Return whether the first step of length one is taken, and how many lengths are tried.

    A function has the value `before` and the slope `at_start` along the step; wherever it is
    evaluated, it has the value `value` and the slope `slope`.
    """
    calls = 0

    def scripted(point: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return torch.tensor([value], dtype=torch.float64), torch.full_like(point, slope)

    start, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    step, _, _, taken = line_search(
        scripted, start, torch.tensor([before], dtype=torch.float64), at_start * one, one
    )
    assert bool(taken) == bool(step.any())
    return bool(taken) and float(step) == 1, calls


def test_a_step_must_achieve_a_ten_thousandth_of_the_predicted_decrease() -> None:
    assert tried(1 - 1.01e-4, 9.0) == (True, 1)
    assert tried(1 - 0.99e-4, 9.0)[0] is False
    assert tried(1 - 0.99e-4, 9.0)[1] == 2  # of half the step, it is more than that


def test_a_decrease_hidden_by_rounding_is_confirmed_by_the_slope() -> None:
    assert tried(1 + 0.99e-6, -0.5) == (True, 1)
    assert tried(1 + 1.01e-6, -0.5)[0] is False
    assert tried(-1 + 0.99e-6, -0.5, before=-1.0) == (True, 1)
    assert tried(1.0, 0.9997) == (True, 1)  # at most 1 - 2 / 10,000 of the slope at the start
    assert tried(1.0, 0.99975) == (True, 1)
    assert tried(1.0, 0.99985)[0] is False


def test_a_step_is_given_up_after_25_lengths() -> None:
    taken, calls = tried(2.0, 9.0)

    assert not taken
    assert calls == 25 + 1  # then the function is evaluated where it was


@pytest.mark.parametrize(("fall", "goes_on"), [(1.5e-12, True), (0.7e-12, False)])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_function_that_hardly_falls_has_converged(
    fall: float, goes_on: bool, scale: float
) -> None:
    values = [1 - i * fall for i in range(50)]
    calls = 0

    def slowly(point: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        value = values[min(calls, 49)] if scale == 1 else scale * values[min(calls, 49)]
        calls += 1
        return torch.tensor([value], dtype=torch.float64), torch.full_like(point, -1e-5)

    minimise(slowly, torch.zeros(1, 1, dtype=torch.float64), steps=20, tolerance=1e-9)

    assert calls == (21 if goes_on else 2)


def test_the_last_step_is_the_allowed_one() -> None:
    calls = 0

    def ever_down(point: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return -point.sum(dim=1), -torch.ones_like(point)

    minimise(ever_down, torch.zeros(1, 1, dtype=torch.float64), steps=7, tolerance=1e-6)

    assert calls == 8  # at the start and after each step


def test_a_gradient_that_just_reaches_the_tolerance_ends_the_steps() -> None:
    def flat(point: Tensor) -> tuple[Tensor, Tensor]:
        return -0.5 * point.sum(dim=1), torch.full_like(point, -0.5)

    start = torch.zeros(1, 2, dtype=torch.float64)

    assert torch.equal(minimise(flat, start, steps=5, tolerance=0.5), start)
    assert not torch.equal(minimise(flat, start, steps=5, tolerance=0.49), start)


def test_only_the_steps_that_are_too_long_are_halved() -> None:
    def both(point: Tensor) -> tuple[Tensor, Tensor]:
        curvature = torch.tensor([1.0, 8.0], dtype=torch.float64)
        return 0.5 * curvature * point[:, 0] ** 2, curvature[:, None] * point

    start = torch.ones(2, 1, dtype=torch.float64)
    value, gradient = both(start)

    step, new_value, _, taken = line_search(both, start, value, gradient, -gradient)

    assert step.flatten().tolist() == [-1, -1]  # -8 leads to -7, -4 to -3 and -2 to -1, as high
    assert new_value.tolist() == [0, 0]
    assert taken.all()
