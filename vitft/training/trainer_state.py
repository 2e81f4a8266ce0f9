"""State of a trainer: everything that its next step depends on, as tensors and JSON values."""

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

from vitft.training.fsdp import full_tensor, slice_like
from vitft.training.loop import Trainer


class TrainerFacts(TypedDict):
    """The part of a trainer's state that is not tensors."""

    step: int
    """Steps done."""
    micro_batch: int
    """Images per pass, as far as it was halved."""
    scaler: dict[str, Any]
    """State of torch.amp.GradScaler."""


def trainer_state(trainer: Trainer) -> tuple[dict[str, Tensor], TrainerFacts]:
    """Return the state of a trainer.

    Collective for a sharded model: every rank must call it, and only the main process gets tensors.
    """
    weights = trainer.average.trained
    tensors = {f"weights/{name}": w.detach() for name, w in weights.items()}
    tensors |= {f"buffers/{name}": b for name, b in trainer.model.named_buffers()}
    tensors |= {f"average/{name}": mean for name, mean in trainer.average.average.items()}
    for i, slots in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{i}/{key}": torch.as_tensor(v) for key, v in slots.items()}
    if trainer.sharded:
        tensors = gathered(tensors, keep=trainer.group.is_main)
    return tensors, {
        "step": trainer.steps,
        "micro_batch": trainer.gradients.micro_batch,
        "scaler": trainer.scaler.state_dict(),
    }


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Gather sharded tensors one after the other; keep them on the CPU of one process only."""
    found = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor)
        if keep:
            found[name] = full.cpu()
    return found


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
