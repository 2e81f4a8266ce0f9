"""The training loop: optimiser steps on inputs and labels, independent of images and files.

Everything random in a step is drawn from (seed, step), so a resumed run draws what an uninterrupted
one would have drawn; `trainer_state` returns all that the next step depends on.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from vitft.config.training import OptimSpec
from vitft.system.errors import DivergedError
from vitft.training.distributed import ProcessGroup, report_lost_process
from vitft.training.fsdp import full_tensor, slice_like
from vitft.training.gradients import Batch, GradientAccumulator, MixFunction, autocast
from vitft.training.optim import WeightAverage, lr_at, make_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Metrics of one optimiser step."""

    step: int
    """Counted from 0 over the whole stage."""
    epoch: int
    lr: float
    loss: float
    """Mean cross-entropy of the batch, in nats."""
    correct: int
    images: int


class Trainer:
    """A model with its optimiser, trained one step at a time.

    Args:
        model: Maps `Batch.inputs` to logits (B, C). Frozen parts are not in it, or it keeps them in
            eval mode itself.
        spec: Solver, learning rate, schedule, epochs.
        steps_per_epoch: Number of batches of an epoch; the schedule needs the total.
        precision: `bf16` or `fp16` for autocast, else `fp32`.
        seed: Seeds drop path and `mix`.
        mix: Applied to a whole batch before it is used.
        class_weights: Factor of each class in the loss, (C,), with mean 1 over the images.
        compiled: Compile the forward and backward pass with torch.compile.
        group: The processes that share each batch.
        sharded: Whether `model` is one of `fsdp.shard_module`.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: OptimSpec,
        *,
        steps_per_epoch: int,
        precision: str = "fp32",
        seed: int = 0,
        mix: MixFunction | None = None,
        class_weights: Tensor | None = None,
        compiled: bool = False,
        group: ProcessGroup | None = None,
        sharded: bool = False,
    ) -> None:
        assert spec.lr is not None, "the learning rate is resolved when the model is known"
        self.model, self.spec, self.peak_lr, self.sharded = model, spec, spec.lr, sharded
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = steps_per_epoch * spec.epochs
        self.group = group or ProcessGroup()
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        device = next(iter(self.parameters.values())).device
        self.optimizer = make_optimizer(model, spec, sharded=sharded)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.average = WeightAverage(self.parameters, spec.ema)
        self.gradients = GradientAccumulator(
            torch.compile(model) if compiled else model,
            self.parameters,
            spec,
            seed=seed,
            precision=precision,
            scaler=self.scaler,
            mix=mix,
            class_weights=class_weights,
            group=self.group,
            sharded=sharded,
        )
        self.steps = 0  # done

    @property
    def epoch(self) -> int:
        """Epoch of the next step, counted from 0."""
        return self.steps // self.steps_per_epoch

    @property
    def lr(self) -> float:
        """Learning rate of the next step, before the factors of layer-wise decay."""
        spec = self.spec
        if spec.schedule == "constant" and self.steps >= round(self.total_steps * spec.warmup):
            return self.peak_lr
        shape = {"peak": self.peak_lr, "warmup": spec.warmup, "final": spec.final_lr}
        return lr_at(self.steps, self.total_steps, **shape)

    def step(self, batch: Batch) -> StepResult:
        """Update the weights with the gradient of one batch.

        Raises:
            DivergedError: The loss is not finite; the weights are those before the step.
            ResourceError: Not even one image at a time fits into memory.
        """
        self.model.train()
        lr, epoch = self.lr, self.epoch
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        loss, correct = self.gradients.backward(batch, self.steps)
        if not math.isfinite(loss):
            raise diverged(self.steps, lr, loss)
        if self.spec.clip:
            self.scaler.unscale_(self.optimizer)
            with report_lost_process() if self.sharded else contextlib.nullcontext():
                nn.utils.clip_grad_norm_(self.parameters.values(), max_norm=self.spec.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(self.steps)
        self.steps += 1
        images = batch.images or len(batch.labels)
        return StepResult(
            step=self.steps - 1, epoch=epoch, lr=lr, loss=loss, correct=correct, images=images
        )


def train_epochs(
    trainer: Trainer,
    batches: Callable[[int, int], Iterable[Batch]],
    *,
    epochs: Sequence[int],
    on_step: Callable[[StepResult], None] = lambda _: None,
    on_epoch: Callable[[int], bool | None] = lambda _: None,
    uninterrupted: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Train through `epochs`, counted from 0, of which the first may be partly done.

    Args:
        trainer: The model with its optimiser.
        batches: Returns the batches of an epoch from a given step of it on, on the model's device.
        epochs: The epochs that are not finished.
        on_step: Called after each step.
        on_epoch: Called after each epoch; True stops the training.
        uninterrupted: Context of each step, which a signal must not interrupt halfway.
    """
    for epoch in epochs:
        done = trainer.steps - epoch * trainer.steps_per_epoch
        for batch in batches(epoch, done):
            with uninterrupted():
                on_step(trainer.step(batch))
        if on_epoch(epoch):
            return


