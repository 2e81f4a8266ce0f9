"""Solution of a head by several processes: the main process steps, all sum over their rows."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.thread_ranks import ThreadRank, run_ranks
from vitft.features.logistic import Problem, Sharing
from vitft.system.cores import node_cores
from vitft.system.device import worker_threads
from vitft.training import shared_solve as module
from vitft.training.distributed import ProcessGroup
from vitft.training.shared_solve import solve_together


class Squares:
    """Objective of a process's rows: the sum of the squares of the point, and its gradient."""

    def __init__(self, weight: float, threads: list[int] | None = None) -> None:
        self.weight, self.threads = weight, [] if threads is None else threads

    def sums(self, flat: Tensor) -> Sequence[Tensor]:
        self.threads.append(torch.get_num_threads())
        return [self.weight * flat.square().sum()[None], 2 * self.weight * flat]


def test_a_single_process_solves_alone() -> None:
    given: list[Any] = []

    assert solve_together(ProcessGroup(), lambda s: given.append(s) or 7, None) == 7  # type: ignore[func-returns-value, arg-type]
    assert given == [None]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("result", [("a", "tuple"), torch.ones(2), None])
def test_all_processes_sum_over_their_rows_until_the_main_one_has_solved(
    size: int, result: Any
) -> None:
    problem = object.__new__(Problem)
    made: list[tuple[int, Problem]] = []

    def rank(group: ThreadRank) -> Any:
        def solve(sharing: Sharing | None) -> Any:
            assert sharing is not None
            assert sharing.size == size
            for point in (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])):
                sharing.start(problem)
                for _ in range(2):
                    own: Any = Squares(10.0**group.rank)
                    value, gradient = sharing.sums(own, point)
                    factor = sum(10.0**r for r in range(size))
                    assert value.item() == factor * point.square().sum().item()
                    assert gradient.tolist() == (2 * factor * point).tolist()
            return result

        def own(asked: Problem) -> Any:
            made.append((group.rank, asked))
            return Squares(10.0**group.rank)

        return solve_together(group, solve, own)

    found = run_ranks(size, rank)

    assert all(one is result for one in found)
    assert sorted(rank for rank, _ in made) == [r for r in range(1, size) for _ in range(2)]
    assert all(asked is problem for _, asked in made)


def test_the_main_process_uses_all_cores_except_while_the_others_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "node_cores", lambda: 5)
    monkeypatch.setattr(module, "worker_threads", lambda: 2)
    threads: list[int] = []
    group: Any = ProcessGroup(0, 2)
    group.broadcast = lambda value: value
    group.reduce_to_main = lambda tensors: tensors

    def solve(sharing: Sharing | None) -> list[int]:
        assert sharing is not None
        objective: Any = Squares(1.0, threads)
        sharing.sums(objective, torch.ones(1))
        threads.append(torch.get_num_threads())
        return threads

    assert node_cores() >= worker_threads()
    assert solve_together(group, solve, None) == [2, 5]  # type: ignore[arg-type]
