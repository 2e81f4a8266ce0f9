"""A run that is stopped anywhere and resumed is bit-identical to one that was not."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from vitft.cli.main import main
from vitft.config import config_from_table, read_toml
from vitft.models import load_checkpoint
from vitft.system import LockedError, RunDir, RunError, locked
from vitft.training import (
    Result,
    StepResult,
    StepStage,
    run_finetuning,
)

EVERYTHING: dict[str, dict[str, Any]] = {
    "train": {"layers": "all", "drop_path": 0.2, "mixup": 0.2, "cutmix": 1.0, "erasing": 0.25},
    "optim": {"epochs": 3, "batch_size": 8, "ema": 0.9, "lr": 1e-2},
}


def kind(layers: str, **optim: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of two epochs of three steps each, or with `optim`."""
    return {"train": {"layers": layers}, "optim": {"epochs": 2, "batch_size": 8, **optim}}


KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "everything": EVERYTHING,
    "a head on crops": {
        "train": {"augment": "crop"},
        "optim": {"solver": "sgd", "epochs": 3, "batch_size": 8},
    },
    "the last block": kind("blocks:1", epochs=3, label_smoothing=0.1),
    "a solved head, then everything": kind("head,all", class_weights=True),
    "half of the change in the weights": kind("head,blocks:1", ema=0.9, interpolation=0.5),
    "lora": kind("lora"),
    "a solved head that remains the best": kind("head,all", solver="sgd", lr=3.0),
}


def start(
    data: Path, weights: Path, out: Path, settings: dict[str, dict[str, Any]], **options: Any
) -> Result:
    table = {"data": {"path": str(data)}, "weights": {"name": str(weights)}, **settings}
    return run_finetuning(config_from_table(table), out=out, **options)


def resumed(out: Path) -> Result:
    return run_finetuning(config_from_table(read_toml(out / "config.toml")), out=out, resume=True)


def outcome(run: Path) -> dict[str, Any]:
    """Return everything that must not depend on whether a run was stopped."""
    figures = json.loads((run / "eval.json").read_text())
    del figures["seconds"]
    state, card = load_checkpoint(run / "model.safetensors")
    return {
        "figures": figures,
        "log": (run / "metrics.jsonl").read_text(),
        "weights": {name: tensor.tolist() for name, tensor in state.items()},
        "card": card,
        "files": sorted(path.name for path in run.iterdir()),
    }


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int, number: int = signal.SIGTERM) -> None:
    """Send this process a signal in the middle of a step, once."""
    whole = StepStage.on_step
    seen = 0

    def on_step(stage: StepStage, step: StepResult) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            os.kill(os.getpid(), number)
        whole(stage, step)

    monkeypatch.setattr(StepStage, "on_step", on_step)


def test_a_deterministic_run_uses_only_deterministic_algorithms(
    few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, whole = list[bool](), StepStage.on_step

    def on_step(stage: StepStage, step: StepResult) -> None:
        seen.append(torch.are_deterministic_algorithms_enabled())
        whole(stage, step)

    monkeypatch.setattr(StepStage, "on_step", on_step)
    settings = kind("blocks:1", epochs=1)
    settings["train"]["deterministic"] = True
    start(few, tiny_weights, tmp_path / "run", settings)

    assert seen
    assert all(seen)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[pytest.mark.long] if number else [])
        for number, (name, settings) in enumerate(KINDS.items())
    ],
)
def test_a_run_stopped_by_a_signal_and_resumed_is_bit_identical(
    few: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, dict[str, Any]],
) -> None:
    whole = start(few, tiny_weights, tmp_path / "whole", settings)

    for steps in (1, 2, 3, 4):
        with monkeypatch.context() as patch:
            stop_after(patch, steps)
            stopped = start(few, tiny_weights, tmp_path / f"stopped-{steps}", settings)
        assert (stopped.status, stopped.exit_code) == ("terminated", 143)
        assert list((stopped.run / "resume").glob("state-*"))
        with monkeypatch.context() as patch:
            stop_after(patch, 1)
            assert resumed(stopped.run).status == "terminated"
        again = resumed(stopped.run)

        assert again.status == "finished"
        assert outcome(again.run) == outcome(whole.run), steps
        assert not (again.run / "resume").exists()


def test_a_crash_and_a_time_limit_lose_only_the_steps_after_the_last_state(
    few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start(few, tiny_weights, tmp_path / "whole", EVERYTHING)
    late = start(few, tiny_weights, tmp_path / "late", EVERYTHING, max_seconds=1e-9)
    assert (late.status, late.exit_code) == ("out of time", 0)
    assert outcome(resumed(late.run).run) == outcome(whole.run)
    monkeypatch.setattr("vitft.training.stages.SAVE_INTERVAL_S", 0.0)
    monkeypatch.setattr("vitft.training.stages.SAVE_FRACTION", 1e9)  # a state after every step

    class Killed(BaseException):
        """Not caught anywhere."""

    original = StepStage.on_step

    def dies(stage: StepStage, step: StepResult) -> None:
        original(stage, step)
        if step.step == 4:
            stage.fitted.run.log({"torn": True})  # written, but never part of a state
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StepStage, "on_step", dies)
        with pytest.raises(Killed):
            start(few, tiny_weights, tmp_path / "killed", EVERYTHING)
    again = resumed(tmp_path / "killed")

    assert outcome(again.run) == outcome(whole.run)


def test_a_run_in_use_and_changed_images_are_refused_on_resuming(
    few: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = start(few, tiny_weights, tmp_path / "run", {})
    with locked(RunDir(done.run)), pytest.raises(LockedError, match="is in use by process"):
        resumed(done.run)
    assert not (done.run / ".lock").exists()
    (few / "red" / "000.png").write_bytes((few / "blue" / "001.png").read_bytes())

    with pytest.raises(RunError, match=r"1 image has changed since.*red/000\.png"):
        resumed(done.run)


@pytest.fixture
def stopped(few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        return start(few, tiny_weights, tmp_path / "stopped", EVERYTHING).run


def test_a_moved_run_is_resumed_at_its_new_place(
    stopped: Path, few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved, data = shutil.move(stopped, tmp_path / "elsewhere"), few.rename(tmp_path / "moved")
    resume = ["finetune", "--resume", str(moved), "--data", str(data)]

    assert main([*resume, "--epochs", "9"]) == 5  # which leaves the run as it was
    assert main(resume) == 0
    assert "resuming after 3 steps" in capsys.readouterr().err
    assert str(data) in (moved / "config.toml").read_text()
    assert (moved / "report.html").is_file()
    assert not stopped.exists()
    assert main(["finetune", "--resume", str(moved)]) == 0  # it has finished, and knows its data
