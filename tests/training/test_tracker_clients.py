"""Clients of experiment trackers, with libraries that record what they are given."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vitft.system.errors import UsageError
from vitft.system.rundir import RunDir
from vitft.training import trackers as module
from vitft.training.trackers import (
    ActiveTracker,
    Connection,
    MLflow,
    TensorBoard,
    TrackedRun,
    Trackers,
    Wandb,
    connect_trackers,
    describe_error,
    read_progress,
    short_timeouts,
)

SETTINGS = {f"s.{i}": i for i in range(250)} | {"long": "x" * 600}


class Recorder:
    """Any object: calls of its methods are recorded, and return the values that were set."""

    def __init__(self, **returns: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.returns = returns

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, *given, *([named] if named else [])))
            return self.returns.get(name)

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


def tensorboard() -> tuple[TensorBoard, Recorder, list[Any]]:
    board, writer, made = object.__new__(TensorBoard), Recorder(), list[Any]()

    def create(*given: Any, **named: Any) -> Recorder:
        made.append((*given, named))
        return writer

    board.create_writer = create
    return board, writer, made


def test_a_new_tensorboard_shows_the_settings_steps_and_results(tmp_path: Path) -> None:
    board, writer, made = tensorboard()

    found = board.start(TrackedRun(folder=tmp_path / "a b", settings={"x": 1, "y": "z"}))
    board.log([(20, {"loss": 0.5}), (21, {"val_loss": 0.4, "epoch": 1.0})])
    board.finish("finished", {"top1": 0.9})

    folder = str(tmp_path / "a b" / "tensorboard")
    assert made == [(folder, {"purge_step": None})]
    assert (found.id, found.last_moment) == ("tensorboard", -1)
    assert found.location == f"tensorboard --logdir '{folder}'"
    assert writer.named("add_text") == [("settings", "    x = 1\n    y = 'z'", 0)]
    assert writer.named("add_scalar") == [
        ("loss", 0.5, 10),
        ("val_loss", 0.4, 10),
        ("epoch", 1.0, 10),
        ("final/top1", 0.9, 0),
    ]
    assert [call[0] for call in writer.calls][-1] == "close"
    assert writer.named("flush") == [()]


@pytest.mark.parametrize(("moment", "purged"), [(-1, 0), (0, 1), (20, 11), (21, 11)])
def test_a_resumed_tensorboard_hides_what_came_after_the_last_moment(
    tmp_path: Path, moment: int, purged: int
) -> None:
    board, writer, made = tensorboard()

    board.start(TrackedRun(folder=tmp_path, settings={}, id="tensorboard", last_moment=moment))

    assert made[0][1] == {"purge_step": purged}
    assert len(writer.named("add_text")) == (moment < 0)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A client of MLflow whose experiment exists."""
    client = Recorder(
        get_experiment_by_name=SimpleNamespace(experiment_id="known"),
        create_experiment="created",
        create_run=SimpleNamespace(info=SimpleNamespace(run_id="new")),
    )
    library, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    library.get_tracking_uri = lambda: "https://me:secret@host/x"  # type: ignore[attr-defined]
    library.MlflowClient = lambda: client  # type: ignore[attr-defined]
    entities.Param = lambda *given: given  # type: ignore[attr-defined]
    entities.Metric = lambda *given: given  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", library)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 1234.5678))
    return client


@pytest.mark.parametrize("exists", [True, False])
def test_a_new_run_of_mlflow_has_the_settings_in_batches(
    mlflow: Recorder, tmp_path: Path, exists: bool
) -> None:
    if not exists:
        mlflow.returns["get_experiment_by_name"] = None

    found = MLflow().start(TrackedRun(folder=tmp_path / "mine", settings=SETTINGS))

    assert (found.id, found.last_moment) == ("new", -1)
    assert found.location.startswith("run new at https://")
    assert "secret" not in found.location
    assert mlflow.named("get_experiment_by_name") == [("vitft",)]
    assert mlflow.named("create_experiment") == [("vitft",)] * (not exists)
    experiment = "known" if exists else "created"
    assert mlflow.named("create_run") == [(experiment, {"run_name": "mine"})]
    batches = [given[1]["params"] for given in mlflow.named("log_batch")]
    assert [len(batch) for batch in batches] == [100, 100, 51]
    assert batches[0][1] == ("s.1", "1")
    assert batches[2][-1] == ("long", "x" * 500)
    assert mlflow.named("update_run") == []


@pytest.mark.parametrize(
    ("losses", "epochs", "moment"),
    [([], [], -1), ([10, 20], [9], 40), ([10], [9, 18], 37), ([10], [10], 21), ([], [9], 19)],
)
def test_a_resumed_run_of_mlflow_continues_after_what_the_server_has(
    mlflow: Recorder, tmp_path: Path, losses: list[int], epochs: list[int], moment: int
) -> None:
    known = {"loss": losses, "epoch": epochs}

    def history(run: str, key: str) -> list[Any]:
        assert run == "old"
        return [SimpleNamespace(step=step) for step in known[key]]

    setattr(mlflow, "get_metric_history", history)  # noqa: B010 - mypy knows no such attribute

    found = MLflow().start(TrackedRun(folder=tmp_path, settings=SETTINGS, id="old"))

    assert (found.id, found.last_moment) == ("old", moment)
    assert mlflow.named("update_run") == [("old", {"status": "RUNNING"})]
    assert mlflow.named("create_run") == []


