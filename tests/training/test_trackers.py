"""Experiment trackers receive the metrics of a run and never change it."""

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_stages import outcome, resumed, start, stop_after
from vitft.training import StepStage

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
    few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


class Killed(BaseException):
    """Not caught anywhere."""


@installed("tensorboard")
def test_points_of_a_killed_process_after_the_last_state_are_hidden(
    few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = StepStage.on_epoch

    def dies(stage: StepStage, epoch: int, started: float) -> None:
        original(stage, epoch, started)
        if epoch == 1:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StepStage, "on_epoch", dies)
        with pytest.raises(Killed):
            start(few, tiny_weights, tmp_path / "run", told_by("tensorboard"))
    resumed(tmp_path / "run")  # from the beginning: no state had been saved

    shown = scalars(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in shown["val_loss"]] == [STEPS, 2 * STEPS, 3 * STEPS]


@installed("mlflow")
@installed("sqlalchemy")
def test_mlflow_has_one_run_after_a_stop_and_a_resume(
    few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@installed("wandb")
def test_wandb_works_offline_and_keeps_its_id(
    few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
