"""Files of rows: named when they are whole, gone on with after an interruption, merged from parts.

A file is called `NAME.part` until all of its rows are there, and a run that was killed goes on
there. Several processes write `NAME.part-0-of-2` and so on; whoever ends last puts the rows in
order. What a row looks like is told in `rows`.
"""

import contextlib
import csv
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vitft.predict.rows import DIGITS, Row, Rows, cells_of, header
from vitft.system.console import csv_line, harmless, visible
from vitft.system.errors import RunError
from vitft.system.files import temporary_beside, writing

RESUMABLE = ("jsonl", "csv")
GROUP = 1024
"""Rows that Parquet keeps together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which part of the rows this process answers: chunk `rank`, `rank + world`, ..."""

    rank: int = 0
    world: int = 1
    chunk: int = 16
    """Rows that are computed together; a resumed run starts at a multiple of it."""


def part_path(out: Path, share: Share) -> Path:
    """Where a process writes until its part is whole."""
    tail = "" if share.world == 1 else f"-{share.rank}-of-{share.world}"
    return out.with_name(f"{out.name}.part{tail}")


def check_out(out: Path, share: Share, *, resume: bool) -> None:
    """Refuse to overwrite what is there.

    Raises:
        RunError: A finished or unfinished file of this name, or no folder for it.
    """
    part = part_path(out, share)
    if not out.parent.is_dir():
        raise RunError(f"no folder {out.parent} for {out.name}", fix="make it, or name another")
    if out.exists() and not resume:
        raise RunError(f"{out} exists; nothing is overwritten", fix="choose another --out")
    if (part.exists() or ended(part).exists()) and not resume:
        raise RunError(
            f"{part} is there: an unfinished run, perhaps one that is still at work",
            fix="go on with it: --resume; or remove it",
        )


def records(file: BinaryIO, style: str) -> Iterator[bytes]:
    """Whole rows of a file with their line ends; a torn last one is left out.

    A path in a CSV cell may hold line breaks: then the quotes around it are not closed yet.
    """
    kept = b""
    for line in file:
        kept += line
        if line.endswith(b"\n") and (style == "jsonl" or kept.count(b'"') % 2 == 0):
            yield kept
            kept = b""


class Kept(NamedTuple):
    """What an earlier run has left in a file."""

    rows: int
    """Whole rows, a multiple of the chunk."""
    size: int
    """Bytes up to and with the last of them, and the header."""
    errors: int


def kept_rows(path: Path, style: str, top_k: int, names: Iterator[str], chunk: int) -> Kept:
    """Compare the rows of an unfinished file with what is asked for now; takes from `names`.

    Raises:
        RunError: They are rows of other images or other columns.
    """
    size = done = errors = 0
    mark = Kept(0, 0, 0)
    with path.open("rb") as file:
        rows = records(file, style)
        if style == "csv":
            head = next(rows, None)
            if head is None:
                return mark
            if head != encoded(csv_line(header(top_k)), style):
                raise other_rows(path, "its columns are others (--top-k?)")
            size = len(head)
            mark = Kept(0, size, 0)
        for record in rows:
            found, answers, error = told_by(record, style, path)
            name = next(names, None)
            if name is None or found != (harmless(name) if style == "csv" else name):
                wanted = "none" if name is None else visible(name)
                raise other_rows(path, f"row {done + 1} is of {visible(found)}, wanted: {wanted}")
            if style == "jsonl" and not error and answers > top_k:
                raise other_rows(path, f"row {done + 1} holds {answers} classes")
            done, size, errors = done + 1, size + len(record), errors + error
            if done % chunk == 0:
                mark = Kept(done, size, errors)
    return mark


def told_by(record: bytes, style: str, path: Path) -> tuple[str, int, bool]:
    """Path, number of classes and whether it is an error, from one row of a file."""
    try:
        if style == "jsonl":
            row = json.loads(record)
            return row["path"], len(row.get("classes", ())), "error" in row
        cells = next(csv.reader([record.decode("utf-8", "surrogateescape")]))
        return cells[0], 0, bool(cells[-1])
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, csv.Error) as error:
        raise other_rows(path, f"it holds what vitft did not write: {record[:60]!r}") from error


def errors_in(path: Path, style: str) -> int:
    """Error rows of a finished file."""
    with path.open("rb") as file:
        rows = records(file, style)
        if style == "csv":
            next(rows, None)
        return sum(told_by(record, style, path)[2] for record in rows)


def other_rows(path: Path, reason: str) -> RunError:
    """The error of a file that cannot be gone on with."""
    return RunError(
        f"cannot resume {path}: {reason}",
        fix="give the same images and options as before, or another --out",
    )


