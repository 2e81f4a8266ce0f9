"""Make weights fit another image size, patch size, class count, channel count or pooling.

Pure functions over tensors under our names.

Nothing here knows where the tensors come from.

Letters: B images, P patches, N tokens, D width, C classes, g grid side in patches.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.models.stem import conv_strides, stem_stride
from vitft.models.vit import SIZES, VisionTransformer, ViTConfig
from vitft.system.errors import UsageError, WeightsError

PosEmbed = Literal["bicubic", "jax"]
HEADS = {size.width: size.heads for size in SIZES.values()}
"""Number of heads of every width that has a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What tensors cannot tell about their model, where something else does."""

    heads: int | None = None
    image_size: tuple[int, int] | None = None
    """Height and width in pixels."""
    norm_eps: float | None = None
    """Of the LayerNorms."""


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


def square(count: int) -> tuple[int, int]:
    """Rows and columns of a square grid of `count` patches."""
    side = math.isqrt(max(count, 0))
    if side == 0 or side * side != count:
        raise WeightsError(
            f"{count} positions do not form a square grid of patches",
            fix="put the config.json of the weights beside them, so that the grid is known",
        )
    return side, side


def infer_config(tensors: Mapping[str, Tensor], hints: Hints = Hints()) -> ViTConfig:
    """Read an architecture off tensors under our names; only heads and eps are looked up.

    Raises:
        WeightsError: Something essential is missing, or the shapes contradict each other.
    """
    depth, stem = depth_of(tensors), stem_of(tensors)
    kernel = shape_of(tensors, "patch_embed.proj.weight", 4)  # (D, channels, height, width)
    stride = 1 if stem is None else stem_stride(stem)
    root = "patch_embed.backbone.stem.conv.weight" if stem else "patch_embed.backbone.conv.weight"
    channels = kernel[1] if stem is None else shape_of(tensors, root, 4)[1]
    width, patch = kernel[0], (kernel[2] * stride, kernel[3] * stride)
    registers = shape_of(tensors, "reg_token", 3)[1] if "reg_token" in tensors else 0
    prefix = 1 + ("dist_token" in tensors) + registers
    positions = shape_of(tensors, "pos_embed", 3)[1]
    (rows, columns), prefix = grid_of(positions, prefix, patch, hints.image_size)
    hidden = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0]
    if shape_of(tensors, "blocks.0.mlp.fc2.weight", 2)[1] * 2 == hidden:
        raise WeightsError(
            "these weights have SwiGLU instead of an MLP, as the giant DINOv2 has",
            fix="take the large model; vitft builds Vision Transformers with a GELU MLP",
        )
    head = tensors.get("head.weight")
    try:
        return ViTConfig(
            image_size=(rows * patch[0], columns * patch[1]),
            patch_size=patch,
            in_channels=channels,
            width=width,
            depth=depth,
            heads=heads_of(width, hints.heads),
            mlp_ratio=ratio_of(hidden, width),
            qkv_bias="blocks.0.attn.qkv.bias" in tensors,
            num_classes=0 if head is None else head.shape[0],
            pre_logits="pre_logits.fc.weight" in tensors,
            pool="mean" if "fc_norm.weight" in tensors else "cls",
            norm_eps=1e-6 if hints.norm_eps is None else hints.norm_eps,
            layer_scale=1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
            registers=registers,
            prefix_positions=prefix > 0,
            distilled="dist_token" in tensors,
            stem=stem,
        )
    except UsageError as error:  # an empty kernel, say: the file's mistake, not the user's
        raise WeightsError(
            f"these tensors make no Vision Transformer: {error.problem}", fix="take other weights"
        ) from error


def stem_of(tensors: Mapping[str, Tensor]) -> tuple[int, ...] | None:
    """Bottlenecks per stage of a hybrid's ResNet; None for a plain model."""
    place = re.compile(r"patch_embed\.backbone\.(?:stages\.(\d)\.blocks\.(\d{1,2})\.)?")
    found = [m for name in tensors if (m := place.match(name))]
    if not found:
        return None
    blocks = {(int(m[1]), int(m[2])) for m in found if m[1]}
    counts = [
        sum(stage == i for stage, _ in blocks) for i in range(1 + max(blocks, default=(-1,))[0])
    ]
    if 0 in counts or len(counts) > 4:
        raise WeightsError(
            f"the stages of the convolutional stem have {counts} blocks", fix="take other weights"
        )
    return tuple(counts)


