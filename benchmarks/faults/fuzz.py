"""Coverage-guided fuzzing of everything that vitft reads: how many inputs end in a traceback, a hang, a wrong
answer or too much memory.

    python -m benchmarks.faults.fuzz                  # 600 images, 100 of each other kind, 100 command lines
    python -m benchmarks.faults.fuzz --scale 100      # the long form: 60,000 images, 10,000 ..., 300 command lines
    python -m benchmarks.faults.fuzz --plant          # defects of each kind, which the harness must find

Inputs are drawn with a fixed seed by the mutators of `fuzz_targets`; one that reaches new lines of vitft joins
the seeds of its kind. Everything runs in this process, except that a watchdog ends it if Python code cannot.
Exits with 1 after a violation; the inputs are described on stdout.
"""

import argparse
import collections
import contextlib
import faulthandler
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ImageFile

from benchmarks.faults.fuzz_targets import TARGETS, Wrong
from benchmarks.faults.mutate import LineCoverage
from vitft.data import images
from vitft.models import numpy_vit
from vitft.models.card import Card
from vitft.system import structure

SEED = 20261122
COUNTS = {"images": 600, "weights": 100, "cards": 100, "runs": 100, "lines": 100}
MOST = {"lines": 300}
"""Counts that do not grow further with --scale."""
SECONDS = {"images": 2.0, "weights": 2.0, "cards": 2.0, "runs": 8.0, "lines": 8.0}
"""Time after which an input hangs; a command of `runs` or `lines` may train, export or start torch's compiler."""
MEMORY_MIB = {"images": 300, "weights": 300, "cards": 300, "runs": 300, "lines": 300}


class Hang(BaseException):
    """Raised by the watchdog; not an Exception, so that no handler of vitft catches it."""


@contextlib.contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Raise Hang after `seconds`; end the process after ten times as long, with its traceback."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(10 * seconds, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def memory(field: str) -> int:
    """Return VmRSS or VmHWM of this process in MiB."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) // 1024 if found else 0


def reset_peak() -> None:
    """Let VmHWM start again at the present memory use, where the kernel allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def attempt(run: Callable[[], str], seconds: float, mebibytes: int) -> tuple[str, str]:
    """Run one input; return a violation (or an empty string) and the outcome or its description."""
    reset_peak()
    before = memory("VmRSS")
    try:
        with watched(seconds):
            outcome = run()
    except Hang:
        return "hang", f"more than {seconds} s: {traceback.format_exc(limit=-6)[-900:]}"
    except Wrong as error:
        return "wrong answer", str(error)[:900]
    except MemoryError:
        return "memory", "MemoryError"
    except Exception:
        return "traceback", traceback.format_exc()[-1800:]
    grown = memory("VmHWM") - before
    return ("memory", f"{grown} MiB") if grown > mebibytes else ("", outcome)


def campaign(
    name: str, count: int, home: Path, *, seed: int, until: str = ""
) -> collections.Counter[str]:
    """Run `count` inputs of a kind, or stop at the violation `until`; return outcomes and violations."""
    rng, coverage = random.Random(f"{seed} {name}"), LineCoverage()
    target, corpus = TARGETS[name](home), collections.deque[Any](maxlen=500)
    counts: collections.Counter[str] = collections.Counter()
    begun, shown = time.perf_counter(), collections.Counter[str]()
    for _ in range(count):
        made = (
            target.vary(rng.choice(corpus), rng)
            if corpus and rng.random() < 0.4
            else target.draw(rng)
        )
        kind, text = attempt(
            lambda made=made: coverage.run(lambda: target.run(made)),
            SECONDS[name],
            MEMORY_MIB[name],
        )
        if coverage.has_new:
            corpus.append(made)
        counts[kind or text] += 1
        counts["violations"] += bool(kind)
        if kind and kind == until:
            break
        place = text.strip().splitlines()[-1][:80] if kind else ""
        shown[place] += 1
        if kind and shown[place] <= 2:
            print(f"--- {kind} in {name}: {ascii(made)[:300]}\n{text}", flush=True)
    seconds = time.perf_counter() - begun
    outcomes = ", ".join(f"{key} {n:,}" for key, n in sorted(counts.items()) if key != "violations")
    print(f"{name}: {count:,} inputs in {seconds:.0f} s, {len(coverage.lines):,} lines reached, seeds {len(corpus)}; {outcomes}; "
          f"violations: {counts['violations']}", flush=True)  # fmt: skip
    return counts


def planted() -> dict[str, tuple[str, str, Callable[[], contextlib.AbstractContextManager[Any]]]]:
    """Return defects by name: the kind of input and of violation that reveals each, and how to plant it."""

    @contextlib.contextmanager
    def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)

    reason, classify, parse = (
        images.reason_for,
        numpy_vit.NumpyModel.classify,
        structure._unique_keys,
    )

    def greedy(*args: Any) -> str:
        np.ones(2**27, np.float32)
        return reason(*args)

    def endless(*_: Any) -> str:
        while "cut" not in vars():
            pass
        return ""

    return {
        "fewer decoder errors are caught": ("images", "traceback", lambda: patched(images, "DECODER_ERRORS", (EOFError,))),
        "a damaged image is retried for ever": ("images", "hang", lambda: patched(images, "reason_for", endless)),
        "a damaged image allocates 512 MiB": ("images", "memory", lambda: patched(images, "reason_for", greedy)),
        "cut pictures are filled with grey": ("images", "wrong answer", lambda: patched(ImageFile, "LOAD_TRUNCATED_IMAGES", True)),
        "one engine adds 1 to the first logit": (
            "cards", "wrong answer", lambda: patched(numpy_vit.NumpyModel, "classify", lambda self, x: classify(self, x) + np.eye(1, 3, dtype=np.float32))),
        "a number may be anything": ("cards", "traceback", lambda: patched(structure, "_scalar", lambda value, *_: value)),
        "a duplicate key is an assertion": ("runs", "traceback", lambda: patched(structure, "_unique_keys", lambda pairs: parse(pairs) if len(dict(pairs)) == len(pairs) else {}[0])),
        "pipes are waited for": ("runs", "hang", lambda: patched(os, "O_NONBLOCK", 0)),
    }  # fmt: skip


def plant() -> int:
    """Plant each defect and report whether it is found; return the number that is not."""
    missed = 0
    for name, (kind, violation, planter) in planted().items():
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as null:  # noqa: PTH123
            count = 500 if kind != "runs" else 900
            with contextlib.redirect_stdout(null), planter():
                counts = campaign(kind, count, Path(folder), seed=SEED, until=violation)
        found = counts[violation] > 0
        missed += not found
        print(
            f"{name}: {'found' if found else 'MISSED'} ({violation} in {kind})",
            flush=True,
        )
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", help=f"kinds of input: {', '.join(COUNTS)} (default: all)"
    )
    parser.add_argument(
        "--scale", type=float, default=1, help="factor on the number of inputs (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--plant", action="store_true", help="plant defects, which must be found")
    args = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "COLUMNS": "200"}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.captureWarnings(True)
    assert Card  # the package is imported before coverage starts
    if args.plant:
        missed = plant()
        print("every defect was found" if not missed else f"defects missed: {missed}")
        return int(missed > 0)
    violations = 0
    for name in args.kinds or COUNTS:
        count = max(1, min(round(COUNTS[name] * args.scale), MOST.get(name, 10**9)))
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HOME"] = folder
            violations += campaign(name, count, Path(folder), seed=args.seed)["violations"]
    print("no violations" if not violations else f"violations: {violations}")
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main())
