"""Answers as text: every format, files resumed to the same bytes, parts merged in order."""

import csv
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitft.predict.output import Kept, Share, check_out, into_file, kept_rows, part_path
from vitft.predict.rows import Row, Rows, style_of
from vitft.system.errors import RunError, UsageError

ODD = [
    "a.jpg",
    "=1+1.jpg",
    'quo"te.jpg',
    "line\nbreak.jpg",
    "comma, blank.jpg",
    "b\udcff.jpg",
    "ü.jpg",
]
ANSWERS = [
    Row(f"{i} {ODD[i % 7]}", error="empty file") if i % 5 == 3
    else Row(f"{i} {ODD[i % 7]}", ["=rose", "tulip"], [0.75, 0.25], notes=["not sure"] * (i % 2))
    for i in range(50)
]  # fmt: skip
NOTHING = Kept(0, 0, 0)
BOTH = pytest.mark.parametrize("style", ["jsonl", "csv"])


def written(style: str, rows: list[Row]) -> list[str]:
    lines: list[str] = []
    out = Rows(style, 2, lines.append)
    for row in rows:
        out.add(*row)
    out.close()
    return lines


def write(out: Path, style: str, rows: list[Row], share: Share, kept: Kept = NOTHING) -> Rows:
    with into_file(out, style, 2, share, kept) as file:
        for row in rows:
            file.add(*row)
    return file


def names() -> Iterator[str]:
    return (row.path for row in ANSWERS)


def test_json_is_one_list_written_as_it_grows() -> None:
    assert json.loads("\n".join(written("json", ANSWERS)))[3] == {
        "path": ANSWERS[3].path,
        "error": "empty file",
    }
    assert json.loads("\n".join(written("json", []))) == []
    assert written("json", ANSWERS)[1].endswith(",")


def test_csv_cells_are_no_formulas_and_every_row_has_every_column() -> None:
    text = "\r\n".join(written("csv", [Row("=x.jpg", ["=rose"], [1.0]), *ANSWERS]))

    rows = list(csv.reader(io.StringIO(text, newline="")))

    assert rows[0] == ["path", "class_1", "share_1", "class_2", "share_2", "note", "error"]
    assert rows[1] == ["'=x.jpg", "'=rose", "1.000000", "", "", "", ""]
    assert rows[3][5] == "not sure"
    assert {len(row) for row in rows} == {7}


def test_the_table_lines_up_and_hides_no_command() -> None:
    lines = written(
        "table", [Row("\x1b[2J.jpg", ["a\nb"], [0.5], notes=["not sure"]), Row("x", error="bad")]
    )

    assert lines == [
        "image        answer",
        r"\x1b[2J.jpg  a\nb 50.0% (not sure)",
        "x            error: bad",
    ]


def test_a_long_table_begins_before_its_end() -> None:
    lines: list[str] = []
    out = Rows("table", 1, lines.append)

    for i in range(150):
        out.add(f"{i}.jpg", ["a"], [1.0])

    assert len(lines) > 100


@BOTH
def test_a_file_gets_its_name_when_it_is_whole(style: str, tmp_path: Path) -> None:
    out, share = tmp_path / f"o.{style}", Share(chunk=4)

    with pytest.raises(ValueError, match=r"strict|longer|shorter"):
        write(out, style, [ANSWERS[0], Row("x", ["rose"], [])], share)  # ends in the middle

    assert not out.exists()
    assert part_path(out, share).exists()
    with pytest.raises(RunError, match="unfinished run"):
        check_out(out, share, resume=False)
    check_out(out, share, resume=True)


@BOTH
def test_wherever_it_was_cut_a_resumed_file_has_the_same_bytes(style: str, tmp_path: Path) -> None:
    share, whole = Share(chunk=4), tmp_path / f"whole.{style}"
    write(whole, style, ANSWERS, share)
    data = whole.read_bytes()

    for size in [*range(0, len(data), 41), len(data) - 1, len(data)]:
        out = tmp_path / f"{size}.{style}"
        part_path(out, share).write_bytes(data[:size])
        kept = kept_rows(part_path(out, share), style, 2, names(), share.chunk)
        done = write(out, style, ANSWERS[kept.rows :], share, kept)

        assert kept.rows % 4 == 0
        assert kept.size <= size
        assert out.read_bytes() == data
        assert (done.count, done.errors) == (50, 10)
    assert kept.rows == 48  # of a whole file: what is computed together is computed together again


