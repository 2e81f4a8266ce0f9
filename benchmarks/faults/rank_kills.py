"""Processes of a team that are killed at random moments: does the rest end, does the run go on?

    python -m benchmarks.faults.rank_kills                     # 50 kills, 10 of them under torchrun

Two gloo processes train one model. One of them, drawn at random, is sent SIGKILL after a random
time; the other, told by SIGTERM as torchrun does, has to end within 15 s. Then both are started again with resume, until
the run ends with the weights, log and figures of an undisturbed one. Most of the kills hit
processes that were forked, with the environment that torchrun gives; the rest run under torchrun
itself, which starts them again (--max-restarts). At the end one process is stopped (SIGSTOP)
instead: the other has to give up when its patience ends.
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

from benchmarks.faults.kills import SETTINGS, child, has_begun, outcome, prepare
from vitft.training import stages

SETTINGS["optim"]["epochs"] = 5
LIMIT_S = 15.0
"""After which the survivor counts as hanging."""


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def launch(home: Path, out: Path) -> list[int]:
    """Fork two processes as torchrun would start them; returns their ids by rank."""
    port = free_port()
    begun = has_begun(out)
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            child(home, out, begun=begun)
        pids.append(pid)
    return pids


def ended(pids: list[int], within_s: float) -> dict[int, int]:
    """Exit codes of those processes that ended in time."""
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
    """What came of the kills."""

    def __init__(self) -> None:
        self.runs = self.kills = self.hangs = self.lost = self.different = 0
        self.codes: Counter[int] = Counter()
        self.slowest_s = 0.0

    def line(self, name: str) -> str:
        """One campaign in one line."""
        told = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        return (
            f"{name}: {self.kills} kills in {self.runs} runs, {self.hangs} hangs over "
            f"{LIMIT_S:.0f} s (slowest end {self.slowest_s:.1f} s), {self.lost} lost, "
            f"{self.different} different; exit codes of survivors {told}"
        )


def forked(home: Path, kills: int, whole_s: float, wanted: object, rng: random.Random) -> Score:
    """Kill one of two forked processes until there were so many kills."""
    score = Score()
    while score.kills < kills:
        score.runs += 1
        out = home / f"run-{score.runs}"
        patience_s = whole_s
        while True:
            pids = launch(home, out)
            delay_s = rng.uniform(0.0, patience_s) if score.kills < kills else 300.0
            codes = ended(pids, delay_s)
            patience_s *= 1.3  # so that a run comes to its end on a busy machine, too
            if len(codes) < 2:
                victim = rng.choice([pid for pid in pids if pid not in codes])
                os.kill(victim, signal.SIGKILL)
                score.kills += 1
                killed_at = time.monotonic()
                left = [pid for pid in pids if pid not in codes]
                for pid in left:
                    if pid != victim:  # torchrun tells the rest to end, too
                        os.kill(pid, signal.SIGTERM)
                codes |= ended(left, LIMIT_S)
                score.slowest_s = max(score.slowest_s, time.monotonic() - killed_at)
                for pid in set(left) - codes.keys():
                    score.hangs += 1
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                score.codes.update(code for pid, code in codes.items() if pid != victim)
                if {code for pid, code in codes.items() if pid != victim} <= {0, 6, 143, -15}:
                    if score.kills % 10 == 0:
                        print(score.line("so far"), flush=True)
                    continue
            if any(codes.values()):
                score.lost += 1
                print(f"lost: exit codes {sorted(codes.values())}", flush=True)
                break
            score.different += outcome(out) != wanted
            break
        shutil.rmtree(out, ignore_errors=True)
    return score


def descendants(pid: int) -> list[int]:
    """The processes that a process started."""
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def under_torchrun(home: Path, kills: int, wanted: object, rng: random.Random) -> Score:
    """Kill one of torchrun's two processes once per run; torchrun starts both again."""
    score = Score()
    for number in range(kills):
        out = home / f"torchrun-{number}"
        words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
        own = ["-m", "benchmarks.faults.rank_kills", "--as-rank", str(home), str(out)]
        with (home / "torchrun.txt").open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *words, *own],
                stdout=said,
                stderr=said,
            )
        score.runs += 1
        while not has_begun(out) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 1.0))
        pids = descendants(process.pid)
        if len(pids) == 2:
            os.kill(rng.choice(pids), signal.SIGKILL)
            score.kills += 1
            killed_at = time.monotonic()
            while set(pids) & set(descendants(process.pid)):
                if time.monotonic() - killed_at > LIMIT_S:
                    score.hangs += 1
                    break
                time.sleep(0.01)
            score.slowest_s = max(score.slowest_s, time.monotonic() - killed_at)
        code = process.wait()
        score.lost += code != 0
        score.different += code == 0 and outcome(out) != wanted
    return score


def stopped(home: Path) -> str:
    """What the other process says when one is stopped and does not go on."""
    SETTINGS["train"]["timeout"] = 5.0
    (home / "said.txt").unlink(missing_ok=True)
    pids = launch(home, home / "stopped")
    while not (home / "stopped" / "resume").exists():
        time.sleep(0.01)
    os.kill(pids[1], signal.SIGSTOP)
    begun = time.monotonic()
    code = ended(pids[:1], 60.0).get(pids[0], "none, it hangs")
    waited = time.monotonic() - begun
    os.kill(pids[1], signal.SIGKILL)
    os.waitpid(pids[1], 0)
    lines = (home / "said.txt").read_text().splitlines()
    said = [line for line in lines if "of the training" in line or "fix:" in line]
    return f"one stopped, patience 5 s: exit code {code} after {waited:.1f} s: {' '.join(said)}"


def as_rank(home: Path, out: Path) -> None:
    """One process under torchrun, as `python -m vitft` would be; never returns."""
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    child(home, out, begun=again and has_begun(out))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--torchrun-kills", type=int, default=10)
    parser.add_argument("--as-rank", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_rank:
        as_rank(*args.as_rank)
    home = Path(tempfile.mkdtemp(prefix="vitft-ranks-"))
    os.environ["HOME"] = str(home)
    stages.SAVE_S, stages.SAVE_SHARE = 0.0, 1e9
    prepare(home, per_class=10, width=32, depth=2)
    rng = random.Random(0)
    assert list(ended(launch(home, home / "first"), 120.0).values()) == [0, 0]
    begun = time.monotonic()
    assert list(ended(launch(home, home / "whole"), 120.0).values()) == [0, 0]
    whole_s = time.monotonic() - begun
    wanted = outcome(home / "whole")
    print(f"undisturbed: {whole_s:.1f} s", flush=True)
    print(forked(home, args.kills, whole_s, wanted, rng).line("forked"), flush=True)
    print(stopped(home), flush=True)
    print(under_torchrun(home, args.torchrun_kills, wanted, rng).line("torchrun"), flush=True)
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
