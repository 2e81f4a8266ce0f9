"""The training loop on inputs and labels."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from vitft.config import OptimSpec
from vitft.system import DivergedError
from vitft.training import Batch, StepResult, Trainer


def toy_batches(epoch: int, done: int = 0) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(epoch)
    for number in range(4):
        labels = torch.randint(0, 3, (8,), generator=generator)
        if number >= done:
            yield Batch(nn.functional.one_hot(labels, 3).float(), labels)


def run(
    model: nn.Module,
    batches: Callable[[int, int], Iterable[Batch]] = toy_batches,
    *,
    steps_per_epoch: int = 4,
    spec: OptimSpec | None = None,
    on_step: Callable[[StepResult], None] = lambda _: None,
    **options: Any,
) -> Trainer:
    """Train a model to its end."""
    spec = spec or OptimSpec(batch_size=32, solver="adamw", lr=0.1, epochs=2)
    trainer = Trainer(model, spec, steps_per_epoch=steps_per_epoch, **options)
    for epoch in range(spec.epochs):
        for batch in batches(epoch, 0):
            on_step(trainer.step(batch))
    return trainer


class Noisy(nn.Module):
    """A model with dropout, running statistics and weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x))


def test_steps_are_numbered_and_warmed_up() -> None:
    steps: list[StepResult] = []

    run(
        nn.Linear(3, 3),
        spec=OptimSpec(batch_size=32, solver="adamw", epochs=2, warmup=0.25, lr=1.0),
        on_step=steps.append,
    )

    assert [s.step for s in steps] == list(range(8))
    assert [s.lr for s in steps[:2]] == [0.5, 1.0]  # two of eight steps warm up


def test_gradients_are_clipped_to_their_norm() -> None:
    model = nn.Linear(3, 3)
    before = model.weight.detach().clone()
    spec = OptimSpec(
        batch_size=32, solver="sgd", lr=1.0, momentum=0.0, warmup=0.0, epochs=1, clip=1e-3
    )

    run(model, lambda *_: [next(toy_batches(0))], steps_per_epoch=1, spec=spec)

    moved = torch.cat([(model.weight - before).flatten(), model.bias * 0]).norm().item()
    assert 0 < moved <= 1.001e-3


def test_a_loss_that_is_not_finite_stops_with_step_and_learning_rate() -> None:
    poison = Batch(torch.full((2, 3), math.nan), torch.tensor([0, 1]))

    with pytest.raises(DivergedError, match="the loss is nan at step 0, with a learning rate of"):
        run(nn.Linear(3, 3), lambda *_: [poison], steps_per_epoch=1)


def test_bf16_changes_the_products_and_not_the_weights() -> None:
    model = nn.Linear(3, 3)

    run(model, precision="bf16")

    assert model.weight.dtype == torch.float32


FULL = OptimSpec(
    batch_size=32, solver="adamw", lr=0.05, epochs=3, weight_decay=0.1, ema=0.9, clip=1.0
)


@pytest.mark.parametrize("stop", range(12))
@pytest.mark.parametrize("solver", ["sgd", "adamw"])
def test_a_trainer_resumed_after_any_step_ends_with_the_same_weights(
    stop: int, solver: Any
) -> None:
    spec = replace(FULL, solver=solver)
    whole = run(Noisy(), spec=spec, seed=3)

    first = Trainer(Noisy(), spec, steps_per_epoch=4, seed=3)
    while first.steps < stop:
        for batch in toy_batches(first.steps // first.steps_per_epoch):
            if first.steps < stop:
                first.step(batch)
    tensors, facts = first.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    second = Trainer(Noisy(), spec, steps_per_epoch=4, seed=3)
    second.load_state(tensors, json.loads(json.dumps(facts)))
    torch.manual_seed(stop)  # whatever else was drawn meanwhile
    for epoch in range(stop // 4, 3):
        for batch in toy_batches(epoch, second.steps - 4 * epoch):
            second.step(batch)

    wanted, found = whole.state()[0], second.state()[0]
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert any(name.startswith("optimizer/") for name in wanted)
    assert any(name.startswith("average/") for name in wanted)


class Greedy(nn.Linear):
    """A model that runs out of memory above some batch size."""

    def __init__(self, most: int) -> None:
        torch.manual_seed(0)
        super().__init__(3, 3)
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory (not really)")
        return super().forward(x)


def test_out_of_memory_leads_to_the_weights_of_smaller_micro_batches() -> None:
    spec = OptimSpec(batch_size=32, solver="adamw", lr=0.1, epochs=2)
    greedy = run(Greedy(2), spec=spec)
    modest = run(Greedy(8), spec=replace(spec, micro_batch=2))

    assert greedy.micro_batch == 2
    assert all(torch.equal(greedy.parameters[n], modest.parameters[n]) for n in greedy.parameters)


def test_the_average_of_weights_and_statistics_is_swapped_in_and_the_state_keeps_the_own() -> None:
    trainer, mean_name = run(Noisy(), spec=FULL), "inner.1.running_mean"
    used = {**trainer.parameters, **trainer.statistics}
    before = {name: tensor.clone() for name, tensor in trainer.state()[0].items()}
    own = {name: used[name].detach().clone() for name in ("head.weight", mean_name)}

    with trainer.average.swapped_in():
        assert all(torch.equal(used[name], trainer.average.average[name]) for name in own)
        lent, _ = trainer.state()

    assert all(torch.equal(lent[name], before[name]) for name in before)
    for name, tensor in own.items():
        assert torch.equal(used[name], tensor)
        assert not torch.equal(trainer.average.average[name], tensor)


class Steep(torch.autograd.Function):
    """The identity, whose gradient is not finite."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient * math.inf


class SteepModel(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", Steep.apply(super().forward(x)))


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_gradient_that_is_not_finite_is_refused_like_a_loss(precision: str, clip: float) -> None:
    model, spec = (
        SteepModel(3, 3),
        OptimSpec(batch_size=32, solver="adamw", lr=0.1, epochs=20, clip=clip),
    )

    with pytest.raises(DivergedError, match="the gradient is not finite at step"):
        run(model, spec=spec, precision=precision)


def test_a_gradient_that_overflows_in_fp16_skips_a_step_and_training_continues() -> None:
    model = nn.Linear(3, 3)
    spec = OptimSpec(batch_size=32, solver="sgd", lr=0.1, epochs=1)
    trainer = Trainer(model, spec, steps_per_epoch=4, precision="fp16")
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 3e38})
    before = model.weight.detach().clone()

    trainer.step(next(toy_batches(0)))

    assert torch.equal(model.weight, before)
    assert trainer.scaler.get_scale() < 3e38
