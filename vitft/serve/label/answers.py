"""Answers of `vitft label`: a CSV file to which each answer is appended before it is confirmed.

The file has the columns path, label and chosen, so it is a table of labels that `vitft finetune`
reads. Data is only appended or, to undo an answer, truncated. A killed process therefore loses no
confirmed answer; at most, its last line is incomplete.
"""

import codecs
import csv
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from vitft.data.parts import AUDIT, CHOSEN, CONFIRMED, PICKED, SKIPPED
from vitft.data.table import encode_table
from vitft.system.errors import DataError, LockedError, RunError
from vitft.system.files import read_regular, writing
from vitft.system.text import count, shell_join

_COLUMNS = ("path", "label", CHOSEN)
_KINDS = (PICKED, CONFIRMED, AUDIT, SKIPPED)
_MAX_ANSWER_BYTES = 2**28
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)  # on Windows: keep line endings
_NEW_FILE = "choose another file with --out"


class Answer(NamedTuple):
    """One line of the file."""

    path: str
    """Path of the picture as written in the file."""
    label: str
    """Class name; empty if the picture was skipped."""
    chosen: str
    """How the picture was chosen: one of `_KINDS`."""


class AnswerFile:
    """Open answer file, locked against other processes.

    Raises:
        DataError: The file has other columns, or a line is invalid.
        LockedError: Another process has the file open.
        RunError, ResourceError: The file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        with writing(path):
            self.descriptor = os.open(path, _FLAGS, 0o666)
        try:
            _lock_file(self.descriptor, path)
            self.load()
        except BaseException:
            os.close(self.descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)  # this also releases the lock

    def load(self) -> None:
        """Read the answers; add the header to an empty file, and remove an incomplete last line."""
        try:
            data = read_regular(self.path, limit=_MAX_ANSWER_BYTES)
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error}", fix=_NEW_FILE) from error
        self.answers, starts, self.end = _read_answers(data, self.path)
        self.steps = [[start] for start in starts]
        """For each step that can be undone, the offsets of its lines."""
        if self.end < len(data):
            self.notes.append(f"{self.path}: removed an incomplete last line")
            with writing(self.path):
                os.ftruncate(self.descriptor, self.end)
        if not data.strip():
            self.write(encode_table(_COLUMNS, []))
        elif self.end and data[self.end - 1 : self.end] != b"\n":
            self.write(b"\n")
        self.identity = self.find_identity()

    def append(self, answers: Sequence[Answer]) -> None:
        """Append answers as one step, and return once they have been written to the disk.

        Raises:
            DataError: Another program has changed the file.
            RunError, ResourceError: The file cannot be written; it is unchanged.
        """
        self.check_unchanged()
        lines = [encode_table(answer, []) for answer in answers]
        starts = [self.end + sum(map(len, lines[:i])) for i in range(len(lines))]
        try:
            self.write(b"".join(lines))
        finally:
            self.identity = self.find_identity()
        self.answers += answers
        self.steps.append(starts)

    def undo(self) -> list[Answer]:
        """Remove the answers of the last step, if any, from the file and return them.

        The answers of earlier sessions are removed one by one.

        Raises:
            DataError: Another program has changed the file.
            RunError, ResourceError: The file cannot be written.
        """
        if not self.steps:
            return []
        self.check_unchanged()
        starts = self.steps[-1]
        with writing(self.path):
            os.ftruncate(self.descriptor, starts[0])
            os.fsync(self.descriptor)
        self.end = starts[0]
        self.identity = self.find_identity()
        self.steps.pop()
        removed = self.answers[-len(starts) :]
        del self.answers[-len(starts) :]
        return removed

    def write(self, data: bytes) -> None:
        """Append data to the file and flush it to the disk; on an error, remove the data again.

        Raises:
            RunError, ResourceError: The file cannot be written.
        """
        with writing(self.path):
            try:
                os.lseek(self.descriptor, self.end, os.SEEK_SET)
                view = memoryview(data)
                while view:
                    view = view[os.write(self.descriptor, view) :]
                os.fsync(self.descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self.descriptor, self.end)
                raise
        self.end += len(data)

    def find_identity(self) -> tuple[int, ...]:
        """Return numbers that change if another program changes or replaces the file."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def check_unchanged(self) -> None:
        """Raise a DataError if another program has changed, replaced or deleted the file."""
        if self.find_identity() != self.identity:
            raise DataError(
                f"another program has changed {self.path}",
                fix="restart vitft label to continue from the current file",
            )


