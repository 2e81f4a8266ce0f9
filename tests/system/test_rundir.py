"""The run directory and runs/latest."""

import json
import os
import platform
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.support.limits import HANG_S
from vitft.models.find import find_model
from vitft.system.errors import ResourceError, RunError, UsageError
from vitft.system.npz import read_npz
from vitft.system.rundir import (
    RunDir,
    RunEnvironment,
    create_run,
    describe_arithmetic,
    environment,
    loading_step,
    locked,
    other_arithmetic,
    plan_run,
    point_latest,
    processes_of,
    read_environment,
    run_path,
)


def test_other_arithmetic_is_kept_until_the_end_of_a_run() -> None:
    one = environment("running", "cpu (x86_64, 1 thread)", "fp32", instructions="AVX2")
    two = environment("running", "cpu (x86_64, 2 threads)", "fp32", instructions="AVX2")
    half = environment("running", "cuda:0 (A100)", "bf16", processes=2)

    assert other_arithmetic(None, one) == []
    assert other_arithmetic(one, one) == []
    (first,) = other_arithmetic(one, two)
    assert first.startswith("cpu (x86_64, 1 thread) in fp32, AVX2, torch ")
    two["earlier"] = [first]
    assert other_arithmetic(two, two) == [first]
    assert len(other_arithmetic(two, half)) == 2
    assert len(other_arithmetic(two, one)) == 1
    assert "in bf16, 2 processes, torch" in describe_arithmetic(half)


@pytest.mark.parametrize(("values", "is_packed"), [(2**23, True), (2**23 + 1, False)])
def test_large_arrays_are_not_packed_so_that_they_can_always_be_read(
    tmp_path: Path, values: int, is_packed: bool
) -> None:
    same = np.zeros(values, dtype=np.float32)  # packed, it would look like a bomb

    RunDir(tmp_path).write_arrays("validation.npz", logits=same)

    path = tmp_path / "validation.npz"
    assert (path.stat().st_size < 2**20) == is_packed
    assert np.array_equal(read_npz(path)["logits"], same)


def test_a_run_is_named_by_time_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 1, 2, 3, 4, 5)

    first = plan_run(None, "some/flower photos/", now=now)
    create_run(first)
    second = plan_run(None, "some/flower photos/", now=now)

    assert first == Path("runs/20260102-030405-flower_photos")
    assert second.name == "20260102-030405-flower_photos-2"


def test_planning_a_run_creates_nothing(tmp_path: Path) -> None:
    plan_run(str(tmp_path / "a" / "b"), "data")

    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(RunError, match="is not empty"):
        plan_run(str(tmp_path), "data")


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(RunError, match="is not a writable folder"):
        plan_run(str(tmp_path / "file" / "run"), "data")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_read_only_folder_is_not_writable(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    code = (
        "import os; from pathlib import Path; from vitft.system.rundir import is_writable\n"
        f"os.setuid(65534); print(is_writable(Path({str(locked)!r})))"
    )  # root may write anywhere, so somebody else asks

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S
    )

    assert done.stdout.strip() == "False"


def test_latest_points_to_the_newest_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        run = create_run(Path("runs") / name)
        run.model.write_bytes(b"")
        point_latest(run)

    assert find_model(None).resolve() == tmp_path / "runs" / "two" / "model.safetensors"


def test_a_folder_named_latest_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    point_latest(RunDir(tmp_path / "run"))

    assert (tmp_path / "latest").is_dir()
    assert not (tmp_path / "latest").is_symlink()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        pytest.param(None, "no finished run in runs/", id="nothing trained yet"),
        pytest.param("nowhere", "no model in nowhere", id="no such run"),
    ],
)
def test_a_missing_run_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(RunError, match=message):
        find_model(run)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_data_without_a_name_gives_the_run_a_name(here: Path) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5)

    assert plan_run(None, "/", now=now) == Path("runs/20260102-030405-data")
    assert plan_run(None, "a!b.c-d_e", now=now) == Path("runs/20260102-030405-a_b.c-d_e")
    assert abs(datetime.strptime(plan_run(None, "x").name, "%Y%m%d-%H%M%S-x") - datetime.now()) < (
        timedelta(minutes=1)
    )


