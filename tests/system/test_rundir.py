"""The run directory and runs/latest."""

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.support.limits import HANG_S
from vitft.models.find import find_model
from vitft.system.errors import RunError
from vitft.system.npz import read_npz
from vitft.system.rundir import (
    RunDir,
    RunEnvironment,
    create_run,
    describe_arithmetic,
    environment,
    other_arithmetic,
    plan_run,
    point_latest,
)


def test_other_arithmetic_is_kept_until_the_end_of_a_run() -> None:
    one = environment("running", "cpu (x86_64, 1 thread)", "fp32", instructions="AVX2")
    two = environment("running", "cpu (x86_64, 2 threads)", "fp32", instructions="AVX2")
    half = environment("running", "cuda:0 (A100)", "bf16", processes=2)
    before: dict[str, object] = {**one}
    del before["processes"], before["instructions"]  # as older versions wrote it

    assert other_arithmetic(None, one) == []
    assert other_arithmetic(one, one) == []
    assert other_arithmetic(cast("RunEnvironment", before), one) == []
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
