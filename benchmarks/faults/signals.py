"""Commands that receive SIGTERM or SIGINT at random moments of every phase.

    python -m benchmarks.faults.signals --signals 200

Every process receives one signal: while it imports (whole processes), or, forked from a process with
torch loaded, in a given phase of a run, in an export or in a prediction to a file. It must end with
143 or 130 and without a traceback. Completed work must be kept, and resuming it must give the bits of
an undisturbed run. A run that receives the signal after its last step may also finish.
"""

import argparse
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
from benchmarks.faults.small_run import (
    TRAINING,
    TWO_STAGES,
    clear_unbegun,
    command,
    has_begun,
    missing,
    prepare,
    result,
)
from benchmarks.timing import counts
from vitft.cli import finetune as cli_finetune
from vitft.export import job
from vitft.models.checkpoint import load_checkpoint
from vitft.predict.torch_engine import Predictor
from vitft.system.errors import VitftError
from vitft.training import record, reports, stages
from vitft.training import run as train
from vitft.training.loop import Trainer
from vitft.training.record import newest_state

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
OPTIONS = (*TWO_STAGES, *TRAINING, "--epochs", "3")
PHASES: tuple[tuple[str, Any, str], ...] = (
    ("images and features", train, "extract_features"),
    ("solving the head", train, "solve_head_stage"),
    ("a step", Trainer, "step"),
    ("evaluation", stages, "validate"),
    ("saving the state", record, "save_state"),
    ("final metrics", train, "evaluate"),
    ("calibrated weights", train, "write_final"),
    ("audit", reports, "_audit_run"),
    ("thumbnails", reports, "_write_thumbnails"),
    ("report", cli_finetune, "_print_summary"),
    ("export", job, "export_run"),
    ("prediction", Predictor, "stream"),
)
"""Name of each phase and the function that does it."""
NUMBER = {name: number for number, (name, _, _) in enumerate(PHASES, 1)}
OF_A_RUN = NUMBER["report"]
RESUMABLE = {name for name, number in NUMBER.items() if 3 <= number <= OF_A_RUN}
LIMIT_S = 60.0

board = mmap.mmap(-1, 16)
"""Memory shared with the child: number of its current phase (byte 0), completed steps (from 8)."""


