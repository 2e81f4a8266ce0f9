"""Mutation campaign: random single-line faults in vitft, and how many of them the tests detect.

    python -m benchmarks.faults.mutants --faults 300               # drawn from all of vitft
    python -m benchmarks.faults.mutants --each 8 vitft/features/head.py    # in the given modules
    python -m benchmarks.faults.mutants --covering FOLDER ...      # use the record of another call
    python -m benchmarks.faults.mutants --again FILE               # the faults of `--out FILE` once more

First all tests run once, and which of them execute each line is recorded (`covering.py`). Then each
fault of `planting.py` is planted in a copy of the checkout and in a forked child of a process that
has collected the tests (`swap.py`), and the tests that execute the line run there until one fails:
the twenty whose names share the rarest words with the line first, then those of the module's own
test file, then eight golden runs, then one of each test function and eight further golden runs, and
so on, and last the other tests near the module. A fault survives if all of them pass; a fault outside
functions is also tried in a new process, which imports it. A test that fails without the fault as
well is left out. The faults in `equivalent.csv` change no promised behaviour (an equal result,
another speed) and are counted apart.

The tests are those of the record: one of some folders (`covering.py`) measures these alone.

Exits with 1 if fewer than 95% of the other faults are detected.
"""

import argparse
import collections
import csv
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.faults.covering import Covering, read_covering
from benchmarks.faults.planting import (
    Fault,
    compiles,
    drawn,
    faults_of,
    in_function,
    statement_lines,
)
from benchmarks.faults.swap import Live, NotSwappable

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.csv")
WANTED = 0.95
"""Fraction of the faults to detect."""
PARALLEL = multiprocessing.get_context("fork")


@dataclass(slots=True)
class Result:
    """Outcome of one fault."""

    fault: Fault
    before: str
    after: str
    outcome: str = "survived"
    """killed, timeout, survived, or equivalent."""
    by: str = ""
    """The test that fails, or how many passed."""


# ---- tests of a fault


class Selection:
    """Chooses the tests of a fault."""

    def __init__(self, covering: Covering, seconds: float) -> None:
        self.covering = covering
        self.seconds = seconds  # longest duration of the tests of one fault
        self.texts = {
            str(path.relative_to(ROOT)): path.read_text()
            for path in sorted(ROOT.glob("tests/**/test_*.py"))
        }
        self.words = {name: words_of(name) for name in covering.seconds}
        self.common = collections.Counter(word for own in self.words.values() for word in own)
        self.sources = {
            str(path.relative_to(ROOT)): path.read_text().splitlines()
            for path in sorted(ROOT.glob("vitft/**/*.py"))
        }

    def names(self, fault: Fault, inside: bool) -> list[str]:
        """Return the names of the tests, the ones to run first in front."""
        near = self.near_files(fault.module)
        executed = executing(self.covering, fault)
        if not inside:
            executed |= self.users(fault)
        # A line may also be executed in another process, which is not recorded.
        chosen = executed | {name for name in self.covering.seconds if file_of(name) in near}
        seconds = self.covering.seconds
        turns: collections.Counter[str] = collections.Counter()
        lines = self.sources[fault.module]
        told = words_of(" ".join(lines[fault.line - 1 : fault.line + 2]))
        rare = {word: 1 / self.common[word] for word in told if word in self.common}
        alike = {
            name: sum(rare.get(word, 0) for word in self.words.get(name, ())) for name in chosen
        }
        alike = dict.fromkeys(sorted(alike, key=lambda n: -alike[n])[:20])
        ranked = []  # after golden runs in turns, the fastest test of each test function first
        for name in sorted(chosen & {*seconds}, key=lambda n: seconds[n]):
            function = name.partition("[")[0]
            is_golden = name.startswith("tests/contract/golden/")
            function = "golden" if is_golden else function
            turn = turns[function] // 8 - 1 if is_golden else turns[function]
            is_near = file_of(name) in near[:1]
            first = name not in alike, inside and name not in executed, not is_near
            ranked.append((*first, turn, seconds[name], name))
            turns[function] += 1
        return list(within([name for *_, name in sorted(ranked)], seconds, self.seconds))

    def near_files(self, module: str) -> list[str]:
        """Return the test file of a module and those that import it."""
        package, _, stem = module.removesuffix(".py").replace("/", ".").rpartition(".")
        importing = re.compile(rf"{re.escape(package)}(\.{stem}\b| import .*\b{stem}\b)")
        found = [path for path, text in self.texts.items() if importing.search(text)]
        folder = "/".join(["tests", *package.split(".")[1:]])
        # names that are imported from the package
        found += [path for path in self.texts if path.startswith(f"{folder}/")]
        if not found:  # a module that is copied or run as a program
            found = [path for path, text in self.texts.items() if stem in text]
        return sorted(found, key=lambda path: path != f"{folder}/test_{stem}.py")

    def users(self, fault: Fault) -> set[str]:
        """Return the tests that execute a line with the name that a module's statement binds."""
        line = self.sources[fault.module][fault.line - 1]
        found = re.match(r"\s*(?:def |class )?(\w+)", line)
        tests: set[str] = set()
        if found and len(found[1]) > 2:
            word = re.compile(rf"\b{found[1]}\b")
            for module, lines in self.sources.items():
                for number, text in enumerate(lines, 1):
                    if word.search(text):
                        tests |= self.covering.tests.get((module, number), set())
        return tests


