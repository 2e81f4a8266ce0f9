"""Output of predictions to files, one row per image.

The rows of an unfinished file are in `NAME.part`: the options of the job, then one row per line in
the format of JSONL output, whatever the format of the file. An interrupted job is resumed from it.
Once all rows are there, they are written to the file. With several processes, each one writes a
part of its own, such as `NAME.part-0-of-2`, and the last one to finish writes the file.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from vitft.data.sources import ImageSource
from vitft.data.table import TABLE_SUFFIXES, TableReader
from vitft.predict.request import ProcessShard
from vitft.predict.rows import INTEGERS, Prediction, RowFormat, Tally, text_lines
from vitft.system.console import Progress, visible
from vitft.system.errors import LockedError, RunError
from vitft.system.files import try_lock, writing
from vitft.system.text import count, escape_formula, listing

log = logging.getLogger(__name__)

# rows of predictions as a Parquet file, or as an Excel worksheet that can be read, sorted and
# filtered at once ---------------------------------------------------------------------------------

_GROUP = 1024  # number of rows of a Parquet file that are written together
_EXCEL_ROWS = 2**20 - 1  # maximum number of rows of an Excel worksheet below its header
_EXCEL_CELL = 32_767  # maximum number of characters in its cells; the rest is left out
_LONG, _WIDTH, _LONG_WIDTH = ("path", "notes", "error"), 16, 40
"""Columns of an Excel worksheet whose text is wrapped, and widths in characters."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Control characters that XML, and so an Excel file, cannot contain."""
_Cell = str | float | None


def in_utf8(cell: _Cell) -> _Cell:
    """Return a cell in valid UTF-8."""
    return cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell


def _clean_cell(cell: _Cell) -> _Cell:
    """Return a value that an Excel file can contain; an empty text is an empty cell."""
    if not isinstance(cell, str):
        return cell
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", str(in_utf8(cell)))[:_EXCEL_CELL] or None


def _write_parquet(path: Path, form: RowFormat, predictions: Iterator[Prediction]) -> None:
    """Write a Parquet file with the same columns as CSV output and float64 probabilities."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = form.columns
    others = dict.fromkeys(INTEGERS, pa.int64())
    types = [
        pa.float64() if name.startswith("probability") else others.get(name, pa.string())
        for name in names
    ]
    schema = pa.schema(list(zip(names, types, strict=True)))
    with pq.ParquetWriter(path, schema) as writer:
        while group := [form.cells(one) for one in islice(predictions, _GROUP)]:
            rows = [dict(zip(names, map(in_utf8, cells), strict=True)) for cells in group]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _write_excel(path: Path, form: RowFormat, predictions: Iterator[Prediction]) -> None:
    """Write an Excel file with the same columns as CSV output, in which no text is a formula."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Alignment, Font
    from openpyxl.utils import get_column_letter

    book = Workbook(write_only=True)  # its rows are in a temporary file
    sheet = book.create_sheet("predictions")
    sheet.freeze_panes = "A2"
    names, header, cells = [str(_clean_cell(name)) for name in form.columns], [], []
    for i, name in enumerate(names, start=1):
        width = _LONG_WIDTH if name in _LONG else _WIDTH
        sheet.column_dimensions[get_column_letter(i)].width = width
        header.append(WriteOnlyCell(sheet, name))
        header[-1].font = Font(name="Calibri", size=11, bold=True)
        cells.append(WriteOnlyCell(sheet))
        cells[-1].alignment = Alignment(vertical="top", wrap_text=name in _LONG)
        if name.startswith("probability"):
            cells[-1].number_format = "0.0%"
    number = 0

    def append(row: Sequence[Any], values: Sequence[_Cell]) -> None:
        for cell, value in zip(row, values, strict=True):
            cell.value = value
            if isinstance(value, str):  # never evaluated as a formula
                cell.data_type = "s"
        # writes the values, so the cells can be used again
        sheet.append([None if cell.value is None else cell for cell in row])

    try:
        append(header, names)
        for number, one in enumerate(predictions, start=1):  # noqa: B007 - used below
            append(cells, [*map(_clean_cell, form.cells(one))])
        if number > _EXCEL_ROWS:
            raise RunError(
                f"an Excel file has at most {_EXCEL_ROWS + 1:,} rows, and there are more images",
                fix="repeat the command with --resume --format csv, or use fewer images at a time",
            )
        sheet.auto_filter.ref = f"A1:{get_column_letter(len(names))}{number + 1}"
    except BaseException:
        with contextlib.suppress(OSError):
            sheet.close()  # ends the temporary file, which openpyxl removes at exit
        raise
    book.save(path)


