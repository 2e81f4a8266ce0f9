"""Several processes that train one model: who they are, and the few things they tell each other.

    torchrun --nproc-per-node 2 -m -- vitft finetune ...

Every process sees all images and draws the same batches; each computes its share of a batch, of
the features and of the validation images. Gradients are added up, so that the step is that of the
whole batch. The first process alone prints and writes.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitft.system import console
from vitft.system.errors import ResourceError
from vitft.system.signals import default_handlers

T = TypeVar("T")


class Team:
    """The processes of a training; one alone needs nobody."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a list: every size-th, from its own on."""
        return items[self.rank :: self.size]

    def piece(self, count: int) -> slice:
        """This process's part of a batch, in one piece; the last may be smaller or empty."""
        each = -(-count // self.size)
        return slice(self.rank * each, (self.rank + 1) * each)

    def add_up(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[float]:
        """Replace each tensor by its sum over all processes; returns the sums of the numbers.

        The order of the additions is fixed, so the same processes get the same bits.
        """
        if self.size == 1:
            return list(numbers)
        device = tensors[0].device if tensors else self.device
        told = torch.tensor(list(numbers), dtype=torch.float64, device=device).float()
        flat = torch.cat([*(tensor.flatten() for tensor in tensors), told])
        with talking():
            distributed.all_reduce(flat)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, flat[: sum(sizes)].split(sizes), strict=True):
            tensor.copy_(total.view_as(tensor))
        return flat[sum(sizes) :].tolist()

    def agree(self, wish: int) -> int:
        """The largest of everybody's wishes."""
        if self.size == 1:
            return wish
        told = torch.tensor([wish], device=self.device)
        with talking():
            distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
        return int(told.item())

    def from_leader(self, value: T) -> T:
        """What the first process says."""
        if self.size == 1:
            return value
        box = [value]
        with talking():
            distributed.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def gathered(self, rows: Tensor, count: int) -> Tensor:
        """The rows (n, ...) of all `count` items, from everybody's `share`; on the CPU."""
        if self.size == 1:
            return rows
        parts: list[Any] = [None] * self.size
        with talking():
            distributed.all_gather_object(parts, rows.cpu())
        shape = max(parts, key=len).shape[1:]  # who has none does not know
        whole = rows.new_empty((count, *shape), device="cpu")
        for rank, part in enumerate(parts):
            if len(part):
                whole[rank :: self.size] = part
        return whole

    def wait(self) -> None:
        """Until everybody is here."""
        if self.size > 1:
            self.agree(0)

    @property
    def device(self) -> torch.device:
        """Where the processes exchange numbers."""
        nccl = self.size > 1 and distributed.get_backend() == "nccl"
        return torch.device("cuda", self.local_rank) if nccl else torch.device("cpu")


@contextlib.contextmanager
def talking() -> Iterator[None]:
    """Turn the end of another process into a sentence."""
    try:
        yield
    except RuntimeError as error:  # what gloo and NCCL raise when a connection breaks
        raise lost(str(error)) from error


def has_lost(error: RuntimeError) -> bool:
    """Whether this is what gloo or NCCL raise when a connection breaks or nobody answers."""
    return isinstance(error, distributed.DistError) or "gloo" in str(error)


def lost(told: str) -> ResourceError:
    """The error of a process that is gone or silent, from what gloo or NCCL tell of it."""
    pair = distributed.is_initialized() and distributed.get_world_size() == 2
    who = f"process {1 - distributed.get_rank()}" if pair else "another process"
    reason = re.sub(r"^(\[[^\]]*\] )+", "", told.splitlines()[0])[:120]  # less the places in C++
    again = "start again with --resume, or let torchrun do it: --max-restarts 3"
    if "timed out" in told.lower():
        return ResourceError(
            f"{who} of the training does not answer ({reason})",
            fix=f"see what it waits for, end it (kill -9), then {again}; for work that takes "
            "longer: --set train.timeout=SECONDS",
        )
    return ResourceError(
        f"{who} of the training ended ({reason})", fix=f"see what it said, then {again}"
    )


def store_of_this_attempt(patience: timedelta) -> Store:
    """Where the processes tell each other their addresses.

    torchrun keeps one store for all its restarts. Without a name for each, a process that comes up
    first would read where its dead predecessors listened, and wait there.
    """
    store, _, _ = next(rendezvous("env://", timeout=patience))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"vitft/{attempt}", store)


@contextlib.contextmanager
def joined(timeout_s: float = 1800.0) -> Iterator[Team]:
    """The team that torchrun made of this process and others; alone without torchrun.

    Args:
        timeout_s: After which a process that does not answer counts as lost.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Team()
        return
    patience = timedelta(seconds=timeout_s)
    team = Team(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(team.local_rank)
    if not team.leads:
        console.be_silent()
    with talking(), default_handlers():
        distributed.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store_of_this_attempt(patience),
            rank=team.rank,
            world_size=team.size,
            timeout=patience,
        )
    try:
        yield team
    finally:
        if on_gpu:  # NCCL wants it; gloo's threads end with the process (`__main__`)
            distributed.destroy_process_group()
