"""Columns, cells and widths of Excel files."""

from pathlib import Path
from typing import Any, cast

import pytest

from vitft.predict.excel import ExcelRowWriter, clean_cell, column_width, open_excel
from vitft.predict.prediction import Prediction
from vitft.system.errors import RunError

openpyxl = pytest.importorskip("openpyxl")


def write(out: Path, rows: list[Prediction], labels: tuple[str, ...] = ()) -> Any:
    """Write predictions and return the sheet."""
    with open_excel(out, 1, labels) as file:
        for row in rows:
            file.add(row)
    return openpyxl.load_workbook(out).active


def named(path: str, **more: Any) -> Prediction:
    return Prediction(path=path, **{"classes": ("rose",), "probabilities": (0.5,), **more})


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (0.5, 0.5),
        (None, None),
        ("", None),
        ("a\x00b\x1fc\td\ne", "a\\x00b\\x1fc\td\ne"),
        ("x" * 32_767, "x" * 32_767),
        ("x" * 32_768, "x" * 32_767),
    ],
)
def test_a_cell_has_what_excel_can_contain(value: Any, cell: Any) -> None:
    assert clean_cell(value) == cell


@pytest.mark.parametrize(
    ("name", "values", "width"),
    [
        ("path", [], 10),
        ("path", ["x" * 9], 10),
        ("path", ["x" * 10, 0.5, None], 11),
        ("path", ["x" * 58], 59),
        ("path", ["x" * 59], 60),
        ("path", ["x" * 60], 60),
        ("notes", [], 28),
        ("notes", ["x" * 30], 31),
        ("probability", [0.5], 15),  # with room for the button of the filter
        ("class", ["rose"], 10),
    ],
)
def test_a_column_fits_its_header_and_its_texts(name: str, values: list[Any], width: int) -> None:
    assert column_width(name, values) == width


def test_columns_are_fitted_to_the_first_500_rows(tmp_path: Path) -> None:
    short, long = [named("a.jpg")] * 499, [named("x" * 39)]

    fitted = write(tmp_path / "a.xlsx", [*short, *long])
    late = write(tmp_path / "b.xlsx", [*short, named("a.jpg"), *long])

    assert fitted.column_dimensions["A"].width == 40
    assert late.column_dimensions["A"].width == 10
    assert [row[0].value for row in late.iter_rows(min_row=2)] == [
        *["a.jpg"] * 500,
        "x" * 39,
    ]


def test_texts_are_wrapped_and_probabilities_are_percentages_on_the_right(tmp_path: Path) -> None:
    sheet = write(tmp_path / "o.xlsx", [named("a.jpg", notes=("not sure",))])

    cells = {cell.value: other for cell, other in zip(sheet[1], sheet[2], strict=True)}
    for name in ("path", "class", "probability", "notes"):
        assert bool(cells[name].alignment.wrap_text) == (name in ("path", "notes"))
        assert cells[name].alignment.vertical == "top"
    number = cells["probability"]
    assert (number.number_format, number.alignment.horizontal) == ("0.0%", "right")
    assert number.alignment.indent == 1
    assert cells["class"].number_format == "General"
    assert (cells["error"].value, cells["class"].data_type, number.data_type) == (None, "s", "n")


def test_every_label_has_a_column(tmp_path: Path) -> None:
    labels = ("cat", "=dog")
    row = named("a.jpg", classes=labels[::-1], probabilities=(0.75, 0.25), labels=("=dog",))

    sheet = write(tmp_path / "o.xlsx", [row], labels)

    assert [cell.value for cell in sheet[1]] == [
        *("path", "labels", "probability_cat", "probability_=dog", "notes", "error"),
    ]
    assert [cell.value for cell in sheet[2]] == ["a.jpg", "=dog", 0.25, 0.75, None, None]
    assert sheet.auto_filter.ref == "A1:F2"


def test_a_printed_sheet_is_as_wide_as_the_page_and_repeats_its_header(tmp_path: Path) -> None:
    sheet = write(tmp_path / "o.xlsx", [named("a.jpg")])

    assert sheet.title == "predictions"
    assert sheet.print_title_rows.replace("$", "") == "1:1"
    assert (sheet.page_setup.orientation, sheet.page_setup.fitToHeight) == ("landscape", 0)
    assert sheet.sheet_properties.pageSetUpPr.fitToPage


def test_a_failed_file_is_removed(tmp_path: Path) -> None:
    broken = Prediction(path="a.jpg", classes=("rose",))  # without a probability

    with (
        pytest.raises(ValueError, match=r"strict|longer|shorter"),
        open_excel(tmp_path / "o.xlsx", 1) as file,
    ):
        file.add(broken)

    assert [*tmp_path.iterdir()] == []
    assert cast("ExcelRowWriter", file).sheet.closed  # so that openpyxl's own temporary file is too


def test_a_sheet_has_at_most_2_to_the_20_rows_with_its_header(tmp_path: Path) -> None:
    with open_excel(tmp_path / "o.xlsx", 1) as rows:
        rows.count = 2**20 - 2
        rows.add(named("a.jpg"))
        with pytest.raises(RunError, match="at most 1,048,576 rows"):
            rows.add(named("b.jpg"))
