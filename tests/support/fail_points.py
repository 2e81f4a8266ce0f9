"""Fault injection: calls that change the disk can be made to fail, or to end the program.

`FailPoints` counts each open for writing, write, fsync, rename, unlink, truncate, mkdir and symlink
below a folder and makes one of them fail once, or kills the program there. A failing write writes
the first half of its data. Calls of libraries that bypass Python's functions (safetensors, Arrow)
are not counted.
"""

import builtins
import contextlib
import errno
import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}
KILL = "kill"
ONE_PATH = ("unlink", "truncate", "mkdir", "rename", "replace", "symlink")


class Killed(BaseException):
    """Raised at a kill, and by every later call, so that nothing more reaches the disk."""


class FailPoints:
    """Context manager that counts calls below a folder, and has call `at` fail as `how` says.

    For a kill, `die` is called; by default, every later call raises `Killed` instead.
    """

    def __init__(
        self, below: Path, at: int = -1, how: str = KILL, die: Callable[[], object] | None = None
    ) -> None:
        self.below, self.at, self.how, self.die = str(below.resolve()), at, how, die
        self.calls: list[str] = []
        """Name and kind of file of each call so far."""
        self.log: Any = None
        self.is_dead = False
        self.before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        for name in ONE_PATH:
            self.patch(os, name, self.counted(name, getattr(os, name)))
        self.patch(os, "fsync", self.counted("fsync", os.fsync))
        self.patch(os, "open", self.counted_open(os.open))
        opened = self.counted_file(io.open)
        self.patch(builtins, "open", opened)
        self.patch(io, "open", opened)
        return self

    def __exit__(self, *_: object) -> None:
        for home, name, function in reversed(self.before):
            setattr(home, name, function)

    def record(self, path: Path) -> Self:
        """Write every call to a file as well, for a process that does not return."""
        self.log = self.before[-1][2](path, "w", buffering=1)  # the original `open`
        return self

    def patch(self, home: Any, name: str, function: Any) -> None:
        self.before.append((home, name, getattr(home, name)))
        setattr(home, name, function)

    def point(self, name: str, target: object, half: Callable[[], object] = lambda: None) -> None:
        """Count one call; raise if it is the one that fails."""
        path = path_of(target)
        if not path.startswith(self.below):
            return
        if self.is_dead:
            raise Killed
        self.calls.append(f"{name} {kind_of(path)}")
        if self.log is not None:
            self.log.write(self.calls[-1] + "\n")
        if len(self.calls) - 1 != self.at:
            return
        half()
        if self.how == KILL:
            if self.die is not None:
                self.die()
            self.is_dead = True
            raise Killed
        raise OSError(ERRORS[self.how], os.strerror(ERRORS[self.how]), path)

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *rest: Any, **options: Any) -> Any:
            if options.get("dir_fd") is None:
                self.point(name, target)
            return function(target, *rest, **options)

        return call

    def counted_open(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & os.O_CREAT:
                self.point("open", path)
            return function(path, flags, *rest, **options)

        return call

    def counted_file(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            writes = set(mode) & set("wax+")
            inside = writes and path_of(file).startswith(self.below)
            if inside and not isinstance(file, int):
                self.point("open", file)
            opened = function(file, mode, *rest, **options)
            return CountedFile(opened, self) if inside else opened

        return call


class CountedFile:
    """A file whose writes are flushed at once, or fail halfway."""

    def __init__(self, file: Any, points: FailPoints) -> None:
        self.file, self.points = file, points

    def write(self, data: Any) -> int:
        def half() -> None:
            self.file.write(data[: len(data) // 2])
            self.file.flush()

        self.points.point("write", self.file.fileno(), half)
        written: int = self.file.write(data)
        self.file.flush()
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def truncate(self, *size: int) -> int:
        self.points.point("truncate", self.file.fileno())
        cut: int = self.file.truncate(*size)
        return cut

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.file)


def path_of(target: object) -> str:
    """Return the path of a path-like object or of a file descriptor."""
    with contextlib.suppress(OSError, TypeError, ValueError):
        if isinstance(target, int):
            return str(Path(f"/proc/self/fd/{target}").readlink())
        path = Path(target)  # type: ignore[arg-type]  # what open() takes
        return str(path.parent.resolve() / path.name)
    return ""


def kind_of(path: str) -> str:
    """Return the name of a file without the parts that differ between runs."""
    name = re.sub(r"\.[0-9a-f]{12}( \(deleted\))?$", "", path.rsplit("/", 1)[-1])
    return re.sub(r"[0-9a-f]{8,}|\d{3,}", "#", name)
