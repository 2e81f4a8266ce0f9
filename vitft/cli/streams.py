"""Standard streams that survive a full disk, a closed descriptor and a closed pipe.

Text that stderr cannot accept is dropped, so that no command fails because of its log. Text that
stdout cannot accept is dropped too, so that the command completes its work before it exits with
code 6.
"""

import codecs
import contextlib
import errno
import io
import os
from collections.abc import Iterator
from typing import Any, TextIO

from vitft.system.errors import ResourceError
from vitft.system.text import describe_os_error

_CLOSED_PIPE = 141
"""Exit code that shells report for a program stopped by SIGPIPE, e.g. when `head` has exited."""
_SUCCESSES = (0, 3)
"""Exit codes of commands that produced results; 3 means that some inputs could not be read."""

_REPLACEMENTS = {"█": "#", "░": ".", "−": "-", "–": "-", "×": "x", "…": "...", "·": "|"}
"""Replacements for characters that the encoding of a stream lacks; others are escaped."""


def _replace_character(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace a character that cannot be encoded (error handler for `codecs.register_error`)."""
    if isinstance(error, UnicodeEncodeError):
        found = _REPLACEMENTS.get(error.object[error.start])
        if found is not None:
            return found, error.start + 1
        error.end = error.start + 1
    return codecs.backslashreplace_errors(error)


class StdoutLostError(Exception):
    """Exception raised after stdout has failed, to end a command that only prints results."""


class SafeStream:
    """A text stream that drops what it cannot write and keeps the first error in `failure`.

    Args:
        inner: The stream, or None if its descriptor was closed when Python started.
    """

    def __init__(self, inner: TextIO | None) -> None:
        self.is_missing = inner is None
        self.inner = inner or open(os.devnull, "w", encoding="utf-8", newline="")  # noqa: SIM115, PTH123
        self.failure: OSError | None = None
        if isinstance(inner, io.TextIOWrapper):
            codecs.register_error("vitft", _replace_character)
            inner.reconfigure(errors="vitft")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of any stream
        return getattr(self.inner, name)

    def write(self, text: str) -> int:
        """Write text, or drop it if the stream fails."""
        if self.is_missing or self.inner.closed:
            self.failure = self.failure or OSError(errno.EBADF, "it is closed")
        else:
            with self.keeping_failure():
                self.inner.write(text)
        return len(text)

    def flush(self) -> None:
        """Write the buffered text, or keep the error in `failure`."""
        if not self.inner.closed:
            with self.keeping_failure():
                self.inner.flush()

    @contextlib.contextmanager
    def keeping_failure(self) -> Iterator[None]:
        """Keep the first error of the stream in `failure` instead of raising it."""
        try:
            yield
        except OSError as error:
            self.failure = self.failure or error

    def finish(self) -> None:
        """Flush the stream for the last time.

        Text that could not be written is discarded. Otherwise, Python would try to write it again
        at exit, fail, and exit with code 120.
        """
        self.flush()
        if self.is_missing:
            self.inner.close()
        elif self.failure is not None:
            with contextlib.suppress(OSError, ValueError):  # closed, or without a descriptor
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.inner.fileno())
                os.close(null)
                self.inner.flush()


class Stdout(SafeStream):
    """Stdout, to which a command writes its results."""

    def check(self) -> None:
        """Raise StdoutLostError if a write has failed."""
        if self.failure is not None:
            raise StdoutLostError

    def exit_code(self, code: int) -> int:
        """Return the final exit code of a command that itself returned `code`.

        If the reader has closed the pipe, the command ends without a message, as a program killed
        by SIGPIPE does.

        Raises:
            ResourceError: The results of a successful command could not be written.
        """
        self.finish()
        if self.failure is None or code not in _SUCCESSES:
            return code
        if isinstance(self.failure, BrokenPipeError):
            return _CLOSED_PIPE
        raise ResourceError(
            f"cannot write the results to stdout: {describe_os_error(self.failure)}",
            fix="redirect stdout to a file on a disk with free space, and run the command again; "
            "the files that the command wrote are complete",
        )
