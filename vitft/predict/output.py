"""Output of predictions, one row per image, to the terminal and to files.

A text file is first written as `NAME.part`. An interrupted run can be resumed from this file if it
is JSONL or CSV. With several processes, each one writes its own file, such as `NAME.part-0-of-2`;
the last process to finish merges the rows in the order of the images.
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
from typing import Any, BinaryIO, NamedTuple, Self

from vitft.predict.prediction import DECIMALS, Prediction, column_names
from vitft.system.console import visible
from vitft.system.errors import RunError
from vitft.system.files import temporary_file, writing
from vitft.system.text import csv_line, escape_formula, json_line, percent

RESUMABLE = ("jsonl", "csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessShard:
    """The rows that one process writes: chunks `rank`, `rank + world`, and so on."""

    rank: int = 0
    world: int = 1
    chunk: int = 16
    """Number of rows computed together; a resumed run starts at a multiple of this number."""

    @classmethod
    def from_environment(cls) -> Self:
        """Return the shard of this process: all rows unless torchrun started several processes."""
        rank, world = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        if rank.isdigit() and world.isdigit() and int(world) > 1:
            return cls(rank=int(rank), world=int(world))
        return cls()


class ResumePoint(NamedTuple):
    """Counts of rows, bytes and errors in an unfinished file, up to the last complete chunk."""

    rows: int = 0
    size: int = 0
    errors: int = 0
    """Number of error rows among `rows`."""


class RowWriter:
    """Writer of predictions as a table, JSON, JSONL or CSV.

    It passes each line, without its line break, to the function `write`.
    """

    def __init__(self, style: str, top_k: int, write: Callable[[str], object]) -> None:
        self.style, self.top_k, self.write = style, top_k, write
        self.count = self.errors = 0
        self.has_begun = False
        self.pending_json = ""
        """Latest JSON row, held back because a comma must follow every row but the last."""
        self.unaligned: list[tuple[str, str]] | None = [("path", "prediction")]
        """Rows held back until the width of the first column is known; None afterwards."""
        self.width = 0

    def begin(self) -> None:
        """Write the CSV header or the opening bracket of JSON, if not yet written."""
        if not self.has_begun and self.style in ("csv", "json"):
            self.write(csv_line(column_names(self.top_k)) if self.style == "csv" else "[")
        self.has_begun = True

    def add(self, prediction: Prediction) -> None:
        """Count a prediction and write its row."""
        self.begin()
        self.count += 1
        self.errors += bool(prediction.error)
        self.write_row(prediction)

    def write_row(self, prediction: Prediction) -> None:
        """Write the row of a prediction, or hold it back."""
        if self.style == "csv":
            self.write(csv_line([*map(format_csv_cell, prediction.to_cells(self.top_k))]))
        elif self.style == "jsonl":
            self.write(json_line(prediction.to_dict()))
        elif self.style == "json":
            if self.pending_json:
                self.write(f"{self.pending_json},")
            self.pending_json = f"  {json_line(prediction.to_dict())}"
        else:
            self.write_table_row(visible(prediction.path), summarise(prediction))

    def write_table_row(self, path: str, text: str) -> None:
        """Write a row of the table, or hold it back until the first column's width is known."""
        if self.unaligned is None:
            self.write(f"{path:<{self.width}}  {text}")
            return
        self.unaligned.append((path, text))
        if len(self.unaligned) > 100:
            self.align()

    def align(self) -> None:
        """Determine the width of the first column from the rows held back, and write them."""
        rows, self.unaligned = self.unaligned or [], None
        self.width = max((len(path) for path, _ in rows), default=0)
        for path, text in rows:
            self.write_table_row(path, text)

    def close(self) -> None:
        """Write everything still pending, including the closing bracket of JSON."""
        self.begin()
        if self.style == "json":
            if self.pending_json:
                self.write(self.pending_json)
            self.write("]")
        elif self.style == "table" and self.unaligned is not None:
            self.align()


def format_csv_cell(cell: str | float | None) -> str:
    """Format a CSV cell: probabilities with fixed decimal places, None as an empty string."""
    return f"{cell:.{DECIMALS}f}" if isinstance(cell, float) else cell or ""


def summarise(prediction: Prediction) -> str:
    """Return a prediction or its error as text, such as `rose 97.1%, lily 2.0% (not sure)`."""
    if prediction.error:
        return visible(f"error: {prediction.error}")
    pairs = zip(prediction.classes, prediction.probabilities, strict=True)
    best = ", ".join(f"{visible(name)} {percent(probability)}" for name, probability in pairs)
    return f"{best} ({', '.join(prediction.notes)})" if prediction.notes else best


