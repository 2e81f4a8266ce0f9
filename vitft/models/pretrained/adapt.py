"""Make weights fit another image size, patch size, class count, channel count or pooling.

Pure functions over tensors under our names.

Nothing here knows where the tensors come from.

Letters: B images, P patches, N tokens, D width, C classes, g grid side in patches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.models.pretrained.infer import square
from vitft.models.stem import conv_strides
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import UsageError, WeightsError

PosEmbed = Literal["bicubic", "jax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """Tensors that fit the wanted model, and what it took."""

    tensors: Mapping[str, Tensor]
    loaded: int
    """How many of them come from the file."""
    dropped: tuple[str, ...]
    """Names with shapes of what was left out."""
    notes: tuple[str, ...]


def resize_positions(
    pos: Tensor,
    grid: tuple[int, int],
    *,
    prefix: int = 1,
    source_grid: tuple[int, int] | None = None,
    mode: PosEmbed = "bicubic",
) -> Tensor:
    """Resample learned positions so that a checkpoint fits another image size.

    Prefix tokens ([CLS], registers) have no place in the picture and pass through.

    Args:
        pos: Position table, (1, prefix + rows*columns, D), patches in row-major order.
        grid: Wanted rows and columns in patches (image side / patch side), not in pixels.
        prefix: How many leading rows of the table are not patches.
        source_grid: Rows and columns that `pos` was trained with; default: a square.
        mode: `bicubic` is timm's rule (antialiased); `jax` is Google's, scipy's zoom of order 1.

    Returns:
        (1, prefix + rows*columns, D) for the wanted grid, in the dtype and on the device of `pos`.

    Raises:
        WeightsError: The patch rows do not form a square, or not the given `source_grid`.

    Source: Dosovitskiy et al. 2021, section 3.2, https://arxiv.org/abs/2010.11929
    """
    source = source_grid or square(pos.shape[1] - prefix)
    if math.prod(source) != pos.shape[1] - prefix:
        raise WeightsError(
            f"{pos.shape[1] - prefix} positions do not form {source[0]}x{source[1]} patches",
            fix="give the image size that the weights were trained at",
        )
    if source == grid:
        return pos
    table = pos[:, prefix:].float().unflatten(1, source).permute(0, 3, 1, 2)  # (1, D, g, g)
    if mode == "bicubic":
        table = F.interpolate(table, grid, mode="bicubic", align_corners=False, antialias=True)
    else:  # scipy.ndimage.zoom(order=1), as in vit_jax's checkpoint.py; it counts in float64
        table = F.interpolate(table.double(), grid, mode="bilinear", align_corners=True)
    patches = table.flatten(2).mT.to(pos.dtype)  # (1, P, D)
    return torch.cat([pos[:, :prefix], patches], dim=1)


def adapt(
    tensors: Mapping[str, Tensor],
    source: ViTConfig,
    wanted: ViTConfig,
    *,
    new_head: bool,
    pos_embed: PosEmbed = "bicubic",
) -> Adapted:
    """Turn the weights of `source` into weights of `wanted`, which differ where adapting can help.

    Args:
        tensors: Weights that fit `source`; left untouched.
        source: The model that the weights belong to.
        wanted: The same model with another image size, patch size, channel count, class count,
            pre_logits or pooling.
        new_head: Put a zero head in place of the file's, even if the class counts agree.
        pos_embed: The rule by which positions are resized.
    """
    result, dropped, notes = dict(tensors), [], []
    is_headless = new_head or not wanted.num_classes
    gone = [n for n in result if is_headless and n.startswith(("head.", "head_dist."))]
    if source.distilled and not wanted.distilled:
        registers = [
            t for n in ("dist_token", "reg_token") if (t := result.pop(n, None)) is not None
        ]
        result["reg_token"] = torch.cat(registers, dim=1)
        notes.append("the distillation token is kept as a register; the head reads the class token")
    if not wanted.pre_logits:
        gone += [n for n in result if n.startswith("pre_logits.")]
    for name in gone:
        dropped.append(f"{name} {tuple(result.pop(name).shape)}")
    if source.pool != wanted.pool:
        old, new = ("norm", "fc_norm") if wanted.pool == "mean" else ("fc_norm", "norm")
        for leaf in ("weight", "bias"):
            result[f"{new}.{leaf}"] = result.pop(f"{old}.{leaf}")
        notes.append(f"{old} of the file is used as {new}, because pool is {wanted.pool!r}")
    result["pos_embed"] = resize_positions(
        result["pos_embed"],
        wanted.grid,
        prefix=source.num_prefix if source.prefix_positions else 0,
        source_grid=source.grid,
        mode=pos_embed,
    )
    notes += adapt_pixels(result, source, wanted)
    loaded = len(result)
    if wanted.num_classes and "head.weight" not in result:
        # Zero, so that the first loss is ln(C): Dosovitskiy et al. 2021, appendix B.1.1
        for head in ("head", "head_dist") if wanted.distilled else ("head",):
            result[f"{head}.weight"] = torch.zeros(wanted.num_classes, wanted.width)
            result[f"{head}.bias"] = torch.zeros(wanted.num_classes)
    return Adapted(tensors=result, loaded=loaded, dropped=tuple(dropped), notes=tuple(notes))


def without_distillation(config: ViTConfig) -> ViTConfig:
    """The same model for a new head: the distillation token, whose head is gone, as a register."""
    if not config.distilled:
        return config
    return replace(config, distilled=False, registers=config.registers + 1)


def adapt_statistics(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return channel statistics for another number of channels, as `fit_channels` for kernels."""
    if channels == 1 and len(values) > 1:
        return (sum(values) / len(values),)
    return tuple(values[i % len(values)] for i in range(channels))