@BOTH
def test_other_images_or_columns_are_not_resumed(style: str, tmp_path: Path) -> None:
    part = tmp_path / "o.part"
    write(tmp_path / "o", style, ANSWERS, Share())
    (tmp_path / "o").rename(part)

    with pytest.raises(RunError, match=r"row 3 is of .*, wanted: another"):
        kept_rows(part, style, 2, iter([*itertools.islice(names(), 2), "another"]), 4)
    with pytest.raises(RunError, match=r"row 50 is of .*, wanted: none"):
        kept_rows(part, style, 2, itertools.islice(names(), 49), 4)
    with pytest.raises(RunError, match=r"columns|classes"):
        kept_rows(part, style, 1, names(), 4)


@BOTH
def test_a_file_that_is_not_ours_is_not_cut(style: str, tmp_path: Path) -> None:
    part = tmp_path / "o.part"
    part.write_text("dear diary\n" * 5)

    with pytest.raises(RunError, match="cannot resume"):
        kept_rows(part, style, 2, names(), 4)
    assert part.read_text() == "dear diary\n" * 5


@BOTH
@pytest.mark.parametrize("world", [2, 3, 20])
def test_parts_are_merged_in_order_by_whoever_ends_last(
    style: str, world: int, tmp_path: Path
) -> None:
    alone, out = tmp_path / "alone", tmp_path / "together"
    write(alone, style, ANSWERS, Share(chunk=4))

    for rank in reversed(range(world)):  # any order
        assert not out.exists()
        own = [row for i, row in enumerate(ANSWERS) if i // 4 % world == rank]
        write(out, style, own, Share(rank=rank, world=world, chunk=4))

    assert out.read_bytes() == alone.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone", "together"]


def test_parquet_has_the_columns_of_csv_with_numbers(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "o.parquet"

    write(out, "parquet", ANSWERS * 30, Share())  # more than one group of rows

    table = parquet.read_table(out)
    assert table.num_rows == 1500
    rows = table.slice(0, 4).to_pylist()
    assert rows[0]["path"] == "0 a.jpg"
    assert (rows[0]["class_1"], rows[0]["share_2"], rows[0]["error"]) == ("=rose", 0.25, "")
    assert (rows[3]["class_1"], rows[3]["share_1"], rows[3]["error"]) == (None, None, "empty file")
    assert not (tmp_path / "o.parquet.part").exists()


def test_parquet_that_fails_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    with pytest.raises(ValueError, match=r"strict|longer|shorter"):
        write(tmp_path / "o.parquet", "parquet", [Row("x", ["rose"], [])], Share())

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wanted", "out", "style"),
    [
        (None, None, "table"),
        (None, "x.csv", "csv"),
        (None, "X.JSONL", "jsonl"),
        ("csv", "x.txt", "csv"),
    ],
)
def test_the_format_is_what_was_asked_for_or_what_the_file_is_called(
    wanted: str | None, out: str | None, style: str
) -> None:
    assert style_of(wanted, out) == style


def test_what_cannot_be_written_is_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    with pytest.raises(UsageError, match="add --format"):
        style_of(None, "x.dat")
    with pytest.raises(UsageError, match="not for a terminal"):
        style_of("parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"pip install 'vitft\[parquet\]'"):
        style_of(None, "x.parquet")


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    from vitft.system.errors import ResourceError

    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    out = tmp_path / "o.jsonl"
    part_path(out, Share()).symlink_to(full)

    with pytest.raises((ResourceError, RunError), match=r"disk full|cannot write"):
        write(out, "jsonl", ANSWERS * 50, Share())
