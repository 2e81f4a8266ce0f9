"""Reader for tables (CSV, TSV, JSON Lines, Parquet, Excel) and encoder for CSV files.

Cells may contain any file name, and error messages name the line.
"""

import csv
import io
import json
import math
import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

from vitft.system.errors import DataError, RunError, VitftError
from vitft.system.files import read_regular
from vitft.system.imports import require_extra
from vitft.system.structure import parse_json
from vitft.system.text import count, describe_os_error, listing

MAX_TABLE_BYTES = 2**32
_MAX_EXCEL_BYTES = 2**30  # maximum size of an Excel file once it is unpacked
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")
OTHER_EXCEL = (".xls", ".xlsm", ".xlsb")
"""Suffixes of Excel formats that are neither read nor written; `.xlsx` is suggested instead."""
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
NOT_UTF_16 = "the text is not valid UTF-16"
_SEPARATORS = "\t;,|"
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.I)
"""First line by which a CSV file tells Excel its separator."""
_COMMENT = re.compile(r"#(?![\t;,|])|\s*$")
"""Beginning of a line above the header that is a remark or empty; `#` alone may name a column."""


PATH_COLUMNS = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img",
)  # fmt: skip


RowError = Callable[[str, int, str, str], DataError | RunError]
"""Function from a problem, an image of a table, a role and a fix to the error with the line."""


def encode_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, bom: bool = False
) -> Iterator[bytes]:
    """Yield the lines of a CSV file, with `bom` after the mark by which spreadsheets know UTF-8."""
    mark = "\ufeff" * bom
    for cells in chain([columns], rows):
        yield f"{mark}{','.join(map(quote_cell, cells))}\n".encode("utf-8", "surrogateescape")
        mark = ""


def quote_cell(cell: str) -> str:
    """Quote a CSV cell if needed, also for a carriage return, unlike csv in Python 3.11."""
    return '"' + cell.replace('"', '""') + '"' if re.search('[",\r\n]', cell) else cell


def is_table(path: Path) -> bool:
    """Return whether a path has the suffix of a table; the file need not exist."""
    return path.suffix.lower() in TABLE_SUFFIXES and not os.path.isdir(path)  # noqa: PTH112


def is_utf8(text: str) -> bool:
    """Return whether a cell contains no bytes that are invalid in UTF-8 (see `TableReader`)."""
    return re.search("[\ud800-\udfff]", text) is None


def base_folder(data: Path, root: str) -> Path:
    """Return the folder of the image paths: `data` or, for a table, `root` or its folder."""
    if not is_table(data):
        return data
    return Path(os.path.expanduser(root)) if root else data.parent  # noqa: PTH111 - never raises


def path_in(root: Path, path: str) -> str:
    """Return a path relative to `root`, without empty or `.` components; `..` and links are kept.

    An absolute path that is not below `root` and a web address are returned unchanged.
    """
    if path.startswith("/"):
        folder = os.path.abspath(root).rstrip("/") + "/"  # noqa: PTH100 - keeps links
        if not path.startswith(folder):
            return path
        path = path.removeprefix(folder).lstrip("/")  # /data//a.jpg is in /data
    if "://" in path or ("//" not in path and "./" not in path):  # a web address; the usual case
        return path
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def leads_outside(path: str) -> bool:
    """Return whether a path from `path_in` may lead outside its folder."""
    return path.startswith("/") or ".." in path.split("/")


class _NotText(str):
    """Placeholder for a value without a textual form: the type of the value, e.g. `list`."""

    labels = ""  # a list that may contain labels, as JSON


