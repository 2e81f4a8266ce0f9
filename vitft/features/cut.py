"""The cut at the freeze boundary: a frozen prefix of the model and a trainable suffix.

A frozen prefix is a pure function of the pixels, so it runs once per image and view instead of once
per epoch. The suffix shares its parameters with the model: training it trains the model.
"""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitft.models.checkpoint import state_digest
from vitft.models.freeze import frozen_blocks
from vitft.models.timm_model import Model, TimmModel


class Prefix(nn.Module):
    """The frozen layers: pixels (B, 3, S, S) to tokens (B, N, D) or pooled features (B, D)."""

    def __init__(self, model: Model, stop: int, *, autocast: bool = False) -> None:
        super().__init__()
        self.model, self.stop, self.autocast = model, stop, autocast
        self.pooled = stop == model.config.depth
        self.eval()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output for one image: (D,) or (N, D)."""
        if isinstance(self.model, TimmModel) or self.pooled:
            return (self.model.feature_size,)
        config = self.model.config
        return (config.num_prefix + math.prod(config.grid), config.width)

    def forward(self, pixels: Tensor) -> Tensor:
        if isinstance(self.model, TimmModel) or self.pooled:
            return self.model.features(pixels)
        return self.model.encode(self.model.embed(pixels), stop=self.stop)

    def digest(self) -> str:
        """Return the sha256 of all that determines the output besides pixels and precision."""
        if isinstance(self.model, TimmModel):
            return state_digest(str(self.model.config.without_head()), self.model.net.state_dict())
        frozen = (f"blocks.{i}." for i in range(self.stop, self.model.config.depth))
        behind = ("head.", "pre_logits.", *frozen, *(() if self.pooled else ("norm.", "fc_norm.")))
        state = self.model.state_dict()
        used = {name: t.cpu() for name, t in state.items() if not name.startswith(behind)}
        return state_digest(f"{self.model.config.without_head()} {self.stop}", used)

    def in_precision(self, precision: str) -> "Prefix":
        """Return this prefix, or one that computes in bf16; fp16 runs cache float32 features.

        Our own models are copied with bf16 weights, which is leaner than autocast and equally
        exact. timm models have layers (BatchNorm) that need float32, which autocast handles.
        """
        if precision != "bf16":
            return self
        if isinstance(self.model, TimmModel):
            return Prefix(self.model, self.stop, autocast=True)
        return copy.deepcopy(self).to(torch.bfloat16)


class Suffix(nn.Module):
    """The trainable layers: output of `Prefix` to logits (B, C)."""

    def __init__(self, model: Model, start: int) -> None:
        super().__init__()
        self.start, self.pooled = start, start == model.config.depth
        self.model = model

    def train(self, mode: bool = True) -> "Suffix":
        """Set the mode of the layers after the cut; frozen layers stay in eval mode."""
        self.training = mode
        self.model.eval()
        parts: list[nn.Module] = [self.model.pre_logits, self.model.head]
        if not isinstance(self.model, TimmModel):
            parts += self.model.blocks[self.start :]
        for part in parts:
            part.train(mode)
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        if isinstance(self.model, TimmModel) or self.pooled:
            return self.model.classify(inputs)
        return self.model.classify(self.model.finish(inputs, self.start))


class Whole(nn.Module):
    """A model that is trained completely: pixels to logits (B, C)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model.classify(self.model.features(pixels))


class Cut(NamedTuple):
    """The two sides of the freeze boundary; without a prefix the suffix reads pixels."""

    prefix: Prefix | None
    suffix: nn.Module

    @property
    def pooled(self) -> bool:
        """Whether the suffix reads one feature per image, so that its own cost is negligible."""
        return self.prefix is not None and self.prefix.pooled


def cut_model(model: Model, freeze: str) -> Cut:
    """Cut a model whose frozen parameters are marked already (`models.freeze.freeze_model`)."""
    frozen = frozen_blocks(freeze, model.config.depth)
    if frozen is None:
        return Cut(None, Whole(model))
    return Cut(Prefix(model, frozen), Suffix(model, frozen))


@torch.inference_mode()
def run_prefix(prefix: Prefix, pixels: Tensor) -> Tensor:
    """Return the suffix's inputs for normalised float32 pixels, in the dtype of the prefix."""
    if prefix.autocast:
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16):
            return prefix(pixels).to(torch.bfloat16)
    return prefix(pixels.to(next(prefix.parameters()).dtype))
