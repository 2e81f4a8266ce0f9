"""Commands in forked children of a process that has everything imported: torch's two seconds, once.

Also what the campaigns ask of a folder afterwards: is every file in it whole?
"""

import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from vitft.cli import main as cli
from vitft.models.checkpoint import load_checkpoint, state_digest
from vitft.system.errors import VitftError
from vitft.training import stages
from vitft.training.state import read


def run(home: Path, words: list[str], prepare: Callable[[], object] = lambda: None) -> int:
    """The exit code of a command; what it says is in home/said.txt. A state after every step."""
    return os.waitstatus_to_exitcode(os.waitpid(start(home, words, prepare), 0)[1])


def start(
    home: Path,
    words: list[str],
    prepare: Callable[[], object] = lambda: None,
    *,
    often: bool = True,
) -> int:
    """The process of a command that goes on meanwhile; `often`: it saves after every step."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        told = os.open(home / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(told, 1)
        os.dup2(told, 2)
        torch.set_num_threads(1)
        if often:
            stages.SAVE_S, stages.SAVE_SHARE = 0.0, 1e9
        prepare()
        code = cli.main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def said(home: Path) -> str:
    """What the last command said."""
    return (home / "said.txt").read_text(errors="replace")


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def contents(folder: Path) -> dict[str, str]:
    """The same, of weights that of cards and tensors: safetensors' metadata have no fixed order."""
    found = digests(folder)
    for name in (name for name in found if name.endswith("model.safetensors")):
        state, card = load_checkpoint(folder / name)
        found[name] = state_digest(str(card), state)
    return found


def halves(folder: Path) -> list[str]:
    """Files below a folder that have their final name and are not whole."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and not is_whole(path)
    ]


def is_whole(path: Path) -> bool:
    """Whether a file can be read to its end; a log may have a torn last line until it is resumed."""
    try:
        if path.name == "model.safetensors":
            load_checkpoint(path)
        elif path.suffix == ".safetensors":
            return read(path) is not None
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