class TableReader:
    """Row-by-row reader for a table; the first row is the header.

    The suffix determines the format: JSON Lines, Parquet, Excel or CSV. Values that are not text
    are converted: missing values to empty cells, numbers to decimal text, and others to `_NotText`.
    `missing` is the fix if the file cannot be read, and `fix` if it is invalid.

    Raises:
        DataError: The file cannot be read. If `error` is given, that class is raised instead.
        UsageError: The library that reads a Parquet or Excel file is not installed.
    """

    def __init__(
        self, path: Path, *, missing: str, fix: str, error: type[DataError | RunError] = DataError
    ) -> None:
        try:
            self.data = read_regular(path, limit=MAX_TABLE_BYTES)
        except OSError as failure:
            reason = describe_os_error(failure)
            raise error(f"cannot read {path}: {reason}", fix=missing) from failure
        self.path, self.fix, self.kind = path, fix, error
        self.unit, self.line = "line", 1  # the line read last; a row, or 0, in binary formats
        self.sheet = ""  # name of the worksheet, in Excel files, once its first row is read
        self.other_sheets: Sequence[str] = ()  # those with values that are not read
        suffix = path.suffix.lower()
        if suffix in (".parquet", ".xlsx"):
            extra = "parquet" if suffix == ".parquet" else "spreadsheet"
            require_extra(extra, feature=f"reading {path.name}")
            self.unit, self.line = "row", 0
            self.rows = self.parquet_rows() if suffix == ".parquet" else self.excel_rows()
        else:
            self.rows = self.json_rows() if suffix == ".jsonl" else self.csv_rows()

    def __iter__(self) -> Iterator[list[str]]:
        return self.rows

    def csv_rows(self) -> Iterator[list[str]]:
        """Yield the rows of a CSV file, without remarks above the header or cells beyond it."""
        lines: Iterator[str] = open_text(io.BytesIO(self.data), self.data)
        above, separator, width, named, reader = 0, "", 0, 0, csv.reader(lines)
        try:
            for above, line in enumerate(lines):  # noqa: B007 - used below
                if found := _SEPARATOR_LINE.fullmatch(line.strip("\r\n")):
                    separator = found[1]
                elif not _COMMENT.match(line):
                    counts = Counter(re.sub('"[^"]*"', "", line))  # without quoted names
                    if not separator and counts.keys() & {*_SEPARATORS}:
                        separator = max(_SEPARATORS, key=counts.__getitem__)
                    lines = chain([line], lines)
                    break
            reader = csv.reader(lines, delimiter=separator or ",", strict=True)
            for cells in reader:
                self.line = above + reader.line_num
                width, named = width or len(cells), named or _last_filled(cells)
                if len(cells) != width and len(cells) >= named and not any(cells[width:]):
                    cells = [*cells, *[""] * width][:width]
                yield cells
        except UnicodeError as error:
            raise self.error(NOT_UTF_16) from error
        except csv.Error as error:
            self.line = above + max(1, reader.line_num)
            raise self.error(str(error)) from error

    def json_rows(self) -> Iterator[list[str]]:
        """Yield a header with the keys of all JSON objects, then a row for each object."""
        found: list[tuple[int, dict[str, Any]]] = []
        lines = open_text(io.BytesIO(self.data), self.data, newline="\n")
        try:
            for self.line, line in enumerate(lines, start=1):
                if line.strip():
                    fields = parse_json(line)
                    if not isinstance(fields, dict):
                        problem = "the text is JSON, but not an object such as {...}"
                        raise self.error(problem, column="1")
                    inner = {k: v for k, v in fields.items() if v and isinstance(v, dict)}
                    for name in inner:  # its fields become `outer.inner`
                        fields |= {f"{name}.{key}": v for key, v in fields.pop(name).items()}
                    found.append((self.line, fields))
        except ValueError as error:
            reason, column = getattr(error, "msg", str(error)), getattr(error, "colno", 1)
            problem = f"the text is not valid JSON ({reason})"
            raise self.error(problem, column=str(column)) from error
        names = list(dict.fromkeys(name for _, fields in found for name in fields))
        self.line = 1
        yield names
        for self.line, fields in found:
            yield [cell_text(fields.get(name)) for name in names]

    def parquet_rows(self) -> Iterator[list[str]]:
        """Yield the header of a Parquet file, then its rows, without embedded images."""
        import pyarrow as pa
        from pyarrow import parquet

        try:
            file = parquet.ParquetFile(pa.BufferReader(self.data))
            fields = list(file.schema_arrow)
            nested = {f.name: _NotText(str(f.type)) for f in fields if not _has_text(f.type)}
            plain = [field.name for field in fields if field.name not in nested]
            yield [field.name for field in fields]
            for batch in file.iter_batches(columns=plain):
                columns = [
                    [nested[field.name]] * len(batch)
                    if field.name in nested
                    else map(cell_text, batch.column(field.name).to_pylist())
                    for field in fields
                ]
                for cells in zip(*columns, strict=True):
                    self.line += 1
                    yield list(cells)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise self.error(f"the file is not valid Parquet ({reason})") from error

    def excel_rows(self) -> Iterator[list[str]]:
        """Yield the rows of the first worksheet with values; formulas have their saved results."""
        from openpyxl import load_workbook

        try:
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > _MAX_EXCEL_BYTES:
                    raise self.error("the file is too large once it is unpacked")
            with warnings.catch_warnings(action="ignore"):  # about styles and the like
                book = load_workbook(io.BytesIO(self.data), read_only=True, data_only=True)
            for one in book.worksheets:
                one.reset_dimensions()  # or rows would be filled up to the farthest cell
            width, (sheet, *others) = 0, book.worksheets
            self.sheet = sheet.title
            self.other_sheets = [one.title for one in others if any(map(any, one.values))]
            for number, values in enumerate(sheet.values, start=1):
                cells = [cell_text(value) for value in values]
                if not (filled := _last_filled(cells)):
                    continue
                width, self.line = width or filled, number
                yield [*cells, *[""] * width][: max(width, filled)]
        except VitftError:
            raise
        except Exception as error:  # zipfile, zlib, XML and openpyxl have no common base
            reason = (str(error) or type(error).__name__).partition("\n")[0][:200]
            raise self.error(f"the file is not a valid Excel file ({reason})") from error

    def records(self, *needed: str, ragged: bool = False) -> Iterator[dict[str, str]]:
        """Yield each row as a mapping from the names of the columns, which include `needed`.

        Unless `ragged` is set, each row must have as many cells as the header.
        """
        header = [cell.strip() for cell in next(self.rows, [])]
        names = [cell.lower() for cell in header]
        for name in needed:
            if names.count(name) != 1:
                many = "more than one column named" if name in names else "no column named"
                found = listing(header) or "nothing"
                raise self.error(f"{many} {name}. Columns found: {found}")
        for cells in filter(any, self.rows):
            if not ragged:
                self.check_width(cells, header)
            yield dict(zip(names, cells, strict=False))

    def check_width(self, cells: Sequence[str], header: Sequence[str]) -> None:
        """Raise an error if the row read last has more or fewer cells than the header."""
        if len(cells) != len(header):
            column = header[min(len(cells), len(header) - 1)]
            found = count(len(cells), "cell")
            raise self.error(f"found {found} instead of {len(header)}", column=column)

    def checked(
        self, cell: str, column: str, *, is_path: bool = False, is_label: bool = False
    ) -> str:
        """Return a cell of the row read last; raise a DataError if it is not text in UTF-8.

        A path may be in any encoding, and labels may be a list, which becomes JSON.
        """
        if isinstance(cell, _NotText) and cell.labels and is_label:
            return self.checked(cell.labels, column)
        problem, fix = "", ""
        if isinstance(cell, _NotText):
            problem = f"the value is not text (its type is {cell})"
        elif "\0" in cell:
            problem = "the text contains a NUL character"
        elif re.search("[\ud800-\udc7f\udd00-\udfff]" if is_path else "[\ud800-\udfff]", cell):
            problem = "the text is not UTF-8"
            fix = "save the table in UTF-8 (in Excel: CSV UTF-8)"
        if problem:
            raise self.error(problem, column=column, fix=fix)
        return cell

    def column_named(self, header: Sequence[str], name: str, option: str = "") -> int:
        """Return the index of the column that `option` names, perhaps in other case."""
        titles = [cell.strip() for cell in header]
        found = [i for i, title in enumerate(titles) if title == name]
        found = found or [i for i, title in enumerate(titles) if title.lower() == name.lower()]
        if len(found) != 1:
            many = "more than one column named" if found else "no column named"
            listed = listing((title[:40] for title in titles), most=12) or "nothing"
            problem = f"{many} {name}{f' ({option})' * bool(option)}. Columns found: {listed}"
            raise self.error(problem, fix="choose one of these columns")
        return found[0]

    def error(
        self, problem: str, *, line: int = 0, column: str = "", fix: str = ""
    ) -> DataError | RunError:
        """Return the error for a problem in a column of a line (default: the line read last)."""
        line = line or self.line
        places = [str(self.path), f"{self.unit} {line}" * bool(line)]
        places.append(f"column {column.strip()[:40]}" * bool(column))
        return self.kind(f"{', '.join(filter(None, places))}: {problem}", fix=fix or self.fix)


