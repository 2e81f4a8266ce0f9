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
from vitft.data.scan import scan
from vitft.system.errors import DataError

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


# ---- paths


def test_a_file_name_that_is_not_utf_8_is_found(tmp_path: Path) -> None:
    odd = b"cat/caf\xe9.png"
    touch(tmp_path, *NAMES, odd.decode("utf-8", "surrogateescape"))
    (tmp_path / "t.csv").write_bytes(b"path,label\n" + odd + b",cat\ndog/0.png,dog\ndog/1.png,dog")

    assert len(scan(tmp_path / "t.csv").files) == 3


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


def test_text_in_parquet_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", ROWS)
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content.replace(b"dog/1.png", b"do\xff/1.png"))

    with pytest.raises(DataError, match="not valid Parquet"):
        scan(tmp_path / "t.parquet")


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
