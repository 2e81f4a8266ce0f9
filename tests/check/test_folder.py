"""`vitft check` as a user runs it, and what a finetune makes of its proposals."""

import csv
import json
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from tests.support.pictures import contents, encoded, read, scene, scenes_folder
from vitft.cli.main import main
from vitft.config import read_toml


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """Return a folder of two classes of five scenes with one problem of each kind."""
    root = scenes_folder(tmp_path / "pets")
    shutil.copy(root / "cat" / "0.jpg", root / "cat" / "same.jpg")
    shutil.copy(root / "cat" / "1.jpg", root / "dog" / "other.jpg")
    (root / "dog" / "smaller.jpg").write_bytes(encoded(scene(100).resize((112, 84)), 70))
    (root / "dog" / "torn.jpg").write_bytes((root / "dog" / "0.jpg").read_bytes()[:900])
    scene(7, (20, 30)).save(root / "cat" / "icon.png")
    return root


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["check", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def table(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def test_every_kind_of_problem_is_found_and_no_file_changes(
    here: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(faulty)

    audit = checked(capsys, str(faulty))

    assert audit["images"] == 14
    assert [entry["path"] for entry in audit["bad"]] == ["dog/torn.jpg"]
    assert {"path": "cat/icon.png", "reason": "tiny: 20x30 pixels", "label": "cat"} in audit["odd"]
    kinds = {
        (group["kind"], tuple(member["path"] for member in group["members"]))
        for group in audit["duplicates"]
    }
    assert kinds == {
        ("exact", ("cat/0.jpg", "cat/same.jpg")),
        ("exact", ("cat/1.jpg", "dog/other.jpg")),
        ("near", ("dog/0.jpg", "dog/smaller.jpg")),
    }
    rows = table(here / "fixes.csv")
    assert {path for path, row in rows.items() if row["action"] == "drop"} == {
        "cat/same.jpg",
        "dog/torn.jpg",
    }
    assert contents(faulty) == before


def test_without_weights_torch_is_not_imported(here: Path, faulty: Path) -> None:
    code = (
        "import sys\nfrom vitft.cli.main import main\n"
        f"main(['check', {str(faulty)!r}, '--cache', 'none'])\n"
        "sys.exit('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


# ---- labels, and fine-tuning with the table


def test_a_check_applies_the_fixes_of_the_run_and_adds_to_them(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=25)
    (data / "red" / "003.png").rename(data / "blue" / "moved.png")
    shutil.copy(data / "red" / "004.png", data / "red" / "copy.png")
    decisions = "blue/moved.png,move,red\nred/copy.png,drop,\n"
    Path("fixes.csv").write_text(f"path,action,new_label\n{decisions}")
    assert finetune(data, tiny_weights, "run", "--fixes", "fixes.csv") == 0
    shutil.copy(data / "green" / "004.png", data / "green" / "later.png")

    audit = checked(capsys, str(data), "--run", "run", "--out", "again")
    unfixed = checked(capsys, str(data), "--weights", str(tiny_weights), "--out", "unfixed")
    fixed = checked(
        capsys, str(data), "--weights", str(tiny_weights), "--fixes", "fixes.csv", "--out", "fixed"
    )

    assert main(["check", str(data)]) == 0  # the table of the run is here
    assert "fixes.csv of an earlier check was not applied" in capsys.readouterr().err
    other = draw_folder(tmp_path / "other", per_class=5)
    assert main(["check", str(other)]) == 0
    assert "was not applied" not in capsys.readouterr().err  # the table is about other images
    assert (audit["images"], unfixed["images"]) == (76, 77)
    assert "fixes applied: 1 image left out, 1 relabelled" in audit["notes"]
    assert [item["path"] for item in unfixed["mislabels"]] == ["blue/moved.png"]
    assert audit["mislabels"] == fixed["mislabels"] == []
    copies = [group["members"][0]["path"] for group in audit["duplicates"]]
    assert copies == ["green/004.png"]
    rows = table(here / "again" / "fixes.csv")
    actions = {path: row["action"] for path, row in rows.items() if row["action"] != "undecided"}
    assert actions == {"blue/moved.png": "move", "red/copy.png": "drop", "green/later.png": "drop"}
    assert rows["blue/moved.png"]["new_label"] == "red"
    assert rows == table(here / "fixed" / "fixes.csv")
    assert '"former": [["blue/moved.png"' in unescape((here / "again" / "check.html").read_text())


def finetune(data: Path, weights: Path, out: str, *more: str) -> int:
    return main(["finetune", "--data", str(data), "--weights", str(weights), "--out", out, *more])


def test_finetune_applies_and_records_the_fixes(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=25)
    (data / "red" / "003.png").rename(data / "blue" / "moved.png")
    shutil.copy(data / "red" / "004.png", data / "red" / "copy.png")
    (data / "red" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    checked(capsys, str(data), "--weights", str(tiny_weights))
    text = (here / "fixes.csv").read_text()
    (here / "fixes.csv").write_text(text.replace("moved.png,undecided", "moved.png,move"))
    before = contents(data)

    assert finetune(data, tiny_weights, "run", "--fixes", "fixes.csv") == 0

    rows = table(here / "run" / "split.csv")
    assert rows["blue/moved.png"]["label"] == "red"
    assert not {"red/copy.png", "red/torn.png"} & rows.keys()
    settings = read_toml(here / "run" / "config.toml")["data"]
    assert settings["fixes"] == str(here / "fixes.csv")
    assert len(settings["fixes_digest"]) == 64
    assert "1 relabelled" in capsys.readouterr().err
    assert contents(data) == before


def test_group_duplicates_keeps_near_copies_on_one_side(
    here: Path, tmp_path: Path, tiny_weights: Path
) -> None:
    data = scenes_folder(tmp_path / "pets", each=20)
    for name in ("cat", "dog"):
        for i in range(20):
            copy = read((data / name / f"{i}.jpg").read_bytes()).resize((120, 90))
            (data / name / f"{i}-again.jpg").write_bytes(encoded(copy))

    assert finetune(data, tiny_weights, "run", "--group-duplicates") == 0

    side = {path: row["split"] for path, row in table(here / "run" / "split.csv").items()}
    assert {"train", "val"} == set(side.values())
    assert all(side[p] == side[p.replace("-again", "")] for p in side)
    audit = json.loads((here / "run" / "audit.json").read_text())
    assert len(audit["duplicates"]) == 40
    assert not any(group["across_split"] for group in audit["duplicates"])


def test_a_check_with_a_run_uses_its_split_and_weights(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=10)
    assert finetune(data, tiny_weights, "run", "--split", "reference") == 0
    rows = table(here / "run" / "split.csv")
    val = next(path for path in rows if rows[path]["split"] == "val")
    train = next(
        path
        for path in rows
        if rows[path]["split"] == "train" and rows[path]["label"] == rows[val]["label"]
    )
    shutil.copy(data / val, data / train)

    audit = checked(capsys, str(data), "--run", "run")

    assert [group["across_split"] for group in audit["duplicates"]] == [True]
    assert table(here / "fixes.csv")[train]["action"] == "drop"
