"""Output of the command line: results to stdout; log, progress and errors to stderr.

The rest of the package logs through `logging` and is silent in other programs; `show_log` is what
the command line adds. Nothing else in the package prints.

Text that may come from file or folder names goes through `visible`, so that it cannot move the
cursor, hide itself or break a line. rich is imported when first needed.
"""

import contextlib
import csv
import io
import json
import logging
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from vitft.system.errors import VitftError

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)

PLAIN_INTERVAL_S = 5.0
"""Seconds between progress lines when stderr is not a terminal."""


def prepare_streams() -> None:
    """Print what the terminal's encoding cannot show as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def visible(text: str) -> str:
    r"""`text` with control, direction and undecodable characters as escapes (\x1b, \u202e)."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in hidden else c
        for c in text
    )


@cache
def stdout() -> "Console":
    """Where results go."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 4096  # a pipe has no edge to fold at
    return Console(highlight=False, soft_wrap=True, width=width, emoji=False)


@cache
def stderr() -> "Console":
    """Where everything else goes."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def be_silent() -> None:
    """Print nothing but errors from now on: the main process of the job prints."""
    stdout().quiet = stderr().quiet = True


class LogHandler(logging.Handler):
    """Print log records to stderr, one line each, warnings in yellow.

    Hidden characters are escaped, so a record may hold any file name.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        text = visible(record.getMessage())
        if record.levelno >= logging.WARNING:
            stderr().print(f"warning: {text}", markup=False, style="yellow")
        else:
            stderr().print(text, markup=False)


def show_log(level: int = logging.INFO) -> None:
    """Print the package's log records of at least `level`, once however often it is called."""
    logger = logging.getLogger("vitft")
    logger.setLevel(level)
    if not is_shown():
        logger.addHandler(LogHandler())
        logger.propagate = False  # the caller's own handlers would print each line again


def hide_log() -> None:
    """Undo `show_log`."""
    logger = logging.getLogger("vitft")
    for handler in [h for h in logger.handlers if isinstance(h, LogHandler)]:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def is_shown() -> bool:
    """Whether `show_log` was called."""
    return any(isinstance(h, LogHandler) for h in logging.getLogger("vitft").handlers)


def note(text: str) -> None:
    """Print one line about what is being done."""
    stderr().print(text, markup=False)


def warn(text: str) -> None:
    """Print one line about something the user should know."""
    stderr().print(f"warning: {text}", markup=False, style="yellow")


def result(text: str) -> None:
    """One line of the answer."""
    stdout().print(text, markup=False)


def exact(text: str) -> None:
    """Text for a program on stdout, as it is."""
    print(text)


def fail(error: VitftError) -> None:
    """The error, with its next step, on two lines; line breaks inside become spaces."""
    problem, fix = (" ".join(visible_lines(part)) for part in (error.problem, error.fix))
    print(f"vitft: error: {problem}\n  fix: {fix}", file=sys.stderr)


def visible_lines(text: str) -> list[str]:
    """The lines of a message, each made visible."""
    return [visible(line.strip()) for line in text.split("\n") if line.strip()]


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", numbers: int = 0
) -> None:
    """A table on stdout; the last `numbers` columns are right-aligned."""
    from rich.table import Table

    grid = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        grid.add_column(
            column,
            justify="right" if i >= len(columns) - numbers else "left",
            overflow="fold",
        )
    for row in rows:
        from rich.text import Text

        grid.add_row(*(Text(visible(cell)) for cell in row))
    stdout().print(grid)


class Progress:
    """A live bar on a terminal, a log record now and then elsewhere; a context manager.

    `advance` may carry figures such as loss="0.42", shown beside speed and time left.
    """

    def __init__(self, label: str, total: int, *, unit: str = "images") -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = 0
        self.figures: dict[str, str] = {}
        self.started = self.printed = time.monotonic()
        self.live = is_shown() and stderr().is_terminal

    def __enter__(self) -> "Progress":
        if self.live:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(compact=True),
                console=stderr(),
                transient=True,
            )
            self.task = self.bar.add_task(self.label, total=self.total, figures="")
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.bar.stop()
        if self.done:
            log.info(self.line(final=True))

    def advance(self, count: int = 1, **figures: str) -> None:
        """Count `count` more units as done."""
        self.done += count
        self.figures |= figures
        if self.live:
            self.bar.update(self.task, completed=self.done, figures=self.figure_text())
        elif time.monotonic() - self.printed >= PLAIN_INTERVAL_S:
            self.printed = time.monotonic()
            log.info(self.line(final=False))

    def figure_text(self) -> str:
        """Figures and speed, such as `loss 0.42  61 images/s`."""
        seconds = max(1e-9, time.monotonic() - self.started)
        parts = [f"{name} {value}" for name, value in self.figures.items()]
        return "  ".join([*parts, f"{self.done / seconds:,.0f} {self.unit}/s"])

    def line(self, *, final: bool) -> str:
        """The state in one line, with the time taken or left."""
        seconds = time.monotonic() - self.started
        left = seconds / max(1, self.done) * (self.total - self.done)
        clock = f"in {seconds:.1f} s" if final else f"about {left:.0f} s left"
        return f"{self.label}: {self.done}/{self.total}  {self.figure_text()}  {clock}"


def json_line(fields: Mapping[str, Any]) -> str:
    """Strict JSON on one line; hidden characters become JSON's own escapes."""
    return json.dumps(fields, allow_nan=False)


def csv_line(cells: Sequence[object]) -> str:
    """One CSV row whose cells no spreadsheet takes for a formula (OWASP; CWE-1236)."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow([harmless(str(cell)) for cell in cells])
    return buffer.getvalue().removesuffix("\r\n")


def harmless(cell: str) -> str:
    """A cell that starts like a formula gets a leading apostrophe; numbers stay numbers."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    with contextlib.suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


@contextlib.contextmanager
def quiet_pipe() -> Iterator[None]:
    """End quietly when the reader of stdout has gone, as in `vitft predict ... | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout again at exit; give it somewhere to go.
        with contextlib.suppress(OSError):
            sys.stdout = open("/dev/null", "w")  # noqa: SIM115, PTH123
        raise SystemExit(141) from None


def interrupted() -> None:
    """The last line after Ctrl-C."""
    print("vitft: interrupted", file=sys.stderr)


def bug() -> None:
    """What to do with a traceback."""
    print(f"vitft: this is a bug in vitft {version('vitft')}; please report it", file=sys.stderr)