def open_text(file: IO[bytes], head: bytes, newline: str = "") -> io.TextIOWrapper:
    """Open text in UTF-8 or, if `head` has its mark, UTF-16; other bytes become surrogates."""
    encoding = "utf-16" if head[:2] in _UTF_16_MARKS else "utf-8-sig"
    return io.TextIOWrapper(file, encoding, errors="surrogateescape", newline=newline)


def _last_filled(cells: Sequence[str]) -> int:
    return max((i for i, cell in enumerate(cells, start=1) if cell), default=0)


def _has_text(kind: Any) -> bool:  # noqa: ANN401 - a pyarrow type; pyarrow is imported late
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_list(kind) or types.is_large_list(kind):  # of labels or class indices
        inner = kind.value_type
        return types.is_string(inner) or types.is_large_string(inner) or types.is_int64(inner)
    binary = types.is_binary(value) or types.is_large_binary(value) or types.is_binary_view(value)
    return not (types.is_nested(value) or types.is_fixed_size_binary(value) or binary)


def cell_text(value: object) -> str:
    """Convert a JSON or Parquet value to the text of a cell; a missing value or NaN is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # pandas turns integers with gaps into floats
    if isinstance(value, list | dict | bytes):
        cell = _NotText({list: "list", dict: "object", bytes: "binary"}[type(value)])
        if isinstance(value, list) and all(isinstance(one, str | int) for one in value):
            cell.labels = json.dumps(value, ensure_ascii=False)
        return cell
    return str(value)
