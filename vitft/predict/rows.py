"""Rows of predictions as a table, JSON, JSONL, CSV or Parquet; `excel` writes Excel files."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vitft.predict.prediction import DECIMALS, Prediction, column_names, summarise
from vitft.predict.tally import Tally
from vitft.system.console import visible
from vitft.system.text import csv_line, json_line

BYTE_ORDER_MARK = "\ufeff"
"""First character of a CSV file that Excel is to read as UTF-8."""


class RowWriter:
    """Writer of predictions as a table, JSON, JSONL or CSV.

    It passes each line, without its line break, to the function `write`. `labels` contains all
    labels of a multi-label model; it is empty for other models. With `bom`, a CSV file begins with
    a byte order mark.
    """

    def __init__(
        self,
        style: str,
        top_k: int,
        write: Callable[[str], object],
        labels: Sequence[str] = (),
        *,
        bom: bool = False,
    ) -> None:
        self.mark = BYTE_ORDER_MARK if bom else ""
        self.style, self.top_k, self.write, self.labels = style, top_k, write, labels
        self.count = self.errors = 0
        self.tally = Tally()
        """Classes and notes of the rows written by this process, but not before a resumption."""
        self.has_begun = False
        self.pending_json = ""
        """Latest JSON row, held back because a comma must follow every row but the last."""
        self.unaligned: list[tuple[str, str]] | None = [("path", "prediction")]
        """Rows held back until the width of the first column is known; None afterwards."""
        self.width = 0

    def begin(self) -> None:
        """Write the CSV header or the opening bracket of JSON, if not yet written."""
        if not self.has_begun and self.style in ("csv", "json"):
            header = self.mark + csv_line(column_names(self.top_k, self.labels))
            self.write(header if self.style == "csv" else "[")
        self.has_begun = True

    def add(self, prediction: Prediction) -> None:
        """Count a prediction and write its row."""
        self.begin()
        self.count += 1
        self.errors += bool(prediction.error)
        self.tally.add(prediction)
        self.write_row(prediction)

    def write_row(self, prediction: Prediction) -> None:
        """Write the row of a prediction, or hold it back."""
        if self.style == "csv":
            cells = prediction.to_cells(self.top_k, self.labels)
            self.write(csv_line([*map(format_csv_cell, cells)]))
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
        self.width = max(len(path) for path, _ in rows)
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


class ParquetRowWriter(RowWriter):
    """Writer that collects rows and writes them to Parquet one row group at a time."""

    def __init__(
        self,
        top_k: int,
        write_group: Callable[[list[dict[str, Any]]], None],
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__("parquet", top_k, write=lambda _: None, labels=labels)
        self.write_group = write_group
        self.pending: list[dict[str, Any]] = []

    def write_row(self, prediction: Prediction) -> None:
        cells = utf8_cells(prediction.to_cells(self.top_k, self.labels))
        names = column_names(self.top_k, self.labels)
        self.pending.append(dict(zip(names, cells, strict=True)))
        if len(self.pending) >= 1024:
            self.close()

    def close(self) -> None:
        """Write the collected rows as a row group."""
        self.write_group(self.pending)
        self.pending = []


def utf8_cells(cells: Iterable[str | float | None]) -> list[str | float | None]:
    """Return cells with bytes that are invalid in UTF-8 as escapes."""
    return [
        cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
        for cell in cells
    ]
