"""The run directory: reading and writing its files, its location and its lock.

docs/results.md describes the files. The arrays of validation.npz are `logits` (n, C) of the saved
model for the validation images, in the order of split.csv; `train_probability` (m,) and
`train_correct` (m,) of the cross-validated predictions for training images, if calibration used
them, `train_label_probability` (m,) of their true classes, and `train_logits` (m, C); and
`cross_validated` (rows,), the cross-validated class, or most probable label, of each row of
split.csv or -1, if the model is a head that was solved. Does not import torch.
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
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar, cast

from vitft.system.errors import LockedError, RunError, UsageError
from vitft.system.files import (
    free_name,
    read_regular,
    try_lock,
    write_atomically,
    write_json,
    writing,
)
from vitft.system.structure import Natural, parse_json, structured
from vitft.system.suggest import suggest, without_suffix
from vitft.system.text import count, describe_os_error, shell_quote

if TYPE_CHECKING:
    import numpy as np

    from vitft.system.tensors import AnyArray


# readers for the files of a run directory, which may be damaged, edited or untrusted: each raises
# a RunError for a file that is not regular, is too large or has another content than expected -----

_Content = TypeVar("_Content")
_MAX_TEXT_BYTES = 256 * 2**20
"""Maximum size of a text file in bytes, enough for a confusion matrix of 5,000 classes."""


def damaged_file(path: Path, reason: str) -> RunError:
    """Return the error for a damaged file of a run."""
    return RunError(
        f"damaged run: {path} ({reason[:300]})",
        fix="copy the run again from its original location, or train the model again",
    )


@contextlib.contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """Convert an error in the block, which reads a file of a run, into a RunError."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
        raise damaged_file(path, reason) from error


