"""The run directory: the one contract between training and everything done with its result.

    config.toml         the resolved settings     split.csv        path, label, split, sha256
    model.safetensors   weights and their card    class_indices.json
    metrics.jsonl       one line per epoch or penalty tried
    eval.json           the final figures (`metrics`)
    validation.npz      `logits` (n, C): the saved model's scores of the val rows of split.csv
    thumbs/             small pictures of mistakes and suspects (`gallery`)
    report.html         all of it as one page (`report`)
    reference.npz       what the training features look like (`unlike`)
    audit.json          what looks wrong with the images, in short (`audit`)
    environment.json    versions, device, precision, and whether the run finished
    resume/             the state of an unfinished training (`resume`)
    trackers.json       under which ids trackers know the run (`trackers`), if it has any

`runs/latest` points to the newest finished run. Nothing here imports torch.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from vitft.system.errors import LockedError, RunError
from vitft.system.files import free_name, write_atomically, writing

if TYPE_CHECKING:
    import numpy as np

BASE = Path("runs")
LATEST = "latest"
MODEL = "model.safetensors"


class PeakMemory(TypedDict, total=False):
    """The part of environment.json that is written when a run ends."""

    peak_memory_mib: dict[str, int]
    """Largest memory use in MiB: `resident`, and on a GPU `gpu`."""


class RunEnvironment(PeakMemory):
    """Contents of environment.json."""

    status: str
    """`running`, `finished`, `interrupted`, `terminated`, `out of time` or `failed`."""
    device: str
    precision: str
    """`fp32`, `bf16` or `fp16`."""
    python: str
    system: str
    packages: dict[str, str]
    """Versions by name."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one run and how they are written."""

    path: Path
    writes: bool = True
    """Whether this process writes it; one of several does."""

    @property
    def model(self) -> Path:
        return self.path / MODEL

    @property
    def split(self) -> Path:
        return self.path / "split.csv"

    @property
    def class_indices(self) -> Path:
        return self.path / "class_indices.json"

    @property
    def eval(self) -> Path:
        return self.path / "eval.json"

    def write_text(self, name: str, text: str) -> None:
        if self.writes:
            write_atomically(self.path / name, text)

    def write_json(self, name: str, fields: Mapping[str, Any]) -> None:
        """Strict JSON, indented for readers."""
        self.write_text(name, json.dumps(fields, indent=2, allow_nan=False) + "\n")

    def write_arrays(self, name: str, **arrays: "np.ndarray[Any, Any]") -> None:
        """An .npz file of named arrays."""
        import numpy as np  # not at the top: commands that write none start without it

        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        if self.writes:
            write_atomically(self.path / name, buffer.getvalue())

    @property
    def resume(self) -> Path:
        return self.path / "resume"

    def log_size(self) -> int:
        """Bytes of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def cut_log(self, size: int) -> None:
        """Take back what was logged after the log had this many bytes."""
        path = self.path / "metrics.jsonl"
        if self.writes and path.exists():
            with writing(path):
                os.truncate(path, size)

    def log(self, fields: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl, whole or not at all."""
        if not self.writes:
            return
        path, size = self.path / "metrics.jsonl", self.log_size()
        with writing(self.path):
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(fields, allow_nan=False) + "\n")
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(path, size)
                raise


def plan_run(
    out: str | None, data: str, *, now: datetime | None = None, option: str = "--out"
) -> Path:
    """Where a new run will be written; creates nothing.

    Args:
        out: The folder the user asked for, or None for `runs/<when>-<data>`.
        data: Path of the data, for the name.
        now: The time for the name; default: now.
        option: What the user gave the folder by.

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
        raise not_empty(path, option)
    home = path
    while not home.exists():
        home = home.parent
    if not home.is_dir() or not writable(home):
        raise RunError(
            f"cannot write {path}: {home} is not a folder that you may write",
            fix=f"choose another {option}",
        )
    return path


def writable(folder: Path) -> bool:
    """Whether a file can really be made there; permission bits alone do not tell."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


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


@contextlib.contextmanager
def locked(run: RunDir) -> Iterator[None]:
    """Keep other processes from writing this run; the lock of a dead one holds nobody up.

    Raises:
        LockedError: A live process holds it.
        RunError: The folder cannot be written.
    """
    try:
        import fcntl
    except ImportError:  # a system without it
        yield
        return
    path = run.path / ".lock"
    with writing(path):
        file = path.open("ab+", buffering=0)  # nothing is left to write when it is closed
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().decode().strip() or "another process"
            raise LockedError(
                f"{run.path} is being written by {holder}",
                fix="wait until it has ended, or end it",
            ) from error
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        with writing(path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()} since {since}\n".encode())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a lock that nobody holds keeps nobody out
                path.unlink()


def not_empty(path: Path, option: str = "--out") -> RunError:
    """The error of a folder that holds something already."""
    return RunError(
        f"folder {path} is not empty", fix=f"choose another {option}; nothing is overwritten"
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


def environment(status: str, device: str, precision: str) -> RunEnvironment:
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
