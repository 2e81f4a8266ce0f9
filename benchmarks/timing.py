"""Helpers shared by the benchmarks: timed processes, interleaved repeats and summaries."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Process(NamedTuple):
    """Exit code and cost of a finished process, including the children it has waited for."""

    code: int
    wall_s: float
    cpu_s: float
    peak_mib: float


def wait_for(process: subprocess.Popen[Any], begun: float) -> Process:
    """Wait for a process that was started at `begun` (`time.perf_counter`)."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Process(process.returncode, time.perf_counter() - begun, cpu_s, usage.ru_maxrss / 1024)


def run_process(command: Sequence[str]) -> Process:
    """Run a command, without its output, to a successful end.

    A child's peak memory counts from that of its parent, so keep the caller small.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = wait_for(process, begun)
    assert done.code == 0, command
    return done


def run_vitft(*words: str) -> float:
    """Run a vitft command in a process of its own and return its wall seconds."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "vitft", *words], check=True, capture_output=True)
    return time.perf_counter() - begun


def run_contestant(module: str, *words: str) -> Any:
    """Run a benchmark module in a fresh process and return the JSON on its last line."""
    command = [sys.executable, "-W", "ignore", "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def cpu_seconds() -> float:
    """Return the processor time of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def interleave(jobs: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Run the jobs in turn, `repeats` times, and return the results of each."""
    results: dict[str, list[T]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            results[name].append(job())
    return results


def median_range(values: Sequence[float], form: str = ".3g") -> str:
    """Format the median with the lowest and the highest value."""
    middle = statistics.median(values)
    return f"{middle:{form}} ({min(values):{form}} to {max(values):{form}})"


def mean_deviation(values: Sequence[float], form: str = ".1f") -> str:
    """Format mean, standard deviation and each value."""
    spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    each = " ".join(f"{value:{form}}" for value in values)
    return f"{statistics.mean(values):{form}}{spread} ({each})"


def counts(found: Mapping[Any, int] | Iterable[tuple[Any, int]]) -> str:
    """Format counts by key, such as exit codes."""
    return ", ".join(f"{key}: {count}" for key, count in sorted(dict(found).items()))
