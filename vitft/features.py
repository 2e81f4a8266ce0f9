"""The freeze boundary as a cut: a frozen prefix that maps pixels to inputs, a suffix that trains.

A frozen prefix is a pure function of the pixels, so it runs once per image and view instead of
once per epoch. The suffix shares its parameters with the model: training it trains the model.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitft.loop import autocast
from vitft.model import VisionTransformer
from vitft.optim import frozen_blocks


class Prefix(nn.Module):
    """The frozen part: pixels (B, 3, S, S) to tokens (B, N, D) or pooled features (B, D)."""

    def __init__(self, model: VisionTransformer, stop: int) -> None:
        super().__init__()
        self.model, self.stop = model, stop
        self.pooled = stop == model.config.depth
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.model.encode(self.model.embed(pixels), stop=self.stop)
        return self.model.pool(tokens) if self.pooled else tokens


class Suffix(nn.Module):
    """The part that trains: what `Prefix` gives, to logits (B, C)."""

    def __init__(self, model: VisionTransformer, start: int) -> None:
        super().__init__()
        self.start, self.pooled = start, start == model.config.depth
        self.model = model

    def train(self, mode: bool = True) -> "Suffix":
        """Switch the blocks behind the cut; frozen parts stay in eval mode."""
        self.training = mode
        self.model.eval()
        for part in (*self.model.blocks[self.start :], self.model.pre_logits, self.model.head):
            part.train(mode)
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.pooled:
            inputs = self.model.pool(self.model.encode(inputs, start=self.start))
        return self.model.classify(inputs)


class Cut(NamedTuple):
    """The two sides of the freeze boundary; without a prefix the suffix reads pixels."""

    prefix: Prefix | None
    suffix: nn.Module


def cut_model(model: VisionTransformer, freeze: str) -> Cut:
    """Split a model whose frozen parameters are already marked (`optim.freeze_model`)."""
    frozen = frozen_blocks(freeze, model.config.depth)
    if frozen is None:
        return Cut(None, model)
    return Cut(Prefix(model, frozen), Suffix(model, frozen))


@torch.inference_mode()
def run_prefix(prefix: Prefix, pixels: Tensor, *, precision: str) -> Tensor:
    """Inputs of the suffix for one batch of normalised pixels, in float32 on the same device."""
    with autocast(pixels.device, precision):
        return prefix(pixels).float()


def run_once(prefix: Prefix, batches: Iterable[Tensor], *, precision: str) -> Tensor:
    """Inputs of the suffix for all images, kept in memory on the device: (n, D) or (n, N, D)."""
    # Cloned outside inference mode: autograd must be able to save them for the backward pass.
    parts = [run_prefix(prefix, pixels, precision=precision) for pixels in batches]
    return torch.cat(parts).clone()
