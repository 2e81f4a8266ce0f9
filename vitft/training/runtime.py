"""What surrounds a run: its processes, signals and time limit, trackers, and its caller's state.

Training is data-parallel if torchrun starts several processes:

    torchrun --nproc-per-node 2 -m -- vitft finetune ...

Every process lists all images and draws the same batches, but computes only its slice of each batch
and its shard of the features and validation images. It inspects only the files of its shard.
The main process (rank 0) solves linear heads, logs and writes the run directory. Gradients are
summed over the processes, so a step uses the gradient of the whole batch.
"""

import contextlib
import itertools
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitft.config.run import Config
from vitft.system import console
from vitft.system.cores import node_cores, usable_cores
from vitft.system.device import (
    caller_state_preserved,
    deterministic_algorithms,
    pick_device,
    torch_threads,
)
from vitft.system.errors import ResourceError
from vitft.system.rundir import RunDir, locked
from vitft.system.signals import Stopper, signal_handlers
from vitft.training.trackers import Trackers

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
_PAUSE_S = 1.0  # after which a waiting process handles signals, and the main one shows life
_STOP_S = 4.0  # longest silence of the main process for a process that is told to stop


class ProcessGroup:
    """Process group of a run; with a single process, collectives return their input.

    Otherwise, they raise a ResourceError if a process has been lost.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, timeout_s: float = 1800.0) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.store: Store | None = None
        self.passes = 0
        self.is_stopping: Callable[[], bool] = lambda: False

    @property
    def is_main(self) -> bool:
        """Whether this process logs and writes the run directory."""
        return self.rank == 0

    def shard(self, items: Sequence[_Value], unit: int = 1) -> Sequence[_Value]:
        """Return this rank's shard of the items: every `size`-th block of `unit` items."""
        if self.size == 1:
            return items
        return [items[i] for i in self.indices(len(items), unit, self.rank)]

    def indices(self, count: int, unit: int, rank: int) -> list[int]:
        """Return the indices of the items in the shard of a rank (see `shard`)."""
        return [i for i in range(count) if i // unit % self.size == rank]

    def batch_slice(self, count: int) -> slice:
        """Return this rank's contiguous slice of `count` images; the last may be empty."""
        each = -(-count // self.size)
        return slice(self.rank * each, (self.rank + 1) * each)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor with its sum over all processes.

        The order of summation is fixed, so the sums are bit-identical in every run. NCCL would wait
        for a lost process until the timeout, so gloo looks for all processes first.
        """
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        if flat.device.type == "cuda":
            self.barrier()
        with report_lost_process():
            distributed.all_reduce(flat)
        totals = flat.split([tensor.numel() for tensor in tensors])
        for tensor, total in zip(tensors, totals, strict=True):
            tensor.copy_(total.view_as(tensor))

    def all_reduce_max(self, value: int) -> int:
        """Return the maximum of `value` over all processes."""
        if self.size == 1:
            return value
        tensor = torch.tensor([value])
        with report_lost_process():
            distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        return int(tensor.item())

    def broadcast(self, value: _Value) -> _Value:
        """Return the `value` of the main process in every process."""
        if self.size == 1:
            return value
        values = [value]
        with report_lost_process():
            distributed.broadcast_object_list(values, src=0)
        return values[0]

    def main_only(self, function: Callable[[], _Value]) -> _Value:
        """Call a function in the main process only, and return its result in every process.

        The other processes wait, so the function may use all cores of the machine.
        """
        if self.size == 1:
            return function()
        value = cast("_Value", None)
        with self.main_works():
            if self.is_main:
                with torch_threads(node_cores()):
                    value = function()
        return self.broadcast(value)

    @contextlib.contextmanager
    def main_works(self) -> Iterator[None]:
        """Let the other processes wait for the main one, which shows that it is alive meanwhile."""
        if self.store is None:
            yield
            return
        store, self.passes = PrefixStore(f"wait {self.passes}", self.store), self.passes + 1
        signs = map(str, itertools.count())
        if not self.is_main:
            with report_lost_process():
                while self._sign_of_life(store, next(signs)) != b"done":
                    pass
            yield
            return
        over = threading.Event()

        def show_life() -> None:
            with contextlib.suppress(RuntimeError):  # the next collective reports a broken store
                while not over.wait(min(_PAUSE_S, self.timeout_s / 4)):
                    store.set(next(signs), "busy")

        thread = threading.Thread(target=show_life, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with report_lost_process():
                store.set(next(signs), "done")

    def _sign_of_life(self, store: Store, key: str) -> bytes:
        """Wait for a key of the store, with pauses in which signals are handled.

        If torchrun keeps the store, the store outlives the main process. Only torchrun notices its
        death, and then tells the other processes to stop.
        """
        begun = time.monotonic()
        while True:
            try:
                store.wait([key], timedelta(seconds=_PAUSE_S))
                return bytes(store.get(key))
            except distributed.DistStoreError:
                most_s = min(_STOP_S, self.timeout_s) if self.is_stopping() else self.timeout_s
                if time.monotonic() - begun > most_s:
                    raise

    def gather(self, value: _Value) -> list[_Value]:
        """Return the values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with report_lost_process():
            distributed.all_gather_object(values, value)
        return values

    def all_gather(self, rows: Tensor, count: int, unit: int = 1) -> Tensor:
        """Return all rows (count, ...) that `shard` has divided, in their order, on the CPU."""
        if self.size == 1:
            return rows
        parts = self.gather(rows.cpu())
        shape = max(parts, key=len).shape[1:]  # an empty shard may lack the shape of its rows
        gathered = rows.new_empty((count, *shape), device="cpu")
        for rank, part in enumerate(parts):
            if len(part):
                gathered[self.indices(count, unit, rank)] = part
        return gathered

    def barrier(self) -> None:
        """Wait until every process has reached this barrier."""
        self.all_reduce_max(0)


@contextlib.contextmanager
def report_lost_process() -> Iterator[None]:
    """Convert errors of gloo or NCCL about a broken connection or a timeout, and no others."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        pair = distributed.is_initialized() and distributed.get_world_size() == 2
        who = f"process {1 - distributed.get_rank()}" if pair else "another process"
        reason = re.sub(r"^(\[[^\]]*\] )+", "", str(error).splitlines()[0])  # no C++ locations
        again = "resume the run with --resume, or let torchrun restart it with --max-restarts 3"
        what, fix = "has ended", f"check its error message, then {again}"
        if "timed out" in str(error).lower() or "wait timeout" in str(error):
            what = "is not responding"
            fix = (
                f"check what it is waiting for, stop it (kill -9), then {again}. If it only needs "
                "more time, increase the limit with --set train.timeout=SECONDS"
            )
        raise ResourceError(f"{who} of the run {what} ({reason[:120]})", fix=fix) from error


def rendezvous_store(timeout: timedelta) -> Store:
    """Return the store through which the processes of this attempt exchange addresses.

    torchrun uses the same store for all restarts. Without a prefix for each attempt, the first
    process to start would read the addresses of dead processes and wait for them.
    """
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"vitft/{attempt}", store)


@contextlib.contextmanager
def process_group(timeout_s: float = 1800.0, device: str = "auto") -> Iterator[ProcessGroup]:
    """Join torchrun's process group, or use a group of one process without torchrun.

    A process that has not responded for `timeout_s` seconds is considered lost. `device` is as in
    `train.device`.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        if (runs := int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
            log.warning(
                f"srun has started {runs} separate runs. Start the processes of one run with "
                "torchrun, see docs/gpu.md"
            )
        yield ProcessGroup()
        return
    timeout = timedelta(seconds=timeout_s)
    group = ProcessGroup(int(os.environ["RANK"]), size, timeout_s=timeout_s)
    torch.set_num_threads(usable_cores())
    chosen = pick_device(device)
    on_gpu = chosen.type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"  # NCCL only exchanges tensors on GPUs
    if on_gpu:
        torch.cuda.set_device(chosen)
    if not group.is_main:  # which prints errors, but no results, log and progress
        console.stdout().quiet = console.stderr().quiet = console.LogHandler.is_silent = True
    with report_lost_process(), signal_handlers(signal.SIG_DFL):
        group.store = rendezvous_store(timeout)
        distributed.init_process_group(
            backend, store=group.store, rank=group.rank, world_size=group.size, timeout=timeout
        )
    try:
        yield group
    finally:
        if on_gpu:  # required by NCCL; gloo's threads end with the process
            distributed.destroy_process_group()


@dataclass(slots=True, kw_only=True)
class Runtime:
    """Processes, signals, time and trackers of a run; by default, of a run of one process."""

    group: ProcessGroup = field(default_factory=ProcessGroup)
    stopper: Stopper = field(default_factory=Stopper)
    trackers: Trackers = field(default_factory=Trackers)
    resumed: RunDir | None = None  # the run directory to continue; None for a new run
    started: float = field(default_factory=time.monotonic)
    """Value of `time.monotonic()` at the start of the run; in a resumed run with a time budget, the
    time used earlier is subtracted."""
    status: str = "failed"  # how the run has ended, as in environment.json
    exit_code: int = 0

    def used_s(self) -> float:
        """Return the time in seconds that the run has used, the same in all processes."""
        return self.group.broadcast(time.monotonic() - self.started)

    @classmethod
    @contextlib.contextmanager
    def enter(
        cls, config: Config, out: Path, *, resume: bool, max_seconds: float
    ) -> Iterator["Runtime"]:
        """Join the other processes, watch signals and the time, lock a resumed run, connect.

        On exit, random number generators, thread counts and signal handlers are as before.
        """
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            if config.train.deterministic:  # before CUDA starts
                stack.enter_context(deterministic_algorithms())
            stack.enter_context(caller_state_preserved(gpu=config.train.device != "cpu"))
            stopper = stack.enter_context(Stopper(max_seconds))
            group = stack.enter_context(process_group(config.train.timeout, config.train.device))
            stopper.all_reduce_max = group.all_reduce_max
            group.is_stopping = lambda: stopper.exit_code is not None
            resumed = RunDir(out, writes=group.is_main) if resume else None
            if resumed is not None and group.is_main:
                stack.enter_context(locked(resumed))
            names = config.train.trackers if group.is_main else ()
            trackers = stack.enter_context(Trackers.connected(names, resume=resume))
            yield cls(
                group=group, stopper=stopper, trackers=trackers, resumed=resumed, started=started
            )
            group.barrier()
