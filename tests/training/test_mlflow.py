"""What MLflow is told of a run, by a module of its name that records the calls."""

import os
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from vitft.cli.main import main

HTTP = "MLFLOW_HTTP_REQUEST_"


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str


@dataclass
class Server:
    """The calls of mlflow's client that are used, for one run."""

    id = "run-5"
    experiments: dict[str, str] = field(default_factory=dict)
    run: tuple[str, str] = ("", "")
    limits: dict[str, int] = field(default_factory=dict)
    statuses: list[str] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        found = self.experiments.get(name)
        return SimpleNamespace(experiment_id=found) if found else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, "7")

    def create_run(self, experiment: str, run_name: str) -> SimpleNamespace:
        self.run = (experiment, run_name)
        self.limits = {n: int(v) for n, v in os.environ.items() if n.startswith(HTTP)}
        return SimpleNamespace(info=SimpleNamespace(run_id=self.id))

    def log_batch(self, run: str, *, params: Any = (), metrics: Any = ()) -> None:
        assert run == self.id
        assert len(params) <= 100
        self.params += params
        self.metrics += metrics

    def get_metric_history(self, run: str, key: str) -> list[Metric]:
        assert run == self.id
        return [one for one in self.metrics if one.key == key]

    def update_run(self, run: str, status: str) -> None:
        assert run == self.id
        self.statuses.append(status)

    set_terminated = update_run

    def steps(self, key: str) -> list[int]:
        return [one.step for one in self.metrics if one.key == key]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    mlflow, entities, found = ModuleType("mlflow"), ModuleType("mlflow.entities"), Server()
    mlflow.__spec__ = ModuleSpec("mlflow", None)
    vars(mlflow).update(MlflowClient=lambda: found, get_tracking_uri=lambda: "https://me:pw@host")
    vars(entities).update(Metric=Metric, Param=Param)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return found


def train(data: Path, weights: Path, out: Path, *more: str) -> int:
    """Train for three epochs of nine steps, and return the exit code."""
    words = ["--train", "all", "--epochs", "3", "--batch-size", "2", "--tracker", "mlflow"]
    places = ["--data", str(data), "--weights", str(weights), "--out", str(out)]
    return main(["finetune", *words, *places, "--device", "cpu", *more])


@pytest.mark.parametrize("experiments", [{}, {"vitft": "3"}], ids=["new", "existing"])
def test_a_run_logs_its_settings_steps_epochs_and_results(
    server: Server, experiments: Any, few: Path, tiny_weights: Path, tmp_path: Path, capsys: Any
) -> None:
    server.experiments |= experiments

    assert train(few, tiny_weights, tmp_path / "x") == 0

    assert server.run == (experiments.get("vitft", "7"), "x")
    assert server.limits == {f"{HTTP}TIMEOUT": 5, f"{HTTP}MAX_RETRIES": 1}
    assert not server.limits.keys() & os.environ.keys()
    assert ("optim.epochs", "3") in server.params
    assert server.steps("loss") == [10, 20]
    assert server.steps("val_loss") == server.steps("epoch") == [9, 18, 27]
    assert server.steps("final.top1") == [0]
    assert server.statuses == ["FINISHED"]
    assert "mlflow: run run-5 at https://***@host" in capsys.readouterr().err


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(Metric("epoch", 1, 0, 9), id="the first epoch"),
        pytest.param(Metric("loss", 1, 0, 10), id="the step after it"),
    ],
)
def test_a_resumed_run_sends_only_what_the_server_does_not_have(
    server: Server, few: Path, tiny_weights: Path, tmp_path: Path, sent: Metric
) -> None:
    assert train(few, tiny_weights, tmp_path / "x", "--max-time", "0.001s") == 0
    assert not server.metrics
    server.metrics.append(sent)  # by a process that was killed before it saved its state

    assert main(["finetune", "--resume", str(tmp_path / "x")]) == 0

    assert (server.steps("loss"), server.steps("val_loss")) == ([10, 20], [18, 27])
    assert server.statuses == ["KILLED", "RUNNING", "FINISHED"]
