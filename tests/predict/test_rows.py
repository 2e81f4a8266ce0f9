"""Rows of predictions as text, one line at a time."""

import json

import pytest

from vitft.predict.prediction import NOT_SURE, Prediction
from vitft.predict.rows import BYTE_ORDER_MARK, ParquetRowWriter, RowWriter, format_csv_cell


def row(path: str, *classes: str, **more: object) -> Prediction:
    probabilities = (0.75, 0.25)[: len(classes)]
    return Prediction(path=path, classes=classes, probabilities=probabilities, **more)  # type: ignore[arg-type]


def lines_of(style: str, rows: list[Prediction], *, bom: bool = False) -> list[str]:
    found: list[str] = []
    writer = RowWriter(style, 1, found.append, bom=bom)
    for one in rows:
        writer.add(one)
    writer.close()
    return found


def test_a_header_is_written_once_even_without_rows() -> None:
    header = "path,class,probability,notes,error"

    assert lines_of("csv", []) == [header]
    assert lines_of("csv", [row("a", "x"), row("b", "y")]) == [
        *(header, "a,x,0.750000,,", "b,y,0.750000,,"),
    ]
    assert lines_of("csv", [], bom=True) == [BYTE_ORDER_MARK + header]
    assert lines_of("jsonl", []) == []
    assert lines_of("json", []) == ["[", "]"]


def test_a_resumed_file_gets_no_second_header() -> None:
    found: list[str] = []
    writer = RowWriter("csv", 1, found.append)
    writer.has_begun = True

    writer.add(row("a", "x"))
    writer.close()

    assert found == ["a,x,0.750000,,"]


def test_every_json_row_but_the_last_ends_with_a_comma() -> None:
    found = lines_of("json", [row("a", "x"), row("b", "y"), row("c", "z")])

    assert found[0] == "["
    assert found[-1] == "]"
    assert [line.endswith(",") for line in found[1:-1]] == [True, True, False]
    assert [one["path"] for one in json.loads("".join(found))] == ["a", "b", "c"]


def test_rows_and_errors_are_counted_and_classes_tallied() -> None:
    writer = RowWriter("jsonl", 1, lambda _: None)

    for one in (row("a", "x"), Prediction(path="b", error="bad"), row("c", "x", notes=(NOT_SURE,))):
        writer.add(one)

    assert (writer.count, writer.errors) == (3, 1)
    assert [*writer.tally.lines()] == ["predicted: x: 2", "marked: 1 not sure, 1 unreadable"]


def test_the_first_hundred_rows_of_a_table_are_aligned_and_then_each_is_printed() -> None:
    found: list[str] = []
    writer = RowWriter("table", 1, found.append)

    for i in range(99):
        writer.add(row(f"{i}", "x"))
    assert found == []
    writer.add(row("a longer path", "x"))
    assert len(found) == 101  # with the header
    writer.add(row("b", "y"))
    writer.add(row("a path that is longer than all before", "y"))
    writer.close()

    assert found[0] == "path           prediction"
    assert found[1] == "0              x 75.0%"
    assert found[100] == "a longer path  x 75.0%"
    assert found[101:] == [
        "b              y 75.0%",
        "a path that is longer than all before  y 75.0%",
    ]


def test_a_short_table_is_printed_at_the_end() -> None:
    assert lines_of("table", [row("a", "x")]) == ["path  prediction", "a     x 75.0%"]
    assert lines_of("table", []) == ["path  prediction"]


@pytest.mark.parametrize(
    ("cell", "text"), [(0.5, "0.500000"), (1e-9, "0.000000"), (None, ""), ("rose", "rose")]
)
def test_a_probability_has_six_decimal_places_in_csv(cell: float | str | None, text: str) -> None:
    assert format_csv_cell(cell) == text


def test_parquet_rows_are_written_in_groups_of_1024() -> None:
    groups: list[int] = []
    writer = ParquetRowWriter(1, lambda group: groups.append(len(group)))

    for i in range(2050):
        writer.add(row(f"{i}", "x"))
    assert groups == [1024, 1024]
    writer.close()

    assert groups == [1024, 1024, 2]
