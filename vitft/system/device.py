"""Choice of device and precision, and measurement of memory use."""

import contextlib
import functools
import logging
import math
import os
import platform
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitft.system.cores import local_processes
from vitft.system.errors import ResourceError, UsageError
from vitft.system.text import count

log = logging.getLogger(__name__)


def pick_device(wanted: str | int | torch.device) -> torch.device:
    """Return the device with a name or the number of a GPU; `auto` prefers CUDA, then MPS.

    `auto` and `cuda` give each process of torchrun its own GPU. If a process sees only one GPU, as
    under Slurm, they give that one.
    """
    wanted = f"cuda:{wanted}" if isinstance(wanted, int) else str(wanted)
    gpus = torch.cuda.device_count()
    if wanted in ("auto", "cuda") and torch.cuda.is_available():
        rank = int(os.environ.get("LOCAL_RANK", "0"))  # of the processes on this machine
        return torch.device("cuda", rank % max(1, gpus))
    if wanted == "auto":
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if wanted.startswith("cuda:") and min(gpus, local_processes()) > 1:
        raise UsageError(
            f"--device {wanted} would put all {local_processes()} processes on one GPU",
            fix="use --device cuda, which gives each process its own GPU",
        )
    names = ["auto", "cpu", *(f"cuda:{i}" for i in range(gpus))]
    names += ["mps"] * torch.backends.mps.is_available()
    fix = f"use --device {', '.join(names[:-1])} or {names[-1]}"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:  # torch lists all types that it was ever built for
        raise UsageError(f"cannot use device {wanted!r}: unknown name", fix=fix) from error
    try:
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("vitft supports cpu, cuda and mps")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        problem = f"cannot use device {wanted!r}: {str(error).splitlines()[0]}"
        raise UsageError(problem, fix=fix) from error
    return device


def pick_precision(wanted: str, device: torch.device) -> str:
    """Return the precision of a run, given `train.precision` (see docs/gpu.md, Mixed precision).

    `auto` is bf16 where the hardware supports it natively, fp16 on older GPUs that compute faster
    in fp16 (they have tensor cores from 7.0 on), and fp32 elsewhere.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"
    has_bf16 = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    return "bf16" if has_bf16 else "fp32"


_LOCK = threading.Lock()
_BLOCKS: list[list[functools.partial[None]]] = []
"""For each active `exact_float32` block, in all threads: functions that restore the settings."""


@contextlib.contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Disable TensorFloat-32 inside the `with` block, so that float32 is computed exactly.

    By default, torch rounds the inputs of convolutions on a GPU to its 10-bit mantissa. The setting
    applies to the whole process, so it is restored when the last of all threads leaves the block.
    torch has an older and a newer form of it, and an error is raised wherever the two disagree.
    """
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    newer = [torch.backends.cuda.matmul, mkldnn.matmul, cudnn.conv, cudnn.rnn]
    set_matmul, set_to = torch.set_float32_matmul_precision, functools.partial
    with _LOCK:
        restore = [set_to(setattr, one, "fp32_precision", one.fp32_precision) for one in newer]
        with contextlib.suppress(RuntimeError):  # the caller has set only the newer form
            restore.insert(0, set_to(set_matmul, torch.get_float32_matmul_precision()))
        with contextlib.suppress(RuntimeError):
            restore.insert(0, set_to(setattr, cudnn, "allow_tf32", cudnn.allow_tf32))
        _BLOCKS.append(restore)
        cudnn.allow_tf32 = False
        set_matmul("highest")
        for one in newer:
            one.fp32_precision = "ieee"
    try:
        yield
    finally:
        with _LOCK:
            before = _BLOCKS[0]  # the settings before the first block
            _BLOCKS.pop()
            if not _BLOCKS:
                for setting in before:
                    setting()


