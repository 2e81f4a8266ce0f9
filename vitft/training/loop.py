"""Training loop: optimiser steps on inputs and labels, independent of images and files.

Gradients are accumulated over micro-batches and summed over processes. Random numbers in a step
depend on (seed, step, rank) alone, so a resumed run draws the same numbers as an uninterrupted one.
"""

import contextlib
import functools
import math
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitft.config.sections import OptimSpec
from vitft.metrics.targets import DEFAULT_LOSS, TrainingLoss, are_right
from vitft.system.batch_limit import BatchLimit, is_out_of_memory
from vitft.system.device import exact_float32
from vitft.system.errors import DivergedError, ResourceError, UsageError
from vitft.system.text import count
from vitft.training.distributed import (
    ProcessGroup,
    full_tensor,
    is_lost_process,
    lost_process,
    report_lost_process,
)
from vitft.training.optim import (
    WeightAverage,
    batch_slices,
    lr_at,
    make_optimizer,
    running_statistics,
)

_MixFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function that maps the inputs and labels (B,) of a batch to mixed inputs and their targets, which
are class indices (B,) or class probabilities (B, C)."""


class Batch(NamedTuple):
    """Inputs to the trained layers (pixels, tokens or pooled features) and their labels."""

    inputs: Tensor
    labels: Tensor
    """Class indices (B,), class probabilities (B, C), or multi-label targets of 0 and 1 (B, C)."""
    images: int = 0
    """Size of the whole batch if this is one rank's slice of it; otherwise 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Metrics of one optimiser step."""

    step: int
    """Step number, counting from 0 at the start of the stage."""
    lr: float
    loss: float
    """Mean loss of the batch in nats, with class weights and label smoothing."""
    correct: int
    images: int


