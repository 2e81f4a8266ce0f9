"""Clients of experiment trackers: TensorBoard, MLflow, Weights & Biases.

Each library is imported only when its client is created.
"""

import contextlib
import os
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vitft.system.imports import require_extra

MetricPoints = Sequence[tuple[int, Mapping[str, float]]]
"""Moments and their values, in order. Moment `2 * n` is after `n` steps of the whole run; what is
measured then, at the end of an epoch, belongs to moment `2 * n + 1`."""

MLFLOW_TIMEOUT_S = 5
"""Timeout of one request to an MLflow server, which is tried twice."""
WANDB_TIMEOUT_S = 30
"""Time for W&B to upload at the end; the rest is left for `wandb sync`."""
PROJECT = "vitft"
"""Name of the experiment or project, unless the environment names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a client is to track."""

    folder: Path
    """Run directory; it exists."""
    settings: Mapping[str, Any]
    """By dotted keys."""
    id: str = ""
    """The tracker's id of a resumed run; empty for a new one."""
    last_moment: int = -1
    """The last moment that was sent; -1: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A run as a tracker knows it."""

    id: str
    location: str
    """URL or command where it can be viewed."""
    last_moment: int = -1
    """The last moment that the tracker has; -1 if unknown."""


class TrackerClient(Protocol):
    """One tracker. Every method may raise anything; the constructor connects to the service."""

    def start(self, run: TrackedRun) -> Connection: ...

    def log(self, points: MetricPoints) -> None: ...

    def finish(self, status: str, results: Mapping[str, float]) -> None: ...


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose library is missing, without importing it.

    Raises:
        UsageError: With the command that installs it.
    """
    for name in names:
        require_extra(name, feature=f"--tracker {name}")


class TensorBoard:
    """Event files in the run directory."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.create_writer: Callable[..., Any] = SummaryWriter

    def start(self, run: TrackedRun) -> Connection:
        folder = run.folder / "tensorboard"
        # `purge_step` hides what a killed process wrote after `last_moment`.
        purge_step = run.last_moment // 2 + 1 if run.id else None
        self.writer = self.create_writer(str(folder), purge_step=purge_step)
        if run.last_moment < 0:
            rows = "\n".join(f"    {key} = {value!r}" for key, value in run.settings.items())
            self.writer.add_text("settings", rows, 0)
        location = f"tensorboard --logdir {shlex.quote(str(folder))}"
        return Connection(id="tensorboard", location=location)

    def log(self, points: MetricPoints) -> None:
        for moment, values in points:
            for key, value in values.items():
                self.writer.add_scalar(key, value, moment // 2)
        self.writer.flush()

    def finish(self, _: str, results: Mapping[str, float]) -> None:
        for key, value in results.items():
            self.writer.add_scalar(f"final/{key}", value, 0)
        self.writer.close()


class MLflow:
    """A run on an MLflow server or in a database file."""

    STATUS: Mapping[str, str] = {"finished": "FINISHED", "failed": "FAILED"}

    def __init__(self) -> None:
        import mlflow

        self.address = without_password(mlflow.get_tracking_uri())
        self.client: Any = mlflow.MlflowClient()
        self.name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        self.experiment: Any = self.client.get_experiment_by_name(self.name)

    def start(self, run: TrackedRun) -> Connection:
        last_moment, self.id = -1, run.id
        if self.id:
            self.client.update_run(self.id, status="RUNNING")
            last_moment = max(self.last_moment("loss"), self.last_moment("epoch") + 1)
        else:
            self.id = self.create_run(run)
        location = f"run {self.id} at {self.address}"
        return Connection(id=self.id, location=location, last_moment=last_moment)

    def last_moment(self, key: str) -> int:
        """Return the last moment for which the server has a value; negative without values."""
        points = self.client.get_metric_history(self.id, key)
        return 2 * max((point.step for point in points), default=-1)

    def create_run(self, run: TrackedRun) -> str:
        """Create a run and return its id."""
        from mlflow.entities import Param

        found = self.experiment
        experiment = found.experiment_id if found else self.client.create_experiment(self.name)
        created = self.client.create_run(experiment, run_name=run.folder.name)
        params = [Param(key, str(value)[:500]) for key, value in run.settings.items()]
        for start in range(0, len(params), 100):  # the limit of one request
            self.client.log_batch(created.info.run_id, params=params[start : start + 100])
        return str(created.info.run_id)

    def log(self, points: MetricPoints) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(key, value, now, moment // 2)
            for moment, values in points
            for key, value in values.items()
        ]
        for start in range(0, len(metrics), 1000):  # the limit of one request
            self.client.log_batch(self.id, metrics=metrics[start : start + 1000])

    def finish(self, status: str, results: Mapping[str, float]) -> None:
        self.log([(0, {f"final.{key}": value for key, value in results.items()})])
        self.client.set_terminated(self.id, self.STATUS.get(status, "KILLED"))


class Wandb:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it in the run directory."""

    def __init__(self) -> None:
        import wandb

        self.library: Any = wandb
        self.settings = wandb.Settings(
            console="off", silent=True, init_timeout=WANDB_TIMEOUT_S, finish_timeout=WANDB_TIMEOUT_S
        )
        self.is_online = wandb.setup().settings.mode == "online"  # from environment and files
        if self.is_online and not wandb.login(prompt=False):  # a prompt would block the run
            raise RuntimeError("not logged in")

    def start(self, run: TrackedRun) -> Connection:
        name = run.id or uuid.uuid4().hex[:12]
        self.run: Any = self.library.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.folder.name,
            id=name,
            resume="allow",
            dir=run.folder,
            config=dict(run.settings),
            settings=self.settings,
        )
        location = self.run.url if self.is_online else f"`wandb sync` of {run.folder / 'wandb'}"
        last_moment = 2 * int(self.run.step) - 1 if self.run.resumed else -1
        return Connection(id=name, location=str(location), last_moment=last_moment)

    def log(self, points: MetricPoints) -> None:
        for moment, values in points:
            self.run.log(dict(values), step=moment // 2)

    def finish(self, status: str, results: Mapping[str, float]) -> None:
        self.run.summary.update({f"final/{key}": value for key, value in results.items()})
        self.run.summary["status"] = status
        self.run.finish(exit_code=int(status == "failed"))


CLIENTS: Mapping[str, Callable[[], TrackerClient]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": Wandb,
}
CONNECTION_HELP = {
    "tensorboard": "install a version that fits the one of torch",
    "mlflow": "set MLFLOW_TRACKING_URI to a running server, or to sqlite:///mlflow.db",
    "wandb": "log in with `wandb login`, or set WANDB_MODE=offline",
}


def without_password(uri: str) -> str:
    """Return an address without user name and password."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else uri


@contextlib.contextmanager
def short_timeouts() -> Iterator[None]:
    """Let MLflow give up after seconds instead of minutes, in which training would stand still.

    MLflow reads its timeouts from the environment, which is restored on exit.
    """
    limits = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(MLFLOW_TIMEOUT_S),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    }
    added = limits.keys() - os.environ.keys()
    os.environ.update({name: limits[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
