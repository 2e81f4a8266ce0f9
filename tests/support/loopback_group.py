"""Functions of torch.distributed between threads, so that collectives run in one process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.support.limits import HANG_S
from tests.support.thread_ranks import Meeting
from vitft.training import ProcessGroup

Result = TypeVar("Result")


class Loopback:
    """Replacement for the module `torch.distributed` in threads that `run` has started."""

    ReduceOp = SimpleNamespace(MAX="max")

    def __init__(self, size: int) -> None:
        self.size, self.meeting, self.own = size, Meeting(size), threading.local()
        self.sent = {(a, b): Queue[Tensor]() for a in range(size) for b in range(size)}

    def all_gather_object(self, values: list[Any], value: object) -> None:
        self.meeting.values[self.own.rank] = value
        self.meeting.barrier.wait()
        values[:] = self.meeting.values
        self.meeting.barrier.wait()

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        values: list[Any] = [None] * self.size
        self.all_gather_object(values, tensor.clone())
        stacked = torch.stack(values)
        tensor.copy_(stacked.amax(dim=0) if op == "max" else stacked.sum(dim=0))

    def broadcast_object_list(self, values: list[Any], src: int, device: torch.device) -> None:
        assert device == torch.device("cpu")
        found: list[Any] = [None] * self.size
        self.all_gather_object(found, list(values))
        values[:] = found[src]

    def send(self, tensor: Tensor, to: int) -> None:
        self.sent[self.own.rank, to].put(tensor.clone())

    def recv(self, tensor: Tensor, source: int) -> None:
        tensor.copy_(self.sent[source, self.own.rank].get(timeout=HANG_S))

    def get_backend(self) -> str:
        return "gloo"

    def run(self, function: Callable[[ProcessGroup], Result]) -> list[Result]:
        """Call a function as each rank at the same time, and return the results."""
        store = HashStore()

        def call(rank: int) -> Result:
            self.own.rank = rank
            try:
                return function(ProcessGroup(rank, self.size, rank, store))
            except BaseException:
                self.meeting.barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(call, range(self.size)))