def read_run_bytes(path: Path) -> bytes | None:
    """Return the content of a file of a run, or None if it does not exist."""
    with _damage_reported(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return read_regular(path, limit=_MAX_TEXT_BYTES)
    return None


def read_run_json(path: Path, kind: type[_Content]) -> _Content | None:
    """Return the content of a run's JSON file as `kind`, or None if it does not exist."""
    with _damage_reported(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        value = parse_json(read_regular(path, limit=_MAX_TEXT_BYTES))  # the bytes are freed at once
        return cast("_Content", structured(value, kind))
    return None


def read_run_lines(path: Path, kind: type[_Content]) -> tuple[_Content, ...]:
    """Return the lines of a run's JSONL file as `read_run_json`; none if it does not exist."""
    lines = (read_run_bytes(path) or b"").split(b"\n")[:-1]  # without an incomplete last line
    with _damage_reported(path):
        return tuple(structured(parse_json(line), kind) for line in lines if line.strip())


def read_run_arrays(path: Path) -> "dict[str, AnyArray] | None":
    """Return the arrays of a .npz file of a run, or None if it does not exist."""
    from vitft.system.tensors import read_npz  # imports numpy

    with _damage_reported(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return read_npz(path)
    return None


# names of files and folders -----------------------------------------------------------------------

BASE = Path("runs")
LATEST = "latest"
MODEL = "model.safetensors"
_LARGE_ARRAYS = 2**25
"""Number of bytes above which arrays are not compressed: logits shrink by less than a tenth, at
30 MB/s. `read_npz` also rejects large files that are compressed by more than a factor of 20."""
FILE_NAME = re.compile(
    r"\.(csv|tsv|txt|json|jsonl|html?|xlsx?|ods|parquet|npz|zip|pdf|svg|toml|md|png|jpe?g|"
    r"safetensors|onnx|pth?|pt2|bin)$",
    re.IGNORECASE,
)
"""End of a name that a folder to write must not have, because it is that of a file."""


class RunEnvironment(TypedDict):
    """Contents of environment.json."""

    status: str  # `running`, `finished`, `interrupted`, `terminated`, `out of time` or `failed`
    device: str
    precision: str  # `fp32`, `bf16` or `fp16`
    python: str
    system: str
    packages: dict[str, str]  # versions of packages, by name
    processes: NotRequired[Natural]  # number of processes that trained the model
    instructions: NotRequired[str]
    """Vector instructions of the CPU that torch uses, e.g. AVX512; empty on a GPU."""
    earlier: NotRequired[list[str]]
    """Where the steps before the run was resumed were computed, if not as the last ones; absent if
    all steps were computed in the same way."""
    ended: NotRequired[str]
    """Time at which the run ended, in ISO format with time zone; absent until then."""
    peak_memory_mib: NotRequired[dict[str, Natural]]
    """Peak memory use in MiB, present once the run has ended: `resident` and, on a GPU, `gpu`."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of a run's files, and methods to write them."""

    path: Path
    writes: bool = True  # whether this process writes files; only the main process of a job does

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

    def write(self, name: str, content: str | bytes) -> None:
        if self.writes:
            write_atomically(self.path / name, content)

    def write_json(self, name: str, fields: Mapping[str, Any]) -> None:
        if self.writes:
            write_json(self.path / name, fields)

    def write_arrays(self, name: str, **arrays: "np.ndarray[Any, Any]") -> None:
        """Write named arrays as a .npz file, compressed unless they are large."""
        import numpy as np  # imported late: most commands do not need it

        buffer, is_large = io.BytesIO(), sum(a.nbytes for a in arrays.values()) > _LARGE_ARRAYS
        save = np.savez if is_large else np.savez_compressed
        save(buffer, **arrays)  # type: ignore[arg-type] # numpy 2.0: no allow_pickle
        self.write(name, buffer.getvalue())

    @property
    def resume(self) -> Path:
        return self.path / "resume"

    def log_size(self) -> int:
        """Return the size of metrics.jsonl in bytes."""
        path = self.path / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def cut_log(self, size: int) -> None:
        """Truncate metrics.jsonl to at most `size` bytes."""
        path = self.path / "metrics.jsonl"
        if self.writes and path.exists():
            with writing(path):
                os.truncate(path, min(size, self.log_size()))

    def log(self, fields: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl; if writing fails, remove the incomplete line."""
        if not self.writes:
            return
        path, size = self.path / "metrics.jsonl", self.log_size()
        if path.exists() and not path.is_file():  # a pipe would block
            raise RunError(
                f"{path} is not a regular file", fix="remove it, or start a new run with --out"
            )
        with writing(self.path):
            try:
                with path.open("a", encoding="utf-8", newline="\n") as file:
                    file.write(json.dumps(fields, allow_nan=False) + "\n")
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(path, size)
                raise


def plan_run(out: str | None, data: str, *, name: str = "out") -> Path:
    """Return the path for a new run, `out` or `runs/<time>-<data>`, without creating it.

    `name` is the option that chooses the path, for errors.

    Raises:
        RunError: The folder is not empty, or it cannot be created or written to.
        ResourceError: The disk is full.
        UsageError: The name belongs to a file, such as `results.csv`.
    """
    if out is None:
        short = re.sub(r"[^\w.-]+", "_", Path(data).resolve().name) or "data"
        path = free_name(BASE / f"{datetime.now():%Y%m%d-%H%M%S}-{short}")
    else:
        path = Path(out).expanduser()
        check_folder_name(path, name)
    _check_empty(path, name)
    parent = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with writing(parent), tempfile.TemporaryFile(dir=parent):
            return path
    except RunError as error:
        raise RunError(
            f"cannot write {path}: {parent} is not a writable folder",
            fix=f"choose a writable folder with --{name}",
        ) from error


def check_folder_name(path: Path, name: str = "out") -> None:
    """Raise a UsageError if a new folder would have the name of a file, such as `results.csv`."""
    if FILE_NAME.search(path.name) and not path.exists():
        file, bare = (f"--{name} {shell_quote(str(p))}" for p in (path, path.with_suffix("")))
        raise UsageError(
            f"{file} names a {path.suffix} file, but this command writes a folder",
            fix=f"choose the name of a folder, e.g. {bare}",
        )


def check_outside(out: Path, data: Path) -> None:
    """Raise a UsageError if `--out` is inside the data folder, which is never changed."""
    if data.resolve() in (out.resolve(), *out.resolve().parents):
        given = f"--out {shell_quote(str(out))}"
        raise UsageError(
            f"{given} is inside the data directory, which vitft never changes",
            fix="choose a folder outside it with --out DIR",
        )


def create_run(path: Path) -> RunDir:
    """Create the directory of a planned run; concurrent runs in `runs` get different ones."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        while path.parent == BASE:
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return RunDir(path)
            path = free_name(path)
        path.mkdir(exist_ok=True)
    _check_empty(path)
    return RunDir(path)


@contextlib.contextmanager
def locked(run: RunDir) -> Iterator[None]:
    """Lock a run against other processes (a LockedError) inside the block, except on Windows."""
    path = run.path / ".lock"
    with writing(path):
        file = path.open("ab+", buffering=0)  # so that close() writes nothing
    with file:
        if not try_lock(file.fileno()):
            file.seek(0)
            holder = file.read().decode().strip() or "another process"
            raise LockedError(
                f"{run.path} is in use by {holder}", fix="wait until it has finished, or stop it"
            )
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        with writing(path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()} since {since}\n".encode())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a leftover lock file is harmless
                path.unlink()


def _check_empty(path: Path, name: str = "out") -> None:
    if path.is_dir() and any(path.iterdir()):
        raise RunError(
            f"folder {path} is not empty", fix=f"choose a new or empty folder with --{name}"
        )


def point_latest(run: RunDir) -> None:
    """Atomically point the link `runs/latest` to the run, if the run is in `runs`.

    If links cannot be created (on Windows, most users lack the permission), write the name of the
    run to a file `runs/latest` instead, which `run_path` reads.
    """
    link = run.path.parent / LATEST
    is_folder = link.is_dir() and not link.is_symlink()  # created by the user
    if run.path.parent != BASE or is_folder:
        return
    temporary = link.with_name(f".{LATEST}.{os.getpid()}")
    with writing(link):
        temporary.unlink(missing_ok=True)
        try:
            temporary.symlink_to(run.path.name, target_is_directory=True)
        except OSError:
            write_atomically(link, f"{run.path.name}\n")
        else:
            temporary.replace(link)


def run_path(run: str | None) -> Path:
    """Return the path of a run (None: the latest, whose name may be in a file `latest`)."""
    path = Path(run).expanduser() if run is not None else BASE / LATEST
    if path.name == LATEST and path.is_file():
        with contextlib.suppress(OSError, ValueError):
            name = read_regular(path, limit=1000).decode().strip()
            return path.with_name(name)  # raises a ValueError if it is not a name
    return path


def loading_step(run: str | None) -> str:
    """Return the log line shown while a run's model is loaded; None means the latest run."""
    return f"loading the model of {BASE / LATEST if run is None else run}"


def read_environment(path: Path) -> RunEnvironment | None:
    """Return the content of environment.json, or None if it does not exist."""
    return read_run_json(path, RunEnvironment)


# suggestions for the name of a run that does not exist --------------------------------------------

_RUN_FILES = ("config.toml", MODEL)  # a folder with one of these files is a run


def suggest_runs(run: str | os.PathLike[str], *, name: str = "run", otherwise: str) -> str:
    """Return the fix for a run that does not exist: similar names, and how to list all runs.

    Runs are searched for in `runs` and in the folder of the given path; exports, which have a
    README.md, count with the option --run only. `name` is the option that names the run, or empty
    for an argument without one. `otherwise` is the fix if there are no runs.
    """
    given, known = Path(run), dict[str, Path]()
    for child in (*_runs_in(BASE), *_runs_in(given.parent)):
        if child != given and (name == "run" or not (child / "README.md").is_file()):
            known[child.name] = child
    if not known:
        return otherwise
    near = suggest(without_suffix(given.name), known, cutoff=0.6, inside=True, most=2)
    shown = [str(known[one]) for one in near or [LATEST if LATEST in known else next(iter(known))]]
    text = " or ".join(f"--{name} " * bool(name) + shell_quote(path) for path in shown)
    list_all = f"`{'dir' if os.name == 'nt' else 'ls'} {BASE}` lists the runs"
    if near:
        return f"did you mean {text}? {list_all}"
    listed = {child.name for child in known.values() if child.parent == BASE} or {*known}
    return f"choose from {count(len(listed - {LATEST}) or 1, 'run')}, e.g. {text} ({list_all})"


def check_is_run(run: str | os.PathLike[str], *, name: str) -> None:
    """Raise a RunError if the value of the option `name` is not a run directory."""
    path = run_path(os.fspath(run))
    if not all(map(os.path.lexists, (path / "config.toml", RunDir(path).split))):
        otherwise = f"pass a directory written by `vitft finetune`, e.g. --{name} runs/latest"
        raise RunError(
            f"{run} is not a run directory: config.toml or split.csv is missing",
            fix=suggest_runs(run, name=name, otherwise=otherwise),
        )


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, newest names first, and the link to the latest one."""
    try:
        children = sorted(folder.iterdir(), reverse=True)
    except OSError:
        return []
    return [child for child in children if any((child / name).is_file() for name in _RUN_FILES)]


def unfinished_run(folder: Path = BASE) -> Path | None:
    """Return the most recently started run in a folder that has not finished, or None."""
    started = dict[float, Path]()
    for run in _runs_in(folder):
        with contextlib.suppress(OSError):  # another process may remove it
            if not run.is_symlink() and is_unfinished(run):
                started.setdefault((run / "config.toml").stat().st_mtime, run)
    return started[max(started)] if started else None


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder contains a run that has not finished; a damaged one is ignored."""
    try:
        environment = read_environment(folder / "environment.json")
    except RunError:
        return False
    return has_settings(folder) and (environment is None or environment["status"] != "finished")


def has_settings(run: Path) -> bool:
    """Return whether a folder has the files that `vitft finetune` writes before it trains."""
    return all((run / name).is_file() for name in ("config.toml", "split.csv"))


def resume_command(run: Path) -> str:
    """Return the command that continues a run."""
    return f"vitft finetune --resume {shell_quote(str(run))}"
