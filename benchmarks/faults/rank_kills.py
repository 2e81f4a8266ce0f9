"""Processes of a distributed run that are killed at random moments, and the run resumed.

    python -m benchmarks.faults.rank_kills                     # 50 kills, 10 of them under torchrun

Two gloo processes train one model. One of them, drawn at random, receives SIGKILL after a random time;
the other, which receives SIGTERM as from torchrun, must end within 15 s. Then both are started again
and resume, until the run ends with the weights, log and metrics of an undisturbed one. Most kills
hit forked processes with the environment that torchrun gives; the others run under torchrun
itself, which restarts them (--max-restarts). At the end one process is stopped (SIGSTOP) instead: the
other must give up after train.timeout.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.faults import forked
from benchmarks.faults.small_run import (
    AUGMENTED,
    TRAINING,
    clear_unbegun,
    command,
    has_begun,
    prepare,
    result,
)
from benchmarks.timing import counts

OPTIONS = (*AUGMENTED, *TRAINING, "--epochs", "5")
LIMIT_S = 15.0
"""The survivor counts as hanging after this time."""


def free_port() -> int:
    """Return a port on which nobody listens at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def launch(home: Path, out: Path, *options: str) -> list[int]:
    """Fork two processes as torchrun would start them; return their ids by rank."""
    port = free_port()
    clear_unbegun(out)
    words = command(home, out, *OPTIONS, *options)

    def join(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    return [
        forked.start(home, words, lambda rank=rank: join(rank), log=f"rank{rank}.txt")  # type: ignore[misc]
        for rank in range(2)
    ]


def ended(pids: list[int], within_s: float) -> dict[int, int]:
    """Return the exit codes of those processes that end in time."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + within_s
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return codes


class Score:
    """Counts over all kills."""

    def __init__(self) -> None:
        self.runs = self.kills = self.hangs = self.lost = self.different = 0
        self.codes: Counter[int] = Counter()
        self.slowest_s = 0.0

    def line(self, name: str) -> str:
        return (
            f"{name}: {self.kills} kills in {self.runs} runs, {self.hangs} hangs over "
            f"{LIMIT_S:.0f} s (slowest end {self.slowest_s:.1f} s), {self.lost} lost, "
            f"{self.different} different; exit codes of survivors {counts(self.codes)}"
        )


def kill_forked(home: Path, kills: int, whole_s: float, wanted: object) -> Score:
    """Kill one of two forked processes, again and again, and resume the run."""
    rng, score = random.Random(0), Score()
    while score.kills < kills:
        score.runs += 1
        out = home / f"run-{score.runs}"
        longest_s = whole_s
        while True:
            pids = launch(home, out)
            delay_s = rng.uniform(0.0, longest_s) if score.kills < kills else 300.0
            codes = ended(pids, delay_s)
            longest_s *= 1.3  # so that a run reaches its end on a busy machine, too
            if len(codes) < 2 and kill_one(pids, codes, rng, score):
                continue
            if any(codes.values()):
                score.lost += 1
                print(f"lost: exit codes {sorted(codes.values())}", flush=True)
                break
            score.different += result(out) != wanted
            break
        shutil.rmtree(out, ignore_errors=True)
    return score


def kill_one(pids: list[int], codes: dict[int, int], rng: random.Random, score: Score) -> bool:
    """Kill one running process; return whether the other one ended as it should."""
    left = [pid for pid in pids if pid not in codes]
    victim = rng.choice(left)
    os.kill(victim, signal.SIGKILL)
    score.kills += 1
    killed_at = time.monotonic()
    for pid in left:
        if pid != victim:  # as torchrun does
            os.kill(pid, signal.SIGTERM)
    codes |= ended(left, LIMIT_S)
    score.slowest_s = max(score.slowest_s, time.monotonic() - killed_at)
    for pid in set(left) - codes.keys():
        score.hangs += 1
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    survivors = [code for pid, code in codes.items() if pid != victim]
    score.codes.update(survivors)
    if score.kills % 10 == 0:
        print(score.line("so far"), flush=True)
    return {*survivors} <= {0, 6, 143, -15}


def children(pid: int) -> list[int]:
    """Return the processes that a process started."""
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill_under_torchrun(home: Path, kills: int, wanted: object) -> Score:
    """Kill one of torchrun's two processes once per run; torchrun starts both again."""
    rng, score = random.Random(1), Score()
    for number in range(kills):
        out = home / f"torchrun-{number}"
        words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
        own = ["-m", "benchmarks.faults.rank_kills", "--as-rank", str(home), str(out)]
        with (home / "torchrun.txt").open("ab") as log:
            launcher = [sys.executable, "-m", "torch.distributed.run", *words, *own]
            process = subprocess.Popen(launcher, stdout=log, stderr=log)
        score.runs += 1
        while not has_begun(out) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 1.0))
        pids = children(process.pid)
        if len(pids) == 2:
            os.kill(rng.choice(pids), signal.SIGKILL)
            score.kills += 1
            killed_at = time.monotonic()
            while set(pids) & set(children(process.pid)):
                if time.monotonic() - killed_at > LIMIT_S:
                    score.hangs += 1
                    break
                time.sleep(0.01)
            score.slowest_s = max(score.slowest_s, time.monotonic() - killed_at)
        code = process.wait()
        score.lost += code != 0
        score.different += code == 0 and result(out) != wanted
    return score


def stop_one(home: Path) -> str:
    """Stop one process; report how and when the other one gives up."""
    out = home / "stopped"
    pids = launch(home, out, "--set", "train.timeout=5.0")
    while not (out / "resume").exists():
        time.sleep(0.01)
    os.kill(pids[1], signal.SIGSTOP)
    begun = time.monotonic()
    code = ended(pids[:1], 60.0).get(pids[0], "none, it hangs")
    waited = time.monotonic() - begun
    os.kill(pids[1], signal.SIGKILL)
    os.waitpid(pids[1], 0)
    lines = forked.output(home, "rank0.txt").splitlines()
    said = [line for line in lines if "error:" in line or "fix:" in line]
    return f"one stopped, timeout 5 s: exit code {code} after {waited:.1f} s: {' '.join(said)}"


def as_rank(home: Path, out: Path) -> None:
    """Run as one process under torchrun, as `python -m vitft` would; never returns."""
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if not again and os.environ["RANK"] == "0":
        clear_unbegun(out)
    forked.execute(home, command(home, out, *OPTIONS), log="ranks.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--torchrun-kills", type=int, default=10)
    parser.add_argument("--as-rank", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        as_rank(*args.as_rank)
    home = Path(tempfile.mkdtemp(prefix="vitft-ranks-"))
    os.environ["HOME"] = str(home)
    prepare(home, per_class=10, width=32, depth=2)
    assert list(ended(launch(home, home / "first"), 120.0).values()) == [0, 0]
    begun = time.monotonic()
    assert list(ended(launch(home, home / "whole"), 120.0).values()) == [0, 0]
    whole_s = time.monotonic() - begun
    wanted = result(home / "whole")
    print(f"undisturbed: {whole_s:.1f} s", flush=True)
    print(kill_forked(home, args.kills, whole_s, wanted).line("forked"), flush=True)
    print(stop_one(home), flush=True)
    print(kill_under_torchrun(home, args.torchrun_kills, wanted).line("torchrun"), flush=True)
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
