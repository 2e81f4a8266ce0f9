"""Processes of a run as threads of one process: collectives without torch.distributed."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch import Tensor

from tests.support.limits import HANG_S
from vitft.training import ProcessGroup

Value = TypeVar("Value")
Result = TypeVar("Result")


class Meeting:
    """Place where the threads exchange one value each."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=HANG_S)
        self.values: list[Any] = [None] * size


class ThreadRank(ProcessGroup):
    """One of `size` threads; every thread must call the same collectives."""

    def __init__(self, rank: int, size: int, meeting: Meeting) -> None:
        super().__init__(rank, size)
        self.meeting = meeting

    def gather(self, value: Value) -> list[Value]:
        self.meeting.values[self.rank] = value
        self.meeting.barrier.wait()
        found = list(self.meeting.values)
        self.meeting.barrier.wait()
        return found

    def broadcast(self, value: Value) -> Value:
        return self.gather(value)[0]

    def all_reduce_max(self, value: int) -> int:
        return max(self.gather(value))

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        parts = self.gather([tensor.clone() for tensor in tensors])
        for tensor, *own in zip(tensors, *parts, strict=True):
            tensor.copy_(sum(own[1:], own[0]))


def run_ranks(size: int, function: Callable[[ThreadRank], Result]) -> list[Result]:
    """Call a function as each of `size` ranks at the same time, and return the results."""
    meeting = Meeting(size)

    def call(rank: int) -> Result:
        try:
            return function(ThreadRank(rank, size, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(call, rank) for rank in range(size)]
    broken = [f.exception() for f in futures if f.exception() is not None]
    for error in broken:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
