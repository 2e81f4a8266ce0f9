"""Every call that changes the disk in a run, an export and a prediction, killed or refused once.

    python -m benchmarks.faults.fail_points

The calls of an undisturbed command are counted (`tests.support.fail_points`); then, for each name and kind
of file, its first and its last call is the last thing that a process does, or fails with ENOSPC,
EIO or EACCES. Afterwards no file with its final name may be half, what was there before is there
still, the message is a sentence, and the command, given again or with --resume, ends in the same
bits. Exit codes: 6 (disk), 5 (permission), or 0 where the file is a convenience that was warned of.
"""

import argparse
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.faults import forked
from benchmarks.faults.kills import SETTINGS, has_begun, outcome, prepare
from benchmarks.faults.signals import missing
from tests.support.fail_points import ERRORS, KILL, FailPoints, chosen

ALLOWED = {KILL: {137}, "ENOSPC": {0, 6}, "EIO": {0, 5, 6}, "EACCES": {0, 5}}


class Command:
    """A command, what it leaves, and how it is gone on with."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name = home, name
        self.out = home / "out" / ("answers.jsonl" if name == "predict" else name)

    def words(self) -> list[str]:
        """The command, or what goes on with it."""
        data, model, run = self.home / "data", self.home / "w.safetensors", self.home / "whole"
        if self.name == "finetune":
            if has_begun(self.out):
                return ["finetune", "--resume", str(self.out)]
            shutil.rmtree(self.out, ignore_errors=True)
            chosen_words = ["--freeze", "head,none", "--epochs", "1", "--batch-size", "8"]
            named = ["--data", str(data), "--weights", str(model), "--out", str(self.out)]
            return ["finetune", *named, *chosen_words]
        if self.name == "export":
            return ["export", "--safetensors", "--timm", "--run", str(run), "--out", str(self.out)]
        again = ["--resume"] if any((self.home / "out").glob("*.part")) else []
        named = ["--run", str(run), "--device", "cpu", "--out", str(self.out)]
        return ["predict", str(data), *named, *again]

    def left(self) -> object:
        """What must be the same in the end."""
        if self.name == "finetune":
            return outcome(self.out)
        if self.name == "export":
            return forked.contents(self.out)
        return self.out.read_bytes()

    def is_complete(self) -> bool:
        """Whether there is nothing to go on with."""
        return self.name != "finetune" and self.out.exists()


def attempt(command: Command, points: Path, at: int, how: str) -> tuple[int, list[str]]:
    """Run a command with one failing call; its exit code, and all calls of an undisturbed one."""
    home = command.home

    def install() -> None:
        def die() -> None:
            os._exit(137)

        FailPoints(home / "out", at, how, die).__enter__().record(points)

    code = forked.run(home, command.words(), install)
    return code, points.read_text().splitlines() if points.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="one of finetune, export, predict")
    parser.add_argument("--every", type=int, default=1, help="take every n-th of the points")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="vitft-points-"))
    os.environ["HOME"] = str(home / "out")
    SETTINGS["optim"]["epochs"] = 1
    prepare(home, per_class=6, width=32, depth=2)
    (home / "out").mkdir()
    whole = Command(home, "finetune")
    assert forked.run(home, whole.words()) == 0, forked.said(home)
    whole.out.rename(home / "whole")
    for name in ("finetune", "export", "predict"):
        if args.only in ("", name):
            campaign(home, name, args.every)
    shutil.rmtree(home)


def campaign(home: Path, name: str, every: int) -> None:
    """All points of one command; prints a line for each way to fail."""
    older = forked.digests(home / "whole")
    fresh(home)
    command = Command(home, name)
    code, calls = attempt(command, home / "points.txt", -1, KILL)
    assert code == 0, forked.said(home)
    wanted = command.left()
    page = sorted(p.name for p in command.out.iterdir()) if name == "finetune" else []
    picked = chosen(calls)[::every]
    print(f"{name}: {len(calls)} calls, {len(picked)} of them tried", flush=True)
    for how in (KILL, *ERRORS):
        codes: Counter[int] = Counter()
        bad = 0
        for at in picked:
            fresh(home)
            code, _ = attempt(command, home / "ignored.txt", at, how)
            codes[code] += 1
            wrong = judged(command, how, code, wanted, page)
            if forked.digests(home / "whole") != older:
                wrong.append("an older file changed")
            bad += bool(wrong)
            if wrong:
                text = forked.said(home)[-600:]
                print(f"  {how} at {calls[at]}: {'; '.join(wrong)}\n{text}", flush=True)
        told = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        print(f"{name}, {how}: {len(picked)} points, {bad} bad; exit codes {told}", flush=True)


def judged(command: Command, how: str, code: int, wanted: object, page: list[str]) -> list[str]:
    """What is wrong after a command that failed once, and after it was gone on with."""
    text, wrong = forked.said(command.home), []
    if code not in ALLOWED[how]:
        wrong.append(f"exit code {code}")
    if "Traceback" in text:
        wrong.append("a traceback")
    wrong += [f"half: {name}" for name in forked.halves(command.home / "out")]
    if not command.is_complete() and forked.run(command.home, command.words()):
        return [*wrong, "does not go on"]
    if command.left() != wanted:
        wrong.append("other bits")
    gone = missing(command.out, page) if command.name == "finetune" else []
    if gone and how == KILL:
        wrong.append(f"missing: {gone}")
    return wrong


def fresh(home: Path) -> None:
    """An empty place for outputs, the cache among them."""
    shutil.rmtree(home / "out", ignore_errors=True)
    (home / "out").mkdir()


if __name__ == "__main__":
    main()
