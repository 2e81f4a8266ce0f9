"""Answers of `vitft label`: a CSV file to which each answer is appended before it is confirmed.

The file has the columns path, label and chosen, so it is a table of labels that `vitft finetune`
reads. Data is only appended or, to undo an answer, truncated. A killed process therefore loses no
confirmed answer; at most, its last line is incomplete.
"""

import csv
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from vitft.data.parts import AUDIT, CHOSEN, CONFIRMED, PICKED, SKIPPED
from vitft.data.table import encode_table
from vitft.system.errors import DataError, LockedError
from vitft.system.files import read_regular, try_lock, writing
from vitft.system.text import count, shell_join

_COLUMNS = ("path", "label", CHOSEN)
_KINDS = (PICKED, CONFIRMED, AUDIT, SKIPPED)
_MAX_ANSWER_BYTES = 2**28
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)  # on Windows: keep line endings


_Answer = tuple[str, str, str]
"""Path of a picture as written in the file, its class (empty if it was skipped), and how it was
chosen: one of `_KINDS`."""


class AnswerFile:
    """Open answer file, locked against other processes; a DataError names an invalid line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.is_new = not path.exists()
        with writing(path):
            self.descriptor = os.open(path, _FLAGS, 0o666)
        try:
            if not try_lock(self.descriptor):
                find = shell_join(["lsof", str(path)])
                raise LockedError(
                    f"another vitft label process is using {path}",
                    fix=f"stop the process that `{find}` lists, or choose another file with --out",
                )
            self.load()
        except BaseException:
            os.close(self.descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if any(error) and self.is_new and not self.answers:  # e.g. the port is in use
            with suppress(OSError):  # Windows does not remove an open file
                self.path.unlink()
        os.close(self.descriptor)  # this also releases the lock

    def load(self) -> None:
        """Read the answers; add the header to an empty file, and remove an incomplete last line."""
        with writing(self.path):
            data = read_regular(self.path, limit=_MAX_ANSWER_BYTES)
        self.answers, starts, self.end = _read_answers(data, self.path)
        self.steps = [(start, 1) for start in starts]
        """For each step that can be undone, the offset of its first line and their number."""
        if self.end < len(data):
            self.notes.append(f"{self.path}: removed an incomplete last line")
            with writing(self.path):
                os.ftruncate(self.descriptor, self.end)
        if not data.strip():
            self.write(b"".join(encode_table(_COLUMNS, [])))
        elif self.end and data[self.end - 1 : self.end] != b"\n":
            self.write(b"\n")
        self.identity = self.find_identity()

    def append(self, answers: Sequence[_Answer]) -> None:
        """Append answers as one step, and return once they have been written to the disk."""
        self.check_unchanged()
        step = self.end, len(answers)
        try:
            self.write(b"".join(line for answer in answers for line in encode_table(answer, [])))
        finally:
            self.identity = self.find_identity()
        self.answers += answers
        self.steps.append(step)

    def undo(self) -> list[_Answer]:
        """Remove the last step, or one answer of an earlier session, and return its answers."""
        if not self.steps:
            return []
        self.check_unchanged()
        start, number = self.steps[-1]
        with writing(self.path):
            os.ftruncate(self.descriptor, start)
            os.fsync(self.descriptor)
        self.end = start
        self.identity = self.find_identity()
        self.steps.pop()
        removed = self.answers[-number:]
        del self.answers[-number:]
        return removed

    def write(self, data: bytes) -> None:
        """Append data to the file and flush it to the disk; on an error, remove the data again."""
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


def _read_answers(data: bytes, path: Path) -> tuple[list[_Answer], list[int], int]:
    """Return the answers, the offset of each one's line, and the end of the last complete line."""
    answers: list[_Answer] = []
    starts: list[int] = []
    labels: dict[str, str] = {}
    lines = io.BytesIO(data).readlines()
    texts = (line.decode("utf-8", "surrogateescape").lstrip("\ufeff") for line in lines)
    reader = csv.reader(texts, strict=True)
    has_header, end, number = False, 0, 0
    while number < len(lines):
        try:
            cells = next(reader)
        except csv.Error:
            cells = [""]
        first, start = number + 1, end
        end += sum(map(len, lines[number : reader.line_num]))
        number = reader.line_num
        if not lines[first - 1].strip():
            continue
        if not has_header:
            if [cell.strip().lower() for cell in cells] != [*_COLUMNS]:
                raise DataError(
                    f"{path} was not written by vitft label: its columns are "
                    f"{', '.join(cells)[:100]} instead of {', '.join(_COLUMNS)}",
                    fix="choose another file with --out",
                )
            has_header = True
        elif problem := _problem_with(cells, labels):
            if number == len(lines) and not data.endswith(b"\n"):
                return answers, starts, start  # the last line is incomplete
            raise DataError(f"{path}, line {first}: {problem}", fix="correct or remove the line")
        else:
            answers.append((cells[0], cells[1], cells[2]))
            starts.append(start)
            labels[cells[0]] = cells[1]
    return answers, starts, end


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
        return "a skipped image has a label" if label.strip() else "the label is empty"
    if labels.get(path, label) != label:
        before, here = labels[path] or SKIPPED, label or SKIPPED
        return f"{path} has two labels: {before} in an earlier line, {here} in this one"
    return ""
