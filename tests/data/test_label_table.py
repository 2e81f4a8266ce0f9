"""Tables of labels: formats, columns, paths, and a sentence for every broken table."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_folder import draw, touch
from vitft.cli.main import main
from vitft.config.sections import DataSpec
from vitft.data.folder import Folder
from vitft.data.label_table import read_label_table
from vitft.data.labelled import find_labelled
from vitft.data.scan import scan
from vitft.data.sources import sources
from vitft.data.table import TableReader, path_in
from vitft.system.errors import DataError, UsageError

NAMES = ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")
ROWS = [{"path": name, "label": name.partition("/")[0]} for name in NAMES]


def write_csv(path: Path, rows: list[dict[str, Any]], separator: str = ",") -> None:
    lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_excel(path: Path, rows: list[dict[str, Any]]) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    names = list(dict.fromkeys(name for row in rows for name in row))
    book.active.append(names)
    for row in rows:
        book.active.append([row.get(name) for name in names])
    book.save(path)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), path)


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "t.csv": write_csv,
    "semicolons.csv": lambda path, rows: write_csv(path, rows, ";"),
    "t.tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "t.jsonl": write_jsonl,
    "t.parquet": write_parquet,
    "t.xlsx": write_excel,
}


def listed(folder: Folder) -> list[tuple[str, str, str, str]]:
    return [(f.path, folder.classes[f.label], f.part, f.group) for f in folder.files]


def table(root: Path, text: str, spec: DataSpec | None = None) -> Folder:
    """Scan a CSV table beside the images that it names."""
    touch(root, *NAMES)
    (root / "labels.csv").write_text(text)
    return scan(root / "labels.csv", spec)


# ---- what is read


@pytest.mark.parametrize("is_apart", [False, True])
def test_paths_are_found_in_the_unicode_form_on_disk(tmp_path: Path, is_apart: bool) -> None:
    ours, theirs = (
        "G\u00e4nse/Bl\u00fcte.png",
        unicodedata.normalize("NFD", "G\u00e4nse/Bl\u00fcte.png"),
    )
    if is_apart:
        ours, theirs = theirs, ours
    mixed = unicodedata.normalize("NFC", ours).split("/")[0] + "/" + theirs.split("/")[1]
    touch(tmp_path, ours, ours.replace(".png", "2.png"), "b/1.png")
    second = mixed.replace(".png", "2.png").replace("/", "\\")
    (tmp_path / "labels.csv").write_text(f"path,label\n{theirs},a\n{second},a\nb/1.png,b\n")

    found = scan(tmp_path / "labels.csv")

    assert {file.path for file in found.files} == {ours, ours.replace(".png", "2.png"), "b/1.png"}


def test_accents_of_a_mac_and_separators_of_windows_make_no_difference(tmp_path: Path) -> None:
    apart, name = unicodedata.normalize("NFD", "G\u00e4nse"), "G\u00e4nse"
    touch(tmp_path, "x/1.png", "x/2.png", "y/1.png", "y\\2.png")
    text = f"path,label\nx\\1.png,{name}\nx/2.png,{apart}\ny/1.png,b\ny\\2.png,b\n"
    (tmp_path / "labels.csv").write_text(text)

    found = scan(tmp_path / "labels.csv")

    assert sorted(listed(found)) == [
        ("x/1.png", name, "", ""),
        ("x/2.png", name, "", ""),
        ("y/1.png", "b", "", ""),
        ("y\\2.png", "b", "", ""),
    ]
    assert found.warnings == ()


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_files_of_the_folder(tmp_path: Path, name: str) -> None:
    touch(tmp_path / "data", *NAMES)
    WRITERS[name](tmp_path / "data" / name, ROWS[::-1])  # in another order

    folder, found = scan(tmp_path / "data"), scan(tmp_path / "data" / name)

    assert (found.classes, found.files, found.root) == (folder.classes, folder.files, folder.root)
    assert found.source == tmp_path / "data" / name


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "t.xlsx"])
def test_numbers_become_class_names_and_other_columns_are_ignored(
    tmp_path: Path, name: str
) -> None:
    rows = [{**row, "label": len(row["label"]) + i % 2, "note": "x"} for i, row in enumerate(ROWS)]
    touch(tmp_path, *NAMES)
    WRITERS[name](tmp_path / name, rows)

    assert scan(tmp_path / name).classes == ("3", "4")


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_nested_values_are_refused_only_in_columns_that_are_used(tmp_path: Path, name: str) -> None:
    touch(tmp_path, *NAMES)
    WRITERS[name](tmp_path / name, [{**row, "box": [0.5, 2.0]} for row in ROWS])

    assert len(scan(tmp_path / name).files) == 4
    with pytest.raises(DataError, match=r"1, column box: the value is not text \(its type is list"):
        scan(tmp_path / name, DataSpec(label="box"))


def test_columns_are_found_by_their_usual_names(tmp_path: Path) -> None:
    rows = ["id, File_Name ,CLASS,Subset,patient_id"]
    rows += [f"1,{name},{name[:3]},{'dev' if '1' in name else 'Train'},{name}" for name in NAMES]

    found = table(tmp_path, "\n".join(rows))

    assert found.layout == "split"
    assert listed(found)[0] == ("cat/0.png", "cat", "train", "cat/0.png")
    assert listed(found)[1] == ("cat/1.png", "cat", "val", "cat/1.png")
    assert found.notes == ("4 groups of images in the column patient_id",)


def test_settings_name_the_columns(tmp_path: Path) -> None:
    rows = [f"{name},{name[:3]},wrong,{i},?" for i, name in enumerate(NAMES)]
    text = "\n".join(["photo,species,label,farm,split", *rows])
    spec = DataSpec(path_column="photo", label="Species", group="farm", split_column="none")

    assert [row[1:] for row in listed(table(tmp_path, text, spec))] == [
        ("cat", "", "0"), ("cat", "", "1"), ("dog", "", "2"), ("dog", "", "3")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "spec", "columns"),
    [
        pytest.param("file,path,label,class", DataSpec(), (1, 2), id="the preferred name"),
        pytest.param("note,image,class,x", DataSpec(), (1, 2), id="another usual name"),
        pytest.param("path,txt,cls,x", DataSpec(), (0, 2), id="cls of a shard"),
        pytest.param("path,x,txt,y", DataSpec(), (0, 2), id="txt of a shard"),
        pytest.param("path,x,labels,txt", DataSpec(labels="one"), (0, 2), id="labels before txt"),
        pytest.param("path,LABEL,label,Label", DataSpec(label="Label"), (0, 3), id="exact case"),
        pytest.param("path,x,y,SPECIES", DataSpec(label="species"), (0, 3), id="any case"),
        pytest.param("path,label,None,x", DataSpec(label="None"), (0, 2), id="a column None"),
    ],
)
def test_the_columns_of_path_and_label_are_chosen(
    tmp_path: Path, header: str, spec: DataSpec, columns: tuple[int, int]
) -> None:
    cells = [[f"wrong {i}"] * 4 for i in range(4)]
    for row, name in zip(cells, NAMES, strict=True):
        row[columns[0]], row[columns[1]] = name, name[:3]

    found = table(tmp_path, "\n".join([header, *map(",".join, cells)]), spec)

    assert listed(found) == [(name, name[:3], "", "") for name in NAMES]


@pytest.mark.parametrize(
    ("text", "spec", "problem"),
    [
        ("path,label,label\nx,a,b\n", DataSpec(), "several columns may contain the label"),
        ("path,x,x\nx,a,b\n", DataSpec(label="x"), "more than one column named x (data.label)"),
        ("path\tx,y\nx\ta,b\n", DataSpec(), "no label column; columns found: path and x,y"),
        ("path,a,b,label\nx,1\n", DataSpec(), "line 2, column b: found 2 cells instead of 4"),
        ("path,a,b,label\nx,1,2\n", DataSpec(), "line 2, column label: found 3 cells instead"),
        ("path,a,b,label\nx\n", DataSpec(), "line 2, column a: found 1 cell instead of 4"),
        ("path,a,b,label\nx,1,2,3,4\n", DataSpec(), "line 2, column label: found 5 cells"),
        ("path,label\n,a\n", DataSpec(), "line 2, column path: the path is empty"),
        ("path,label,chosen\n,,skipped\n", DataSpec(), "column path: the path is empty"),
        ("path,label,chosen\na,,picked\n", DataSpec(), "column label: the label is empty"),
        ("path,label\n", DataSpec(), "lists no images"),
        ("path,label,split\nx,a,train\nx,a,val\n", DataSpec(), "line 3, column split: x is"),
        ("path,label,group\nx,a,g\nx,a,\n", DataSpec(), "line 3, column group: x is listed"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_by_its_place(
    tmp_path: Path, text: str, spec: DataSpec, problem: str
) -> None:
    with pytest.raises(DataError) as caught:
        table(tmp_path, text, spec)

    assert problem in caught.value.problem


def test_a_label_column_named_weight_is_used(tmp_path: Path) -> None:
    rows = [f"{name},{name[:3]}" for name in NAMES]

    found = table(tmp_path, "\n".join(["path,weight", *rows]), DataSpec(label="weight"))

    assert found.notes == ()


def test_lines_of_one_image_that_agree_are_counted_once(tmp_path: Path) -> None:
    rows = [f"{name},{name[:3]},p{i // 2}" for i, name in enumerate(NAMES)]

    found = table(tmp_path, "\n".join(["path,label,group", *rows, *rows[:2], rows[0]]))

    assert found.notes == (
        "2 groups of images in the column group",
        "3 repeated lines of the table left out",
    )


def test_an_ambiguous_table_asks_for_the_column(tmp_path: Path) -> None:
    text = "path,class,category\n" + "\n".join(f"{name},a,b" for name in NAMES)

    with pytest.raises(DataError, match=r"several .* label: class and category\n.*data.label=NAME"):
        table(tmp_path, text)


def test_columns_cannot_be_named_for_a_folder(tmp_path: Path) -> None:
    draw(tmp_path / "data", *NAMES)
    arguments = ["--data", str(tmp_path / "data"), "--weights", "demo", "--set", "data.label=x"]

    assert main(["finetune", *arguments]) == 2


def test_an_unused_weight_column_and_repeated_lines_are_noted(tmp_path: Path) -> None:
    rows = [f"{name},{name[:3]},2" for name in (*NAMES, NAMES[0])]

    found = table(tmp_path, "\n".join(["path,label,weight", *rows]))

    assert len(found.files) == 4
    assert found.notes == (
        "1 repeated line of the table left out",
        "not used: the column weight (sample weights are not supported)",
    )


def test_a_train_part_alone_leaves_the_split_to_be_drawn(tmp_path: Path) -> None:
    rows = [f"{name},{name[:3]},train" for name in NAMES]

    found = table(tmp_path, "\n".join(["path,label,split", *rows]))

    assert found.layout == "classes"
    assert {file.part for file in found.files} == {""}


# ---- paths


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/b.jpg", "a/b.jpg"),
        ("./a//./b.jpg", "a/b.jpg"),
        ("/data/a.jpg", "a.jpg"),
        ("/data2/a.jpg", "/data2/a.jpg"),
        ("../a.jpg", "../a.jpg"),
    ],
)
def test_paths_are_relative_to_the_folder_where_possible(path: str, expected: str) -> None:
    assert path_in(Path("/data"), path) == expected


def test_the_images_may_lie_in_another_folder_than_the_table(tmp_path: Path) -> None:
    touch(tmp_path / "images", *NAMES)
    (tmp_path / "tables").mkdir()
    write_csv(tmp_path / "tables" / "t.csv", ROWS)

    found = scan(tmp_path / "tables" / "t.csv", DataSpec(root=str(tmp_path / "images")))

    assert found.root == tmp_path / "images"
    assert [file.path for file in found.files] == [*NAMES]


def test_missing_files_are_skipped_if_bad_files_are_allowed(tmp_path: Path) -> None:
    rows = [f"{name},{name[:3]}" for name in (*NAMES, "cat/9.png")]

    found = table(tmp_path, "\n".join(["path,label", *rows]), DataSpec(allow_bad=True))

    assert [file.path for file in found.files] == [*NAMES]
    assert found.bad == (("cat/9.png", "no such file"),)


def test_a_file_name_that_is_not_utf_8_is_found(tmp_path: Path) -> None:
    odd = b"cat/caf\xe9.png"
    touch(tmp_path, *NAMES, odd.decode("utf-8", "surrogateescape"))
    (tmp_path / "t.csv").write_bytes(b"path,label\n" + odd + b",cat\ndog/0.png,dog\ndog/1.png,dog")

    assert len(scan(tmp_path / "t.csv").files) == 3


@pytest.mark.parametrize("allow_bad", [False, True])
def test_a_table_that_excel_saved_as_ansi_is_refused(tmp_path: Path, allow_bad: bool) -> None:
    touch(tmp_path, *NAMES, "cat/gänse.png")
    text = "path,label\ncat/gänse.png,cat\ndog/0.png,dog\ndog/1.png,dog\n"
    (tmp_path / "t.csv").write_bytes(text.encode("cp1252"))

    with pytest.raises(DataError, match="line 2, column path: the path is not UTF-8") as caught:
        scan(tmp_path / "t.csv", DataSpec(allow_bad=allow_bad))

    assert "CSV UTF-8" in caught.value.fix
    with pytest.raises(DataError, match="line 2, column path: the path is not UTF-8"):
        find_labelled(tmp_path / "t.csv")  # for vitft evaluate


@pytest.mark.parametrize("name", WRITERS)
def test_predict_reads_the_paths_of_every_format(tmp_path: Path, name: str) -> None:
    if name == "semicolons.csv":
        pytest.skip("a list of paths is separated by commas")
    touch(tmp_path, *NAMES)
    WRITERS[name](tmp_path / name, ROWS)

    found = [source.path for source in sources([str(tmp_path / name)])]

    assert found == [str(tmp_path / path) for path in NAMES]


# ---- broken tables

GOOD = "".join(["path,label\n", *(f"{name},{name[:3]}\n" for name in NAMES)])  # lines 1 to 5


BROKEN: dict[str, tuple[str, bytes, str]] = {
    "unknown label column": ("t.csv", b"path,colour\n", "line 1: no label column"),
    "empty label": ("t.csv", f"{GOOD}cat/2.png,\n".encode(), "line 6, column label"),
    "duplicate path": ("t.csv", f"{GOOD}cat/0.png,dog\n".encode(), "line 6, column label"),
    "bad split": (
        "t.csv",
        b"path,label,split\ncat/0.png,cat,train\ncat/1.png,cat,fold3\n",
        "line 3, column split: the split is 'fold3'",
    ),
    "missing split": (
        "t.csv",
        b"path,label,split\ncat/0.png,cat,train\ncat/1.png,cat,\n",
        "line 3, column split: the split is empty",
    ),
    "missing image": ("t.csv", f"{GOOD}cat/2.png,cat\n".encode(), "line 6, column path"),
    "half a character": ("t.csv", GOOD.encode("utf-16")[:-1], "the text is not valid UTF-16"),
    "encoding of a label": ("t.csv", b"path,label\ncat/0.png,caf\xe9\n", "line 2, column label"),
    "ragged line": ("t.csv", f"{GOOD}cat/2.png\n".encode(), "line 6, column label: found 1 cell"),
    "wrong JSON": (
        "t.jsonl",
        b'{"path": "cat/0.png", "label": "cat"}\n{"path": "cat/1.png", label}\n',
        "line 2, column 23: the text is not valid JSON",
    ),
    "JSON without objects": ("t.jsonl", b'["cat/0.png", "cat"]\n', "line 1, column 1"),
    "JSON without a label": (
        "t.jsonl",
        b'{"path": "cat/0.png", "label": "cat"}\n{"path": "cat/1.png"}\n',
        "line 2, column label: the label is empty",
    ),
    "NUL bytes": (
        "t.csv",
        b"path,label\ncat/\0.png,cat\n",
        "line 2, column path: the text contains",
    ),
    "one class": ("t.csv", b"path,label\ncat/0.png,cat\ncat/1.png,cat\n", "line 2, column label"),
    "path outside": ("t.csv", f"{GOOD}../x.png,cat\n".encode(), "line 6, column path"),
    "absolute path outside": (
        "t.tsv",
        b"path\tlabel\n/etc/x\ta\ncat/0.png\tb\n",
        "line 2, column path",
    ),
    "no training images": (
        "t.csv",
        b"path,label,split\ncat/0.png,cat,val\ndog/0.png,dog,test\n",
        "line 2, column split: no line is assigned to train",
    ),
    "named column missing": ("named.csv", GOOD.encode(), "line 1: no column named species"),
    "open quote": ("t.csv", b'path,label\ncat/0.png,"cat\n', "line 2: unexpected end of data"),
    "no excel": ("t.xlsx", b"PK and nothing else", "not a valid Excel file"),
    "no parquet": ("t.parquet", b"PAR1 and nothing else", "not valid Parquet"),
    "no lines": ("t.csv", b"", "line 1: no path column"),
    "no header": (
        "t.csv",
        b"cat/0.png,cat\ncat/1.png,cat\n",
        "fix: write the name path above the column, in the first line, or choose the column with",
    ),
    "bare names in two folders": (
        "t.csv",
        b"path,label\n0.png,cat\n0.png,dog\n",
        "such as cat/0.png and dog/0.png",
    ),
    "old Excel": ("t.xls", b"\xd0\xcf\x11\xe0", "fix: save the table as t.xlsx, or as CSV"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_table_ends_with_a_sentence_that_names_its_place(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, content, place = BROKEN[kind]
    draw(tmp_path, *NAMES)
    (tmp_path / name).write_bytes(content)
    arguments = ["--data", str(tmp_path / name), "--weights", "demo", "--out", str(tmp_path / "r")]
    column = ["--set", "data.label=species"] if name == "named.csv" else []

    code = main(["finetune", *arguments, *column])

    text = capsys.readouterr().err
    assert code == 3, text
    assert place in text
    assert f"{tmp_path / name}" in text
    assert re.fullmatch(r"vitft: error: [^\n]+\n +fix: [^\n]+\n", text), text
    assert not (tmp_path / "r").exists()


def test_empty_rows_of_an_excel_file_are_skipped_and_the_row_is_named(tmp_path: Path) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.append(["path", "label", None])
    book.active.append([None, None, None])
    book.active.append(["cat/1.png", None])
    book.active.cell(row=50, column=5).number_format = "0.00"  # formatted, but empty
    book.save(tmp_path / "t.xlsx")

    table = TableReader(tmp_path / "t.xlsx", missing="-", fix="-")

    assert list(table) == [["path", "label"], ["cat/1.png", ""]]
    assert "t.xlsx, row 3: odd" in str(table.error("odd"))


def test_a_worksheet_without_column_names_is_named(tmp_path: Path) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.title = "Notes"
    book.active.append(["hello"])
    book.save(tmp_path / "t.xlsx")

    with pytest.raises(DataError, match="no path column in the worksheet Notes; columns") as caught:
        scan(tmp_path / "t.xlsx")

    assert caught.value.fix.startswith("write the name path above the column, in the first row,")


def test_an_excel_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_excel(tmp_path / "t.xlsx", ROWS)
    monkeypatch.setattr("vitft.data.table.MAX_EXCEL_BYTES", 1000)

    with pytest.raises(DataError, match="too large once it is unpacked"):
        list(TableReader(tmp_path / "t.xlsx", missing="-", fix="-"))


def test_text_in_parquet_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", ROWS)
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content.replace(b"dog/1.png", b"do\xff/1.png"))

    with pytest.raises(DataError, match="not valid Parquet"):
        scan(tmp_path / "t.parquet")


def test_a_missing_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*t.csv: no such file"):
        scan(tmp_path / "t.csv")


def test_a_table_in_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(UsageError, match="needs pyarrow"):
        scan(tmp_path / "t.parquet")


def test_the_reference_split_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder of images, but the reference split"):
        table(tmp_path, GOOD, DataSpec(split="reference"))


def test_long_tables_are_read_quickly(tmp_path: Path) -> None:
    rows = [f"images/{i:06}.jpg,{i % 10},{i % 500}" for i in range(50_000)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,group", *rows]))

    found = read_label_table(tmp_path / "t.csv", DataSpec())

    assert len(found.rows) == 50_000


# the column of `vitft label` ----------------------------------------------------------------------


def test_pictures_skipped_in_label_are_left_out_and_counted(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label,chosen\na.png,red,picked\nb.png,,skipped\nc.png,blue,confirmed\n")

    found = read_label_table(table, DataSpec())

    assert [row.path for row in found.rows] == ["a.png", "c.png"]
    assert found.notes == ("not used: 1 image skipped in vitft label",)
    assert found.parts == ()


def test_the_audit_sample_of_label_can_be_the_validation_set(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(
        "path,label,chosen\na.png,red,picked\nb.png,red,audit\nc.png,blue,confirmed\n"
        "d.png,blue,audit\ne.png,,skipped\nf.png,red,picked\n"
    )

    default = read_label_table(table, DataSpec())
    audited = read_label_table(table, DataSpec(split_column="chosen"))

    assert {row.part for row in default.rows} == {""}
    assert "drew 2 images at random" in " ".join(default.notes)
    assert "--set data.split_column=chosen" in " ".join(default.notes)
    assert [row.part for row in audited.rows] == ["train", "val", "train", "val", "train"]
    assert "data.split_column" not in " ".join(audited.notes)


def test_the_audit_sample_is_not_suggested_until_every_class_is_in_both_parts(
    tmp_path: Path,
) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(
        "path,label,chosen\na.png,red,picked\nb.png,red,audit\nc.png,blue,confirmed\n"
        "d.png,blue,picked\n"
    )

    assert read_label_table(table, DataSpec()).notes == ()


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        pytest.param(
            "path,class,probability,notes,error\na/1.png,a,0.9,,\na/2.png,,,,truncated\n",
            "line 3, column class: vitft predict could not read a/2.png (truncated), so it has no",
            "remove the lines with an error",
            id="predictions with an unreadable image",
        ),
        pytest.param(
            "path,action,label,new_label,reason\na/1.png,drop,,,truncated\n",
            "is a table of decisions on images (vitft check), not a table of labels",
            "pass the folder or the table of the images as data, and this table with --fixes ",
            id="decisions",
        ),
    ],
)
def test_a_table_that_vitft_wrote_for_another_purpose_is_refused_by_name(
    tmp_path: Path, text: str, problem: str, fix: str
) -> None:
    draw(tmp_path, "a/1.png", "a/2.png")

    with pytest.raises(DataError) as caught:
        table(tmp_path, text)

    assert problem in caught.value.problem
    assert caught.value.fix.startswith(fix)


def test_two_spellings_of_one_file_with_two_labels_lead_to_no_file(tmp_path: Path) -> None:
    composed, apart = "caf\u00e9.jpg", unicodedata.normalize("NFD", "caf\u00e9.jpg")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / composed).touch()
    (tmp_path / "cat" / "1.jpg").touch()
    rows = [f"cat\\{composed},a", f"cat/{apart},b", "cat/1.jpg,a", "cat\\1.jpg,b"]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]) + "\n")

    folder = scan(tmp_path / "t.csv", DataSpec(allow_bad=True))

    assert {file.path for file in folder.files} == {"cat/1.jpg"}
    assert {path for path, _ in folder.bad} == {f"cat\\{composed}", f"cat/{apart}", "cat\\1.jpg"}
