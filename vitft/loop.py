"""The training loop: it knows neither images nor files, only batches of inputs and labels.

Whether a batch holds pixels or cached features, and what becomes of the numbers, is the caller's.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.config import OptimSpec
from vitft.errors import DivergedError
from vitft.optim import lr_at, make_optimizer


class Batch(NamedTuple):
    """Inputs of the trained part (pixels, tokens or pooled features) and class indices (B,)."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one optimiser step leaves behind for progress bars and logs."""

    step: int
    """Counted from 0 over the whole training."""
    epoch: int
    lr: float
    loss: float
    """Mean cross-entropy of the batch, in nats."""
    correct: int
    images: int


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[None]:
    """bf16 for matrix products where `precision` says so, else nothing."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def fit(
    model: nn.Module,
    batches: Callable[[int], Iterable[Batch]],
    *,
    steps_per_epoch: int,
    spec: OptimSpec,
    precision: str = "fp32",
    on_step: Callable[[Step], None] = lambda _: None,
    on_epoch: Callable[[int], None] = lambda _: None,
) -> None:
    """Train the parameters of `model` that require gradients, in place.

    Args:
        model: Maps `Batch.inputs` to logits (B, C). Frozen parts belong in front of it, or are
            kept in eval mode by the model itself.
        batches: The batches of an epoch (counted from 0), on the model's device.
        steps_per_epoch: How many batches each epoch gives; the schedule needs the total.
        spec: Solver, learning rate, schedule, epochs.
        precision: `bf16` for autocast, else float32.
        on_step: Called after each step.
        on_epoch: Called after each epoch; it may evaluate the model and leave it in eval mode.

    Raises:
        DivergedError: The loss is not finite; the weights are those before that step.
    """
    optimizer = make_optimizer(model, spec)
    trained = [p for p in model.parameters() if p.requires_grad]
    device, total = trained[0].device, steps_per_epoch * spec.epochs
    step = 0
    for epoch in range(spec.epochs):
        model.train()
        for batch in batches(epoch):
            lr = lr_at(step, total, peak=spec.lr, warmup=spec.warmup, final=spec.final_lr)
            for group in optimizer.param_groups:
                group["lr"] = lr
            with autocast(device, precision):
                logits = model(batch.inputs)
            loss = F.cross_entropy(logits.float(), batch.labels)
            if not torch.isfinite(loss):
                raise diverged(step, lr, loss.item())
            loss.backward()
            if spec.clip:
                nn.utils.clip_grad_norm_(trained, max_norm=spec.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            correct = int((logits.argmax(dim=-1) == batch.labels).sum())
            on_step(
                Step(
                    step=step,
                    epoch=epoch,
                    lr=lr,
                    loss=loss.item(),
                    correct=correct,
                    images=len(batch.labels),
                )
            )
            step += 1
        on_epoch(epoch)


def diverged(step: int, lr: float, loss: float) -> DivergedError:
    """The error of a loss that is no number any more."""
    return DivergedError(
        f"training diverged: the loss of step {step} is {loss} at learning rate {lr:.3g}",
        fix="lower the learning rate, e.g. --lr with a tenth of it",
    )


@torch.no_grad()
def logits_of(
    model: nn.Module, batches: Iterable[Batch], *, device: torch.device, precision: str = "fp32"
) -> tuple[Tensor, Tensor]:
    """Scores (n, C) and labels (n,) of all batches, float32 on the CPU; in eval mode."""
    model.eval()
    scores, labels = [], []
    for batch in batches:
        with autocast(device, precision):
            scores.append(model(batch.inputs).float().cpu())
        labels.append(batch.labels.cpu())
    return torch.cat(scores), torch.cat(labels)
