"""The run directory: the one contract between training and everything done with its result.

    config.toml         the resolved settings     split.csv        path, label, split, sha256
    model.safetensors   weights and their card    class_indices.json
    metrics.jsonl       one line per epoch or penalty tried
    eval.json           the final figures
    environment.json    versions, device, precision, and whether the run finished

`runs/latest` points to the newest finished run. Nothing here imports torch.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vitft.errors import RunError
from vitft.files import write_atomically, writing

BASE = Path("runs")
LATEST = "latest"
MODEL = "model.safetensors"


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one run and how they are written."""

    path: Path

    @property
    def model(self) -> Path:
        return self.path / MODEL

    @property
    def split(self) -> Path:
        return self.path / "split.csv"

    @property
    def class_indices(self) -> Path:
        return self.path / "class_indices.json"

    def write_text(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text)

    def write_json(self, name: str, fields: Mapping[str, Any]) -> None:
        """Strict JSON, indented for readers."""
        self.write_text(name, json.dumps(fields, indent=2, allow_nan=False) + "\n")

    def log(self, fields: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with writing(self.path), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields, allow_nan=False) + "\n")


def plan_run(out: str | None, data: str, *, now: datetime | None = None) -> Path:
    """Where a new run will be written; creates nothing.

    Args:
        out: The folder the user asked for, or None for `runs/<when>-<data>`.
        data: Path of the data, for the name.
        now: The time for the name; default: now.

    Raises:
        RunError: The folder holds files already, or cannot be written.
    """
    if out is None:
        name = re.sub(r"[^\w.-]+", "_", Path(data).resolve().name) or "data"
        stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
        path = free_name(BASE / f"{stamp}-{name}")
    else:
        path = Path(out).expanduser()
    if path.is_dir() and any(path.iterdir()):
        raise not_empty(path)
    home = path
    while not home.exists():
        home = home.parent
    if not home.is_dir() or not writable(home):
        raise RunError(
            f"cannot write {path}: {home} is not a folder that you may write",
            fix="choose another --out",
        )
    return path


def writable(folder: Path) -> bool:
    """Whether a file can really be made there; permission bits alone do not tell."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def free_name(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that does not exist."""
    names = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 1000))]
    return next(name for name in names if not name.exists())


def create_run(path: Path) -> RunDir:
    """Make the folder of a planned run; two runs planned at once do not share one.

    Raises:
        RunError: It cannot be made, or files lie in it by now.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        while path.parent == BASE:
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return RunDir(path)
            path = free_name(path)
        path.mkdir(exist_ok=True)
    if any(path.iterdir()):
        raise not_empty(path)
    return RunDir(path)


def not_empty(path: Path) -> RunError:
    """The error of a folder that holds something already."""
    return RunError(
        f"folder {path} is not empty", fix="choose another --out; nothing is overwritten"
    )


def point_latest(run: RunDir) -> None:
    """Let `runs/latest` point to the run, in one step; a run elsewhere is named with --run."""
    if run.path.parent != BASE:
        return
    link = run.path.parent / LATEST
    if link.exists() and not link.is_symlink():
        return  # somebody's own folder of that name
    temporary = link.with_name(f".{LATEST}.{os.getpid()}")
    with writing(link):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(run.path.name, target_is_directory=True)
        temporary.replace(link)


def find_model(run: str | None) -> Path:
    """The checkpoint of a run: a run folder, a .safetensors file, or by default the latest run.

    Raises:
        RunError: There is none.
    """
    path = Path(run).expanduser() if run is not None else BASE / LATEST
    if path.is_dir():
        path = path / MODEL
    if path.is_file():
        return path
    if run is None:
        raise RunError(
            f"no finished run in {BASE}/",
            fix="run `vitft finetune --data DIR --weights NAME` first, or name one with --run",
        )
    raise RunError(
        f"no model in {run}", fix="give a run folder (it holds model.safetensors) or such a file"
    )


def environment(status: str, device: str, precision: str) -> dict[str, Any]:
    """What environment.json says: how the run ended, on what, with which versions."""
    names = ("vitft", "torch", "numpy", "pillow", "safetensors", "huggingface_hub")
    return {
        "status": status,
        "device": device,
        "precision": precision,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: importlib.metadata.version(name) for name in names},
    }
