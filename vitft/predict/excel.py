"""Rows of predictions as an Excel worksheet that can be read, sorted and filtered at once.

The header is bold and stays in view, it has a filter, columns fit their content, long texts are
wrapped, and probabilities are numbers that are shown as percentages.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitft.predict.prediction import Prediction, column_names
from vitft.predict.rows import RowWriter, utf8_cells
from vitft.system.errors import RunError
from vitft.system.files import temporary_file, writing

if TYPE_CHECKING:
    from openpyxl.cell import WriteOnlyCell

_EXCEL_ROWS = 2**20 - 1
"""Maximum number of rows of an Excel worksheet below its header."""
_EXCEL_CELL = 32_767
"""Maximum number of characters in a cell of an Excel worksheet; the rest is left out."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Control characters that XML, and so an Excel file, cannot contain."""
_ROWS_FOR_WIDTHS = 500
"""Number of rows to which the widths of the columns are fitted; openpyxl writes widths first."""
MIN_WIDTH, MAX_WIDTH = 10, 60
"""Width of a column in characters; longer texts are wrapped."""
_FILTER_WIDTH = 4
"""Characters of the header beside which the button of the filter fits."""
_NOTES_WIDTH = 28
"""Minimum width of the notes, most of which are in rows that come later."""


class _ExcelRowWriter(RowWriter):
    r"""Writer of the rows of an Excel file, to a write-only worksheet of openpyxl.

    Text that begins like a formula stays text, and control characters, which the format does not
    allow, become escapes such as `\x07`.
    """

    def __init__(self, sheet: Any, top_k: int, labels: Sequence[str] = ()) -> None:  # noqa: ANN401
        super().__init__("xlsx", top_k, write=lambda _: None, labels=labels)
        self.sheet = sheet
        self.names = [str(_clean_cell(name)) for name in column_names(top_k, labels)]
        self.cells = [_styled_cell(sheet, name) for name in self.names]
        self.held_back: list[list[str | float | None]] | None = []
        """Rows held back until the widths of the columns are known; None afterwards."""

    def begin(self) -> None:
        """Do nothing: the header is written once the widths of the columns are known."""

    def write_row(self, prediction: Prediction) -> None:
        if self.count > _EXCEL_ROWS:
            raise RunError(
                f"an Excel file has at most {_EXCEL_ROWS + 1:,} rows, and there are more images",
                fix="use --out FILE.csv or FILE.parquet, or fewer images at a time",
            )
        row = [*map(_clean_cell, utf8_cells(prediction.to_cells(self.top_k, self.labels)))]
        if self.held_back is None:
            self.append(row)
            return
        self.held_back.append(row)
        if len(self.held_back) >= _ROWS_FOR_WIDTHS:
            self.release()

    def release(self) -> None:
        """Set the widths of the columns, and write the header and the rows held back."""
        from openpyxl.styles import Font
        from openpyxl.utils import get_column_letter

        rows, self.held_back = self.held_back or [], None
        for i, name in enumerate(self.names):
            width = _column_width(name, [row[i] for row in rows])
            self.sheet.column_dimensions[get_column_letter(i + 1)].width = width
        bold = Font(name="Calibri", size=11, bold=True)  # openpyxl's font, otherwise without a name
        header = [_styled_cell(self.sheet, "") for _ in self.names]
        for cell, name in zip(header, self.names, strict=True):
            cell.value, cell.data_type, cell.font = name, "s", bold
        self.sheet.append(header)
        for row in rows:
            self.append(row)

    def append(self, row: Iterable[str | float | None]) -> None:
        """Write a row; a text cell is never evaluated as a formula."""
        cells = []
        for cell, value in zip(self.cells, row, strict=True):
            cell.value = value
            if isinstance(value, str):
                cell.data_type = "s"
            cells.append(None if value is None else cell)
        self.sheet.append(cells)  # writes the values, so the cells can be used again

    def close(self) -> None:
        """Write the rows held back, and add the filter."""
        from openpyxl.utils import get_column_letter

        if self.held_back is not None:
            self.release()
        self.sheet.auto_filter.ref = f"A1:{get_column_letter(len(self.names))}{self.count + 1}"


def _clean_cell(value: str | float | None) -> str | float | None:
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


def _column_width(name: str, values: Iterable[str | float | None]) -> int:
    """Return the width of a column in characters that fits its header and its values."""
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    least = _NOTES_WIDTH if name == "notes" else MIN_WIDTH
    return min(MAX_WIDTH, max(least, len(name) + _FILTER_WIDTH, longest + 1))


@contextlib.contextmanager
def open_excel(out: Path, top_k: int, labels: Sequence[str] = ()) -> Iterator[RowWriter]:
    """Open an Excel file with the same columns as CSV output; probabilities are numbers.

    The rows are kept in a temporary file of openpyxl, not in memory.

    Raises:
        ResourceError: The disk is full.
        RunError: The file cannot be written, or has too many rows.
    """
    from openpyxl import Workbook
    from openpyxl.worksheet.properties import PageSetupProperties

    with writing(out), temporary_file(out) as (descriptor, temporary):
        os.close(descriptor)
        book = Workbook(write_only=True)
        sheet = book.create_sheet("predictions")
        sheet.freeze_panes = "A2"
        sheet.print_title_rows = "1:1"
        sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
        sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)  # all columns
        rows = _ExcelRowWriter(sheet, top_k, labels)
        try:
            yield rows
            rows.close()
        except BaseException:
            with contextlib.suppress(OSError):
                sheet.close()  # ends the temporary file, which openpyxl removes at exit
            raise
        book.save(temporary)
        temporary.replace(out)
