"""Script for torchrun: one training step with BatchNorm; each process writes what it has."""

import os
import sys
from pathlib import Path

import torch
from torch import nn

from vitft.config import OptimSpec
from vitft.training import Batch, Trainer, process_group


def main(out: Path) -> None:
    with process_group() as group:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Identity(), nn.BatchNorm1d(3), nn.Linear(3, 2))
        spec = OptimSpec(batch_size=32, solver="sgd", lr=0.1, epochs=1, ema=0.5)
        trainer = Trainer(model, spec, steps_per_epoch=1, group=group)
        inputs, own = torch.randn(8, 3), group.batch_slice(8)
        trainer.step(Batch(inputs[own], torch.arange(8)[own] % 2, 8))
        found = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
        found |= {f"average/{name}": mean for name, mean in trainer.average.average.items()}
        torch.save(found, out / f"{group.rank}.pt")
        torch.save(inputs[own].mean(dim=0), out / f"{group.rank}-inputs.pt")
        group.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # gloo's threads may abort a process that exits normally, see __main__