class Trainer:
    """Model and optimiser, trained one step at a time.

    Args:
        model: Model that maps `Batch.inputs` to logits (B, C). It contains no frozen parts, or
            keeps them in eval mode itself.
        spec: Solver, learning rate, schedule, epochs, micro-batch size and label smoothing.
        steps_per_epoch: Number of batches per epoch, which determines the length of the schedule.
        precision: `bf16` or `fp16` to use autocast, otherwise `fp32`.
        seed: Seed for random numbers (drop path, `mix`), combined with the step and the rank.
        mix: Function applied to each whole batch before the forward pass.
        loss: Loss function, which also determines the kind of targets.
        compiled: Whether to compile the forward and backward passes with torch.compile.
        group: Process group across which each batch is divided.
        sharded: Whether `model` was returned by `distributed.shard_module`.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: OptimSpec,
        *,
        steps_per_epoch: int,
        precision: str = "fp32",
        seed: int = 0,
        mix: _MixFunction | None = None,
        loss: TrainingLoss = DEFAULT_LOSS,
        compiled: bool = False,
        group: ProcessGroup | None = None,
        sharded: bool = False,
    ) -> None:
        assert spec.lr is not None, "the learning rate has not been resolved"
        self.model, self.spec, self.peak_lr, self.sharded = model, spec, spec.lr, sharded
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = steps_per_epoch * spec.epochs
        self.group = group or ProcessGroup()
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.device = next(iter(self.parameters.values())).device
        self.optimizer = make_optimizer(model, spec, sharded=sharded)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.statistics = running_statistics(model)
        self.average = WeightAverage(
            {**self.parameters, **self.statistics}, spec.ema, spec.interpolation
        )
        self.forward = torch.compile(model) if compiled else model
        self.limit = BatchLimit(
            spec.micro_batch or spec.images_per_step,
            fix="use a smaller --image-size, a smaller model or --set train.checkpointing=true",
        )
        self.seed, self.precision = seed, precision
        self.mix, self.loss = mix, loss
        self.steps = 0
        """Number of completed steps."""

    @property
    def micro_batch(self) -> int:
        """Number of images per micro-batch; halved whenever memory runs out."""
        return self.limit.images

    @property
    def lr(self) -> float:
        """Learning rate of the next step, before layer-wise decay is applied."""
        spec = self.spec
        final = 1.0 if spec.schedule == "constant" else spec.final_lr
        shape = {"peak": self.peak_lr, "warmup": spec.warmup, "final": final}
        return lr_at(self.steps, self.total_steps, **shape)

    def step(self, batch: Batch) -> StepResult:
        """Update the weights with the gradient of one batch.

        Raises:
            DivergedError: The loss or the gradient is not finite; the weights have not been
                changed.
            ResourceError: Memory ran out and the micro-batches cannot be made smaller, or a process
                was lost.
        """
        self.model.train()
        lr = self.lr
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        loss, correct = self.backward(batch)
        if not math.isfinite(loss):
            raise diverged(self.steps, lr, f"the loss is {loss}")
        self.scaler.unscale_(self.optimizer)
        may_overflow = self.scaler.is_enabled() and self.scaler.get_scale() > 1  # skips the step
        if not math.isfinite(self.clip_gradients()) and not may_overflow:
            raise diverged(self.steps, lr, "the gradient is not finite")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(self.steps)
        self.steps += 1
        images = batch.images or len(batch.labels)
        return StepResult(step=self.steps - 1, lr=lr, loss=loss, correct=correct, images=images)

    def clip_gradients(self) -> float:
        """Limit the norm of the gradient to `optim.clip`, if set, and return the original norm.

        The norm is infinite or NaN if any value of the gradient is.
        """
        weights = [p for p in self.parameters.values() if p.grad is not None]
        with report_lost_process() if self.sharded else contextlib.nullcontext():
            norm = nn.utils.get_total_norm([p.grad for p in weights if p.grad is not None])
            if self.spec.clip:
                nn.utils.clip_grads_with_norm_(weights, self.spec.clip, norm)
            return (full_tensor(norm) if self.sharded else norm).item()

    def backward(self, batch: Batch) -> tuple[float, int]:
        """Compute the gradients of the whole batch, given this rank's slice of it.

        If memory runs out and the model is not sharded, the same batch is recomputed in smaller
        micro-batches.

        Returns:
            The mean loss of the whole batch in nats, and the number of its images that are
            classified correctly.

        Raises:
            ResourceError: Memory ran out and the micro-batches cannot be made smaller, or a process
                was lost.
            UsageError: The model has BatchNorm, and a batch has a single image.
        """
        while True:
            try:
                with exact_float32(self.device):
                    found = self.accumulate(batch)
                return self.sync_gradients(*found)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise UsageError(
                    "BatchNorm cannot normalise a single image of this size",
                    fix="use --set optim.micro_batch=2"
                    if self.spec.micro_batch == 1
                    else f"use --batch-size {8 * self.group.size}",
                ) from error
            except RuntimeError as error:
                if self.sharded and is_lost_process(error):
                    raise lost_process(str(error)) from error
                if self.sharded and is_out_of_memory(error):  # other ranks wait for this one
                    raise ResourceError(
                        f"out of memory with {count(self.micro_batch, 'image')} at a time",
                        fix="resume the run with a smaller micro-batch (--resume RUN --set "
                        "optim.micro_batch=N) or with --set train.checkpointing=true",
                    ) from error
                for parameter in self.parameters.values():
                    parameter.grad = None
                self.limit.halve(len(batch.labels), error)

    def accumulate(self, batch: Batch) -> tuple[float, int]:
        """Accumulate the gradients of this rank's slice of a batch over micro-batches.

        Returns:
            The contribution of the slice to the mean loss of the whole batch in nats, and the
            number of images in the slice that are classified correctly.
        """
        seed_everything(self.seed, self.steps, self.group.rank)
        inputs, labels, targets = batch.inputs, batch.labels, batch.labels
        if self.mix is not None and len(labels):
            inputs, targets = self.mix(inputs, labels)
        images = batch.images or len(labels)
        found: list[Tensor] = []  # loss and correct images of each micro-batch, read at the end
        for part in self.micro_batches(len(labels), images):
            known = labels[part]
            if len(known):
                # `fully_shard` averages the gradients over the ranks, but the sum is needed.
                factor = self.group.size if self.sharded else 1
                x, target = inputs[part], targets[part]
            else:  # zero-weight pass: other ranks need this rank's slice of the weights
                x, target = (t.new_zeros(1, *t.shape[1:]) for t in (inputs, labels))
                factor = 0
            with autocast(self.device, self.precision, cache_weights=not self.sharded):
                logits = self.forward(x)
            smoothing = self.spec.label_smoothing
            loss = self.loss.total(logits.float(), target, label_smoothing=smoothing) / images
            self.scaler.scale(loss * factor).backward()
            known = known if known.ndim == 1 or self.loss.several else known.argmax(dim=1)
            right = are_right(logits[: len(known)], known).sum()
            if factor:
                found.append(torch.stack([loss.detach(), right.to(loss)]))
        values = torch.stack(found).tolist() if found else []  # the only wait for a GPU
        return sum((loss for loss, _ in values), 0.0), round(sum(right for _, right in values))

    def micro_batches(self, own: int, images: int) -> list[slice]:
        """Return slices that split this rank's `own` images of a batch into micro-batches.

        The whole batch has `images` images. A sharded model needs the same number of micro-batches
        on every rank, so some slices may be empty.
        """
        if not self.sharded:
            return batch_slices(own, self.micro_batch, self.model)
        most = -(-images // self.group.size)
        return [slice(i, min(own, i + self.micro_batch)) for i in range(0, most, self.micro_batch)]

    def sync_gradients(self, loss: float, correct: int) -> tuple[float, int]:
        """Sum the gradients over the process group, and return the sums of `loss` and `correct`.

        Running statistics, e.g. of BatchNorm, are averaged, so that all processes have the same
        model after each step.

        Raises:
            ResourceError: A process was lost.
        """
        if self.group.size == 1:
            return loss, correct
        gradients: list[Tensor] = []
        if not self.sharded:  # FSDP has summed the gradients in the backward pass
            for parameter in self.parameters.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        statistics = [*self.statistics.values()]
        loss, total_correct = self.group.all_reduce([*gradients, *statistics], (loss, correct))
        for mean in statistics:
            mean.div_(self.group.size)
        return loss, round(total_correct)


def diverged(step: int, lr: float, what: str) -> DivergedError:
    """Return the error for a value that is not finite; `what` is e.g. `the loss is nan`."""
    return DivergedError(
        f"training diverged: {what} at step {step}, with a learning rate of {lr:.3g}",
        fix="use --lr to lower the learning rate, e.g. to a tenth of its value",
    )


@torch.no_grad()
def predict_logits(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    precision: str = "fp32",
    limit: BatchLimit | None = None,
) -> tuple[Tensor, Tensor]:
    """Return float32 logits (n, C) and labels (n,) or (n, C) of all batches, on the CPU.

    The model is switched to eval mode. `limit` is the number of images at a time (default: whole
    batches); it is lowered if memory runs out.

    Raises:
        ResourceError: A single image does not fit in memory.
    """
    model.eval()
    logits, labels = [], []
    limit = limit or BatchLimit(sys.maxsize)

    def compute(inputs: Tensor, part: slice) -> Tensor:
        with autocast(device, precision), exact_float32(device):
            return model(inputs[part]).float().cpu()

    for batch in batches:
        inputs = batch.inputs
        logits.append(limit.join(functools.partial(compute, inputs), len(inputs)))
        labels.append(batch.labels.cpu())
    if not logits:  # a rank's shard may be empty
        return torch.empty(0, 0), torch.empty(0, dtype=torch.long)
    return torch.cat(logits), torch.cat(labels)


def autocast(
    device: torch.device, precision: str, *, cache_weights: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Return a torch.autocast context for `bf16` and `fp16`, otherwise a context that does nothing.

    If `cache_weights` is set, weights converted to the lower precision are kept until the context
    ends.
    """
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if precision in types:
        return torch.autocast(device.type, dtype=types[precision], cache_enabled=cache_weights)
    return contextlib.nullcontext()


def seed_everything(*numbers: int) -> None:
    """Seed the global random number generators of torch, Python and NumPy from `numbers`."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> 1))
    random.seed(int(words[1]))
    np.random.seed(int(words[1] & 0xFFFFFFFF))  # noqa: NPY002 - used by timm
