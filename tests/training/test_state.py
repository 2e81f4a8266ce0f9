"""Training states on disk."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vitft.config import OptimSpec
from vitft.system import RunError
from vitft.training import Batch, State, Trainer, newest_state, save_state

WEIGHTS = {"w": torch.arange(6.0)}


def state(step: int, **changes: Any) -> State:
    tally = {"first_loss": 1.0, "steps": 1, "images": 8, "correct": 4, "total": 9.0, "lr": 0.1}
    best = {"epochs": 0, "since": 0, "highest": 0.0, "figures": None, "extra": None}
    facts: Any = {
        "step": step, "micro_batch": 4, "scaler": {}, "stage": 0, "epochs": 0, "tally": tally,
        "best": best, "log_bytes": 0,
    }  # fmt: skip
    return State({"x": torch.full((3,), float(step))}, facts | changes, WEIGHTS)


def saved(folder: Path, *steps: int) -> None:
    for step in steps:
        save_state(folder, state(step))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_state_reads_back_with_its_best_weights(tmp_path: Path) -> None:
    saved(tmp_path / "resume", 9, 10, 100)

    found = newest_state(tmp_path / "resume")

    assert found is not None
    assert found.facts["step"] == 100
    assert [*found.tensors] == ["x"]
    assert torch.equal(found.tensors["x"], torch.full((3,), 100.0))
    assert [*found.best] == ["w"]
    assert torch.equal(found.best["w"], WEIGHTS["w"])
    assert names(tmp_path / "resume") == [f"state-0-{n:08}.safetensors" for n in (10, 100)]


def test_the_newest_state_is_that_of_the_last_step_whatever_the_clock_says(tmp_path: Path) -> None:
    saved(tmp_path, 9, 10)
    for step, name in enumerate(names(tmp_path)):
        os.utime(tmp_path / name, (10**9 - step, 10**9 - step))  # later names, earlier times

    found = newest_state(tmp_path)
    saved(tmp_path, 11)  # the clock has been put back: its files are to be kept

    assert found is not None
    assert found.facts["step"] == 10
    kept = newest_state(tmp_path)
    assert kept is not None
    assert kept.facts["step"] == 11


def test_a_damaged_state_is_renamed_and_the_one_before_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    for round_ in range(100):
        folder = tmp_path / str(round_)
        saved(folder, 1, 2)
        path = folder / "state-0-00000002.safetensors"
        mutant = bytearray(path.read_bytes())
        if rng.random() < 0.3:
            del mutant[rng.randrange(len(mutant)) :]
        else:
            mutant[rng.randrange(len(mutant))] ^= 1 << rng.randrange(8)
        path.write_bytes(mutant)

        found = newest_state(folder)

        assert found is not None
        assert found.facts["step"] == 1
        assert path.with_name(path.name + ".damaged").exists()
        assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": -1},
        {"micro_batch": "1"},
        {"scaler": None},
        {"tally": {"steps": -1}},
        {"best": {"epochs": 1}},
        {"log_bytes": 10**30},
        {"scaler": 5},
    ],
    ids=str,
)
def test_facts_of_a_wrong_type_are_damage_despite_a_valid_digest(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    saved(tmp_path, 1)

    save_state(tmp_path, state(2, **change))

    found = newest_state(tmp_path)
    assert found is not None
    assert found.facts["step"] == 1


def small_trainer(*, ema: float = 0.9, width: int = 3, micro_batch: int = 0) -> Trainer:
    spec = OptimSpec(
        solver="adamw", lr=0.1, batch_size=8, ema=ema, interpolation=0.5, micro_batch=micro_batch
    )
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))
    return Trainer(model, spec, steps_per_epoch=4)


def stepped(trainer: Trainer) -> tuple[dict[str, torch.Tensor], Any]:
    trainer.step(Batch(torch.randn(4, 3), torch.tensor([0, 1, 2, 0])))
    tensors, facts = trainer.state()
    return {name: tensor.clone() for name, tensor in tensors.items()}, facts


def test_a_state_holds_weights_buffers_averages_and_optimiser() -> None:
    trainer = small_trainer()
    trainer.limit.images = 5

    tensors, facts = stepped(trainer)

    assert {name.partition("/")[0] for name in tensors} == {
        *("weights", "buffers", "average", "before", "optimizer")
    }
    assert (facts["step"], facts["micro_batch"]) == (1, 5)
    again = small_trainer(micro_batch=2)
    again.load_state(tensors, facts)
    assert (again.steps, again.micro_batch) == (1, 5)
    found, _ = again.state()
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("weights/0.weight", None, id="a weight is missing"),
        pytest.param("buffers/1.running_mean", None, id="a buffer is missing"),
        pytest.param("average/0.bias", None, id="an average is missing"),
        pytest.param("before/0.bias", None, id="a weight before training is missing"),
        pytest.param("weights/0.weight", torch.zeros(3, 4), id="a weight of another shape"),
        pytest.param("average/0.bias", torch.zeros(2), id="an average of another shape"),
        pytest.param("buffers/1.running_var", torch.zeros(4), id="a buffer of another shape"),
        pytest.param("before/0.bias", torch.zeros(2), id="another shape before training"),
        pytest.param("optimizer/0/exp_avg", torch.zeros(2, 2), id="a slot of another shape"),
        pytest.param("optimizer/4/exp_avg", torch.zeros(3), id="a slot of no parameter"),
        pytest.param("optimizer/x/exp_avg", torch.zeros(3), id="a slot without a number"),
        pytest.param("weights/2.weight", torch.zeros(3), id="an unknown weight"),
        pytest.param("other/0.weight", torch.zeros(3), id="an unknown kind"),
    ],
)
def test_a_state_that_does_not_fit_the_model_is_refused(
    name: str, value: torch.Tensor | None
) -> None:
    tensors, facts = stepped(small_trainer())
    small_trainer().load_state(tensors, facts)
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value

    with pytest.raises(RunError, match=rf"does not fit this model: {name} is missing or unknown"):
        small_trainer().load_state(tensors, facts)
