"""Output of predictions, one row per image, to the terminal and to files.

A text file is first written as `NAME.part`, from which an interrupted run can be resumed if the
format is JSONL or CSV. With several processes, each one writes its own file, such as
`NAME.part-0-of-2`; the last process to finish merges the rows in the order of the images.
"""

import contextlib
import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

from vitft.predict.rows import BYTE_ORDER_MARK, Prediction, RowFormat, RowWriter
from vitft.system.console import visible
from vitft.system.errors import RunError
from vitft.system.files import temporary_file, writing
from vitft.system.text import csv_line, escape_formula

if TYPE_CHECKING:
    from openpyxl.cell import WriteOnlyCell


# rows of predictions as a Parquet file, or as an Excel worksheet that can be read, sorted and
# filtered at once ---------------------------------------------------------------------------------

_GROUP = 1024
"""Number of rows that are written together; the first ones decide on the widths of the columns."""
_EXCEL_ROWS = 2**20 - 1
"""Maximum number of rows of an Excel worksheet below its header."""
_EXCEL_CELL = 32_767
"""Maximum number of characters in a cell of an Excel worksheet; the rest is left out."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Control characters that XML, and so an Excel file, cannot contain."""
_MIN_WIDTH, _MAX_WIDTH = 10, 60
"""Width of a column in characters; longer texts are wrapped."""
_FILTER_WIDTH = 4
"""Characters of the header beside which the button of the filter fits."""
_NOTES_WIDTH = 28
"""Minimum width of the notes, most of which are in rows that come later."""

_Cell = str | float | None


class _GroupWriter(RowWriter):
    """Writer that passes on the cells of up to `_GROUP` rows at a time, in valid UTF-8."""

    def __init__(self, form: RowFormat, write_group: Callable[[list[list[_Cell]]], None]) -> None:
        super().__init__(form, write=lambda _: None)
        self.write_group = write_group
        self.pending: list[list[_Cell]] = []

    def write_row(self, prediction: Prediction) -> None:
        self.pending.append(
            [
                cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
                for cell in self.form.cells(prediction)
            ]
        )
        if len(self.pending) >= _GROUP:
            self.close()

    def close(self) -> None:
        """Write the rows that are held back."""
        self.write_group(self.pending)
        self.pending = []


