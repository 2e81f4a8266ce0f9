"""Minima of several functions, compared with closed forms."""

import pytest
import torch
from torch import Tensor

from vitft.features import minimise


def test_few_evaluations_lead_to_the_bottom_of_each_of_several_bowls() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 12, 12, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + 0.1 * torch.eye(12, dtype=torch.float64)
    matrix *= torch.tensor([1e-3, 1.0, 1e3], dtype=torch.float64)[:, None, None]
    lowest = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    slope = (matrix @ lowest[..., None])[..., 0]
    visited: list[Tensor] = []

    def bowl(point: Tensor) -> tuple[Tensor, Tensor]:
        visited.append(point)
        pulled = (matrix @ point[..., None])[..., 0]
        return (point * (0.5 * pulled - slope)).sum(dim=1), pulled - slope

    found = minimise(bowl, torch.zeros_like(lowest), steps=2000, tolerance=1e-9)

    assert visited[1].norm(dim=1)[1:].tolist() == pytest.approx([1, 1])  # no curvature is known
    torch.testing.assert_close(visited[1][0], slope[0])  # a gradient shorter than one
    assert len(visited) < 120
    torch.testing.assert_close(bowl(found)[0], bowl(lowest)[0], rtol=1e-9, atol=0)
    torch.testing.assert_close(found, lowest, atol=1e-3, rtol=0)


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

    values: list[float] = []

    def steep(point: Tensor) -> tuple[Tensor, Tensor]:
        values.append(10 * float(point[0, 0]) ** 4)
        return 10 * (point**4).sum(dim=1), 40 * point**3

    start = torch.full((1, 1), 9.0, dtype=torch.float64)
    found = minimise(steep, start, steps=200, tolerance=1e-6)

    assert 40 * abs(float(found[0, 0])) ** 3 <= 1e-6
    assert min(values) == pytest.approx(0, abs=1e-8)


def test_a_function_that_is_nan_stops_at_its_start() -> None:
    def broken(point: Tensor) -> tuple[Tensor, Tensor]:
        nothing = torch.where(point.sum(dim=1) == 2, 1.0, torch.nan).double()
        return nothing, torch.ones_like(point)

    start = torch.ones(1, 2, dtype=torch.float64)

    assert torch.equal(minimise(broken, start, steps=5, tolerance=0.1), start)
