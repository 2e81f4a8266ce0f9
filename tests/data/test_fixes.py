"""Fixes as a table: written, edited, and applied to the list of files only."""

import hashlib
import os
import time
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from vitft.config.sections import DataSpec
from vitft.data.fixes import (
    ACTIONS,
    UNDECIDED,
    Fix,
    apply_fixes,
    not_yet_decided,
    read_fixes,
    settled_paths,
    with_former,
    write_fixes,
)
from vitft.data.folder import EmptyClasses, File, Folder
from vitft.system.errors import DataError

NAMES = ("a/1.jpg", "a/2.jpg", "a/=1+1.jpg", "b/1.jpg", 'b/quo"te, comma.jpg', "b/\udcff.jpg")


@pytest.fixture
def folder() -> Folder:
    files = tuple(File(name, "ab".index(name[0])) for name in NAMES)
    return Folder(
        root=Path("d"), classes=("a", "b"), files=files, layout="classes",
        bad=(("b/torn.jpg", "empty file"),),
    )  # fmt: skip


def applied(folder: Folder, path: Path, text: str) -> Folder:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return apply_fixes(folder, DataSpec(fixes=str(path)))[0]


def test_keep_changes_nothing_drop_leaves_out_and_move_relabels(
    folder: Folder, tmp_path: Path
) -> None:
    table = tmp_path / "fixes.csv"
    write_fixes(
        table,
        [
            Fix(path="a/1.jpg", action="drop", label="a", kind="exact", confidence=1.0),
            Fix(path="a/2.jpg", action="move", label="a", new_label="b"),
            Fix(path="b/1.jpg", action="keep", label="b", new_label="a"),
            Fix(path="b/torn.jpg", action="drop", reason="empty file"),
        ],
    )

    found, spec = apply_fixes(folder, DataSpec(fixes=str(table)))

    paths = [(file.path, file.label) for file in found.files]
    assert paths == sorted(paths, key=lambda pair: (pair[1], pair[0]))
    assert ("a/2.jpg", 1) in paths
    assert ("b/1.jpg", 1) in paths
    assert "a/1.jpg" not in {path for path, _ in paths}
    assert found.bad == ()
    assert "1 image left out, 1 relabelled" in found.notes[-1]
    assert spec.fixes == str(table.resolve())


@pytest.mark.parametrize("is_apart", [False, True])
def test_paths_and_labels_are_found_in_another_spelling(tmp_path: Path, is_apart: bool) -> None:
    ours, theirs = "G\u00e4nse", unicodedata.normalize("NFD", "G\u00e4nse")
    if is_apart:
        ours, theirs = theirs, ours
    folder = Folder(
        root=Path("d"),
        classes=("b", ours),
        files=(File("b/1.jpg", 0), File("b/2.jpg", 0), File(f"{ours}/1.jpg", 1)),
        layout="classes",
    )

    found = applied(
        folder,
        tmp_path / "fixes.csv",
        f"path,action,new_label\nb\\1.jpg,move,{theirs}\n{theirs}\\1.jpg,move,b\n",
    )

    assert [(file.path, file.label) for file in found.files] == [
        (f"{ours}/1.jpg", 0),
        ("b/2.jpg", 0),
        ("b/1.jpg", 1),
    ]


def test_what_was_kept_is_counted_apart_from_what_nobody_decided(
    folder: Folder, tmp_path: Path
) -> None:
    rows = "a/1.jpg,keep\na/2.jpg,undecided\nb/1.jpg,undecided\nb/gone.jpg,keep\n"

    found = applied(folder, tmp_path / "fixes.csv", f"path,action\n{rows}")
    spec = DataSpec(fixes=str(tmp_path / "fixes.csv"))
    assert settled_paths(spec) == {"a/1.jpg", "b/gone.jpg"}
    dropped = applied(folder, tmp_path / "fixes.csv", "path,action\na/1.jpg,drop\n")

    counts = "0 images left out, 0 relabelled, 1 kept, 2 undecided (used as they are)"
    assert found.notes[-1] == f"fixes applied: {counts}"
    assert found.files == folder.files
    assert settled_paths(DataSpec(fixes=str(tmp_path / "fixes.csv"))) == set()
    assert dropped.notes[-1] == "fixes applied: 1 image left out, 0 relabelled"


