"""Inference of a Vision Transformer's architecture from the shapes of its tensors.

Pure functions over tensors that already have vitft's names.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitft.models.card import as_float32, tensor_mismatch
from vitft.models.checkpoint import facts_of
from vitft.models.vit_config import (
    SIZES,
    Activation,
    Pool,
    RopeConfig,
    ViTConfig,
    stem_stride,
    vit_shapes,
)
from vitft.system.errors import UsageError, WeightsError


def square(count: int) -> tuple[int, int]:
    """Return the sides of a square grid of `count` patches; raise an error if it is not square."""
    side = math.isqrt(max(count, 0))
    if side == 0 or side * side != count:
        raise WeightsError(
            f"{count} position embeddings do not form a square grid of patches",
            fix="put a config.json that states the image size next to the weight file",
        )
    return side, side


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarFacts:
    """Facts about a model that its tensors do not show; those not stated have the defaults."""

    heads: int | None = None
    image_size: tuple[int, int] | None = None  # height and width in pixels
    pixels: Mapping[str, Any] = field(default_factory=dict)  # other fields of `EvalTransform`
    norm_eps: float | None = None  # epsilon of the LayerNorms
    activation: Activation | None = None
    pool: str = ""  # input of the head, as named by timm, e.g. token or avg
    is_named: bool = False  # whether the next three facts are known, not assumed
    rope: RopeConfig | None = None
    pool_heads: int = 0
    final_norm: bool = True
    classes: tuple[str, ...] = ()
    published: str = ""
    """Name under which the weights are published, e.g. vit_tiny_patch16_224.augreg_in21k_ft_in1k;
    it may also be that of the weights they were fine-tuned from."""
    source: str = ""  # origin of mean and std
    notes: tuple[str, ...] = ()


def infer_config(tensors: Mapping[str, Tensor], facts: SidecarFacts) -> ViTConfig:
    """Return the architecture, inferred from tensor shapes and, where needed, from `facts`.

    Raises:
        WeightsError: A tensor is missing, or the shapes or the number of heads do not fit.
    """
    numbers = {int(m[1]) for name in tensors if (m := re.match(r"blocks\.(\d{1,4})\.", name))}
    gap = next((i for i in range(len(numbers)) if i not in numbers), None)
    if not numbers or gap is not None:
        raise WeightsError(
            f"block {gap or 0} is missing from the weights, which have {len(numbers)} blocks",
            fix="save or download the file again, because it is incomplete",
        )
    stem = _stem_of(tensors)
    kernel = _shape_of(tensors, "patch_embed.proj.weight", 4)  # (D, channels, height, width)
    stride = 1 if stem is None else stem_stride(stem)
    root = "patch_embed.backbone.stem.conv.weight" if stem else "patch_embed.backbone.conv.weight"
    channels = kernel[1] if stem is None else _shape_of(tensors, root, 4)[1]
    width, patch = kernel[0], (kernel[2] * stride, kernel[3] * stride)
    registers = _shape_of(tensors, "reg_token", 3)[1] if "reg_token" in tensors else 0
    class_token = "cls_token" in tensors
    prefix = class_token + ("dist_token" in tensors) + registers
    if "pos_embed" in tensors:
        positions = _shape_of(tensors, "pos_embed", 3)[1]
        (rows, columns), prefix = _grid_of(positions, prefix, patch, facts.image_size)
    elif facts.image_size is not None:
        height, across = facts.image_size
        rows, columns, prefix = height // patch[0], across // patch[1], 1
    else:
        raise WeightsError(
            "pos_embed is missing from the weights, and the image size is not stated",
            fix="put a config.json that states the image size next to the weight file",
        )
    hidden = _shape_of(tensors, "blocks.0.mlp.fc2.weight", 2)[1]
    ratio = hidden / width
    if int(width * ratio) != hidden:  # the same computation as in the model
        ratio = math.nextafter(ratio, math.inf)
    head = tensors.get("head.weight")
    has_bias = "blocks.0.norm1.bias" in tensors or "blocks.0.norm1.weight" not in tensors
    heads = facts.heads
    if heads is None:  # the usual number for this width
        named = {size.width: size.heads for size in SIZES.values()}
        heads = named.get(width, width // 64 if width % 64 == 0 else None)
    if not heads or width % heads:
        raise WeightsError(
            f"the number of attention heads is unknown for a width of {width}"
            if heads is None
            else f"the width {width} is not a multiple of the number of attention heads, {heads}",
            fix='set "num_attention_heads" in a config.json next to the weight file',
        )
    # The last norm may be missing only if the architecture is known; otherwise, its absence means
    # that the file is damaged
    has_fc_norm = "fc_norm.weight" in tensors
    is_mean = has_fc_norm or facts.pool == "avg" or not class_token
    has_norm = facts.final_norm or has_fc_norm or "norm.weight" in tensors
    pool: Pool = "map" if "attn_pool.latent" in tensors else "mean" if is_mean else "cls"
    try:
        return ViTConfig(
            image_size=(rows * patch[0], columns * patch[1]),
            patch_size=patch,
            in_channels=channels,
            width=width,
            depth=len(numbers),
            heads=heads,
            mlp_ratio=ratio,
            qkv_bias="blocks.0.attn.qkv.bias" in tensors,
            proj_bias="blocks.0.attn.proj.bias" in tensors,
            gated_mlp=_shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0] == 2 * hidden,
            num_classes=0 if head is None else _shape_of(tensors, "head.weight", 2)[0],
            pre_logits="pre_logits.fc.weight" in tensors,
            norm_eps=1e-6 if facts.norm_eps is None else facts.norm_eps,
            layer_scale=1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
            registers=registers,
            prefix_positions=prefix > 0,
            distilled="dist_token" in tensors,
            stem=stem,
            class_token=class_token,
            activation=facts.activation or "gelu",
            positions="pos_embed" in tensors,
            rope=facts.rope,
            norm_layer="layernorm" if has_bias else "rmsnorm",
            embed_norm="norm_pre.weight" in tensors,
            patch_norm="patch_embed.norm.weight" in tensors,
            attn_norm="blocks.0.attn.norm.weight" in tensors,
            mlp_norm="blocks.0.mlp.norm.weight" in tensors,
            pool=pool,
            pool_heads=facts.pool_heads if pool == "map" else 0,
            final_norm=has_norm,
            norm_before_pool=pool == "mean" and has_norm and not has_fc_norm,
        )
    except UsageError as error:  # an error in the file, e.g. an empty kernel
        raise WeightsError(
            f"the tensors do not form a valid Vision Transformer: {error.problem}",
            fix="use other weights",
        ) from error


def _stem_of(tensors: Mapping[str, Tensor]) -> tuple[int, ...] | None:
    """Return the number of bottlenecks per stage of a hybrid's ResNet, or None for a plain ViT."""
    place = re.compile(r"patch_embed\.backbone\.(?:stages\.(\d)\.blocks\.(\d{1,2})\.)?")
    found = [m for name in tensors if (m := place.match(name))]
    if not found:
        return None
    blocks = {(int(m[1]), int(m[2])) for m in found if m[1]}
    last = max(blocks, default=(-1,))[0]
    counts = [sum(stage == i for stage, _ in blocks) for i in range(last + 1)]
    if 0 in counts or len(counts) > 4:
        raise WeightsError(
            f"unsupported convolutional stem: its stages have {counts} blocks",
            fix="use other weights",
        )
    return tuple(counts)


