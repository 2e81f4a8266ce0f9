"""Memory and time per process of distributed training: whole copies of the model, or FSDP2 shards.

    python -m benchmarks.speed.sharding [--size base] [--processes 2] [--batch 4] [--steps 3]

Both train the same model of random weights in full, with AdamW and EMA, on random pixels, in processes of
their own under torchrun, with one thread each. Memory is the first process's peak minus its memory after
importing torch; a step's time is the median of all steps but the first. glibc is set to return freed
memory to the system (MALLOC_MMAP_THRESHOLD_): otherwise the parameters that sharding frees and
allocates again would stay in its heap, a third more than whole copies take.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import torch

from vitft.config.sections import OptimSpec
from vitft.features.cut import cut_model
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import SIZES, ViTConfig
from vitft.system.device import peak_memory, pick_device
from vitft.training.loop import Batch, Trainer
from vitft.training.runtime import process_group

SETTINGS = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**18)}


def worker(args: argparse.Namespace) -> None:
    """Run as one process of the group; the first one prints."""
    torch.set_num_threads(1)
    with process_group() as group:
        kind = "gpu" if torch.cuda.is_available() else "resident"
        device = pick_device("cuda" if kind == "gpu" else "cpu")
        is_split = args.way == "split"
        before = peak_memory(device)[kind]
        size = SIZES[args.size]
        torch.manual_seed(0)
        config = ViTConfig(width=size.width, depth=size.depth, heads=size.heads, num_classes=10)
        suffix = cut_model(VisionTransformer(config).to(device), "all").suffix
        spec = OptimSpec(
            batch_size=32, solver="adamw", lr=1e-4, ema=0.999, micro_batch=args.micro_batch
        )
        trainer = Trainer(
            suffix, spec, steps_per_epoch=99, precision="bf16", group=group, sharded=is_split
        )
        labels = torch.randint(0, 10, (args.batch,), device=device)
        pixels = torch.randn(args.batch, 3, 224, 224, device=device)
        own = group.batch_slice(args.batch)
        seconds = []
        for _ in range(args.steps + 1):
            started = time.perf_counter()
            trainer.step(Batch(pixels[own], labels[own], args.batch))
            seconds.append(time.perf_counter() - started)
        with trainer.evaluated():
            pass
        used, count = (
            peak_memory(device)[kind] - before,
            sum(p.numel() for p in suffix.parameters()),
        )
        if group.is_main:
            print(
                f"{args.way}: {used} MiB ({used * 2**20 / count:.1f} bytes per parameter, "
                f"{count / 1e6:.1f} million parameters), step {statistics.median(seconds[1:]):.2f} s",
                flush=True,
            )
        group.barrier()
    os._exit(0)  # gloo's threads sometimes abort a process that exits normally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="base")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--way", choices=["whole", "split"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        worker(args)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    for way in ("whole", "split"):
        again = [*sys.argv[1:], "--way", way]
        team = ["--nproc-per-node", str(args.processes), "-m", "benchmarks.speed.sharding", *again]
        subprocess.run([*torchrun, *team], check=True, env=os.environ | SETTINGS)


if __name__ == "__main__":
    main()
