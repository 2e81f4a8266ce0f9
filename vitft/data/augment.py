"""Reproducible augmentation beyond random crops: RandAugment, mixup, CutMix, erasing and shifts.

RandAugment is seeded with the view and the image, and batch augmentation with the step. Small
images are kept in memory as one tensor, and shifted and flipped in whole batches. The shift of an
image depends on the seed, the epoch, the image and its earlier uses, but not on the batch.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitft.config.sections import TrainSpec
from vitft.system.device import to_device

_STREAM = 0x5417F7  # separates the random stream of shifts from others of the seed and epoch
_OPERATIONS, _MAGNITUDE = 2, 9
"""RandAugment operations per image, and their strength (of 30): Cubuk 2020, arXiv:1909.13719."""


def rand_augment(image: Image.Image, rng: random.Random) -> Image.Image:
    """Apply torchvision's RandAugment, drawn with `rng`: threads cannot share torch's generator."""
    from torchvision.transforms import InterpolationMode, RandAugment
    from torchvision.transforms.autoaugment import _apply_op

    space: Any = RandAugment()._augmentation_space(31, (image.height, image.width))
    names = sorted(space)
    for _ in range(_OPERATIONS):
        name = names[rng.randrange(len(names))]
        values, signed = space[name]
        strength = float(values[_MAGNITUDE]) if values.ndim else 0.0
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

    kinds = ((v2.MixUp, spec.mixup), (v2.CutMix, spec.cutmix))
    mixes = [kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha]

    def change(pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if spec.erasing:  # RandomErasing modifies its input in place
            erase = RandomErasing(spec.erasing, mode="pixel", device=str(pixels.device))
            pixels = erase(pixels.clone())
        if mixes:
            which = int(torch.randint(len(mixes), ())) if len(mixes) > 1 else 0
            pixels, labels = mixes[which](pixels, labels)
        return pixels, labels

    return change


def draw_shifts(
    images: Tensor, turns: Tensor, *, count: int, seed: int, epoch: int, padding: int, flip: float
) -> Tensor:
    """Draw the shifts of up to `padding` pixels, and the flips, for `images` (B,) out of `count`.

    `turns` (B,) are the numbers of earlier uses of each image in the epoch; each use has a new
    shift. Return the first row and the first column of each image's window in the padded image,
    from 0 to 2 * padding, and whether it is flipped horizontally: (3, B).
    """
    moves = torch.empty((3, len(images)), dtype=torch.long)
    for turn in turns.unique().tolist():
        random = np.random.default_rng([seed, epoch, turn, _STREAM])
        windows = random.integers(0, 2 * padding + 1, (2, count))
        table = np.stack([*windows, (random.random(count) < flip).astype(np.int64)])
        here = turns == turn
        moves[:, here] = torch.from_numpy(table[:, images[here].numpy()])
    return moves


def shift_and_flip(pixels: Tensor, moves: Tensor, padding: int) -> Tensor:
    """Pad uint8 images (B, H, W, C) with zeros, crop them to their original size, and flip some.

    `moves` (3, B) are those of `draw_shifts`. The crop is a single gather over the whole batch.
    Source: the CIFAR augmentation of He et al. 2016, https://arxiv.org/abs/1512.03385, section 4.2.
    """
    height, width = pixels.shape[1:3]
    padded = F.pad(pixels, (0, 0, padding, padding, padding, padding))
    windows = padded.unfold(1, height, 1).unfold(2, width, 1)  # (B, 2p + 1, 2p + 1, C, H, W)
    down, across, mirrored = to_device(moves, pixels.device)
    cut = windows[torch.arange(len(pixels), device=pixels.device), down, across]  # (B, C, H, W)
    turned = torch.where(mirrored.bool()[:, None, None, None], cut.flip(-1), cut)
    return turned.permute(0, 2, 3, 1)