@pytest.mark.parametrize(
    ("status", "state"),
    [("finished", "FINISHED"), ("failed", "FAILED"), ("terminated", "KILLED")],
)
def test_mlflow_gets_metrics_in_batches_and_the_end_of_the_run(
    mlflow: Recorder, tmp_path: Path, status: str, state: str
) -> None:
    client = MLflow()
    client.start(TrackedRun(folder=tmp_path, settings={}))

    client.log([(2 * i, {"loss": float(i), "lr": 0.1}) for i in range(600)])
    client.finish(status, {"top1": 0.9})

    batches = [given[1]["metrics"] for given in mlflow.named("log_batch")]
    assert [len(batch) for batch in batches] == [1000, 200, 1]
    assert batches[1][-2] == ("loss", 599.0, 1234567, 599)
    assert batches[2] == [("final.top1", 0.9, 1234567, 0)]
    assert mlflow.named("set_terminated") == [("new", state)]


def wandb_library(
    monkeypatch: pytest.MonkeyPatch, *, mode: str, login: bool = True, **run: Any
) -> tuple[Any, Any]:
    """Install a library wandb, and return it with the run that it starts."""
    started: Any = Recorder()
    started.summary = {}
    for name, value in ({"url": "https://wandb/x", "step": 0, "resumed": False} | run).items():
        setattr(started, name, value)
    library: Any = ModuleType("wandb")
    library.settings = []
    library.Settings = lambda **named: library.settings.append(named)
    library.setup = lambda: SimpleNamespace(settings=SimpleNamespace(mode=mode))
    library.logins = []
    library.login = lambda **named: library.logins.append(named) or login
    library.inits = []
    library.init = lambda **named: library.inits.append(named) or started
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return library, started


def test_wandb_gets_the_metrics_of_each_step_and_the_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library, started = wandb_library(monkeypatch, mode="online")
    client = Wandb()

    found = client.start(TrackedRun(folder=tmp_path, settings={"x": 1}))
    client.log([(20, {"loss": 0.5}), (23, {"val_loss": 0.4})])
    client.finish("finished", {"top1": 0.9})

    assert (found.location, found.last_moment, len(found.id)) == ("https://wandb/x", -1, 12)
    assert library.logins == [{"prompt": False}]
    assert library.settings == [
        {"console": "off", "silent": True, "init_timeout": 30, "finish_timeout": 30}
    ]
    (given,) = library.inits
    assert (given["project"], given["id"], given["config"]) == ("vitft", found.id, {"x": 1})
    assert (given["name"], given["resume"], given["dir"]) == (tmp_path.name, "allow", tmp_path)
    assert started.named("log") == [
        ({"loss": 0.5}, {"step": 10}),
        ({"val_loss": 0.4}, {"step": 11}),
    ]
    assert started.summary == {"final/top1": 0.9, "status": "finished"}
    assert started.named("finish") == [({"exit_code": 0},)]
    client.finish("failed", {})
    assert started.named("finish")[1] == ({"exit_code": 1},)


def test_wandb_offline_needs_no_login_and_continues_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library, _ = wandb_library(monkeypatch, mode="offline", login=False, step=7, resumed=True)

    found = Wandb().start(TrackedRun(folder=tmp_path, settings={}, id="old"))

    assert (found.id, found.last_moment) == ("old", 13)
    assert "wandb sync" in found.location
    assert library.logins == []
    wandb_library(monkeypatch, mode="online", login=False)
    with pytest.raises(RuntimeError, match="not logged in"):
        Wandb()


class Client(Recorder):
    """Client that fails when it logs a given moment."""

    def __init__(self, last_moment: int = -1, fails_at: int = 10**9) -> None:
        super().__init__()
        self.last_moment, self.fails_at = last_moment, fails_at
        self.pages: list[tuple[int, Mapping[str, float]]] = []

    def start(self, run: TrackedRun) -> Connection:
        self.run = run
        return Connection(id=run.id or "one", location="here", last_moment=self.last_moment)

    def log(self, points: Any) -> None:
        if points[-1][0] >= self.fails_at:
            raise ConnectionError
        self.pages += points


def tracked(**clients: Any) -> Trackers:
    return Trackers(active={name: ActiveTracker(client) for name, client in clients.items()})


def test_every_tenth_step_and_every_epoch_is_logged(tmp_path: Path) -> None:
    client = Client()
    trackers = tracked(one=client)
    trackers.start(RunDir(tmp_path), {"x": 1}, resume=False)

    for step in range(1, 25):
        trackers.log_step(step, {"loss": step, "none": None})
    assert client.pages == []  # sent in batches
    trackers.log_epoch(25, {"val_loss": 0.5, "nan": float("nan")})

    assert client.pages == [(20, {"loss": 10.0}), (40, {"loss": 20.0}), (51, {"val_loss": 0.5})]
    assert read_progress(RunDir(tmp_path)) == {"one": {"id": "one", "moment": 51}}
    assert client.run.folder == tmp_path.resolve()
    assert (client.run.id, client.run.last_moment) == ("", -1)


