"""Small images as one tensor in memory, and the way they are moved about in whole batches.

Decoding a picture of 32 pixels takes longer than training on it, so each one is decoded once. What
moves an image is drawn from (seed, epoch, image) alone: not from the batch it falls into.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST_SIDE = 64
"""Pixels up to which the images of a training are held in memory."""
BUDGET = 2**30
"""Bytes that they may take."""
STREAM = 0x5417F7
"""Keeps these draws apart from others of the same seed and epoch."""


class Moves(NamedTuple):
    """How each image of a batch is moved."""

    down: Tensor
    """First row (B,) of what is cut from the padded image, from 0 to twice the padding."""
    across: Tensor
    """First column (B,)."""
    mirrored: Tensor
    """Whether left and right are exchanged (B,)."""


def fits(count: int, size: tuple[int, int], channels: int) -> bool:
    """Whether so many images are small enough to be held in memory."""
    return max(size) <= LARGEST_SIDE and count * size[0] * size[1] * channels <= BUDGET


def drawn_moves(
    images: Tensor, turns: Tensor, *, count: int, seed: int, epoch: int, padding: int, flip: float
) -> Moves:
    """The moves of some of `count` images in an epoch.

    Args:
        images: Their numbers (B,), from 0.
        turns: How often each was used in this epoch before (B,): it moves differently each time.
        count: How many images there are.
        seed: Of the training.
        epoch: Counted from 0.
        padding: Pixels that an image moves at most.
        flip: Share that is mirrored.
    """
    moves = torch.empty((3, len(images)), dtype=torch.long)
    for turn in turns.unique().tolist():
        random = np.random.default_rng([seed, epoch, turn, STREAM])
        table = np.stack(
            [
                *random.integers(0, 2 * padding + 1, (2, count)),
                (random.random(count) < flip).astype(np.int64),
            ]
        )
        here = turns == turn
        moves[:, here] = torch.from_numpy(table[:, images[here].numpy()])
    return Moves(moves[0], moves[1], moves[2].bool())


def moved(pixels: Tensor, moves: Moves, padding: int) -> Tensor:
    """Pad uint8 images (B, H, W, C) with black, cut a window of their size, mirror some.

    Source: the augmentation of He et al. 2016 for CIFAR, https://arxiv.org/abs/1512.03385, section
    4.2, as a gather over the whole batch.
    """
    height, width = pixels.shape[1:3]
    padded = F.pad(pixels, (0, 0, padding, padding, padding, padding))
    windows = padded.unfold(1, height, 1).unfold(2, width, 1)  # (B, 2p + 1, 2p + 1, C, H, W)
    down, across, mirrored = (move.to(pixels.device) for move in moves)
    cut = windows[torch.arange(len(pixels), device=pixels.device), down, across]  # (B, C, H, W)
    turned = torch.where(mirrored[:, None, None, None], cut.flip(-1), cut)
    return turned.permute(0, 2, 3, 1)


def padding_of(padding: int, size: tuple[int, int]) -> int:
    """Pixels that an image moves at most; 0: an eighth of the shorter side, 4 of 32."""
    return padding or max(1, min(size) // 8)
