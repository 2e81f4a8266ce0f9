"""A run that is stopped anywhere and resumed is bit-identical to one that was not."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import draw_folder
from vitft.cli.main import main
from vitft.config import config_from_table, read_toml
from vitft.models import load_checkpoint
from vitft.report import epochs_section, read_run
from vitft.system import LockedError, RunDir, RunError, locked
from vitft.training import Result, StepResult, StepStage, run_finetuning

EVERYTHING: dict[str, dict[str, Any]] = {
    "train": {"layers": "all", "drop_path": 0.2, "mixup": 0.2, "cutmix": 1.0, "erasing": 0.25},
    "optim": {"epochs": 3, "batch_size": 8, "ema": 0.9, "lr": 1e-2},
}
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "everything": EVERYTHING,
    "a head on crops": {
        "train": {"augment": "crop"},
        "optim": {"solver": "sgd", "epochs": 3, "batch_size": 8},
    },
    "the last block": {
        "train": {"layers": "blocks:1"},
        "optim": {"epochs": 3, "batch_size": 8, "label_smoothing": 0.1},
    },
    "a solved head, then everything": {
        "train": {"layers": "head,all"},
        "optim": {"epochs": 2, "batch_size": 8, "class_weights": True},
    },
    "half of the change in the weights": {
        "train": {"layers": "head,blocks:1"},
        "optim": {"epochs": 2, "batch_size": 8, "ema": 0.9, "interpolation": 0.5},
    },
    "a solved head that remains the best": {
        "train": {"layers": "head,all"},
        "optim": {"solver": "sgd", "lr": 3.0, "epochs": 2, "batch_size": 8},
    },
}


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Three classes of seven images: uneven batches, 16 or 17 steps in three epochs."""
    return draw_folder(tmp_path / "few", per_class=7)


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
        again = resumed(stopped.run)

        assert again.status == "finished"
        assert outcome(again.run) == outcome(whole.run), steps
        assert not (again.run / "resume").exists()


