"""The loop knows only inputs and labels."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from vitft.config import OptimSpec
from vitft.errors import DivergedError
from vitft.loop import Batch, Step, fit, logits_of
from vitft.model import VisionTransformer


def toy_batches(epoch: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(4):
        labels = torch.randint(0, 3, (8,), generator=generator)
        yield Batch(nn.functional.one_hot(labels, 3).float(), labels)


def test_the_first_loss_of_a_zeroed_head_is_the_log_of_the_class_count(
    tiny_vit: VisionTransformer,
) -> None:
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 0])
    steps: list[Step] = []

    fit(
        tiny_vit,
        lambda _: iter([Batch(images, labels)]),
        steps_per_epoch=1,
        spec=OptimSpec(epochs=1),
        on_step=steps.append,
    )

    assert steps[0].loss == pytest.approx(math.log(3), abs=1e-6)  # three classes, equally likely


@pytest.mark.parametrize("solver", ["sgd", "adamw"])
def test_a_linear_problem_is_learnt(solver: str) -> None:
    model = nn.Linear(3, 3)

    fit(
        model,
        toy_batches,
        steps_per_epoch=4,
        spec=OptimSpec(solver=solver, lr=0.5, epochs=10),  # type: ignore[arg-type]
    )

    logits, labels = logits_of(model, toy_batches(99), device=torch.device("cpu"))
    assert (logits.argmax(dim=-1) == labels).all()


def test_steps_and_epochs_are_reported_in_order() -> None:
    steps: list[Step] = []
    epochs: list[int] = []

    fit(
        nn.Linear(3, 3),
        toy_batches,
        steps_per_epoch=4,
        spec=OptimSpec(epochs=2, warmup=0.25, lr=1.0),
        on_step=steps.append,
        on_epoch=epochs.append,
    )

    assert [s.step for s in steps] == list(range(8))
    assert [s.epoch for s in steps] == [0] * 4 + [1] * 4
    assert [s.lr for s in steps[:2]] == [0.5, 1.0]  # two of eight steps warm up
    assert epochs == [0, 1]


def test_the_same_batches_give_the_same_weights() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        fit(model, toy_batches, steps_per_epoch=4, spec=OptimSpec(epochs=3))
        results.append(model.weight.detach().clone())

    assert torch.equal(*results)


def test_gradients_are_clipped_to_their_norm() -> None:
    model = nn.Linear(3, 3)
    before = model.weight.detach().clone()
    spec = OptimSpec(solver="sgd", lr=1.0, momentum=0.0, warmup=0.0, epochs=1, clip=1e-3)

    fit(model, lambda _: [next(toy_batches(0))], steps_per_epoch=1, spec=spec)

    moved = torch.cat([(model.weight - before).flatten(), model.bias * 0]).norm().item()
    assert 0 < moved <= 1.001e-3


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_rate() -> None:
    poison = Batch(torch.full((2, 3), math.nan), torch.tensor([0, 1]))

    with pytest.raises(DivergedError, match="the loss of step 0 is nan"):
        fit(nn.Linear(3, 3), lambda _: [poison], steps_per_epoch=1, spec=OptimSpec(epochs=1))


def test_bf16_changes_the_products_and_not_the_weights() -> None:
    model = nn.Linear(3, 3)

    fit(model, toy_batches, steps_per_epoch=4, spec=OptimSpec(epochs=1), precision="bf16")

    assert model.weight.dtype == torch.float32
