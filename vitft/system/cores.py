"""Number of CPU cores that a process may use."""

import functools
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from vitft.system.errors import RunError


def node_cores() -> int:
    """Return the number of CPU cores that the processes of a run may use on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_processes() -> int:
    """Return the number of processes that torchrun has started on this machine, or 1."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return the number of this process among those that torchrun has started on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def usable_cores() -> int:
    """Return the number of CPU cores for this process; processes of torchrun divide them evenly."""
    return max(1, node_cores() // local_processes())


# rough speed of this machine, measured without torch ----------------------------------------------

GPU_SPEED = 3000.0
"""Assumed speed of a GPU, in billions of multiply-adds per second; even slow GPUs reach it in
fp16."""


def has_gpu() -> bool:
    """Return whether torch will probably find a GPU (there is an NVIDIA driver or Apple chip)."""
    is_apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return is_apple or shutil.which("nvidia-smi") is not None


@functools.cache
def cpu_speed() -> float:
    """Return the speed of the CPU in billions of multiply-adds per second.

    The benchmark is a product of float32 matrices with the shapes of the first MLP layer of a
    ViT-B/16 for four images: the best of three runs, 0.1 to 0.5 s together, in CPU time, so that
    other jobs on the machine do not affect the result.
    """
    import numpy as np

    tokens, width, hidden = 4 * 197, 768, 3072
    x = np.ones((tokens, width), np.float32)
    w = np.ones((width, hidden), np.float32)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        x @ w
        seconds.append(time.process_time() - started)
    return usable_cores() * tokens * width * hidden / 1e9 / max(min(seconds), 1e-6)


# location of vitft's cache: features, and local copies of remote data -----------------------------


def cache_folder(name: str) -> Path:
    """Return a folder of the cache, without creating it.

    It is $VITFT_CACHE/NAME, or else `vitft/NAME` in XDG_CACHE_HOME or ~/.cache.

    Raises:
        RunError: The home directory is needed but cannot be determined.

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
