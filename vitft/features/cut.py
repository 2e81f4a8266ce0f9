"""Cutting a model at the freeze boundary into a frozen prefix and a trainable suffix.

The frozen prefix is a pure function of the pixels, so it runs once per image and view, not once per
epoch. The suffix shares its parameters with the model, so training the suffix trains the model.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitft.models.checkpoint import state_digest
from vitft.models.timm_model import Model
from vitft.models.vit_config import frozen_blocks
from vitft.system.device import exact_float32


class Prefix(nn.Module):
    """Frozen layers that map pixels (B, channels, H, W) to tokens or pooled features (B, D).

    Tokens are (B, N, width), or in a timm model inputs to a block.
    """

    def __init__(
        self, model: Model, stop: int, *, autocast: bool = False, intermediate: int = 0
    ) -> None:
        super().__init__()
        self.model, self.stop, self.autocast = model, stop, autocast
        self.intermediate = intermediate  # blocks before an intermediate feature, if any
        self.pooled = stop == len(model.blocks)
        self.shape = (model.feature_size,) if self.pooled else model.token_shape(stop)  # of one
        # How many leading values of the last axis come from the last block
        self.leading = model.last_block_size if self.pooled else self.shape[-1]
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        if self.pooled:
            return self.model.features(pixels, self.intermediate)
        return self.model.tokens_before(pixels, self.stop)

    def digest(self) -> str:
        """Return the SHA-256 of all that affects the output, except pixels and precision."""
        model, after = self.model, self.model.trained_after(self.stop)
        tensors = [*model.named_parameters(), *model.named_buffers()]
        used = {name: tensor for name, tensor in tensors if name not in after}
        return state_digest(f"{model.config.without_head()} {self.stop}", used)

    def in_precision(self, precision: str) -> "Prefix":
        """Return the prefix, converted to bf16 if `precision` is `bf16`."""
        if precision != "bf16":  # activations of large models may exceed the range of fp16
            return self
        if self.model.casts_to_bf16:
            return copy.deepcopy(self).to(torch.bfloat16)
        return Prefix(self.model, self.stop, autocast=True)


class _Suffix(nn.Module):
    """Trainable layers that map the output of `Prefix` to logits (B, C)."""

    def __init__(self, model: Model, start: int) -> None:
        super().__init__()
        self.start, self.pooled = start, start == len(model.blocks)
        self.model = model
        # The layers with these parameters, e.g. BatchNorm between stages
        self.owners = sorted({name.rpartition(".")[0] for name in model.trained_after(start)})

    def train(self, mode: bool = True) -> "_Suffix":
        self.training = mode  # of the trainable layers; all others stay in eval mode
        self.model.eval()
        owners = (self.model.get_submodule(name) for name in self.owners)
        for part in (*list(self.model.blocks)[self.start :], *owners):
            part.train(mode)
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        if self.pooled:
            return self.model.classify(inputs)
        return self.model.classify(self.model.finish(inputs, self.start))


class _Whole(nn.Module):
    """The whole model, from pixels (B, channels, H, W) to logits (B, C).

    Unlike the model itself, it computes of the last block only what the head reads.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model.classify(self.model.features(pixels))


class BothHeads(nn.Module):
    """A model whose head uses several blocks, together with a head on the last block.

    It maps pooled features (B, D), or pixels (B, channels, H, W), to logits of both (B, 2, C).
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        model = self.model
        assert model.last_head is not None
        pooled = inputs if inputs.ndim == 2 else model.features(inputs)
        last = model.pre_logits(pooled[:, : model.last_block_size])
        return torch.stack([model.classify(pooled), model.last_head(last)], dim=1)


class Cut(NamedTuple):
    """Frozen prefix and suffix of a model; if nothing is frozen, the suffix is the whole model."""

    prefix: Prefix | None
    suffix: nn.Module

    @property
    def pooled(self) -> bool:
        """Whether the suffix receives one feature vector per image, which makes it cheap to run."""
        return self.prefix is not None and self.prefix.pooled


def cut_model(model: Model, layers: str) -> Cut:
    """Cut a model that `freeze_model` has frozen with the same value of `layers`."""
    frozen = frozen_blocks(layers, len(model.blocks))
    if frozen is None:
        return Cut(None, _Whole(model))
    return Cut(Prefix(model, frozen), _Suffix(model, frozen))


@torch.inference_mode()
def run_prefix(prefix: Prefix, pixels: Tensor) -> Tensor:
    """Run a prefix on normalised float32 pixels (B, channels, H, W), without TensorFloat-32.

    The result is bfloat16 if the prefix uses autocast, and otherwise has the dtype of its weights.
    """
    if prefix.autocast:
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16):
            return prefix(pixels).to(torch.bfloat16)
    with exact_float32(pixels.device):
        return prefix(pixels.to(next(prefix.parameters()).dtype))