@contextlib.contextmanager
def _open_parquet(out: Path, form: RowFormat) -> Iterator[RowWriter]:
    """Open a Parquet file with the same columns as CSV output and float64 probabilities."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = form.columns
    types = [pa.float64() if name.startswith("probability") else pa.string() for name in names]
    schema = pa.schema(list(zip(names, types, strict=True)))
    with writing(out), temporary_file(out) as (descriptor, temporary):
        os.close(descriptor)
        with pq.ParquetWriter(temporary, schema) as writer:

            def write_group(rows: list[list[_Cell]]) -> None:
                group = [dict(zip(names, row, strict=True)) for row in rows]
                writer.write_table(pa.Table.from_pylist(group, schema=schema))

            writer_of_rows = _GroupWriter(form, write_group)
            yield writer_of_rows
            writer_of_rows.close()
        temporary.replace(out)


@contextlib.contextmanager
def _open_excel(out: Path, form: RowFormat) -> Iterator[RowWriter]:
    r"""Open an Excel file with the same columns as CSV output; probabilities are numbers.

    Text that begins like a formula stays text, and control characters, which the format does not
    allow, become escapes such as `\x07`. openpyxl keeps the rows in a temporary file.
    """
    from openpyxl import Workbook
    from openpyxl.styles import Font
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.properties import PageSetupProperties

    with writing(out), temporary_file(out) as (descriptor, temporary):
        os.close(descriptor)
        book = Workbook(write_only=True)
        sheet = book.create_sheet("predictions")
        sheet.freeze_panes = "A2"
        sheet.print_title_rows = "1:1"
        sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
        sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)  # all columns
        names = [str(_clean_cell(name)) for name in form.columns]
        letters = [get_column_letter(i + 1) for i in range(len(names))]
        cells = [_styled_cell(sheet, name) for name in names]

        def write_group(rows: list[list[_Cell]]) -> None:
            if writer.count > _EXCEL_ROWS:
                raise RunError(
                    f"an Excel file has at most {_EXCEL_ROWS + 1:,} rows, and there are more "
                    "images",
                    fix="use --out FILE.csv or FILE.parquet, or fewer images at a time",
                )
            cleaned = [[*map(_clean_cell, row)] for row in rows]
            if writer.count == len(rows):  # the first rows: openpyxl writes widths before them
                bold = Font(name="Calibri", size=11, bold=True)  # openpyxl's font has no name
                header = [_styled_cell(sheet, "") for _ in names]
                for i, (cell, name) in enumerate(zip(header, names, strict=True)):
                    texts = (row[i] for row in cleaned)
                    longest = max((len(t) for t in texts if isinstance(t, str)), default=0)
                    least = _NOTES_WIDTH if name == "notes" else _MIN_WIDTH
                    width = max(least, len(name) + _FILTER_WIDTH, longest + 1)
                    sheet.column_dimensions[letters[i]].width = min(_MAX_WIDTH, width)
                    cell.value, cell.data_type, cell.font = name, "s", bold
                sheet.append(header)
            for row in cleaned:
                for cell, value in zip(cells, row, strict=True):
                    cell.value = value
                    if isinstance(value, str):  # never evaluated as a formula
                        cell.data_type = "s"
                # writes the values, so the cells can be used again
                sheet.append([None if cell.value is None else cell for cell in cells])

        writer = _GroupWriter(form, write_group)
        try:
            yield writer
            writer.close()
            sheet.auto_filter.ref = f"A1:{letters[-1]}{writer.count + 1}"
        except BaseException:
            with contextlib.suppress(OSError):
                sheet.close()  # ends the temporary file, which openpyxl removes at exit
            raise
        book.save(temporary)
        temporary.replace(out)


def _clean_cell(value: _Cell) -> _Cell:
    """Return a value that an Excel file can contain; an empty text is an empty cell."""
    if not isinstance(value, str):
        return value
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", value)[:_EXCEL_CELL] or None


def _styled_cell(sheet: Any, name: str) -> "WriteOnlyCell":  # noqa: ANN401
    """Return an empty cell with the style of a column."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Alignment

    cell = WriteOnlyCell(sheet)
    cell.alignment = Alignment(vertical="top", wrap_text=name in ("path", "notes", "error"))
    if name.startswith("probability"):
        cell.number_format = "0.0%"
        cell.alignment = Alignment(vertical="top", horizontal="right", indent=1)
    return cell


# output of predictions, one row per image, to the terminal and to files ---------------------------

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


def part_path(out: Path, shard: ProcessShard) -> Path:
    """Return the path of the unfinished file to which a process writes its rows."""
    tail = "" if shard.world == 1 else f"-{shard.rank}-of-{shard.world}"
    return out.with_name(f"{out.name}.part{tail}")


def finished_path(out: Path, shard: ProcessShard) -> Path:
    """Return the path of a process's file that is complete but not yet merged."""
    part = part_path(out, shard)
    return part.with_name(f"{part.name}.done")


def record_path(part: Path) -> Path:
    """Return the path of the options of the job that writes a file of rows."""
    return part.with_name(f"{part.name}.json")


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
            fix="choose another file with --out (existing files are never overwritten)",
        )
    part = part_path(out, shard)
    if part.exists() or finished_path(out, shard).exists():
        raise RunError(
            f"cannot create {part}: another run is incomplete or still in progress",
            fix="continue that run with --resume, or remove its files",
        )


def _complete_rows(file: BinaryIO, style: str) -> Iterator[bytes]:
    """Yield the complete rows of a file, with quoted line breaks; omit a truncated last row."""
    record = b""
    for line in file:
        record += line
        if line.endswith(b"\n") and (style == "jsonl" or record.count(b'"') % 2 == 0):
            yield record
            record = b""


