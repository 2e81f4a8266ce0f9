"""Faster import of torch, during which a signal ends the process.

Importing torch creates half a million objects. Without the garbage collector, which would search
them again and again and find nothing, the import takes two thirds of the time.
"""

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_at_once(number: int, _: FrameType | None = None) -> NoReturn:
    """Handle a signal by exiting with the code that shells use for it."""
    os.write(2, b"vitft: interrupted\n")
    os._exit(128 + number)


@contextlib.contextmanager
def exiting_at_once() -> Iterator[None]:
    """Exit on a signal while there is nothing to clean up.

    An exception raised by a handler during the import of torch would abort the process instead.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():  # others may not set handlers
        for number in EXIT_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, exit_at_once)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Import torch without garbage collection; the imported objects are never collected."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        with exiting_at_once():
            yield
    finally:
        gc.freeze()
        gc.enable()
