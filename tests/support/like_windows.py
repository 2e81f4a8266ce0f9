"""Make a process on Linux behave like one on Windows, where Windows is stricter.

`hide()` runs before vitft is imported. Afterwards,

- modules, functions and signals that Windows lacks are absent, and threads have no affinity;
- a new process is started with spawn;
- symbolic links need a privilege that the user lacks;
- an open or mapped file can be neither replaced nor deleted, and a folder cannot be opened;
- files with a reserved name or character cannot be created;
- text is written with CRLF unless the newline is chosen, and text without an encoding is an error.

Paths keep their forward slashes, and names that differ only in case remain different.
"""

import builtins
import ctypes
import io
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
FUNCTIONS = (
    *("chown", "fchdir", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid"),
    *("getloadavg", "getpgid", "getpriority", "getuid", "killpg", "lchown", "mkfifo", "mknod"),
    *("nice", "posix_fadvise", "posix_fallocate", "posix_spawn", "pread", "preadv", "pwrite"),
    *("pwritev", "readv", "sched_getaffinity", "sched_setaffinity", "setsid"),
    *("sync", "sysconf", "uname", "wait", "writev", "O_CLOEXEC", "O_DIRECTORY"),
    *("O_NOFOLLOW", "O_NONBLOCK", "O_SYNC"),
)
SIGNALS = ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")
"""Signals that Windows has."""
RESERVED = re.compile(r'[<>:"|?*\\\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.I)


class Blocker(MetaPathFinder):
    """Import hook without the modules that Windows lacks."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def hide() -> None:
    """Make this process behave like one on Windows."""
    import huggingface_hub.utils  # noqa: F401 - imports termios unless sys.platform is win32
    import torch  # noqa: F401 - it may use what is hidden below

    fsync_checked, replaced = checked_fsync(), os.replace
    sys.meta_path.insert(0, Blocker())
    for name in MODULES:
        sys.modules.pop(name, None)
    for name in FUNCTIONS:
        if hasattr(os, name):
            delattr(os, name)
    for name in [name for name in dir(signal) if re.match(r"SIG[A-Z]", name)]:
        if name not in SIGNALS:
            delattr(signal, name)
    for name in ("alarm", "pthread_kill", "setitimer", "sigwait"):
        delattr(signal, name)
    multiprocessing.set_start_method("spawn", force=True)
    os.fsync = fsync_checked
    os.symlink = refuse_link
    os.unlink = os.remove = unless_open(os.unlink, 0)
    os.replace = unless_open(replaced, 1)
    os.rename = rename_to_new
    os.open = open_file
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    builtins.open = io.open = crlf_open
    ctypes.CDLL = library  # type: ignore[misc]
    sys.addaudithook(refuse_names)
    warnings.filterwarnings("error", category=EncodingWarning, module=r"vitft\b")


def is_open(path: Any) -> bool:
    """Return whether this process has a file open or mapped."""
    target = os.path.realpath(os.fspath(path))
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - descriptors
        try:
            if os.readlink(f"/proc/self/fd/{number}") == target:  # noqa: PTH115
                return True
        except OSError:
            continue
    with REAL_OPEN("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return any(line.rstrip("\n").endswith(f" {target}") for line in maps)


def unless_open(function: Callable[..., Any], *places: int) -> Callable[..., Any]:
    """Return a function that refuses paths of open files."""

    def checked(*arguments: Any, **more: Any) -> Any:
        for path in arguments[: 1 + max(places)]:
            if os.path.lexists(path) and is_open(path):
                raise PermissionError(13, "The process cannot access the file", str(path))
        return function(*arguments, **more)

    return checked


def open_file(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
    """Open a file, but not a folder."""
    if os.path.isdir(path):  # noqa: PTH112
        raise PermissionError(13, "Permission denied", str(path))
    return REAL_DESCRIPTOR(path, flags, *arguments, **more)


def rename_to_new(source: Any, target: Any, **_: Any) -> None:
    """Rename a file, but never over another one."""
    if os.path.lexists(target):
        raise FileExistsError(17, "Cannot create a file when that file already exists", str(target))
    os.replace(source, target)  # noqa: PTH105


def refuse_link(_: object, target: Any, *__: Any, **___: Any) -> None:
    raise OSError(1, "A required privilege is not held by the client", str(target))


def checked_fsync() -> Callable[[Any], None]:
    """Return a function that refuses descriptors that are open only for reading."""
    import fcntl

    control, read_status, fsync = fcntl.fcntl, fcntl.F_GETFL, os.fsync

    def checked(descriptor: Any) -> None:
        if control(descriptor, read_status) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        fsync(descriptor)

    return checked


REAL_OPEN, REAL_DESCRIPTOR, REAL_LIBRARY = io.open, os.open, ctypes.CDLL


def crlf_open(file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
    """Open a file and write lines of text as Windows does."""
    text = "b" not in mode
    if text and {*"wax+"} & {*mode} and len(arguments) < 4 and more.get("newline") is None:
        more["newline"] = "\r\n"
    if text and len(arguments) < 2 and more.get("encoding") is None:
        warnings.warn("no encoding", EncodingWarning, stacklevel=2)
    return REAL_OPEN(file, mode, *arguments, **more)


def library(name: Any, *arguments: Any, **more: Any) -> Any:
    """Open a shared library; the C library has no name on Windows."""
    if name is None:
        raise OSError("the C library has no name")
    return REAL_LIBRARY(name, *arguments, **more)


def refuse_names(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to create a file or folder with a name that Windows does not allow."""
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int):
            return
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return
    elif event == "os.mkdir":
        path = arguments[0]
    elif event == "os.rename":
        path = arguments[1]
    else:
        return
    text = os.fsdecode(path)
    if text.startswith(("/dev/", "/proc/")):
        return
    if any(RESERVED.search(part) for part in text.split("/") if part not in ("", ".", "..")):
        raise OSError(22, "The filename, directory name, or volume label syntax is incorrect", text)
