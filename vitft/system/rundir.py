"""The run directory: its files, its location and its lock.

    config.toml         resolved settings
    split.csv           path, label, split and sha256 of every image
    model.safetensors   best weights, with a card in the metadata
    class_indices.json  index -> class name
    metrics.jsonl       one line per epoch or per penalty tried
    eval.json           final metrics (`metrics.results`)
    validation.npz      `logits` (n, C) of the saved model for the val rows of split.csv
    thumbs/             thumbnails of errors and probable label errors (`training.thumbnails`)
    report.html         report (`report`)
    reference.npz       statistics of the training features (`features.ood`)
    audit.json          problems found in the images (`training.audit`)
    environment.json    versions, device, precision and status
    resume/             training state of an unfinished run (`training.state`)
    trackers.json       ids of the run in experiment trackers (`training.trackers`), if any

`runs/latest` is a link to the newest finished run. Does not import torch.
"""

import contextlib
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
    """Paths of a run's files, and methods to write them."""

    path: Path
    writes: bool = True
    """Whether this process writes; with several processes, only the main one does."""

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
        """Write strict JSON, indented."""
        self.write_text(name, json.dumps(fields, indent=2, allow_nan=False) + "\n")

    def write_arrays(self, name: str, **arrays: "np.ndarray[Any, Any]") -> None:
        """Write named arrays as an .npz file."""
        import numpy as np  # late: not needed by most commands

        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        if self.writes:
            write_atomically(self.path / name, buffer.getvalue())

    @property
    def resume(self) -> Path:
        return self.path / "resume"

    def log_size(self) -> int:
        """Return the size of metrics.jsonl in bytes."""
        path = self.path / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def cut_log(self, size: int) -> None:
        """Truncate metrics.jsonl to `size` bytes."""
        path = self.path / "metrics.jsonl"
        if self.writes and path.exists():
            with writing(path):
                os.truncate(path, size)

    def log(self, fields: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl; on an error nothing is appended."""
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
    """Return the path of a new run without creating it.

    Args:
        out: The folder that the user chose, or None for `runs/<time>-<data>`.
        data: Path of the data, for the name.
        now: Time for the name; default: the current time.
        option: The option that chooses the folder, for messages.

    Raises:
        RunError: The folder is not empty or not writable.
    """
    if out is None:
        name = re.sub(r"[^\w.-]+", "_", Path(data).resolve().name) or "data"
        stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
        path = free_name(BASE / f"{stamp}-{name}")
    else:
        path = Path(out).expanduser()
    if path.is_dir() and any(path.iterdir()):
        raise not_empty_error(path, option)
    parent = path
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not is_writable(parent):
        raise RunError(
            f"cannot write {path}: {parent} is not a writable folder",
            fix=f"choose another {option}",
        )
    return path


def is_writable(folder: Path) -> bool:
    """Return whether a file can be created in a folder, by trying it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def create_run(path: Path) -> RunDir:
    """Create the directory of a planned run; concurrent runs get different ones.

    Raises:
        RunError: It cannot be created, or is no longer empty.
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
        raise not_empty_error(path)
    return RunDir(path)


@contextlib.contextmanager
def locked(run: RunDir) -> Iterator[None]:
    """Lock a run against other processes; the lock of a dead process does not count.

    Raises:
        LockedError: Another process has the lock.
        RunError: The directory is not writable.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = run.path / ".lock"
    with writing(path):
        file = path.open("ab+", buffering=0)  # close() then writes nothing
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().decode().strip() or "another process"
            raise LockedError(
                f"{run.path} is in use by {holder}",
                fix="wait until it has finished, or stop it",
            ) from error
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        with writing(path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()} since {since}\n".encode())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # an unused lock file does no harm
                path.unlink()


def not_empty_error(path: Path, option: str = "--out") -> RunError:
    """Return the error for a folder that is not empty."""
    return RunError(
        f"folder {path} is not empty", fix=f"choose another {option}; nothing is overwritten"
    )


def point_latest(run: RunDir) -> None:
    """Let `runs/latest` point to the run atomically; a run outside of `runs` is ignored."""
    if run.path.parent != BASE:
        return
    link = run.path.parent / LATEST
    if link.exists() and not link.is_symlink():
        return  # a folder of the user's
    temporary = link.with_name(f".{LATEST}.{os.getpid()}")
    with writing(link):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(run.path.name, target_is_directory=True)
        temporary.replace(link)


def environment(status: str, device: str, precision: str) -> RunEnvironment:
    """Return the contents of environment.json."""
    import importlib.metadata

    names = ("vitft", "torch", "numpy", "pillow", "safetensors", "huggingface_hub")
    return {
        "status": status,
        "device": device,
        "precision": precision,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: importlib.metadata.version(name) for name in names},
    }
