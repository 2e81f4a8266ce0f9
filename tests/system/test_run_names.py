"""Names suggested for a run that does not exist, and names of files refused for folders."""

import os
from pathlib import Path

from tests.support.run_files import ENVIRONMENT
from vitft.system import unfinished_run, write_json

FLOWERS, LEAVES = "20261123-101500-Bl\u00fcten", "20261123-103000-leaves"


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
