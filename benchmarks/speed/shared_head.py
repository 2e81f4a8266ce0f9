"""Processor time of the shared fit of a head (`training.shared_solve`), by number of processes.

    python -m benchmarks.speed.shared_head [--images 100000] [--width 192] [--classes 50]

Each size starts gloo processes with one thread each. The features are random, with one centre for
each class. Printed are the processor seconds of each process within the fit, and whether the head
has the bits of that of one process.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from vitft.features.logistic import (
    CHUNK_ROWS,
    HeadObjective,
    Problem,
    Sharing,
    Standardizer,
    solve_logistic,
)
from vitft.training.distributed import process_group, solve_together


def fit(images: int, width: int, classes: int, out: Path) -> None:
    """Take part in the fit as one process, and write the head and the processor seconds."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(images) % classes
    x = torch.randn(images, width, generator=generator)
    x += 0.3 * torch.randn(classes, width, generator=generator)[y]
    weights = torch.ones(1, images)
    with process_group() as group:

        def own(problem: Problem) -> HeadObjective:
            rows = group.indices(images, CHUNK_ROWS, group.rank)
            return problem.objective(x[rows], y[rows], weights[:, rows])

        def solve(sharing: Sharing | None) -> torch.Tensor:
            scale = Standardizer.fit(x)
            return solve_logistic(
                x, y, weights, classes=classes, l2=0.01, standardizer=scale, sharing=sharing
            )

        begin = time.process_time()
        head = solve_together(group, solve, own)
        seconds = time.process_time() - begin
        group.barrier()
        torch.save((head, seconds), out / f"{group.size}-{group.rank}.pt")


def main() -> None:
    """Fit with 1, 2 and 4 processes, and print the seconds of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        fit(options.images, options.width, options.classes, options.out)
        time.sleep(1)  # the others may still be receiving the last message
        os._exit(0)  # gloo's threads may abort a process that exits normally
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, 2, 4):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                      "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}  # fmt: skip
            ranks = [
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "benchmarks.speed.shared_head",
                        *sys.argv[1:],
                        "--out",
                        folder,
                    ],
                    env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
                for rank in range(size)
            ]
            codes = [process.wait() for process in ranks]
            assert not any(codes), codes
            found = [torch.load(Path(folder) / f"{size}-{rank}.pt") for rank in range(size)]
            alone = torch.load(Path(folder) / "1-0.pt")[0]
            seconds = ", ".join(f"{one[1]:.1f}" for one in found)
            print(f"{size}: {seconds} s, equal bits: {torch.equal(found[0][0], alone)}", flush=True)


if __name__ == "__main__":
    main()
