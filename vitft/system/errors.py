"""What can go wrong for a user, each with a next step and an exit code.

    VitftError            1   never raised itself
    ├── UsageError        2   unknown option or name, impossible value, missing extra
    ├── DataError         3   folders, labels, images
    │   └── ImageError    3   one file that is not a usable image
    ├── WeightsError      4   weight files, the catalogue, the hub
    ├── RunError          5   run folders and checkpoints: damaged, not matching, not writable
    ├── ResourceError     6   disk full, memory
    ├── DivergedError     7   training is no longer finite
    └── LockedError       8   another process writes the run folder

A mistake of the program is an `assert` or any other exception: it ends in a traceback and exit
code 1. An interruption by the user ends in 130 (SIGINT) or 143 (SIGTERM, SIGUSR1, SIGHUP).
"""

from typing import ClassVar


class VitftError(Exception):
    """Something the user can fix: what is wrong, and how to put it right."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(f"{problem}\n  fix: {fix}")
        self.problem = problem
        self.fix = fix


class UsageError(VitftError):
    """The command line, a recipe or an argument asks for something impossible."""

    exit_code = 2


class DataError(VitftError):
    """The user's folders, labels or images."""

    exit_code = 3


class ImageError(DataError):
    """One file that cannot be used as an image; `reason` is short enough for a table row."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}", fix="replace the file or leave it out")
        self.path = path
        self.reason = reason


class WeightsError(VitftError):
    """A weight file, a catalogue name or the hub."""

    exit_code = 4


class RunError(VitftError):
    """A run folder or a checkpoint in it."""

    exit_code = 5


class ResourceError(VitftError):
    """The machine: disk, memory, workers."""

    exit_code = 6


class DivergedError(VitftError):
    """The loss or the weights are no longer finite."""

    exit_code = 7


class LockedError(VitftError):
    """A live process holds the run folder."""

    exit_code = 8


class Stopped(KeyboardInterrupt):
    """A signal asks the program to end; `exit_code` says which."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code
