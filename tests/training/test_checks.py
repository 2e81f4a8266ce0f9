"""Checks of a request before torch is imported and before any image is read."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import draw_folder
from tests.support.limits import HANG_S
from tests.support.run_files import ENVIRONMENT, make_run
from vitft.cli.main import main
from vitft.config.run import config_from_table
from vitft.config.sections import DataSpec
from vitft.data.demo import draw_demo
from vitft.data.fixes import Fix, write_fixes
from vitft.data.scan import scan
from vitft.data.split import check_folder_classes
from vitft.system.errors import DataError, RunError
from vitft.training.checks import check_request


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return draw_folder(tmp_path / "data", per_class=6)


def moves(data: Path, old: str, new: str, keep: int = 0) -> Path:
    """A table that moves the images of a class, except for the first `keep`."""
    table = data.parent / "fixes.csv"
    paths = sorted((data / old).iterdir())[keep:]
    fixes = [Fix(path=f"{old}/{p.name}", action="move", label=old, new_label=new) for p in paths]
    write_fixes(table, fixes)
    return table


def check(data: Path, fixes: Path, out: Path) -> None:
    table = {"data": {"path": str(data), "fixes": str(fixes)}, "weights": {"name": "demo"}}
    check_request(config_from_table(table), str(out))


def test_a_run_trains_without_a_class_whose_images_are_all_moved(
    data: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = moves(data, "green", "red")
    arguments = ["--data", str(data), "--weights", str(tiny_weights), "--fixes", str(table)]

    assert main(["finetune", *arguments, "--out", str(tmp_path / "run")]) == 0

    rows = (tmp_path / "run" / "split.csv").read_text().splitlines()[1:]
    assert sum(",red," in row for row in rows) == 12
    assert not [row for row in rows if ",green," in row]
    assert (tmp_path / "run" / "class_indices.json").read_text().count(":") == 2
    assert "left out 1 class without images: green" in capsys.readouterr().err


@pytest.mark.parametrize("each", ["moved", "deleted"])
def test_a_class_that_was_emptied_on_disk_as_proposed_is_left_out_with_a_note(
    data: Path,
    tiny_weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    each: str,
) -> None:
    table = moves(data, "green", "red")
    for path in sorted((data / "green").iterdir()):
        if each == "moved":
            path.rename(data / "red" / f"green-{path.name}")
        else:
            path.unlink()
    arguments = ["--data", str(data), "--weights", str(tiny_weights), "--fixes", str(table)]

    assert main(["finetune", *arguments, "--out", str(tmp_path / "run")]) == 0

    rows = (tmp_path / "run" / "split.csv").read_text().splitlines()[1:]
    assert sum(",red," in row for row in rows) == (12 if each == "moved" else 6)
    error = capsys.readouterr().err
    assert "left out 1 class without images: green" in error
    assert "skipped 6 lines for files that are not in" in error


def test_an_empty_class_of_a_split_is_left_out_if_both_parts_were_emptied(
    data: Path, tmp_path: Path
) -> None:
    for part in ("train", "val"):
        shutil.copytree(data, tmp_path / "parts" / part)
    parts = tmp_path / "parts"
    table, fixes = tmp_path / "fixes.csv", list[Fix]()
    for part, problem in (("train", "too few readable images .* green"), ("val", "")):
        for path in sorted((parts / part / "green").iterdir()):
            fixes.append(Fix(path=f"{part}/green/{path.name}", action="drop"))
            path.unlink()
        write_fixes(table, fixes)

        if problem:
            with pytest.raises(DataError, match=problem):
                check(parts, table, tmp_path / "run")
        else:
            check(parts, table, tmp_path / "run")


@pytest.mark.parametrize("action", ["keep", "undecided", ""])
def test_an_empty_class_that_the_fixes_do_not_explain_is_refused(
    data: Path, tmp_path: Path, action: str
) -> None:
    table = moves(data, "blue", "red")
    if action:
        rows = table.read_text() + "".join(
            f"green/{i:03}.png,{action},green,,,,\n" for i in range(6)
        )
        table.write_text(rows)
    for path in (data / "green").iterdir():
        path.unlink()

    with pytest.raises(DataError, match="no images in 1 of 3 class folders: green"):
        check(data, table, tmp_path / "run")


def test_a_class_left_with_one_image_is_refused_before_any_image_is_read(
    data: Path, tmp_path: Path
) -> None:
    table = moves(data, "green", "red", keep=1)
    for path in data.rglob("*.png"):
        path.write_bytes(b"unreadable")

    with pytest.raises(DataError, match=r"too few readable images .*: green \(1\)"):
        check(data, table, tmp_path / "run")


@pytest.mark.parametrize(
    ("column", "values", "fix"),
    [
        (
            "chosen",
            ("picked", "audit"),
            "more pictures under Measure accuracy in `vitft label`, or",
        ),
        ("split", ("train", "val"), "remove these classes; --set data.split_column=none ignores"),
    ],
)
def test_a_class_without_validation_images_in_a_column_is_answered_with_the_column(
    data: Path, tmp_path: Path, column: str, values: tuple[str, str], fix: str
) -> None:
    rows = [
        f"{path.relative_to(data)},{path.parent.name},{values[path.name == last]}"
        for path in sorted(data.rglob("*.png"))
        for last in ["000.png" if path.parent.name != "green" else ""]
    ]
    table = data / "labels.csv"
    table.write_text("\n".join([f"path,label,{column}", *rows]))
    spec = DataSpec(path=str(table), split_column=column)

    with pytest.raises(DataError) as caught:
        check_folder_classes(scan(table, spec))

    assert "in 1 of 3 classes: green (6 for training, 0 for validation)" in str(caught.value)
    assert f"a training and a validation image in the column {column}" in str(caught.value)
    assert fix in str(caught.value)


def test_a_class_of_one_file_is_refused_without_importing_torch(data: Path, tmp_path: Path) -> None:
    for path in sorted((data / "blue").iterdir())[1:]:
        path.unlink()
    code = (
        "import sys\nfrom vitft.cli.main import main\n"
        f"code = main(['finetune', '--data', {str(data)!r}, '--weights', 'demo'])\n"
        "assert code == 3, code\nsys.exit('torch' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert "blue (1)" in done.stderr


def test_images_that_were_moved_by_hand_meanwhile_only_warn(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = moves(data, "green", "red", keep=2)
    for path in sorted((data / "green").iterdir())[2:4]:
        path.rename(data / "red" / f"moved-{path.name}")

    check(data, table, tmp_path / "run")

    error = capsys.readouterr().err
    assert "skipped 2 lines for files that are not in" in error
    assert "green/002.png and green/003.png" in error


def test_an_unfinished_run_in_the_folder_can_be_resumed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    table = {"data": {"path": str(data)}, "weights": {"name": "demo"}}
    with pytest.raises(RunError) as finished:
        check_request(config_from_table(table), str(run))
    assert "--resume" not in finished.value.fix

    (run / "environment.json").write_text(json.dumps(ENVIRONMENT | {"status": "interrupted"}))
    with pytest.raises(RunError, match="contains a run that has not finished") as stopped:
        check_request(config_from_table(table), str(run))

    assert f"`vitft finetune --resume {run}`, or choose a new" in stopped.value.fix


def test_a_run_of_the_demo_is_resumed_with_the_same_data_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_demo(tmp_path / "demo_flowers", per_class=6)
    arguments = ["finetune", "--data", "demo", "--freeze", "none", "--max-time", "0.01s"]
    assert main([*arguments, "--out", "runs/a"]) == 0

    assert main([*arguments[:3], "--resume", "runs/a", "--max-time", "0.01s"]) == 0

    assert "data folder not found" not in capsys.readouterr().err