def _lock_file(descriptor: int, path: Path) -> None:
    """Lock an open file until it is closed; on Windows, there is no lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pid = lock_holder(descriptor)
        find = shell_join(["lsof", str(path)])
        stop = f"stop process {pid}" if pid else f"stop the process that `{find}` lists"
        raise LockedError(
            f"another vitft label process{f' ({pid})' if pid else ''} is using {path}",
            fix=f"{stop}, or choose another file with --out",
        ) from error


def lock_holder(descriptor: int, locks: Path = Path("/proc/locks")) -> str:
    """Return the number of the process that has locked an open file; empty if it is not known.

    Linux lists the locks of its processes, e.g. `1: FLOCK ADVISORY WRITE 4711 fe:00:131 0 EOF`.
    """
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError):
        for line in locks.read_text(encoding="ascii").splitlines():
            _, kind, _, _, pid, file, *_ = line.split() + [""] * 6
            if (kind, file) == ("FLOCK", place) and int(pid) > 0:
                return pid
    return ""


def _read_answers(data: bytes, path: Path) -> tuple[list[Answer], list[int], int]:
    """Return the answers, the offset of each one's line, and the end of the last complete line."""
    answers: list[Answer] = []
    starts: list[int] = []
    labels: dict[str, str] = {}
    begin = len(codecs.BOM_UTF8) * data.startswith(codecs.BOM_UTF8)
    header, end, number = False, begin, 1
    for start, line, cells in _split_lines(data, begin):
        is_last, has_break = start + len(line) == len(data), line.endswith(b"\n")
        if not header and cells:
            if [cell.strip().lower() for cell in cells] != [*_COLUMNS]:
                raise DataError(
                    f"{path} was not written by vitft label: its columns are "
                    f"{', '.join(cells)[:100]} instead of {', '.join(_COLUMNS)}",
                    fix=_NEW_FILE,
                )
            header = True
        elif cells:
            problem = _problem_with(cells, labels)
            if problem and is_last and not has_break:
                break
            if problem:
                raise DataError(
                    f"{path}, line {number}: {problem}", fix="correct or remove the line"
                )
            answers.append(Answer(*cells))
            starts.append(start)
            labels[cells[0]] = cells[1]
        end = start + len(line)
        number += line.count(b"\n")
    return answers, starts, end


def _split_lines(data: bytes, begin: int) -> Iterator[tuple[int, bytes, list[str]]]:
    """Yield the offset, bytes and cells of CSV lines: none if blank, an empty one if invalid."""
    start = begin
    while start < len(data):
        end, quotes, is_open = start, 0, True
        while is_open:
            found = data.find(b"\n", end)
            stop = len(data) if found < 0 else found + 1
            quotes += data.count(b'"', end, stop)
            end, is_open = stop, quotes % 2 == 1 and found >= 0
        text = data[start:end].decode("utf-8", "surrogateescape")
        cells: list[str] = []
        if text.strip():
            try:
                cells = next(csv.reader(io.StringIO(text, newline=""), strict=True))
            except csv.Error:
                cells = [""]
        yield start, data[start:end], cells
        start = end


def _problem_with(cells: Sequence[str], labels: dict[str, str]) -> str:
    """Return the problem with a line, if any, given the labels of earlier lines by path."""
    if len(cells) != len(_COLUMNS):
        return f"found {count(len(cells), 'cell')} instead of {len(_COLUMNS)}"
    path, label, chosen = cells
    if not path:
        return "the path is empty"
    if chosen not in _KINDS:
        known = f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}"
        return f"the column {CHOSEN} contains {chosen[:40]!r} instead of {known}"
    if bool(label.strip()) == (chosen == SKIPPED):
        return "a skipped picture has a label" if label.strip() else "the label is empty"
    if labels.get(path, label) != label:
        before, here = labels[path] or SKIPPED, label or SKIPPED
        return f"{path} has two labels: {before} in an earlier line, {here} in this one"
    return ""
