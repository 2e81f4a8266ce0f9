"""Bundled files, bounded reads, and atomic writes that never leave a partial file."""

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from vitft.system.errors import ResourceError, RunError
from vitft.system.text import describe_os_error

_MANY_FILES = 1000
_PACKAGE = Path(__file__).parents[1]
CHECKSUM_SUFFIXES = frozenset({".md5", ".sha1", ".sha256", ".sha512"})
"""Suffixes of files with the checksum of the file whose name precedes the suffix."""
PICKLE_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
WEIGHT_SUFFIXES = (".safetensors", ".npz", *PICKLE_SUFFIXES)
INDEX_SUFFIX = ".index.json"
"""End of the name of a file that lists the files of weights in several parts."""


def weight_format(path: Path) -> str:
    """Return the format of a weight file: safetensors, npz or pickle; empty for any other file.

    The content decides, except for an empty or damaged file, where the suffix does.
    """
    name = path.name.lower().removesuffix(INDEX_SUFFIX)
    with contextlib.suppress(OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        with open(path, "rb", opener=open_regular) as file:
            start = file.read(9)
            if start.startswith(b"PK"):
                members = zipfile.ZipFile(file).namelist()
                if any(member.endswith(".npy") for member in members):
                    return "npz"
                if any(member.endswith("/data.pkl") for member in members):
                    return "pickle"
        if re.match(rb"\x80[\x02-\x05]", start):
            return "pickle"
        if start[8:] == b"{" and int.from_bytes(start[:8], "little") < 10**8:
            return "safetensors"
    if name.endswith(PICKLE_SUFFIXES):
        return "pickle"
    return name.rpartition(".")[2] if name.endswith(WEIGHT_SUFFIXES) else ""


def resource(name: str) -> Path:
    """Return the path of a bundled file or folder, such as `recipes` or `weights/catalog.toml`."""
    packed = _PACKAGE / name  # in a wheel; in the repository, it is at the top level
    return packed if packed.exists() else _PACKAGE.parent / name


def open_regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file and return the descriptor; raise an OSError at once if it is e.g. a pipe."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EISDIR, "not a regular file")


def read_regular(path: str | Path, *, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes, or raise an OSError."""
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than the limit of {limit:,}")
        content: bytes | None = file.read(size or 1)
        if content is None or len(content) > size:  # a file of the kernel, e.g. in /proc
            raise OSError(errno.EISDIR, "not a regular file")
        return content


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed, and return False if another process has locked it."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows, where there are no locks
        return True
    except OSError:
        return False
    return True


def write_atomically(path: Path, content: bytes | str | Iterable[bytes | memoryview]) -> None:
    """Write the file `path` atomically: after a crash, it has either the old or the new content.

    The content may be in parts, so that large parts are not copied, or many are not all in memory.
    Errors are those of `writing`.
    """
    text = content.encode() if isinstance(content, str) else content
    parts = [text] if isinstance(text, bytes) else text
    with writing(path), temporary_file(path) as (descriptor, temporary):
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write indented strict JSON atomically."""
    parts = json.JSONEncoder(indent=2, allow_nan=False).iterencode(fields)
    write_atomically(path, (part.encode() for part in chain(parts, "\n")))


@contextlib.contextmanager
def temporary_file(path: Path) -> Iterator[tuple[int, Path]]:
    """Create a temporary file next to `path`, and remove it at the end if it still exists.

    Yield the path of the file and an open descriptor, which the caller must close.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # minus the umask
    try:
        yield descriptor, temporary
    finally:
        with contextlib.suppress(OSError):  # already renamed, or cannot be removed
            temporary.unlink()


@contextlib.contextmanager
def writing(path: Path, *, option: str = "--out") -> Iterator[None]:
    """Convert an OSError raised while writing to `path` into a VitftError.

    Raises:
        ResourceError: The disk is full or faulty.
        RunError: Writing failed for another reason. The fix is to choose a writable folder with
            `option`.
    """
    try:
        yield
    except OSError as error:
        fixes = dict.fromkeys(
            (errno.ENOSPC, errno.EFBIG, errno.EDQUOT),
            "free some space (or inodes, see df -i) and run the command again",
        ) | {errno.EIO: "check the disk (dmesg), then run the command again"}
        if fix := fixes.get(error.errno or 0):
            problem = "I/O error" if error.errno == errno.EIO else "disk full"
            raise ResourceError(f"{problem} while writing {path}", fix=fix) from error
        raise RunError(
            f"cannot write {path}: {describe_os_error(error)}",
            fix=f"choose a writable folder with {option}",
        ) from error


def check_space(folder: Path, needed: float, what: str, *, option: str) -> None:
    """Raise a ResourceError if a folder's disk has fewer than `needed` bytes left for `what`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ResourceError(
            f"{what} needs about another {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB is "
            f"free in {folder}",
            fix=f"free some disk space, or choose a folder on another disk with {option}",
        )


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Create a temporary folder that is renamed to `path` at the end, or removed on an error.

    Errors are those of `writing`; a `path` that is no longer empty is a RunError.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    with writing(path):
        temporary.mkdir(parents=True)
    try:
        yield temporary
        with writing(path):
            files = [file for file in temporary.rglob("*") if file.is_file()]
            if len(files) > _MANY_FILES and hasattr(os, "sync"):
                os.sync()  # flushing 150,000 small files one by one takes minutes
                files = []
            for file in files:
                with file.open("rb+") as content:
                    os.fsync(content.fileno())
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()  # fails unless it is empty
            temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def free_name(path: Path, *, suffix: str = "") -> Path:
    """Return `path` or, if it exists, the first free path among path-2, path-3, and so on."""
    stem = path.name.removesuffix(suffix)
    names = [path, *(path.with_name(f"{stem}-{i}{suffix}") for i in range(2, 1000))]
    return next(name for name in names if not name.exists())