def part_path(out: Path, shard: ProcessShard) -> Path:
    """Return the path of the unfinished file to which a process writes its rows."""
    tail = "" if shard.world == 1 else f"-{shard.rank}-of-{shard.world}"
    return out.with_name(f"{out.name}.part{tail}")


def finished_path(out: Path, shard: ProcessShard) -> Path:
    """Return the path of a process's file that is complete but not yet merged."""
    part = part_path(out, shard)
    return part.with_name(f"{part.name}.done")


def check_output(out: Path, shard: ProcessShard, *, resume: bool) -> None:
    """Check that the output file can be written without overwriting an existing file.

    Raises:
        RunError: The folder does not exist, or an output file exists and `resume` is false.
    """
    if not out.parent.is_dir():
        raise RunError(
            f"cannot write {out.name}: the folder {out.parent} does not exist",
            fix="create the folder, or choose another file with --out",
        )
    if resume:
        return
    if out.exists():
        raise RunError(
            f"{out} already exists",
            fix="choose another file with --out, because files are never overwritten",
        )
    part = part_path(out, shard)
    if part.exists() or finished_path(out, shard).exists():
        raise RunError(
            f"cannot create {part}: another run is incomplete or still in progress",
            fix="continue that run with --resume, or remove its files",
        )


def complete_rows(file: BinaryIO, style: str) -> Iterator[bytes]:
    """Yield the complete rows of a file with their line breaks; omit a truncated last row.

    Line breaks in a quoted path of a CSV file do not end the row.
    """
    record = b""
    for line in file:
        record += line
        if line.endswith(b"\n") and (style == "jsonl" or record.count(b'"') % 2 == 0):
            yield record
            record = b""


def find_resume_point(
    path: Path, style: str, top_k: int, names: Iterator[str], chunk: int
) -> ResumePoint:
    """Check the rows of an unfinished file against `names`, and return the point to resume from.

    Raises:
        RunError: The file contains other images or columns than the request, or a row was not
            written by vitft.
    """
    size = done = errors = 0
    point = ResumePoint()
    with path.open("rb") as file:
        records = complete_rows(file, style)
        if style == "csv":
            header = next(records, None)
            if header is None:
                return point
            if header != (expected := encode_line(csv_line(column_names(top_k)), style)):
                found = header.decode("utf-8", "replace").strip()[:100]
                raise cannot_resume(
                    path,
                    f"its columns are {visible(found)}, not {expected.decode().strip()}",
                    fix="use the options of the first run; if an older version of vitft wrote the "
                    "file, choose another file with --out",
                )
            size = len(header)
            point = ResumePoint(0, size, 0)
        for record in records:
            found, classes, is_error = parse_record(record, style, path)
            name = next(names, None)
            if name is None or found != (escape_formula(name) if style == "csv" else name):
                wanted = (
                    "there are no more images" if name is None else f"should be for {visible(name)}"
                )
                raise cannot_resume(path, f"row {done + 1} is for {visible(found)}, but {wanted}")
            if style == "jsonl" and not is_error and classes > top_k:
                raise cannot_resume(
                    path, f"row {done + 1} has {classes} classes, but --top-k is {top_k}"
                )
            done, size, errors = done + 1, size + len(record), errors + is_error
            if done % chunk == 0:
                point = ResumePoint(done, size, errors)
    return point


def parse_record(record: bytes, style: str, path: Path) -> tuple[str, int, bool]:
    """Return a row's path, its number of classes (0 for CSV), and whether it is an error row.

    Raises:
        RunError: The row was not written by vitft.
    """
    try:
        if style == "jsonl":
            row = json.loads(record)
            return row["path"], len(row.get("classes", ())), "error" in row
        cells = next(csv.reader([record.decode("utf-8", "surrogateescape")]))
        return cells[0], 0, bool(cells[-1])
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, csv.Error) as error:
        raise cannot_resume(path, f"a row was not written by vitft: {record[:60]!r}") from error


def count_errors(path: Path, style: str) -> int:
    """Return the number of error rows in a finished file.

    Raises:
        RunError: A row was not written by vitft.
    """
    with path.open("rb") as file:
        records = complete_rows(file, style)
        if style == "csv":
            next(records, None)
        return sum(parse_record(record, style, path)[2] for record in records)


def cannot_resume(
    path: Path,
    reason: str,
    *,
    fix: str = "use the images and options of the first run, or choose another file with --out",
) -> RunError:
    """Return the error for a file that cannot be resumed."""
    return RunError(f"cannot resume {path}: {reason}", fix=fix)


