"""Rough speed of this machine, measured without torch."""

import functools
import platform
import shutil
import sys
import time

from vitft.system.cores import usable_cores

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
    ViT-B/16 for four images. CPU time is measured, so that other jobs on the machine do not affect
    the result. The best of three runs is used; together, they take 0.1 to 0.5 s.
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
