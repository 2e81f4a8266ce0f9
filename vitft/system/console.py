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
import shlex
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
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


def chart(title: str, counts: Mapping[str, Sequence[int]], parts: Sequence[str]) -> None:
    """Log bars of images per class: one shade per part (training, validation)."""
    shades = ("█", "░", "▒")
    widest = max((len(visible(name)) for name in counts), default=0)
    most = max((sum(numbers) for numbers in counts.values()), default=1)
    legend = ", ".join(f"{shade} {part}" for shade, part in zip(shades, parts, strict=False))
    log.info(f"{title} ({legend})")
    for name, numbers in counts.items():
        bar = "".join(
            shade * round(40 * n / max(1, most)) for shade, n in zip(shades, numbers, strict=False)
        )
        detail = " + ".join(str(n) for n in numbers)
        log.info(f"  {visible(name):<{widest}}  {bar} {detail}")


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


def summary(
    run: Path, figures: Mapping[str, Any], *, status: str = "finished", is_latest: bool = True
) -> None:
    """What a finished or stopped run came to, and what to do next."""
    interrupted = status != "finished"
    if interrupted:
        folder = shlex.quote(visible(str(run)))
        warn(f"{status}; what was done is kept: vitft finetune --resume {folder}")
    if not figures:
        return
    low, high = figures["top1_interval"]
    result(
        f"accuracy {figures['top1']:.1%} (95 % interval {low:.1%} to {high:.1%}) on "
        f"{figures['images']} validation images; always naming the largest class gives "
        f"{figures['majority']:.1%}"
    )
    if figures["selected_on_validation"]:
        note(
            f"epoch {figures['best_epoch']} of {figures['epochs']} did best on the same images "
            "that are counted here, so the figure is slightly optimistic"
        )
    say_calibration(figures.get("calibration"))
    more = figures.get("cross_validation")
    if more:
        low, high = more["top1_interval"]
        result(
            f"cross-validated over {counted_of(more['images'], more['of'])} images: "
            f"{more['top1']:.1%} ({low:.1%} to {high:.1%}); nearest neighbours alone: "
            f"{figures['knn_top1']:.1%}"
        )
        gain = more["gain_from_twice"]
        if gain is not None:
            result(f"twice the images would give about {100 * gain:+.1f} points (extrapolated)")
    spots = more["weak_spots"][:2] if more else weakest(figures["per_class"])
    for spot in (spot for spot in spots if spot["recall"] < 1):
        taken = f", taken most for {visible(spot['taken_for'])}" if spot.get("taken_for") else ""
        result(f"weak spot: {visible(spot['class'])}, {spot['recall']:.1%} found{taken}")
    result(f"run: {visible(str(run))}")
    if not interrupted:
        which = "" if is_latest else f" --run {shlex.quote(visible(str(run)))}"
        note(f"next: vitft predict{which} IMAGE ...   or   vitft export --safetensors{which}")


def say_calibration(calibration: Mapping[str, Any] | None) -> None:
    """How far probabilities are from the truth, if a temperature was fitted to bring them there."""
    if not calibration or calibration["temperature"] == 1:
        return
    low, high = calibration["ece_interval"]
    result(
        f"calibration error of the probabilities {calibration['ece']:.1%} (95 % interval {low:.1%} "
        f"to {high:.1%}); {calibration['ece_before']:.1%} before calibration"
    )


def duration(seconds: float) -> str:
    """`40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def counted_of(some: int, total: int) -> str:
    """`all 1,200`, or `20,000 of 53,000`."""
    return f"all {total:,}" if some == total else f"{some:,} of {total:,}"


def weakest(per_class: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The class found least often among the validation images."""
    known = [{"class": n, "recall": row["recall"]} for n, row in per_class.items() if row["images"]]
    return sorted(known, key=lambda spot: spot["recall"])[:1]
