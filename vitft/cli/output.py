"""Output of results to stdout, and of notes, warnings and errors to stderr.

Control characters in human-readable text are escaped (`console.visible`), so that any file name can
be printed safely.
"""

import codecs
import contextlib
import errno
import io
import json
import os
import sys
import textwrap
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TextIO, cast

from vitft.system import console
from vitft.system.console import between_words, stderr, stdout, visible
from vitft.system.errors import ResourceError, VitftError
from vitft.system.text import describe_os_error, labelled, listing, redacted

# widths of the columns of a table that is wider than the terminal ---------------------------------

_GAP = 2
"""Number of spaces between columns."""
_MIN_TEXT = 16
"""Width to which a text column is shortened before another column is left out."""


def _column_widths(
    natural: Sequence[int], width: int, *, shorten: Sequence[int], drop: Sequence[int]
) -> dict[int, int]:
    """Return the widths of the columns that are shown, by index, given their `natural` widths.

    `shorten` are the columns whose text may be cut, `drop` those that may be left out if that is
    not enough, the least important first. The result may still be wider than `width`.
    """
    shown = dict(enumerate(natural))
    for dropped in range(len(drop) + 1):
        shown = {i: size for i, size in enumerate(natural) if i not in drop[:dropped]}
        for i in shorten:
            excess = _table_width(shown) - width
            if i in shown and excess > 0:
                shown[i] = max(min(shown[i], _MIN_TEXT), shown[i] - excess)
        if _table_width(shown) <= width:
            break
    return shown


def _wrapped_widths(
    headings: Mapping[int, str], content: Sequence[int], width: int, *, whole: Collection[int]
) -> dict[int, int]:
    """Return the widths of the columns, by index, in a table that is wrapped between words.

    `content` are the widths of the widest cells without the headings. The cells of the columns
    `whole` are not wrapped if the others can give way. The result is empty if the table needs no
    wrapping, or if it is wider than `width` even then.
    """
    natural = {i: max(len(name), content[i]) for i, name in headings.items()}
    if _table_width(natural) <= width:
        return {}
    words = {i: max(map(len, name.split()), default=0) for i, name in headings.items()}
    text = {i: max(words[i], min(natural[i], _MIN_TEXT)) for i in natural}
    cells = {i: max(words[i], content[i]) if i in whole else text[i] for i in natural}
    found = next((least for least in (cells, text, words) if _table_width(least) <= width), {})
    for i in sorted(found, key=lambda i: i not in whole):
        found[i] = min(natural[i], found[i] + width - _table_width(found))
    return found


def _table_width(widths: dict[int, int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths.values()) + _GAP * (len(widths) - 1)


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
        """Flush the stream for the last time, and discard text that could not be written.

        Otherwise, Python would try to write it again at exit, fail, and exit with code 120.
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


class _Stdout(SafeStream):
    """Stdout, to which a command writes its results."""

    def check(self) -> None:
        """Raise StdoutLostError if a write has failed."""
        if self.failure is not None:
            raise StdoutLostError

    def exit_code(self, code: int) -> int:
        """Return the final exit code of a command that itself returned `code`.

        If the reader has closed the pipe, there is no message, as of a program killed by SIGPIPE.

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
            fix="redirect stdout to a file on a disk with free space, and run the command again. "
            "The files that the command wrote are complete",
        )


# output of results to stdout, and of notes, warnings and errors to stderr -------------------------


@contextlib.contextmanager
def safe_streams() -> Iterator[_Stdout]:
    """Replace stdout and stderr with streams that survive write errors; yield the new stdout."""
    before = sys.stdout, sys.stderr
    results, messages = _Stdout(sys.stdout), SafeStream(sys.stderr)
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
    """Print text unchanged, for output such as JSON that programs read."""
    print(text)


def row(text: str) -> None:
    """Print one of many rows unchanged, and end the command if stdout cannot be written to."""
    print(text)
    if isinstance(sys.stdout, _Stdout):
        sys.stdout.check()