def marked(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it marks its phase on the board while it runs."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        before, board[0] = board[0], number
        result = function(*args, **options)
        board[0] = before
        if number == NUMBER["a step"]:
            board[8:12] = args[0].steps.to_bytes(4, "little")
        return result

    return wrapper


def mark() -> None:
    """Wrap the functions of all phases, in the child."""
    for number, (_, owner, name) in enumerate(PHASES, 1):
        setattr(owner, name, marked(number, getattr(owner, name)))


def start(home: Path, words: list[str], *, every_step: bool = False) -> int:
    """Fork a child that runs a command and marks its phases."""
    board[:] = bytes(16)
    return forked.start(home, words, mark, every_step=every_step)


def wait(pid: int) -> int:
    """Return the exit code of a child, -9 if it had to be killed after the time limit."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def send(pid: int, number: int, delay_s: float, sent: signal.Signals) -> tuple[int, float, int]:
    """Send a signal some time after a phase began.

    Returns:
        Exit code, seconds until the process ended, and the number of the phase in which it received the
        signal (0 if it had ended before).
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
    """Counts over all signals."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.tracebacks = self.wrong = self.begun = self.kept = self.different = self.late = 0
        self.slowest_s = 0.0

    def count(self, sent: signal.Signals, phase: str, code: int, seconds: float, text: str) -> None:
        """Count one signal and how its process ended."""
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
        print(f"signals {counts(self.sent)}")
        print("phases " + ", ".join(f"{k}: {v}" for k, v in self.phases.items()))
        print(f"exit codes {counts(self.codes)}")
        print(
            f"{self.tracebacks} tracebacks, {self.wrong} wrong exit codes; of {self.begun} that had "
            f"begun training {self.kept} kept their work; {self.different} different; "
            f"slowest end {self.slowest_s:.1f} s, {self.late} over 5 s",
            flush=True,
        )


def is_kept(out: Path, steps: int) -> bool:
    """Return whether the completed steps, or the trained model, are on the disk."""
    try:
        state = newest_state(out / "resume") if (out / "resume").is_dir() else None
        if state is not None and state.facts["step"] >= steps:
            return True
        load_checkpoint(out / "model.safetensors")
        return (out / "eval.json").is_file()
    except VitftError:
        return False


def alternate(count: int) -> list[signal.Signals]:
    return [(signal.SIGTERM, signal.SIGINT)[i % 2] for i in range(count)]


def timed(home: Path, words: list[str]) -> dict[int, float]:
    """Return the seconds that an undisturbed command spends in each phase."""
    found: Counter[int] = Counter()
    pid = start(home, words)
    while True:
        before = time.monotonic()
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0, forked.output(home)
            return dict(found)
        time.sleep(0.001)
        found[board[0]] += time.monotonic() - before  # type: ignore[assignment]


def disturb_runs(home: Path, count: int, score: Score, rng: random.Random) -> None:
    """Send signals in the phases of a run, in turn, and resume each run."""
    whole, out, step = home / "whole", home / "run", NUMBER["a step"]
    durations = timed(home, command(home, whole, *OPTIONS))
    wanted, files = result(whole), sorted(path.name for path in whole.iterdir())
    done = 0
    while done < count:
        sent = alternate(2)[done % 2]
        number = 1 + (done // 2) % OF_A_RUN
        saving = number == NUMBER["saving the state"]
        pid = start(home, command(home, out, *OPTIONS), every_step=saving)
        if step <= number <= NUMBER["saving the state"]:
            time.sleep(rng.uniform(0, durations.get(step, 0.1)))
        delay = rng.uniform(0.0, min(2.0, durations.get(number, 0.1)))
        code, seconds, phase = send(pid, number, delay, sent)
        if not phase:
            shutil.rmtree(out)
            continue
        done += 1
        name = PHASES[phase - 1][0]
        score.count(sent, name, code, seconds, forked.output(home))
        steps = int.from_bytes(board[8:12], "little")
        if name in RESUMABLE and steps:
            score.begun += 1
            kept = is_kept(out, steps)
            score.kept += kept
            if not kept:
                print(f"{name}: not kept: {sorted(p.name for p in out.iterdir())}", flush=True)
        clear_unbegun(out)
        again = command(home, out, *OPTIONS)
        if wait(start(home, again)) or result(out) != wanted or missing(out, files):
            score.different += 1
            text = forked.output(home)[-800:]
            print(f"{name}: different; missing {missing(out, files)}\n{text}", flush=True)
        shutil.rmtree(out, ignore_errors=True)
        if done % 26 == 0:
            score.show()


def disturb_exports(home: Path, count: int, score: Score, rng: random.Random) -> None:
    """Send signals while a run is exported: the target must be complete or absent."""
    words = ["export", "--safetensors", "--run", str(home / "whole"), "--out"]
    durations = timed(home, [*words, str(home / "exported")])
    number, names = NUMBER["export"], sorted(p.name for p in (home / "exported").iterdir())
    out = home / "export"
    for sent in alternate(count):
        pid = start(home, [*words, str(out)])
        code, seconds, phase = send(pid, number, rng.uniform(0.0, durations[number]), sent)
        if phase:
            score.count(sent, "export", code, seconds, forked.output(home))
        left = sorted(p.name for p in out.iterdir()) if out.exists() else []
        temporary = [p.name for p in home.glob(".export.*")]
        if left not in ([], names) or temporary:
            score.different += 1
            print(f"export left {left} {temporary}", flush=True)
        shutil.rmtree(out, ignore_errors=True)


def disturb_predictions(home: Path, count: int, score: Score, rng: random.Random) -> None:
    """Send signals while predictions are written to a file: resumed, the bytes must be equal."""
    words = ["predict", "--run", str(home / "whole"), str(home / "data"), "--device", "cpu"]
    durations = timed(home, [*words, "--out", str(home / "answers.jsonl")])
    wanted, out, number = (
        (home / "answers.jsonl").read_bytes(),
        home / "again.jsonl",
        NUMBER["prediction"],
    )
    for sent in alternate(count):
        delay = rng.uniform(0.0, max(0.05, durations.get(number, 0.0)))
        code, seconds, phase = send(start(home, [*words, "--out", str(out)]), number, delay, sent)
        if phase:
            score.count(sent, "prediction", code, seconds, forked.output(home))
        if not out.exists():
            wait(start(home, [*words, "--out", str(out), "--resume"]))
        if not out.exists() or out.read_bytes() != wanted:
            score.different += 1
            print(f"prediction: {forked.output(home)[-500:]}", flush=True)
        out.unlink(missing_ok=True)


def disturb_imports(home: Path, count: int, score: Score, rng: random.Random) -> None:
    """Send signals to whole processes, between their first millisecond and the start of training."""
    start_s = 0.0
    for sent in alternate(count):
        out, log = home / "imported", home / "output.txt"
        with log.open("w") as file:
            words = [sys.executable, "-m", "vitft", *command(home, out, *OPTIONS)]
            process = subprocess.Popen(words, stdout=file, stderr=file)
            begun = time.monotonic()
            if not start_s:  # measured once: until the run directory exists
                while not has_begun(out):
                    time.sleep(0.005)
                start_s = time.monotonic() - begun
            else:
                time.sleep(rng.uniform(0.0, start_s))
            process.send_signal(sent)
            struck = time.monotonic()
            code = process.wait(timeout=LIMIT_S)
        early = code in (-2, -15)  # ended by the system before Python had read a line of ours
        phase = "start of the interpreter" if early else "imports"
        score.count(
            sent,
            phase,
            128 - code if early else code,
            time.monotonic() - struck,
            "" if early else log.read_text(),
        )
        shutil.rmtree(out, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", type=int, default=200)
    signals = parser.parse_args().signals
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


if __name__ == "__main__":
    main()
