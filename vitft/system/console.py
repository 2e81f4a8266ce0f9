"""Terminal output: the package's log and progress bars.

When used as a library, the package only logs through `logging`; the command line calls `show_log`.
Results are printed by `vitft.cli.output`.
"""

import contextlib
import io
import logging
import re
import sys
import textwrap
import threading
import time
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

from vitft.system.text import duration, redacted

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)

_PLAIN_INTERVAL_S = 5.0  # seconds between progress records in the log
_QUIET_S = 1.5  # seconds after which a step without a count is shown
_MEASURED_S = 3.0  # seconds of progress on which the first estimate of the time left rests
NOTE = 15  # level of log records that are shown with -v, and otherwise counted
_HELD_SPACE = "\x00"  # stands for a space at which a line is not broken; `visible` escapes others


def visible(text: str) -> str:
    r"""Escape control characters (\x1b), text-direction marks (\u202e) and undecodable bytes.

    This prevents file names from moving the cursor, hiding text or breaking lines. Passwords in
    URLs are removed.
    """
    hidden, text = ("Cc", "Cf", "Cs", "Zl", "Zp"), redacted(text)
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in hidden else c
        for c in text
    )


def between_words(text: str, console: "Console", *, indent: str = "  ") -> str:
    """Break a line between words so that it fits a terminal; further lines are indented.

    Commands are not broken, so that they can be copied: a command in backquotes is one word, and so
    is any other with the text after it, and with a single word before it, such as `Next`.
    """
    if not console.is_terminal or len(text) <= console.width:
        return text
    commands = re.compile(r"`[^`]*`|(?:^\S* +)?vitft .*")
    held = commands.sub(lambda command: command[0].replace(" ", _HELD_SPACE), text)
    return textwrap.fill(
        held,
        console.width,
        subsequent_indent=indent,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    ).replace(_HELD_SPACE, " ")


@cache
def stdout() -> "Console":
    """Return the console for results."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 4096  # do not wrap lines in a pipe
    return Console(highlight=False, soft_wrap=True, width=width, emoji=False)


@cache
def stderr() -> "Console":
    """Return the console for the log, progress and warnings."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def _log_stream() -> TextIO:
    """Return the stream for the log and progress: stderr, also behind a `DiscardingStream`."""
    return getattr(sys.stderr, "rich_proxied_file", sys.stderr) or io.StringIO()  # it may be closed


class DiscardingStream(io.StringIO):
    """Replacement for stderr that discards what libraries print; the log and progress bypass it."""

    def __init__(self) -> None:
        super().__init__()
        self.rich_proxied_file = _log_stream()  # rich writes to it instead


