"""Adaptation of weights to a new image size, patch size, class count, channel count or pooling.

The functions expect vitft's tensor names and do not modify any tensor in place.

Notation: B images, P patches, N tokens, D width, C classes, g grid side in patches.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.models.vit_config import ViTConfig, as_pair, conv_strides
from vitft.system.errors import UsageError
from vitft.system.text import count

PosEmbed = Literal["bicubic", "jax", "bilinear"]  # `bilinear`: SigLIP 2 NaFlex
Sides = int | tuple[int, int] | None  # pixels; None for the size used in training
Statistics = tuple[float, ...] | None  # per channel; None for those of pretraining


def _resize_positions(
    pos: Tensor,
    source: tuple[int, int],
    grid: tuple[int, int],
    *,
    prefix: int,
    mode: PosEmbed,
) -> Tensor:
    """Resample learned position embeddings for a different grid of patches.

    `pos` is (1, prefix + rows*columns, D), with patches in row-major order. The position embeddings
    of prefix tokens are left unchanged. `mode` is `bicubic` for timm's rule, `bilinear` for that of
    SigLIP 2 NaFlex (both antialiased), or `jax` for Google's rule (scipy's order-1 zoom).

    Source: Dosovitskiy et al. 2021, section 3.2, https://arxiv.org/abs/2010.11929
    """
    if source == grid:
        return pos
    table = pos[:, prefix:].float().unflatten(1, source).permute(0, 3, 1, 2)  # (1, D, g, g)
    if mode != "jax":
        table = F.interpolate(table, grid, mode=mode, align_corners=False, antialias=True)
    else:  # scipy.ndimage.zoom(order=1), as in vit_jax's checkpoint.py; zoom computes in float64
        table = F.interpolate(table.double(), grid, mode="bilinear", align_corners=True)
    patches = table.flatten(2).mT.to(pos.dtype)  # (1, P, D)
    return torch.cat([pos[:, :prefix], patches], dim=1)


def adapt(
    tensors: Mapping[str, Tensor],
    source: ViTConfig,
    target: ViTConfig,
    *,
    new_head: bool,
    pos_embed: PosEmbed,
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Convert weights from the architecture `source` to `target`; `tensors` are not modified.

    They may differ in image size, patch size, channel count, class count, pre_logits and pooling,
    and a distillation token may become a register. With `new_head`, there is no head.

    Returns:
        The tensors, the names and shapes of those that are not used, and notes on the others.
    """
    result, notes = dict(tensors), list[str]()
    unused = ["head.", "head_dist.", "last_head."] * new_head
    unused += ["pre_logits."] * (not target.pre_logits) + ["attn_pool."] * (target.pool != "map")
    gone = [name for name in result if name.startswith(tuple(unused))]
    dropped = [f"{name} {tuple(result.pop(name).shape)}" for name in gone]
    if source.distilled and not target.distilled:
        registers = [result.pop(n) for n in ("dist_token", "reg_token") if n in result]
        result["reg_token"] = torch.cat(registers, dim=1)
        notes.append(
            "the distillation token is used as a register, and the head reads only the class token"
        )
    if (old := source.last_norm) != (new := target.last_norm):
        for name in [n for n in result if n.startswith(f"{old}.")]:
            result[new + name.removeprefix(old)] = result.pop(name)
        notes.append(f"{old} in the file is loaded as {new} because pool={target.pool}")
    if source.positions:
        prefix = source.num_prefix if source.prefix_positions else 0
        result["pos_embed"] = _resize_positions(
            result["pos_embed"], source.grid, target.grid, prefix=prefix, mode=pos_embed
        )
    if source.in_channels != target.in_channels:
        first = f"{source.first_conv}.weight"
        result[first] = _fit_channels(result[first], target.in_channels)
        how = "summed" if target.in_channels == 1 else "repeated and scaled"
        notes.append(
            f"the kernels for {count(source.in_channels, 'channel')} are {how} to fit "
            f"{count(target.in_channels, 'channel')}"
        )
    if source.patch_size != target.patch_size:
        strides = conv_strides(source.convs, source.patch_size)
        if strides != conv_strides(target.convs, target.patch_size):
            raise UsageError(
                f"the convolutional stem supports patch size {source.patch_size}, but not "
                f"{target.patch_size}",
                fix="omit the patch size to use the patch size of the weights",
            )
        kernel = result["patch_embed.proj.weight"]
        sides = target.patch_size[0] // target.stride, target.patch_size[1] // target.stride
        result["patch_embed.proj.weight"] = _resize_kernel(kernel, sides)
        notes.append(
            f"patch kernels {kernel.shape[2]}x{kernel.shape[3]} -> {sides[0]}x{sides[1]} "
            "(pseudo-inverse of bicubic resizing)"
        )
    return result, dropped, notes


