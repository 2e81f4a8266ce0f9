"""Data-parallel training of two processes on loopback with gloo."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny_home
from tests.support.children import ended
from tests.support.ranks import TORCHRUN, end_ranks, free_port, rank_environment
from vitft.cli.main import main
from vitft.models import load_checkpoint
from vitft.system import ResourceError
from vitft.training import ProcessGroup, process_group, rendezvous_store, report_lost_process

EXACT = [
    *("--train", "all", "--epochs", "2", "--batch-size", "7", "--lr", "0.01"),
    *("--set", "train.precision=fp32"),
]


def test_shards_and_batch_slices_cover_everything_once() -> None:
    items = list(range(11))
    teams = [ProcessGroup(rank, 3) for rank in range(3)]

    shared = [item for team in teams for item in team.shard(items)]
    pieces = [items[team.batch_slice(len(items))] for team in teams]

    assert sorted(shared) == items
    assert [item for piece in pieces for item in piece] == items
    assert [len(piece) for piece in pieces] == [4, 4, 3]
    assert [len(range(1)[team.batch_slice(1)]) for team in teams] == [1, 0, 0]
    shards = [list(ProcessGroup(rank, 2).shard(items, 3)) for rank in range(2)]
    assert shards == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10]]  # runs of three stay together
    assert list(ProcessGroup().shard(items, 3)) == items
    assert ProcessGroup().main_only(lambda: 5) == 5
    assert ProcessGroup().gather(5) == [5]
    assert not ProcessGroup(1, 2).is_main


def test_a_restart_does_not_read_the_addresses_of_its_dead_predecessors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}", "RANK": "0"}
    for name, value in {**place, "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    before = rendezvous_store(timedelta(seconds=20))
    before.set("address", "of a process that was killed")

    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    after = rendezvous_store(timedelta(seconds=20))

    assert before.check(["address"])
    assert not after.check(["address"])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), ResourceError),
        (RuntimeError("[gloo/transport/tcp/pair.cc:525] Connection closed by peer"), ResourceError),
        (RuntimeError("CUDA error: an illegal memory access"), RuntimeError),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
    ],
)
def test_only_a_broken_connection_is_reported_as_a_lost_process(
    error: RuntimeError, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as caught, report_lost_process():
        raise error

    assert type(caught.value) is expected


def collected(out: Path, limit: float = 60.0) -> list[dict[str, Any]]:
    """Return what three ranks got from the collectives, in the order of their ranks."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.collectives", str(out), str(limit)],
            env=rank_environment(out, rank, 3, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    ended = end_ranks(processes)
    assert [code for code, _ in ended] == [0, 0, 0], ended
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(3)]


def test_every_process_gets_the_values_of_all(tmp_path: Path) -> None:
    ranks = collected(tmp_path)

    for rank, found in enumerate(ranks):
        assert found["group"] == [rank, 3, rank == 0]
        assert found["summed"] == [[3.0, 3.0], [[33.0, 33.0, 33.0]]]
        assert found["largest"] == 10
        assert found["broadcast"] == "of 0"
        assert found["gathered"] == [{"rank": other} for other in range(3)]
        assert found["rows"] == [[2 * i, 2 * i + 1] for i in range(10)]
        assert (found["few rows"], found["main only"]) == ([[0, 1]], 0)


@pytest.mark.long
def test_the_main_process_may_work_alone_for_longer_than_the_time_limit(tmp_path: Path) -> None:
    assert [found["long"] for found in collected(tmp_path, limit=20.0)] == [0, 0, 0]


def test_separate_runs_that_srun_started_are_noted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")

    with process_group() as group:
        assert group.size == 1

    assert "4 separate runs" in caplog.text
    assert "torchrun" in caplog.text


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, weights and a module that runs vitft with a state after every step."""
    home = tiny_home(tmp_path_factory.mktemp("team"))
    often = "stages.SAVE_INTERVAL_S, stages.SAVE_FRACTION = 0.0, 1e9"
    lines = ("from vitft.__main__ import run", "from vitft.training import stages", often, "run()")
    (home / "saving.py").write_text("\n".join(lines))
    return home


def options_of(home: Path, out: Path) -> list[str]:
    weights = str(home / "w.safetensors")
    return ["--data", str(home / "data"), "--weights", weights, "--out", str(out)]


@pytest.fixture
def whole(home: Path, tmp_path: Path) -> Path:
    """The run of one process that was not stopped."""
    assert main(["finetune", *options_of(home, tmp_path / "whole"), *EXACT]) == 0
    return tmp_path / "whole"


def launch(home: Path, *options: str, module: str = "vitft") -> subprocess.CompletedProcess[str]:
    """Run `vitft finetune` in two processes."""
    environment = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
    return ended([*TORCHRUN, module, "finetune", *options], cwd=home, env=environment)


def figures(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "eval.json").read_text())
    return found


def check_same_run(run: Path, whole: Path) -> None:
    """Check that two runs took the same steps, up to rounding."""
    log, expected = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (run, whole)
    )
    assert log == [pytest.approx(each, abs=1e-5) for each in expected]
    (first, _), (second, _) = (load_checkpoint(path / "model.safetensors") for path in (run, whole))
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)


@pytest.mark.long
@pytest.mark.parametrize("module", ["vitft", "saving"])
def test_two_processes_take_the_steps_of_one_and_log_once(
    home: Path, whole: Path, tmp_path: Path, module: str
) -> None:
    two = launch(home, *options_of(home, tmp_path / "two"), *EXACT, module=module)

    assert two.returncode == 0, two.stderr
    check_same_run(tmp_path / "two", whole)
    assert figures(whole)["images"] == figures(tmp_path / "two")["images"] == 3
    assert two.stderr.count("Training   ") == 1
    assert two.stdout.count("Accuracy") == 1


@pytest.mark.long
@pytest.mark.parametrize("before", [1, 2])
def test_a_run_resumed_with_another_number_of_processes_takes_the_remaining_steps(
    home: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: int
) -> None:
    run = tmp_path / "run"
    begin = [*options_of(home, run), *EXACT, "--max-time", "0.001s"]
    resume = ["--resume", str(run)]

    if before == 1:
        assert main(["finetune", *begin]) == 0
    else:
        assert launch(home, *begin).returncode == 0
    (state,) = (run / "resume").glob("state-*")
    capsys.readouterr()
    if before == 1:
        done = launch(home, *resume)
        assert done.returncode == 0, done.stderr
        shown = done.stderr
    else:
        assert main(["finetune", *resume]) == 0
        shown = capsys.readouterr().err

    assert state.name == "state-0-00000001.safetensors"  # of six steps
    check_same_run(run, whole)
    assert (run / "split.csv").read_bytes() == (whole / "split.csv").read_bytes()
    (note,) = (line for line in shown.splitlines() if "earlier steps" in line)
    assert ("2 processes, torch" in note) == (before == 2)
    assert "will differ from those" in note


@pytest.mark.long
def test_two_processes_share_features_and_a_solved_head(home: Path) -> None:
    out = home / "solved"
    done = launch(home, *options_of(home, out))

    assert done.returncode == 0, done.stderr
    assert figures(out)["cross_validation"]["images"] == 18
    assert (out / "report.html").exists()
