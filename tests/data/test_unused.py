"""Files that are not used: counted by suffix, with the reason and the fix, by every command."""

import json
import shutil
from pathlib import Path

import pytest

from tests.report.test_report import check_harmless
from vitft.cli.main import main

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
    assert main(["finetune", *given, "--cache", "none", "-v"]) == 0
    return path


@pytest.fixture
def run(mixed: Path, tiny_weights: Path) -> Path:
    return train(mixed, tiny_weights)


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