def test_each_tracker_gets_only_what_it_has_not_received(tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text(
        json.dumps({"one": {"id": "a", "moment": 20}, "two": {"id": "b"}, "gone": {"id": "c"}})
    )
    one, two, three = Client(), Client(last_moment=40), Client(last_moment=10)
    trackers = tracked(one=one, two=two, three=three)

    trackers.start(RunDir(tmp_path), {}, resume=True)
    for step in (10, 20, 30):
        trackers.log_step(step, {"loss": step})
    trackers.flush()

    assert [(c.run.id, c.run.last_moment) for c in (one, two, three)] == [
        ("a", 20),
        ("b", -1),
        ("", -1),
    ]
    assert [[moment for moment, _ in c.pages] for c in (one, two, three)] == [
        [40, 60],
        [60],
        [20, 40, 60],
    ]
    written = read_progress(RunDir(tmp_path))
    assert written["gone"] == {"id": "c"}
    assert {name: facts.get("moment") for name, facts in written.items()} == {
        "one": 60, "two": 60, "three": 60, "gone": None
    }  # fmt: skip


def test_a_new_run_does_not_continue_what_an_earlier_one_has_tracked(tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text(json.dumps({"one": {"id": "a", "moment": 20}}))
    client = Client()

    tracked(one=client).start(RunDir(tmp_path), {}, resume=False)

    assert (client.run.id, client.run.last_moment) == ("", -1)


def test_a_tracker_that_fails_is_dropped_and_the_others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = Client(), Client(fails_at=40)
    trackers = tracked(bad=bad, good=good)
    trackers.start(RunDir(tmp_path), {}, resume=False)

    for step in (10, 20, 30):
        trackers.log_step(step, {"loss": step})
        trackers.flush()
    trackers.finish("finished", {"top1": 0.5, "text": "x"})
    trackers.finish("failed", {})

    assert [moment for moment, _ in bad.pages] == [20]
    assert [moment for moment, _ in good.pages] == [20, 40, 60]
    assert good.named("finish") == [("finished", {"top1": 0.5})]
    assert bad.named("finish") == []
    warned = [message for message in caplog.messages if "disabled" in message]
    assert warned == [
        "bad logging disabled: ConnectionError; training continues, and metrics are still "
        "written to metrics.jsonl"
    ]


def test_an_attempt_reports_whether_it_succeeded() -> None:
    trackers = tracked(one=Client(), other=Client())

    assert trackers.attempt("one", lambda: None)
    assert not trackers.attempt("other", lambda: 1 / 0)
    assert [*trackers.active] == ["one"]


def test_results_are_sent_only_by_a_run_that_has_finished(tmp_path: Path) -> None:
    client = Client()
    trackers = tracked(one=client)
    trackers.start(RunDir(tmp_path), {}, resume=False)
    trackers.log_step(10, {"loss": 1})

    trackers.finish("terminated", {"top1": 0.5})

    assert client.named("finish") == [("terminated", {})]
    assert len(client.pages) == 1


def test_a_tracker_that_was_never_started_is_not_finished() -> None:
    client = Client()

    tracked(one=client).finish("failed", {})

    assert client.calls == []


def test_connections_fail_at_the_start_of_a_new_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> Any:
        raise OSError("no route\nat all")

    monkeypatch.setattr(module, "check_trackers", lambda _: None)
    monkeypatch.setattr(module, "CLIENTS", {"mlflow": unreachable, "wandb": Client})

    with pytest.raises(UsageError, match=r"--tracker mlflow failed to start: OSError: no route\n"):
        connect_trackers(["mlflow", "wandb"], resume=False)
    assert [*connect_trackers(["mlflow", "wandb"], resume=True).active] == ["wandb"]


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff", None])
def test_a_damaged_record_of_progress_counts_as_none(tmp_path: Path, content: Any) -> None:
    if content is not None:
        (tmp_path / "trackers.json").write_bytes(content)

    assert read_progress(RunDir(tmp_path)) == {}


def test_damaged_entries_of_the_record_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text('{"one": {"id": "a"}, "two": 3}')

    assert read_progress(RunDir(tmp_path)) == {"one": {"id": "a"}}


def test_the_timeouts_of_mlflow_are_short_unless_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeout, retries = "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    monkeypatch.delenv(timeout, raising=False)
    monkeypatch.setenv(retries, "7")

    with short_timeouts():
        assert (os.environ[timeout], os.environ[retries]) == ("5", "7")

    assert timeout not in os.environ
    assert os.environ[retries] == "7"
    monkeypatch.delenv(retries)
    with short_timeouts():
        assert os.environ[retries] == "1"


def test_errors_are_described_by_their_type_and_a_line_of_limited_length() -> None:
    assert describe_error(ValueError()) == "ValueError"
    assert describe_error(ValueError(" a  b \n c")) == "ValueError: a b"
    assert len(describe_error(ValueError("x" * 400))) == 300
