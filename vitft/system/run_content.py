"""Readers for the files of a run directory, which may be damaged, edited or untrusted.

Reading never waits for a pipe, sizes are limited, and JSON values are checked against types. Every
problem raises a RunError that names the file. Does not import torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from vitft.system.errors import RunError
from vitft.system.files import read_regular
from vitft.system.structure import parse_json, structured
from vitft.system.text import describe_os_error

if TYPE_CHECKING:
    from vitft.system.npz import AnyArray

_Content = TypeVar("_Content")
_MAX_TEXT_BYTES = 256 * 2**20
"""Maximum size of a text file in bytes, enough for a confusion matrix of 5,000 classes."""


def damaged_file(path: Path, reason: str) -> RunError:
    """Return the error for a damaged file of a run."""
    return RunError(
        f"damaged run: {path} ({reason[:300]})",
        fix="copy the run again from its original location, or train the model again",
    )


def read_run_bytes(path: Path, *, limit: int = _MAX_TEXT_BYTES) -> bytes | None:
    """Return the content of a file of a run, or None if it does not exist.

    Raises:
        RunError: The file is not a regular file, is too large, or cannot be read.
    """
    try:
        return read_regular(path, limit=limit)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise damaged_file(path, describe_os_error(error)) from error


def read_run_json(path: Path, kind: type[_Content]) -> _Content | None:
    """Read a run's JSON file and convert its content to `kind`; return None if it does not exist.

    Raises:
        RunError: The file cannot be read, is too large or is not strict JSON, or a value does not
            conform to `kind`.
    """
    data = read_run_bytes(path)
    return None if data is None else _checked_json(path, data, kind)


def read_run_lines(path: Path, kind: type[_Content]) -> tuple[_Content, ...]:
    """Return the lines of a run's JSONL file, each converted to `kind`.

    An incomplete last line is ignored. If the file does not exist, the result is empty.

    Raises:
        RunError: The file cannot be read or is too large, a line is not strict JSON, or a value
            does not conform to `kind`.
    """
    lines = (read_run_bytes(path) or b"").split(b"\n")[:-1]  # without an incomplete last line
    return tuple(_checked_json(path, line, kind) for line in lines if line.strip())


def _checked_json(path: Path, data: bytes, kind: type[_Content]) -> _Content:
    """Parse `data`, the JSON text of the file `path`, and check it against `kind`.

    Raises:
        RunError: The text is not strict JSON, or the value does not conform to `kind`.
    """
    try:
        return cast("_Content", structured(parse_json(data), kind))
    except ValueError as error:
        raise damaged_file(path, str(error)) from error


def read_run_arrays(path: Path) -> "dict[str, AnyArray] | None":
    """Return the arrays of a .npz file of a run, or None if it does not exist.

    Raises:
        RunError: The file cannot be read, is damaged, or unpacks to an implausible size.
    """
    from vitft.system.npz import read_npz  # imports numpy

    try:
        return read_npz(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
        raise damaged_file(path, reason) from error
