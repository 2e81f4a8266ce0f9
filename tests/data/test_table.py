"""Tables of any format as rows of text, and the place of every error."""

import io
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from vitft.data.table import (
    TableReader,
    base_folder,
    encode_table,
    is_table,
    is_utf8,
    last_filled,
    leads_outside,
    path_in,
)
from vitft.system.errors import DataError, RunError


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
    ("text", "rows"),
    [
        pytest.param("a,b\n1;2,3\n", [["a", "b"], ["1;2", "3"]], id="commas"),
        pytest.param("a;b\n1;2,3\n", [["a", "b"], ["1", "2,3"]], id="semicolons"),
        pytest.param('a,b\n"1,2","x""y"\n', [["a", "b"], ["1,2", 'x"y']], id="quotes"),
        pytest.param('"a,b,c";d\n1;2\n', [["a,b,c", "d"], ["1", "2"]], id="quoted header"),
        pytest.param("a\tb, c\n1\t2,3\n", [["a", "b, c"], ["1", "2,3"]], id="tabs"),
        pytest.param("a|b\n1|2\n", [["a", "b"], ["1", "2"]], id="bars"),
        pytest.param('"sep=|"\r\na,b|c\r\n1|2\r\n', [["a,b", "c"], ["1", "2"]], id="sep"),
        pytest.param("\n# x, y, z\na;b\n#1;2\n", [["a", "b"], ["#1", "2"]], id="remark"),
        pytest.param("#,a\n1,2\n", [["#", "a"], ["1", "2"]], id="a column of numbers"),
        pytest.param("a,b\n1,2,\n3,4,,\n", [["a", "b"], ["1", "2"], ["3", "4"]], id="trailing"),
        pytest.param("a,b,\n1,2\n3\n", [["a", "b", ""], ["1", "2", ""], ["3"]], id="unnamed"),
    ],
)
def test_the_header_determines_the_separator(
    tmp_path: Path, text: str, rows: list[list[str]]
) -> None:
    assert list(reader(tmp_path / "t.csv", text)) == rows


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("1.0", "1"), ("-2.0", "-2"), ("0.5", "0.5"), ("7", "7"), ("true", "true"),
        ("false", "false"), ("null", ""), ('"1.0"', "1.0"), ("[1]", "list"), ("{}", "object"),
    ],
)  # fmt: skip
def test_json_values_become_the_text_of_cells(tmp_path: Path, value: str, cell: str) -> None:
    (header, row, other) = reader(tmp_path / "t.jsonl", f'\n{{"a": {value}}}\n{{"b": 1}}\n')

    assert (header, row, other) == (["a", "b"], [cell, ""], ["", "1"])


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


def test_an_error_names_the_line_read_last(tmp_path: Path) -> None:
    lines = iter(table := reader(tmp_path / "t.jsonl", '\n{"a": 1}\n\n{"a": 2}\n'))

    next(lines)
    assert table.line == 1
    assert [table.line for _ in lines] == [2, 4]
    lines = iter(table := reader(tmp_path / "t.csv", 'a\n"1\n2"\n3\n'))
    assert [table.line for _ in lines] == [1, 3, 4]
    error = table.error("odd", line=2, column=" a ", fix="another")
    assert str(error) == f"{tmp_path}/t.csv, line 2, column a: odd\n  fix: another"


def test_a_csv_error_is_on_line_1_at_least(tmp_path: Path) -> None:
    table = reader(tmp_path / "t.csv", "x" * 200_000, error=RunError)

    with pytest.raises(RunError, match=r"t.csv, line 1: field larger than"):
        list(table)


def test_rows_of_parquet_are_counted_from_1_after_the_header(tmp_path: Path) -> None:
    lines = iter(table := parquet(tmp_path / "t.parquet", {"a": ["x", "y", None]}))

    next(lines)
    assert str(table.error("odd")).startswith(f"{tmp_path}/t.parquet: odd")
    assert [(table.line, cells) for cells in lines] == [(1, ["x"]), (2, ["y"]), (3, [""])]
    assert str(table.error("odd")).startswith(f"{tmp_path}/t.parquet, row 3: odd")


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
    assert [type(cell).__name__ for cell in row[4:]] == ["NotText"] * 6


def test_rows_of_a_sheet_have_the_width_of_the_header_unless_they_are_longer(
    tmp_path: Path,
) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    for cells in (["a", "b"], ["1"], ["1", "2", "3"], [None, "2", None, None]):
        book.active.append(cells)
    book.save(tmp_path / "t.xlsx")

    rows = list(TableReader(tmp_path / "t.xlsx", missing="-", fix="-"))

    assert rows == [["a", "b"], ["1", ""], ["1", "2", "3"], ["", "2"]]
    assert [last_filled(cells) for cells in (["", "x", ""], ["x"], [""], [])] == [2, 1, 0, 0]


def test_a_table_may_have_4_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def read(path: Path, *, limit: int) -> bytes:
        limits.append(limit)
        return path.read_bytes()

    monkeypatch.setattr("vitft.data.table.read_regular", read)

    assert list(reader(tmp_path / "t.csv", "a\n")) == [["a"]]
    assert limits == [4 * 2**30]


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


@pytest.mark.parametrize(
    ("path", "relative"),
    [
        ("a//b.jpg", "a/b.jpg"), ("./a.jpg", "a.jpg"), ("a/./b.jpg", "a/b.jpg"),
        ("/data//a.jpg", "a.jpg"), ("a./b.jpg", "a./b.jpg"), ("/data/./a.jpg", "a.jpg"),
    ],
)  # fmt: skip
def test_empty_parts_of_a_path_are_left_out(path: str, relative: str) -> None:
    assert path_in(Path("/data"), path) == relative


def test_bytes_that_are_not_utf_8_are_known() -> None:
    assert is_utf8("ä/\u2028")
    assert not is_utf8("a\udcff")


def test_paths_that_lead_outside_are_known() -> None:
    paths = ("a/b.jpg", "../a.jpg", "a/../b.jpg", "/a.jpg", "a..b/c.jpg")

    assert [leads_outside(path) for path in paths] == [False, True, True, True, False]


def test_a_folder_with_the_name_of_a_table_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data.csv").mkdir()

    assert not is_table(tmp_path / "data.csv")
    assert is_table(tmp_path / "other.CSV")
    assert base_folder(tmp_path / "data.csv", "x") == tmp_path / "data.csv"
    assert base_folder(tmp_path / "other.csv", "") == tmp_path
    assert base_folder(tmp_path / "other.csv", "x") == Path("x")


def test_a_table_in_a_closed_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: Path) -> bool:
        raise PermissionError("closed")

    monkeypatch.setattr(Path, "is_dir", closed)

    assert is_table(Path("x.csv")) is False


def test_a_byte_order_mark_is_written_only_on_request(tmp_path: Path) -> None:
    rows = [["a,b", 'x"y']]

    plain, marked = encode_table(["p", "q"], rows), encode_table(["p", "q"], rows, bom=True)

    assert plain == b'p,q\n"a,b","x""y"\n'
    assert marked == b"\xef\xbb\xbf" + plain
    assert list(reader(tmp_path / "t.csv", marked)) == [["p", "q"], *rows]


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
