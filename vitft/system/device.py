"""Choice of device and precision, and measurement of memory use."""

import contextlib
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vitft.system.cores import local_processes, usable_cores
from vitft.system.errors import UsageError
from vitft.system.text import count


def pick_device(wanted: str, *, number: int = 0) -> torch.device:
    """Return the device with a given name.

    `auto` selects the CUDA GPU with index `number` if there is one, otherwise MPS, otherwise the
    CPU.

    Raises:
        UsageError: The device does not exist on this machine, or vitft does not support it.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", number)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    names = ["auto", "cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
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
    in fp16, and fp32 elsewhere.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return gpu_precision(torch.cuda.get_device_capability(device), has_bf16=has_bf16)
    if device.type == "cpu" and torch.cpu._is_avx512_bf16_supported():
        return "bf16"
    return "fp32"


def gpu_precision(capability: tuple[int, int], *, has_bf16: bool) -> str:
    """Return the fastest precision for a CUDA GPU, given its compute capability.

    GPUs from 7.0 (Volta, Turing) have tensor cores, which make fp16 faster than fp32.
    """
    if has_bf16:
        return "bf16"
    return "fp16" if capability >= (7, 0) else "fp32"


@contextlib.contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Disable TensorFloat-32 inside the `with` block, so that float32 is computed exactly.

    By default, torch rounds the inputs of convolutions on a GPU to TensorFloat-32, which has a
    10-bit mantissa like fp16. The setting applies to the whole process, so it is restored when the
    last of all threads leaves the block. On other devices, it has no effect and is left unchanged.
    """
    if device.type != "cuda":
        yield
        return
    _EXACT.enter()
    try:
        yield
    finally:
        _EXACT.leave()


class _ExactBlocks:
    """Number of blocks, in all threads, in which float32 is computed exactly on a GPU."""

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0
        self.before: list[str] = []

    def enter(self) -> None:
        """Disable TensorFloat-32 if this is the first block."""
        with self.lock:
            if not self.count:
                self.before = [backend.fp32_precision for backend in _float32_backends()]
                for backend in _float32_backends():
                    backend.fp32_precision = "ieee"
            self.count += 1

    def leave(self) -> None:
        """Restore the settings if this was the last block."""
        with self.lock:
            self.count -= 1
            if not self.count:
                for backend, precision in zip(_float32_backends(), self.before, strict=True):
                    backend.fp32_precision = precision


_EXACT = _ExactBlocks()


def _float32_backends() -> list[Any]:
    """Return torch's settings for float32 in matrix products, convolutions and RNNs on a GPU."""
    cudnn: Any = torch.backends.cudnn
    return [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]


def describe_device(device: torch.device) -> str:
    """Return a description of the device for the log.

    It includes the model of a CUDA GPU or, for other devices, the machine type and thread count.
    """
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {count(torch.get_num_threads(), 'thread')})"


def worker_threads() -> int:
    """Return the number of worker threads for this process: as many as torch uses.

    Under torchrun, which limits torch to one thread, return this process's share of the cores.
    """
    return usable_cores() if local_processes() > 1 else torch.get_num_threads()


def one_thread(*, when: bool) -> contextlib.AbstractContextManager[None]:
    """Limit torch to a single thread inside the `with` block, if `when` is true.

    A single thread is faster for small matrices.
    """
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
    peaks = {} if (resident := _peak_resident()) is None else {"resident": resident // 2**20}
    if device.type == "cuda":
        peaks["gpu"] = torch.cuda.max_memory_reserved(device) // 2**20
    return peaks


def _peak_resident() -> int | None:
    """Return the peak resident memory in bytes, or None if the system does not report it.

    On Linux, getrusage may include the memory of the parent program; /proc does not.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def vector_instructions(device: torch.device) -> str:
    """Return the vector instructions that torch uses on a CPU, e.g. AVX512; empty on a GPU."""
    return torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""
