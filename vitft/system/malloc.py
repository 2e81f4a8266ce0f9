"""glibc malloc tuning: keep freed memory during training, and return it when idle.

The tuning has no effect with other C libraries, or if malloc is configured in the environment.

Sources: mallopt(3), malloc_trim(3); measurements are in benchmarks/notebook/speed.md.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, as numbered in malloc.h."""
LARGEST_KEPT = 1 << 30
"""Maximum size in bytes of a freed block that is kept. Older versions of glibc, such as 2.33, allow
only `_DEFAULT`."""
_DEFAULT = 1 << 25
"""Maximum of glibc's own dynamic threshold, in bytes."""
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextlib.contextmanager
def freed_memory_kept(*, when: bool) -> Iterator[None]:
    """If `when` is true, keep the memory freed by a training step for the next one.

    By default, glibc returns large blocks to the system at once. The system then has to clear every
    page for the next step, which takes a fifth of the step time of a small model. The dynamic
    threshold of glibc cannot be restored; it stays at its maximum (`_DEFAULT`).
    """
    if not when or any(name in os.environ for name in VARIABLES):
        yield
        return

    def keep(largest: int, *, top: int) -> None:
        mallopt = glibc("mallopt")
        if mallopt and (mallopt(MMAP_THRESHOLD, largest) or mallopt(MMAP_THRESHOLD, _DEFAULT)):
            mallopt(TRIM_THRESHOLD, top)

    keep(LARGEST_KEPT, top=-1)  # never return the top of the heap
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
    if (trim := glibc("malloc_trim")) is not None:
        trim(0)


def glibc(name: str) -> Any:  # noqa: ANN401 - a ctypes function
    """Return a glibc function by name, or None if the C library is not glibc."""
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - absent from musl
        return getattr(library, name)
    except (OSError, AttributeError):
        return None
