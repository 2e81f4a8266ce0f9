"""Names suggested for a run that does not exist, and names of files refused for folders."""

import os
from pathlib import Path

import pytest

from vitft.system import (
    environment,
    suggest_runs,
    unfinished_run,
    write_json,
)

FLOWERS, LEAVES = "20261123-101500-Bl\u00fcten", "20261123-103000-leaves"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (FLOWERS, LEAVES):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").write_text("")
    (tmp_path / "runs" / "latest").symlink_to(LEAVES)
    (tmp_path / "runs" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        pytest.param("latst", "did you mean --run runs/latest?", id="typing error"),
        pytest.param("runs/lastest", "did you mean --run runs/latest?", id="with the folder"),
        pytest.param(LEAVES, f"did you mean --run runs/{LEAVES}?", id="without the folder"),
        pytest.param("leaves", f"did you mean --run runs/{LEAVES}?", id="name of the data"),
        pytest.param("birds", "choose from 2 runs, e.g. --run runs/latest", id="nothing near"),
    ],
)
def test_similar_runs_are_suggested(here: Path, given: str, suggested: str) -> None:
    fix = suggest_runs(given, otherwise="train first")

    assert fix.startswith(suggested)
    assert "lists the runs" in fix
    assert "notes" not in fix


def test_runs_elsewhere_are_counted_only_where_the_usual_folder_has_none(here: Path) -> None:
    for name in ("one", "two", "three"):
        (here / "mine" / name).mkdir(parents=True)
        (here / "mine" / name / "config.toml").write_text("")

    usual = suggest_runs("mine/birds", otherwise="train first")
    (here / "runs").rename(here / "old")
    alone = suggest_runs("mine/birds", otherwise="train first")

    assert usual.startswith("choose from 2 runs")
    assert alone.startswith("choose from 3 runs")
    assert suggest_runs("birds", otherwise="train first") == "train first"


def started(folder: Path, *, status: str = "", time: int = 0) -> Path:
    """Write the files of a run that has begun, and its status unless it is empty."""
    folder.mkdir(parents=True)
    for name in ("config.toml", "split.csv"):
        (folder / name).touch()
    os.utime(folder / "config.toml", (time, time))
    if status:
        write_json(folder / "environment.json", environment(status, "cpu", "fp32"))
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
