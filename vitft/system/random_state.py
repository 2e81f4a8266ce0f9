"""Global state of the caller that a run changes: random number generators, number of threads."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


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
