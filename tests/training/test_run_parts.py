"""Parts of a run: its result, its stages, what it continues, and the files that it ends with."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.training_data import data_set, noted, pooled_inputs, row
from vitft.config.run import config_from_table
from vitft.models.vit import VisionTransformer
from vitft.system.errors import RunError
from vitft.system.rundir import RunDir, read_environment
from vitft.training import run as module
from vitft.training.best import BestWeights
from vitft.training.distributed import ProcessGroup
from vitft.training.run import (
    Result,
    load_saved,
    restart_text,
    run_finetuning,
    set_up,
    stages_of,
    with_budget,
    write_data_reports,
    write_environment,
)
from vitft.training.setup import Start
from vitft.training.state import State, save_state, write_budget


def test_a_result_shows_its_run_status_and_accuracy(tmp_path: Path) -> None:
    done = Result(run=tmp_path, figures={"top1": 0.5})  # type: ignore[typeddict-item]
    stopped = Result(run=tmp_path, figures={}, status="interrupted", exit_code=130)  # type: ignore[typeddict-item]

    assert repr(done) == f"Result(run='{tmp_path}', status='finished', top1=0.5)"
    assert repr(stopped) == f"Result(run='{tmp_path}', status='interrupted', top1=None)"
    assert (done.interrupted, stopped.interrupted) == (False, True)
    assert (done.exit_code, done.everything_s) == (0, None)


def test_a_run_without_a_state_repeats_what_was_not_saved(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert restart_text(run) == "training starts again from the beginning"

    found: Any = {
        "seconds": 60.0, "used": 1.0, "trials": [], "skipped": [], "chosen": None, "epochs": 0
    }  # fmt: skip
    write_budget(run, found)

    assert restart_text(run) == "training starts again, but finished trials are not repeated"
    results: Any = {"top1": 0.5}
    assert with_budget(results, None) is results
    assert with_budget(results, found) == {"top1": 0.5, "budget": found}


def test_a_stage_that_is_added_meanwhile_follows() -> None:
    context: Any = SimpleNamespace(config=config_from_table({}))
    found = []

    for number, stage in stages_of(context):
        found.append((number, stage))
        if number == 0:
            context.config = config_from_table({"train": {"freeze": "head,none"}})

    assert found == [(0, "head"), (1, "none")]


@pytest.mark.parametrize("resume", [True, False])
def test_only_a_new_run_tries_other_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    monkeypatch.setattr(module, "load_data_and_model", lambda *_, resume: ("setup", resume))
    monkeypatch.setattr(module, "extract_and_split", lambda setup, _: ["start", *setup])
    monkeypatch.setattr(
        module, "try_other_starts", lambda start, started: ([*start, started], {"size": 1})
    )

    found: Any = set_up(config_from_table({}), ProcessGroup(), tmp_path, resume=resume, started=3.0)

    start = ["start", "setup", resume]
    assert found == ((start, {}) if resume else ([*start, 3.0], {"size": 1}))


def context_of(run: Path, model: Any, **more: Any) -> Any:
    rows = [row("t", 0), row("v", 1, "val")]
    return SimpleNamespace(
        run=RunDir(run),
        config=config_from_table({"train": {"freeze": "head,none"}, "optim": {"epochs": 4}}),
        best=BestWeights(model),
        inputs=pooled_inputs(data_set(rows), {}),
        precision="fp32",
        **more,
    )


def saved_state(run: Path, *, stage: int, step: int, epochs: int) -> None:
    tally = {"first_loss": 1.0, "steps": 1, "images": 8, "correct": 4, "total": 9.0, "lr": 0.1}
    best = {"epochs": 2, "since": 1, "highest": 0.0, "figures": None, "extra": None}
    facts = {
        "step": step, "micro_batch": 4, "scaler": {}, "stage": stage, "epochs": epochs,
        "tally": tally, "best": best, "best_file": "", "log_bytes": 0,
    }  # fmt: skip
    weights = {"head.bias": torch.full((3,), 7.0)}
    save_state(run / "resume", stage, step, State({"x": torch.zeros(1)}, facts), weights)


@pytest.mark.parametrize(
    ("step", "epochs", "words"),
    [
        (9, 1, "resuming after 9 steps, in epoch 2 of 4"),
        (1, 0, "resuming after 1 step, in epoch 1 of 4"),
        (16, 4, "resuming after 16 steps, in epoch 4 of 4"),
    ],
)
def test_a_run_is_resumed_with_its_best_weights(
    tmp_path: Path, tiny_vit: VisionTransformer, caplog: Any, step: int, epochs: int, words: str
) -> None:
    saved_state(tmp_path, stage=1, step=step, epochs=epochs)
    (tmp_path / ".eval.json.0123456789ab").write_text("unfinished")
    context = context_of(tmp_path, tiny_vit)

    with caplog.at_level("INFO", "vitft"):
        found = load_saved(context)

    assert found is not None
    assert found.facts["step"] == step
    assert caplog.messages == [words]
    assert context.best.weights["head.bias"].tolist() == [7, 7, 7]
    assert (context.best.epochs, context.best.epochs_since_best) == (2, 1)
    assert context.best.file == f"best-1-{step:08}.safetensors"
    assert not (tmp_path / ".eval.json.0123456789ab").exists()


def test_a_state_of_a_stage_that_the_run_does_not_have_is_damage(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    saved_state(tmp_path, stage=2, step=1, epochs=0)

    with pytest.raises(RunError, match="its newest state has an unknown stage"):
        load_saved(context_of(tmp_path, tiny_vit))


def test_a_run_without_a_state_begins_with_an_empty_log(
    tmp_path: Path, tiny_vit: VisionTransformer
) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')

    assert load_saved(context_of(tmp_path, tiny_vit)) is None

    assert (tmp_path / "metrics.jsonl").read_text() == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_the_main_process_cleans_up_before_the_others_read(
    tmp_path: Path, tiny_vit: VisionTransformer, monkeypatch: Any, rank: int
) -> None:
    order: list[str] = []
    group: Any = ProcessGroup(rank, 2)
    group.barrier = lambda: order.append("barrier")
    monkeypatch.setattr(module, "remove_temporary_files", lambda _: order.append("cleaned"))
    monkeypatch.setattr(module, "newest_state", lambda _: order.append("read"))
    context = context_of(tmp_path, tiny_vit)
    context.inputs = pooled_inputs(data_set([], group=group), {})

    load_saved(context)

    assert order == (["barrier", "read"] if rank else ["cleaned", "read", "barrier"])


@pytest.mark.parametrize(
    ("status", "earlier", "resumed", "has_note", "has_end"),
    [
        ("running", "another CPU", True, True, False),
        ("running", "another CPU", False, False, False),
        ("running", "", True, False, False),
        ("finished", "another CPU", True, False, True),
    ],
)
def test_other_arithmetic_of_earlier_steps_is_noted_at_the_start(
    tmp_path: Path,
    tiny_vit: VisionTransformer,
    monkeypatch: Any,
    caplog: Any,
    status: str,
    earlier: str,
    resumed: bool,
    has_note: bool,
    has_end: bool,
) -> None:
    context = context_of(tmp_path, tiny_vit)
    write_environment(context, "running")
    seen: list[Any] = []
    others = [earlier] if earlier else []
    monkeypatch.setattr(
        module, "other_arithmetic", lambda before, _: noted(seen, before, before and others)
    )
    monkeypatch.setattr(module, "peak_memory", lambda _: {"of memory": 1234})
    caplog.clear()

    with caplog.at_level("DEBUG", "vitft"):
        write_environment(context, status, resumed=resumed)

    found: Any = read_environment(tmp_path / "environment.json")
    assert (seen[0] is not None) is resumed
    assert found["status"] == status
    assert found.get("earlier", []) == (others if resumed else [])
    assert ("ended" in found) is has_end
    assert (found.get("peak_memory_mib") == {"of memory": 1234}) is has_end
    assert ("earlier steps were computed on another CPU" in caplog.text) is has_note
    assert ("peak memory: 1,234 MiB of memory" in caplog.text) is has_end


@pytest.mark.parametrize(
    ("setting", "processes", "difference"),
    [
        ({"mixup": 0.2}, 2, "the random numbers of mixup, CutMix or drop path"),
        ({"cutmix": 1.0}, 2, "the random numbers of mixup, CutMix or drop path"),
        ({"drop_path": 0.1}, 2, "the random numbers of mixup, CutMix or drop path"),
        ({"erasing": 0.25}, 2, "rounding"),  # drawn for each image
        ({"mixup": 0.2}, 1, "rounding"),
    ],
)
def test_another_number_of_processes_changes_what_each_process_draws(
    tmp_path: Path,
    tiny_vit: VisionTransformer,
    caplog: Any,
    setting: dict[str, float],
    processes: int,
    difference: str,
) -> None:
    context = context_of(tmp_path, tiny_vit)
    context.config = config_from_table({"train": {"freeze": "none", **setting}})
    write_environment(context, "running", resumed=False)
    path = tmp_path / "environment.json"
    before = {**json.loads(path.read_text()), "processes": processes, "device": "an older CPU"}
    path.write_text(json.dumps(before))

    with caplog.at_level("INFO", "vitft"):
        write_environment(context, "running")

    assert f"so the results will differ in {difference} from those" in caplog.text


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_other_arithmetic_of_earlier_steps_is_still_stated_at_the_end(
    tmp_path: Path, tiny_vit: VisionTransformer, status: str
) -> None:
    context = context_of(tmp_path, tiny_vit)
    write_environment(context, "running", resumed=False)
    path = tmp_path / "environment.json"
    first = json.loads(path.read_text())
    path.write_text(json.dumps({**first, "device": "an older CPU"}))

    write_environment(context, "running", resumed=True)
    write_environment(context, status)

    found = json.loads(path.read_text())
    assert (found["status"], found["device"]) == (status, first["device"])
    (earlier,) = found["earlier"]
    assert earlier.startswith("an older CPU in ")


@pytest.mark.parametrize(
    ("complete", "pooled", "epochs", "freeze", "files"),
    [
        (True, False, 1, "head,none", ["audit", "reference"]),
        (False, True, 1, "head", ["audit", "reference"]),
        (False, False, 1, "none", ["audit"]),
        (True, True, 0, "head", []),
    ],
)
def test_a_stopped_run_writes_what_takes_little_time(
    tmp_path: Path,
    tiny_vit: VisionTransformer,
    monkeypatch: Any,
    complete: bool,
    pooled: bool,
    epochs: int,
    freeze: str,
    files: list[str],
) -> None:
    written: list[str] = []
    options: dict[str, Any] = {}

    def audit(*_: Any, **named: Any) -> dict[str, Any]:
        options.update(named)
        written.append("audit")
        return {}

    def reference(*_: Any, frozen: bool, seed: int) -> str:
        written.append("reference")
        known.append((frozen, seed))
        return "rates"

    known: list[Any] = []
    monkeypatch.setattr(module, "audit_run", audit)
    monkeypatch.setattr(module, "write_reference", reference)
    monkeypatch.setattr(module, "log_audit", lambda *_, **__: None)
    context = context_of(tmp_path, tiny_vit, scored=None)
    train = {"freeze": freeze, "augment": "none", "seed": 5}
    context.config = config_from_table({"train": train})
    context.best.epochs = epochs
    if not pooled:
        context.inputs.cut.prefix.pooled = False
    inspection = SimpleNamespace(inspected=None)
    start: Any = SimpleNamespace(inputs=context.inputs, inspection=inspection)

    write_data_reports(context, start, complete=complete)

    assert written == files
    assert known == [(freeze == "head", 5)] * ("reference" in files)
    assert (tmp_path / "audit.json").exists() is bool(files)
    if files:
        found = json.loads((tmp_path / "audit.json").read_text())
        assert found == ({"out_of_distribution": "rates"} if "reference" in files else {})
        assert (options["seed"], options["find_copies"]) == (5, True)


@pytest.mark.parametrize("stage", ["head", "pre_logits"])
def test_a_run_of_a_head_says_how_long_all_layers_would_take(
    image_folder: Path,
    tiny_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    monkeypatch.setattr(Start, "full_training_s", 12.5)
    table: dict[str, Any] = {
        "data": {"path": str(image_folder)},
        "weights": {"name": str(tiny_weights), "pre_logits": "keep"},
        "train": {"freeze": stage},
        "optim": {} if stage == "head" else {"epochs": 1},
    }

    done = run_finetuning(config_from_table(table), out=tmp_path / "run")

    assert done.everything_s == (12.5 if stage == "head" else None)
    assert done._repr_html_() is not None
    (done.run / "eval.json").write_text("{")  # damaged since
    assert done._repr_html_() is None


@pytest.mark.parametrize(
    ("saved", "calls"),
    [
        pytest.param(
            None,
            [
                *("head", "restore", "next blocks:1", "copy", "steps 1 None"),
                *("restore", "next none", "copy", "steps 2 None"),
            ],
            id="a new run",
        ),
        pytest.param(
            1,
            ["next blocks:1", "steps 1 saved", "restore", "next none", "copy", "steps 2 None"],
            id="stopped in the second stage",
        ),
        pytest.param(
            2, ["next blocks:1", "next none", "steps 2 saved"], id="stopped in the last stage"
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_stages_follow_each_other_from_the_saved_one_on(
    monkeypatch: pytest.MonkeyPatch, saved: int | None, calls: list[str], size: int
) -> None:
    seen: list[str] = []
    deferred: list[bool] = []

    class Stage:
        def __init__(self, _: Any, number: int) -> None:
            self.number = number

        def run(self, state: Any) -> None:
            seen.append(f"steps {self.number} {state and 'saved'}")

    monkeypatch.setattr(module, "StepStage", Stage)
    monkeypatch.setattr(module, "solve_head_stage", lambda _: noted(seen, "head", "solved"))
    monkeypatch.setattr(module, "choose_layers", None)  # there is no budget
    monkeypatch.setattr(
        module, "next_inputs", lambda *given, **_: noted(seen, f"next {given[3]}", given[1])
    )
    train = {"freeze": "head,blocks:1,none", "augment": "none"}
    context: Any = SimpleNamespace(
        config=config_from_table({"train": train}),
        best=SimpleNamespace(
            model=None,
            restore=lambda: seen.append("restore"),
            copy_weights=lambda: noted(seen, "copy", {"w": 1}),
            file="old",
        ),
        inputs=pooled_inputs(data_set([], group=ProcessGroup(0, size)), {}),
        precision="bf16",
        stopper=SimpleNamespace(
            deferred_to_next=lambda *, when: noted(deferred, when, contextlib.nullcontext())
        ),
    )
    state: Any = None if saved is None else SimpleNamespace(facts={"stage": saved})

    module.train_stages(context, state)

    assert seen == calls
    assert deferred == [size > 1] * (saved is None)
    assert context.best.file == ("" if "copy" in calls else "old")


def test_a_run_with_a_budget_chooses_its_layers_after_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(module, "solve_head_stage", lambda _: "solved")
    monkeypatch.setattr(module, "choose_layers", lambda *given: seen.append(given[1]))
    context: Any = SimpleNamespace(
        config=config_from_table({"train": {"budget": "5m"}}),
        best=None,
        inputs=pooled_inputs(data_set([]), {}),
        stopper=SimpleNamespace(deferred_to_next=lambda **_: contextlib.nullcontext()),
    )

    module.train_stages(context, None)

    assert seen == ["solved"]
