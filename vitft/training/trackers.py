"""Telling other programs how a training goes: TensorBoard, MLflow, Weights & Biases.

metrics.jsonl is written whether they are there or not. A tracker never changes what is trained: it
is told plain numbers, and one that fails is dropped with one warning. Numbers are sent in portions,
before each state that is kept and after each epoch; what was sent is noted in the run's
trackers.json, so that a run that is resumed goes on in the same place and tells nothing twice.
The libraries are imported only when they are named.
"""

import json
import logging
import math
import os
import shlex
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vitft.system import console
from vitft.system.errors import UsageError
from vitft.system.extras import require_extra
from vitft.system.rundir import RunDir

log = logging.getLogger(__name__)

Points = Sequence[tuple[int, Mapping[str, float]]]
"""Moments and figures, in order. After `n` steps of the whole run it is moment `2 * n`; what is
measured then, at the end of an epoch, belongs to moment `2 * n + 1`."""

FILE = "trackers.json"
EVERY = 10
"""Steps between two points of the running loss; epochs are always told."""
PATIENCE_S = 5
"""Seconds that one question to an MLflow server may take; it is asked twice."""
LEAVING_S = 30
"""Seconds that W&B may take at the end; what is not uploaded by then stays for `wandb sync`."""
PROJECT = "vitft"
"""Name of the experiment or project where the environment names none."""


