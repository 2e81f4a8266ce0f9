"""Script for torchrun: train a sharded model, save and restore it, and write the results."""

import os
import sys
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.conftest import tiny
from vitft.config import OptimSpec
from vitft.features import cut_model
from vitft.models import VisionTransformer, freeze_model
from vitft.training import Batch, ProcessGroup, Trainer, process_group

STEPS = 5
SIZES = [7, 7, 3, 1, 7]
"""Images of each step; odd numbers leave one process with fewer images, or with none."""


def begun(layers: str, group: ProcessGroup, *, split: bool) -> tuple[nn.Module, Trainer]:
    """Return the trainable suffix and its trainer."""
    torch.manual_seed(0)
    model = VisionTransformer(tiny(3, depth=3))
    freeze_model(model, layers)
    suffix = cut_model(model, layers).suffix
    solver: Literal["sgd", "adamw"] = "sgd" if layers.startswith("blocks") else "adamw"
    spec = OptimSpec(
        solver=solver,
        lr=0.01,
        batch_size=max(SIZES),
        weight_decay=0.1,
        ema=0.9,
        clip=0.5,
        micro_batch=2,
        epochs=1,
    )
    return suffix, Trainer(suffix, spec, steps_per_epoch=STEPS, group=group, sharded=split)


def batches(layers: str, group: ProcessGroup) -> list[Batch]:
    """Return this process's part of each batch; the batches are the same in all processes."""
    made = []
    generator = torch.Generator().manual_seed(1)
    for size in SIZES:
        shape = (size, 17, 32) if layers.startswith("blocks") else (size, 3, 16, 16)
        inputs = torch.randn(shape, generator=generator)
        labels = torch.randint(0, 3, (size,), generator=generator)
        own = group.batch_slice(size)
        made.append(Batch(inputs[own], labels[own], size))
    return made


def end(suffix: nn.Module, trainer: Trainer) -> dict[str, Tensor]:
    """Return the averaged weights that an evaluation uses."""
    with trainer.evaluated():
        return {name: p.detach().clone() for name, p in suffix.named_parameters()}


def main(layers: str, out: Path) -> None:
    with process_group() as group:
        fed = batches(layers, group)
        found: dict[str, Tensor] = {}
        for name, split in (("whole", False), ("split", True)):
            suffix, trainer = begun(layers, group, split=split)
            losses = [trainer.step(batch).loss for batch in fed]
            found |= {f"{name}/{key}": value for key, value in end(suffix, trainer).items()}
            found[f"{name} losses"] = torch.tensor(losses)
        suffix, trainer = begun(layers, group, split=True)
        for batch in fed[:2]:
            trainer.step(batch)
        box = group.broadcast(trainer.state())
        suffix, trainer = begun(layers, group, split=True)
        trainer.load_state(*box)
        for batch in fed[2:]:
            trainer.step(batch)
        found |= {f"resumed/{key}": value for key, value in end(suffix, trainer).items()}
        own = trainer.parameters.values()
        sizes = [p.to_local().numel() for p in own if isinstance(p, DTensor)]
        found["held"] = torch.tensor(sum(sizes))
        found["all"] = torch.tensor(sum(p.numel() for p in own))
        if group.is_main:
            torch.save(found, out)
        group.barrier()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)  # gloo's threads may abort a process that exits normally, see __main__