def describe_device(device: torch.device) -> str:
    """Return a description of the device for the log, with the GPU or the number of threads."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {count(torch.get_num_threads(), 'thread')})"


def one_thread(*, when: bool) -> contextlib.AbstractContextManager[None]:
    """Limit torch to a single thread inside the `with` block: it is faster for small matrices."""
    return torch_threads(1) if when else contextlib.nullcontext()


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of threads that torch uses inside the `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_memory(device: torch.device) -> dict[str, int]:
    """Return this process's peak memory use in MiB: `resident`, if known, and `gpu` with CUDA."""
    peaks = {}
    try:  # unlike getrusage, /proc excludes the parent program
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        peaks["resident"] = int(status.partition("VmHWM:")[2].split()[0]) // 1024
    except (OSError, IndexError):
        with contextlib.suppress(ImportError):  # Windows
            import resource

            unit = 2**20 if platform.system() == "Darwin" else 1024  # bytes, or KiB elsewhere
            peaks["resident"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit
    if device.type == "cuda":
        peaks["gpu"] = torch.cuda.max_memory_reserved(device) // 2**20
    return peaks


# recovery from out-of-memory errors by processing the same images again in smaller batches --------

_Computed = TypeVar("_Computed")

_OUT_OF_MEMORY = (
    "out of memory",  # CUDA, MPS
    "can't allocate memory",  # CPU
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # there is no memory for its handle
    "CUDNN_STATUS_ALLOC_FAILED",
    "unable to find an engine",  # cuDNN has no memory for its workspace
)
"""Phrases that identify the message of an out-of-memory error."""
_FEWER = "use a smaller --image-size, a smaller model or --device cpu"


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch raised `error` because memory ran out, on any device."""
    is_known = any(part in str(error) for part in _OUT_OF_MEMORY)
    return isinstance(error, torch.OutOfMemoryError) or is_known


class BatchLimit:
    """Maximum number of images processed at a time, halved whenever memory runs out.

    A reduced limit also applies to later batches. `fix` is the advice if one image does not fit.
    """

    def __init__(self, images: int, *, fix: str = _FEWER) -> None:
        self.images, self.fix = images, fix

    def halve(self, tried: int, error: RuntimeError) -> None:
        """Halve the limit after `tried` images raised `error`, unless it has another reason.

        Raises:
            ResourceError: A single image does not fit in memory.
        """
        if not is_out_of_memory(error):
            raise error
        tried = min(self.images, tried)
        if tried <= 1:
            raise ResourceError("out of memory with one image at a time", fix=self.fix) from error
        self.images = math.ceil(tried / 2)
        error.with_traceback(None)  # its frames hold the tensors that did not fit
        torch.cuda.empty_cache()  # does nothing if CUDA is not used
        log.warning(f"out of memory: continuing with {count(self.images, 'image')} at a time")

    def split(self, compute: Callable[[slice], _Computed], images: int) -> list[_Computed]:
        """Call `compute` for consecutive slices of `images` images, each within the limit.

        If there are no images, `compute` is called once with an empty slice.
        """
        done, found = 0, list[_Computed]()
        while done < images or not found:
            part = slice(done, min(images, done + self.images))
            try:
                found.append(compute(part))
            except RuntimeError as error:
                self.halve(part.stop - part.start, error)
            else:
                done = part.stop
        return found

    def join(self, compute: Callable[[slice], Tensor], images: int) -> Tensor:
        """Return the results of `split`, concatenated into one tensor (`images`, ...)."""
        found = self.split(compute, images)
        return found[0] if len(found) == 1 else torch.cat(found)


# copies between CPU and GPU that do not interrupt the work queued on the GPU ----------------------


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which tensors are copied to a GPU."""
    return torch.cuda.Stream(device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, without waiting for a GPU.

    A tensor in pinned memory must not be changed until the copy has ended. It may be freed: torch
    reuses pinned memory only after the copies that were queued for it.
    """
    if device.type != "cuda" or tensor.device.type != "cpu" or not tensor.numel():
        return tensor.to(device)
    pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):  # the copy does not wait for computations, nor they for it
        moved = pinned.to(device, non_blocking=True)
    current.wait_stream(stream)
    moved.record_stream(current)
    return moved


def start_reading(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Queue copies of tensors to the CPU; return a function that waits for them and returns them.

    The tensors must be on the same device. Work that is queued later does not delay the copies. The
    function may be called in another thread; on devices other than CUDA, it does nothing.
    """
    device = tensors[0].device
    if device.type != "cuda":
        read = [tensor.cpu() for tensor in tensors]
        return lambda: read
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for target, tensor in zip(copies, tensors, strict=True):
        target.copy_(tensor, non_blocking=True)
    ended = torch.cuda.Event(blocking=True)  # a waiting thread leaves its core to others
    ended.record(torch.cuda.current_stream(device))

    def wait() -> list[Tensor]:
        ended.synchronize()
        return copies

    return wait


# global state of the caller that a run changes: random number generators, number of threads -------


@contextlib.contextmanager
def caller_state_preserved(*, gpu: bool) -> Iterator[None]:
    """Restore the global random number generators and the number of threads on exit.

    If `gpu` is set, this includes the GPU generators, which `torch.manual_seed` also seeds.
    """
    threads, python = torch.get_num_threads(), random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002 - used by timm
    devices = range(torch.cuda.device_count()) if gpu and torch.cuda.is_available() else ()
    mps = torch.mps.get_rng_state() if gpu and torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002 - see above
            if mps is not None:
                torch.mps.set_rng_state(mps)


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Let torch use only deterministic algorithms inside the `with` block.

    cuBLAS reads its variable when it is first used in a process.
    """
    variable, is_on = "CUBLAS_WORKSPACE_CONFIG", torch.are_deterministic_algorithms_enabled()
    is_set, warns = variable in os.environ, torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault(variable, ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "use_deterministic_algorithms(True)" not in str(error):
            raise
        raise UsageError(
            f"train.deterministic=true: {str(error).partition('.')[0]}",
            fix="use --set train.deterministic=false, or, in Python, start a new process",
        ) from error
    finally:
        torch.use_deterministic_algorithms(is_on, warn_only=warns)
        if not is_set:
            del os.environ[variable]