def test_a_home_folder_is_expanded_and_errors_name_the_option(here: Path, own_home: Path) -> None:
    assert plan_run("~/run", "data") == own_home / "run"
    (here / "full").mkdir()
    (here / "full" / "x").touch()
    with pytest.raises(RunError, match="folder full is not empty") as refused:
        plan_run("full", "", name="charts")
    assert refused.value.fix == "choose a new or empty folder with --charts"
    (here / "empty").mkdir()
    assert plan_run("empty", "") == Path("empty")


def test_an_existing_folder_may_have_the_name_of_a_file(here: Path) -> None:
    (here / "results.csv").mkdir()

    assert plan_run("results.csv", "") == Path("results.csv")
    with pytest.raises(UsageError, match=r"--explain new\.csv names a \.csv file") as refused:
        plan_run("new.csv", "", name="explain")
    assert refused.value.fix == "choose the name of a folder, e.g. --explain new"


def test_runs_at_the_same_time_get_different_folders_but_only_in_runs(here: Path) -> None:
    names = [create_run(Path("runs/a")).path.name for _ in range(3)]

    assert names == ["a", "a-2", "a-3"]
    assert create_run(here / "b" / "c").path == here / "b" / "c"
    (here / "b" / "c" / "x").touch()
    with pytest.raises(RunError, match="is not empty"):
        create_run(here / "b" / "c")


def test_a_process_that_does_not_write_leaves_no_files(here: Path) -> None:
    for name in ("main", "other"):
        (here / name).mkdir()
        run = RunDir(here / name, writes=name == "main")
        run.write_text("a.txt", "text")
        run.write_json("b.json", {"x": 1})
        run.write_arrays("c.npz", x=np.arange(3))
        run.log({"epoch": 1})
        (here / name / "metrics.jsonl").touch()
        run.cut_log(0 if name == "other" else 100)

    written = {path.name for path in (here / "main").iterdir()}
    assert written == {"a.txt", "b.json", "c.npz", "metrics.jsonl"}
    assert [path.name for path in (here / "other").iterdir()] == ["metrics.jsonl"]


def test_the_log_is_appended_to_and_cut_back(here: Path) -> None:
    run = RunDir(here)
    run.cut_log(5)  # there is none yet
    assert run.log_size() == 0
    run.log({"epoch": 1})
    size = run.log_size()
    run.log({"epoch": 2})

    assert (here / "metrics.jsonl").read_bytes() == b'{"epoch": 1}\n{"epoch": 2}\n'
    assert (size, run.log_size()) == (13, 26)
    run.cut_log(26)
    assert run.log_size() == 26
    run.cut_log(size)
    assert (here / "metrics.jsonl").read_bytes() == b'{"epoch": 1}\n'
    run.cut_log(1000)  # never longer
    assert run.log_size() == 13
    with pytest.raises(ValueError, match="Out of range float"):
        run.log({"loss": float("nan")})
    RunDir(here, writes=False).cut_log(0)
    assert run.log_size() == 13


def test_a_line_that_could_not_be_written_completely_is_removed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(here)
    run.log({"epoch": 1})
    dump = json.dumps

    def torn(fields: object, **options: Any) -> str:
        with (here / "metrics.jsonl").open("a") as file:
            file.write(dump(fields, **options)[:4])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitft.system.rundir.json.dumps", torn)
    with pytest.raises(ResourceError, match="disk full"):
        run.log({"epoch": 2})

    assert (here / "metrics.jsonl").read_bytes() == b'{"epoch": 1}\n'


def test_a_log_that_is_a_pipe_is_refused(here: Path) -> None:
    os.mkfifo(here / "metrics.jsonl")

    with pytest.raises(RunError, match=r"metrics\.jsonl is not a regular file"):
        RunDir(here).log({"epoch": 1})


