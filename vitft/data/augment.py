"""Reproducible augmentation beyond random crops: RandAugment, mixup, CutMix, erasing and shifts.

RandAugment is seeded with the view and the image, and batch augmentation with the step. Decoding a
32-pixel image takes longer than training on it, so small images are kept in memory as one tensor,
and shifted and flipped in whole batches. The shift of an image depends on the seed, the epoch, the
image and the number of its earlier uses in the epoch, but not on the batch.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitft.config.sections import TrainSpec
from vitft.system.device import to_device

MEMORY_SIDE, MEMORY_BYTES = 64, 2**30
"""Maximum side in pixels, and maximum total size in bytes, of images kept in memory."""
_STREAM = 0x5417F7
"""Constant that separates the random stream of shifts from others with the same seed and epoch."""
OPERATIONS, MAGNITUDE = 2, 9
"""RandAugment operations per image, and their strength (of 30): Cubuk 2020, arXiv:1909.13719."""


def rand_augment(image: Image.Image, rng: random.Random) -> Image.Image:
    """Apply RandAugment with torchvision's operations, chosen at random with `rng`.

    torchvision's own version draws from torch's global generator, which threads cannot share
    reproducibly.
    """
    from torchvision.transforms import InterpolationMode, RandAugment
    from torchvision.transforms.autoaugment import _apply_op

    space: Any = RandAugment()._augmentation_space(31, (image.height, image.width))
    names = sorted(space)
    for _ in range(OPERATIONS):
        name = names[rng.randrange(len(names))]
        values, signed = space[name]
        strength = float(values[MAGNITUDE]) if values.ndim else 0.0
        if signed and rng.random() < 0.5:
            strength = -strength
        grey, bilinear = [128, 128, 128], InterpolationMode.BILINEAR
        image = _apply_op(image, name, strength, interpolation=bilinear, fill=grey)
    return image


def batch_augmentation(
    spec: TrainSpec, classes: int
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Return a function that augments pixels and labels, or None if all augmentations are off.

    Pixels are (B, channels, H, W) and labels (B,); mixed labels are class weights (B, classes). If
    both mixup and CutMix are on, one of them is chosen at random for each batch.

    Sources: Zhang et al. 2018 (mixup, arXiv:1710.09412), Yun et al. 2019 (CutMix,
    arXiv:1905.04899), Zhong et al. 2020 (random erasing, arXiv:1708.04896).
    """
    if not (spec.mixup or spec.cutmix or spec.erasing):
        return None
    from timm.data.random_erasing import RandomErasing
    from torchvision.transforms import v2

    mixes: list[Any] = []
    if spec.mixup:
        mixes.append(v2.MixUp(alpha=spec.mixup, num_classes=classes))
    if spec.cutmix:
        mixes.append(v2.CutMix(alpha=spec.cutmix, num_classes=classes))

    def change(pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if spec.erasing:  # RandomErasing modifies its input in place
            erase = RandomErasing(spec.erasing, mode="pixel", device=str(pixels.device))
            pixels = erase(pixels.clone())
        if mixes:
            which = int(torch.randint(len(mixes), ())) if len(mixes) > 1 else 0
            pixels, labels = mixes[which](pixels, labels)
        return pixels, labels

    return change


class Shifts(NamedTuple):
    """Shift and flip of each image in a batch."""

    down: Tensor  # (B,): first row of the window in the padded image, from 0 to 2 * padding
    across: Tensor  # (B,): first column of the window
    mirrored: Tensor  # (B,): whether the image is flipped horizontally


def fits(count: int, size: tuple[int, int], channels: int) -> bool:
    """Return whether `count` images are small enough to keep in memory."""
    return max(size) <= MEMORY_SIDE and count * size[0] * size[1] * channels <= MEMORY_BYTES


def draw_shifts(
    images: Tensor, turns: Tensor, *, count: int, seed: int, epoch: int, padding: int, flip: float
) -> Shifts:
    """Draw the shifts of up to `padding` pixels, and the flips, for `images` (B,) out of `count`.

    `turns` (B,) are the numbers of earlier uses of each image in the epoch; each use has a new
    shift.
    """
    moves = torch.empty((3, len(images)), dtype=torch.long)
    for turn in turns.unique().tolist():
        random = np.random.default_rng([seed, epoch, turn, _STREAM])
        windows = random.integers(0, 2 * padding + 1, (2, count))
        table = np.stack([*windows, (random.random(count) < flip).astype(np.int64)])
        here = turns == turn
        moves[:, here] = torch.from_numpy(table[:, images[here].numpy()])
    return Shifts(moves[0], moves[1], moves[2].bool())


def shift_and_flip(pixels: Tensor, moves: Shifts, padding: int) -> Tensor:
    """Pad uint8 images (B, H, W, C) with zeros, crop them to their original size, and flip some.

    The crop is a single gather over the whole batch. Source: the CIFAR augmentation of He et al.
    2016, https://arxiv.org/abs/1512.03385, section 4.2.
    """
    height, width = pixels.shape[1:3]
    padded = F.pad(pixels, (0, 0, padding, padding, padding, padding))
    windows = padded.unfold(1, height, 1).unfold(2, width, 1)  # (B, 2p + 1, 2p + 1, C, H, W)
    down, across, mirrored = (to_device(move, pixels.device) for move in moves)
    cut = windows[torch.arange(len(pixels), device=pixels.device), down, across]  # (B, C, H, W)
    turned = torch.where(mirrored[:, None, None, None], cut.flip(-1), cut)
    return turned.permute(0, 2, 3, 1)


def default_padding(padding: int, size: tuple[int, int]) -> int:
    """Return the maximum shift in pixels: `padding` or, if that is 0, 1/8 of the shorter side."""
    return padding or max(1, min(size) // 8)