def encoded(line: str, style: str) -> bytes:
    """A line as bytes; names that are not UTF-8 stay as they were."""
    return (line + ("\r\n" if style == "csv" else "\n")).encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def into_file(out: Path, style: str, top_k: int, share: Share, kept: Kept) -> Iterator[Rows]:
    """Rows into a file that gets its name at the end.

    Raises:
        ResourceError: The disk is full.
        RunError: The place cannot be written.
    """
    part = part_path(out, share)
    if style == "parquet":
        with parquet_into(out, top_k) as rows:
            yield rows
        return
    with writing(part):
        file = part.open("ab", buffering=0)  # a row is on its way when it is written
    with file:
        if file.tell() > kept.size:  # opened at its end
            file.truncate(kept.size)
        rows = Rows(style, top_k, lambda line: put(file, part, encoded(line, style)))
        rows.count, rows.errors = kept.rows, kept.errors
        rows.has_begun = kept.size > 0
        yield rows
        rows.close()
        with writing(part):
            os.fsync(file.fileno())
    with writing(out):
        if share.world == 1:
            part.replace(out)
        else:
            part.replace(ended(part))
            merge(out, style, share)


def put(file: FileIO, path: Path, data: bytes) -> None:
    """Write all of it, with a sentence if that fails."""
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        with writing(path):
            raise


def ended(part: Path) -> Path:
    """The name of a part when all of its rows are there."""
    return part.with_name(f"{part.name}.done")


def merge(out: Path, style: str, share: Share) -> None:
    """Put the rows of all parts in the order of the inputs, if this process ended last.

    The parts go only when the whole file has its name. Two processes that end at once write the
    same bytes.
    """
    parts = [
        ended(part_path(out, Share(rank=rank, world=share.world))) for rank in range(share.world)
    ]
    if not all(part.exists() for part in parts):
        return
    with contextlib.ExitStack() as stack:
        try:
            files = [stack.enter_context(part.open("rb")) for part in parts]
        except FileNotFoundError:  # another process has just merged
            return
        descriptor, temporary = stack.enter_context(temporary_beside(out))
        with open(descriptor, "wb") as whole:  # noqa: PTH123 - a descriptor, not a path
            readers = [records(file, style) for file in files]
            if style == "csv":
                heads = [next(reader) for reader in readers]
                whole.write(heads[0])
            while readers:  # one chunk from each process in turn, until the first that has none
                chunks = [[*islice(reader, share.chunk)] for reader in readers]
                whole.writelines(row for chunk in chunks for row in chunk)
                if not all(chunks):
                    break
            whole.flush()
            os.fsync(whole.fileno())
        temporary.replace(out)
    for part in parts:
        with contextlib.suppress(OSError):  # the whole file is there; a part more does no harm
            part.unlink()


@contextlib.contextmanager
def parquet_into(out: Path, top_k: int) -> Iterator[Rows]:
    """Rows into a Parquet file: the columns of CSV, shares as numbers, names as they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = header(top_k)
    kinds = [pa.float64() if name.startswith("share_") else pa.string() for name in names]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    with writing(out), temporary_beside(out) as (descriptor, temporary):
        os.close(descriptor)
        with pq.ParquetWriter(temporary, schema) as writer:
            rows = ParquetRows(top_k, lambda t: writer.write_table(pa.table(t, schema=schema)))
            yield rows
            rows.close()
        temporary.replace(out)


class ParquetRows(Rows):
    """Rows that are written some hundred at a time."""

    def __init__(self, top_k: int, write_table: Callable[[dict[str, list[Any]]], None]) -> None:
        super().__init__("parquet", top_k)
        self.write_table = write_table
        self.waiting: list[list[Any]] = []

    def put(self, row: Row) -> None:
        cells: list[Any] = cells_of(row, self.top_k)
        for i in range(self.top_k):
            cells[2 + 2 * i] = round(row.shares[i], DIGITS) if i < len(row.shares) else None
            cells[1 + 2 * i] = cells[1 + 2 * i] or None
        self.waiting.append(
            [
                c.encode("utf-8", "backslashreplace").decode() if isinstance(c, str) else c
                for c in cells
            ]
        )
        if len(self.waiting) >= GROUP:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        columns = [*zip(*self.waiting, strict=True)] or [()] * len(header(self.top_k))
        self.write_table(
            {name: [*column] for name, column in zip(header(self.top_k), columns, strict=True)}
        )
        self.waiting = []

    def close(self) -> None:
        self.flush()