def encode_line(line: str, style: str) -> bytes:
    """Encode a line and its line break as bytes; invalid UTF-8 in names is preserved."""
    return (line + ("\r\n" if style == "csv" else "\n")).encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def open_rows(
    out: Path, style: str, top_k: int, shard: ProcessShard, start: ResumePoint
) -> Iterator[RowWriter]:
    """Open an output file that is renamed to its final name once all rows are written.

    With several processes, the files are merged once every process has written its rows.

    Raises:
        ResourceError: The disk is full.
        RunError: The file cannot be written.
    """
    part = part_path(out, shard)
    if style == "parquet":
        with open_parquet(out, top_k) as rows:
            yield rows
        return
    with writing(part):
        file = part.open("ab", buffering=0)  # a crash loses no written row
    with file:
        if file.tell() > start.size:  # mode "ab" starts at the end of the file
            file.truncate(start.size)
        rows = RowWriter(style, top_k, lambda line: write_all(file, part, encode_line(line, style)))
        rows.count, rows.errors = start.rows, start.errors
        rows.has_begun = start.size > 0
        yield rows
        rows.close()
        with writing(part):
            os.fsync(file.fileno())
    with writing(out):
        if shard.world == 1:
            part.replace(out)
        else:
            part.replace(finished_path(out, shard))
            merge_shards(out, style, shard)


def write_all(file: FileIO, path: Path, data: bytes) -> None:
    """Write all of `data`, raising the same errors as `open_rows`."""
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        with writing(path):
            raise


def merge_shards(out: Path, style: str, shard: ProcessShard) -> None:
    """Merge the rows of all shards in the order of the images, if every shard is finished.

    The parts are removed only after the merged file has received its final name. If two processes
    finish at the same time, both merge the rows and write the same bytes.
    """
    shards = [ProcessShard(rank=rank, world=shard.world) for rank in range(shard.world)]
    parts = [finished_path(out, other) for other in shards]
    if not all(part.exists() for part in parts):
        return
    with contextlib.ExitStack() as stack:
        try:
            files = [stack.enter_context(part.open("rb")) for part in parts]
        except FileNotFoundError:  # another process has already merged them
            return
        descriptor, temporary = stack.enter_context(temporary_file(out))
        with open(descriptor, "wb") as merged:  # noqa: PTH123 - a descriptor, not a path
            readers = [complete_rows(file, style) for file in files]
            if style == "csv":
                headers = [next(reader) for reader in readers]
                merged.write(headers[0])
            while readers:  # one chunk per process in turn, until a process has no rows left
                chunks = [[*islice(reader, shard.chunk)] for reader in readers]
                merged.writelines(row for chunk in chunks for row in chunk)
                if not all(chunks):
                    break
            merged.flush()
            os.fsync(merged.fileno())
        temporary.replace(out)
    for part in parts:
        with contextlib.suppress(OSError):  # a leftover part does no harm
            part.unlink()


@contextlib.contextmanager
def open_parquet(out: Path, top_k: int) -> Iterator[RowWriter]:
    """Open a Parquet file that has the same columns as CSV and float64 probabilities.

    Raises:
        ResourceError: The disk is full.
        RunError: The file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = column_names(top_k)
    types = [pa.float64() if name.startswith("probability") else pa.string() for name in names]
    schema = pa.schema(list(zip(names, types, strict=True)))
    with writing(out), temporary_file(out) as (descriptor, temporary):
        os.close(descriptor)
        with pq.ParquetWriter(temporary, schema) as writer:
            rows = ParquetRowWriter(
                top_k, lambda group: writer.write_table(pa.Table.from_pylist(group, schema=schema))
            )
            yield rows
            rows.close()
        temporary.replace(out)


class ParquetRowWriter(RowWriter):
    """Writer that collects rows and writes them to Parquet one row group at a time."""

    def __init__(self, top_k: int, write_group: Callable[[list[dict[str, Any]]], None]) -> None:
        super().__init__("parquet", top_k, write=lambda _: None)
        self.write_group = write_group
        self.pending: list[dict[str, Any]] = []

    def write_row(self, prediction: Prediction) -> None:
        cells = (
            cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
            for cell in prediction.to_cells(self.top_k)
        )
        self.pending.append(dict(zip(column_names(self.top_k), cells, strict=True)))
        if len(self.pending) >= 1024:
            self.close()

    def close(self) -> None:
        """Write the collected rows as a row group."""
        self.write_group(self.pending)
        self.pending = []