def _write_text(path: Path, form: RowFormat, predictions: Iterator[Prediction]) -> None:
    """Write lines of text; invalid UTF-8 in names is preserved."""
    end = "\r\n" if form.style == "csv" else "\n"
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.writelines(f"{line}{end}" for line in text_lines(form, predictions))
        file.flush()
        os.fsync(file.fileno())


# rows of an unfinished file, and the file that is made of them ------------------------------------

_JobOptions = Mapping[str, object]  # what decides the rows of a job besides its images
_Combine = Callable[[Iterator[Prediction]], Iterator[Prediction]]


def predict_to_file(
    out: Path,
    shard: ProcessShard,
    form: RowFormat,
    options: _JobOptions,
    images: Iterator[ImageSource],
    predict: Callable[[Iterator[ImageSource]], Iterator[Prediction]],
    combine: _Combine,
) -> Tally | None:
    """Predict the images that have no row, and write the file; return what it contains.

    The result is None while other processes have rows to write.
    """
    listed = hashlib.sha256()  # of the names of all images, of which this process has a part
    images = _hashed(images, listed)
    own, part, numbered = images, _part_path(out, shard), enumerate(images)
    for other in shard.team():  # also those of processes that start later
        _check_options(_part_path(out, other), options)
        _check_options(_finished_path(out, other), options)
    if shard.world > 1:
        own = (s for i, s in numbered if i // shard.chunk % shard.world == shard.rank)
        if (written := _finished_path(out, shard)).exists():
            done, _, _ = _find_resume_point(written, _check_options(written, options), own, 1)
            _check_end(written, done, next((image.name for image in own), None))
            return _finish(out, form, shard, combine)
    if size := _check_options(part, options):
        done, size, again = _find_resume_point(part, size, own, shard.chunk)
        own = chain(again, own)
        log.info(f"resuming after {count(done, 'row')}")
    shown = Progress("predicting", None) if shard.rank == 0 else contextlib.nullcontext()
    try:
        with _open_part(part, options, size) as write, shown as progress:
            for prediction in predict(own):
                write(prediction.to_dict())
                if progress is not None:
                    progress.advance()
            write({_LISTED: listed.hexdigest()})
        return _finish(out, form, shard, combine)
    except KeyboardInterrupt:  # Ctrl-C or another signal
        if part.exists():
            log.info(f"finished rows are in {part}. To continue, add --resume to the same command")
        raise


def _hashed(images: Iterator[ImageSource], digest: Any) -> Iterator[ImageSource]:  # noqa: ANN401
    """Yield the images, and update a digest of hashlib with their names."""
    for image in images:
        digest.update(f"{image.name}\0".encode("utf-8", "surrogateescape"))
        yield image


def _part_path(out: Path, shard: ProcessShard) -> Path:
    """Return the path of the unfinished file to which a process writes its rows."""
    tail = "" if shard.world == 1 else f"-{shard.rank}-of-{shard.world}"
    return out.with_name(f"{out.name}.part{tail}")


def _finished_path(out: Path, shard: ProcessShard) -> Path:
    """Return the path of the rows of a process that has written all of them."""
    part = _part_path(out, shard)
    return part if shard.world == 1 else part.with_name(f"{part.name}.done")


def _temporary_path(out: Path, shard: ProcessShard) -> Path:
    """Return the path of the output file before it has its name, the same after a kill."""
    return out.with_name(f".{_part_path(out, shard).name}")


def check_output(out: Path, shard: ProcessShard, *, resume: bool) -> None:
    """Raise a RunError if the folder is missing or, unless `resume`, if the file exists."""
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
    part = _part_path(out, shard)
    if part.exists() or _finished_path(out, shard).exists():
        raise RunError(
            f"cannot create {part}: another run is incomplete or still in progress",
            fix="continue that run with --resume, or remove its files",
        )


_LISTED = "sha256 of the list"  # key in the last line of a part


def _read_rows(file: BinaryIO, path: Path) -> Iterator[tuple[Prediction, int]]:
    """Yield the complete rows of a part, after its options, with their sizes in bytes."""
    for line in file:
        if line.endswith(b"\n"):
            try:
                if _LISTED in (row := json.loads(line)):
                    return
                yield Prediction.from_dict(row), len(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise _foreign(path, line) from error


def _check_options(path: Path, options: _JobOptions) -> int:
    """Return the size in bytes of the options of a part, 0 if there are none.

    Raises:
        RunError: They are others, or were not written by vitft.
    """
    line = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        line = file.readline()
    if not line.endswith(b"\n"):
        return 0
    try:
        written = json.loads(line)
        changed = [(key, written[key], now) for key, now in options.items() if written[key] != now]
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign(path, line) from error
    if changed:
        differ = [
            f"another {key}"
            if key in ("model", "threshold", "tree")
            else f"{key} {begun or 'none'}, not {now or 'none'}"
            for key, begun, now in changed
        ]
        raise _cannot_resume(path, f"it was begun with {listing(differ)}")
    return len(line)


def _find_resume_point(
    part: Path, start: int, images: Iterator[ImageSource], chunk: int
) -> tuple[int, int, list[ImageSource]]:
    """Check the rows of a part, which begin at byte `start`, against the images.

    Return the numbers of rows and bytes up to the last complete chunk, and the images beyond it
    that have been read. A RunError names a row for another image.
    """
    done, size, again = 0, start, list[ImageSource]()
    with part.open("rb") as file:
        file.seek(start)
        for number, (row, length) in enumerate(_read_rows(file, part), start=1):
            image = next(images, None)
            wanted = None if image is None else _in_group(image.name, image.group)
            _check_name(part, number, _in_group(row.path, row.group), wanted)
            again, size = [*again, *filter(None, [image])], size + length
            if number % chunk == 0:
                done, start, again = number, size, []
    return done, start, again


def _in_group(name: str, group: str) -> str:
    return f"{name} in the group {group}" if group else name


_OF_OPTIONS = (("class", "class_2"), ("class", "prediction_set"), ("classes", "prediction_set"),
               ("class", "level"), ("classes", "level"))  # fmt: skip
"""Columns that options add to tables, and to JSON Lines, which have `classes`."""


def check_finished(
    out: Path, images: Iterator[ImageSource], form: RowFormat, shard: ProcessShard
) -> tuple[int, int]:
    """Return the numbers of rows and errors of a finished file, if its rows are for the images.

    If `form` has rows for groups, they are for the groups of the images. Leftover parts are
    removed.
    """
    key, names = form.columns[0], (image.name for image in images)
    if form.groups:
        names = (name for name in dict.fromkeys(image.group for image in images))
    if out.suffix.lower() not in TABLE_SUFFIXES:
        raise _cannot_resume(out, "it is complete", fix=_OTHER_FILE)
    reader = TableReader(out, missing=_OTHER_FILE, fix=_OTHER_FILE, error=RunError)
    columns, done, errors = next(reader.rows, []), 0, 0
    wanted = [key, *(n for kind, n in _OF_OPTIONS if kind in columns and n in form.columns)]
    if columns and (missing := [name for name in wanted if name not in columns]):
        raise _cannot_resume(out, f"it has no column {listing(missing)}", fix=_OTHER_FILE)
    for done, row in enumerate(reader, start=1):
        cells, name = dict(zip(columns, row, strict=False)), next(names, None)
        written = name and (name, escape_formula(name), in_utf8(name), _clean_cell(name))
        if not written or cells[key] not in written:
            _check_name(out, done, cells[key], name)
        errors += bool(cells.get("error")) or cells.get("unreadable", "0") != "0"
    _check_end(out, done, next(names, None))
    _remove_parts(out, shard)
    return done, errors


def _check_name(path: Path, number: int, found: str, name: str | None) -> None:
    """Check that a row is for the image `name`; None stands for no image."""
    if found != name:
        wanted = "the request has fewer images"
        if name is not None:
            wanted = f"should be for {visible(name)}"
        raise _cannot_resume(path, f"row {number} is for {visible(found)}, but {wanted}")


def _check_end(path: Path, done: int, more: str | None) -> None:
    """Check that there is no further image for a complete file."""
    if more is not None:
        problem = f"it is complete, with {count(done, 'row')}, but the request has more images"
        raise _cannot_resume(path, f"{problem}, e.g. {visible(more)}", fix=_OTHER_FILE)


_OTHER_FILE = "choose another file with --out"


def _cannot_resume(
    path: Path,
    reason: str,
    *,
    fix: str = f"use the images and options of the first run, or {_OTHER_FILE}",
) -> RunError:
    """Return the error for a file that cannot be resumed."""
    return RunError(f"cannot resume {path}: {reason}", fix=fix)


def _foreign(path: Path, line: bytes) -> RunError:
    """Return the error for a line of a part that `_open_part` did not write."""
    return _cannot_resume(path, f"a row was not written by vitft: {line[:60]!r}")


@contextlib.contextmanager
def _open_part(
    part: Path, options: _JobOptions, size: int
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open a part of which `size` bytes are kept; yield a function that appends a row."""
    with writing(part):
        file = part.open("ab", buffering=0)  # a crash loses no written row
    with file:

        def write(fields: Mapping[str, Any]) -> None:
            data = json.dumps(fields, allow_nan=False).encode() + b"\n"
            with writing(part):
                while data:
                    data = data[file.write(data) :]

        if not try_lock(file.fileno()):
            raise LockedError(
                f"another process is writing {part}",
                fix="wait until it has ended, or choose another file with --out",
            )
        if file.tell() > size:  # mode "ab" starts at the end of the file
            file.truncate(size)
        if not size:
            write(options)
        yield write
        with writing(part):
            os.fsync(file.fileno())


def _finish(out: Path, form: RowFormat, shard: ProcessShard, combine: _Combine) -> Tally | None:
    """Write the output file if every process has written all its rows; return what it contains.

    `combine` turns the predictions for images into the rows, of groups if they are grouped. The
    parts are removed only after the file has received its final name. If two processes finish
    at the same time, both write the same bytes.
    """
    own, tally = _part_path(out, shard), Tally()
    parts = [_finished_path(out, other) for other in shard.team()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(writing(out))
        if own.exists():
            own.replace(parts[shard.rank])
        try:
            files = [stack.enter_context(part.open("rb")) for part in parts]
        except FileNotFoundError:  # unfinished, or another process has already written the file
            return None
        if shard.world > 1 and len({_last_line(file) for file in files}) > 1:
            raise RunError(
                f"cannot write {out}: the processes have not found the same images, because some "
                "were added or removed meanwhile",
                fix=f"remove {out.name}.part-*, and repeat the command",
            )
        for file in files:
            file.readline()  # the options
        readers = [_read_rows(file, part) for file, part in zip(files, parts, strict=True)]
        temporary = _temporary_path(out, shard)
        stack.callback(temporary.unlink, missing_ok=True)
        write = {"parquet": _write_parquet, "xlsx": _write_excel}.get(form.style, _write_text)
        write(temporary, form, tally.counting(combine(_in_turn(readers, shard.chunk))))
        temporary.replace(out)
    _remove_parts(out, shard)
    return tally


def _last_line(file: BinaryIO) -> bytes:
    """Return the last line of a part, whose length is known, and go back to the start."""
    file.seek(-len(json.dumps({_LISTED: "0" * 64})) - 1, os.SEEK_END)
    line = file.readline()
    file.seek(0)
    return line


def _in_turn(
    readers: Sequence[Iterator[tuple[Prediction, int]]], chunk: int
) -> Iterator[Prediction]:
    """Yield one chunk of each process in turn, until a process has no rows left."""
    while chunks := [[*islice(reader, chunk)] for reader in readers]:
        yield from (row for rows in chunks for row, _ in rows)
        if not all(chunks):
            return


def _remove_parts(out: Path, shard: ProcessShard) -> None:
    """Remove what is left of the parts of a finished file."""
    for path in (_temporary_path(out, shard), *(_finished_path(out, one) for one in shard.team())):
        with contextlib.suppress(OSError):  # a leftover file does no harm
            path.unlink()
