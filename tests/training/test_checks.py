"""Checks of a request before torch is imported and before any image is read."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import draw_folder
from tests.support.limits import HANG_S
from tests.support.run_files import ENVIRONMENT, make_run
from vitft.cli.main import main
from vitft.config import Config, config_from_table, to_toml
from vitft.data import Fix, write_fixes
from vitft.system import DataError, UsageError
from vitft.training import check_request, check_resume


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


def request(
    folder: Path, out: Path | None = None, /, **settings: dict[str, Any]
) -> tuple[Config, Path]:
    table: dict[str, dict[str, Any]] = {"data": {"path": str(folder)}, "weights": {"name": "demo"}}
    for section, values in settings.items():
        table.setdefault(section, {}).update(values)
    return check_request(config_from_table(table), str(out) if out else None)


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


CONSTANT: dict[str, Any] = {"optim": {"schedule": "constant", "warmup": 0.0, "epochs": 3}}


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
