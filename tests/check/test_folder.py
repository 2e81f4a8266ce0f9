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
from tests.support.run_files import make_run
from vitft.check.folder import check_folder, compare_with_run, read_run_settings
from vitft.cli.main import main
from vitft.config.run import read_toml
from vitft.config.sections import DataSpec, TrainSpec, WeightsSpec
from vitft.system import imports
from vitft.system.errors import DataError, RunError


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


def test_the_summary_shows_counts_examples_and_the_next_command(
    here: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(faulty)]) == 0

    said = capsys.readouterr()
    assert "groups of identical files: 2" in said.out
    assert "  cat/0.jpg = cat/same.jpg" in said.out
    assert "every class has 7 images" in said.out
    assert "labels were not checked" in said.err
    assert "--group-duplicates --fixes fixes.csv" in said.err


def test_a_second_check_decodes_nothing_and_finds_the_same(
    here: Path, faulty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = checked(capsys, str(faulty))

    def refuse(*_: object) -> None:
        raise AssertionError("an image was decoded again")

    monkeypatch.setattr("vitft.features.fingerprints.fingerprint_of", refuse)
    second = checked(capsys, str(faulty))

    assert second | {"fixes": "", "page": ""} == first | {"fixes": "", "page": ""}


def test_fixes_are_never_overwritten_nor_written_into_the_data(
    here: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "fixes.csv").write_text("mine")

    assert checked(capsys, str(faulty))["fixes"] == "fixes-2.csv"
    assert (here / "fixes.csv").read_text() == "mine"
    assert main(["check", str(faulty), "--out", str(faulty / "cat")]) == 2
    assert "is inside the data directory" in capsys.readouterr().err


def test_an_image_that_only_lacks_a_library_gets_a_note_but_no_fix(
    here: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = scenes_folder(tmp_path / "pets")
    (root / "cat" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + b"\0" * 40)
    monkeypatch.setitem(imports.EXTRA_LIBRARIES, "heic", ("no_such_library",))

    assert main(["check", str(root)]) == 0

    said = capsys.readouterr()
    assert "unreadable files: 1" in said.out
    assert "1 image cannot be read only because a library is missing" in said.err
    assert "run pip install" in said.err
    assert not (here / "fixes.csv").exists()
    html = (here / "check.html").read_text()
    assert "phone.heic" in html
    assert "phone.heic&quot;, &quot;drop" not in html


def test_a_clean_folder_has_no_table_of_fixes(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(scenes_folder(tmp_path / "pets"))]) == 0

    assert "nothing found to fix" in capsys.readouterr().out
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["nowhere"], 3, "data folder not found", id="no folder"),
        pytest.param(["{data}", "--weights", "vit_nope"], 4, "vit_nope", id="no such weights"),
        pytest.param(["{data}", "--run", "nowhere"], 5, "is not a run directory", id="no run"),
        pytest.param(["{data}", "--out", "file"], 5, "is a file", id="out is a file"),
        pytest.param(["{data}", "--weights", "demo", "--run", "x"], 2, "not allowed", id="both"),
    ],
)
def test_an_impossible_request_is_refused(
    here: Path,
    faulty: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    (here / "file").touch()

    assert main(["check", *(word.replace("{data}", str(faulty)) for word in arguments)]) == code

    assert said in capsys.readouterr().err
    assert not (here / "fixes.csv").exists()


def test_without_weights_torch_is_not_imported(here: Path, faulty: Path) -> None:
    code = (
        "import sys\nfrom vitft.cli.main import main\n"
        f"main(['check', {str(faulty)!r}, '--cache', 'none'])\n"
        "sys.exit('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


# ---- labels, and fine-tuning with the table


def test_weights_find_a_label_error(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=25)
    (data / "red" / "003.png").rename(data / "blue" / "moved.png")

    audit = checked(capsys, str(data), "--weights", str(tiny_weights))

    assert [(m["path"], m["suggested"]) for m in audit["mislabels"]] == [("blue/moved.png", "red")]
    row = table(here / "fixes.csv")["blue/moved.png"]
    assert (row["action"], row["new_label"]) == ("undecided", "red")


def test_a_label_that_was_kept_is_not_printed_as_an_error_again(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=25)
    for i in (3, 4):
        (data / "red" / f"00{i}.png").rename(data / "blue" / f"moved{i}.png")
    Path("old.csv").write_text("path,action\nblue/moved3.png,keep\n")

    words = ["check", str(data), "--weights", str(tiny_weights), "--fixes", "old.csv"]
    assert main(words) == 0

    shown = capsys.readouterr().out
    assert "probable label errors (besides 1 already decided): 1\n  blue/moved4.png: " in shown
    assert "blue/moved3.png" not in shown
    assert table(here / "fixes.csv")["blue/moved3.png"]["action"] == "keep"


def test_nothing_more_is_found_once_every_finding_is_kept(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=25)
    (data / "red" / "003.png").rename(data / "blue" / "moved.png")
    words = ["check", str(data), "--weights", str(tiny_weights)]
    assert main(words) == 0
    lines = [f"{path},keep" for path in table(here / "fixes.csv")]
    Path("mine.csv").write_text("\n".join(["path,action", *lines, ""]))
    before = sorted(path.name for path in here.iterdir())
    capsys.readouterr()

    assert main([*words, "--fixes", "mine.csv"]) == 0

    assert "nothing more found to fix" in capsys.readouterr().out
    assert sorted(path.name for path in here.iterdir()) == before


def test_an_empty_class_folder_does_not_change_the_label_errors(
    tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=25)
    (data / "red" / "003.png").rename(data / "blue" / "moved.png")
    words = [str(data), "--weights", str(tiny_weights), "--out", str(tmp_path)]

    found = checked(capsys, *words)
    for name in ("amber", "yellow", "zinnia"):
        (data / name).mkdir()

    assert [one["path"] for one in found["mislabels"]] == ["blue/moved.png"]
    assert checked(capsys, *words)["mislabels"] == found["mislabels"]


def test_an_empty_class_folder_does_not_end_the_check(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=8)
    (data / "amber").mkdir()

    assert main(["check", str(data), "--weights", str(tiny_weights)]) == 0

    shown = capsys.readouterr()
    assert "no images in 1 of 4 class folders: amber" in shown.err
    assert (
        "--classes classes.csv`, a file with the lines `class,new_class` and `amber,`" in shown.err
    )
    assert "remove the empty class folders or add --classes (see above), then run" in shown.err
    assert "24 readable images" in shown.out
    page = (here / "check.html").read_text()
    assert "Remove the empty class folders (amber), or add --classes. Train with" in page
    assert "3 classes" in page
    assert "4 classes" not in page


def test_the_next_command_uses_the_weights_of_the_check_and_the_images_of_the_run(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=8)
    (data / "red" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (here / "old.csv").write_text("path,action,new_label\nred/torn.png,drop,\n")
    assert finetune(data, tiny_weights, "run", "--fixes", "old.csv") == 0
    capsys.readouterr()

    assert main(["check", str(data), "--run", "run"]) == 0

    shown = capsys.readouterr().err
    assert f"--weights {tiny_weights} --like run --fixes fixes.csv" in shown
    assert f"--weights {tiny_weights} --like run --fixes" in (here / "check.html").read_text()


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


def test_fixes_of_a_run_that_are_gone_do_not_end_its_check(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=8)
    Path("fixes.csv").write_text("path,action\nred/001.png,drop\n")
    assert finetune(data, tiny_weights, "run", "--fixes", "fixes.csv") == 0
    Path("fixes.csv").write_text("path,action\n")

    assert main(["check", str(data), "--run", "run"]) == 0
    assert "the fixes of the run are not applied" in capsys.readouterr().err
    assert main(["check", str(data), "--fixes", "none.csv"]) == 3


def test_an_option_of_finetune_is_not_suggested(
    here: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(faulty), "--group-duplicates"]) == 2

    assert "use --group-duplicates" not in capsys.readouterr().err


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


def test_fixes_for_another_folder_are_refused_before_loading(
    here: Path, image_folder: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fixes.csv").write_text("path,action\nred/nope.png,drop\n")

    assert finetune(image_folder, tiny_weights, "run", "--fixes", "fixes.csv") == 3

    message = capsys.readouterr().err
    assert "all images in the table are missing from the folder, e.g. red/nope.png" in message
    assert not Path("run").exists()


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


def test_group_duplicates_is_not_suggested_where_the_table_has_its_own_split(
    here: Path, faulty: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = sorted(path for path in faulty.glob("*/*") if path.name != "torn.jpg")
    rows = [
        f"{path.relative_to(faulty)},{path.parent.name},{('train', 'val')[i % 2]}"
        for i, path in enumerate(images)
    ]
    labels = faulty / "labels.csv"
    labels.write_text("\n".join(["path,label,split", *rows]))

    assert main(["check", str(labels)]) == 0
    assert "groups of near-duplicates: 1" in (said := capsys.readouterr()).out
    assert "--fixes fixes.csv" in said.err
    assert "--group-duplicates" not in said.err + (here / "check.html").read_text()
    assert finetune(labels, tiny_weights, "run") == 0
    assert json.loads((here / "run" / "audit.json").read_text())["own_split"] is True


@pytest.mark.parametrize("kind", ["reference", "folder"])
def test_group_duplicates_is_refused_where_the_split_is_given(
    here: Path,
    image_folder: Path,
    tiny_weights: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    parts = here / "parts"
    for part in ("train", "val"):
        shutil.copytree(image_folder, parts / part)
    data, more = (image_folder, ["--split", "reference"]) if kind == "reference" else (parts, [])

    assert finetune(data, tiny_weights, "run", "--group-duplicates", *more) == 2

    said = capsys.readouterr().err
    assert (
        "the reference split, which is fixed" if kind == "reference" else "has its own split"
    ) in said


def test_a_run_logs_the_findings_about_its_images(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=25)
    (data / "red" / "003.png").rename(data / "blue" / "moved.png")
    shutil.copy(data / "green" / "004.png", data / "red" / "other.png")

    assert finetune(data, tiny_weights, "run") == 0

    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if "run/report.html" in line and "next:" not in line
    ]
    assert len(said) == 1
    assert "decide on them in" in said[0]  # two findings
    assert "1 probable label error" in said[0]
    assert "1 group of duplicates with different labels" in said[0]
    audit = json.loads((here / "run" / "audit.json").read_text())
    assert [entry["path"] for entry in audit["mislabels"]] == ["blue/moved.png"]
    assert audit["images"] == 76


@pytest.mark.parametrize(
    ("freeze", "judged"),
    [
        pytest.param(["--epochs", "2"], True, id="head in steps"),
        pytest.param(["--freeze", "blocks:1", "--epochs", "1"], False, id="blocks"),
        pytest.param(["--freeze", "none", "--epochs", "1"], False, id="nothing cached"),
    ],
)
def test_every_run_has_an_audit_and_checks_labels_if_features_are_cached(
    here: Path, tmp_path: Path, tiny_weights: Path, freeze: list[str], judged: bool
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=25)
    (data / "red" / "003.png").rename(data / "blue" / "moved.png")

    assert finetune(data, tiny_weights, "run", *freeze) == 0

    audit = json.loads((here / "run" / "audit.json").read_text())
    assert audit["images"] == 75
    assert bool(audit["mislabels"]) == judged


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


def test_a_check_says_how_many_label_errors_it_shares_with_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    audit = json.loads((run / "audit.json").read_text())
    same = compare_with_run(audit, str(run), ())
    assert same.endswith("1 probable label error, the same as here")
    (one,) = audit["mislabels"]
    audit["mislabels"] = [{**one, "path": "other.jpg"}]

    said = compare_with_run(audit, str(run), ())

    assert (
        "lists 1 probable label error, 0 of them listed here too; the lists differ because" in said
    )
    assert "look at both pages" in said


def test_label_errors_that_are_decided_are_not_compared_with_those_of_the_run(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run")
    path = run / "audit.json"
    audit = json.loads(path.read_text())
    (one,) = audit["mislabels"]
    theirs = [{**one, "path": f"{i}.jpg"} for i in range(3)]
    path.write_text(json.dumps({**audit, "mislabels": theirs}))

    def compared(*paths: str, settled: tuple[str, ...] = ()) -> str:
        ours: Any = {**audit, "mislabels": [{**one, "path": path} for path in paths]}
        return compare_with_run(ours, str(run), settled)

    assert compared("2.jpg", "1.jpg", "0.jpg") == (
        "the report of the run lists 3 probable label errors, the same as here"
    )
    assert compared("0.jpg", "1.jpg", "4.jpg").startswith(
        "the report of the run lists 3 probable label errors, 2 of them listed here too;"
    )
    assert compared("0.jpg", "5.jpg", settled=("1.jpg", "2.jpg", "5.jpg")) == (
        "the report of the run lists 1 probable label error, not counting decided ones, "
        "the same as here"
    )
    assert compared("9.jpg", settled=("0.jpg", "1.jpg", "2.jpg")) == ""
    path.unlink()
    assert compared("9.jpg") == ""


@pytest.mark.parametrize("missing", ["config.toml", "split.csv"])
def test_a_directory_without_settings_or_split_is_not_a_run(tmp_path: Path, missing: str) -> None:
    run = make_run(tmp_path / "run")
    settings, split = read_run_settings(str(run))
    assert set(split.values()) == {"train", "val"}
    assert settings.train.seed == read_toml(run / "config.toml").get("train", {}).get("seed", 0)

    (run / missing).unlink()

    with pytest.raises(RunError, match="is missing"):
        read_run_settings(str(run))


def test_labels_of_several_per_image_are_counted_and_get_no_fixes(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=4)
    rows = [
        f"{path.relative_to(data)},{'|'.join([path.parent.name] + ['light'] * (i % 2))}"
        for i, path in enumerate(sorted(data.glob("*/*")))
    ]
    shutil.copy(data / "red" / "000.png", data / "red" / "copy.png")
    (data / "labels.csv").write_text("\n".join(["path,labels", *rows, "red/copy.png,red"]))

    audit = checked(capsys, str(data / "labels.csv"), "--weights", str(tiny_weights))

    assert audit["images"] == 13
    assert audit["imbalance"] == {"largest": ["light", 6], "smallest": ["green", 4], "ratio": 1.5}
    assert [len(group["members"]) for group in audit["duplicates"]] == [2]
    assert not (here / "fixes.csv").exists()
    assert main(["check", str(data / "labels.csv")]) == 0
    assert "no fixes are proposed for multi-label data" in capsys.readouterr().err
    assert main(["check", str(data / "labels.csv"), "--fixes", "fixes.csv"]) == 2


@pytest.mark.parametrize(
    ("name", "code", "loads"),
    [
        pytest.param("random:vit_tiny_patch16_224", 5, True, id="random weights"),
        pytest.param("vit_nope", 4, False, id="unknown weights"),
    ],
)
def test_the_name_of_the_weights_is_checked_before_a_model_is_loaded(
    here: Path, faulty: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, loads: bool
) -> None:
    loaded: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        loaded.append(arguments)
        raise RunError("stopped", fix="go on")

    monkeypatch.setattr("vitft.features.pipeline.load_pipeline", refuse)

    assert main(["check", str(faulty), "--weights", name]) == code
    assert bool(loaded) == loads


def test_a_check_of_labels_lists_any_number_of_unreadable_files(
    here: Path, tmp_path: Path, tiny_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw_folder(tmp_path / "colours", per_class=8)
    for i in range(11):
        (data / "red" / f"torn{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    words = [str(data), "--weights", str(tiny_weights)]

    first = checked(capsys, *words)
    assert main(["check", *words, "--out", "again"]) == 0

    assert (first["images"], len(first["bad"])) == (24, 11)
    assert "features from the cache: 24 of 24 images" in capsys.readouterr().err


def test_fixes_that_cannot_be_applied_are_an_error_unless_they_are_those_of_a_run(
    faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fixes.csv").write_text("path,action\ncat/9.jpg,drop\n")
    spec = DataSpec(fixes=str(tmp_path / "fixes.csv"))
    weights, train = WeightsSpec(name=""), TrainSpec(cache="none")

    with pytest.raises(DataError):
        check_folder(faulty, spec=spec, weights=weights, train=train)
    found = check_folder(faulty, spec=spec, weights=weights, train=train, needs_fixes=False)

    assert "the fixes of the run are not applied" in capsys.readouterr().err
    assert (found.audit["images"], found.former) == (14, ())


def test_each_remark_on_an_image_is_listed(faulty: Path) -> None:
    (faulty / "dog" / "grey.png").write_bytes(encoded(scene(3, (20, 900)).convert("L")))

    found = check_folder(
        faulty, spec=DataSpec(), weights=WeightsSpec(name=""), train=TrainSpec(cache="none")
    )

    assert not found.labels_checked
    reasons = [item["reason"] for item in found.audit["odd"] if item["path"] == "dog/grey.png"]
    assert reasons == ["content is JPEG, but the suffix is .png", "tiny: 20x900 pixels"]
    assert found.audit["view"]["image_size"] == (224, 224)
    assert found.counts == (
        "15 readable images (16 files, 1 unreadable; 13 different, 2 identical copies)"
    )


def test_images_outside_the_split_of_a_run_belong_to_no_subset(faulty: Path) -> None:
    def check(split: dict[str, str] | None) -> list[dict[str, str]]:
        found = check_folder(
            faulty,
            spec=DataSpec(),
            weights=WeightsSpec(name=""),
            train=TrainSpec(cache="none"),
            split=split,
        )
        groups = found.audit["duplicates"]
        return [{member["path"]: member["split"] for member in g["members"]} for g in groups]

    assert check({"cat/0.jpg": "val"})[0] == {"cat/0.jpg": "val", "cat/same.jpg": ""}
    assert check(None)[0] == {"cat/0.jpg": "", "cat/same.jpg": ""}
    with pytest.raises(DataError, match="none of the images"):
        check({"cat/9.jpg": "val"})


def test_a_run_on_another_folder_is_refused(
    here: Path, image_folder: Path, faulty: Path, tiny_weights: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert finetune(image_folder, tiny_weights, "run") == 0

    assert main(["check", str(faulty), "--run", "run"]) == 3

    assert "none of the images in" in capsys.readouterr().err
