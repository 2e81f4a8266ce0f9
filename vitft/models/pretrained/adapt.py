"""Adaptation of weights to a new image size, patch size, class count, channel count or pooling.

The functions expect vitft's tensor names and do not modify any tensor in place.

Notation: B images, P patches, N tokens, D width, C classes, g grid side in patches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.models.pretrained.infer import square
from vitft.models.vit_config import ViTConfig, as_pair, conv_strides
from vitft.system.errors import UsageError, WeightsError
from vitft.system.text import count

PosEmbed = Literal["bicubic", "jax", "bilinear"]  # `bilinear`: SigLIP 2 NaFlex
Sides = int | tuple[int, int] | None  # pixels; None for the size used in training
Statistics = tuple[float, ...] | None  # per channel; None for those of pretraining


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adapted:
    """Tensors of the target model, with notes on how the tensors were adapted."""

    tensors: Mapping[str, Tensor]
    loaded: int  # number of tensors that come from the file
    dropped: tuple[str, ...]  # names and shapes of the tensors that were not used
    notes: tuple[str, ...]


def resize_positions(
    pos: Tensor,
    grid: tuple[int, int],
    *,
    prefix: int = 1,
    source_grid: tuple[int, int] | None = None,
    mode: PosEmbed = "bicubic",
) -> Tensor:
    """Resample learned position embeddings for a different grid of patches.

    Args:
        pos: Position embeddings, (1, prefix + rows*columns, D), with patches in row-major order.
        grid: Target numbers of rows and columns of patches (image side / patch side).
        prefix: Number of leading position embeddings of prefix tokens, which are left unchanged.
        source_grid: Numbers of rows and columns with which `pos` was trained (default: a square).
        mode: `bicubic` for timm's rule, `bilinear` for that of SigLIP 2 NaFlex (both antialiased),
            or `jax` for Google's rule (scipy's order-1 zoom).

    Returns:
        (1, prefix + rows*columns, D) for the target grid, in the dtype and on the device of `pos`.

    Raises:
        WeightsError: The position embeddings do not form the grid `source_grid`.

    Source: Dosovitskiy et al. 2021, section 3.2, https://arxiv.org/abs/2010.11929
    """
    source = source_grid or square(pos.shape[1] - prefix)
    if math.prod(source) != pos.shape[1] - prefix:
        raise WeightsError(
            f"{pos.shape[1] - prefix} position embeddings do not form a grid of "
            f"{source[0]}x{source[1]} patches",
            fix="use the image size at which the weights were trained",
        )
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
    pos_embed: PosEmbed = "bicubic",
) -> _Adapted:
    """Convert weights from the architecture `source` to `target`; `tensors` are not modified.

    They may differ in image size, patch size, channel count, class count, pre_logits and pooling,
    and a distillation token may become a register. With `new_head`, the head is zero-initialised.

    Raises:
        WeightsError: The position embeddings do not match the grid of `source`.
        UsageError: The convolutional stem does not support the patch size of `target`.
    """
    result, dropped, notes = dict(tensors), [], []
    is_headless = new_head or not target.num_classes
    heads = ("head.", "head_dist.", "last_head.")
    gone = [name for name in result if is_headless and name.startswith(heads)]
    if source.distilled and not target.distilled:
        registers = [result.pop(n) for n in ("dist_token", "reg_token") if n in result]
        result["reg_token"] = torch.cat(registers, dim=1)
        notes.append(
            "the distillation token is used as a register, and the head reads only the class token"
        )
    if not target.pre_logits:
        gone += [n for n in result if n.startswith("pre_logits.")]
    if target.pool != "map":
        gone += [n for n in result if n.startswith("attn_pool.")]
    for name in gone:
        dropped.append(f"{name} {tuple(result.pop(name).shape)}")
    if source.last_norm != target.last_norm:
        old, new = source.last_norm, target.last_norm
        for name in [n for n in result if n.startswith(f"{old}.")]:
            result[new + name.removeprefix(old)] = result.pop(name)
        notes.append(f"{old} in the file is loaded as {new} because pool={target.pool}")
    if source.positions:
        result["pos_embed"] = resize_positions(
            result["pos_embed"],
            target.grid,
            prefix=source.num_prefix if source.prefix_positions else 0,
            source_grid=source.grid,
            mode=pos_embed,
        )
    notes += _adapt_pixels(result, source, target)
    loaded = len(result)
    if target.num_classes and "head.weight" not in result:
        # Zeros, so that the first loss is ln(C): Dosovitskiy et al. 2021, appendix B.1.1
        for head in ("head", "head_dist") if target.distilled else ("head",):
            result[f"{head}.weight"] = torch.zeros(target.num_classes, target.width)
            result[f"{head}.bias"] = torch.zeros(target.num_classes)
    return _Adapted(tensors=result, loaded=loaded, dropped=tuple(dropped), notes=tuple(notes))


def target_config(
    source: ViTConfig,
    num_classes: int | None,
    image_size: Sides,
    **changes: Any,  # noqa: ANN401 - fields of ViTConfig
) -> ViTConfig:
    """Return the configuration for a different class count and image size.

    None keeps the value in `source`. With a class count, the model has a new head: the distillation
    token becomes a register, and the head reads only the last block.

    Raises:
        UsageError: A value is invalid, or the values are incompatible.
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
    """Return the mean and std given by the user, or None if neither is given.

    Raises:
        UsageError: Only one of them is given, or not one value per channel.
    """
    if mean is None and std is None:
        return None
    if mean is None or std is None or len(mean) != channels:
        raise UsageError(
            f"mean is {mean} and std is {std}, but the model has {count(channels, 'channel')}",
            fix="pass both, with one value per channel, e.g. --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5",
        )
    return tuple(mean), tuple(std)


def _adapt_pixels(tensors: dict[str, Tensor], source: ViTConfig, target: ViTConfig) -> list[str]:
    """Adapt the kernels in `tensors` to the channels and patch size of `target`; return notes."""
    notes = []
    if source.in_channels != target.in_channels:
        first = f"{source.first_conv}.weight"
        tensors[first] = fit_channels(tensors[first], target.in_channels)
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
        kernel = tensors["patch_embed.proj.weight"]
        sides = target.patch_size[0] // target.stride, target.patch_size[1] // target.stride
        tensors["patch_embed.proj.weight"] = resize_kernel(kernel, sides)
        notes.append(
            f"patch kernels {kernel.shape[2]}x{kernel.shape[3]} -> {sides[0]}x{sides[1]} "
            "(pseudo-inverse of bicubic resizing)"
        )
    return notes


def fit_channels(kernel: Tensor, channels: int) -> Tensor:
    """Adapt kernels (outputs, old, height, width) to a different number of input channels.

    For one channel, the kernels are summed over the input channels, which keeps the response to a
    grey image. For other numbers, they are repeated and scaled so that the response to equal
    channels keeps its magnitude. This is timm's `adapt_input_conv`.
    """
    old = kernel.shape[1]
    if channels == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [i % old for i in range(channels)]] * (old / channels)


def resize_kernel(kernel: Tensor, sides: tuple[int, int]) -> Tensor:
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
