"""Experiment trackers receive the metrics of a run and never change it."""

import importlib.util
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.training.test_stages import few, outcome, resumed, start, stop_after  # noqa: F401 - a fixture
from vitft.system import UsageError
from vitft.training import (
    CLIENTS,
    Connection,
    MetricPoints,
    TensorBoard,
    TrackedRun,
    describe_error,
    finite_numbers,
)

pytestmark = pytest.mark.long

SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"layers": "all"},
    "optim": {"epochs": 3, "batch_size": 2, "lr": 1e-2},
}
STEPS = 9  # an epoch: 18 images, two at a time


def installed(name: str) -> pytest.MarkDecorator:
    reason = f"{name} is not installed"
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=reason)


def told_by(name: str) -> dict[str, dict[str, Any]]:
    return {**SETTINGS, "train": {**SETTINGS["train"], "tracker": name}}


def without_trackers(run: Path) -> dict[str, Any]:
    found = outcome(run)
    own = {"trackers.json", "tensorboard", "wandb"}
    found["files"] = [name for name in found["files"] if name not in own]
    return found


class Notebook:
    """A tracker that records what it receives, and may fail."""

    pages: ClassVar[list[tuple[int, Mapping[str, float]]]]
    ended: ClassVar[list[tuple[str, Mapping[str, float]]]]
    fails_at = 10**9
    unreachable = False

    def __init__(self) -> None:
        if self.unreachable:
            raise OSError("no way to https://me:secret@example.org/x")

    def start(self, run: TrackedRun) -> Connection:
        assert run.settings["train.tracker"] == "mlflow"
        return Connection(id=run.id or "one", location="here")

    def log(self, points: MetricPoints) -> None:
        if points[-1][0] >= 2 * self.fails_at:
            raise ConnectionError("gone\nwith a long story")
        self.pages.extend(points)

    def finish(self, status: str, results: Mapping[str, float]) -> None:
        self.ended.append((status, results))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> type[Notebook]:
    """The recording tracker in place of MLflow."""

    class Fresh(Notebook):
        pages: ClassVar[list[tuple[int, Mapping[str, float]]]] = []
        ended: ClassVar[list[tuple[str, Mapping[str, float]]]] = []

    monkeypatch.setattr("vitft.training.trackers.CLIENTS", {**CLIENTS, "mlflow": Fresh})
    monkeypatch.setattr("vitft.training.trackers.check_trackers", lambda _: None)
    return Fresh


