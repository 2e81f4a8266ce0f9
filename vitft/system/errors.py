"""Errors that a user can fix, each with a fix and an exit code.

    VitftError            1   base class, never raised itself
    ├── UsageError        2   unknown option or name, invalid value, missing extra
    ├── DataError         3   folders, labels, images
    │   └── ImageError    3   a file that is not a usable image
    ├── WeightsError      4   weight files, the catalogue, the hub
    ├── RunError          5   run directories and checkpoints: damaged, mismatched, not writable
    ├── ResourceError     6   disk full, memory
    ├── DivergedError     7   loss or weights are not finite
    └── LockedError       8   another process writes to the run directory

A bug is an AssertionError or any other exception, which prints a traceback and exits with code 1.
An interruption exits with 130 (SIGINT) or 143 (SIGTERM, SIGUSR1, SIGHUP).
"""

from typing import ClassVar


class VitftError(Exception):
    """An error that the user can fix."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(f"{problem}\n  fix: {fix}")
        self.problem = problem
        self.fix = fix


class UsageError(VitftError):
    """An invalid option, setting or argument."""

    exit_code = 2


class DataError(VitftError):
    """A problem with the user's folders, labels or images."""

    exit_code = 3


class ImageError(DataError):
    """A file that cannot be used as an image; `reason` is short enough for a table."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}", fix="replace or remove the file")
        self.path = path
        self.reason = reason


class WeightsError(VitftError):
    """A problem with a weight file, a catalogue name or the hub."""

    exit_code = 4


class RunError(VitftError):
    """A problem with a run directory or a checkpoint."""

    exit_code = 5


class ResourceError(VitftError):
    """Not enough disk space or memory, or a failed worker."""

    exit_code = 6


class DivergedError(VitftError):
    """The loss or the weights are not finite."""

    exit_code = 7


class LockedError(VitftError):
    """Another process writes to the run directory."""

    exit_code = 8


class Stopped(KeyboardInterrupt):
    """Raised to stop the program with `exit_code` after a signal or at the time limit."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code
