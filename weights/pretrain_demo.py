"""Train the bundled backbone on images drawn from formulas (see README.md in this folder).

    python weights/pretrain_demo.py --out weights/demo.safetensors

It uses the project's own model and training loop and downloads nothing. A small ViT with random
weights learns almost nothing about shape in its first thousands of steps. Three things shorten this
phase: images whose variation grows during training, an initialisation that already attends to
similar and near patches, and training on smaller images than the file is made for.

    python weights/pretrain_demo.py --out weights/demo.safetensors

It uses the project's own model and loop and nothing downloaded. A small ViT that starts from noise
learns almost nothing about shape in its first thousands of steps. Three things shorten that here:
images that begin tame and grow wild, a start that already attends to like and near patches, and
training on smaller images than the file is made for.
"""

import argparse
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from formulas import COLOURS, Pixels, formula_image
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.config.sections import OptimSpec
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.pretrained.load import adapt, sinusoidal_positions
from vitft.models.vit import Attention, Block, VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.training.loop import Batch, StepResult, Trainer

CLASSES = 200
FORM = 3 / 4
"""Weight of the form in the target; the rest is for the colour."""
INSTANCES = 200
"""Images per class; image i of n is drawn with `wild` = i / (n - 1)."""
BATCH = 32
STEPS_PER_EPOCH = 1000
TAME = 0.05
"""Fraction of each class's images, the least varied first, with which training starts."""
ARCHITECTURE = ViTConfig(
    image_size=(48, 48),
    patch_size=(8, 8),
    width=192,
    depth=4,
    heads=3,
    pool="mean",
    num_classes=CLASSES + COLOURS,
)
MARGIN = 6
"""Images are drawn this many pixels larger than the model's input, which is a random crop."""
SHIPPED = (80, 80)
"""Image size of the file in pixels: small images make training cheap, large ones help features."""
RAMP = 0.3
"""Fraction of training after which the most varied images are in use."""
SPEC = OptimSpec(
    solver="adamw",
    lr=6e-4,
    warmup=0.05,
    weight_decay=0.05,
    epochs=9,
    batch_size=BATCH,
    clip=1.0,
)


Number = TypeVar("Number", int, Tensor)


class ExplicitAttention(Attention):
    """Attention without the fused kernel; 1.5 times as fast in training on a CPU in bf16."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_heads(x)
        weights = (q / math.sqrt(q.shape[-1]) @ k.mT).softmax(dim=-1)  # (B, H, N, N)
        return self.proj((weights.to(v.dtype) @ v).transpose(1, 2).flatten(2))  # (B, N, D)


def main() -> None:
    """Train the model and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("weights/demo.safetensors"))
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of initialisation, images and their order"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="number of threads; affects rounding"
    )
    parser.add_argument(
        "--classes", type=int, default=CLASSES, help="number of classes; fewer for a trial"
    )
    parser.add_argument(
        "--images", type=int, default=INSTANCES, help="images per class; fewer for a trial"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS_PER_EPOCH, help="steps per epoch; fewer for a trial"
    )
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="images per step; fewer for a trial"
    )
    args = parser.parse_args()
    if not 1 <= args.classes <= CLASSES:
        parser.error(f"--classes must be from 1 to {CLASSES}: the outputs after them are colours")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    began = time.perf_counter()

    drawn = draw_classes(args.classes, args.images, seed=args.seed)
    print(f"drawn after {time.perf_counter() - began:.0f} s")
    model = started_model(ARCHITECTURE)
    trainer = Trainer(model, SPEC, steps_per_epoch=args.steps, precision="bf16")
    on_step = means_printed(began, of=trainer.total_steps)
    for epoch in range(SPEC.epochs):
        for batch in batches(drawn, epoch, steps=args.steps, size=args.batch, seed=args.seed):
            on_step(trainer.step(batch))
    about = card(drawn, trainer, batch=args.batch, seed=args.seed, threads=args.threads)
    digest = save_checkpoint(args.out, shipped(model), about)
    print(f"{args.out}: sha256 of card and tensors {digest}")


def draw_classes(classes: int, images: int, *, seed: int) -> Tensor:
    """Draw every image of every class, with one process per core: uint8 (C, n, S, S, 3)."""
    # A fork could copy locks that torch's threads hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context) as pool:
        jobs = [(label, images, seed) for label in range(classes)]
        return torch.from_numpy(np.stack(list(pool.map(draw_class, jobs, chunksize=8))))


def draw_class(job: tuple[int, int, int]) -> Pixels:
    """Draw the images of one class, the least varied first: (n, S, S, 3)."""
    (label, images, seed), size = job, ARCHITECTURE.image_size[0] + MARGIN
    wild = np.linspace(0, 1, images).tolist()
    return np.stack(
        [
            formula_image(label, i, size=size, wild=share, colour=colour_of(label, i), seed=seed)
            for i, share in enumerate(wild)
        ]
    )


def colour_of(label: Number, instance: Number) -> Number:
    """Return the kind of colour of an image; every form has all kinds in turn."""
    return (label + 5 * instance) % COLOURS


