"""Every kind of call that changes the disk in a run, an export and a prediction, made to fail once.

    python -m benchmarks.faults.fail_points

The calls of an undisturbed command are recorded (`tests.support.fail_points`). Then, for each kind of
call and file, the first and the last one kill the process or fail with ENOSPC, EIO or EACCES.
Afterwards no file with its final name may be incomplete, older files must be unchanged, no traceback
may be printed, and the same command, or its --resume, must end in the same bits. Exit codes: 6
(disk), 5 (permission), or 0 where the file is optional and a warning was printed.
"""

import argparse
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.faults import forked
from benchmarks.faults.small_run import clear_unbegun, command, missing, prepare, result
from benchmarks.timing import counts
from tests.support.fail_points import ERRORS, KILL, FailPoints

ALLOWED = {KILL: {137}, "ENOSPC": {0, 6}, "EIO": {0, 5, 6}, "EACCES": {0, 5}}
COMMANDS = ("finetune", "export", "predict")


class Command:
    """One of `COMMANDS`: how it is started or resumed, and its output."""

    def __init__(self, home: Path, name: str, folder: Path) -> None:
        self.home, self.name, self.folder = home, name, folder
        self.out = folder / ("answers.jsonl" if name == "predict" else name)

    def words(self) -> list[str]:
        """Return the words that start the command, or resume it."""
        run = str(self.home / "whole")
        if self.name == "finetune":
            clear_unbegun(self.out)
            options = ["--train", "head,all", "--epochs", "1", "--batch-size", "8"]
            return command(self.home, self.out, *options)
        if self.name == "export":
            return ["export", "--safetensors", "--timm", "--run", run, "--out", str(self.out)]
        again = ["--resume"] if any(self.folder.glob("*.part")) else []
        options = ["--run", run, "--device", "cpu", "--out", str(self.out)]
        return ["predict", str(self.home / "data"), *options, *again]

    def left(self) -> object:
        """Return what must be the same in the end."""
        if self.name == "finetune":
            return result(self.out)
        if self.name == "export":
            return forked.digests(self.out)
        return self.out.read_bytes()

    def is_complete(self) -> bool:
        """Return whether there is nothing to resume."""
        return self.name != "finetune" and self.out.exists()


def attempt(command: Command, points: Path, at: int, how: str) -> tuple[int, list[str]]:
    """Run a command with one failing call; return its exit code and the recorded calls."""
    home = command.home

    def install() -> None:
        def die() -> None:
            os._exit(137)

        FailPoints(home / "out", at, how, die).__enter__().record(points)

    code = forked.run(home, command.words(), install)
    return code, points.read_text().splitlines() if points.exists() else []


def campaign(home: Path, name: str, every: int) -> None:
    """Try all points of one command; print a line for each way to fail."""
    older = forked.digests(home / "whole")
    clear(home / "out")
    command = Command(home, name, home / "out")
    code, calls = attempt(command, home / "points.txt", -1, KILL)
    assert code == 0, forked.output(home)
    wanted = command.left()
    files = sorted(p.name for p in command.out.iterdir()) if name == "finetune" else []
    # the first and the last call of each name and kind of file
    first = {call: i for i, call in reversed([*enumerate(calls)])}
    last = {call: i for i, call in enumerate(calls)}
    picked = sorted({*first.values(), *last.values()})[::every]
    print(f"{name}: {len(calls)} calls, {len(picked)} of them tried", flush=True)
    for how in (KILL, *ERRORS):
        codes: Counter[int] = Counter()
        bad = 0
        for at in picked:
            clear(home / "out")
            code, _ = attempt(command, home / "ignored.txt", at, how)
            codes[code] += 1
            wrong = violations(command, how, code, wanted, files)
            if forked.digests(home / "whole") != older:
                wrong.append("an older file changed")
            bad += bool(wrong)
            if wrong:
                text = forked.output(home)[-600:]
                print(f"  {how} at {calls[at]}: {'; '.join(wrong)}\n{text}", flush=True)
        print(
            f"{name}, {how}: {len(picked)} points, {bad} bad; exit codes {counts(codes)}",
            flush=True,
        )


def violations(
    command: Command, how: str, code: int, wanted: object, files: list[str]
) -> list[str]:
    """Return what is wrong after a failed command, and after it was resumed."""
    wrong = [] if code in ALLOWED[how] else [f"exit code {code}"]
    wrong += ["a traceback"] if "Traceback" in forked.output(command.home) else []
    wrong += [f"incomplete: {name}" for name in forked.incomplete(command.folder)]
    if not command.is_complete() and forked.run(command.home, command.words()):
        return [*wrong, "cannot be resumed"]
    if command.left() != wanted:
        wrong.append("other bits")
    gone = missing(command.out, files) if command.name == "finetune" else []
    if gone and how == KILL:
        wrong.append(f"missing: {gone}")
    return wrong


def clear(folder: Path) -> None:
    """Empty the folder of all outputs, the feature cache included."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=COMMANDS)
    parser.add_argument("--every", type=int, default=1, help="try every n-th point")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="vitft-points-"))
    os.environ["HOME"] = str(home / "out")
    prepare(home, per_class=6, width=32, depth=2)
    clear(home / "out")
    whole = Command(home, "finetune", home / "out")
    assert forked.run(home, whole.words()) == 0, forked.output(home)
    whole.out.rename(home / "whole")
    for name in [args.only] if args.only else COMMANDS:
        campaign(home, name, args.every)
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
