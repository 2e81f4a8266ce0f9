"""CSV tables of images: any file name is preserved, and errors name the line."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitft.system.errors import DataError
from vitft.system.text import describe_os_error


def encode_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """Return a table encoded as a CSV file."""
    lines = (",".join(map(quote_cell, cells)) + "\n" for cells in (columns, *rows))
    return "".join(lines).encode("utf-8", "surrogateescape")


def quote_cell(cell: str) -> str:
    """Quote a CSV cell if needed, even for a lone carriage return (unlike Python 3.11's csv)."""
    return '"' + cell.replace('"', '""') + '"' if re.search('[",\r\n]', cell) else cell


class TableReader:
    """Reader of a CSV file, row by row.

    Args:
        path: Path of the file.
        missing: Advice in the error raised if the file cannot be read.
        fix: Advice in the errors raised if the file is invalid.
        separators: Possible cell separators; a later one is used if the header contains it.

    Raises:
        DataError: The file cannot be read.
    """

    def __init__(self, path: Path, *, missing: str, fix: str, separators: str = ",") -> None:
        try:
            self.data = path.read_bytes()
        except OSError as error:
            reason = describe_os_error(error)
            raise DataError(f"cannot read {path}: {reason}", fix=missing) from error
        self.path, self.fix = path, fix
        text = self.data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        first = text.partition("\n")[0]
        separator = separators[-1] if separators[-1] in first else separators[0]
        self.reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)

    def __iter__(self) -> Iterator[list[str]]:
        try:
            yield from self.reader
        except csv.Error as error:
            raise self.error(str(error)) from error

    def error(self, problem: str) -> DataError:
        """Return the error for a problem with the row read last."""
        line = max(1, self.reader.line_num)
        return DataError(f"{self.path}, line {line}: {problem}", fix=self.fix)
