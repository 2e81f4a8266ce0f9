"""Random number generators: seeding them for a step, and restoring the caller's."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_everything(*numbers: int) -> None:
    """Seed the global generators of torch, Python and NumPy from these numbers alone."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> 1))
    random.seed(int(words[1]))
    np.random.seed(int(words[1] & 0xFFFFFFFF))  # noqa: NPY002 - timm draws from this one


@contextlib.contextmanager
def preserved_random_state(*, gpu: bool) -> Iterator[None]:
    """Restore the state of the global generators of torch, Python and NumPy on exit.

    Args:
        gpu: Include the generators of GPUs, which `torch.manual_seed` seeds as well.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - see above
    devices = range(torch.cuda.device_count()) if gpu and torch.cuda.is_available() else ()
    mps = torch.mps.get_rng_state() if gpu and torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002 - see above
            if mps is not None:
                torch.mps.set_rng_state(mps)