def depth_of(tensors: Mapping[str, Tensor]) -> int:
    """Number of blocks; they are numbered from 0 without a gap."""
    numbers = {int(m[1]) for name in tensors if (m := re.match(r"blocks\.(\d+)\.", name))}
    gap = next((i for i in range(len(numbers)) if i not in numbers), None)
    if not numbers or gap is not None:
        raise WeightsError(
            f"block {gap or 0} is missing from the weights, of {len(numbers)} that are there",
            fix="the file is incomplete; copy or save it again",
        )
    return len(numbers)


def shape_of(tensors: Mapping[str, Tensor], name: str, dimensions: int) -> tuple[int, ...]:
    """Shape of a tensor without which nothing can be told."""
    shape = tuple(tensors[name].shape) if name in tensors else None
    if shape is None or len(shape) != dimensions or 0 in shape:
        raise WeightsError(
            f"{name} is {'missing' if shape is None else shape} in the weights",
            fix=f"a plain Vision Transformer has it, with {dimensions} dimensions",
        )
    return shape


def grid_of(
    positions: int, prefix: int, patch: tuple[int, int], image_size: tuple[int, int] | None
) -> tuple[tuple[int, int], int]:
    """Rows and columns of patches, and how many of the positions belong to prefix tokens.

    Some models have positions for patches alone; an image size that does not fit is not believed.
    """
    if image_size is not None:
        rows, columns = image_size[0] // patch[0], image_size[1] // patch[1]
        for leading in (prefix, 0):
            if rows * columns == positions - leading > 0:
                return (rows, columns), leading
    side = math.isqrt(positions)
    if prefix and side * side == positions:
        return (side, side), 0
    return square(positions - prefix), prefix


def heads_of(width: int, hinted: int | None) -> int:
    """Number of heads: as stated, as the published model of this width has, or of 64 each."""
    if hinted is not None and hinted > 0 and width % hinted == 0:
        return hinted
    if hinted is None and width in HEADS:
        return HEADS[width]
    if hinted is None and width % 64 == 0:
        return width // 64
    raise WeightsError(
        f"the number of heads is not known for a width of {width}"
        if hinted is None
        else f"{hinted} heads cannot share a width of {width}",
        fix='put a config.json beside the weights that states it ("num_attention_heads")',
    )


def ratio_of(hidden: int, width: int) -> float:
    """`mlp_ratio` from which the model computes exactly `hidden` again."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def check_fit(tensors: Mapping[str, Tensor], config: ViTConfig) -> None:
    """Refuse tensors that are not exactly those of `config`, with the likely cause.

    Raises:
        WeightsError: The first five missing, unexpected and misshapen tensors are named.
    """
    with torch.device("meta"):
        model = VisionTransformer(config)
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    misshapen = [
        f"{n} {found[n]} for {wanted[n]}" for n in wanted if found.get(n, wanted[n]) != wanted[n]
    ]
    lists = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    said = [f"{kind}: {first_five(names)}" for kind, names in lists.items() if names]
    if not said:
        return
    cause = "the file was cut or edited" if missing else "it mixes tensors of two models"
    raise WeightsError(
        f"the weights do not fit {config.width} wide, {config.depth} deep, patches of "
        f"{config.patch_size[0]}x{config.patch_size[1]}; {'; '.join(said)}",
        fix=f"the likely cause is that {cause}; save or download it again",
    )


def first_five(names: list[str]) -> str:
    """A short list for a sentence."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


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


def undistilled(config: ViTConfig) -> ViTConfig:
    """The same model for a new head: the distillation token, whose head is gone, as a register."""
    if not config.distilled:
        return config
    return replace(config, distilled=False, registers=config.registers + 1)


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
