"""Output of results to stdout, and of notes, warnings and errors to stderr.

Control characters in human-readable text are escaped (`console.visible`), so that any file name can
be printed safely.
"""

import codecs
import contextlib
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TextIO, cast

from vitft.system.console import between_words, stderr, stdout, visible
from vitft.system.errors import ResourceError, VitftError
from vitft.system.text import describe_os_error, labelled, listing

# standard streams that survive a full disk, a closed descriptor and a closed pipe -----------------

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
    """A text stream, perhaps a closed one, that drops what fails and keeps the first error."""

    def __init__(self, inner: TextIO | None) -> None:
        closed = os.open(os.devnull, os.O_RDONLY) if inner is None else -1  # fails on writing
        self.inner = inner or os.fdopen(closed, "w", encoding="utf-8", newline="")
        self.failure: OSError | None = None
        self.is_used = False
        if isinstance(inner, io.TextIOWrapper):
            codecs.register_error("vitft", _replace_character)
            inner.reconfigure(errors="vitft")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of any stream
        return getattr(self.inner, name)

    def write(self, text: str) -> int:
        """Write text, or drop it if the stream fails."""
        self.is_used = True
        self._keep_failure(self.inner.write, text)
        return len(text)

    def flush(self) -> None:
        """Write the buffered text, or keep the error in `failure`."""
        self._keep_failure(self.inner.flush)

    def _keep_failure(self, write: Callable[..., object], *text: str) -> None:
        """Call a method of the stream; keep the first error in `failure` instead of raising it."""
        try:
            write(*text)
        except (OSError, ValueError) as error:  # ValueError: a library has closed the stream
            closed = OSError(errno.EBADF, "it is closed")
            self.failure = self.failure or (error if isinstance(error, OSError) else closed)

    def finish(self) -> None:
        """Flush the stream for the last time, and discard text that could not be written.

        Otherwise, Python would try to write it again at exit, fail, and exit with code 120.
        """
        self.flush()
        if self.failure is not None:
            with contextlib.suppress(OSError, ValueError):  # closed, or without a descriptor
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.inner.fileno())
                os.close(null)
                self.inner.flush()

    def check(self) -> None:
        """Raise StdoutLostError if a write has failed."""
        if self.failure is not None:
            raise StdoutLostError

    def exit_code(self, code: int) -> int:
        """Return the final exit code of a command that returned `code` and writes to this stdout.

        Results of a successful command that could not be written are a ResourceError. There is no
        message if the reader has closed the pipe, as of a program killed by SIGPIPE.
        """
        self.finish()
        if self.failure is None or code not in _SUCCESSES:
            return code
        if isinstance(self.failure, BrokenPipeError):
            return _CLOSED_PIPE
        raise ResourceError(
            f"cannot write the results to stdout: {describe_os_error(self.failure)}",
            fix="redirect stdout to a file on a disk with free space, and run the command again. "
            "The files that the command wrote are complete",
        )


# output of results to stdout, and of notes, warnings and errors to stderr -------------------------


@contextlib.contextmanager
def safe_streams() -> Iterator[SafeStream]:
    """Replace stdout and stderr with streams that survive write errors; yield the new stdout."""
    before = sys.stdout, sys.stderr
    results, messages = SafeStream(sys.stdout), SafeStream(sys.stderr)
    sys.stdout, sys.stderr = cast("TextIO", results), cast("TextIO", messages)
    try:
        yield results
    finally:
        results.finish()
        messages.finish()
        sys.stdout, sys.stderr = before


def result(text: str, *, style: str | None = None) -> None:
    """Print one line of results; on a terminal, apply the given rich style."""
    stdout().print(between_words(visible(text), stdout()), markup=False, style=style)


def rows(found: Sequence[tuple[str, str]], *, strong: str = "") -> None:
    """Print an empty line, then labels and texts in two columns; the row `strong` is bold."""
    result("")
    for label, text in found:
        shown = between_words(visible(labelled(label, text)), stdout(), indent=labelled("", ""))
        style = "bold" if strong and label == strong else None
        stdout().print(shown, markup=False, style=style)


