"""What Weights & Biases is told of a run, by a module of its name that records the calls."""

import json
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.training.test_stages import outcome
from vitft.cli.main import main


class Recorded(ModuleType):
    """The parts of wandb that are used; the service has `step` steps of a run that is resumed."""

    mode, step, is_known, is_reachable, is_lasting = "online", 0, True, True, True

    def __init__(self, **facts: Any) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        vars(self).update(facts)
        self.started: list[dict[str, Any]] = []
        self.points: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}
        self.ended: list[int] = []

    def setup(self) -> SimpleNamespace:
        return SimpleNamespace(settings=SimpleNamespace(mode=self.mode))

    def login(self, *, prompt: bool) -> bool:
        assert not prompt
        if not self.is_reachable:
            raise OSError("no way to https://me:secret@example.org/x")
        return self.is_known

    def Settings(self, **_: Any) -> None:
        return None

    def init(self, **facts: Any) -> SimpleNamespace:
        self.started.append(facts)
        return SimpleNamespace(
            url="https://wandb.test/run",
            step=self.step,
            resumed=self.step > 0,
            summary=self.summary,
            log=self.log,
            finish=lambda *, exit_code: self.ended.append(exit_code),
        )

    def log(self, values: dict[str, float], *, step: int) -> None:
        if not self.is_lasting and step > 9:
            raise ConnectionError("gone\nwith a long story")
        self.points.append((step, values))


Train = Callable[..., tuple[int, Recorded]]


@pytest.fixture
def train(few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Return a function that trains, and returns the exit code and what was recorded."""

    def run(*more: str, out: str = "x", **facts: Any) -> tuple[int, Recorded]:
        wandb = Recorded(**facts)
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        words = ["--train", "all", "--epochs", "3", "--batch-size", "2", "--tracker", "wandb"]
        words += ["--data", f"{few}", "--weights", f"{tiny_weights}", "--out", f"{tmp_path / out}"]
        return main(["finetune", *words, "--device", "cpu", *more]), wandb

    return run


def test_a_run_logs_its_settings_steps_epochs_and_results(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, wandb = train()

    (begun,) = wandb.started
    log = [json.loads(line) for line in (tmp_path / "x" / "metrics.jsonl").read_text().splitlines()]
    assert (code, wandb.ended) == (0, [0])
    assert (begun["name"], begun["config"]["optim.epochs"]) == ("x", 3)
    assert [step for step, values in wandb.points if "loss" in values] == [10, 20]
    assert [(step, values["val_loss"]) for step, values in wandb.points if "epoch" in values] == [
        (9 * line["epoch"], line["val_loss"]) for line in log
    ]
    results = json.loads((tmp_path / "x" / "eval.json").read_text())
    assert (wandb.summary["status"], wandb.summary["final/top1"]) == ("finished", results["top1"])
    assert "https://wandb.test/run" in capsys.readouterr().err


def test_a_run_that_fails_is_marked_as_failed_and_has_no_results(train: Train) -> None:
    code, wandb = train("--lr", "1e30", mode="offline")

    assert code != 0
    assert wandb.ended == [1]
    assert wandb.summary == {"status": "failed"}


def test_without_a_login_no_run_is_started(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, wandb = train(is_known=False)

    assert (code, wandb.started) == (2, [])
    assert "wandb login" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_failing_tracker_is_dropped_with_one_warning_and_the_run_is_unchanged(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, wandb = train(out="one/x", is_lasting=False)
    shown = capsys.readouterr().err
    train(out="two/x")

    assert (code, wandb.ended) == (0, [])
    assert shown.count("wandb logging disabled: ConnectionError: gone.") == 1
    failed, whole = (outcome(tmp_path / name / "x") for name in ("one", "two"))
    assert failed == whole


def test_an_unreachable_service_stops_a_new_run_but_none_that_is_resumed(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    code, _ = train(is_reachable=False)
    error = capsys.readouterr().err
    begun, _ = train("--max-time", "0.001s", out="later/x")
    monkeypatch.setitem(sys.modules, "wandb", Recorded(is_reachable=False))

    assert (code, begun) == (2, 0)
    assert "wandb failed to start: OSError: no way" in error
    assert "secret" not in error
    assert not (tmp_path / "x").exists()
    assert main(["finetune", "--resume", str(tmp_path / "later" / "x")]) == 0


def test_a_resumed_run_keeps_its_id_and_goes_on_after_the_last_step_of_the_service(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before = train("--max-time", "0.001s")
    wandb = Recorded(step=15)  # steps 0 to 14, with an epoch
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    assert main(["finetune", "--resume", str(tmp_path / "x")]) == 0

    assert wandb.started[0]["id"] == before.started[0]["id"]
    assert [step for step, _ in wandb.points] == [18, 20, 27]