class Tracker(Protocol):
    """What a tracker is asked to do, which may raise anything. Making one tries the way to it."""

    def begin(self, opening: "Opening") -> "Begun": ...

    def tell(self, points: Points) -> None: ...

    def end(self, status: str, figures: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a tracker starts from."""

    folder: Path
    """Of the run; it exists."""
    settings: Mapping[str, Any]
    """By dotted keys."""
    id: str = ""
    """Under which the tracker knows a run that goes on; empty for a new one."""
    told: int = -1
    """The last moment that it was told; -1: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Where a tracker stands."""

    id: str
    place: str
    """Where to look at it."""
    told: int = -1
    """The last moment that it knows of itself; -1 if it cannot be asked."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose library is missing; imports nothing.

    Raises:
        UsageError: With the command that installs it.
    """
    for name in names:
        require_extra(name, feature=f"--tracker {name}")


@dataclass(slots=True)
class Told:
    """A tracker at work."""

    tracker: Tracker
    id: str = ""
    moment: int = -1
    """The last that it was told."""


@dataclass(slots=True)
class Trackers:
    """All trackers of a run; none is a good number, too."""

    run: RunDir | None = None
    working: dict[str, Told] = field(default_factory=dict)
    waiting: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    is_over: bool = False

    def begin(self, run: RunDir, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Give each tracker a run of its own, or the one that it has, and say where to look."""
        self.run = run
        before = remembered(run) if resume else {}
        for name, told in list(self.working.items()):
            known = before.get(name, {})
            opening = Opening(
                folder=run.path.resolve(),
                settings=settings,
                id=str(known.get("id", "")),
                told=int(known.get("moment", -1)),
            )

            def begin(name: str = name, told: Told = told, opening: Opening = opening) -> None:
                begun = told.tracker.begin(opening)
                told.id, told.moment = begun.id, max(opening.told, begun.told)
                log.info(f"{name}: {begun.place}")

            self.tried(name, begin)
        self.remember()

    def step(self, step: int, figures: Mapping[str, Any]) -> None:
        """Note the figures of some of the steps, to be told later."""
        if self.working and step % EVERY == 0:
            self.waiting.append((2 * step, numbers(figures)))

    def epoch(self, step: int, figures: Mapping[str, Any]) -> None:
        """Tell the figures of an epoch that ended after so many steps of the run."""
        if self.working:
            self.waiting.append((2 * step + 1, numbers(figures)))
            self.tell()

    def tell(self) -> None:
        """Tell what was noted, each tracker only what it does not know yet."""
        points, self.waiting = self.waiting, []
        for name, told in list(self.working.items()):
            new = [(moment, figures) for moment, figures in points if moment > told.moment]
            if new and self.tried(name, partial(told.tracker.tell, new)):
                told.moment = new[-1][0]
        if points:
            self.remember()

    def end(self, status: str, figures: Mapping[str, Any]) -> None:
        """Tell the rest, the final figures and how it ended; a second time does nothing."""
        if self.is_over:
            return
        self.is_over = True
        self.tell()
        final = numbers(figures) if status == "finished" else {}
        for name, told in list(self.working.items()):
            if told.id:  # else it never began
                self.tried(name, partial(told.tracker.end, status, final))

    def tried(self, name: str, act: Callable[[], object]) -> bool:
        """Whether it worked; a tracker with which it did not is warned of and dropped."""
        try:
            quietly(act)
        except Exception as error:  # foreign code, and training goes on whatever it raises
            self.working.pop(name, None)
            log.warning(
                f"{name} is told nothing more: {reason(error)}; training and metrics.jsonl go on"
            )
            return False
        return True

    def remember(self) -> None:
        """Write under which ids the trackers know the run, and what they were told."""
        if self.run is not None and self.working:
            ids = {name: {"id": t.id, "moment": t.moment} for name, t in self.working.items()}
            self.run.write_json(FILE, remembered(self.run) | ids)


def reach_trackers(names: Sequence[str], *, resume: bool) -> Trackers:
    """Import each library and try the way to its server.

    Raises:
        UsageError: One cannot be reached by a new run; a run that is resumed goes on without it.
    """
    check_trackers(names)
    trackers = Trackers()
    for name in names:

        def reach(name: str = name) -> None:
            trackers.working[name] = Told(KINDS[name]())

        if resume:
            trackers.tried(name, reach)
            continue
        try:
            quietly(reach)
        except Exception as error:
            raise UsageError(
                f"--tracker {name} cannot start: {reason(error)}",
                fix=f"{HELP[name]}; or leave --tracker {name} out",
            ) from error
    return trackers


def quietly(act: Callable[[], object]) -> None:
    """Without the warnings of libraries about themselves, on which nobody here can act."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        act()


def remembered(run: RunDir) -> dict[str, dict[str, Any]]:
    """What `Trackers.remember` wrote; nothing if it is not there or not that."""
    with suppress(OSError, ValueError):
        found = json.loads((run.path / FILE).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {name: facts for name, facts in found.items() if isinstance(facts, dict)}
    return {}


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among figures."""
    plain = {k: v for k, v in figures.items() if isinstance(v, int | float)}
    return {k: float(v) for k, v in plain.items() if math.isfinite(v)}


def reason(error: Exception) -> str:
    """The first line of what a library says, without addresses that may hold a password."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    words = (w if "@" not in w or "://" not in w else "(address)" for w in text.split())
    return console.visible(" ".join(words))[:300]


# TensorBoard ------------------------------------------------------------------------------------


class TensorBoard:
    """Event files in the run's own folder."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.make: Callable[..., Any] = SummaryWriter

    def begin(self, opening: Opening) -> Begun:
        folder = opening.folder / "tensorboard"
        # What a process that was killed wrote after `told` is hidden by `purge_step`.
        again = opening.told // 2 + 1 if opening.id else None
        self.writer = self.make(str(folder), purge_step=again)
        if opening.told < 0:
            rows = "\n".join(f"    {k} = {v!r}" for k, v in opening.settings.items())
            self.writer.add_text("settings", rows, 0)
        return Begun(id="tensorboard", place=f"tensorboard --logdir {shlex.quote(str(folder))}")

    def tell(self, points: Points) -> None:
        for moment, figures in points:
            for key, value in figures.items():
                self.writer.add_scalar(key, value, moment // 2)
        self.writer.flush()

    def end(self, _: str, figures: Mapping[str, float]) -> None:
        for key, value in figures.items():
            self.writer.add_scalar(f"final/{key}", value, 0)
        self.writer.close()


# MLflow -----------------------------------------------------------------------------------------


class MLflow:
    """A run of an MLflow server, or of a database file."""

    ENDS: Mapping[str, str] = {"finished": "FINISHED", "failed": "FAILED"}

    def __init__(self) -> None:
        # Its own patience is minutes, in which a training would stand still.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(PATIENCE_S))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        import mlflow

        self.address = without_password(mlflow.get_tracking_uri())
        self.client: Any = mlflow.MlflowClient()
        self.name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        self.experiment: Any = self.client.get_experiment_by_name(self.name)

    def begin(self, opening: Opening) -> Begun:
        told, self.id = -1, opening.id
        if self.id:
            self.client.update_run(self.id, status="RUNNING")
            told = max(self.last("loss"), self.last("epoch") + 1)
        else:
            self.id = self.new_run(opening)
        return Begun(id=self.id, place=f"run {self.id} at {self.address}", told=told)

    def last(self, key: str) -> int:
        """The last moment for which the server has this figure; under 0 if it has none."""
        points = self.client.get_metric_history(self.id, key)
        return 2 * max((point.step for point in points), default=-1)

    def new_run(self, opening: Opening) -> str:
        """Make a run; returns its id."""
        from mlflow.entities import Param

        found = self.experiment
        place = found.experiment_id if found else self.client.create_experiment(self.name)
        run = self.client.create_run(place, run_name=opening.folder.name)
        told = [Param(key, str(value)[:500]) for key, value in opening.settings.items()]
        for start in range(0, len(told), 100):  # no more at once
            self.client.log_batch(run.info.run_id, params=told[start : start + 100])
        return str(run.info.run_id)

    def tell(self, points: Points) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        told = [Metric(k, v, now, moment // 2) for moment, f in points for k, v in f.items()]
        for start in range(0, len(told), 1000):  # no more at once
            self.client.log_batch(self.id, metrics=told[start : start + 1000])

    def end(self, status: str, figures: Mapping[str, float]) -> None:
        self.tell([(0, {f"final.{key}": value for key, value in figures.items()})])
        self.client.set_terminated(self.id, self.ENDS.get(status, "KILLED"))


def without_password(uri: str) -> str:
    """An address without what stands in front of its @."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else uri


# Weights & Biases -------------------------------------------------------------------------------


class Wandb:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it in the run's folder."""

    def __init__(self) -> None:
        import wandb

        self.library: Any = wandb
        self.settings = wandb.Settings(
            console="off", silent=True, init_timeout=LEAVING_S, finish_timeout=LEAVING_S
        )
        self.is_online = wandb.setup().settings.mode == "online"  # with environment and files
        if self.is_online and not wandb.login(prompt=False):  # it would ask at the terminal
            raise RuntimeError("nobody is logged in")

    def begin(self, opening: Opening) -> Begun:
        name = opening.id or uuid.uuid4().hex[:12]
        self.run: Any = self.library.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=opening.folder.name,
            id=name,
            resume="allow",
            dir=opening.folder,
            config=dict(opening.settings),
            settings=self.settings,
        )
        place = self.run.url if self.is_online else f"`wandb sync` of {opening.folder / 'wandb'}"
        told = 2 * int(self.run.step) - 1 if self.run.resumed else -1
        return Begun(id=name, place=str(place), told=told)

    def tell(self, points: Points) -> None:
        for moment, figures in points:
            self.run.log(dict(figures), step=moment // 2)

    def end(self, status: str, figures: Mapping[str, float]) -> None:
        self.run.summary.update({f"final/{key}": value for key, value in figures.items()})
        self.run.summary["status"] = status
        self.run.finish(exit_code=int(status == "failed"))


KINDS: Mapping[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": Wandb,
}
HELP = {
    "tensorboard": "look whether its version fits that of torch",
    "mlflow": "set MLFLOW_TRACKING_URI to a server that answers, or to sqlite:///mlflow.db",
    "wandb": "log in with `wandb login`, or set WANDB_MODE=offline",
}
