"""Child processes that never outlive the test that started them."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """Start a child with text pipes for both outputs; it is killed where the block ends.

    `Popen` as a context manager would wait for the child, also after a failed assertion.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, text=True, **{**pipes, **options})
    try:
        yield child
    finally:
        child.kill()
        child.communicate()
