"""Files that are not used: counted by suffix, with the reason and the fix, by every command."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.report.test_report import check_harmless
from vitft.cli.main import main
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.unused import (
    KIND_BY_SUFFIX,
    is_surely_no_image,
    sub_folder_note,
    suffix_of,
    unused_files,
    unused_notes,
)

RAW = "not used: 2 files: 2 .cr2 (camera raw images are not supported; export them as TIFF or JPEG)"
ODD = (
    "not used: 2 files: 1 (no suffix) and 1 .xyz (not a known image suffix; correct the "
    "suffix if they are images, or convert them to PNG or JPEG)"
)
TEXT = "not used: 1 file: 1 .txt (not images; no action is needed)"
HIDDEN = "not used: 1 hidden entry"
OUTSIDE = "not used: 1 image outside the class folders (move them into a class folder to use them)"
NESTED = "2 images in subfolders of red are used"


@pytest.fixture
def mixed(image_folder: Path) -> Path:
    """Add files that are not used, and move two images of a class into a subfolder."""
    red = image_folder / "red"
    for name in ("1.CR2", "2.cr2", "3.xyz", "noname", "notes.txt"):
        (red / name).write_bytes(b"x")
    (red / "evening").mkdir()
    for name in ("000.png", "001.png"):
        (red / name).rename(red / "evening" / name)
    shutil.copy(red / "002.png", image_folder / "outside.png")
    (red / ".hidden.png").touch()
    return image_folder


def train(data: Path, weights: Path) -> Path:
    path = data.parent / "run"
    given = ["--data", str(data), "--weights", str(weights), "--out", str(path)]
    assert main(["finetune", *given, "--cache", "none"]) == 0
    return path


@pytest.fixture
def run(mixed: Path, tiny_weights: Path) -> Path:
    return train(mixed, tiny_weights)


def test_suffixes_are_counted_with_reason_and_fix() -> None:
    counts = {".txt": 1, ".cr2": 3, ".nef": 1, ".xyz": 2}

    assert [(e["suffix"], e["files"]) for e in unused_files(counts)] == [
        (".cr2", 3), (".xyz", 2), (".nef", 1), (".txt", 1),
    ]  # fmt: skip
    assert all(entry["reason"] and entry["fix"] for entry in unused_files(counts))
    assert unused_notes(counts)[0].startswith("not used: 4 files: 3 .cr2 and 1 .nef (camera raw")
    assert not unused_notes({})


def test_documents_without_a_suffix_need_no_action() -> None:
    assert unused_notes({"LICENSE": 1, ".txt": 2}) == [
        "not used: 3 files: 2 .txt and 1 LICENSE (not images; no action is needed)"
    ]


def test_checksum_files_are_named_as_such() -> None:
    assert unused_notes({".sha256": 2, ".md5": 1}) == [
        "not used: 3 files: 2 .sha256 and 1 .md5 (checksums of the files beside them; no action "
        "is needed)"
    ]


def test_no_suffix_of_an_image_counts_as_unused() -> None:
    assert not {*KIND_BY_SUFFIX} & {*FORMAT_BY_SUFFIX}


@pytest.mark.parametrize(
    ("name", "suffix", "no_image"),
    [
        ("a.TXT", ".txt", True),
        ("a.tar.gz", ".gz", True),
        ("a.mp4", ".mp4", True),
        ("a.pdf", ".pdf", True),
        ("a.jpg.sha256", ".sha256", True),
        ("a.MD5", ".md5", True),
        ("a.cr2", ".cr2", False),
        ("a.xyz", ".xyz", False),
        ("LICENSE", "LICENSE", True),
        ("Readme", "Readme", True),
        ("a", "(no suffix)", False),
        ("a.", "(no suffix)", False),
    ],
)
def test_only_documents_videos_and_archives_are_surely_no_images(
    name: str, suffix: str, no_image: bool
) -> None:
    assert suffix_of(name) == suffix
    assert is_surely_no_image(name) == no_image


def test_sub_folders_of_many_classes_are_summed_up() -> None:
    assert sub_folder_note({"a": 1}) == "1 image in subfolders of a is used"
    assert sub_folder_note({f"c{i}": 2 for i in range(9)}).endswith("and 3 more are used")
    assert not sub_folder_note({})


def test_training_and_its_page_say_what_is_not_used(
    mixed: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(mixed, tiny_weights)

    shown = capsys.readouterr().err
    for note in (RAW, ODD, TEXT, HIDDEN, OUTSIDE, NESTED):
        assert note in shown
    audit = json.loads((run / "audit.json").read_text())
    assert {e["suffix"]: e["files"] for e in audit["unused"]} == {
        ".cr2": 2, ".xyz": 1, "(no suffix)": 1, ".txt": 1,
    }  # fmt: skip
    assert main(["report", "--run", str(run)]) == 0
    page = check_harmless((run / "report.html").read_text())
    assert ".cr2" in page.words["code"]
    assert ": camera raw images are not supported; export them as TIFF or JPEG" in page.text
    assert NESTED in page.text
    assert OUTSIDE in page.text
    assert audit["notes"] == [HIDDEN, OUTSIDE, NESTED]


def test_a_check_says_what_is_not_used(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(mixed.parent)

    assert main(["check", str(mixed), "--out", out]) == 0
    shown = capsys.readouterr().err
    assert main(["check", str(mixed), "--out", out, "--format", "json"]) == 0

    for note in (RAW, ODD, TEXT, HIDDEN, OUTSIDE, NESTED):
        assert note in shown
    audit = json.loads(capsys.readouterr().out)
    assert sum(entry["files"] for entry in audit["unused"]) == 5
    assert audit["notes"] == [HIDDEN, OUTSIDE, NESTED]


def test_an_evaluation_says_what_is_not_used(
    run: Path, mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mixed / "red" / "new.png").write_bytes((mixed / "red" / "002.png").read_bytes() + b"\0")
    capsys.readouterr()

    assert main(["evaluate", "--data", str(mixed), "--run", str(run)]) == 0

    shown = capsys.readouterr().err
    for note in (RAW, ODD, TEXT):
        assert note in shown


def test_predicting_a_folder_gives_a_row_or_a_count_for_every_file(
    run: Path, mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()

    given = [str(mixed / "red"), "--run", str(run), "--format", "jsonl"]
    assert main(["predict", *given]) == 3

    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    failed = {Path(row["path"]).name for row in rows if row.get("error")}
    assert failed == {"1.CR2", "2.cr2", "3.xyz", "noname"}
    assert len(rows) == 14
    assert f"{mixed / 'red'}: {TEXT}" in shown.err
    assert shown.err.count(f"{mixed / 'red'}: {HIDDEN}") == 1


def test_a_folder_of_documents_has_no_images_to_predict(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("a.pdf.txt", ".photo.jpg"):
        (tmp_path / "docs" / name).touch()

    assert main(["predict", str(tmp_path / "docs"), "--run", str(run)]) == 3

    assert re.search(
        r"no images in \S+docs, which contains 1 \.txt and 1 hidden entry\n",
        capsys.readouterr().err,
    )
