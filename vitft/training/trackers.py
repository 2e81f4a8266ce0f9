"""Logging of runs to experiment trackers: TensorBoard, MLflow, Weights & Biases.

metrics.jsonl is always written. Trackers never affect training: they only receive metrics, and a
failing tracker is dropped with one warning. Metrics are sent in batches, before each state is saved
and after each epoch. Progress is recorded in trackers.json, so a resumed run continues the same
tracker run and sends nothing twice. Each library is imported only when its client is created.
"""

import contextlib
import logging
import math
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vitft.system.errors import UsageError
from vitft.system.files import read_regular
from vitft.system.rundir import RunDir
from vitft.system.structure import parse_json
from vitft.system.text import redacted, shell_quote

log = logging.getLogger(__name__)

_MetricPoints = Sequence[tuple[int, Mapping[str, float]]]
"""Metrics in chronological order, as pairs (moment, values). The moment is a number that orders the
metrics: `2 * n` for step `n` of the run, and `2 * n + 1` for an epoch that ends with step `n`.
"""

_PROJECT = "vitft"  # experiment or project, unless an environment variable names another
_PROGRESS_FILE = "trackers.json"
_STEP_INTERVAL = 10  # steps between logged losses and learning rates


class _Tracker(Protocol):
    """Client of a tracker, which connects when it is made; `id` is set before a resumed `start`."""

    id: str = ""  # of the run in the tracker; empty before it is started
    last_moment: int = -1  # of the last metrics sent; -1 if none were sent

    def start(self, folder: Path, settings: Mapping[str, Any]) -> str:
        """Start or continue a run in `folder`; return where to find or how to view it."""

    def log(self, points: _MetricPoints) -> None:
        """Send metrics."""

    def finish(self, status: str, results: Mapping[str, float]) -> None:
        """Send the final status and results."""


