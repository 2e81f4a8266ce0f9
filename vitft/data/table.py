"""Reading and writing of CSV tables. Cells may contain any file name, and errors name the line."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitft.system.errors import DataError, RunError
from vitft.system.files import read_regular
from vitft.system.text import describe_os_error

MAX_TABLE_BYTES = 2**32


def encode_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """Encode a table as the content of a CSV file."""
    lines = (",".join(map(quote_cell, cells)) + "\n" for cells in (columns, *rows))
    return "".join(lines).encode("utf-8", "surrogateescape")


def quote_cell(cell: str) -> str:
    """Quote a CSV cell if needed.

    A cell with a carriage return is quoted too; the csv module of Python 3.11 does not do this.
    """
    return '"' + cell.replace('"', '""') + '"' if re.search('[",\r\n]', cell) else cell


class TableReader:
    """Reader of a CSV file, row by row.

    Args:
        path: Path of the file.
        missing: Fix to suggest if the file cannot be read.
        fix: Fix to suggest if the file is invalid.
        error: Class of the errors to raise.
        separators: Possible cell separators. The last one is used if the header contains it, and
            the first one otherwise.

    Raises:
        DataError: The file cannot be read. If `error` is given, that class is raised instead.
    """

    def __init__(
        self,
        path: Path,
        *,
        missing: str,
        fix: str,
        error: type[DataError | RunError] = DataError,
        separators: str = ",",
    ) -> None:
        try:
            self.data = read_regular(path, limit=MAX_TABLE_BYTES)
        except OSError as failure:
            reason = describe_os_error(failure)
            raise error(f"cannot read {path}: {reason}", fix=missing) from failure
        self.path, self.fix, self.kind = path, fix, error
        text = self.data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        first = text.partition("\n")[0]
        separator = separators[-1] if separators[-1] in first else separators[0]
        self.reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)

    def __iter__(self) -> Iterator[list[str]]:
        try:
            yield from self.reader
        except csv.Error as error:
            raise self.error(str(error)) from error

    def error(self, problem: str) -> DataError | RunError:
        """Return the error for a problem with the most recently read row."""
        line = max(1, self.reader.line_num)
        return self.kind(f"{self.path}, line {line}: {problem}", fix=self.fix)