def check_statistics(
    mean: tuple[float, ...] | None, std: tuple[float, ...] | None, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and std as given by the user; None if neither is given.

    Raises:
        UsageError: Only one of them is given, or not one value per channel.
    """
    if mean is None and std is None:
        return None
    if mean is None or std is None or len(mean) != channels:
        raise UsageError(
            f"mean is {mean} and std is {std}, but the model has {channels} channels",
            fix="give both, with one value per channel, e.g. --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5",
        )
    return tuple(mean), tuple(std)


def adapt_pixels(tensors: dict[str, Tensor], source: ViTConfig, wanted: ViTConfig) -> list[str]:
    """Fit the kernels that read pixels to other channels and patches, in place, and say how."""
    notes = []
    if source.in_channels != wanted.in_channels:
        first = "patch_embed.proj.weight"
        if source.stem is not None:
            first = f"patch_embed.backbone.{'stem.' if source.stem else ''}conv.weight"
        elif source.convs:
            first = "patch_embed.backbone.0.conv.weight"
        tensors[first] = fit_channels(tensors[first], wanted.in_channels)
        how = "summed" if wanted.in_channels == 1 else "repeated in turn and scaled"
        notes.append(
            f"kernels for {source.in_channels} channels are {how} for {wanted.in_channels}"
        )
    if source.patch_size != wanted.patch_size:
        strides = conv_strides(source.convs, source.patch_size)
        if strides != conv_strides(wanted.convs, wanted.patch_size):
            raise UsageError(
                f"the convolutions of these weights stand before patches of {source.patch_size}; "
                f"before {wanted.patch_size} they would have other strides",
                fix="keep the patch size, or name one that can be halved as often",
            )
        kernel = tensors["patch_embed.proj.weight"]
        sides = wanted.patch_size[0] // wanted.stride, wanted.patch_size[1] // wanted.stride
        tensors["patch_embed.proj.weight"] = resize_kernel(kernel, sides)
        notes.append(
            f"patch kernels {kernel.shape[2]}x{kernel.shape[3]} -> {sides[0]}x{sides[1]}, "
            "pseudo-inverse of bicubic"
        )
    return notes


def fit_channels(kernel: Tensor, channels: int) -> Tensor:
    """Kernels (F, old, height, width) for another number of input channels.

    One channel gets the sum, which answers a grey image as the old kernels did its three equal
    planes. More get the old ones in turn, scaled so that equal planes keep the size of the answer.
    This is timm's `adapt_input_conv`.
    """
    old = kernel.shape[1]
    if channels == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [i % old for i in range(channels)]] * (old / channels)


def resize_kernel(kernel: Tensor, sides: tuple[int, int]) -> Tensor:
    """Patch kernels (D, channels, h, w) for patches of another size.

    Resizing a patch is a matrix B; kernels times the pseudo-inverse of B answer the resized patch
    as the old kernels answered the patch (exactly, where patches grow).

    Source: Beyer et al. 2023 (FlexiViT), section 3.4, https://arxiv.org/abs/2212.08013
    """
    old = kernel.shape[2] * kernel.shape[3]
    basis = torch.eye(old, dtype=torch.float64).unflatten(1, (1, *kernel.shape[2:]))
    resized = F.interpolate(basis, sides, mode="bicubic", antialias=True).flatten(1)  # (old, new)
    inverse = torch.linalg.pinv(resized)  # (new, old)
    return (kernel.double().flatten(2) @ inverse.mT).unflatten(2, sides).to(kernel.dtype)
