"""Writing files so that a crash, a full disk or a second process never leaves half of one.

Nothing here knows what is written.
"""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from vitft.system.errors import ResourceError, RunError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace the file `path` by `content`; a crash leaves the old file or the new one.

    Raises:
        ResourceError: The disk is full.
        RunError: The folder cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path), temporary_beside(path) as (descriptor, temporary):
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[tuple[int, Path]]:
    """A fresh file in the folder of `path`, removed if it is still there afterwards."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        yield descriptor, temporary
    finally:
        with contextlib.suppress(OSError):  # gone, or the disk's next refusal: what counts is said
            temporary.unlink()


@contextlib.contextmanager
def writing(path: Path, *, option: str = "--out") -> Iterator[None]:
    """Turn the system's refusals to write into sentences; `option` names another place."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise ResourceError(
                f"disk full while writing {path}", fix="free some space, then run it again"
            ) from error
        if error.errno == errno.EIO:
            raise ResourceError(
                f"the disk failed while writing {path}",
                fix="see what the system says of it (dmesg), then run it again",
            ) from error
        raise RunError(
            f"cannot write {path}: {error.strerror}",
            fix=f"choose a folder that you may write, with {option}",
        ) from error


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A fresh folder that is given the name `path` at the end, and removed if anything fails.

    Raises:
        ResourceError: The disk is full.
        RunError: The place cannot be written, or files lie there by now.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    with writing(path):
        temporary.mkdir(parents=True)
    try:
        yield temporary
        with writing(path):
            for file in (f for f in temporary.rglob("*") if f.is_file()):
                with file.open("rb+") as content:
                    os.fsync(content.fileno())
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()  # it is empty, or this fails
            temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def free_name(path: Path, *, suffix: str = "") -> Path:
    """Return `path`, or the first of path-2, path-3, ... that does not exist.

    Args:
        path: The wanted path.
        suffix: The end of its name that stays at the end, such as `.csv`.
    """
    stem = path.name.removesuffix(suffix)
    names = [path, *(path.with_name(f"{stem}-{i}{suffix}") for i in range(2, 1000))]
    return next(name for name in names if not name.exists())
