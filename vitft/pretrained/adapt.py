"""Make weights fit another image size, class count or pooling: pure functions over our names.

Nothing here knows where the tensors come from.

Letters: B images, P patches, N tokens, D width, C classes, g grid side in patches.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitft.errors import UsageError, WeightsError
from vitft.model import SIZES, VisionTransformer, ViTConfig

PosEmbed = Literal["bicubic", "jax"]
HEADS = {size.width: size.heads for size in SIZES.values()}
"""Number of heads of every width that has a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What tensors cannot tell about their model, where something else does."""

    heads: int | None = None
    image_size: tuple[int, int] | None = None
    """Height and width in pixels."""


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
    """Read an architecture off tensors under our names; only the number of heads is looked up.

    Raises:
        WeightsError: Something essential is missing, or the shapes contradict each other.
    """
    depth = depth_of(tensors)
    kernel = shape_of(tensors, "patch_embed.proj.weight", 4)  # (D, channels, height, width)
    width, patch = kernel[0], (kernel[2], kernel[3])
    positions = shape_of(tensors, "pos_embed", 3)[1] - 1
    rows, columns = grid_of(positions, patch, hints.image_size)
    hidden = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0]
    head = tensors.get("head.weight")
    try:
        return ViTConfig(
            image_size=(rows * patch[0], columns * patch[1]),
            patch_size=patch,
            in_channels=kernel[1],
            width=width,
            depth=depth,
            heads=heads_of(width, hints.heads),
            mlp_ratio=ratio_of(hidden, width),
            qkv_bias="blocks.0.attn.qkv.bias" in tensors,
            num_classes=0 if head is None else head.shape[0],
            pre_logits="pre_logits.fc.weight" in tensors,
            pool="mean" if "fc_norm.weight" in tensors else "cls",
        )
    except UsageError as error:  # an empty kernel, say: the file's mistake, not the user's
        raise WeightsError(
            f"these tensors make no Vision Transformer: {error.problem}", fix="take other weights"
        ) from error


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
    positions: int, patch: tuple[int, int], image_size: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns of patches; an image size that does not fit the tensors is not believed."""
    if image_size is not None:
        rows, columns = image_size[0] // patch[0], image_size[1] // patch[1]
        if rows * columns == positions:
            return rows, columns
    return square(positions)


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
        wanted: The same model with another image size, class count, pre_logits or pooling.
        new_head: Put a zero head in place of the file's, even if the class counts agree.
        pos_embed: The rule by which positions are resized.
    """
    result, dropped, notes = dict(tensors), [], []
    gone = [n for n in result if n.startswith("head.") and (new_head or not wanted.num_classes)]
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
        result["pos_embed"], wanted.grid, source_grid=source.grid, mode=pos_embed
    )
    loaded = len(result)
    if wanted.num_classes and "head.weight" not in result:
        # Zero, so that the first loss is ln(C): Dosovitskiy et al. 2021, appendix B.1.1
        result["head.weight"] = torch.zeros(wanted.num_classes, wanted.width)
        result["head.bias"] = torch.zeros(wanted.num_classes)
    return Adapted(tensors=result, loaded=loaded, dropped=tuple(dropped), notes=tuple(notes))