def diverged(step: int, lr: float, loss: float) -> DivergedError:
    """Return the error for a loss that is not finite."""
    return DivergedError(
        f"training diverged: the loss of step {step} is {loss} at learning rate {lr:.3g}",
        fix="lower the learning rate, e.g. to a tenth with --lr",
    )


@torch.no_grad()
def predict_logits(
    model: nn.Module, batches: Iterable[Batch], *, device: torch.device, precision: str = "fp32"
) -> tuple[Tensor, Tensor]:
    """Return logits (n, C) and labels (n,) of all batches, in float32 on the CPU.

    The model is switched to eval mode.
    """
    model.eval()
    logits, labels = [], []
    for batch in batches:
        with autocast(device, precision):
            logits.append(model(batch.inputs).float().cpu())
        labels.append(batch.labels.cpu())
    if not logits:  # the shard of a process may be empty
        return torch.empty(0, 0), torch.empty(0, dtype=torch.long)
    return torch.cat(logits), torch.cat(labels)


class TrainerFacts(TypedDict):
    """The part of a trainer's state that is not tensors."""

    step: int
    """Steps done."""
    micro_batch: int
    """Images per pass, as far as it was halved."""
    scaler: dict[str, Any]
    """State of torch.amp.GradScaler."""


def trainer_state(trainer: Trainer) -> tuple[dict[str, Tensor], TrainerFacts]:
    """Return everything that the next step of a trainer depends on, as tensors and JSON values.

    Collective for a sharded model: every rank must call it, and only the main process gets tensors.
    """
    weights = trainer.average.trained
    tensors = {f"weights/{name}": w.detach() for name, w in weights.items()}
    tensors |= {f"buffers/{name}": b for name, b in trainer.model.named_buffers()}
    tensors |= {f"average/{name}": mean for name, mean in trainer.average.average.items()}
    for i, slots in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{i}/{key}": torch.as_tensor(v) for key, v in slots.items()}
    if trainer.sharded:
        full = ((name, full_tensor(tensor)) for name, tensor in tensors.items())
        tensors = {name: tensor.cpu() for name, tensor in full if trainer.group.is_main}
    return tensors, {
        "step": trainer.steps,
        "micro_batch": trainer.gradients.micro_batch,
        "scaler": trainer.scaler.state_dict(),
    }


@torch.no_grad()
def load_trainer_state(
    trainer: Trainer, tensors: Mapping[str, Tensor], facts: TrainerFacts
) -> None:
    """Set a trainer to the state that `trainer_state` returned."""
    slots: dict[int, dict[str, Tensor]] = {}
    targets: dict[str, Mapping[str, Tensor]] = {
        "weights": trainer.parameters,
        "buffers": dict(trainer.model.named_buffers()),
        "average": trainer.average.average,
    }
    optimized = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    for name, value in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            i, _, key = rest.partition("/")
            own = slice_like(value, optimized[int(i)]) if trainer.sharded else value
            slots.setdefault(int(i), {})[key] = own.clone()
        else:
            target = targets[kind][rest]
            target.copy_(slice_like(value, target) if trainer.sharded else value)
    state = trainer.optimizer.state_dict()
    trainer.optimizer.load_state_dict({**state, "state": slots})
    trainer.scaler.load_state_dict(facts["scaler"])
    trainer.steps, trainer.gradients.micro_batch = facts["step"], facts["micro_batch"]
    if trainer.sharded and trainer.spec.micro_batch:  # it may have been lowered on resuming
        trainer.gradients.micro_batch = trainer.spec.micro_batch