def batches(
    drawn: Tensor, epoch: int, *, steps: int, seed: int, size: int = BATCH
) -> Iterator[Batch]:
    """Yield one epoch of random crops of drawn images, determined by the seed and the epoch."""
    rng = torch.Generator().manual_seed(1000 * seed + epoch)
    normalise = EvalTransform().normalise
    for step in range(steps):
        done = (epoch + step / steps) / SPEC.epochs
        reach = min(1.0, TAME + done / RAMP)
        labels = torch.randint(0, len(drawn), (size,), generator=rng)
        instances = torch.randint(0, round(reach * drawn.shape[1]), (size,), generator=rng)
        pixels = normalise(windows(drawn[labels, instances], rng))
        shares = F.one_hot(labels, ARCHITECTURE.num_classes) * FORM
        colours = CLASSES + colour_of(labels, instances)
        shares += F.one_hot(colours, ARCHITECTURE.num_classes) * (1 - FORM)
        yield Batch(pixels.contiguous(), shares)  # the memory layout affects rounding


def windows(images: Tensor, rng: torch.Generator) -> Tensor:
    """Return a random crop of each image: uint8 (B, S, S, 3)."""
    side = ARCHITECTURE.image_size[0]
    corners = torch.randint(0, MARGIN + 1, (len(images), 2), generator=rng).tolist()
    views = []
    for image, (top, left) in zip(images, corners, strict=True):
        views.append(image[top : top + side, left : left + side])
    return torch.stack(views)


def started_model(config: ViTConfig) -> VisionTransformer:
    """Return an untrained model whose attention is initialised to near and similar patches.

    Source: Trockman & Kolter 2023, "Mimetic Initialization of Self-Attention Layers",
    https://arxiv.org/abs/2305.09828, section 3, with their constants.
    """
    model = VisionTransformer(config)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attn.__class__ = ExplicitAttention
        nn.init.xavier_uniform_(block.mlp.fc1.weight)
        nn.init.xavier_uniform_(block.mlp.fc2.weight)
        mimic(block.attn, config)
    with torch.no_grad():
        model.pos_embed[0, 1:] = sinusoidal_positions(config.grid, config.width)
    return model


@torch.no_grad()
def mimic(attention: Attention, config: ViTConfig) -> None:
    """Initialise the query-key product near the identity, value-output near its negative."""
    width, side = config.width, config.width // config.heads
    for head in range(config.heads):
        u, s, v = torch.linalg.svd(near_identity(width, 0.7, 0.7))
        rows = slice(head * side, (head + 1) * side)
        attention.qkv.weight[:width][rows] = (u[:, :side] * s[:side].sqrt()).T
        attention.qkv.weight[width : 2 * width][rows] = v[:side] * s[:side].sqrt()[:, None]
    u, s, v = torch.linalg.svd(near_identity(width, 0.4, -0.4))
    attention.qkv.weight[2 * width :] = v * s.sqrt()[:, None]
    attention.proj.weight.copy_(u * s.sqrt())


def near_identity(width: int, noise: float, share: float) -> Tensor:
    """Return a multiple of the identity plus noise of spectral norm `noise`: (D, D)."""
    return noise * torch.randn(width, width) / math.sqrt(width) + share * torch.eye(width)


def shipped(model: VisionTransformer) -> dict[str, Tensor]:
    """Return the backbone without head in bf16, with resized positions."""
    target = replace(model.config, image_size=SHIPPED)
    state, *_ = adapt(model.state_dict(), model.config, target, new_head=True, pos_embed="bicubic")
    return {name: tensor.bfloat16() for name, tensor in state.items()}


def card(drawn: Tensor, trainer: Trainer, *, batch: int, seed: int, threads: int) -> Card:
    """Return the card of the file."""
    return Card(
        architecture=replace(ARCHITECTURE, image_size=SHIPPED, num_classes=0),
        transform=EvalTransform(image_size=SHIPPED, crop=1.0),
        pos_embed="6x6 resized to 10x10, bicubic",
        weights={
            "name": "demo",
            "source": "weights/pretrain_demo.py",
            "licence": "Apache-2.0",
            "data": f"{len(drawn)} classes of images drawn from formulas, in {COLOURS} kinds of "
            "colour; no photos, no flowers",
            "training": f"{trainer.total_steps} steps of {batch} images of "
            f"{ARCHITECTURE.image_size[0]} pixels, bf16, seed {seed}, threads {threads}",
        },
    )


def means_printed(began: float, *, of: int) -> Callable[[StepResult], None]:
    """Return a callback that prints mean loss and accuracy every 500 steps."""
    window: list[tuple[float, float]] = []

    def on_step(step: StepResult) -> None:
        window.append((step.loss, step.correct / step.images))
        if len(window) == 500:
            loss, accuracy = np.mean(window, axis=0)
            window.clear()
            print(
                f"step {step.step + 1} of {of}: loss {loss:.3f}, accuracy {accuracy:.3f}, "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )

    return on_step


if __name__ == "__main__":
    main()
