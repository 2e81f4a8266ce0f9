"""Fixes as a table: written, edited, and applied to the list of files only."""

import unicodedata
from pathlib import Path

import pytest

from vitft.config import DataSpec
from vitft.data import Fix, Images, Row, apply_fixes, write_fixes
from vitft.system import DataError

NAMES = ("a/1.jpg", "a/2.jpg", "a/=1+1.jpg", "b/1.jpg", 'b/quo"te, comma.jpg', "b/\udcff.jpg")


@pytest.fixture
def folder() -> Images:
    rows = [Row(name, "ab".index(name[0])) for name in NAMES]
    return Images(
        root=Path("d"), classes=("a", "b"), rows=rows,
        bad=(("b/torn.jpg", "empty file"),),
    )  # fmt: skip


def applied(folder: Images, path: Path, text: str) -> Images:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return apply_fixes(folder, DataSpec(fixes=str(path)))[0]


@pytest.mark.parametrize("is_apart", [False, True])
def test_paths_and_labels_are_found_in_another_spelling(tmp_path: Path, is_apart: bool) -> None:
    ours, theirs = "G\u00e4nse", unicodedata.normalize("NFD", "G\u00e4nse")
    if is_apart:
        ours, theirs = theirs, ours
    folder = Images(
        root=Path("d"),
        classes=(ours, "b"),
        rows=(Row(f"{ours}/1.jpg", 0), Row("b/1.jpg", 1), Row("b/2.jpg", 1)),
    )

    found = applied(
        folder,
        tmp_path / "fixes.csv",
        f"path,action,new_label\nb\\1.jpg,move,{theirs}\n{theirs}\\1.jpg,move,b\n",
    )

    assert [(file.path, file.label) for file in found.rows] == [
        ("b/1.jpg", 0),
        (f"{ours}/1.jpg", 1),
        ("b/2.jpg", 1),
    ]


def test_every_name_survives_the_table(folder: Images, tmp_path: Path) -> None:
    table = tmp_path / "fixes.csv"
    write_fixes(table, [Fix(path=name, action="drop") for name in (*NAMES[:2], *NAMES[3:5])])

    found, _ = apply_fixes(folder, DataSpec(fixes=str(table)))

    assert [file.path for file in found.rows] == [NAMES[2], NAMES[5]]
    write_fixes(table, [Fix(path=name, action="drop") for name in (NAMES[2], NAMES[5])])
    found, _ = apply_fixes(folder, DataSpec(fixes=str(table)))
    assert not {NAMES[2], NAMES[5]} & {file.path for file in found.rows}


def test_the_table_of_a_run_is_recognised_by_its_digest(folder: Images, tmp_path: Path) -> None:
    table = tmp_path / "fixes.csv"
    table.write_text("path,action\na/1.jpg,drop\n")
    _, spec = apply_fixes(folder, DataSpec(fixes=str(table)))

    again, _ = apply_fixes(folder, spec)
    table.write_text("path,action\na/2.jpg,drop\n")

    assert len(again.rows) == 5
    with pytest.raises(DataError, match=r"its sha256 differs from data\.fixes_digest"):
        apply_fixes(folder, spec)
