"""Commands in forked children of a process that has torch loaded, and checks of what they leave.

Forking saves the two seconds of importing torch in each of hundreds of runs.
"""

import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from vitft.cli import main as cli
from vitft.models.checkpoint import load_checkpoint
from vitft.system.errors import VitftError
from vitft.training import stages
from vitft.training.record import read_state


def run(home: Path, words: list[str], prepare: Callable[[], object] = lambda: None) -> int:
    """Run a command in a child that saves a state after every step; return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(start(home, words, prepare), 0)[1])


def start(
    home: Path,
    words: list[str],
    prepare: Callable[[], object] = lambda: None,
    *,
    every_step: bool = True,
    log: str = "output.txt",
) -> int:
    """Start a command in a child and return its process id.

    Args:
        home: Folder of the log.
        words: The command, without `vitft`.
        prepare: Called in the child before the command.
        every_step: Save a state after every step.
        log: File in `home` that receives stdout and stderr; emptied first.
    """
    (home / log).write_bytes(b"")
    pid = os.fork()
    if not pid:
        execute(home, words, prepare, every_step=every_step, log=log)
    return pid


def execute(
    home: Path,
    words: list[str],
    prepare: Callable[[], object] = lambda: None,
    *,
    every_step: bool = True,
    log: str = "output.txt",
) -> NoReturn:
    """Run a command in this process and end it without cleaning up."""
    code = 1
    try:
        descriptor = os.open(home / log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        torch.set_num_threads(1)
        if every_step:
            stages.SAVE_INTERVAL_S, stages.SAVE_FRACTION = 0.0, 1e9
        prepare()
        code = cli.main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def output(home: Path, log: str = "output.txt") -> str:
    """Return what the last command printed."""
    return (home / log).read_text(errors="replace")


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def incomplete(folder: Path) -> list[str]:
    """Return the files below a folder that have their final name but incomplete content."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and not is_complete(path)
    ]


def is_complete(path: Path) -> bool:
    """Return whether a file can be read to its end.

    The last line of metrics.jsonl may be cut until the run is resumed.
    """
    try:
        if path.name == "model.safetensors":
            load_checkpoint(path)
        elif path.suffix == ".safetensors":
            return read_state(path) is not None
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".npz":
            return zipfile.ZipFile(path).testzip() is None
        elif path.suffix == ".html":
            return path.read_text().rstrip().endswith("</html>")
        elif path.suffix in (".jsonl", ".csv", ".toml"):
            return path.name == "metrics.jsonl" or path.read_bytes().endswith(b"\n")
    except (OSError, ValueError, VitftError, zipfile.BadZipFile):
        return False
    return True
