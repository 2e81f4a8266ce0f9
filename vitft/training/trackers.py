"""Logging of a run to experiment trackers.

metrics.jsonl is written in any case. Trackers never change what is trained: they receive numbers,
and one that fails is dropped with one warning. Numbers are sent in batches, before each saved state
and after each epoch. What was sent is recorded in trackers.json, so that a resumed run continues in
the same run of the tracker and sends nothing twice.
"""

import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vitft.system.errors import UsageError
from vitft.system.rundir import RunDir
from vitft.training.tracker_clients import (
    CLIENTS,
    CONNECTION_HELP,
    TrackedRun,
    TrackerClient,
    check_trackers,
)

log = logging.getLogger(__name__)

PROGRESS_FILE = "trackers.json"
STEP_INTERVAL = 10
"""Steps between two points of the running loss; epochs are always logged."""


@dataclass(slots=True)
class ActiveTracker:
    """A connected tracker and how much it has received."""

    client: TrackerClient
    id: str = ""
    """The tracker's id of the run; empty before it is started."""
    last_moment: int = -1


@dataclass(slots=True)
class Trackers:
    """All trackers of a run, possibly none."""

    run: RunDir | None = None
    active: dict[str, ActiveTracker] = field(default_factory=dict)
    pending: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    is_finished: bool = False

    def start(self, run: RunDir, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Start a run in each tracker, or continue the one that it has, and log its location."""
        self.run = run
        before = read_progress(run) if resume else {}
        for name, tracker in list(self.active.items()):
            known = before.get(name, {})
            tracked = TrackedRun(
                folder=run.path.resolve(),
                settings=settings,
                id=str(known.get("id", "")),
                last_moment=int(known.get("moment", -1)),
            )
            self.attempt(name, partial(start_tracker, name, tracker, tracked))
        self.write_progress()

    def log_step(self, step: int, values: Mapping[str, Any]) -> None:
        """Note the values of every `STEP_INTERVAL`-th step, to be sent later."""
        if self.active and step % STEP_INTERVAL == 0:
            self.pending.append((2 * step, finite_numbers(values)))

    def log_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        """Send the values of an epoch that ended after `step` steps of the run."""
        if self.active:
            self.pending.append((2 * step + 1, finite_numbers(values)))
            self.flush()

    def flush(self) -> None:
        """Send what is pending to the trackers that do not have it yet."""
        points, self.pending = self.pending, []
        for name, tracker in list(self.active.items()):
            new = [(moment, values) for moment, values in points if moment > tracker.last_moment]
            if new and self.attempt(name, partial(tracker.client.log, new)):
                tracker.last_moment = new[-1][0]
        if points:
            self.write_progress()

    def finish(self, status: str, results: Mapping[str, Any]) -> None:
        """Send what is pending, the final results and the status; only the first call counts."""
        if self.is_finished:
            return
        self.is_finished = True
        self.flush()
        final = finite_numbers(results) if status == "finished" else {}
        for name, tracker in list(self.active.items()):
            if tracker.id:
                self.attempt(name, partial(tracker.client.finish, status, final))

    def attempt(self, name: str, action: Callable[[], object]) -> bool:
        """Return whether an action succeeds; drop its tracker with a warning if it fails."""
        try:
            without_warnings(action)
        except Exception as error:  # a library may raise anything, and training continues
            self.active.pop(name, None)
            log.warning(
                f"{name} logging disabled: {describe_error(error)}; training and metrics.jsonl "
                "continue"
            )
            return False
        return True

    def write_progress(self) -> None:
        """Write the trackers' ids of the run and what was sent to them."""
        if self.run is not None and self.active:
            ids = {name: {"id": t.id, "moment": t.last_moment} for name, t in self.active.items()}
            self.run.write_json(PROGRESS_FILE, read_progress(self.run) | ids)


def start_tracker(name: str, tracker: ActiveTracker, run: TrackedRun) -> None:
    """Start or continue a run in one tracker."""
    connection = tracker.client.start(run)
    tracker.id = connection.id
    tracker.last_moment = max(run.last_moment, connection.last_moment)
    log.info(f"{name}: {connection.location}")


def connect_trackers(names: Sequence[str], *, resume: bool) -> Trackers:
    """Import the library of each tracker and connect to its service.

    Raises:
        UsageError: A new run cannot connect; a resumed run continues without that tracker.
    """
    check_trackers(names)
    trackers = Trackers()

    def connect(name: str) -> None:
        trackers.active[name] = ActiveTracker(CLIENTS[name]())

    for name in names:
        if resume:
            trackers.attempt(name, partial(connect, name))
            continue
        try:
            without_warnings(partial(connect, name))
        except Exception as error:
            raise UsageError(
                f"--tracker {name} cannot start: {describe_error(error)}",
                fix=f"{CONNECTION_HELP[name]}; or leave --tracker {name} out",
            ) from error
    return trackers


def without_warnings(action: Callable[[], object]) -> None:
    """Call `action` without the libraries' warnings about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        action()


def read_progress(run: RunDir) -> dict[str, dict[str, Any]]:
    """Read trackers.json; empty if it is missing or damaged."""
    with suppress(OSError, ValueError):
        found = json.loads((run.path / PROGRESS_FILE).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {name: facts for name, facts in found.items() if isinstance(facts, dict)}
    return {}


def finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among some values."""
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
    return {key: float(value) for key, value in numbers.items() if math.isfinite(value)}


def describe_error(error: Exception) -> str:
    """Return the type and first line of an error, without addresses that may hold a password."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    words = (w if "@" not in w or "://" not in w else "(address)" for w in text.split())
    return " ".join(words)[:300]
