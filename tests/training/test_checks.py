"""Checks of a request before torch is imported and before any image is read."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from tests.support.limits import HANG_S
from tests.support.run_files import ENVIRONMENT, make_run
from vitft.cli.main import main
from vitft.config.run import Config, config_from_table, to_toml
from vitft.config.sections import DataSpec
from vitft.data.demo import DEMO_FOLDER, draw_demo
from vitft.data.fixes import Fix, write_fixes
from vitft.data.folder import File, Folder
from vitft.data.scan import scan
from vitft.data.split import check_folder_classes
from vitft.system.errors import DataError, RunError, UsageError, WeightsError
from vitft.training import checks as module
from vitft.training.checks import (
    check_request,
    check_resume,
    log_data,
    more_epochs,
    refused_changes,
    with_weights,
)


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


def test_classes_of_one_file_are_refused_without_importing_torch(
    data: Path, tmp_path: Path
) -> None:
    for name in ("blue", "green"):
        for path in sorted((data / name).iterdir())[1:]:
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


def request(
    folder: Path, out: Path | None = None, /, **settings: dict[str, Any]
) -> tuple[Config, Path]:
    table: dict[str, dict[str, Any]] = {"data": {"path": str(folder)}, "weights": {"name": "demo"}}
    for section, values in settings.items():
        table.setdefault(section, {}).update(values)
    return check_request(config_from_table(table), str(out) if out else None)


def test_a_run_without_data_is_refused() -> None:
    with pytest.raises(UsageError, match="no data given"):
        check_request(config_from_table({}), None)


def test_the_name_of_the_weights_is_checked_unless_there_are_none(
    data: Path, tmp_path: Path
) -> None:
    request(data, tmp_path / "run", weights={"name": "none"})
    request(data, tmp_path / "run", weights={"name": "random:demo"})

    with pytest.raises(WeightsError, match="nothing"):
        request(data, tmp_path / "run", weights={"name": str(tmp_path / "nothing.safetensors")})


def test_a_run_directory_inside_the_data_is_refused(data: Path, tmp_path: Path) -> None:
    for inside in (data / "run", data / "red" / "run"):
        with pytest.raises(UsageError, match="is inside the data directory"):
            request(data, inside)

    _, planned = request(data, tmp_path / "data-run")
    assert planned == tmp_path / "data-run"


def test_near_duplicates_of_a_given_split_are_not_moved(data: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    for part in ("train", "val"):
        shutil.copytree(data, parts / part)

    with pytest.raises(
        UsageError, match=r"--group-duplicates cannot be used: .* has its own split"
    ):
        request(parts, tmp_path / "run", data={"group_duplicates": True})
    request(parts, tmp_path / "run")
    request(data, tmp_path / "run", data={"group_duplicates": True})


def test_test_images_are_not_used_for_validation_beside_validation_images(
    data: Path, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    for part in ("train", "test"):
        shutil.copytree(data, parts / part)
    request(parts, tmp_path / "run", data={"val_from": "test"})
    shutil.copytree(data, parts / "val")

    request(parts, tmp_path / "run")
    with pytest.raises(
        UsageError, match=r"val_from=test cannot be used: .* its own validation set"
    ):
        request(parts, tmp_path / "run", data={"val_from": "test"})


@pytest.mark.parametrize(
    ("setting", "value"),
    [("label", "kind"), ("path_column", "file"), ("split_column", "part"), ("group", "patient")],
)
def test_columns_of_a_folder_have_no_effect(
    data: Path, tmp_path: Path, setting: str, value: str
) -> None:
    with pytest.raises(UsageError, match=rf"data\.{setting}={value} has no effect: .* not a table"):
        request(data, tmp_path / "run", data={setting: value})


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_main_process_says_what_the_run_starts_from(
    data: Path, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)

    with caplog.at_level("INFO", "vitft"):
        request(data, tmp_path / "run")

    line = "data:       data, 18 images in 3 classes"
    assert [m for m in caplog.messages if m.startswith("data:")] == [line] * (rank == "0")


def test_several_labels_are_counted_as_labels(caplog: Any) -> None:
    files = (File("1.png", 0),)
    folder = Folder(root=Path("x"), classes=("a",), files=files, layout="classes", labels=("a",))

    with caplog.at_level("INFO", "vitft"):
        log_data(folder, "x")
        log_data(replace(folder, labels=()), "x")

    assert caplog.messages == [
        "data:       x, 1 image with 1 label",
        "data:       x, 1 image in 1 class",
    ]


def test_default_weights_depend_on_the_data_and_are_not_chosen_by_several_processes(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    asked: list[Any] = []

    def choose(images: int, *, device: str) -> tuple[str, str]:
        asked.append((images, device))
        return "some", "some: fast"

    monkeypatch.setattr(module, "default_weights", choose)
    table = {"data": {"path": "photos"}, "train": {"device": "cpu"}}
    config = config_from_table(table)
    demo = config_from_table({"data": {"path": str(DEMO_FOLDER)}})
    named = config_from_table({**table, "weights": {"name": "other"}})

    with caplog.at_level("INFO", "vitft"):
        assert with_weights(config, images=7).weights.name == "some"
        assert with_weights(demo, images=7).weights.name == "demo"
        assert with_weights(named, images=7) is named
    assert asked == [(7, "cpu")]
    assert caplog.messages[0] == "weights:    some: fast (choose others with --weights)"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert with_weights(config, images=7).weights.name == "some"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert with_weights(named, images=7) is named
    with pytest.raises(UsageError, match="no weights given"):
        with_weights(config, images=7)


CONSTANT: dict[str, Any] = {"optim": {"schedule": "constant", "warmup": 0.0, "epochs": 3}}


@pytest.mark.parametrize(
    ("optim", "was", "now", "may"),
    [
        pytest.param({}, 3, 4, True, id="more epochs at a constant rate"),
        pytest.param({}, 3, 2, False, id="fewer epochs"),
        pytest.param({"schedule": "cosine"}, 3, 4, False, id="a cosine"),
        pytest.param({"warmup": 0.05}, 3, 4, False, id="a warm-up"),
        pytest.param({}, None, None, False, id="other settings"),
    ],
)
def test_epochs_may_be_added_if_the_rate_is_constant(
    optim: dict[str, Any], was: int | None, now: int | None, may: bool
) -> None:
    before = {"optim": {**CONSTANT["optim"], **optim}}
    changed = {"optim.lr": (1, 2)} if was is None else {"optim.epochs": (was, now)}

    assert more_epochs(before, changed) == ({"optim.epochs"} if may else set())
    assert more_epochs({}, changed) == set()


def test_a_refused_change_names_the_values_before_and_now() -> None:
    changed = {"data.group": (None, "p"), "data.fixes": ("a.csv", ""), "optim.clip": (0.0, 1.0)}

    error = refused_changes(Path("runs/1"), changed, {"data.fixes": "--fixes"})

    assert error.problem == (
        f"cannot resume {Path('runs/1')} with settings that would change the results: data.group "
        "was not set and is now p, --fixes was a.csv and is now not set, optim.clip was 0.0 and "
        "is now 1.0"
    )
    assert error.fix == (
        "remove data.group, --fixes and optim.clip, or start a new run without --resume"
    )


def stopped_run(path: Path, data: Path, **settings: Any) -> Path:
    """Write a run that has not finished, and whose learning rate is constant."""
    run = make_run(path)
    table = {
        "data": {"path": str(data)},
        "weights": {"name": "demo"},
        "optim": {"solver": "adamw", **CONSTANT["optim"]},
        "train": settings,
    }
    (run / "config.toml").write_text(to_toml(config_from_table(table)))
    return run


def set_status(run: Path, status: str) -> None:
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT | {"status": status}))


def test_a_finished_run_continues_only_with_more_epochs(data: Path, tmp_path: Path) -> None:
    run = stopped_run(tmp_path / "run", data)

    for status, named, continues in (
        ("interrupted", [], True),
        ("finished", [], False),
        ("finished", [("optim.epochs", 3)], False),
        ("finished", [("optim.epochs", 4)], True),
        ("finished", [("train.device", "cpu")], False),
    ):
        set_status(run, status)
        config, path = check_resume(run, named)
        assert (config is not None) is continues
        assert path == run
        if config is not None:
            assert config.optim.epochs == dict(named).get("optim.epochs", 3)
    (run / "environment.json").unlink()
    assert check_resume(run, [])[0] is not None


@pytest.mark.parametrize("shard", [True, False])
def test_only_a_sharded_run_may_use_less_memory(data: Path, tmp_path: Path, shard: bool) -> None:
    run = stopped_run(tmp_path / "run", data, shard=shard)
    set_status(run, "interrupted")

    for named in ([("optim.micro_batch", 2)], [("train.checkpointing", True)]):
        if shard:
            assert check_resume(run, named)[0] is not None
        else:
            with pytest.raises(RunError, match="settings that would change the results"):
                check_resume(run, named)


@pytest.mark.parametrize("missing", ["config.toml", "split.csv"])
def test_a_folder_without_the_settings_or_the_split_is_no_run(
    data: Path, tmp_path: Path, missing: str
) -> None:
    run = stopped_run(tmp_path / "run", data)
    (run / missing).unlink()

    with pytest.raises(RunError, match=r"cannot resume: .* is not a run directory"):
        check_resume(run, [])
