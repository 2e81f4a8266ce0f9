"""One step of the training loop, compared with a few lines of torch, and its random numbers."""

import math
import random
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.thread_ranks import ThreadRank, run_ranks
from tests.training.test_loop import Greedy, Noisy, SteepModel
from vitft.config.sections import OptimSpec
from vitft.features.cut import Whole
from vitft.metrics.targets import TrainingLoss
from vitft.models.vit import VisionTransformer
from vitft.system.batch_limit import BatchLimit
from vitft.system.errors import DivergedError, ResourceError
from vitft.training.distributed import ProcessGroup
from vitft.training.loop import (
    Batch,
    StepResult,
    Trainer,
    autocast,
    predict_logits,
    seed_everything,
)

CPU = torch.device("cpu")
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


def test_the_schedule_ends_with_the_last_step_of_the_last_epoch() -> None:
    trainer = Trainer(linear(), replace(PLAIN, final_lr=0.2), steps_per_epoch=5)

    rates = [trainer.step(batch_of(seed)).lr for seed in range(10)]

    cosine = [0.5 * (0.2 + 0.8 * (1 + math.cos(math.pi * i / 10)) / 2) for i in range(10)]
    assert rates == pytest.approx(cosine)
    assert trainer.lr == pytest.approx(0.1)


def test_each_layer_has_its_share_of_the_learning_rate(tiny_vit: VisionTransformer) -> None:
    spec = replace(PLAIN, layer_decay=0.5, schedule="constant")
    trainer = Trainer(Whole(tiny_vit), spec, steps_per_epoch=2)

    trainer.step(Batch(torch.randn(2, 3, 16, 16), torch.tensor([0, 1])))

    groups = trainer.optimizer.param_groups
    assert sorted({group["lr"] for group in groups}) == [0.0625, 0.125, 0.25, 0.5]
    assert all(group["lr"] == 0.5 * group["lr_scale"] for group in groups)


def test_a_step_trains_and_a_prediction_evaluates() -> None:
    model = Noisy()
    trainer = Trainer(model, PLAIN, steps_per_epoch=2)
    model.eval()

    trainer.step(batch_of(0))
    assert model.training
    first, labels = predict_logits(model, [batch_of(1), batch_of(2, 4)], device=CPU)
    assert not model.training
    again, _ = predict_logits(model, [batch_of(1), batch_of(2, 4)], device=CPU)

    assert torch.equal(first, again)
    assert labels.tolist() == [*batch_of(1).labels.tolist(), *batch_of(2, 4).labels.tolist()]
    assert not first.requires_grad


def test_the_average_counts_the_first_step_with_nine_tenths() -> None:
    model = linear()
    before = model.weight.detach().clone()
    trainer = Trainer(model, replace(PLAIN, ema=0.99), steps_per_epoch=2)

    trainer.step(batch_of(0))

    expected = 0.1 * before + 0.9 * model.weight
    torch.testing.assert_close(trainer.average.average["weight"], expected.detach())


@pytest.mark.parametrize("several", [False, True])
def test_correct_images_are_counted_for_either_kind_of_target(several: bool) -> None:
    model = linear()
    logits = torch.tensor([[3.0, 1, -1], [-1, 1, -1], [2, 3, -1]])
    model.weight.data, model.bias.data = torch.eye(3), torch.zeros(3)
    flags = torch.tensor([[1.0, 1, 0], [0, 1, 0], [1, 0, 0]])
    loss = TrainingLoss(several=several)

    found = Trainer(model, PLAIN, steps_per_epoch=1, loss=loss).step(Batch(logits, flags))

    # all labels of the first two images are right, or the largest one of the first two
    assert found.correct == 2
    assert found.images == 3


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


@pytest.mark.parametrize(("scale", "diverges"), [(1.0, True), (2.0, False)])
def test_a_gradient_that_overflows_at_a_scale_of_one_is_not_finite_itself(
    scale: float, diverges: bool
) -> None:
    spec = replace(PLAIN, solver="adamw")
    trainer = Trainer(SteepModel(3, 3), spec, steps_per_epoch=2, precision="fp16")
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": scale})

    if diverges:
        with pytest.raises(DivergedError, match="the gradient is not finite at step 0"):
            trainer.step(batch_of(0))
    else:
        trainer.step(batch_of(0))
        assert trainer.scaler.get_scale() == 1.0


