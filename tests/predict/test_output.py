"""Predictions as text: every format, files resumed to the same bytes, shards merged in order."""

import csv
import io
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitft.data.scan import scan
from vitft.data.sources import sources
from vitft.predict.output import (
    ProcessShard,
    ResumePoint,
    check_output,
    find_resume_point,
    finished_path,
    open_rows,
    parse_record,
    part_path,
    record_path,
)
from vitft.predict.prediction import Prediction, column_names
from vitft.predict.request import choose_format
from vitft.predict.rows import RowWriter
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


def predicted(path: str, *classes: str, notes: tuple[str, ...] = ()) -> Prediction:
    probabilities = (0.75, 0.25) if len(classes) == 2 else (1.0,) * len(classes)
    return Prediction(path=path, classes=classes, probabilities=probabilities, notes=notes)


PREDICTIONS = [
    Prediction(path=f"{i} {ODD[i % 7]}", error="empty file") if i % 5 == 3
    else predicted(f"{i} {ODD[i % 7]}", "=rose", "tulip", notes=("not sure",) * (i % 2))
    for i in range(50)
]  # fmt: skip
BROKEN = Prediction(path="x", classes=("rose",))  # without a probability: writing it fails
START, ALONE = ResumePoint(), ProcessShard()
BOTH = pytest.mark.parametrize("style", ["jsonl", "csv"])


def written(style: str, rows: list[Prediction]) -> list[str]:
    lines: list[str] = []
    out = RowWriter(style, 2, lines.append)
    for row in rows:
        out.add(row)
    out.close()
    return lines


def write(
    out: Path, style: str, rows: list[Prediction], shard: ProcessShard, start: ResumePoint = START
) -> RowWriter:
    with open_rows(out, style, 2, shard, start) as file:
        for row in rows:
            file.add(row)
    return file


def names() -> Iterator[str]:
    return (row.path for row in PREDICTIONS)


def test_json_is_one_list_written_row_by_row() -> None:
    assert json.loads("\n".join(written("json", PREDICTIONS)))[3] == {
        "path": PREDICTIONS[3].path,
        "error": "empty file",
    }
    assert json.loads("\n".join(written("json", []))) == []
    assert written("json", PREDICTIONS)[1].endswith(",")


def test_csv_cells_are_not_formulas_and_every_row_has_every_column() -> None:
    text = "\r\n".join(written("csv", [predicted("=x.jpg", "=rose"), *PREDICTIONS]))

    rows = list(csv.reader(io.StringIO(text, newline="")))

    assert rows[0] == [
        *("path", "class", "probability", "class_2", "probability_2", "notes", "error")
    ]
    assert rows[1] == ["'=x.jpg", "'=rose", "1.000000", "", "", "", ""]
    assert rows[3][5] == "not sure"
    assert {len(row) for row in rows} == {7}


def test_the_table_is_aligned_and_escapes_control_characters() -> None:
    lines = written(
        "table",
        [
            predicted("\x1b[2J.jpg", "a\nb", notes=("not sure",)),
            Prediction(path="x", error="bad"),
        ],
    )

    assert lines == [
        "path         prediction",
        r"\x1b[2J.jpg  a\nb 100.0% (not sure)",
        "x            error: bad",
    ]


def test_a_long_table_is_printed_before_its_last_row() -> None:
    lines: list[str] = []
    out = RowWriter("table", 1, lines.append)

    for i in range(150):
        out.add(predicted(f"{i}.jpg", "a"))

    assert len(lines) > 100


@BOTH
def test_a_file_is_renamed_when_it_is_complete(style: str, tmp_path: Path) -> None:
    out, shard = tmp_path / f"o.{style}", ProcessShard(chunk=4)

    with pytest.raises(ValueError, match=r"strict|longer|shorter"):
        write(out, style, [PREDICTIONS[0], BROKEN], shard)  # ends in the middle

    assert not out.exists()
    assert part_path(out, shard).exists()
    with pytest.raises(RunError, match="another run is incomplete"):
        check_output(out, shard, resume=False)
    check_output(out, shard, resume=True)


@BOTH
def test_a_file_cut_anywhere_is_resumed_to_the_same_bytes(style: str, tmp_path: Path) -> None:
    shard, whole = ProcessShard(chunk=4), tmp_path / f"whole.{style}"
    write(whole, style, PREDICTIONS, shard)
    data = whole.read_bytes()

    for size in [*range(0, len(data), 41), len(data) - 1, len(data)]:
        out = tmp_path / f"{size}.{style}"
        part_path(out, shard).write_bytes(data[:size])
        start = find_resume_point(part_path(out, shard), style, 2, names(), shard.chunk)
        done = write(out, style, PREDICTIONS[start.rows :], shard, start)

        assert start.rows % 4 == 0
        assert start.size <= size
        assert out.read_bytes() == data
        assert (done.count, done.errors) == (50, 10)
    assert start.rows == 48  # of a whole file: what is computed together is computed together again