def executing(covering: Covering, fault: Fault) -> set[str]:
    """Return the tests that execute the statement of a fault."""
    lines = statement_lines((ROOT / fault.module).read_bytes(), fault.line)
    return {name for line in lines for name in covering.tests.get((fault.module, line), ())}


def words_of(text: str) -> set[str]:
    """Return the words of a line or of the name of a test."""
    return {*re.findall(r"[a-z]{4,}", text.lower())}


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def within(names: list[str], seconds: dict[str, float], limit: float) -> Iterator[str]:
    """Yield names until their durations exceed a limit."""
    total = 0.0
    for name in names:
        total += seconds[name]
        if total > limit:
            return
        yield name


# ---- a process that plants faults


class Worker:
    """Plugin of pytest that runs the tests of one fault after the other in forked children."""

    def __init__(
        self, root: Path, selection: Selection, take: Callable[[], Fault | None], results: Any
    ) -> None:
        self.root, self.selection, self.take, self.results = root, selection, take, results
        self.failing: set[str] = set()  # without any fault
        self.passing: set[str] = set()
        self.log = root.parent / "failed.txt"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.live = Live.find()
        while fault := self.take():
            self.results.put(self.outcome(fault))
        return True

    def outcome(self, fault: Fault) -> Result:
        """Plant a fault and run its tests."""
        source = (self.root / fault.module).read_bytes()
        result = Result(fault, *fault.change(source))
        inside = in_function(source, fault)
        names = [n for n in self.selection.names(fault, inside) if n in self.items]
        mutated = fault.planted(source)
        while True:
            names = [name for name in names if name not in self.failing]
            self.write(fault.module, mutated)
            try:
                failed = self.run(names, lambda: self.swap(fault, source, mutated, inside))
                if failed == "not swappable" or not (failed or inside):
                    failed = self.run_apart(names)
            finally:
                self.write(fault.module, source)
            if not failed:
                result.by = f"{len(names)} tests passed"
                return result
            if failed == "timeout" or self.passes(failed):
                result.outcome = "timeout" if failed == "timeout" else "killed"
                result.by = failed
                return result
            self.failing.add(failed)

    def swap(self, fault: Fault, source: bytes, mutated: bytes, inside: bool) -> None:
        """Plant the fault in this process."""
        name = fault.module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if name in sys.modules:
            self.live.swap(name, source, mutated, inside=inside)

    def passes(self, name: str) -> bool:
        """Return whether a test passes without a fault."""
        if name not in self.passing and name in self.items and not self.run([name], lambda: None):
            self.passing.add(name)
        return name in self.passing

    def write(self, module: str, content: bytes) -> None:
        """Write a module, for commands that tests start, and remove its compiled form."""
        path = self.root / module
        path.write_bytes(content)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def run(self, names: list[str], plant: Callable[[], None]) -> str:
        """Run tests in a child; return the one that fails first, `timeout` or nothing."""
        if not names:
            return ""
        self.log.unlink(missing_ok=True)
        limit = 60 + 2 * sum(self.selection.covering.seconds[name] for name in names)
        pid = os.fork()
        if not pid:
            self.run_here([self.items[name] for name in names], plant)
        end = time.monotonic() + limit
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return (
                    "" if status == 0 else self.log.read_text() if self.log.exists() else names[0]
                )
            time.sleep(0.02)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "timeout"

    def run_here(self, items: list[pytest.Item], plant: Callable[[], None]) -> None:
        """Run tests in this process and end it."""
        code = 1
        try:
            os.setpgid(0, 0)
            try:
                plant()
            except NotSwappable:
                self.log.write_text("not swappable")
                return
            items[0].config.pluginmanager.register(FirstFailure(self.log))
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            code = 0
        finally:
            os._exit(code)

    def run_apart(self, names: list[str]) -> str:
        """Run tests in a new process, which imports the fault; return as `run` does."""
        if not names:
            return ""
        seconds = sum(self.selection.covering.seconds[name] for name in names)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
                   f"--basetemp={self.root.parent / 'apart'}", *names]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            text, _ = process.communicate(timeout=90 + 2 * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "timeout"
        if process.returncode == 0:
            return ""
        found = re.search(r"^(?:FAILED|ERROR) (tests/\S+?::.+?)(?: - |$)", text, re.M)
        return found[1] if found and found[1] in self.items else names[0]


class FirstFailure:
    """Plugin of pytest that ends the process when a test fails."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.log.write_text(report.nodeid)
            os._exit(1)


def work(
    folder: Path, selection: Selection, take: Callable[[], Fault | None], results: Any
) -> None:
    """Collect the tests of a copy of the checkout, then plant faults until none is left."""
    root = folder / "checkout"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "runs", "*.egg-info")
    shutil.copytree(ROOT, root, ignore=skipped)
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path[:] = [str(root), *(p for p in sys.path if p not in ("", str(ROOT)))]
    for stream in (1, 2):
        os.dup2(os.open(folder / "pytest.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    torch.set_num_threads(1)
    worker = Worker(root, selection, take, results)
    options = ["-q", "-p", "no:cacheprovider", "--capture=sys", f"--basetemp={folder / 'tests'}"]
    options.append("--timeout=60")  # a fault that makes a test hang is detected after a minute
    if pytest.main(options, plugins=[worker]) != 0:
        results.put((folder / "pytest.log").read_text())
    results.put(None)


# ---- the campaign


def record_tests(folder: Path, workers: int) -> None:
    """Run all tests once and record the lines that they execute."""
    environment = {**os.environ, "VITFT_COVERING": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.faults.covering", "-q",
               "-n", str(workers), "--dist", "worksteal"]  # fmt: skip
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def plant_all(
    faults: list[Fault], selection: Selection, folder: Path, workers: int
) -> Iterator[Result]:
    """Plant faults in several processes and yield their results as they come."""
    following = PARALLEL.Value("i", 0)

    def take() -> Fault | None:
        with following.get_lock():
            index = following.value
            following.value += 1
        return faults[index] if index < len(faults) else None

    results: Any = PARALLEL.SimpleQueue()
    processes = []
    for number in range(workers):
        home = folder / str(number)
        home.mkdir()
        processes.append(PARALLEL.Process(target=work, args=(home, selection, take, results)))
        processes[-1].start()
    left = workers
    while left:
        if (result := results.get()) is None:
            left -= 1
        elif isinstance(result, str):
            sys.exit(f"pytest could not collect the tests:\n{result}")
        else:
            yield result
    for process in processes:
        process.join()


def equivalents() -> set[tuple[str, str, str]]:
    """Return the module and the lines before and after each fault known not to matter."""
    with EQUIVALENT.open(newline="", encoding="utf-8") as file:
        return {(row["module"], row["before"], row["after"]) for row in csv.DictReader(file)}


def chosen(args: argparse.Namespace, covering: Covering) -> list[Fault]:
    """Draw the faults of a campaign, at most one per line."""
    modules = args.module or [str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("vitft/**/*.py"))]
    if args.each:
        drawn_in = (drawn(ROOT, m, args.each, random.Random(f"{args.seed} {m}")) for m in modules)
        return [fault for faults in drawn_in for fault in faults]
    everything = [
        fault
        for module in modules
        for fault in faults_of(ROOT, module)
        if args.rare is None or is_rare(covering, fault, args.rare)
    ]
    random.Random(args.seed).shuffle(everything)
    found: dict[tuple[str, int], Fault] = {}
    for fault in everything:
        if len(found) == args.faults:
            break
        source = (ROOT / fault.module).read_bytes()
        if (fault.module, fault.line) not in found and compiles(fault.planted(source)):
            found[fault.module, fault.line] = fault
    return list(found.values())


def planted_before(path: Path) -> list[Fault]:
    """Return the faults of a file of results whose lines are still there."""
    found = []
    for text in path.read_text().splitlines():
        known = json.loads(text)
        module, line = known["fault"]["module"], known["fault"]["line"]
        if not (ROOT / module).exists():
            continue
        source = (ROOT / module).read_bytes()
        same = [
            fault
            for fault in faults_of(ROOT, module)
            if fault.change(source) == (known["before"], known["after"])
        ]
        found += sorted(same, key=lambda fault: abs(fault.line - line))[:1]
    return found


def is_rare(covering: Covering, fault: Fault, most: int) -> bool:
    """Return whether some tests, but at most `most`, execute the line of a fault."""
    return 0 < len(executing(covering, fault)) <= most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", nargs="*", help="paths of modules (default: all of vitft)")
    parser.add_argument("--faults", type=int, default=300, help="number of faults to draw")
    parser.add_argument("--each", type=int, help="number of faults per module, instead")
    parser.add_argument("--rare", type=int, help="draw from lines that at most so many tests run")
    parser.add_argument(
        "--again", type=Path, help="file of the results whose faults to plant again"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="longest tests of one fault")
    parser.add_argument("--covering", type=Path, help="folder of the record; made if absent")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file of all results, one JSON object per line")
    args = parser.parse_args()
    os.nice(10)
    known = equivalents()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        record = args.covering or Path(temporary) / "covering"
        if not record.is_dir():
            record_tests(record, args.workers)
        covering = read_covering(record)
        matter = []
        for fault in planted_before(args.again) if args.again else chosen(args, covering):
            before, after = fault.change((ROOT / fault.module).read_bytes())
            same = (fault.module, before, after) in known
            counts["equivalent"] += same
            if not same:
                matter.append(fault)
        selection = Selection(covering, args.seconds)
        for result in plant_all(matter, selection, Path(temporary), args.workers):
            report(result, counts, args.out)
    detected = counts["killed"] + counts["timeout"]
    print(f"{detected} of {len(matter)} faults detected ({detected / max(1, len(matter)):.1%}), "
          f"{counts['timeout']} of them by a timeout; {counts['equivalent']} equivalent")  # fmt: skip
    return int(detected < WANTED * len(matter))


def report(result: Result, counts: collections.Counter[str], out: Path | None) -> None:
    """Count and print a result."""
    counts[result.outcome] += 1
    if out:
        with out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
    if result.outcome == "survived":
        print(f"survived {result.fault.module}:{result.fault.line} {result.fault.kind}, {result.by}\n"
              f"    - {result.before[:300]}\n    + {result.after[:300]}", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