@pytest.mark.long
def test_a_run_stopped_again_and_again_is_bit_identical(
    few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start(few, tiny_weights, tmp_path / "whole", EVERYTHING)

    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        result = start(few, tiny_weights, tmp_path / "stopped", EVERYTHING)
    rounds = 0
    while result.status != "finished":
        with monkeypatch.context() as patch:
            stop_after(patch, 2)
            result = resumed(result.run)
        rounds += 1

    assert rounds > 3
    assert outcome(result.run) == outcome(whole.run)


def test_a_crash_loses_only_the_steps_after_the_last_state(
    few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start(few, tiny_weights, tmp_path / "whole", EVERYTHING)
    monkeypatch.setattr("vitft.training.stages.SAVE_INTERVAL_S", 0.0)
    monkeypatch.setattr("vitft.training.stages.SAVE_FRACTION", 1e9)  # a state after every step

    class Killed(BaseException):
        """Not caught anywhere."""

    original = StepStage.on_step

    def dies(stage: StepStage, step: StepResult) -> None:
        original(stage, step)
        if step.step == 4:
            stage.context.run.log({"torn": True})  # written, but never part of a state
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StepStage, "on_step", dies)
        with pytest.raises(Killed):
            start(few, tiny_weights, tmp_path / "killed", EVERYTHING)
    again = resumed(tmp_path / "killed")

    assert outcome(again.run) == outcome(whole.run)


def test_the_time_limit_stops_with_exit_code_0_and_is_resumable(
    few: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    whole = start(few, tiny_weights, tmp_path / "whole", EVERYTHING)

    late = start(few, tiny_weights, tmp_path / "late", EVERYTHING, max_seconds=1e-9)

    assert (late.status, late.exit_code) == ("out of time", 0)
    assert outcome(resumed(late.run).run) == outcome(whole.run)


def test_a_worse_second_stage_keeps_the_solved_head(
    few: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    settings: dict[str, dict[str, Any]] = {
        "train": {"layers": "head,all"},
        "optim": {"solver": "sgd", "lr": 3.0, "epochs": 1, "batch_size": 8},
    }
    probe = start(few, tiny_weights, tmp_path / "probe", {"train": {"layers": "head"}})

    done = start(few, tiny_weights, tmp_path / "run", settings)

    assert done.figures["best_epoch"] == 1
    assert done.figures["top1"] == probe.figures["top1"]
    before, _ = load_checkpoint(probe.run / "model.safetensors")
    after, _ = load_checkpoint(done.run / "model.safetensors")
    blocks = [name for name in before if name.startswith("blocks.")]
    assert all(torch.equal(before[name], after[name]) for name in blocks)


def test_training_stops_early_without_improvement_and_states_it(
    few: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, dict[str, Any]] = {
        "optim": {"solver": "sgd", "lr": 1e-12, "epochs": 50, "patience": 2, "batch_size": 8}
    }

    done = start(few, tiny_weights, tmp_path / "run", settings)

    epochs = done.figures["epochs"]
    assert epochs - done.figures["best_epoch"] == 2
    assert epochs < 50
    lines = [s for s in capsys.readouterr().err.splitlines() if "stopped early" in s]
    assert len(lines) == 1
    assert (
        f"stopped early after {epochs} of 50 epochs: no improvement in the last 2 epochs"
        in (lines[0])
    )
    section = epochs_section(read_run(done.run))
    assert section is not None
    assert f"The run stopped early, after {epochs} of 50 epochs" in section.text


def test_two_processes_do_not_write_one_run(few: Path, tiny_weights: Path, tmp_path: Path) -> None:
    done = start(few, tiny_weights, tmp_path / "run", {})

    with locked(RunDir(done.run)), pytest.raises(LockedError, match="is in use by process"):
        resumed(done.run)
    assert not (done.run / ".lock").exists()


def test_changed_images_are_refused_on_resuming(
    few: Path, tiny_weights: Path, tmp_path: Path
) -> None:
    done = start(few, tiny_weights, tmp_path / "run", {})
    (few / "red" / "000.png").write_bytes((few / "blue" / "001.png").read_bytes())

    with pytest.raises(RunError, match=r"1 image has changed since.*red/000\.png"):
        resumed(done.run)


@pytest.fixture
def stopped(few: Path, tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        return start(few, tiny_weights, tmp_path / "stopped", EVERYTHING).run


def test_the_command_line_resumes_a_run(
    stopped: Path, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = few.rename(few.with_name("moved"))

    assert main(["finetune", "--resume", str(stopped), "--data", str(moved)]) == 0
    assert "resuming after 2 steps" in capsys.readouterr().err
    assert main(["finetune", "--resume", str(stopped), "--data", str(moved)]) == 0


def test_a_moved_run_is_resumed_at_its_new_place(
    stopped: Path, few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.move(stopped, tmp_path / "elsewhere")

    assert main(["finetune", "--resume", str(moved), "--data", str(few)]) == 0

    assert "resuming after 2 steps" in capsys.readouterr().err
    assert (moved / "report.html").is_file()
    assert not stopped.exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (
            ["--lr", "0.5"],
            5,
            "change the results: --lr was 0.01 and is now 0.5\n  fix: remove --lr, or start a new "
            "run without --resume\n",
        ),
        (
            ["--epochs", "9"],
            5,
            "--epochs was 3 and is now 9\n  fix: remove --epochs, or start a new run without "
            "--resume (only a run with optim.schedule=constant and optim.warmup=0 can be given "
            "more epochs)\n",
        ),
        (
            ["--seed", "1", "--batch-size", "4"],  # a seed is two settings
            5,
            "change the results: --batch-size was 8 and is now 4, --seed was 0 and is now 1\n"
            "  fix: remove --batch-size and --seed, or start a new run without --resume\n",
        ),
        (
            ["--set", "optim.lr=0.5", "--group-by", "(a)", "--group-duplicates"],
            5,
            "change the results: --group-by was not set and is now (a), --group-duplicates was "
            "false and is now true, --set optim.lr was 0.01 and is now 0.5\n",
        ),
        (["--set", "model.norm=middle"], 2, "invalid model.norm=middle\n  fix: use pre or post"),
        (
            ["--out", "x"],
            2,
            "--resume cannot be combined with --out\n  fix: remove --out: a resumed run keeps its",
        ),
        (["--recipe", "probe"], 2, "--resume cannot be combined with --recipe\n"),
        (["--max-time", "0"], 2, "invalid --max-time '0'"),
        (["--max-time", "3"], 2, "invalid --max-time '3'\n  fix: use 3m for minutes, or e.g. 90s"),
        (["--max-time", "soon"], 2, "invalid --max-time 'soon'"),
    ],
)
def test_settings_that_would_change_the_result_are_refused(
    stopped: Path, options: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p.name: p.read_bytes() for p in stopped.rglob("*") if p.is_file()}

    assert main(["finetune", "--resume", str(stopped), *options]) == code

    assert message in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in stopped.rglob("*") if p.is_file()} == before


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["finetune", "--resume", str(tmp_path)]) == 5
    assert "is not a run directory" in capsys.readouterr().err


def test_resuming_a_finished_run_is_reported(
    few: Path, tiny_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = start(few, tiny_weights, tmp_path / "run", {})

    assert main(["finetune", "--resume", str(done.run)]) == 0
    assert "already finished" in capsys.readouterr().err


def test_latest_resumes_the_run_that_has_not_finished(
    few: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    start(few, tiny_weights, Path("runs/finished"), {})
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        stopped = start(few, tiny_weights, Path("runs/stopped"), EVERYTHING).run
    images = (stopped / "split.csv").read_text().count(",train")
    capsys.readouterr()

    assert main(["finetune", "--resume", "runs/latest", "-v"]) == 0

    printed = capsys.readouterr().err
    assert f"resuming the most recent run that has not finished: {stopped}" in printed
    assert "resuming after 4 steps, in epoch 2 of 3" in printed
    assert f"training: {3 * images}/{3 * images}" in printed
    assert Path("runs/latest").readlink() == Path("stopped")


def test_a_run_that_was_killed_is_resumed_instead_of_used(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stopped / "model.safetensors").unlink(missing_ok=True)

    assert main(["predict", "a.jpg", "--run", str(stopped)]) == 5

    error = capsys.readouterr().err
    assert "the run has not finished" in error
    assert f"fix: finish it with `vitft finetune --resume {stopped}`" in error
