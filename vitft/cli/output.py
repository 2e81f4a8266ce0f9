"""Printing: results to stdout, notes, warnings and errors to stderr.

Control characters in text are escaped (`console.visible`), so it may contain any file name.
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence

from vitft.system.console import stderr, stdout, visible
from vitft.system.errors import VitftError


def prepare_streams() -> None:
    """Print what the terminal's encoding cannot represent as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def result(text: str) -> None:
    """Print one line of a result."""
    stdout().print(visible(text), markup=False)


def exact(text: str) -> None:
    """Print text for programs unchanged, such as JSON."""
    print(text)


def note(text: str) -> None:
    """Print one line of information."""
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
    """Print an error and its fix on two lines; line breaks inside become spaces."""
    problem, fix = (
        " ".join(visible(line.strip()) for line in part.split("\n") if line.strip())
        for part in (error.problem, error.fix)
    )
    print(f"vitft: error: {problem}\n  fix: {fix}", file=sys.stderr)


def interrupted() -> None:
    """Print the last line after Ctrl-C."""
    print("vitft: interrupted", file=sys.stderr)


def version() -> str:
    """Return the installed version; `importlib.metadata` is slow to import."""
    import importlib.metadata

    return importlib.metadata.version("vitft")


def bug() -> None:
    """Print what to do with the traceback of an unexpected error."""
    print(f"vitft: this is a bug in vitft {version()}; please report it", file=sys.stderr)


@contextlib.contextmanager
def quiet_pipe() -> Iterator[None]:
    """Exit without a traceback when the reader of stdout is gone, as after `vitft ... | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout again at exit, which must not fail.
        with contextlib.suppress(OSError):
            sys.stdout = open("/dev/null", "w")  # noqa: SIM115, PTH123
        raise SystemExit(141) from None