def find_resume_point(path: Path, form: RowFormat, names: Iterator[str], chunk: int) -> ResumePoint:
    """Check the rows of an unfinished file against `names`, and return the point to resume from.

    Raises:
        RunError: The images or columns differ from those of the request, or a row was not
            written by vitft.
    """
    style, size, done, errors = form.style, 0, 0, 0
    point = ResumePoint()
    with path.open("rb") as file:
        records = _complete_rows(file, style)
        if style == "csv":
            header = next(records, None)
            if header is None:
                return point
            expected = _encode_line(csv_line(form.columns), style)
            if header.removeprefix(BYTE_ORDER_MARK.encode()) != expected:
                found = header.decode("utf-8", "replace").strip()[:100]
                raise cannot_resume(
                    path,
                    f"its columns are {visible(found)}, not {expected.decode().strip()}",
                    fix="use the options of the first run. If an older version of vitft wrote the "
                    "file, choose another file with --out",
                )
            size = len(header)
            point = ResumePoint(0, size, 0)
        for record in records:
            found, classes, is_error = _parse_record(record, style, path)
            name = next(names, None)
            if name is None or found != (escape_formula(name) if style == "csv" else name):
                wanted = (
                    "the request has fewer images"
                    if name is None
                    else f"should be for {visible(name)}"
                )
                raise cannot_resume(path, f"row {done + 1} is for {visible(found)}, but {wanted}")
            if not is_error and classes > (len(form.labels) or form.top_k):
                raise cannot_resume(
                    path, f"row {done + 1} has {classes} classes, but --top-k is {form.top_k}"
                )
            done, size, errors = done + 1, size + len(record), errors + is_error
            if done % chunk == 0:
                point = ResumePoint(done, size, errors)
    return point


def _parse_record(record: bytes, style: str, path: Path) -> tuple[str, int, bool]:
    """Return a row's path, its number of classes (0 for CSV), and whether it is an error row."""
    try:
        if style == "jsonl":
            row = json.loads(record)
            return row["path"], len(row.get("classes", ())), "error" in row
        cells = next(csv.reader([record.decode("utf-8", "surrogateescape")]))
        return cells[0], 0, bool(cells[-1])
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, csv.Error) as error:
        raise cannot_resume(path, f"a row was not written by vitft: {record[:60]!r}") from error


def cannot_resume(
    path: Path,
    reason: str,
    *,
    fix: str = "use the images and options of the first run, or choose another file with --out",
) -> RunError:
    """Return the error for a file that cannot be resumed."""
    return RunError(f"cannot resume {path}: {reason}", fix=fix)


def _encode_line(line: str, style: str) -> bytes:
    """Encode a line and its line break as bytes; invalid UTF-8 in names is preserved."""
    return (line + ("\r\n" if style == "csv" else "\n")).encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def open_rows(
    out: Path, form: RowFormat, shard: ProcessShard, start: ResumePoint
) -> Iterator[RowWriter]:
    """Open an output file that is renamed to its final name once all rows are written.

    With several processes, the files are merged once every process has written its rows.

    Raises:
        ResourceError: The disk is full.
        RunError: The file cannot be written.
    """
    part = part_path(out, shard)
    if form.style in ("parquet", "xlsx"):
        with (_open_parquet if form.style == "parquet" else _open_excel)(out, form) as rows:
            yield rows
        return
    with writing(part):
        file = part.open("ab", buffering=0)  # a crash loses no written row
    with file:

        def write(line: str) -> None:
            data = _encode_line(line, form.style)
            with writing(part):
                while data:
                    data = data[file.write(data) :]

        if file.tell() > start.size:  # mode "ab" starts at the end of the file
            file.truncate(start.size)
        rows = RowWriter(form, write)
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
            merge_shards(out, form.style, shard)


def merge_shards(out: Path, style: str, shard: ProcessShard) -> None:
    """Merge the rows of all shards in the order of the images, if every shard is finished.

    The files of the shards are removed only after the merged file has received its final name. If
    two processes finish at the same time, both merge the rows and write the same bytes.
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
            readers = [_complete_rows(file, style) for file in files]
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
    leftover = [*parts, *(record_path(part_path(out, other)) for other in shards)]
    for part in leftover:
        with contextlib.suppress(OSError):  # a leftover file does no harm
            part.unlink()