@pytest.mark.parametrize("clip", [0.0, 1e-3, 1e3])
def test_only_gradients_above_the_limit_are_clipped(clip: float) -> None:
    model, own = linear(), linear()
    batch = batch_of(0)
    F.cross_entropy(own(batch.inputs), batch.labels).backward()
    gradients = [p.grad for p in own.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    trainer = Trainer(model, replace(PLAIN, clip=clip), steps_per_epoch=2)

    trainer.step(batch)

    factor = clip / norm if 0 < clip < norm else 1.0
    expected = linear().weight - 0.5 * factor * cast("Tensor", own.weight.grad)
    torch.testing.assert_close(model.weight, expected.detach())


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


def test_nothing_is_predicted_for_no_batches() -> None:
    logits, labels = predict_logits(linear(), [], device=CPU)

    assert (logits.shape, labels.shape, labels.dtype) == ((0, 0), (0,), torch.long)


def test_predictions_are_float32_and_adapt_to_the_memory() -> None:
    limit = BatchLimit(100)

    logits, _ = predict_logits(Greedy(2), [batch_of(0)], device=CPU, limit=limit)
    halved, _ = predict_logits(linear(), [batch_of(0)], device=CPU, precision="bf16")
    exact, _ = predict_logits(linear(), [batch_of(0)], device=CPU)

    assert logits.shape == (6, 3)
    assert limit.images == 2
    assert halved.dtype == torch.float32
    assert 0 < (halved - exact).abs().max() < 0.05


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_products_are_computed_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    with autocast(CPU, precision):
        assert linear()(torch.zeros(1, 3)).dtype == dtype
        assert torch.is_autocast_cache_enabled()
    if precision != "fp32":
        with autocast(CPU, precision, cache_weights=False):
            assert not torch.is_autocast_cache_enabled()


def draws() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002


def test_the_random_numbers_of_a_step_depend_on_its_numbers_alone() -> None:
    found = {}
    for numbers in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)):
        seed_everything(*numbers)
        found[numbers] = draws()
        draws()
        seed_everything(*numbers)
        assert draws() == found[numbers]

    for generator in range(3):
        assert len({one[generator] for one in found.values()}) == 5


def test_a_run_resumed_with_a_later_version_draws_the_same_numbers() -> None:
    seed_everything(1, 2, 3)

    assert draws() == pytest.approx(GOLDEN, abs=1e-6)


GOLDEN = (0.6658776998519897, 0.11984613802955812, 0.5567792081052679)
"""The first numbers of torch, Python and NumPy for the seed 1, step 2 and rank 3."""


LOST, NO_MEMORY = "[gloo] Connection closed by peer", "CUDA out of memory"


@pytest.mark.parametrize(
    ("sharded", "message", "expected", "problem"),
    [
        pytest.param(True, LOST, ResourceError, "another process of the run has ended", id="lost"),
        pytest.param(True, NO_MEMORY, ResourceError, "with 5 images at a time", id="memory"),
        pytest.param(True, "wrong shape", RuntimeError, "wrong shape", id="another error"),
        pytest.param(False, LOST, RuntimeError, r"\[gloo\]", id="whole model"),
        pytest.param(False, "wrong shape", RuntimeError, "wrong shape", id="whole, another error"),
        pytest.param(False, NO_MEMORY, ResourceError, "with one image at a time", id="one image"),
    ],
)
def test_only_a_sharded_model_ends_with_an_error_of_another_process_or_of_memory(
    monkeypatch: pytest.MonkeyPatch,
    sharded: bool,
    message: str,
    expected: type[Exception],
    problem: str,
) -> None:
    trainer = Trainer(linear(), replace(PLAIN, micro_batch=5), steps_per_epoch=1)
    trainer.sharded = sharded

    def fail(_: Batch) -> Any:
        raise RuntimeError(message)

    monkeypatch.setattr(trainer, "accumulate", fail)

    with pytest.raises(expected, match=problem) as caught:
        trainer.backward(batch_of(0, images=4))

    assert type(caught.value) is expected


def gradients_of(images: int, whole: int, *, sharded: bool) -> tuple[Any, list[Tensor], list[int]]:
    """Return loss, gradients and numbers of inputs of a rank of three, two images at a time."""
    sizes: list[int] = []
    spec = replace(PLAIN, micro_batch=2, label_smoothing=0.1)
    model = linear()
    trainer = Trainer(model, spec, steps_per_epoch=1, group=ProcessGroup(1, 3), sharded=sharded)
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