class LogHandler(logging.Handler):
    """Handler that prints log records to stderr, with control characters escaped."""

    is_silent = False
    shown = logging.INFO  # level from which records are shown
    hidden = 0  # number of notes that were not shown

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record on one line; rich is imported only for a terminal."""
        if record.levelno < self.shown:
            LogHandler.hidden += 1
            return
        is_warning = record.levelno >= logging.WARNING
        text = f"{'warning: ' * is_warning}{visible(record.getMessage())}"
        with contextlib.suppress(OSError):  # a log that cannot be written must not end a run
            if _log_stream().isatty():
                text, style = between_words(text, stderr()), "yellow" if is_warning else None
                stderr().print(text, markup=False, style=style)
            elif not self.is_silent:
                _log_stream().write(f"{text}\n")


def show_log(level: int = logging.INFO) -> None:
    """Print the package's log records of at least `level` to stderr.

    WARNING shows no progress. A second call only sets the level.
    """
    logger = logging.getLogger("vitft")
    if logger.level != (wanted := NOTE if level == logging.INFO else level):
        logger.setLevel(wanted)  # which clears the caches of every logger
    LogHandler.shown, LogHandler.hidden = level, 0
    if not _is_shown():
        logger.addHandler(LogHandler())
        logger.propagate = False  # handlers of the root logger would print each line again


def shows_notes() -> bool:
    """Return whether notes and progress are shown in addition to warnings and results."""
    return _is_shown() and log.isEnabledFor(logging.INFO)


def shows_details() -> bool:
    """Return whether details are also shown (`--verbose`)."""
    return _is_shown() and log.isEnabledFor(logging.DEBUG)


def _is_shown() -> bool:
    """Return whether `show_log` has been called."""
    return any(isinstance(h, LogHandler) for h in logging.getLogger("vitft").handlers)


_RUNNING: list[tuple[threading.Event, threading.Thread]] = []
"""End and thread of each running `quiet_step`."""


@contextlib.contextmanager
def quiet_step(label: str, *, after: float = _QUIET_S) -> Iterator[None]:
    """Show that a step without a count is running if it takes longer than `after` seconds.

    A terminal shows a spinner. Otherwise, the log has a line, and then one every few seconds.
    """
    started, ended = time.monotonic(), threading.Event()
    is_live = shows_notes() and _log_stream().isatty()
    if not (after or is_live):
        log.info(label)

    def show() -> None:
        if ended.wait(after):
            return
        if is_live:
            from rich.markup import escape

            with stderr().status(escape(label)):
                ended.wait()
        elif after:
            log.info(label)
        while not ended.wait(_PLAIN_INTERVAL_S):
            log.info(f"{label}: still running after {time.monotonic() - started:.0f} s")

    thread = threading.Thread(target=show, daemon=True)
    _RUNNING.append((ended, thread))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _RUNNING.remove((ended, thread))


class Progress:
    """Context manager that shows progress: a bar on a terminal, otherwise periodic log records.

    `total` is None if it is unknown. `done` units were done by an interrupted run and do not count
    in the rate. The final line has the level `level`, or is a detail after a short time.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        *,
        unit: str = "images",
        done: int = 0,
        level: int = logging.INFO,
    ) -> None:
        self.label, self.total, self.unit, self.level = label, total, unit, level
        self.before = self.done = done
        self.skipped = 0
        self.metrics: dict[str, str] = {}
        self.started = self.printed = time.monotonic()
        self.first: tuple[float, int] | None = None  # time and units done after the first `advance`
        self.live = shows_notes() and _log_stream().isatty()

    def __enter__(self) -> "Progress":
        if self.live:
            for ended, thread in _RUNNING:  # a terminal shows one bar at a time
                ended.set()
                thread.join()
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar
            from rich.table import Column

            whole, wide = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=2)
            self.bar = Bar(
                TextColumn("{task.description}", table_column=whole, markup=False),
                BarColumn(bar_width=None, table_column=Column(min_width=8, ratio=1)),
                TextColumn("{task.fields[count]}", table_column=whole),
                TextColumn("{task.fields[left]} ", table_column=whole),
                TextColumn("{task.fields[metrics]}", table_column=wide),
                console=stderr(),
                transient=True,
                expand=True,
            )
            self.task = self.bar.add_task(
                self.label, total=self.total, completed=self.done, **self.shown()
            )
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.bar.stop()
        if self.done > self.before:
            is_long = time.monotonic() - self.started >= _PLAIN_INTERVAL_S
            log.log(self.level if is_long else logging.DEBUG, self.line(final=True))

    def advance(self, count: int = 1, **metrics: str) -> None:
        """Add `count` to the number of units done, and show metrics such as loss="0.42"."""
        self.done += count
        self.metrics |= metrics
        self.first = self.first or (time.monotonic(), self.done)
        if self.live:
            self.bar.update(self.task, completed=self.done, **self.shown())
            return
        is_complete = self.total is not None and self.done >= self.total
        if not is_complete and time.monotonic() - self.printed >= _PLAIN_INTERVAL_S:
            self.printed = time.monotonic()
            log.info(self.line(final=False))

    def skip(self, count: int) -> None:
        """Do not count `count` of the units in the rate, because they took no time."""
        self.skipped = count
        self.before = min(self.done, self.before + count)

    def shown(self) -> dict[str, Any]:
        """Return texts on the progress: the `count`, e.g. `120/600`, the `metrics` and time `left`.

        The estimate of the time left excludes the first `advance`, in which caches are filled.
        """
        now, new = time.monotonic(), self.done - self.before
        speed = new / max(1e-9, now - self.started)
        metrics = [f"{name} {value}" for name, value in self.metrics.items()]
        if new:
            metrics.append(f"{speed:,.{0 if speed >= 10 else 1}f} {self.unit}/s")
        left, (first, before) = "", self.first or (now, self.done)
        if self.total is not None and now - first >= _MEASURED_S and self.done > before:
            seconds = (now - first) / (self.done - before) * (self.total - self.done)
            left = f"{duration(seconds)} left"
        count = str(self.done) if self.total is None else f"{self.done}/{self.total}"
        return {"count": count, "metrics": "  ".join(metrics), "left": left}

    def line(self, *, final: bool) -> str:
        """Return the progress on one line, with the time left or, if `final`, the time taken."""
        shown = self.shown()
        left = f"about {shown['left']}" * bool(shown["left"])
        clock = f"in {time.monotonic() - self.started:.1f} s" if final else left
        new = f", {self.done - self.before:,} of them new" if self.skipped else ""
        parts = (f"{self.label}: {shown['count']}{new}", shown["metrics"], clock)
        return "  ".join(filter(None, parts))
