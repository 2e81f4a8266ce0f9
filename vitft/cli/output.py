"""Output of results to stdout, and of notes, warnings and errors to stderr.

Control characters in human-readable text are escaped (`console.visible`), so that any file name can
be printed safely.
"""

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO, cast

from vitft.cli.streams import SafeStream, Stdout
from vitft.system import console
from vitft.system.console import stderr, stdout, visible
from vitft.system.errors import VitftError
from vitft.system.redaction import redacted


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
    stdout().print(visible(text), markup=False, style=style)


def rule() -> None:
    """On a terminal, print a line that separates the results from the log."""
    if sys.stdout.isatty():
        stdout().rule(style="dim")


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
        stderr().print(visible(text), markup=False)


def warn(text: str) -> None:
    """Print one line as a warning."""
    stderr().print(f"warning: {visible(text)}", markup=False, style="yellow")


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", numbers: int = 0
) -> None:
    """Print a table as a result; the last `numbers` columns are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        is_number = i >= len(columns) - numbers
        grid.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(visible(cell)) for cell in row))
    stdout().print(grid)


def fail(error: VitftError) -> None:
    """Print an error and its fix, each on one line, with line breaks replaced by spaces."""
    problem, fix = (
        " ".join(visible(line.strip()) for line in part.split("\n") if line.strip())
        for part in (error.problem, error.fix)
    )
    print(f"vitft: error: {problem}\n  fix: {fix}", file=sys.stderr)


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
