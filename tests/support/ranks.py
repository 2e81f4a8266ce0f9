"""Processes that are started as torchrun would start them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.limits import HANG_S

Process = subprocess.Popen[str]
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"),
)
"""Words before the name of a module that two processes are to run."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def rank_environment(home: Path, rank: int, size: int, port: int) -> dict[str, str]:
    """Return the environment of a rank; torchrun also limits torch to one thread."""
    root = str(Path(__file__).parents[2])
    found = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    if size == 1:
        return found
    return {
        **found,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }


def start_ranks(
    home: Path,
    size: int,
    words: Sequence[str],
    *,
    own_homes: bool = False,
    kill_rank: int = -1,
    stop_rank: int = -1,
) -> list[Process]:
    """Start a counted command as `size` ranks, in a folder each of them writes its counts to.

    With `own_homes`, the ranks do not share a cache, as on machines without a common folder. The
    rank `kill_rank` kills itself after 16 computed images; `stop_rank` sends itself a SIGTERM
    once the head is solved.
    """
    port, processes = free_port(), []
    for rank in range(size):
        own = home / f"home-{rank}" if own_homes else home
        environment = rank_environment(own, rank, size, port)
        if rank == kill_rank:
            environment["KILL_AFTER"] = "16"
        if rank == stop_rank:
            environment["STOP_IN_STAGE"] = "1"
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.counted_rank", *words],
                cwd=home,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def end_ranks(processes: Sequence[Process]) -> list[tuple[int, str]]:
    """Wait for the processes; return their exit codes and what they wrote to stderr."""
    found = []
    for process in processes:
        _, shown = process.communicate(timeout=HANG_S)
        found.append((process.returncode, shown))
    return found


def counts(home: Path, size: int) -> list[dict[str, Any]]:
    """Return what each rank of the last command has counted."""
    return [json.loads((home / f"counts-{rank}.json").read_text()) for rank in range(size)]
