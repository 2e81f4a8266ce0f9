"""Data-parallel training of two processes on loopback with gloo."""

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import tiny_home
from vitft.models.checkpoint import load_checkpoint
from vitft.training.distributed import ProcessGroup, rendezvous_store

OPTIONS = ["--freeze", "none", "--epochs", "2", "--batch-size", "7", "--lr", "0.01"]


def test_shards_and_batch_slices_cover_everything_once() -> None:
    items = list(range(11))
    teams = [ProcessGroup(rank, 3) for rank in range(3)]

    shared = [item for team in teams for item in team.shard(items)]
    pieces = [items[team.batch_slice(len(items))] for team in teams]

    assert sorted(shared) == items
    assert [item for piece in pieces for item in piece] == items
    assert [len(piece) for piece in pieces] == [4, 4, 3]
    assert [len(range(1)[team.batch_slice(1)]) for team in teams] == [1, 0, 0]


def test_collectives_of_a_single_process_return_its_own_values() -> None:
    team, tensor = ProcessGroup(), torch.ones(2)

    assert team.all_reduce([tensor], [3.0]) == [3.0]
    assert team.all_reduce_max(5) == 5
    assert team.broadcast("x") == "x"
    assert torch.equal(team.all_gather(tensor, 2), tensor)
    assert team.is_main


def test_a_restart_does_not_read_the_addresses_of_its_dead_predecessors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    before = rendezvous_store(timedelta(seconds=20))
    before.set("address", "of a process that was killed")

    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    after = rendezvous_store(timedelta(seconds=20))

    assert before.check(["address"])
    assert not after.check(["address"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, weights, and the runs of one process and of two."""
    return tiny_home(tmp_path_factory.mktemp("team"))


def launch(home: Path, out: str, *options: str, processes: int) -> subprocess.CompletedProcess[str]:
    alone = [sys.executable, "-m", "vitft"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    together = [*torchrun, "--nproc-per-node", str(processes), "-m", "vitft"]
    data = ["--data", "data", "--weights", "w.safetensors", "--out", out]
    return subprocess.run(
        [*(alone if processes == 1 else together), "finetune", *data, *options],
        cwd=home,
        env={**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def figures(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "eval.json").read_text())
    return found


def test_two_processes_take_the_steps_of_one_and_log_once(home: Path) -> None:
    exact = [*OPTIONS, "--set", "train.precision=fp32"]
    one = launch(home, "one", *exact, processes=1)
    two = launch(home, "two", *exact, processes=2)
    assert (one.returncode, two.returncode) == (0, 0), two.stderr

    (first, _), (second, _) = (
        load_checkpoint(home / name / "model.safetensors") for name in ("one", "two")
    )
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)
    assert figures(home / "one")["images"] == figures(home / "two")["images"] == 3
    assert two.stderr.count("(--freeze none), on") == 1
    assert two.stdout.count("accuracy") == 1


def test_two_processes_share_features_and_a_solved_head(home: Path) -> None:
    done = launch(home, "solved", processes=2)

    assert done.returncode == 0, done.stderr
    assert figures(home / "solved")["cross_validation"]["images"] == 18
    assert (home / "solved" / "report.html").exists()
