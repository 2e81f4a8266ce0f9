"""What glibc does with freed memory, where its habit costs: kept for the next step, or given back.

Other C libraries are left alone, and so is a heap that the user has set up in the environment.
Python's own part: what lives as long as the program is not searched.

Sources: mallopt(3), malloc_trim(3); docs/experiments.md has what both are worth.
"""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of mallopt's parameters, as malloc.h numbers them."""
LARGEST = 1 << 30
"""Bytes of a block that is still kept; older glibc (2.33 at least) takes no more than `USUAL`."""
USUAL = 1 << 25
"""What glibc's own threshold grows to."""
NEVER = -1
"""In place of bytes: the end of the heap is not returned."""
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextlib.contextmanager
def freed_memory_kept(*, when: bool) -> Iterator[None]:
    """What a training step frees is there for the next one.

    glibc returns large blocks to the system at once, which clears every page again for the next
    step: a fifth of the time of a small model. Afterwards everything is given back; glibc's own
    rule, whose threshold moves, cannot be: it stays where that ends (`USUAL`).
    """
    if not when or any(name in os.environ for name in SETTINGS):
        yield
        return
    set_up(LARGEST, trim=NEVER)
    try:
        yield
    finally:
        set_up(USUAL, trim=2 * USUAL)
        give_back()


def set_up(largest: int, *, trim: int) -> None:
    """Keep freed blocks below `largest` bytes, and so many bytes at the end of the heap."""
    if (mallopt := glibc("mallopt")) is None:
        return
    if mallopt(MMAP_THRESHOLD, largest) or mallopt(MMAP_THRESHOLD, USUAL):
        mallopt(TRIM_THRESHOLD, trim)


def give_back() -> None:
    """Return what nobody uses to the system; takes some milliseconds.

    After two threads had decoded images of 50 million pixels, 300 MB remained, and then 0.4 MB.
    """
    gc.collect()
    if (trim := glibc("malloc_trim")) is not None:
        trim(0)


def settle() -> None:
    """Spare the garbage collector what has been loaded: searching it would stop a server."""
    gc.collect()
    gc.freeze()


def glibc(name: str) -> Any:  # noqa: ANN401 - a function of ctypes
    """A function of glibc; None where another library is used."""
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - musl has none
        return getattr(library, name)
    except (OSError, AttributeError):
        return None
