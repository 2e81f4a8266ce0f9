"""Solution of a head by all processes: the main process takes the steps, all sum over their rows.

The other processes compute nothing that depends on rounding, such as the length of a step, so
processes on different machines cannot disagree about it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from torch import Tensor

from vitft.features.logistic import HeadObjective, Problem, Sharing
from vitft.system.cores import node_cores
from vitft.system.device import torch_threads, worker_threads
from vitft.training.distributed import ProcessGroup

_Solved = TypeVar("_Solved")
_OwnObjective = Callable[[Problem], HeadObjective]
"""Function that returns the objective of this process's rows."""


@dataclass(frozen=True, slots=True)
class _MainSharing:
    """The main process's side of `Sharing`; the other processes are in `solve_together`."""

    group: ProcessGroup

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.group.size

    def start(self, problem: Problem) -> None:
        """Announce the problem to the other processes."""
        self.group.broadcast(problem)

    def sums(self, objective: HeadObjective, flat: Tensor) -> Sequence[Tensor]:
        """Return the sums of all processes at the point `flat`."""
        self.group.broadcast(flat)
        with torch_threads(worker_threads()):  # the other processes compute as well
            own = objective.sums(flat)
        return self.group.reduce_to_main(own)


def solve_together(
    group: ProcessGroup, solve: Callable[[Sharing | None], _Solved], own: _OwnObjective
) -> _Solved:
    """Call `solve` in the main process, and return its result in every process.

    Until then, the other processes evaluate the objectives of their `own` rows whenever the main
    process asks for it. While it does not, it may use all cores of the machine.

    Raises:
        ResourceError: A process was lost.
    """
    if group.size == 1:
        return solve(None)
    if group.is_main:
        with torch_threads(node_cores()):
            solved = solve(_MainSharing(group))
        group.broadcast((solved,))  # a tuple, so that no result is mistaken for a point
        return solved
    objective: HeadObjective | None = None
    while True:
        message: object = group.broadcast(None)
        if isinstance(message, tuple):
            return cast("_Solved", message[0])
        if isinstance(message, Problem):
            objective = own(message)
        else:
            assert objective is not None
            assert isinstance(message, Tensor)
            group.reduce_to_main(objective.sums(message))
