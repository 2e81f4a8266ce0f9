"""Loss and gradients of a batch, accumulated over micro-batches and summed over processes."""

import contextlib
import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.config.training import OptimSpec
from vitft.system.errors import ResourceError
from vitft.training.distributed import ProcessGroup, is_lost_process, lost_process

log = logging.getLogger(__name__)

MixFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps the inputs and labels (B,) of a batch to mixed inputs and labels, (B,) or probabilities
(B, C)."""


class Batch(NamedTuple):
    """Inputs of the trained part (pixels, tokens or pooled features) and their labels."""

    inputs: Tensor
    labels: Tensor
    """Class indices (B,), or probabilities of the classes (B, C)."""
    images: int = 0
    """Images of the whole batch where this is one rank's slice of it; 0: these are all."""


def autocast(
    device: torch.device, precision: str, *, cache_weights: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Return torch.autocast for `bf16` and `fp16`, else a context without effect.

    `cache_weights` keeps the rounded weights until the context ends.
    """
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if precision in types:
        return torch.autocast(device.type, dtype=types[precision], cache_enabled=cache_weights)
    return contextlib.nullcontext()


class GradientAccumulator:
    """Forward and backward passes of a batch, in micro-batches that fit into memory.

    Args:
        forward: Maps inputs to logits (B, C).
        parameters: The trained parameters by name.
        spec: Micro-batch, which is halved whenever memory runs out, and label smoothing.
        seed: Seeds what a step draws (drop path, `mix`), together with step and rank.
        scaler: Scales the loss where `precision` is `fp16`.

    The others are those of `loop.Trainer`.
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        parameters: Mapping[str, nn.Parameter],
        spec: OptimSpec,
        *,
        seed: int,
        precision: str,
        scaler: torch.amp.GradScaler,
        mix: MixFunction | None,
        class_weights: Tensor | None,
        group: ProcessGroup,
        sharded: bool,
    ) -> None:
        self.forward, self.parameters = forward, parameters
        self.micro_batch = spec.micro_batch or spec.batch_size
        self.seed, self.precision = seed, precision
        self.scaler, self.mix, self.class_weights = scaler, mix, class_weights
        self.label_smoothing, self.group, self.sharded = spec.label_smoothing, group, sharded
        self.device = next(iter(parameters.values())).device

    def backward(self, batch: Batch, step: int) -> tuple[float, int]:
        """Leave the gradients of the whole batch in the parameters, given this rank's slice of it.

        When memory runs out, the same batch is computed again in smaller micro-batches.

        Returns:
            The mean cross-entropy of the whole batch in nats, and the number of its images whose
            class has the largest logit.

        Raises:
            ResourceError: Not even one image at a time fits into memory, or a process was lost.
        """
        while True:
            try:
                return self.sync_gradients(*self.accumulate(batch, step))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    if self.sharded and is_lost_process(error):
                        raise lost_process(str(error)) from error
                    raise
                if self.sharded:  # the other ranks wait for this one's slice of a block
                    raise ResourceError(
                        f"out of memory with {self.micro_batch} images at a time",
                        fix="continue with --resume RUN --set optim.micro_batch=N or "
                        "--set train.checkpointing=true",
                    ) from error
                for parameter in self.parameters.values():
                    parameter.grad = None
            if self.micro_batch == 1:
                raise ResourceError(
                    "out of memory with one image at a time",
                    fix="use a smaller --image-size or model, or --set train.checkpointing=true",
                )
            self.micro_batch = math.ceil(min(self.micro_batch, len(batch.labels)) / 2)
            log.warning(f"out of memory: continuing with {self.micro_batch} images at a time")

    def accumulate(self, batch: Batch, step: int) -> tuple[float, int]:
        """Add up the gradients of this rank's slice of a batch over its micro-batches."""
        seed_everything(self.seed, step, self.group.rank)
        inputs, labels = batch.inputs, batch.labels
        targets = labels
        if self.mix is not None and len(labels):
            inputs, targets = self.mix(inputs, labels)
        total, correct, images = 0.0, 0, batch.images or len(labels)
        for part in self.micro_batches(len(labels), images):
            known = labels[part]
            if len(known):
                # `fully_shard` averages the gradients over the ranks; the sum is wanted.
                factor = self.group.size if self.sharded else 1
                x, target = inputs[part], targets[part]
            else:  # a pass without weight: the other ranks need this one's slice of the weights
                x, target = (t.new_zeros(1, *t.shape[1:]) for t in (inputs, labels))
                factor = 0
            with autocast(self.device, self.precision, cache_weights=not self.sharded):
                logits = self.forward(x)
            loss = (
                F.cross_entropy(
                    logits.float(),
                    target,
                    weight=self.class_weights,
                    label_smoothing=self.label_smoothing,
                    reduction="sum",
                )
                / images
            )
            self.scaler.scale(loss * factor).backward()
            total += loss.item() if factor else 0.0
            classes = known if known.ndim == 1 else known.argmax(dim=-1)
            correct += int((logits.argmax(dim=-1) == classes).sum())
        return total, correct

    def micro_batches(self, own: int, images: int) -> list[slice]:
        """Return the micro-batches of this rank's `own` images of a batch of `images`.

        A sharded model needs the same number of passes on every rank; some are then empty.
        """
        most = -(-images // self.group.size) if self.sharded else own
        return [slice(i, min(own, i + self.micro_batch)) for i in range(0, most, self.micro_batch)]

    def sync_gradients(self, loss: float, correct: int) -> tuple[float, int]:
        """Sum gradients, loss and correct answers over the process group."""
        if self.group.size == 1:
            return loss, correct
        gradients: list[Tensor] = []
        if not self.sharded:  # else FSDP has summed them in the backward pass
            for parameter in self.parameters.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        loss, total_correct = self.group.all_reduce(gradients, (loss, correct))
        return loss, round(total_correct)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether memory ran out, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def seed_everything(*numbers: int) -> None:
    """Seed the global generators of torch, Python and NumPy from these numbers alone."""
    words = np.random.SeedSequence(numbers).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> 1))
    random.seed(int(words[1]))
    np.random.seed(int(words[1] & 0xFFFFFFFF))  # noqa: NPY002 - timm draws from this one
