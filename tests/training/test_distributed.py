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
from tests.support.limits import HANG_S
from vitft.models.checkpoint import load_checkpoint
from vitft.system.errors import ResourceError
from vitft.training.distributed import (
    ProcessGroup,
    choose_backend,
    rendezvous_store,
    report_lost_process,
)

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


@pytest.mark.parametrize(
    ("device", "has_gpu", "backend"),
    [
        ("auto", True, "nccl"),
        ("cuda", True, "nccl"),
        ("cuda:1", True, "nccl"),
        ("cpu", True, "gloo"),
        ("auto", False, "gloo"),
        ("mps", False, "gloo"),
    ],
)
def test_the_device_of_the_run_chooses_the_backend(
    device: str, has_gpu: bool, backend: str
) -> None:
    assert choose_backend(device, has_gpu=has_gpu) == backend


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


def test_two_processes_have_the_same_running_statistics(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = ["--nproc-per-node", "2", "-m", "tests.support.batchnorm_steps", str(tmp_path)]
    done = subprocess.run(
        [*torchrun, *script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))

    assert first.keys() == second.keys() >= {"model/1.running_mean", "average/1.running_mean"}
    assert all(torch.equal(first[name], second[name]) for name in first)
    means = [torch.load(tmp_path / f"{r}-inputs.pt", weights_only=True) for r in (0, 1)]
    expected = 0.1 * (means[0] + means[1]) / 2  # momentum 0.1, and a mean of 0 before the step
    torch.testing.assert_close(first["model/1.running_mean"], expected)


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
        timeout=HANG_S,
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
    assert two.stderr.count("training:   ") == 1
    assert two.stdout.count("accuracy") == 1


def test_two_processes_share_features_and_a_solved_head(home: Path) -> None:
    done = launch(home, "solved", processes=2)

    assert done.returncode == 0, done.stderr
    assert figures(home / "solved")["cross_validation"]["images"] == 18
    assert (home / "solved" / "report.html").exists()
