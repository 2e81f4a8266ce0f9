"""Output of results to stdout, and of notes, warnings and errors to stderr.

Control characters in human-readable text are escaped (`console.visible`), so that any file name can
be printed safely.
"""

import contextlib
import json
import sys
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO, cast

from vitft.cli.column_widths import column_widths, table_width, wrapped_widths
from vitft.cli.streams import SafeStream, Stdout
from vitft.system import console
from vitft.system.console import between_words, stderr, stdout, visible
from vitft.system.errors import VitftError
from vitft.system.redaction import redacted
from vitft.system.text import labelled, listing


@contextlib.contextmanager
def safe_streams() -> Iterator[Stdout]:
    """Replace stdout and stderr with streams that survive write errors; yield the new stdout."""
    before = sys.stdout, sys.stderr
    results, messages = Stdout(sys.stdout), SafeStream(sys.stderr)
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
    """Print labels with the texts beside them after an empty line; the row `strong` is bold.

    On a terminal, texts that are too long continue below their beginning.
    """
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
    if isinstance(sys.stdout, Stdout):
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

    On a terminal that is too narrow, columns of `drop` are left out, and then headings and text
    columns are wrapped between words. With `shorten`, each row remains one line instead.

    Args:
        columns: Headings.
        rows: Cells of each row.
        title: Line above the table.
        numbers: Number of columns, counted from the right, that are right-aligned.
        remarks: Number of columns of text to the right of these.
        shorten: Headings of columns whose text may be cut, the least important first.
        drop: Headings or indices of columns that may be left out, the least important first.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(visible(cell)) for cell in row] for row in rows]
    widest = [max((row[i].cell_len for row in cells), default=0) for i in range(len(columns))]
    natural = [max(len(name), size) for name, size in zip(columns, widest, strict=True)]
    after_numbers = len(columns) - remarks
    first_number = after_numbers - numbers
    is_list, width = bool(shorten), stdout().width
    shown = column_widths(
        natural,
        width,
        shorten=[columns.index(name) for name in shorten],
        drop=[one if isinstance(one, int) else columns.index(one) for one in drop],
    )
    # Wrapped names and numbers are hard to read, so the other columns give way if they can.
    whole = [i for i in shown if i == 0 or first_number <= i < after_numbers]
    headings = {i: columns[i] for i in shown}
    wrapped_to = {} if is_list else wrapped_widths(headings, widest, width, whole=whole)
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
        note(f"not shown, because the terminal is too narrow: {listing(hidden)}; `| cat` shows all")


def fits_terminal(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a table fits on the terminal without wrapping."""
    from rich.cells import cell_len

    widths = {
        i: max(cell_len(visible(cell)) for cell in cells)
        for i, cells in enumerate(zip(columns, *rows, strict=True))
    }
    return table_width(widths) <= stdout().width


def wrapped(text: str, *, indent: int) -> None:
    """Print text as a result, wrapped between words on a terminal; later lines are indented."""
    width = stdout().width
    for line in textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False):
        result(line)


def fail(error: VitftError) -> None:
    """Print an error and its fix, each on one line, with line breaks replaced by spaces.

    On a terminal, the lines are broken between words.
    """
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
        f"vitft: this is a bug in vitft {version()}; please report it with the traceback above",
        file=sys.stderr,
    )
