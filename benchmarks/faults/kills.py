"""Runs that are killed at random moments and resumed, compared with an undisturbed run.

    python -m benchmarks.faults.kills --kills 200

Each run is a process that receives SIGKILL after a random time and is resumed, until it ends. Weights,
log and metrics must then equal those of the undisturbed run to the last bit. Two controls do what
many training loops do, and the same campaign has to detect them: one restores the weights but not the
state of the optimiser, the other overwrites its last state in place.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.faults import forked
from benchmarks.faults.small_run import (
    AUGMENTED,
    TRAINING,
    clear_unbegun,
    command,
    prepare,
    result,
)
from benchmarks.timing import counts
from vitft.training import record
from vitft.training.loop import Trainer
from vitft.training.record import State, save_state

OPTIONS = (*AUGMENTED, *TRAINING, "--epochs", "12")


load_state = Trainer.load_state


def without_optimiser(
    trainer: Trainer, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Load everything but the state of the optimiser."""
    kept = {name: value for name, value in tensors.items() if not name.startswith("optimizer/")}
    load_state(trainer, kept, facts)


def in_place(folder: Path, state: State) -> None:
    """Write each state over the last one."""
    one = folder / "state-0-00000000.safetensors"
    save_state(folder / "new", state)
    (written,) = (folder / "new").iterdir()
    with one.open("wb") as file:
        file.write(written.read_bytes())
    shutil.rmtree(folder / "new")


def forget_optimiser() -> None:
    Trainer.load_state = without_optimiser  # type: ignore[method-assign]


def write_in_place() -> None:
    record.save_state = in_place


ARMS: dict[str, Callable[[], None]] = {
    "vitft": lambda: None,
    "control (optimiser forgotten)": forget_optimiser,
    "control (state written in place)": write_in_place,
}


def campaign(
    home: Path, name: str, kills: int, whole_s: float, wanted: tuple[str, str, str]
) -> None:
    """Kill and resume runs until there were `kills` kills, and print one line of results."""
    rng = random.Random(0)
    runs = done = lost = different = 0
    codes: Counter[int] = Counter()
    while done < kills or runs < min(20, kills):
        runs += 1
        out = home / f"run-{runs}"
        while True:
            clear_unbegun(out)
            pid = forked.start(home, command(home, out, *OPTIONS), ARMS[name])
            deadline = time.monotonic() + rng.uniform(0.0, whole_s * 0.5)
            ended = status = 0
            while not ended and time.monotonic() < deadline:
                ended, status = os.waitpid(pid, os.WNOHANG)
                time.sleep(0.001)
            if not ended:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                done += 1
            code = os.waitstatus_to_exitcode(status)
            codes[code] += 1
            if code != -signal.SIGKILL:
                lost += code != 0
                different += code == 0 and result(out) != wanted
                break
        shutil.rmtree(out, ignore_errors=True)
    print(
        f"{name}: {done} kills, {runs} runs, {lost} lost, {different} different; "
        f"exit codes {counts(codes)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--control-kills", type=int, default=60, help="for each control")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="vitft-kills-"))
    os.environ["HOME"] = str(home)
    prepare(home)
    begun = time.monotonic()
    assert forked.run(home, command(home, home / "whole", *OPTIONS)) == 0, forked.output(home)
    whole_s = time.monotonic() - begun
    wanted = result(home / "whole")
    print(f"undisturbed: {whole_s:.1f} s")
    for name in ARMS:
        kills = args.kills if name == "vitft" else args.control_kills
        campaign(home, name, kills, whole_s, wanted)
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
