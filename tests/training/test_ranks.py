"""Faults of one process of several, started as torchrun would."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import tiny_home
from tests.support.limits import HANG_S
from tests.support.ranks import Process, free_port, rank_environment

pytestmark = pytest.mark.long

BROKEN = """
import os, sys
from vitft.cli.main import main
from vitft.system.errors import DataError
from vitft.training import run

def fail(*_):
    raise DataError("this process cannot read its disk", fix="check the disk")

if os.environ["RANK"] == os.environ.get("BROKEN_RANK"):
    run.fit = fail
sys.exit(main(sys.argv[1:]))
"""
OPTIONS = ["--data", "data", "--weights", "w.safetensors", "--train", "all", "--epochs", "1"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tiny_home(tmp_path)


def start(home: Path, rank: int, port: int, *, seconds: int, broken: str = "") -> Process:
    settings = ["--out", "run", "--lr", "0.01", "--set", f"train.timeout={seconds}"]
    return subprocess.Popen(
        [sys.executable, "-c", BROKEN, "finetune", *OPTIONS, *settings],
        cwd=home,
        env={**rank_environment(home, rank, 2, port), "BROKEN_RANK": broken},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: Process) -> tuple[int, str]:
    _, shown = process.communicate(timeout=HANG_S)
    assert "Traceback" not in shown
    return process.returncode, shown


def test_an_error_in_one_process_ends_both_with_its_message_once(home: Path) -> None:
    port = free_port()
    both = [start(home, rank, port, seconds=60, broken="1") for rank in (0, 1)]

    (main_code, main_shown), (code, shown) = (end(process) for process in both)

    assert (main_code, code) == (6, 3)
    assert (main_shown + shown).count("this process cannot read its disk") == 1
    assert "process 1 of the run has ended" in main_shown


def test_a_process_whose_partner_never_starts_ends_after_the_timeout(home: Path) -> None:
    code, shown = end(start(home, 1, free_port(), seconds=3))

    assert code == 6
    assert "another process of the run is not responding" in shown


def test_a_port_in_use_ends_the_main_process(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, shown = end(start(home, 0, int(taken.getsockname()[1]), seconds=3))

    assert code == 6
    assert "failed to listen" in shown
