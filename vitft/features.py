"""The freeze boundary as a cut: a frozen prefix that maps pixels to inputs, a suffix that trains.

A frozen prefix is a pure function of the pixels, so it runs once per image and view instead of
once per epoch. The suffix shares its parameters with the model: training it trains the model.
"""

import copy
import math
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vitft.checkpoint import digest_of
from vitft.model import Block, VisionTransformer
from vitft.optim import frozen_blocks


class Prefix(nn.Module):
    """The frozen part: pixels (B, 3, S, S) to tokens (B, N, D) or pooled features (B, D)."""

    def __init__(self, model: VisionTransformer, stop: int) -> None:
        super().__init__()
        self.model, self.stop = model, stop
        self.pooled = stop == model.config.depth
        self.eval()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what one image becomes: (D,) or (N, D)."""
        config = self.model.config
        if self.pooled:
            read = config.num_read if config.pool == "cls" else 1
            return (read * config.width,)
        return (config.num_prefix + math.prod(config.grid), config.width)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.model.embed(pixels)
        if not self.pooled:
            return self.model.encode(tokens, stop=self.stop)
        if self.model.config.pool != "cls":
            return self.model.pool(self.model.encode(tokens))
        # Nobody reads what the last block does to the patches.
        tokens = self.model.encode(tokens, stop=self.stop - 1)
        return self.model.pool(cast("Block", self.model.blocks[-1]).for_class_token(tokens))

    def digest(self) -> str:
        """sha256 over everything the output depends on besides the pixels and the precision."""
        frozen = (f"blocks.{i}." for i in range(self.stop, self.model.config.depth))
        behind = ("head.", "pre_logits.", *frozen, *(() if self.pooled else ("norm.", "fc_norm.")))
        state = self.model.state_dict()
        used = {name: t.cpu() for name, t in state.items() if not name.startswith(behind)}
        config = replace(self.model.config, num_classes=0, pre_logits=False, drop_path=0.0)
        return digest_of(f"{config} {self.stop}", used)

    def in_precision(self, precision: str) -> "Prefix":
        """This prefix, or a copy of it with bf16 weights: leaner than autocast, equally exact."""
        return self if precision == "fp32" else copy.deepcopy(self).to(torch.bfloat16)


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

    @property
    def pooled(self) -> bool:
        """Whether the suffix reads one feature per image, so that its own cost is nothing."""
        return self.prefix is not None and self.prefix.pooled


def cut_model(model: VisionTransformer, freeze: str) -> Cut:
    """Split a model whose frozen parameters are already marked (`optim.freeze_model`)."""
    frozen = frozen_blocks(freeze, model.config.depth)
    if frozen is None:
        return Cut(None, model)
    return Cut(Prefix(model, frozen), Suffix(model, frozen))


@torch.inference_mode()
def run_prefix(prefix: Prefix, pixels: Tensor) -> Tensor:
    """Inputs of the suffix for a batch of normalised float32 pixels, in the prefix's own type."""
    return prefix(pixels.to(prefix.model.cls_token.dtype))