def test_a_later_proposal_overrules_what_is_undecided_but_not_what_was_kept() -> None:
    former = [Fix(path="a/1.jpg", action="keep"), Fix(path="a/2.jpg", action=UNDECIDED)]
    moved = Fix(path="b/1.jpg", action="move", new_label="a")
    proposed = [
        Fix(path="a/1.jpg", action="drop"),
        Fix(path="a/2.jpg", action="drop"),
        Fix(path="b/1.jpg", action=UNDECIDED, new_label="b"),
    ]

    assert with_former([*former, moved], proposed) == [former[0], proposed[1], moved]


def test_every_name_survives_the_table(folder: Folder, tmp_path: Path) -> None:
    table = tmp_path / "fixes.csv"
    write_fixes(table, [Fix(path=name, action="drop") for name in (*NAMES[:2], *NAMES[3:5])])

    found, _ = apply_fixes(folder, DataSpec(fixes=str(table)))

    assert [file.path for file in found.files] == [NAMES[2], NAMES[5]]
    write_fixes(table, [Fix(path=name, action="drop") for name in (NAMES[2], NAMES[5])])
    found, _ = apply_fixes(folder, DataSpec(fixes=str(table)))
    assert not {NAMES[2], NAMES[5]} & {file.path for file in found.files}


def test_a_table_saved_in_another_encoding_is_refused_by_its_line(tmp_path: Path) -> None:
    files = (File("Löwenzahn/1.jpg", 0), File("Rose/1.jpg", 1), File("Rose/ü.jpg", 1))
    folder = Folder(root=Path("d"), classes=("Löwenzahn", "Rose"), files=files, layout="classes")
    table = tmp_path / "fixes.csv"
    rows = (
        "Rose/1.jpg,keep,\nRose/ü.jpg,drop,\n",
        "Rose/ü.jpg,keep,\n",
        "Rose/1.jpg,move,Löwenzahn\n",
    )

    for text, line in zip(rows, (3, 2, 2), strict=True):
        table.write_bytes(f"path,action,new_label\n{text}".encode("cp1252"))
        with pytest.raises(DataError, match=f"line {line}: the text is not UTF-8") as caught:
            apply_fixes(folder, DataSpec(fixes=str(table)))
        assert "CSV UTF-8" in caught.value.fix


def test_the_table_begins_with_the_mark_by_which_spreadsheets_know_utf_8(
    folder: Folder, tmp_path: Path
) -> None:
    table = tmp_path / "fixes.csv"

    write_fixes(table, [Fix(path="a/1.jpg", action="drop", reason="für")])

    assert table.read_bytes().startswith(b"\xef\xbb\xbfpath,")
    assert read_fixes(table, "")[0].path == "a/1.jpg"


def test_files_dropped_as_unreadable_that_can_be_read_now_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "b/torn.png").write_bytes(b"torn")
    names = ("a/1.png", "a/2.png", "b/1.png", "b/2.png", "b/torn.png")
    files = tuple(File(name, "ab".index(name[0])) for name in names)
    folder = Folder(root=tmp_path, classes=("a", "b"), files=files, layout="classes")
    rows = "a/1.png,drop,bad\nb/torn.png,drop,bad\nb/1.png,drop,exact\n"
    (tmp_path / "fixes.csv").write_text(f"path,action,kind\n{rows}")

    found, _ = apply_fixes(folder, DataSpec(fixes=str(tmp_path / "fixes.csv")), warn=True)

    assert [file.path for file in found.files] == ["a/2.png", "b/2.png"]
    (record,) = caplog.records
    assert "drops 1 file that was unreadable but is readable now: a/1.png;" in record.message


