"""Predictions as text: one row per image as a table, JSON, JSONL or CSV.

Files of rows, and how they are resumed, are in `output`.
"""

from collections.abc import Callable
from pathlib import Path

from vitft.predict.prediction import DECIMALS, Prediction, column_names
from vitft.system.console import visible
from vitft.system.errors import UsageError
from vitft.system.imports import require_extra
from vitft.system.text import csv_line, json_line, percent

ROW_FORMATS = ("table", "json", "jsonl", "csv", "parquet")
FORMAT_OF_SUFFIX = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv",
                    ".parquet": "parquet", ".pq": "parquet", ".txt": "table"}  # fmt: skip
ALIGNED_ROWS = 100
"""Rows of a table that decide how wide its first column is."""


class RowWriter:
    """Writes predictions one by one as text.

    Args:
        style: table, json, jsonl or csv.
        top_k: Classes per row.
        write: Takes one line without its end.
    """

    def __init__(self, style: str, top_k: int, write: Callable[[str], object]) -> None:
        self.style, self.top_k, self.write = style, top_k, write
        self.count = self.errors = 0
        self.has_begun = False
        self.pending_json = ""
        self.unaligned: list[tuple[str, str]] | None = [("path", "prediction")]
        self.width = 0

    def begin(self) -> None:
        """Write what comes before the first row, once."""
        if self.has_begun:
            return
        self.has_begun = True
        if self.style == "csv":
            self.write(csv_line(column_names(self.top_k)))
        elif self.style == "json":
            self.write("[")

    def add(self, prediction: Prediction) -> None:
        """Write one prediction."""
        self.begin()
        self.count += 1
        self.errors += bool(prediction.error)
        self.write_row(prediction)

    def write_row(self, prediction: Prediction) -> None:
        """Write the row of a prediction."""
        if self.style == "csv":
            cells = prediction.to_cells(self.top_k)
            self.write(csv_line([format_csv_cell(cell) for cell in cells]))
        elif self.style == "jsonl":
            self.write(json_line(prediction.to_dict()))
        elif self.style == "json":
            self.write_json_item(f"  {json_line(prediction.to_dict())}")
        else:
            self.write_table_row(visible(prediction.path), summarise(prediction))

    def write_json_item(self, line: str) -> None:
        """Hold back a line of JSON, which ends in a comma only if another one follows."""
        if self.pending_json:
            self.write(f"{self.pending_json},")
        self.pending_json = line

    def write_table_row(self, path: str, text: str) -> None:
        """Write a row of the table as soon as the width of its first column is known."""
        if self.unaligned is None:
            self.write(f"{path:<{self.width}}  {text}")
            return
        self.unaligned.append((path, text))
        if len(self.unaligned) > ALIGNED_ROWS:
            self.align()

    def align(self) -> None:
        """Write the rows that were held back to find the width of the first column."""
        rows, self.unaligned = self.unaligned or [], None
        self.width = max((len(path) for path, _ in rows), default=0)
        for path, text in rows:
            self.write_table_row(path, text)

    def close(self) -> None:
        """Write what comes after the last row."""
        self.begin()
        if self.style == "json":
            if self.pending_json:
                self.write(self.pending_json)
            self.write("]")
        elif self.style == "table" and self.unaligned is not None:
            self.align()


def format_csv_cell(cell: str | float | None) -> str:
    """Format one cell of CSV: a probability with all its decimals, nothing for None."""
    if isinstance(cell, float):
        return f"{cell:.{DECIMALS}f}"
    return cell or ""


def summarise(prediction: Prediction) -> str:
    """Format a prediction in words, such as `rose 97.1 %, lily 2.0 % (not sure)`."""
    if prediction.error:
        return visible(f"error: {prediction.error}")
    pairs = zip(prediction.classes, prediction.probabilities, strict=True)
    best = ", ".join(f"{visible(name)} {percent(probability)}" for name, probability in pairs)
    return f"{best} ({', '.join(prediction.notes)})" if prediction.notes else best


def choose_format(wanted: str | None, out: str | None) -> str:
    """Return the format that was asked for, or that the suffix of the file implies.

    Raises:
        UsageError: Neither names one; or Parquet is asked for without a file or pyarrow.
    """
    style = wanted or (
        "table" if out is None else FORMAT_OF_SUFFIX.get(Path(out).suffix.lower(), "")
    )
    if not style:
        raise UsageError(
            f"the suffix of --out {out} implies no format; known suffixes are "
            f"{', '.join(FORMAT_OF_SUFFIX)}",
            fix="add --format jsonl (or csv, json, table, parquet)",
        )
    if style == "parquet":
        if out is None:
            raise UsageError(
                "Parquet cannot be written to the terminal", fix="add --out predictions.parquet"
            )
        require_extra("parquet", feature="--format parquet")
    return style
