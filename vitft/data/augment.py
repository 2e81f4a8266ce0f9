"""Augmentation beyond crop and flip, by torchvision and timm, reproducibly.

The augmentation of an image depends on its key alone, that of a batch on the seed of the step.
torchvision and timm are imported only when used.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitft.config.sections import TrainSpec

OPERATIONS, MAGNITUDE = 2, 9
"""Operations per image in RandAugment, and their strength out of 30 (Cubuk 2020, 1909.13719)."""
GREY = (128, 128, 128)


def rand_augment(image: Image.Image, rng: random.Random) -> Image.Image:
    """Apply RandAugment with torchvision's operations, drawn from `rng`.

    torchvision draws from torch's global generator, which threads cannot share reproducibly;
    only its operations are used.
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
        image = _apply_op(
            image, name, strength, interpolation=InterpolationMode.BILINEAR, fill=[*GREY]
        )
    return image


def batch_augmentation(
    spec: TrainSpec, classes: int
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Return the augmentation of batches of pixels (B, 3, S, S) and labels (B,), or None for none.

    Mixed labels are class weights (B, C). With both mixup and CutMix, each batch gets one of them.

    Source: Zhang et al. 2018 (mixup, 1710.09412), Yun et al. 2019 (CutMix, 1905.04899), Zhong et
    al. 2020 (random erasing, 1708.04896).
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
        if spec.erasing:  # works in place
            erase = RandomErasing(spec.erasing, mode="pixel", device=str(pixels.device))
            pixels = erase(pixels.clone())
        if mixes:
            which = int(torch.randint(len(mixes), ())) if len(mixes) > 1 else 0
            pixels, labels = mixes[which](pixels, labels)
        return pixels, labels

    return change