def as_json(fields: Mapping[str, Any]) -> None:
    """Print a mapping as indented JSON."""
    print(json.dumps(fields, indent=2, allow_nan=False))


def note(text: str) -> None:
    """Print one line of information, except with --quiet."""
    if console.shows_notes():
        stderr().print(between_words(visible(text), stderr()), markup=False)


def detail(text: str) -> None:
    """Print one line of information with --verbose."""
    if console.shows_details():
        stderr().print(between_words(visible(text), stderr()), markup=False)


def warn(text: str) -> None:
    """Print one line as a warning."""
    text = between_words(f"warning: {visible(text)}", stderr())
    stderr().print(text, markup=False, style="yellow")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    numbers: int = 0,
    remarks: int = 0,
    shorten: Sequence[str] = (),
    drop: Sequence[str | int] = (),
) -> None:
    """Print a table as a result; in a file or a pipe, each row is one line.

    The last columns are `numbers`, which are right-aligned, and then `remarks` in words. On a
    terminal that is too narrow, columns of `drop` (headings or indices, the least important first)
    are left out, and then headings and text columns are wrapped between words. With `shorten`, each
    row remains one line instead, and the text of these columns is cut, the least important first.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(visible(cell)) for cell in row] for row in rows]
    widest = [max((row[i].cell_len for row in cells), default=0) for i in range(len(columns))]
    natural = [max(len(name), size) for name, size in zip(columns, widest, strict=True)]
    after_numbers = len(columns) - remarks
    first_number = after_numbers - numbers
    is_list, width = bool(shorten), stdout().width
    shown = _column_widths(
        natural,
        width,
        shorten=[columns.index(name) for name in shorten],
        drop=[one if isinstance(one, int) else columns.index(one) for one in drop],
    )
    # Wrapped names and numbers are hard to read, so the other columns give way if they can.
    whole = [i for i in shown if i == 0 or first_number <= i < after_numbers]
    headings = {i: columns[i] for i in shown}
    wrapped_to = {} if is_list else _wrapped_widths(headings, widest, width, whole=whole)
    caption = Text(title) if title else None
    grid = Table(title=caption, title_justify="left", box=None, pad_edge=False)
    for i, size in shown.items():
        grid.add_column(
            Text(visible(columns[i])),  # not as markup: a class may be named "shoes [old]"
            justify="right" if first_number <= i < after_numbers else "left",
            overflow="ellipsis" if is_list else "fold",
            no_wrap=is_list,
            width=size if is_list and size < natural[i] else wrapped_to.get(i),
        )
    for row in cells:
        grid.add_row(*(row[i] for i in shown))
    stdout().print(grid)
    if len(shown) < len(columns):
        hidden = dict.fromkeys(name for i, name in enumerate(columns) if i not in shown)
        note(
            f"not shown, because the terminal is too narrow: {listing(hidden)}. To show all, "
            "append `| cat`"
        )


def fits_terminal(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a table fits on the terminal without wrapping."""
    from rich.cells import cell_len

    widths = {
        i: max(cell_len(visible(cell)) for cell in cells)
        for i, cells in enumerate(zip(columns, *rows, strict=True))
    }
    return _table_width(widths) <= stdout().width


def wrapped(text: str, *, indent: int) -> None:
    """Print text as a result, wrapped between words on a terminal; later lines are indented."""
    width = stdout().width
    for line in textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False):
        result(line)


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


def show_traceback() -> None:
    """Print the traceback of the current exception, with passwords and tokens in URLs redacted."""
    print(redacted(traceback.format_exc()), end="", file=sys.stderr)


def interrupted() -> None:
    """Report on stderr that the command was interrupted."""
    print("vitft: interrupted", file=sys.stderr)


def version() -> str:
    """Return the installed version. This imports `importlib.metadata`, which is slow."""
    import importlib.metadata

    return importlib.metadata.version("vitft")


def bug() -> None:
    """Print a request to report the traceback of an unexpected error."""
    print(
        f"vitft: this is a bug in vitft {version()}. Please report it with the traceback above",
        file=sys.stderr,
    )