class _TensorBoard(_Tracker):
    """TensorBoard client that writes event files to the run directory."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.create_writer: Callable[..., Any] = SummaryWriter

    def start(self, folder: Path, settings: Mapping[str, Any]) -> str:
        events = str(folder / "tensorboard")
        # `purge_step` hides values written after `last_moment` by a killed process.
        purge_step = self.last_moment // 2 + 1 if self.id else None
        self.writer = self.create_writer(events, purge_step=purge_step)
        if self.last_moment < 0:
            rows = "\n".join(f"    {key} = {value!r}" for key, value in settings.items())
            self.writer.add_text("settings", rows, 0)
        self.id = "tensorboard"
        return f"tensorboard --logdir {shell_quote(events)}"

    def log(self, points: _MetricPoints) -> None:
        for moment, values in points:
            for key, value in values.items():
                self.writer.add_scalar(key, value, moment // 2)
        self.writer.flush()

    def finish(self, status: str, results: Mapping[str, float]) -> None:  # noqa: ARG002
        self.log([(0, {f"final/{key}": value for key, value in results.items()})])
        self.writer.close()


class _MLflow(_Tracker):
    """MLflow client that logs to a server or a database file."""

    def __init__(self) -> None:
        import mlflow

        self.address = redacted(mlflow.get_tracking_uri())
        self.client: Any = mlflow.MlflowClient()
        self.name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        self.experiment: Any = self.client.get_experiment_by_name(self.name)

    def start(self, folder: Path, settings: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        if self.id:
            self.client.update_run(self.id, status="RUNNING")
            for key, after in (("loss", 0), ("epoch", 1)):
                known = self.client.get_metric_history(self.id, key)
                moments = (2 * point.step + after for point in known)
                self.last_moment = max(self.last_moment, *moments, -1)
        else:
            found, create = self.experiment, self.client.create_experiment
            experiment = found.experiment_id if found else create(self.name)
            self.id = str(self.client.create_run(experiment, run_name=folder.name).info.run_id)
            # There are fewer settings than the maximum per request, which is 100
            params = [Param(key, str(value)[:500]) for key, value in settings.items()]
            self.client.log_batch(self.id, params=params)
        return f"run {self.id} at {self.address}"

    def log(self, points: _MetricPoints) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [(moment, key, value) for moment, new in points for key, value in new.items()]
        metrics = [Metric(key, value, now, moment // 2) for moment, key, value in values]
        for first in range(0, len(metrics), 1000):  # maximum per request
            self.client.log_batch(self.id, metrics=metrics[first : first + 1000])

    def finish(self, status: str, results: Mapping[str, float]) -> None:
        self.log([(0, {f"final.{key}": value for key, value in results.items()})])
        states = {"finished": "FINISHED", "failed": "FAILED"}
        self.client.set_terminated(self.id, states.get(status, "KILLED"))


class _Wandb(_Tracker):
    """Weights & Biases client; with WANDB_MODE=offline, data stays in the run directory."""

    def __init__(self) -> None:
        import wandb

        self.library: Any = wandb
        # `wandb sync` can upload any data that is not uploaded within 30 s at the end.
        self.settings = wandb.Settings(
            console="off", silent=True, init_timeout=30, finish_timeout=30
        )
        self.is_online = wandb.setup().settings.mode == "online"  # may be set in a file
        if self.is_online and not wandb.login(prompt=False):  # a prompt would block
            raise RuntimeError("not logged in")

    def start(self, folder: Path, settings: Mapping[str, Any]) -> str:
        self.id = self.id or uuid.uuid4().hex[:12]
        self.run: Any = self.library.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.name,
            id=self.id,
            resume="allow",
            dir=folder,
            config=dict(settings),
            settings=self.settings,
        )
        if self.run.resumed:
            self.last_moment = max(self.last_moment, 2 * int(self.run.step) - 1)
        offline = f"offline run in {folder / 'wandb'} (upload it with `wandb sync`)"
        return str(self.run.url) if self.is_online else offline

    def log(self, points: _MetricPoints) -> None:
        for moment, values in points:
            self.run.log(dict(values), step=moment // 2)

    def finish(self, status: str, results: Mapping[str, float]) -> None:
        self.run.summary.update({f"final/{key}": value for key, value in results.items()})
        self.run.summary["status"] = status
        self.run.finish(exit_code=int(status == "failed"))


CLIENTS: Mapping[str, tuple[Callable[[], _Tracker], str]] = {
    "tensorboard": (_TensorBoard, "install a version of tensorboard that is compatible with torch"),
    "mlflow": (_MLflow, "set MLFLOW_TRACKING_URI to a running server or to sqlite:///mlflow.db"),
    "wandb": (_Wandb, "log in with `wandb login`, set WANDB_MODE=offline"),
}
"""The client of each tracker, and what helps if it does not connect."""


class Trackers:
    """The trackers to which a run logs; there may be none.

    A UsageError is raised if a new run cannot connect; a resumed run continues without the tracker.
    """

    @classmethod
    @contextlib.contextmanager
    def connected(cls, names: Sequence[str], *, resume: bool) -> Iterator["Trackers"]:
        """Connect to the trackers, and tell those that are still active at the end of a failure."""
        # MLflow's time limits are minutes, in which an outage would stall training
        limits = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
        added = limits.keys() - os.environ.keys() if "mlflow" in names else set[str]()
        os.environ.update({name: limits[name] for name in added})
        try:
            trackers = cls(names, resume=resume)
            try:
                yield trackers
            finally:
                trackers.finish("failed", {})
        finally:
            for name in added:
                os.environ.pop(name, None)

    def __init__(self, names: Sequence[str] = (), *, resume: bool = False) -> None:
        self.active: dict[str, _Tracker] = {}
        self.pending: list[tuple[int, dict[str, float]]] = []
        self.progress: dict[str, Any] = {}  # content of trackers.json
        self.run: RunDir | None = None
        for name in names:
            create, help_text = CLIENTS[name]
            try:
                with self.dropping(name) if resume else warnings.catch_warnings(action="ignore"):
                    self.active[name] = create()
            except Exception as error:
                raise UsageError(
                    f"--tracker {name} failed to start: {_describe_error(error)}",
                    fix=f"{help_text}, or remove --tracker {name}",
                ) from error

    def start(self, run: RunDir, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Start or continue a run in each tracker, and log where to find it."""
        self.run = run
        if resume:
            with contextlib.suppress(OSError, ValueError):  # missing or damaged
                found = parse_json(read_regular(run.path / _PROGRESS_FILE, limit=2**24))
                self.progress = found if isinstance(found, dict) else {}
        for name, tracker in list(self.active.items()):
            with self.dropping(name):
                if known := self.progress.get(name):
                    tracker.id, tracker.last_moment = str(known["id"]), int(known["moment"])
                log.info(f"{name}: {tracker.start(run.path.resolve(), settings)}")
        self.write_progress()

    def log_step(self, step: int, values: Mapping[str, Any]) -> None:
        """Queue the values of a step for sending if `step` is a multiple of `_STEP_INTERVAL`."""
        if self.active and step % _STEP_INTERVAL == 0:
            self.pending.append((2 * step, _finite_numbers(values)))

    def log_epoch(self, step: int, values: Mapping[str, Any]) -> None:
        """Send the values of an epoch that ended after `step` steps of the run."""
        if self.active:
            self.pending.append((2 * step + 1, _finite_numbers(values)))
            self.flush()

    def flush(self) -> None:
        """Send pending values to the trackers that have not received them."""
        points, self.pending = self.pending, []
        for name, tracker in list(self.active.items()):
            new = [(moment, values) for moment, values in points if moment > tracker.last_moment]
            if new:
                with self.dropping(name):
                    tracker.log(new)
                    tracker.last_moment = new[-1][0]
        if points:
            self.write_progress()

    def finish(self, status: str, results: Mapping[str, Any]) -> None:
        """Send pending values, the status and, if it is `finished`, the final results, once."""
        self.flush()
        final = _finite_numbers(results) if status == "finished" else {}
        for name, tracker in list(self.active.items()):
            if tracker.id:
                with self.dropping(name):
                    tracker.finish(status, final)
        self.active = {}

    @contextlib.contextmanager
    def dropping(self, name: str) -> Iterator[None]:
        """Drop a tracker with a warning if the block fails."""
        try:
            with warnings.catch_warnings(action="ignore"):  # of libraries
                yield
        except Exception as error:  # libraries may raise any error; training continues
            self.active.pop(name, None)
            log.warning(
                f"{name} logging disabled: {_describe_error(error)}. Training continues, and "
                "metrics are still written to metrics.jsonl"
            )

    def write_progress(self) -> None:
        """Write each tracker's run ID and the moment of its last metrics to trackers.json."""
        if self.run is not None and self.active:
            for name, tracker in self.active.items():
                self.progress[name] = {"id": tracker.id, "moment": tracker.last_moment}
            self.run.write_json(_PROGRESS_FILE, self.progress)


def _finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return only the values that are finite numbers."""
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
    return {key: float(value) for key, value in numbers.items() if math.isfinite(value)}


def _describe_error(error: Exception) -> str:
    """Return the type and first line of an error, without passwords in URLs."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return redacted(" ".join(text.split()))[:300]
