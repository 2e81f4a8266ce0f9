"""Commands that are sent SIGTERM or SIGINT at random moments of every phase.

    python -m benchmarks.faults.kills --signals

Each is a process that is sent one signal: while it imports (whole processes), or, forked from one
that has torch loaded, in a phase of a run drawn in turn, in an export or in a prediction to a file.
It has to end with 143 or 130 and without a traceback; what it had done has to be kept, and gone on
with to the bits of an undisturbed run. A run that is told after its last step may also finish.
"""

import functools
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults import forked
from benchmarks.faults.kills import has_begun, outcome, prepare
from vitft.cli import finetune as cli_finetune
from vitft.export import job
from vitft.models.checkpoint import load_checkpoint
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import VitftError
from vitft.training import run as train
from vitft.training import stages
from vitft.training.loop import Training
from vitft.training.state import newest_state

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
MARKS: tuple[tuple[str, Any, str], ...] = (
    ("looking at images, features", train, "begin"),
    ("solving the head", stages, "solve"),
    ("a step", Training, "take"),
    ("evaluation", stages, "validated"),
    ("saving the state", stages, "save_state"),
    ("last figures", train, "confirmed"),
    ("calibrated weights", train, "keep_calibrated"),
    ("findings", train, "round_off"),
    ("pictures", train, "finish"),
    ("page", cli_finetune, "print_report"),
)
EXPORT = (("export", job, "export_run"),)
PREDICT = (("prediction", Predictor, "stream"),)
BEGUN = {name for name, _, _ in MARKS[2:]}
"""Phases in which there is something to keep."""
LIMIT_S = 60.0

board = mmap.mmap(-1, 16)
"""What a child tells its parent: number of the phase it is in (byte 0), steps done (bytes 8 on)."""


def marked(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which tells the parent while it is at work."""

    @functools.wraps(function)
    def told(*args: Any, **options: Any) -> Any:
        before, board[0] = board[0], number
        result = function(*args, **options)
        board[0] = before
        if number == 3:
            board[8:12] = args[0].step.to_bytes(4, "little")
        return result

    return told


def start(home: Path, words: list[str], *, often: bool = False) -> int:
    """Fork a child that runs a command and tells in which phase it is."""
    board[:] = bytes(16)
    return forked.start(home, words, mark, often=often)


def mark() -> None:
    """Let the phases tell that they are at work."""
    for number, (_, home_of, name) in enumerate((*MARKS, *EXPORT, *PREDICT), 1):
        setattr(home_of, name, marked(number, getattr(home_of, name)))


def wait(pid: int) -> int:
    """The exit code of a child; it is killed when it takes too long, and -9 then."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def strike(pid: int, number: int, delay_s: float, sent: signal.Signals) -> tuple[int, float, int]:
    """Send the signal some time after a phase began.

    Returns:
        Exit code, seconds until then, and the phase in which the signal was sent (0: none any
        more).
    """
    deadline = time.monotonic() + LIMIT_S
    while board[0] != number and time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), 0.0, 0
        time.sleep(0.0002)
    time.sleep(delay_s)
    phase = board[0] or number
    os.kill(pid, sent)
    begun = time.monotonic()
    code = wait(pid)
    return code, time.monotonic() - begun, phase