def exact(text: str) -> None:
    """Print text unchanged, and end the command if stdout cannot be written to."""
    print(text)
    if isinstance(sys.stdout, SafeStream):
        sys.stdout.check()


def as_json(fields: Mapping[str, Any]) -> None:
    """Print a mapping as indented JSON."""
    exact(json.dumps(fields, indent=2, allow_nan=False))


log = logging.getLogger(__name__)
note, detail, warn = log.info, log.debug, log.warning
"""Print one line to stderr: except with --quiet, only with --verbose, or as a warning."""

_MIN_TEXT = 16  # width to which a column of text is wrapped before another is left out


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    numbers: int = 0,
    remarks: int = 0,
    drop: Sequence[int] = (),
) -> None:
    """Print a table as a result; in a file or a pipe, each row is one line.

    The last columns are `numbers`, which are right-aligned, and then `remarks` in words. On a
    terminal that is too narrow, headings and text are wrapped between words, and then columns of
    `drop` (their indices, the least important first) are left out.
    """
    from rich.table import Table
    from rich.text import Text

    cells = {
        i: [visible(cell) for cell in column]
        for i, column in enumerate(zip(columns, *rows, strict=True))
    }
    after_numbers = len(columns) - remarks
    are_numbers = range(after_numbers - numbers, after_numbers)
    whole = (0, *are_numbers)  # wrapped names and numbers are hard to read
    for one in drop:
        if not _fitting_widths(cells, whole):
            del cells[one]
    widths = _fitting_widths(cells, whole) or _fitting_widths(cells, are_numbers)
    widths = widths or _fitting_widths(cells, whole, breaks_words=True)
    grid = Table(
        title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False
    )
    for i, (heading, *_) in cells.items():
        justify: Literal["left", "right"] = "right" if i in are_numbers else "left"
        grid.add_column(Text(heading), justify=justify, overflow="fold", width=widths.get(i))
    for row in zip(*(column[1:] for column in cells.values()), strict=True):
        grid.add_row(*map(Text, row))
    stdout().print(grid)
    if hidden := dict.fromkeys(name for i, name in enumerate(columns) if i not in cells):
        note(
            f"not shown, because the terminal is too narrow: {listing(hidden)}. To show all, "
            "append `| cat`"
        )


def _fitting_widths(
    cells: Mapping[int, Sequence[str]], whole: Collection[int], *, breaks_words: bool = False
) -> dict[int, int]:
    """Return the widths at which columns (heading, *cells) fit the terminal, or {} if none do.

    Cells of the columns `whole` are not wrapped, others only between words unless `breaks_words`.
    """
    from rich.cells import cell_len

    least, natural = dict[int, int](), {i: max(map(cell_len, cells[i])) for i in cells}
    for i, (heading, *column) in cells.items():
        words = [] if breaks_words else " ".join(column).split()
        text = 0 if i in whole else min(_MIN_TEXT, natural[i])
        parts = [*heading.split(), *(column if i in whole else words)]
        least[i] = max([text, *map(cell_len, parts)])
    spare = stdout().width - sum(least.values()) - 2 * (len(least) - 1)
    if spare < 0:
        return {}
    for i in sorted(least, key=lambda i: i not in whole):
        more = min(spare, natural[i] - least[i])
        least[i], spare = least[i] + more, spare - more
    return least


def fail(error: VitftError) -> None:
    """Print an error and its fix, each on one line, which a terminal breaks between words."""
    problem, fix = (
        " ".join(visible(line.strip()) for line in part.split("\n") if line.strip())
        for part in (error.problem, error.fix)
    )
    lines = [f"vitft: error: {problem}", f"  fix: {fix}"]
    if sys.stderr is not None and sys.stderr.isatty():  # only a terminal needs rich
        lines = [between_words(line, stderr(), indent="    ") for line in lines]
    print("\n".join(lines), file=sys.stderr)
