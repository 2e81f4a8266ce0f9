"""Training from scratch: time per epoch compared with a tutorial's kind of code.

    python -m benchmarks.speed.from_scratch --data CIFAR [--images 5000] [--repeats 3]

Trains the same model (patch 4, 4 blocks 48 wide, 4 heads, batch 256, AdamW) on the same images,
once with vitft's batches and loop, once as tutorials write it: one module per attention head, a
DataLoader that opens each file with Pillow in each epoch, float32, no fused kernels. Both take turns in
one process, so that other load on the machine affects both. CPU seconds are user and system time,
with the loader's processes.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as tv

from benchmarks.timing import cpu_seconds, interleave
from vitft.config.run import Config, config_from_table, read_recipe
from vitft.data.image_table import Images
from vitft.system.cores import freed_memory_kept
from vitft.training.batches import training_batches
from vitft.training.loop import Trainer
from vitft.training.runtime import Runtime
from vitft.training.setup import (
    extract_features,
    first_inputs,
    list_images,
    load_model,
    split_images,
)

BATCH, WIDTH, HEADS, DEPTH, PATCH = 256, 48, 4, 4, 4


class Head(nn.Module):
    """One attention head with three layers of its own."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.query, self.key, self.value = (nn.Linear(WIDTH, size) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        return nn.functional.softmax(scores, dim=-1) @ self.value(x)


class Layer(nn.Module):
    """Heads in a Python loop, then the MLP, with LayerNorm before each."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(HEADS))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before(x)
        x = x + self.out(torch.cat([head(normed) for head in self.heads], dim=-1))
        return x + self.mlp(self.between(x))


class Plain(nn.Module):
    """A Vision Transformer as a tutorial writes it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, (32 // PATCH) ** 2 + 1, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], dim=1) + self.positions
        return self.head(self.layers(tokens)[:, 0])


class Files(Dataset[tuple[Tensor, int]]):
    """Images that are opened and augmented at each access."""

    def __init__(self, paths: list[str], labels: list[int]) -> None:
        self.paths, self.labels = paths, labels
        self.transform = tv.Compose([
            tv.RandomCrop(32, padding=4), tv.RandomHorizontalFlip(), tv.ToTensor(),
            tv.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.transform(Image.open(self.paths[i], formats=None).convert("RGB")), self.labels[
            i
        ]


def theirs(manifest: Images, workers: int) -> Callable[[], int]:
    """Return a function that trains one epoch with a tutorial's kind of code."""
    rows = manifest.train
    loader = DataLoader(
        Files([manifest.locate(row) for row in rows], [row.label for row in rows]),
        batch_size=BATCH, shuffle=True, num_workers=workers,
    )  # fmt: skip
    model = Plain(len(manifest.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)

    def epoch() -> int:
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return len(rows)

    return epoch


def ours(config: Config, limit: int) -> tuple[Callable[[], int], Images]:
    """Return a function that trains one epoch with vitft, and its split."""
    runtime = Runtime()
    folder, config = list_images(config, runtime)
    pipeline, _, config = load_model(folder, config, runtime)
    images, features, fingerprints = extract_features(pipeline, folder, config, runtime)
    data = split_images(images, folder.rows, fingerprints, pipeline, config, runtime)
    inputs = first_inputs(data, pipeline, features, config)
    manifest = data.manifest
    step = max(1, len(manifest.train) // limit)
    manifest = replace(manifest, rows=(*manifest.train[::step][:limit], *manifest.val[:1]))
    inputs = replace(inputs, data=replace(data, manifest=manifest))
    trainer = Trainer(
        inputs.cut.suffix, config.optim, steps_per_epoch=math.ceil(len(manifest.train) / BATCH),
        precision=pipeline.precision, seed=0,
    )  # fmt: skip
    batches = training_batches(config.train, config.optim, inputs)

    def epoch() -> int:
        with freed_memory_kept(when=True):  # as in `training.record.open_run`
            for batch in batches(trainer.steps // trainer.steps_per_epoch, 0):
                trainer.step(batch)
        return len(manifest.train)

    return epoch, manifest


def timed(epoch: Callable[[], int]) -> tuple[float, float]:
    """Return images per second of wall time and of CPU time."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    images = epoch()
    return images / (time.perf_counter() - wall), images / (cpu_seconds() - cpu)


def compare(args: argparse.Namespace) -> None:
    """Time both in turn and print the ratio."""
    table: dict[str, Any] = read_recipe("cifar10-tutorial")
    table["data"] = {"path": args.data}
    table["train"]["device"] = "cpu"
    our, manifest = ours(config_from_table(table), args.images)
    ways = {"ours": our, f"tutorial, {args.workers} workers": theirs(manifest, args.workers)}
    seen = interleave({name: partial(timed, epoch) for name, epoch in ways.items()}, args.repeats)
    print(f"{len(manifest.train)} images an epoch, {torch.get_num_threads()} threads")
    medians = {
        n: [statistics.median(x) for x in zip(*rows, strict=True)] for n, rows in seen.items()
    }
    for name, (wall, cpu) in medians.items():
        print(f"{name:24} {wall:8.0f} images/s {cpu:8.0f} images per CPU second  {seen[name]}")
    first, second = medians.values()
    print(f"ratio: {first[0] / second[0]:.2f} by wall time, {first[1] / second[1]:.2f} by CPU time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of the tutorial's DataLoader")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
