"""Child processes that never outlive the test that started them, and what they print."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.limits import HANG_S

ROOT = Path(__file__).parents[2]


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """Start a child with text pipes for both outputs; it is killed where the block ends."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, text=True, **{**pipes, **options})
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def ended(command: Sequence[str | Path], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a child on this checkout to its end; `env` adds to the variables of this process."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    usual = {"capture_output": True, "text": True, "timeout": HANG_S, "check": False}
    return subprocess.run(command, **{**usual, "env": variables, **options})


def python(code: str, *arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run Python code in a child to its end."""
    return ended([sys.executable, "-c", code, *arguments], **options)
