"""One step of the training loop, compared with a few lines of torch, and its random numbers."""

import random
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.thread_ranks import ThreadRank, run_ranks
from vitft.config import OptimSpec
from vitft.models import VisionTransformer
from vitft.training import Batch, ProcessGroup, StepResult, Trainer, seed_everything

PLAIN = OptimSpec(batch_size=6, solver="sgd", lr=0.5, momentum=0.9, epochs=2, warmup=0.0)


def linear() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 3)


def batch_of(seed: int, images: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (images,), generator=generator)
    return Batch(torch.randn(images, 3, generator=generator), labels)


@pytest.mark.parametrize("micro_batch", [0, 4])
def test_steps_are_those_of_plain_torch(micro_batch: int) -> None:
    model, own = linear(), linear()
    spec = replace(PLAIN, schedule="constant", label_smoothing=0.1, micro_batch=micro_batch)
    trainer = Trainer(model, spec, steps_per_epoch=2)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.5, momentum=0.9)

    for seed in range(3):
        batch = batch_of(seed)
        logits = own(batch.inputs)
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        found = trainer.step(batch)
        optimizer.step()

        right = int((logits.argmax(dim=1) == batch.labels).sum())
        assert found.loss == pytest.approx(loss.item())
        assert found == StepResult(step=seed, lr=0.5, loss=found.loss, correct=right, images=6)
    torch.testing.assert_close(model.weight, own.weight)
    torch.testing.assert_close(model.bias, own.bias)
    assert all(p.grad is None for p in model.parameters())


def test_each_layer_has_its_share_of_the_learning_rate(tiny_vit: VisionTransformer) -> None:
    spec = replace(PLAIN, layer_decay=0.5, schedule="constant")
    trainer = Trainer(tiny_vit, spec, steps_per_epoch=2)

    trainer.step(Batch(torch.randn(2, 3, 16, 16), torch.tensor([0, 1])))

    groups = trainer.optimizer.param_groups
    assert sorted({group["lr"] for group in groups}) == [0.0625, 0.125, 0.25, 0.5]
    assert all(group["lr"] == 0.5 * group["lr_scale"] for group in groups)


def test_a_mix_sees_the_whole_batch_once_and_labels_are_counted_unmixed() -> None:
    seen: list[int] = []

    def mix(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(len(labels))
        return inputs, (labels + 1) % 3

    trainer = Trainer(linear(), replace(PLAIN, micro_batch=2), steps_per_epoch=2, mix=mix)
    own = linear()
    batch = batch_of(0)

    found = trainer.step(batch)

    assert seen == [6]
    logits = own(batch.inputs)
    assert found.loss == pytest.approx(F.cross_entropy(logits, (batch.labels + 1) % 3).item())
    assert found.correct == int((logits.argmax(dim=1) == batch.labels).sum())


@pytest.mark.parametrize("size", [2, 3])
def test_processes_take_the_step_of_one_although_some_have_no_image(size: int) -> None:
    alone = Trainer(linear(), PLAIN, steps_per_epoch=2)
    batches, models = [batch_of(0), batch_of(1, 4)], [linear() for _ in range(size)]
    expected = [alone.step(batch) for batch in batches]

    def rank(group: ThreadRank) -> tuple[list[StepResult], Tensor]:
        model = models[group.rank]
        trainer = Trainer(model, PLAIN, steps_per_epoch=2, group=group)
        found = []
        for batch in batches:
            own = group.batch_slice(len(batch.labels))
            part = Batch(batch.inputs[own], batch.labels[own], len(batch.labels))
            found.append(trainer.step(part))
        return found, model.weight.detach()

    for found, weight in run_ranks(size, rank):
        torch.testing.assert_close(weight, cast("Tensor", alone.model.weight).detach())
        for one, other in zip(found, expected, strict=True):
            assert one.loss == pytest.approx(other.loss)
            assert one == replace(other, loss=one.loss)


def test_running_statistics_are_the_mean_of_those_of_all_processes() -> None:
    models = [nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)) for _ in range(2)]
    batches = [batch_of(0), batch_of(1)]

    def rank(group: ThreadRank) -> None:
        trainer = Trainer(models[group.rank], PLAIN, steps_per_epoch=2, group=group)
        trainer.step(batches[group.rank]._replace(images=12))

    run_ranks(2, rank)

    mean = 0.1 * (batches[0].inputs.mean(dim=0) + batches[1].inputs.mean(dim=0)) / 2
    for model in models:
        norm = cast("Any", model[0])
        torch.testing.assert_close(norm.running_mean, mean)


def draws() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002


def test_a_run_resumed_with_a_later_version_draws_the_same_numbers() -> None:
    seed_everything(1, 2, 3)

    assert draws() == pytest.approx(GOLDEN, abs=1e-6)


GOLDEN = (0.6658776998519897, 0.11984613802955812, 0.5567792081052679)
"""The first numbers of torch, Python and NumPy for the seed 1, step 2 and rank 3."""


def gradients_of(images: int, whole: int, *, sharded: bool) -> tuple[Any, list[Tensor], list[int]]:
    """Return loss, gradients and numbers of inputs of a rank of three, two images at a time."""
    sizes: list[int] = []
    spec = replace(PLAIN, micro_batch=2, label_smoothing=0.1)
    model = linear()
    trainer = Trainer(model, spec, steps_per_epoch=1, group=ProcessGroup(1, 3))
    trainer.sharded = sharded  # without dividing the model: this process is alone
    model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    batch = batch_of(0, images)._replace(images=whole)

    found = trainer.accumulate(batch)

    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    return found, grads, sizes


@pytest.mark.parametrize(
    ("images", "plain", "sharded"),
    [(4, [2, 2], [2, 2]), (3, [2, 1], [2, 1]), (2, [2], [2, 1]), (0, [], [1, 1])],
)
def test_a_sharded_rank_has_as_many_passes_as_the_others_and_gradients_for_their_mean(
    images: int, plain: list[int], sharded: list[int]
) -> None:
    (loss, right), own, passes = gradients_of(images, 11, sharded=False)
    (same_loss, same_right), scaled, more = gradients_of(images, 11, sharded=True)

    assert (passes, more) == (plain, sharded)
    assert (same_loss, same_right) == (pytest.approx(loss), right)
    for one, other in zip(own, scaled, strict=True):
        torch.testing.assert_close(other, 3 * one)
    model, batch = linear(), batch_of(0, images)
    logits = model(batch.inputs)
    total = F.cross_entropy(logits, batch.labels, label_smoothing=0.1, reduction="sum") / 11
    assert loss == pytest.approx(total.item())
    assert right == int((logits.argmax(dim=1) == batch.labels).sum())
    total.backward()
    for one, parameter in zip(own, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)