def test_cells_are_escaped_for_spreadsheets(tmp_path: Path) -> None:
    write_fixes(tmp_path / "fixes.csv", [Fix(path="=HYPERLINK(1)", action="keep", label="@x")])

    assert (
        (tmp_path / "fixes.csv").read_text().splitlines()[1].startswith("'=HYPERLINK(1),keep,'@x")
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\ufeffpath,action\r\na/1.jpg,drop\r\n", id="BOM and CRLF"),
        pytest.param("path;action;new_label\na/1.jpg;drop;\n", id="semicolons"),
        pytest.param("action,path,mine\nDROP,a/1.jpg,why not\n\n", id="other columns, blank line"),
    ],
)
def test_what_spreadsheets_make_of_the_table_is_read(
    folder: Folder, tmp_path: Path, text: str
) -> None:
    found = applied(folder, tmp_path / "fixes.csv", text)

    assert [file.path for file in found.files] == list(NAMES[1:])


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        pytest.param("a/1.jpg,move,c", r"line 3: new_label is 'c'", id="unknown label"),
        pytest.param("a/1.jpg,move,", "line 3: .* new_label is empty", id="move to nowhere"),
        pytest.param(
            "a/1.jpg,move,bb",
            r"line 3: new_label is 'bb', .*; its classes are b and a",
            id="move to a class that does not exist",
        ),
        pytest.param("a/1.jpg,delete,", r"line 3: action is 'delete'", id="unknown action"),
        pytest.param("a/1.jpg", r"line 3: action is ''", id="cut line"),
        pytest.param("a/2.jpg,keep,", r"line 3: 'a/2.jpg' is listed twice", id="twice"),
        pytest.param('"a/1.jpg,drop,', r"line 3: unexpected end", id="open quote"),
    ],
)
def test_a_row_that_does_not_fit_is_named_by_its_line(
    folder: Folder, tmp_path: Path, row: str, problem: str
) -> None:
    text = f"path,action,new_label\na/2.jpg,keep,\n{row}\n"

    with pytest.raises(DataError, match=problem):
        applied(folder, tmp_path / "fixes.csv", text)