def _shape_of(tensors: Mapping[str, Tensor], name: str, dimensions: int) -> tuple[int, ...]:
    """Return the shape of a required tensor, after checking its number of dimensions."""
    shape = tuple(tensors[name].shape) if name in tensors else None
    if shape is None or len(shape) != dimensions or 0 in shape:
        raise WeightsError(
            f"{name} is missing from the weights"
            if shape is None
            else f"{name} has unexpected shape {shape}",
            fix="use the weights of a plain Vision Transformer, in which this tensor has "
            f"{dimensions} dimensions",
        )
    return shape


def _grid_of(
    positions: int, prefix: int, patch: tuple[int, int], image_size: tuple[int, int] | None
) -> tuple[tuple[int, int], int]:
    """Return the shape of the patch grid and the number of prefix tokens with position embeddings.

    An `image_size` that does not match is ignored; the grid must then be square.
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


def check_fit(tensors: Mapping[str, Tensor], config: ViTConfig) -> None:
    """Raise an error if names, shapes and types of tensors do not match a configuration exactly."""
    found = {name: as_float32(facts) for name, facts in facts_of(tensors).items()}
    if mismatch := tensor_mismatch(found, vit_shapes(config)):
        is_incomplete = mismatch.startswith("missing")
        cause = "incomplete or edited" if is_incomplete else "a mixture of two models"
        raise WeightsError(
            f"the weights do not match a width of {config.width}, {config.depth} blocks and "
            f"patches of {config.patch_size[0]}x{config.patch_size[1]}: {mismatch}",
            fix=f"save or download the file again, because it is probably {cause}",
        )