def test_a_run_is_locked_against_other_processes_until_the_end(here: Path) -> None:
    run = RunDir(here)
    code = (
        "import sys; from pathlib import Path; from vitft.system.rundir import RunDir, locked\n"
        f"with locked(RunDir(Path({str(here)!r}))): print('free')"
    )

    def other() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    (here / ".lock").write_text("a longer line that a process left when it was killed " * 5)
    with locked(run):
        line = (here / ".lock").read_text()
        refused = other()
    assert line.startswith(f"process {os.getpid()} on {platform.node()} since 20")
    assert line.count("\n") == 1
    assert len(line) < 150
    assert f"{here} is in use by process {os.getpid()} on" in refused.stderr
    assert not (here / ".lock").exists()
    assert other().stdout == "free\n"
    with pytest.raises(ZeroDivisionError), locked(run):
        1 / 0  # noqa: B018
    assert not (here / ".lock").exists()


def test_latest_may_be_a_file_with_the_name_of_the_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise OSError(1, "A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", forbidden)
    for name in ("one", "two"):
        point_latest(create_run(Path("runs") / name))

    assert Path("runs/latest").read_text() == "two\n"
    assert run_path(None) == run_path("runs/latest") == Path("runs/two")
    assert [path.name for path in Path("runs").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("text", ["a/b", "", "x" * 1001])
def test_a_file_latest_with_anything_but_a_name_is_the_path_itself(here: Path, text: str) -> None:
    Path("latest").write_text(text)

    assert run_path("latest") == Path("latest")


def test_the_longest_name_in_a_file_latest_is_read(here: Path) -> None:
    Path("latest").write_text("x" * 200 + " " * 800)

    assert run_path("latest") == Path("x" * 200)
    Path("other").write_text("two")
    assert run_path("other") == Path("other")
    assert run_path("~/run") == Path.home() / "run"


def test_only_runs_in_the_folder_runs_become_the_latest(here: Path) -> None:
    (here / "runs").mkdir()
    point_latest(create_run(here / "elsewhere"))
    assert not os.path.lexists("runs/latest")
    assert not os.path.lexists("latest")
    (here / "runs" / "latest").mkdir()
    point_latest(create_run(Path("runs/a")))

    assert not (here / "runs" / "latest").is_symlink()
    (here / "runs" / "latest").rmdir()
    (here / "runs" / "latest").symlink_to("gone")
    point_latest(RunDir(Path("runs/a")))
    assert (here / "runs" / "latest").readlink() == Path("a")


def test_the_loading_of_a_model_names_the_run() -> None:
    assert loading_step(None) == f"loading the model of {Path('runs/latest')}"
    assert loading_step("a") == "loading the model of a"


def test_the_environment_of_a_run_has_the_versions_that_influence_it(here: Path) -> None:
    found = environment("running", "cpu", "fp32")

    assert (found["status"], found["device"], found["precision"]) == ("running", "cpu", "fp32")
    assert (found["processes"], found["instructions"]) == (1, "")
    assert found["packages"]["torch"].startswith("2.")
    assert "vitft" in found["packages"]
    assert read_environment(here / "environment.json") is None
    RunDir(here).write_json("environment.json", found)
    assert read_environment(here / "environment.json") == found


def test_the_arithmetic_of_one_process_without_instructions_is_described_briefly() -> None:
    plain = environment("running", "cpu", "fp32")
    many = environment("running", "cpu", "fp32", processes=2, instructions="AVX2")
    version = plain["packages"]["torch"]
    plain["packages"] = {}

    assert describe_arithmetic(many) == f"cpu in fp32, AVX2, 2 processes, torch {version}"
    assert describe_arithmetic(plain) == "cpu in fp32, torch unknown"
    assert [processes_of(describe_arithmetic(known)) for known in (many, plain)] == [2, 1]
    bare = {key: plain[key] for key in ("device", "precision", "packages")}
    assert describe_arithmetic(cast("RunEnvironment", bare)) == "cpu in fp32, torch unknown"