@BOTH
def test_a_file_of_other_images_or_columns_is_not_resumed(style: str, tmp_path: Path) -> None:
    part = tmp_path / "o.part"
    write(tmp_path / "o", style, PREDICTIONS, ProcessShard())
    (tmp_path / "o").rename(part)

    with pytest.raises(RunError, match=r"row 3 is for .*, but should be for another"):
        find_resume_point(part, style, 2, iter([*itertools.islice(names(), 2), "another"]), 4)
    with pytest.raises(RunError, match=r"row 50 is for .*, but the request has fewer images"):
        find_resume_point(part, style, 2, itertools.islice(names(), 49), 4)
    with pytest.raises(RunError, match=r"columns|classes"):
        find_resume_point(part, style, 1, names(), 4)


def test_a_file_with_the_columns_of_an_older_version_is_not_resumed(tmp_path: Path) -> None:
    part = tmp_path / "o.csv.part"
    part.write_bytes(b"path,class_1,share_1,note,error\r\n")

    with pytest.raises(RunError, match=r"its columns are path,class_1,share_1,note,error"):
        find_resume_point(part, "csv", 1, names(), 4)


@BOTH
def test_a_file_of_another_program_is_not_truncated(style: str, tmp_path: Path) -> None:
    part = tmp_path / "o.part"
    part.write_text("dear diary\n" * 5)

    with pytest.raises(RunError, match="cannot resume"):
        find_resume_point(part, style, 2, names(), 4)
    assert part.read_text() == "dear diary\n" * 5