def target_config(
    source: ViTConfig,
    num_classes: int | None,
    image_size: Sides,
    **changes: Any,  # noqa: ANN401 - fields of ViTConfig
) -> ViTConfig:
    """Return the configuration for a different class count and image size.

    None keeps the value in `source`. With a class count, the model has a new head: the distillation
    token becomes a register, and the head reads only the last block.
    """
    if num_classes is not None:
        changes |= {"num_classes": num_classes, "distilled": False, "read_blocks": 1}
        changes["registers"] = source.registers + source.distilled
    if image_size is not None:
        changes["image_size"] = as_pair(image_size)
    if (pool := changes.get("pool", source.pool)) != source.pool:
        if pool == "map":
            raise UsageError(
                "pool=map needs weights with attention pooling, as in SigLIP, but these have none",
                fix="use pool=cls or pool=mean, or other weights",
            )
        changes |= {"norm_before_pool": False, "pool_heads": 0}
    return replace(source, **changes)


def adapt_statistics(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return channel statistics for other kernels, as from `fit_channels`: averaged or repeated."""
    if channels == 1 and len(values) > 1:
        return (sum(values) / len(values),)
    return tuple(values[i % len(values)] for i in range(channels))


def check_statistics(
    mean: Statistics, std: Statistics, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and std given by the user, or None if neither is given."""
    if mean is None and std is None:
        return None
    if mean is None or std is None or len(mean) != channels:
        raise UsageError(
            f"mean is {mean} and std is {std}, but the model has {count(channels, 'channel')}",
            fix="pass both, with one value per channel, e.g. --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5",
        )
    return tuple(mean), tuple(std)


def _fit_channels(kernel: Tensor, channels: int) -> Tensor:
    """Adapt kernels (outputs, old, height, width) to a different number of input channels.

    For one channel, the kernels are summed over the input channels, which keeps the response to a
    grey image. For other numbers, they are repeated and scaled so that the response to equal
    channels keeps its magnitude. This is timm's `adapt_input_conv`.
    """
    old = kernel.shape[1]
    if channels == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [i % old for i in range(channels)]] * (old / channels)


def _resize_kernel(kernel: Tensor, sides: tuple[int, int]) -> Tensor:
    """Resize patch kernels (D, channels, h, w) to a different patch size.

    The new kernels are the old ones times the pseudo-inverse of the linear map that resizes a
    patch. They keep the response: exactly if patches become larger, otherwise approximately.

    Source: Beyer et al. 2023 (FlexiViT), section 3.4, https://arxiv.org/abs/2212.08013
    """
    old = kernel.shape[2] * kernel.shape[3]
    basis = torch.eye(old, dtype=torch.float64).unflatten(1, (1, *kernel.shape[2:]))
    resized = F.interpolate(basis, sides, mode="bicubic", antialias=True).flatten(1)  # (old, new)
    inverse = torch.linalg.pinv(resized)  # (new, old)
    return (kernel.double().flatten(2) @ inverse.mT).unflatten(2, sides).to(kernel.dtype)