def test_lines_of_files_that_are_gone_are_skipped_with_one_warning(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "path,action,new_label\na/9.jpg,drop,\n../x.jpg,move,gone\na/2.jpg,move,b\n"

    found = applied(folder, tmp_path / "fixes.csv", text)  # as a run does, after the checks
    assert not caplog.records
    apply_fixes(folder, DataSpec(fixes=str(tmp_path / "fixes.csv")), warn=True)

    assert ("a/2.jpg", 1) in [(file.path, file.label) for file in found.files]
    assert len(found.files) == len(NAMES)
    assert "skipped 2 lines for files that are not in d: ../x.jpg and a/9.jpg" in caplog.text


def test_a_newer_table_beside_the_given_one_is_named(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "fixes.csv", tmp_path / "fixes-2.csv"
    for age, path in ((20, first), (10, second), (0, tmp_path / "fixes-of-tulips.csv")):
        path.write_text("path,action\na/1.jpg,drop\n")
        os.utime(path, (time.time() - age, time.time() - age))

    apply_fixes(folder, DataSpec(fixes=str(second)), warn=True)
    assert "is newer than" not in caplog.text
    apply_fixes(folder, DataSpec(fixes=str(first)), warn=True)
    assert f"{second} is newer than {first}: pass it to --fixes" in caplog.text

    first.write_text("path,action\nx/9.jpg,drop\n")
    os.utime(first, (1.0, 1.0))
    with pytest.raises(DataError) as caught:
        apply_fixes(folder, DataSpec(fixes=str(first)))
    assert caught.value.fix.startswith(f"use {second}, which is newer, or run `vitft check")


def test_a_table_of_another_folder_is_refused(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not belong to d: all images in the table") as caught:
        applied(folder, tmp_path / "fixes.csv", "path,action\nz/1.jpg,drop\nz/2.jpg,drop\n")

    assert caught.value.fix == "run `vitft check d` to create a table for this folder"


def test_a_class_that_loses_all_its_images_is_left_out_with_a_note(tmp_path: Path) -> None:
    names = ("a/1.jpg", "a/2.jpg", "b/1.jpg", "c/1.jpg", "c/2.jpg")
    files = tuple(File(name, "abc".index(name[0])) for name in names)
    folder = Folder(root=Path("d"), classes=("a", "b", "c"), files=files, layout="classes")

    found = applied(folder, tmp_path / "f.csv", "path,action,new_label\nb/1.jpg,move,c\n")

    assert found.classes == ("a", "c")
    assert [(file.path, file.label) for file in found.files] == [
        ("a/1.jpg", 0), ("a/2.jpg", 0), ("b/1.jpg", 1), ("c/1.jpg", 1), ("c/2.jpg", 1),
    ]  # fmt: skip
    assert found.notes[-1] == "fixes: left out 1 class without images: b"


def test_fixes_that_leave_a_single_class_are_refused(folder: Folder, tmp_path: Path) -> None:
    rows = "".join(f"{name},move,b\n" for name in NAMES[:3])

    with pytest.raises(DataError, match="leave images in only 1 class of d: all images of a are"):
        applied(folder, tmp_path / "fixes.csv", f"path,action,new_label\n{rows}")


def test_another_file_is_refused(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: the header has no action column"):
        applied(folder, tmp_path / "fixes.csv", "path,label\n")
    with pytest.raises(DataError, match="line 1: the header has no path or action column"):
        applied(folder, tmp_path / "fixes.csv", "")
    with pytest.raises(DataError, match="cannot read"):
        apply_fixes(folder, DataSpec(fixes=str(tmp_path / "none.csv")))


def test_the_table_of_a_run_is_recognised_by_its_digest(folder: Folder, tmp_path: Path) -> None:
    table = tmp_path / "fixes.csv"
    table.write_text("path,action\na/1.jpg,drop\n")
    _, spec = apply_fixes(folder, DataSpec(fixes=str(table)))

    again, _ = apply_fixes(folder, spec)
    table.write_text("path,action\na/2.jpg,drop\n")

    assert len(again.files) == 5
    with pytest.raises(DataError, match=r"its sha256 differs from data\.fixes_digest"):
        apply_fixes(folder, spec)


def test_a_table_without_rows_changes_nothing(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "fixes.csv").write_text("path,action\n")

    found, _ = apply_fixes(folder, DataSpec(fixes=str(tmp_path / "fixes.csv")), warn=True)

    assert (found.files, found.bad) == (folder.files, folder.bad)
    assert not caplog.records


def test_of_many_missing_files_three_are_named(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "".join(f"x/{i}.jpg,drop\n" for i in range(5, 0, -1))
    (tmp_path / "fixes.csv").write_text(f"path,action\n{rows}a/1.jpg,keep\n")

    apply_fixes(folder, DataSpec(fixes=str(tmp_path / "fixes.csv")), warn=True)

    assert "skipped 5 lines" in caplog.text
    assert "x/1.jpg, x/2.jpg, x/3.jpg and 2 more" in caplog.text


def test_a_newer_table_of_other_images_is_not_named(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for age, name, image in ((20, "fixes.csv", "a/1.jpg"), (10, "fixes-2.csv", "z/1.jpg")):
        (tmp_path / name).write_text(f"path,action\n{image},drop\n")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))

    apply_fixes(folder, DataSpec(fixes=str(tmp_path / "fixes.csv")), warn=True)

    assert not caplog.records


def test_a_move_of_an_unreadable_file_has_no_effect(folder: Folder, tmp_path: Path) -> None:
    rows = "b/torn.jpg,move,a\nb/1.jpg,keep,\n"

    found = applied(folder, tmp_path / "fixes.csv", f"path,action,new_label\n{rows}")

    assert found.bad == folder.bad
    assert found.notes[-1] == "fixes applied: 0 images left out, 0 relabelled, 1 kept"


def test_an_apostrophe_that_belongs_to_the_name_is_kept(tmp_path: Path) -> None:
    names = ("a/1.jpg", "'a/1.jpg", "'b/1.jpg", "b/2.jpg")
    files = tuple(File(name, i // 2) for i, name in enumerate(names))
    folder = Folder(root=Path("d"), classes=("a", "b"), files=files, layout="classes")

    found = applied(folder, tmp_path / "f.csv", "path,action\n'a/1.jpg,drop\n'b/2.jpg,keep\n")

    assert [file.path for file in found.files] == ["a/1.jpg", "'b/1.jpg", "b/2.jpg"]
    assert settled_paths(DataSpec(fixes=str(tmp_path / "f.csv"))) == {"'b/2.jpg", "b/2.jpg"}


@pytest.mark.parametrize(
    ("rows", "is_explained"),
    [
        ("c/1.jpg,drop\nc/2.jpg,move\n", True),
        ("c/1.jpg,drop\nc/2.jpg,keep\n", False),
        ("c/1.jpg,undecided\n", False),
        ("cc/1.jpg,drop\n", False),
        ("a/1.jpg,drop\n", False),
    ],
)
def test_an_empty_class_folder_is_explained_by_images_that_were_dropped_or_moved(
    folder: Folder, tmp_path: Path, rows: str, is_explained: bool
) -> None:
    emptied = Folder(root=Path("d"), classes=("a", "b", "c"), files=folder.files,
                     layout="classes", empty=EmptyClasses({"c": ""}, 3, 3))  # fmt: skip

    if is_explained:
        found = applied(emptied, tmp_path / "f.csv", f"path,action\n{rows}")
        assert found.classes == ("a", "b")
    else:
        with pytest.raises(DataError, match="no images in 1 of 3 class folders: c"):
            applied(emptied, tmp_path / "f.csv", f"path,action\n{rows}")


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    fixes = [
        Fix(path="a/1.jpg", action="drop", label="a", kind="exact", confidence=0.5),
        Fix(path="a/2.jpg", action="move", label="a", new_label="b", reason="r, s"),
    ]
    write_fixes(tmp_path / "f.csv", fixes)

    assert read_fixes(tmp_path / "f.csv", "") == fixes
    assert ",0.500\n" in (tmp_path / "f.csv").read_text()
    (tmp_path / "f.csv").write_text("path,action,label\na/1.jpg,KEEP \na/2.jpg,drop,a,more\n")
    assert read_fixes(tmp_path / "f.csv", "") == [
        Fix(path="a/1.jpg", action="keep"), Fix(path="a/2.jpg", action="drop", label="a"),
    ]  # fmt: skip


def test_paths_are_settled_by_a_table_that_has_not_changed(tmp_path: Path) -> None:
    table = tmp_path / "f.csv"
    write_fixes(table, [Fix(path=f"a/{a}.jpg", action=a) for a in (*ACTIONS, "move")])
    table.write_bytes(table.read_bytes() + b"'-1.jpg,keep,,,,,\n")
    digest = hashlib.sha256(table.read_bytes()).hexdigest()

    found = [settled_paths(DataSpec(fixes=str(table), fixes_digest=d)) for d in ("", digest)]

    assert found == [{"a/keep.jpg", "a/move.jpg", "'-1.jpg", "-1.jpg"}] * 2
    assert settled_paths(DataSpec(fixes=str(table), fixes_digest="0" * 64)) == set()
    assert settled_paths(DataSpec(fixes=str(tmp_path / "gone.csv"))) == set()
    assert settled_paths(DataSpec()) == set()


def test_proposals_are_open_until_a_table_decides_them() -> None:
    former = [Fix(path="1", action="keep"), Fix(path="2", action=UNDECIDED),
              Fix(path="3", action="drop"), Fix(path="4", action="drop")]  # fmt: skip
    proposed = [Fix(path="1", action="drop"), Fix(path="2", action=UNDECIDED),
                Fix(path="3", action=UNDECIDED), Fix(path="4", action="drop"),
                Fix(path="5", action=UNDECIDED)]  # fmt: skip

    assert [fix.path for fix in not_yet_decided(former, proposed)] == ["2", "4", "5"]
