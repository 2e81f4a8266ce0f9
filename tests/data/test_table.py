"""Tables of any format as rows of text, and the place of every error."""

import io
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from vitft.data import TableReader
from vitft.system import DataError


def reader(path: Path, content: bytes | str, **options: Any) -> TableReader:
    """A reader of a table with this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return TableReader(path, missing="-", fix="the usual fix", **options)


def parquet(path: Path, columns: dict[str, Any]) -> TableReader:
    """A reader of a table in Parquet."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as format_

    format_.write_table(pa.table(columns), path)
    return TableReader(path, missing="-", fix="-")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        pytest.param('{"a": 1, b}', "line 3, column 10: the text is not valid JSON", id="syntax"),
        pytest.param('{"a": NaN}', "line 3, column 1: the text is not valid JSON (NaN", id="NaN"),
        pytest.param("7", "line 3, column 1: the text is JSON, but not an object", id="a number"),
    ],
)
def test_broken_json_is_an_error_with_line_and_column(
    tmp_path: Path, line: str, place: str
) -> None:
    with pytest.raises(DataError) as caught:
        list(reader(tmp_path / "t.jsonl", f'{{"a": 1}}\n\n{line}\n'))

    assert f"t.jsonl, {place}" in caught.value.problem
    assert caught.value.fix == "the usual fix"


@pytest.mark.parametrize(
    ("name", "kind"), [("t.parquet", "valid Parquet"), ("t.xlsx", "a valid Excel file")]
)
def test_a_damaged_binary_table_is_an_error_with_the_first_line_of_the_reason(
    tmp_path: Path, name: str, kind: str
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("openpyxl")

    with pytest.raises(DataError) as error:
        list(reader(tmp_path / name, b"PAR1 damaged PAR1"))

    found = re.fullmatch(rf".*/{name}.*: the file is not {kind} \((.*)\)", error.value.problem)
    assert found is not None
    assert len(found[1]) > 10


def test_values_of_parquet_become_text_unless_they_are_nested_or_binary(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = {
        "text": pa.array(["a"]),
        "named": pa.array(["b"]).dictionary_encode(),
        "whole": pa.array([3.0]),
        "is": pa.array([True]),
        "bytes": pa.array([b"x"]),
        "many": pa.array([b"x"], pa.large_binary()),
        "view": pa.array([b"x"], pa.binary_view()),
        "fixed": pa.array([b"xy"], pa.binary(2)),
        "nested": pa.array([{"bytes": b"x"}]),
        "list": pa.array([[1]]),
    }

    header, row = parquet(tmp_path / "t.parquet", columns)

    assert header == [*columns]
    assert row[:4] == ["a", "b", "3", "true"]
    assert str not in {type(cell) for cell in row[4:]}


@pytest.mark.parametrize(("size", "is_refused"), [(2**30, False), (2**30 + 1, True)])
def test_a_sheet_of_more_than_1_gib_once_unpacked_is_refused(
    tmp_path: Path, size: int, is_refused: bool
) -> None:
    pytest.importorskip("openpyxl")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("sheet.xml", b"x")
    content = bytearray(stream.getvalue())
    struct.pack_into("<I", content, content.index(b"PK\1\2") + 24, size)  # in the directory

    with pytest.raises(DataError) as caught:
        list(reader(tmp_path / "t.xlsx", bytes(content)))

    assert ("too large once it is unpacked" in caught.value.problem) == is_refused


def test_the_saved_results_of_formulas_are_read(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["path", "label"])
    book.active.append(["a.png", '=CONCATENATE("ro","se")'])
    book.save(tmp_path / "formula.xlsx")
    with (
        zipfile.ZipFile(tmp_path / "formula.xlsx") as plain,
        zipfile.ZipFile(tmp_path / "t.xlsx", "w") as calculated,
    ):
        for name in plain.namelist():  # as a spreadsheet program saves it, with the result
            text = plain.read(name)
            if name.endswith("sheet1.xml"):
                cell = rb'(<c r="B2")[^>]*>(<f>.*?</f>)<v ?/>'
                text = re.sub(cell, rb'\1 t="str">\2<v>rose</v>', text)
                assert b"<v>rose</v>" in text
            calculated.writestr(name, text)

    rows = list(TableReader(tmp_path / "t.xlsx", missing="-", fix="-"))

    assert rows[-1] == ["a.png", "rose"]