def test_steps_epochs_and_the_final_metrics_are_logged(
    few: Path,  # noqa: F811 - the fixture
    tiny_weights: Path,
    tmp_path: Path,
    notebook: type[Notebook],
) -> None:
    done = start(few, tiny_weights, tmp_path / "run", told_by("mlflow"))

    epochs = [(moment // 2, page) for moment, page in notebook.pages if moment % 2]
    steps = [moment // 2 for moment, _ in notebook.pages if moment % 2 == 0]
    log = [json.loads(line) for line in (done.run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [10, 20]
    assert [step for step, _ in epochs] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert [page["val_loss"] for _, page in epochs] == [line["val_loss"] for line in log]
    ((status, final),) = notebook.ended
    assert (status, final["top1"]) == ("finished", done.figures["top1"])


@pytest.mark.parametrize("count", [1, 9, 14, 27])
def test_a_resumed_run_logs_every_point_exactly_once(
    few: Path,  # noqa: F811 - the fixture
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    notebook: type[Notebook],
    count: int,
) -> None:
    start(few, tiny_weights, tmp_path / "whole", told_by("mlflow"))
    whole = list(notebook.pages)
    notebook.pages.clear()

    with monkeypatch.context() as patch:
        stop_after(patch, count)
        stopped = start(few, tiny_weights, tmp_path / "stopped", told_by("mlflow"))
    resumed(stopped.run)

    assert notebook.pages == whole
    assert [status for status, _ in notebook.ended] == ["finished", "terminated", "finished"]
    assert json.loads((stopped.run / "trackers.json").read_text())["mlflow"]["id"] == "one"


def test_a_failing_tracker_is_dropped_with_one_warning_and_the_run_is_unchanged(
    few: Path,  # noqa: F811 - the fixture
    tiny_weights: Path,
    tmp_path: Path,
    notebook: type[Notebook],
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = start(few, tiny_weights, tmp_path / "alone", SETTINGS)
    notebook.fails_at = 2 * STEPS
    done = start(few, tiny_weights, tmp_path / "told", told_by("mlflow"))

    said = capsys.readouterr().err
    assert said.count("mlflow logging disabled: ConnectionError: gone;") == 1
    assert notebook.ended == []
    assert without_trackers(done.run) == without_trackers(alone.run)


def test_an_unreachable_server_stops_a_new_run_before_it_starts(
    few: Path,  # noqa: F811 - the fixture
    tiny_weights: Path,
    tmp_path: Path,
    notebook: type[Notebook],
) -> None:
    notebook.unreachable = True

    with pytest.raises(UsageError, match="mlflow failed to start: OSError: no way") as error:
        start(few, tiny_weights, tmp_path / "run", told_by("mlflow"))

    assert "secret" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_an_unreachable_server_does_not_prevent_resuming(
    few: Path,  # noqa: F811 - the fixture
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    notebook: type[Notebook],
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        stopped = start(few, tiny_weights, tmp_path / "run", told_by("mlflow"))
    notebook.unreachable = True

    assert resumed(stopped.run).status == "finished"


def test_only_finite_numbers_are_logged() -> None:
    figures = {"a": 1, "b": 0.5, "c": "x", "d": None, "e": float("nan"), "f": [1], "g": True}

    assert finite_numbers(figures) == {"a": 1.0, "b": 0.5, "g": 1.0}


def test_passwords_in_addresses_are_not_shown() -> None:
    assert "secret" not in describe_error(ValueError("no https://me:secret@host/x\nat all"))


# the libraries themselves ------------------------------------------------------------------------


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars that TensorBoard shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        shown = EventAccumulator(str(folder))
        shown.Reload()
    return {
        tag: [(event.step, event.value) for event in shown.Scalars(tag)]
        for tag in shown.Tags()["scalars"]
    }


@installed("tensorboard")
def test_tensorboard_shows_a_resumed_run_like_one_that_never_stopped(
    few: Path,  # noqa: F811 - the fixture
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = start(few, tiny_weights, tmp_path / "alone", SETTINGS)
    whole = start(few, tiny_weights, tmp_path / "whole", told_by("tensorboard"))
    with monkeypatch.context() as patch:
        stop_after(patch, 14)
        stopped = start(few, tiny_weights, tmp_path / "stopped", told_by("tensorboard"))
    resumed(stopped.run)

    shown = scalars(whole.run / "tensorboard")
    assert [step for step, _ in shown["val_loss"]] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert [step for step, _ in shown["loss"]] == [10, 20]
    ((_, told),) = shown["final/top1"]
    assert told == pytest.approx(whole.figures["top1"])
    del shown["final/seconds"]
    again = scalars(stopped.run / "tensorboard")
    del again["final/seconds"]
    assert again == shown
    assert without_trackers(whole.run) == without_trackers(alone.run)
    assert without_trackers(stopped.run) == without_trackers(alone.run)


@installed("tensorboard")
def test_points_of_a_killed_process_after_the_last_state_are_hidden(tmp_path: Path) -> None:
    def life(run: TrackedRun, moments: list[int]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            board = TensorBoard()
            board.start(run)
            board.log([(moment, {"loss": float(moment)}) for moment in moments])
            board.writer.close()

    life(TrackedRun(folder=tmp_path, settings={}), [20, 40, 60])  # 20 alone was noted
    life(TrackedRun(folder=tmp_path, settings={}, id="tensorboard", last_moment=20), [40, 60, 80])

    assert [step for step, _ in scalars(tmp_path / "tensorboard")["loss"]] == [10, 20, 30, 40]


@installed("mlflow")
@installed("sqlalchemy")
def test_mlflow_has_one_run_after_a_stop_and_a_resume(
    few: Path,  # noqa: F811 - the fixture
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'ml.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with monkeypatch.context() as patch:
        stop_after(patch, 14)
        stopped = start(few, tiny_weights, tmp_path / "run", told_by("mlflow"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient()
        key = json.loads((stopped.run / "trackers.json").read_text())["mlflow"]["id"]
        assert client.get_run(key).info.status == "KILLED"
        done = resumed(stopped.run)
        run = client.get_run(key)
        epochs = client.get_metric_history(key, "val_loss")
        losses = client.get_metric_history(key, "loss")

    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert [point.step for point in epochs] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert [point.step for point in losses] == [10, 20]
    assert run.data.params["optim.epochs"] == "3"
    assert run.data.metrics["final.top1"] == done.figures["top1"]


@pytest.fixture
def fresh_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make wandb read the environment again."""
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import wandb

        wandb.teardown()


@installed("wandb")
def test_wandb_works_offline_and_keeps_its_id(
    few: Path,  # noqa: F811 - the fixture
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_wandb: None,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with monkeypatch.context() as patch:
        stop_after(patch, 14)
        stopped = start(few, tiny_weights, tmp_path / "run", told_by("wandb"))
    done = resumed(stopped.run)

    key = json.loads((done.run / "trackers.json").read_text())["wandb"]["id"]
    written = list((done.run / "wandb").glob(f"offline-run-*-{key}/run-{key}.wandb"))
    assert done.status == "finished"
    assert len(written) == 2  # what `wandb sync` puts together by the id
