"""This machine without torch: CPU cores, memory kept by malloc, and the cache folder."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitft.system.errors import RunError


def node_cores() -> int:
    """Return the number of CPU cores that the processes of a run may use on this machine."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), container_cores())
    return os.cpu_count() or 1


def container_cores() -> int:
    """Return the CPU limit of a container (e.g. docker --cpus, cgroup v2), or a large number."""
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit ("max")
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, int(quota) // int(period))
    return sys.maxsize


def local_processes() -> int:
    """Return the number of processes that torchrun has started on this machine, or 1."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def usable_cores() -> int:
    """Return the number of CPU cores for this process: OMP_NUM_THREADS, or all of them.

    Processes of torchrun, which sets OMP_NUM_THREADS to 1, divide the cores evenly.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdecimal() and local_processes() == 1:
        return max(1, int(limit))
    return max(1, node_cores() // local_processes())


def cache_folder(name: str) -> Path:
    """Return a folder of the cache, without creating it.

    It is $VITFT_CACHE/NAME, or else `vitft/NAME` in XDG_CACHE_HOME or ~/.cache.

    Source: XDG Base Directory Specification 0.8, which requires relative paths to be ignored.
    """
    if own := os.environ.get("VITFT_CACHE"):
        return Path(own).expanduser() / name
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "vitft" / name
    try:
        return Path.home() / ".cache" / "vitft" / name
    except RuntimeError as error:
        option = "--cache DIR or " if name == "features" else ""
        raise RunError(
            f"cannot cache {name}: there is no home directory",
            fix=f"choose a cache folder with {option}the environment variable VITFT_CACHE",
        ) from error


# glibc malloc: keep freed memory during training, and return it when idle -------------------------
# Without effect with other C libraries, or if malloc is configured in the environment.
# Sources: mallopt(3), malloc_trim(3); measurements are in benchmarks/notebook/speed.md.

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, as numbered in malloc.h
_LARGEST_KEPT, _DEFAULT = 1 << 30, 1 << 25
"""Maximum size in bytes of a freed block that is kept: ours, and that of glibc itself, more than
which older versions such as 2.33 do not allow."""
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextlib.contextmanager
def freed_memory_kept(*, when: bool) -> Iterator[None]:
    """If `when` is true, keep the memory freed by a training step for the next one.

    By default, glibc returns large blocks to the system at once. The system then has to clear every
    page for the next step, which takes a fifth of the step time of a small model. The dynamic
    threshold of glibc cannot be restored; it stays at its maximum (`_DEFAULT`).
    """
    if not when or any(name in os.environ for name in _VARIABLES):
        yield
        return

    def keep(largest: int, *, top: int) -> None:
        mallopt = _glibc("mallopt")
        if mallopt and (mallopt(_MMAP_THRESHOLD, largest) or mallopt(_MMAP_THRESHOLD, _DEFAULT)):
            mallopt(_TRIM_THRESHOLD, top)

    keep(_LARGEST_KEPT, top=-1)  # never return the top of the heap
    try:
        yield
    finally:
        keep(_DEFAULT, top=2 * _DEFAULT)
        return_memory()


def return_memory() -> None:
    """Return freed memory to the system.

    Two threads that had decoded 49-megapixel images left 200 to 350 MB unused; returning this
    memory took 50 ms (benchmarks/notebook/predict.md).
    """
    if (trim := _glibc("malloc_trim")) is not None:
        trim(0)


def _glibc(name: str) -> Any:  # noqa: ANN401 - a ctypes function
    """Return a glibc function by name, or None if the C library is not glibc."""
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - absent from musl
        return getattr(library, name)
    except (OSError, AttributeError):
        return None
