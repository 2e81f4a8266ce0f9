"""Errors that a user can fix, each with a fix and an exit code.

Any other exception, e.g. an AssertionError, is a bug; it prints a traceback and exits with code 1.
An interruption exits with code 130 (SIGINT) or 143 (SIGTERM, SIGUSR1, SIGHUP), and a closed pipe
with code 141.
"""

from typing import ClassVar

from vitft.system.text import redacted


class VitftError(Exception):
    """An error that the user can fix. Passwords in URLs are removed from its message."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem, self.fix = redacted(problem), redacted(fix)
        super().__init__(self.problem)

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


class UsageError(VitftError):
    """An invalid option, setting or argument, or a missing extra."""

    exit_code = 2


class DataError(VitftError):
    """A problem with the data folder, its labels or its images."""

    exit_code = 3


class ImageError(DataError):
    """A file that cannot be used as an image; `reason` is short enough for a table."""

    def __init__(self, path: str, reason: str, fix: str = "replace or remove the file") -> None:
        super().__init__(f"{path}: {reason}", fix=fix)
        self.path, self.reason = redacted(path), redacted(reason)


class WeightsError(VitftError):
    """A problem with a weight file, a catalogue name or the hub."""

    exit_code = 4


class RunError(VitftError):
    """A run directory or a checkpoint that is damaged, does not match or is not writable."""

    exit_code = 5


class ResourceError(VitftError):
    """A lack of disk space or memory, output that cannot be written, or a failed worker."""

    exit_code = 6


class DivergedError(VitftError):
    """A loss or weights that are not finite."""

    exit_code = 7


class LockedError(VitftError):
    """A run directory to which another process is writing."""

    exit_code = 8


class Stopped(KeyboardInterrupt):
    """Exception that stops the program with `exit_code` after a signal or at the time limit."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code
