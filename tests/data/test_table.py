"""Tables of any format as rows of text, and the place of every error."""

import io
import math
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_folder import touch
from vitft.data import scan
from vitft.system import DataError


def problem(path: Path, content: bytes | str) -> str:
    """What is wrong with a table with this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError) as caught:
        scan(path)
    return caught.value.problem


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        pytest.param(lambda pa: pa.array(["a", "b"]).dictionary_encode(), "a b", id="named"),
        pytest.param(lambda pa: pa.array([3.0, 4.0]), "3 4", id="whole"),
        pytest.param(lambda pa: pa.array([True, False]), "false true", id="flags"),
        pytest.param(lambda pa: pa.array([b"x", b"y"]), "", id="bytes"),
        pytest.param(lambda pa: pa.array([b"x", b"y"], pa.large_binary()), "", id="many"),
        pytest.param(lambda pa: pa.array([b"x", b"y"], pa.binary_view()), "", id="view"),
        pytest.param(lambda pa: pa.array([b"xy", b"yz"], pa.binary(2)), "", id="fixed"),
        pytest.param(lambda pa: pa.array([{"bytes": b"x"}, {"bytes": b"y"}]), "", id="nested"),
    ],
)
def test_values_of_parquet_become_text_unless_they_are_nested_or_binary(
    tmp_path: Path, labels: Callable[[Any], Any], classes: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    touch(tmp_path, "1.png", "2.png")
    columns = {"path": ["1.png", "2.png"], "label": labels(pa), "box": [[[1]], [[2]]]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")

    if classes:
        assert scan(tmp_path / "t.parquet").classes == tuple(classes.split())
        return
    with pytest.raises(DataError, match="the value is not text"):
        scan(tmp_path / "t.parquet")


def test_nan_in_parquet_is_a_missing_value(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    names = ["1.png", "2.png", "3.png"]
    touch(tmp_path, *names)
    columns = {"path": names, "label": ["a", "b", "a"], "patient": [7.0, math.nan, math.nan]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")

    groups = {row.path: row.group for row in scan(tmp_path / "t.parquet").rows}
    assert groups == {"1.png": "7", "2.png": "", "3.png": ""}


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

    found = problem(tmp_path / "t.xlsx", bytes(content))

    assert ("too large once it is unpacked" in found) == is_refused


def test_the_saved_results_of_formulas_are_read(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["path", "label"])
    book.active.append(["a.png", '=CONCATENATE("ro","se")'])
    book.active.append(["b.png", "tulip"])
    book.create_sheet("empty")
    book.create_sheet("new").append(["c.png", "rose"])
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

    touch(tmp_path, "a.png", "b.png")
    found = scan(tmp_path / "t.xlsx")
    assert found.classes == ("rose", "tulip")
    assert found.notes == ("only the worksheet Sheet is read, not new",)
