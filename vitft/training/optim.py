"""Optimisers, learning-rate schedule, layer-wise decay and moving average of the weights."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from vitft.config.defaults import default_batch_size, default_lr
from vitft.config.sections import OptimSpec
from vitft.features.cut import last_block_size
from vitft.models.timm_model import Model, TimmModel


def with_step_defaults(spec: OptimSpec, layers: str, model: Model, images: int) -> OptimSpec:
    """Return the settings with the default learning rate and batch size in place of missing ones.

    Args:
        spec: Settings for SGD or AdamW.
        layers: Trained layers in the notation of `train.layers`.
        model: Model to train.
        images: Number of training images.
    """
    lr = default_lr(layers, last_block_size(model)) if spec.lr is None else spec.lr
    batch_norm = bool(running_statistics(model))
    size = spec.batch_size or default_batch_size(layers, images, batch_norm=batch_norm)
    return replace(spec, lr=lr, batch_size=size)


def lr_at(step: int, total: int, *, peak: float, warmup: float, final: float = 0.0) -> float:
    """Return the learning rate at a step: linear warm-up, then cosine decay to `final * peak`.

    Source: Loshchilov & Hutter 2017 (SGDR, without restarts), https://arxiv.org/abs/1608.03983.
    """
    ramp = round(total * warmup)
    if step < ramp:
        return peak * (step + 1) / ramp
    progress = min(1.0, (step - ramp) / max(1, total - ramp))
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model: nn.Module, spec: OptimSpec, *, sharded: bool = False) -> Optimizer:
    """Return an SGD or AdamW optimiser for the trainable parameters.

    Each parameter group stores its learning-rate factor as `lr_scale`. SGD is not fused if the
    parameters are sharded, because torch 2.15 does not support this.
    """
    groups = parameter_groups(model, spec)
    assert spec.lr is not None
    fused = groups[0]["params"][0].device.type in ("cpu", "cuda")
    if spec.solver == "sgd":
        return SGD(groups, lr=spec.lr, momentum=spec.momentum, fused=fused and not sharded)
    return AdamW(groups, lr=spec.lr, fused=fused)


def parameter_groups(model: nn.Module, spec: OptimSpec) -> list[dict[str, Any]]:
    """Return the trainable parameters grouped by learning-rate factor and weight decay.

    Norms, biases, position embeddings and tokens have no weight decay. The learning-rate factor of
    a layer is `layer_decay ** (number of layers above it)`. For timm models, timm defines the
    layers.

    Sources: Clark et al. 2020 (arXiv:2003.10555) and Bao et al. 2022 (arXiv:2106.08254).
    """
    layers = layer_numbers(model) if spec.layer_decay < 1 else {}
    top = max(layers.values(), default=0)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        flat = parameter.ndim <= 1 or name.endswith(("_token", "pos_embed"))
        decay = 0.0 if flat else spec.weight_decay
        scale = spec.layer_decay ** (top - layers.get(name, top))
        group = groups.setdefault((scale, decay), {"lr_scale": scale, "weight_decay": decay})
        group.setdefault("params", []).append(parameter)
    return list(groups.values())


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """Return the layer number of each parameter, counting from the input; the head is last."""
    for inner in model.modules():
        if isinstance(inner, TimmModel):
            from timm.models import group_parameters

            groups = inner.net.group_matcher(coarse=False)
            found = group_parameters(inner.net, groups, reverse=True)
            top = max(found.values(), default=0)
            at = {id(p): found.get(name, top) for name, p in inner.net.named_parameters()}
            return {name: at.get(id(p), top + 1) for name, p in model.named_parameters()}
    names = [name for name, _ in model.named_parameters()]
    blocks = {name: re.search(r"\bblocks\.(\d+)\.", name) for name in names}
    last = max((int(match[1]) for match in blocks.values() if match), default=-1)
    embeds = re.compile(
        r"(^|\.)(patch_embed\.|cls_token|dist_token|reg_token|pos_embed|norm_pre\.)"
    )
    return {
        name: int(match[1]) + 1 if match else 0 if embeds.search(name) else last + 2
        for name, match in blocks.items()
    }


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that training updates: running means and variances, e.g. of BatchNorm."""
    buffers = model.named_buffers()
    return {name: b for name, b in buffers if name.rpartition(".")[2].startswith("running_")}


def batch_slices(images: int, size: int, module: nn.Module) -> list[slice]:
    """Return slices that divide images into batches of `size`; the last may be smaller.

    A last image alone joins the batch before if the module has BatchNorm, which needs two images.
    """
    alone = images > size and images % size == 1 and bool(running_statistics(module))
    ends = [*range(size, images - alone, size), *([images] if images else [])]
    return [slice(*ends) for ends in zip([0, *ends], ends, strict=False)]


class WeightAverage:
    """Weights to validate and save, computed from the trained ones: an average, an interpolation.

    The exponential moving average (EMA) is over training steps. The interpolation is between the
    weights before training and the trained or averaged ones.

    Source of the interpolation: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models"
    (WiSE-FT), https://arxiv.org/abs/2109.01903, section 3.

    Args:
        weights: Trained parameters and running statistics. Both are averaged, because averaged
            parameters do not match the statistics of the latest ones.
        decay: Maximum decay per step, from 0 to 1; with 0, no average is computed.
        fraction: Fraction of the trained weights in the interpolation, above 0; with 1, there is no
            interpolation, and the weights before training are not kept.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float, fraction: float = 1.0) -> None:
        self.weights, self.decay, self.fraction = weights, decay, fraction
        self.average = {name: w.detach().clone() for name, w in weights.items() if decay}
        self.before = {name: w.detach().clone() for name, w in weights.items() if fraction < 1}
        """Weights before training."""
        self.swapped_out: dict[str, Tensor] = {}
        """Trained weights while the model holds other ones; otherwise empty."""

    @property
    def trained(self) -> dict[str, Tensor]:
        """Trained weights, even while the model holds other ones."""
        return {**self.weights, **self.swapped_out}

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Update the average after a training step; `steps` is the number of earlier steps.

        The decay is lower in early steps.
        """
        decay = min(self.decay, (1 + steps) / (10 + steps))
        for name, mean in self.average.items():
            mean.lerp_(self.weights[name], 1 - decay)

    @contextlib.contextmanager
    def swapped_in(self, fraction: float | None = None) -> Iterator[None]:
        """Load the weights to validate and save; restore the trained ones on exit.

        Args:
            fraction: Fraction of the trained weights, if other than that of the settings. The
                weights before training must have been kept.
        """
        fraction = self.fraction if fraction is None else fraction
        if self.average or fraction < 1:
            self.swapped_out = {name: w.detach().clone() for name, w in self.weights.items()}
        try:
            self.load(self.average)
            if fraction < 1:
                self.interpolate(fraction)
            yield
        finally:
            self.load(self.swapped_out)  # before `trained` reads from the parameters again
            self.swapped_out = {}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy `weights` to the weights of the same names in the model."""
        for name, value in weights.items():
            self.weights[name].copy_(value)

    @torch.no_grad()
    def interpolate(self, fraction: float) -> None:
        """Move the model's weights towards those before training, keeping `fraction` of them."""
        for name, before in self.before.items():
            self.weights[name].lerp_(before, 1 - fraction)
