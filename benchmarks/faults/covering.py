"""Pytest plugin that records which tests execute each line of vitft, and how long each test takes.

    VITFT_COVERING=FOLDER python -m pytest -p benchmarks.faults.covering -n 2 --dist worksteal

Every process writes `*.json` files to the folder: the lines that its tests and its fixtures of a
wider scope than a function execute, the tests that use these fixtures, and seconds. `read_covering`
merges them. What a test executes in another process is not recorded.
"""

import collections
import json
import os
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Covering:
    """Tests by the lines that they execute."""

    tests: dict[tuple[str, int], set[str]] = field(
        default_factory=lambda: collections.defaultdict(set)
    )
    """Names of the tests by module, relative to the checkout, and line."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each test with its fixtures."""


def read_covering(folder: Path) -> Covering:
    """Merge what the processes of a run wrote."""
    covering = Covering()
    users: dict[str, set[str]] = collections.defaultdict(set)
    parts = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    for part in parts:
        covering.seconds.update(part["seconds"])
        for fixture, tests in part["users"].items():
            users[fixture].update(tests)
    for part in parts:
        for context, modules in part["lines"].items():
            tests = users.get(context, {context})
            for module, lines in modules.items():
                for line in lines:
                    covering.tests[module, line] |= tests
    return covering


class Recorder:
    """The hooks of pytest that switch the context of the measurement."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.measure = coverage.Coverage(
            data_file=None, source=[str(ROOT / "vitft")], messages=False, config_file=False
        )
        self.context = ""
        self.users: dict[str, set[str]] = collections.defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.measure.start()

    def switch(self, context: str) -> str:
        """Switch to a context and return the one before."""
        before, self.context = self.context, context
        self.measure.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Generator[None, Any, Any]:
        for name in item.fixturenames:
            for fixture in item._fixtureinfo.name2fixturedefs.get(name, ())[-1:]:
                if fixture.scope != "function":
                    self.users[fixture_context(fixture)].add(item.nodeid)
        before = self.switch(item.nodeid)
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.perf_counter() - begun
            self.switch(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = self.switch(fixture_context(fixturedef))
        try:
            return (yield)
        finally:
            self.switch(before)

    def pytest_sessionfinish(self) -> None:
        if not self.seconds:  # the process that only distributes the tests
            return
        self.measure.stop()
        data = self.measure.get_data()
        lines: dict[str, dict[str, list[int]]] = collections.defaultdict(dict)
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in filter(None, contexts):
                    module = str(Path(path).relative_to(ROOT))
                    lines[context].setdefault(module, []).append(line)
        users = {name: sorted(tests) for name, tests in self.users.items()}
        part = {"lines": lines, "users": users, "seconds": self.seconds}
        (self.folder / f"{os.getpid()}.json").write_text(json.dumps(part))


def fixture_context(fixture: Any) -> str:
    """Return the name of a fixture in the record."""
    return f"fixture {fixture.baseid} {fixture.argname}"


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ["VITFT_COVERING"])
    folder.mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(Recorder(folder), "covering")
