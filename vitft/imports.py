"""Imports torch in two thirds of the time.

Python's garbage collector walks through all objects again and again while half a million of them
are being made, and once more when the process ends; none of them is ever garbage.
"""

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Around imports that bring torch; what has been made by then is never looked at again."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
