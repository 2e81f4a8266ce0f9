"""Tables that are more than text in UTF-8."""

import io
import zipfile
from pathlib import Path

import pytest

from tests.contract.rows import draw

NAMES = [f"{letter}{number}.jpg" for letter in ("", "d") for number in range(3)]


def utf_16(folder: Path) -> None:
    """Write six images, t.csv with tabs and names.txt, both in UTF-16."""
    for name in NAMES:
        draw(folder / name)
    lines = [f"{name}\t{'thé' if name[0] == 'd' else 'café'}" for name in NAMES]
    (folder / "t.csv").write_text("\r\n".join(["path\tlabel", *lines, ""]), encoding="utf-16")
    (folder / "names.txt").write_text("\r\n".join([*NAMES, ""]), encoding="utf-16")


def far_cell(folder: Path, last: str = "XFD1048576") -> None:
    """Write t.xlsx with a value in the last of all rows and columns."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for cells in [("path", "label"), *((name, name[0]) for name in NAMES)]:
        book.active.append(cells)
    book.active[last] = "x"
    book.save(folder / "t.xlsx")


def damaged_sheet(folder: Path) -> None:
    """Write t.xlsx with an unclosed element in its worksheet."""
    far_cell(folder, last="B2")
    content = io.BytesIO((folder / "t.xlsx").read_bytes())
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(folder / "t.xlsx", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"</sheetData>", b"<sheetData>"))


def absolute_paths(folder: Path) -> None:
    """Write lists/t.csv and lists/new.csv with the absolute paths of images in img."""
    for name in (*NAMES, "9.jpg", "d9.jpg"):
        draw(folder / "img" / name)
    (folder / "lists").mkdir()
    for table, names in (("t.csv", NAMES), ("new.csv", ("9.jpg", "d9.jpg"))):
        rows = [f"{(folder / 'img' / name).absolute()},{'ad'[name[0] == 'd']}" for name in names]
        (folder / "lists" / table).write_text("\n".join(["path,label", *rows, ""]))


def latin_1(folder: Path) -> None:
    """Write six images, and t.csv in Latin-1 with an accent in the fourth line of images."""
    for name in NAMES:
        draw(folder / name)
    lines = [f"{name},{'hêtre' if name[0] == 'd' else 'a'}" for name in NAMES]
    (folder / "t.csv").write_text("\n".join(["path,label", *lines, ""]), encoding="latin-1")


def cut_utf_16(folder: Path) -> None:
    """Write t.csv in UTF-16 without its last byte."""
    (folder / "t.csv").write_bytes("path,label\n0.jpg,a\n".encode("utf-16")[:-1])


def latin_1_path(folder: Path) -> None:
    """Write six images, and t.csv in Latin-1 with the path of one more."""
    for name in NAMES:
        draw(folder / name)
    lines = [f"{name},{'b' if name[0] == 'd' else 'a'}" for name in (*NAMES, "hêtre.jpg")]
    (folder / "t.csv").write_text("\n".join(["path,label", *lines, ""]), encoding="latin-1")


def label_lists(folder: Path) -> None:
    """Write six images, and t.parquet with a list of labels for each."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for name in NAMES:
        draw(folder / name)
    labels = [["cat"], ["cat", "dog"], ["dog"]] * 2
    parquet.write_table(pa.table({"path": NAMES, "labels": labels}), folder / "t.parquet")