class Score:
    """What came of the signals."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.tracebacks = self.wrong = self.begun = self.kept = self.different = self.late = 0
        self.slowest_s = 0.0

    def count(self, sent: signal.Signals, phase: str, code: int, seconds: float, text: str) -> None:
        """One signal and how the process ended."""
        self.sent[sent.name] += 1
        self.phases[phase] += 1
        self.codes[f"{sent.name} {code}"] += 1
        self.tracebacks += "Traceback" in text
        self.wrong += code not in (CODES[sent], 0)
        self.late += seconds > 5.0
        self.slowest_s = max(self.slowest_s, seconds)
        if "Traceback" in text or code not in (CODES[sent], 0):
            print(f"{phase}: {sent.name} ended in {code}:\n{text[-1500:]}", flush=True)

    def show(self) -> None:
        """All of it."""
        print("signals " + ", ".join(f"{k}: {v}" for k, v in sorted(self.sent.items())))
        print("phases " + ", ".join(f"{k}: {v}" for k, v in self.phases.items()))
        print("exit codes " + ", ".join(f"{k}: {v}" for k, v in sorted(self.codes.items())))
        print(
            f"{self.tracebacks} tracebacks, {self.wrong} wrong exit codes; of {self.begun} that had "
            f"begun training {self.kept} kept what was done; {self.different} different; "
            f"slowest end {self.slowest_s:.1f} s, {self.late} over 5 s",
            flush=True,
        )


def is_kept(out: Path, steps: int) -> bool:
    """Whether the steps done, or the trained model, are on the disk."""
    try:
        state = newest_state(out / "resume") if (out / "resume").is_dir() else None
        if state is not None and state[0].facts["step"] >= steps:
            return True
        load_checkpoint(out / "model.safetensors")
        return (out / "eval.json").is_file()
    except VitftError:
        return False


def command(home: Path, out: Path) -> list[str]:
    """The run that is disturbed."""
    options = ["--freeze", "head,none", "--epochs", "3", "--batch-size", "8", "--lr", "0.01"]
    more = ["--set", "optim.ema=0.9", "--set", "train.drop_path=0.1"]
    data = ["--data", str(home / "data"), "--weights", str(home / "w.safetensors")]
    return ["finetune", *data, *options, *more, "--out", str(out)]


def disturb_runs(home: Path, count: int, score: Score, rng: random.Random) -> None:
    """Signals in the phases of a run, in turn."""
    whole = home / "whole"
    durations = timed(home, command(home, whole))
    wanted, page = outcome(whole), sorted(path.name for path in whole.iterdir())
    done = 0
    while done < count:
        sent = [signal.SIGTERM, signal.SIGINT][done % 2]
        number = 1 + (done // 2) % len(MARKS)
        out = home / "run"
        pid = start(home, command(home, out), often=number == 5)
        if number in (3, 4, 5):
            time.sleep(rng.uniform(0, durations.get(3, 0.1)))
        delay = rng.uniform(0.0, min(2.0, durations.get(number, 0.1)))
        code, seconds, phase = strike(pid, number, delay, sent)
        if not phase:
            shutil.rmtree(out)
            continue
        done += 1
        name = MARKS[phase - 1][0]
        score.count(sent, name, code, seconds, (home / "said.txt").read_text())
        steps = int.from_bytes(board[8:12], "little")
        if name in BEGUN and steps:
            score.begun += 1
            kept = is_kept(out, steps)
            score.kept += kept
            if not kept:
                print(f"{name}: not kept: {sorted(p.name for p in out.iterdir())}", flush=True)
        again = ["finetune", "--resume", str(out)] if has_begun(out) else command(home, out)
        if not has_begun(out):
            shutil.rmtree(out, ignore_errors=True)
        if wait(start(home, again)) or outcome(out) != wanted or missing(out, page):
            score.different += 1
            text = (home / "said.txt").read_text()[-800:]
            print(f"{name}: different; missing {missing(out, page)}\n{text}", flush=True)
        shutil.rmtree(out, ignore_errors=True)
        if done % 26 == 0:
            score.show()


def missing(out: Path, names: list[str]) -> list[str]:
    """Files of an undisturbed run that this one lacks; the page may be made again."""
    return [name for name in names if name != "report.html" and not (out / name).exists()]


def timed(home: Path, words: list[str]) -> dict[int, float]:
    """Seconds that an undisturbed command spent in each phase."""
    found: Counter[int] = Counter()
    pid = start(home, words)
    while True:
        before = time.monotonic()
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0, (home / "said.txt").read_text()
            return dict(found)
        time.sleep(0.001)
        found[board[0]] += time.monotonic() - before  # type: ignore[assignment]


def disturb_exports(home: Path, count: int, score: Score, rng: random.Random) -> None:
    """Signals while a run is exported: nothing under the final name, or all of it."""
    durations = timed(home, ["export", "--safetensors", "--run", str(home / "whole"),
                             "--out", str(home / "exported")])  # fmt: skip
    number, names = len(MARKS) + 1, sorted(p.name for p in (home / "exported").iterdir())
    for done in range(count):
        sent = [signal.SIGTERM, signal.SIGINT][done % 2]
        out = home / "export"
        words = ["export", "--safetensors", "--run", str(home / "whole"), "--out", str(out)]
        code, seconds, phase = strike(
            start(home, words), number, rng.uniform(0.0, durations[number]), sent
        )
        if phase:
            score.count(sent, "export", code, seconds, (home / "said.txt").read_text())
        left = sorted(p.name for p in out.iterdir()) if out.exists() else []
        halves = [p.name for p in home.glob(".export.*")]
        if left not in ([], names) or halves:
            score.different += 1
            print(f"export left {left} {halves}", flush=True)
        shutil.rmtree(out, ignore_errors=True)


def disturb_predictions(home: Path, count: int, score: Score, rng: random.Random) -> None:
    """Signals while answers are written to a file: gone on with to the same bytes."""
    words = ["predict", "--run", str(home / "whole"), str(home / "data"), "--device", "cpu"]
    durations = timed(home, [*words, "--out", str(home / "answers.jsonl")])
    wanted = (home / "answers.jsonl").read_bytes()
    for done in range(count):
        sent = [signal.SIGTERM, signal.SIGINT][done % 2]
        out = home / "again.jsonl"
        number = len(MARKS) + 2
        delay = rng.uniform(0.0, max(0.05, durations.get(number, 0.0)))
        code, seconds, phase = strike(start(home, [*words, "--out", str(out)]), number, delay, sent)
        if phase:
            score.count(sent, "prediction", code, seconds, (home / "said.txt").read_text())
        if not out.exists():
            wait(start(home, [*words, "--out", str(out), "--resume"]))
        if not out.exists() or out.read_bytes() != wanted:
            score.different += 1
            print(f"prediction: {(home / 'said.txt').read_text()[-500:]}", flush=True)
        out.unlink(missing_ok=True)


def disturb_imports(home: Path, count: int, score: Score, rng: random.Random) -> None:
    """Signals to whole processes, from their first millisecond until training begins."""
    took: list[float] = []
    for done in range(count):
        sent = [signal.SIGTERM, signal.SIGINT][done % 2]
        out = home / "imported"
        with (home / "said.txt").open("w") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "vitft", *command(home, out)], stdout=said, stderr=said
            )
            begun = time.monotonic()
            if not took:  # measured once: until the run folder is made
                while not has_begun(out):
                    time.sleep(0.005)
                took.append(time.monotonic() - begun)
            else:
                time.sleep(rng.uniform(0.0, took[0]))
            process.send_signal(sent)
            struck = time.monotonic()
            code = process.wait(timeout=LIMIT_S)
        text = (home / "said.txt").read_text()
        early = code in (-2, -15)  # before Python had read a line of ours: the system's own end
        phase = "the interpreter's start" if early else "imports"
        told = 128 - code if early else code
        score.count(sent, phase, told, time.monotonic() - struck, "" if early else text)
        shutil.rmtree(out, ignore_errors=True)


def campaign(signals: int) -> None:
    """All of it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    home = Path(tempfile.mkdtemp(prefix="vitft-signals-"))
    os.environ["HOME"] = str(home)
    prepare(home, per_class=10, width=32, depth=2)
    torch.set_num_threads(1)
    score, rng = Score(), random.Random(0)
    disturb_runs(home, signals * 13 // 20, score, rng)
    score.show()
    disturb_exports(home, signals // 10, score, rng)
    disturb_predictions(home, signals // 10, score, rng)
    score.show()
    disturb_imports(home, signals * 3 // 20, score, rng)
    score.show()
    shutil.rmtree(home)
    print(json.dumps({"signals": sum(score.sent.values()), "different": score.different}))
