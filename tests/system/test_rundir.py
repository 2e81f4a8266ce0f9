"""The run directory with its files and its lock, runs/latest, and the place of the cache."""

import os
import platform
import subprocess
from pathlib import Path
from typing import TypedDict

import numpy as np
import pytest

from tests.support.children import python
from tests.support.run_files import ENVIRONMENT
from vitft.system import (
    RunDir,
    RunError,
    cache_folder,
    create_run,
    locked,
    point_latest,
    read_npz,
    read_run_lines,
    unfinished_run,
    write_json,
)


@pytest.mark.parametrize(("values", "is_packed"), [(2**23, True), (2**23 + 1, False)])
def test_large_arrays_are_not_packed_so_that_they_can_always_be_read(
    tmp_path: Path, values: int, is_packed: bool
) -> None:
    same = np.zeros(values, dtype=np.float32)  # packed, it would look like a bomb

    RunDir(tmp_path).write_arrays("validation.npz", logits=same)

    path = tmp_path / "validation.npz"
    assert (path.stat().st_size < 2**20) == is_packed
    assert np.array_equal(read_npz(path)["logits"], same)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_read_only_folder_is_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "locked").mkdir(mode=0o555)
    code = (
        "import os; from vitft.system import plan_run\n"
        "os.setuid(65534); plan_run('locked/run', '')"
    )  # root may write anywhere, so somebody else asks

    assert "locked is not a writable folder" in python(code, cwd=tmp_path).stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
        run.write("a.txt", "text")
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
        return python(code)

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


def test_the_cache_is_where_the_user_wants_it(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder("data") == own_home / ".cache" / "vitft" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored
    assert cache_folder("data") == own_home / ".cache" / "vitft" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder("data") == Path("/shared/vitft/data")
    monkeypatch.setenv("VITFT_CACHE", "~/mine")
    assert cache_folder("data") == own_home / "mine" / "data"
    monkeypatch.setenv("VITFT_CACHE", "")
    assert cache_folder("data") == Path("/shared/vitft/data")


class Line(TypedDict):
    epoch: int


def test_an_incomplete_last_line_and_empty_lines_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    path.write_text('{"epoch": 1}\n\n  \n{"epoch": 2}\n{"epo')
    assert read_run_lines(path, Line) == ({"epoch": 1}, {"epoch": 2})
    path.write_text('{"epoch": 1}\n{"epo\n')
    with pytest.raises(RunError, match="damaged run"):
        read_run_lines(path, Line)


def test_a_confusion_matrix_of_5000_classes_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 4 * 5000**2)  # "0, " and more for each pair

    assert read_run_lines(tmp_path / "a", Line) == ()
    os.truncate(tmp_path / "a", 2**29)
    with pytest.raises(RunError, match="more than the limit"):
        read_run_lines(tmp_path / "a", Line)


def started(folder: Path, *, status: str = "", time: int = 0) -> Path:
    """Write the files of a run that has begun, and its status unless it is empty."""
    folder.mkdir(parents=True)
    for name in ("config.toml", "split.csv"):
        (folder / name).touch()
    os.utime(folder / "config.toml", (time, time))
    if status:
        write_json(folder / "environment.json", ENVIRONMENT | {"status": status})
    return folder


def test_the_unfinished_run_that_started_last_is_found(tmp_path: Path) -> None:
    assert unfinished_run(tmp_path / "none") is None
    started(tmp_path / "c", time=100)
    second = started(tmp_path / "a", time=300, status="interrupted")
    started(tmp_path / "b", time=200)
    started(tmp_path / "d", time=400, status="finished")
    (tmp_path / "latest").symlink_to("c")

    assert unfinished_run(tmp_path) == second
    (second / "split.csv").unlink()
    assert unfinished_run(tmp_path) == tmp_path / "b"