@BOTH
@pytest.mark.parametrize("world", [2, 3, 20])
def test_the_last_process_merges_the_shards_in_order(
    style: str, world: int, tmp_path: Path
) -> None:
    alone, out = tmp_path / "alone", tmp_path / "together"
    write(alone, style, PREDICTIONS, ProcessShard(chunk=4))

    for rank in reversed(range(world)):  # any order
        assert not out.exists()
        own = [row for i, row in enumerate(PREDICTIONS) if i // 4 % world == rank]
        write(out, style, own, ProcessShard(rank=rank, world=world, chunk=4))

    assert out.read_bytes() == alone.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone", "together"]


def test_parquet_has_the_columns_of_csv_with_numeric_probabilities(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "o.parquet"

    write(out, "parquet", PREDICTIONS * 30, ProcessShard())  # more than one group of rows

    table = parquet.read_table(out)
    assert table.num_rows == 1500
    rows = table.slice(0, 4).to_pylist()
    assert rows[0]["path"] == "0 a.jpg"
    assert (rows[0]["class"], rows[0]["probability_2"], rows[0]["error"]) == ("=rose", 0.25, "")
    assert (rows[3]["class"], rows[3]["probability"], rows[3]["error"]) == (
        None,
        None,
        "empty file",
    )
    assert not (tmp_path / "o.parquet.part").exists()


def test_excel_has_the_columns_of_csv_with_numeric_probabilities(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    out, odd = tmp_path / "o.xlsx", ("Käfer/Größe.jpg", "=HYPERLINK(1)", "a\x07b", "x\udcff")
    named = [predicted(path, "rose", "tulip") for path in odd]

    write(out, "xlsx", [*PREDICTIONS, *named], ProcessShard())

    header, *rows = openpyxl.load_workbook(out).active.iter_rows()
    names = [cell.value for cell in header]
    assert names == column_names(2)
    assert [row[0].value for row in rows] == [
        *(p.path.replace("\udcff", "\\udcff") for p in PREDICTIONS),
        *odd[:2],
        "a\\x07b",
        "x\\udcff",
    ]
    assert {cell.data_type for row in rows for cell in row if cell.value} == {"s", "n"}  # no "f"
    assert rows[-1][names.index("probability")].value == 0.75
    assert {p.name for p in tmp_path.iterdir()} == {"o.xlsx"}


def test_an_excel_sheet_can_be_filtered_and_read_at_once(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    long = "plate_07/" + "x" * 300 + ".jpg"
    notes = ("not sure", "unlike the training images", "blank: one uniform colour")
    many = [predicted(f"{i:03}.jpg", "rose", "tulip") for i in range(600)]

    write(tmp_path / "o.xlsx", "xlsx", [*many, predicted(long, "rose", notes=notes)], ALONE)
    write(tmp_path / "none.xlsx", "xlsx", [], ALONE)
    write(tmp_path / "long.xlsx", "xlsx", [predicted(long, "a rose by any other name")], ALONE)

    sheet = openpyxl.load_workbook(tmp_path / "o.xlsx").active
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref == "A1:G602"
    assert all(cell.font.bold for cell in sheet[1])
    fonts = {(cell.font.name, cell.font.size) for row in (1, 2) for cell in sheet[row]}
    assert fonts == {("Calibri", 11)}
    assert not any(cell.font.bold for cell in sheet[2])
    cells = dict(zip(column_names(2), sheet[602], strict=True))
    assert cells["probability"].number_format == "0.0%"
    assert cells["probability"].value == 1.0
    assert cells["path"].alignment.wrap_text
    assert cells["notes"].alignment.wrap_text
    assert cells["notes"].value == "; ".join(notes)
    widths = widths_of(tmp_path / "o.xlsx")
    assert widths["path"] == 10  # fitted to the first rows, at least 10 characters
    assert all(width > len(name) for name, width in widths.items())
    assert widths_of(tmp_path / "long.xlsx")["path"] == 60
    assert widths_of(tmp_path / "long.xlsx")["class"] > len("a rose by any other name")
    empty = openpyxl.load_workbook(tmp_path / "none.xlsx").active
    assert [cell.value for cell in empty[1]] == column_names(2)
    assert empty.auto_filter.ref == "A1:G1"


def widths_of(path: Path) -> dict[str, float]:
    """The widths of the columns of an Excel file, in characters, by their headers."""
    sheet = pytest.importorskip("openpyxl").load_workbook(path).active
    return {cell.value: sheet.column_dimensions[cell.column_letter].width for cell in sheet[1]}


def test_an_excel_sheet_of_predictions_is_read_as_a_table_of_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openpyxl")
    monkeypatch.chdir(tmp_path)
    found = {"a/1.jpg": "rose", "a/2.jpg": "=tulip", "b/Käfer.jpg": "rose"}
    for name in found:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()

    write(Path("o.xlsx"), "xlsx", [predicted(n, c, "lily") for n, c in found.items()], ALONE)

    folder = scan(Path("o.xlsx"))
    assert {file.path: folder.classes[file.label] for file in folder.files} == found
    assert [source.path for source in sources(["o.xlsx"])] == [*found]


def test_excel_rows_beyond_its_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openpyxl")
    monkeypatch.setattr("vitft.predict.excel.EXCEL_ROWS", len(PREDICTIONS) - 1)

    with pytest.raises(RunError, match=r"(?s)at most 50 rows.*fix: use --out FILE.csv"):
        write(tmp_path / "o.xlsx", "xlsx", PREDICTIONS, ProcessShard())

    assert not any(tmp_path.iterdir())


def test_a_failed_parquet_file_is_removed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    with pytest.raises(ValueError, match=r"strict|longer|shorter"):
        write(tmp_path / "o.parquet", "parquet", [BROKEN], ProcessShard())

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
def test_the_format_is_the_option_or_the_suffix_of_the_file(
    wanted: str | None, out: str | None, style: str
) -> None:
    assert choose_format(wanted, out) == style


def test_an_impossible_format_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    with pytest.raises(UsageError, match="add --format"):
        choose_format(None, "x.dat")
    with pytest.raises(UsageError, match="cannot be written to the terminal"):
        choose_format("parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"run pip install '?pyarrow"):
        choose_format(None, "x.parquet")
    with pytest.raises(UsageError, match=r"Excel cannot be written to the terminal"):
        choose_format("xlsx", None)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UsageError, match=r"run pip install '?openpyxl"):
        choose_format(None, "x.xlsx")


@pytest.mark.parametrize(
    ("rank", "world", "shard"),
    [
        ("", "", (0, 1)),
        ("1", "3", (1, 3)),
        ("0", "2", (0, 2)),
        ("3", "1", (0, 1)),
        ("", "2", (0, 1)),
        ("1", "", (0, 1)),
        ("x", "2", (0, 1)),
    ],
)
def test_a_process_has_its_own_rows_only_if_several_were_started(
    monkeypatch: pytest.MonkeyPatch, rank: str, world: str, shard: tuple[int, int]
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)

    found = ProcessShard.from_environment()

    assert (found.rank, found.world) == shard


def test_the_files_of_a_job_are_beside_its_output() -> None:
    out, second = Path("a/o.csv"), ProcessShard(rank=1, world=3)

    assert part_path(out, ALONE) == Path("a/o.csv.part")
    assert part_path(out, second) == Path("a/o.csv.part-1-of-3")
    assert finished_path(out, second) == Path("a/o.csv.part-1-of-3.done")
    assert record_path(part_path(out, second)) == Path("a/o.csv.part-1-of-3.json")


def test_an_output_is_new_and_its_folder_exists(tmp_path: Path) -> None:
    both = ProcessShard(rank=0, world=2)
    check_output(tmp_path / "o", ALONE, resume=False)
    with pytest.raises(RunError, match=r"the folder .* does not exist"):
        check_output(tmp_path / "none" / "o", ALONE, resume=True)
    finished_path(tmp_path / "o", both).touch()
    check_output(tmp_path / "o", ALONE, resume=False)
    with pytest.raises(RunError, match="another run is incomplete") as refused:
        check_output(tmp_path / "o", both, resume=False)
    assert f"cannot create {part_path(tmp_path / 'o', both)}: " in refused.value.problem
    assert refused.value.fix == "continue that run with --resume, or remove its files"
    check_output(tmp_path / "o", both, resume=True)
    (tmp_path / "o").touch()
    with pytest.raises(RunError, match="already exists"):
        check_output(tmp_path / "o", ALONE, resume=False)


def test_long_columns_of_another_file_are_cut_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "o.csv.part").write_bytes(b"x" * 150 + b"\r\n")

    with pytest.raises(RunError, match=r"its columns are x{100}, not path,class"):
        find_resume_point(tmp_path / "o.csv.part", "csv", 1, names(), 4)


def test_rows_with_every_label_are_resumed_whatever_the_number_of_classes(tmp_path: Path) -> None:
    part = tmp_path / "o.jsonl.part"
    row = {"path": "a", "classes": [{"class": c, "probability": 0.5} for c in "xyz"]}
    part.write_text(json.dumps(row) + "\n")

    def point(top_k: int, labels: tuple[str, ...] = ()) -> ResumePoint:
        return find_resume_point(part, "jsonl", top_k, iter("a"), 1, labels=labels)

    assert point(1, ("x", "y", "z")).rows == point(3).rows == point(4).rows == 1
    with pytest.raises(RunError, match="row 1 has 3 classes, but --top-k is 2"):
        point(2)


@BOTH
def test_an_empty_unfinished_file_is_begun_anew(style: str, tmp_path: Path) -> None:
    part = part_path(tmp_path / "o", ALONE)
    part.touch()

    start = find_resume_point(part, style, 2, names(), 4)
    write(tmp_path / "o", style, PREDICTIONS[:1], ALONE, start)
    write(tmp_path / "new", style, PREDICTIONS[:1], ALONE)

    assert start == ResumePoint(0, 0, 0)
    assert (tmp_path / "o").read_bytes() == (tmp_path / "new").read_bytes()


def test_a_full_disk_is_an_error_with_a_message(tmp_path: Path) -> None:
    from vitft.system.errors import ResourceError

    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    out = tmp_path / "o.jsonl"
    part_path(out, ProcessShard()).symlink_to(full)

    with pytest.raises((ResourceError, RunError), match=r"disk full|cannot write"):
        write(out, "jsonl", PREDICTIONS * 50, ProcessShard())


@pytest.mark.parametrize(
    ("record", "style", "found"),
    [
        (b'{"path": "a", "classes": [1, 2]}\n', "jsonl", ("a", 2, False)),
        (b'{"path": "a", "classes": []}\n', "jsonl", ("a", 0, False)),
        (b'{"path": "a", "error": "x"}\n', "jsonl", ("a", 0, True)),
        (b"a,rose,0.5,,\r\n", "csv", ("a", 0, False)),
        (b'"a,b",,,note,x\r\n', "csv", ("a,b", 0, True)),
    ],
)
def test_a_row_has_a_path_a_number_of_classes_in_json_lines_and_perhaps_an_error(
    tmp_path: Path, record: bytes, style: str, found: tuple[str, int, bool]
) -> None:
    assert parse_record(record, style, tmp_path) == found


@BOTH
@pytest.mark.parametrize("record", [b"\n", b"[]\n", b'{"classes": []}\n', b'{"path": '])
def test_a_row_of_another_program_is_refused_with_its_beginning(
    tmp_path: Path, style: str, record: bytes
) -> None:
    if style == "csv":
        record = b'"' + b"x" * 200_000 + record
    with pytest.raises(RunError, match="a row was not written by vitft") as error:
        parse_record(record, style, tmp_path)

    assert error.value.problem.endswith(f": {record[:60]!r}")


def test_merged_rows_are_on_the_disk_before_the_parts_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "o.jsonl"
    shards = [ProcessShard(rank=rank, world=2, chunk=4) for rank in range(2)]
    write(out, "jsonl", PREDICTIONS[:4], shards[0])
    synced: list[tuple[int, bool, bool]] = []

    def note(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        synced.append((size, out.exists(), finished_path(out, shards[0]).exists()))

    monkeypatch.setattr(os, "fsync", note)
    write(out, "jsonl", PREDICTIONS[4:8], shards[1])

    assert out.read_bytes()
    assert (out.stat().st_size, False, True) in synced
    assert not finished_path(out, shards[0]).exists()
