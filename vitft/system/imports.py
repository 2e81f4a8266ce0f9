"""Imports torch in two thirds of the time, and lets a signal end the process meanwhile.

Python's garbage collector walks through all objects again and again while half a million of them
are being made, and once more when the process ends; none of them is ever garbage.
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

ENDING = (signal.SIGINT, signal.SIGTERM)


def leave(number: int, _: FrameType | None = None) -> NoReturn:
    """End at once, with the exit code that a shell gives to this signal."""
    os.write(2, b"vitft: interrupted\n")
    os._exit(128 + number)


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """While there is nothing to clean up; torch's import aborts the process on an exception."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # others may not set handlers
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Around imports that bring torch; what has been made by then is never looked at again."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        with leaving():
            yield
    finally:
        gc.freeze()
        gc.enable()
