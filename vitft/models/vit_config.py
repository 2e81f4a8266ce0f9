"""Configuration of a Vision Transformer: dimensions and options, validated on creation.

Notation: D width, H heads, C classes.

Sources: Dosovitskiy et al. 2021, table 1, https://arxiv.org/abs/2010.11929 (base, large, huge);
Touvron et al. 2021 (DeiT), 2012.12877, and Steiner et al. 2021 (AugReg), 2106.10270 (tiny, small).
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

from msgspec import Meta

from vitft.config.sections import Side
from vitft.system.errors import UsageError
from vitft.system.structure import Natural, check_ranges
from vitft.system.suggest import suggest
from vitft.system.tensors import TensorFacts
from vitft.system.text import count

Pool = Literal["cls", "mean", "map"]
TIMM_POOLS: Mapping[Pool, str] = {"cls": "token", "mean": "avg", "map": "map"}
"""Mapping from the kinds of pooling to timm's names."""
_Norm = Literal["pre", "post"]
_NormLayer = Literal["layernorm", "rmsnorm"]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
_MAX_PATCHES = 16384  # maximum number of patches per image, e.g. in a grid of 128 x 128


class _NamedSize(NamedTuple):
    """Dimensions of a named model size."""

    width: int
    depth: int
    heads: int
    patches: tuple[int, ...]  # sides in pixels of the patches for which weights have been published


SIZES: Mapping[str, _NamedSize] = {
    "tiny": _NamedSize(192, 12, 3, (16,)),
    "small": _NamedSize(384, 12, 6, (8, 14, 16, 32)),
    "base": _NamedSize(768, 12, 12, (8, 14, 16, 32)),
    "large": _NamedSize(1024, 24, 16, (14, 16, 32)),
    "huge": _NamedSize(1280, 32, 16, (14, 16)),
}
SIZE_LETTERS = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
"""Letters of the sizes in the notation of papers, such as ViT-B/16."""
STEMS: Mapping[str, tuple[tuple[int, ...], int]] = {
    "r_s16_p8": ((), 32),  # despite "s16": root of stride 4, patches of 8 cells
    "r26_s32": ((2, 2, 2, 2), 32),
    "r50_s16": ((3, 4, 9), 16),
    "r50_s32": ((3, 4, 6, 3), 32),
}
"""Bottlenecks per stage, and patch side in pixels, keyed by the middle part of the model name."""


def similar_models(name: str, known: Iterable[str]) -> list[str]:
    """Return up to five names of models that were probably meant, the most similar ones first.

    `name` may be as in papers (ViT-B/16), in torchvision or on the hub (google/vit-base-patch16).
    """
    text = re.sub(r"[^a-z0-9./]+", "_", name.lower())
    sizes = {letter.lower(): size for size, letter in SIZE_LETTERS.items()} | {"t": "tiny"}
    short = re.match(r"(vit|deit3?)_(ti|[tsblh])[_/]?(\d+)(?![0-9])", text)
    full = f"{short[1]}_{sizes[short[2]]}_patch{short[3]}" if short else text.rpartition("/")[2]
    return suggest(full, known, cutoff=0, inside=True, most=5)


def frozen_blocks(layers: str, depth: int) -> int | None:
    """Return how many of the first blocks are frozen, or None if `layers` is `all` or `lora`.

    The embedding is frozen together with these blocks. If they are all `depth` blocks, only layers
    after pooling are trained.
    """
    if layers in ("head", "pre_logits"):
        return depth
    if layers in ("all", "lora"):
        return None
    trained = int(layers.removeprefix("blocks:"))
    if trained > depth:
        raise UsageError(
            f"train.layers={layers} cannot be used: the model has only {count(depth, 'block')}",
            fix=f"use --train blocks:N with N from 1 to {depth}, or --train all (whole model)",
        )
    return depth - trained


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embeddings (RoPE), as explained in `layers.Rotary`."""

    unit: bool = True
    """Whether the coordinate of row or column r of g is 2 pi (2 (r + 1/2) / g - 1) instead of r. It
    then ranges from about -2 pi to 2 pi over the image (DINOv3), whatever the size of the image."""
    base: Annotated[float, Meta(gt=1, le=1e9)] = 100.0
    offset: Annotated[float, Meta(ge=-1024, le=1024)] = 0.0
    """Value added to row and column numbers (1 in PE)."""
    grid: tuple[Side, Side] | None = None
    """Rows and columns of the grid to which row and column numbers are scaled (EVA-02, PE), so that
    images of all sizes cover the same coordinates; None for no scaling."""
    x_first: bool = False
    """Whether the first half of the pairs belongs to the column instead of the row."""
    halves: bool = True
    """Whether dimension j is paired with dimension j + K / 2 (DINOv3) instead of its neighbour."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """Architecture of a VisionTransformer."""

    image_size: tuple[Side, Side] = (224, 224)
    """Height and width in pixels; multiples of the patch size."""
    patch_size: tuple[Side, Side] = (16, 16)
    """Height and width of a patch in pixels of the image, even in hybrids."""
    in_channels: Annotated[int, Meta(ge=1, le=1024)] = 3
    width: Annotated[int, Meta(ge=1, le=65536)] = 768  # number of dimensions of a token (D)
    depth: Annotated[int, Meta(ge=1, le=1024)] = 12  # number of blocks
    heads: Annotated[int, Meta(ge=1, le=65536)] = 12
    mlp_ratio: Annotated[float, Meta(gt=0, le=1024)] = 4.0
    """Hidden width of the MLP, as a multiple of `width`."""
    qkv_bias: bool = True
    num_classes: Natural = 1000
    """Number of classes; 0 for a model without a head, which returns pooled features."""
    pre_logits: bool = False
    """Whether a Linear + Tanh of `width` units precedes the head (original in21k weights)."""
    pool: Pool = "cls"
    """Input of the head: the class token (cls), the mean of the patch tokens (mean), or the output
    of attention pooling (map)."""
    drop_path: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Stochastic depth: probability of skipping a residual branch in training. It increases
    linearly from 0 in the first block to this value in the last."""
    norm: _Norm = "pre"
    """Position of LayerNorm: before each residual branch (pre), or after each residual sum (post),
    as in the original Transformer."""
    norm_eps: Annotated[float, Meta(gt=0, lt=1)] = 1e-6
    """Epsilon of LayerNorm. The default is that of the JAX reference; CLIP and DINOv3 use 1e-5."""
    layer_scale: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Initial value of LayerScale's factors (DINOv2); 0 for no LayerScale."""
    registers: Annotated[int, Meta(ge=0, le=1024)] = 0  # number of register tokens (DINOv2)
    prefix_positions: bool = True  # whether the prefix tokens have position embeddings
    distilled: bool = False
    """Whether there is a distillation token with its own head (DeiT); the logits of both heads are
    averaged."""
    stem: tuple[Annotated[int, Meta(ge=1, le=1024)], ...] | None = None
    """Bottlenecks per stage of a hybrid's ResNet; () for the root alone, None for no ResNet."""
    convs: tuple[Annotated[int, Meta(ge=2, le=65536)], ...] = ()
    """Output channels of the 3x3 convolutions of a convolutional stem; not allowed with `stem`."""
    # Not in the repr, which is part of the key of cached features of the last block.
    read_blocks: Annotated[int, Meta(ge=0, le=1024)] = field(default=1, repr=False)
    """Number of final blocks that the head reads: the pooled output of the last block and, of each
    other block, the mean patch token and, unless `pool` is "mean", the class token."""
    class_token: bool = True
    norm_before_pool: bool = False
    """Whether the last LayerNorm is applied before mean pooling (SigLIP with average pooling)
    instead of after it; requires mean pooling."""
    embed_norm: bool = False
    """Whether a LayerNorm follows the position embeddings, as in CLIP. The patch projection then
    has no bias."""
    activation: Activation = "gelu"
    """Activation function of the MLPs: the exact GELU, or one of two approximations, with tanh
    (some SigLIP models) or with a sigmoid (OpenAI's CLIP)."""
    pool_heads: Annotated[int, Meta(ge=0, le=65536)] = 0
    """Number of heads of attention pooling; 0 for as many as in the blocks."""
    norm_layer: _NormLayer = "layernorm"
    """Type of all normalisation layers: LayerNorm or RMSNorm (AIMv2)."""
    final_norm: bool = True
    """Whether a normalisation layer precedes the head (RADIO and PE have none)."""
    patch_norm: bool = False
    """Whether the patch projection is followed by a normalisation layer (AIMv2)."""
    proj_bias: bool = True
    """Whether the output projection of the attention and the layers of the MLP have biases."""
    attn_norm: bool = False
    """Whether a normalisation layer precedes the output projection of the attention (BEiT-3)."""
    mlp_norm: bool = False
    """Whether a normalisation layer precedes the last layer of the MLP (BEiT-3, EVA-02)."""
    gated_mlp: bool = False
    """Whether the MLPs are SwiGLU layers (DINOv2-giant, EVA-02, AIMv2); `activation` then has no
    effect on them."""
    positions: bool = True  # whether there are learned position embeddings
    rope: RopeConfig | None = None
    """Rotary position embeddings, applied to queries and keys in every block; None for no RoPE."""
    # Fields of `TimmConfig` that do not apply
    timm: ClassVar[str] = ""
    sized: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ranges(self)
        sides = zip(self.image_size, self.patch_size, ("height", "width"), strict=True)
        for side, patch, axis in sides:
            if side < patch or side % patch:
                near = max(patch, round(side / patch) * patch)
                raise UsageError(
                    f"the image {axis} ({side} pixels) is not a multiple of the patch size "
                    f"({patch} pixels)",
                    fix=f"use a multiple of {patch}, e.g. --image-size {near}",
                )
        if math.prod(self.grid) > _MAX_PATCHES:
            raise UsageError(
                f"{self.grid[0]}x{self.grid[1]} patches exceed the limit of {_MAX_PATCHES:,}",
                fix="use smaller images or larger patches",
            )
        is_map, is_distilled = self.pool == "map", self.distilled
        strides, early = any(side % self.stride for side in self.patch_size), self.norm_before_pool
        rules: list[tuple[object, str, str]] = [  # whether settings are wrong, their names, the fix
            (self.width % self.heads, "width heads", "make width a multiple of heads"),
            (self.hidden < 1, "mlp_ratio width", "increase mlp_ratio to at least 1 / width"),
            (self.convs and self.stem is not None, "stem convs", "use only one of stem and convs"),
            (len(self.stem or ()) > 4, "stem", "use up to 4 stages"),
            (len(self.convs) > 16, "convs", "use up to 16 convolutions"),
            (strides, "patch_size stride", "make patch_size a multiple of the stride"),
            (
                self.rope and self.width // self.heads % 4,
                "width heads",
                "rotary position embeddings need heads with a multiple of 4 dimensions",
            ),
            (
                is_distilled and (self.pool != "cls" or self.pre_logits),
                "distilled pool pre_logits",
                'a distilled model needs pool "cls" and no pre_logits',
            ),
            (
                early and (self.pool != "mean" or not self.final_norm),
                "norm_before_pool pool final_norm",
                'norm_before_pool needs pool "mean" and a final norm',
            ),
            (
                self.pool == "cls" and not self.class_token,
                "pool class_token",
                'pool "cls" needs a class token',
            ),
            (
                self.pool_heads and (not is_map or self.width % self.pool_heads),
                "pool_heads pool width",
                'pool_heads needs pool "map" and must divide the width',
            ),
        ]
        named = {"pool": Pool, "norm": _Norm, "activation": Activation, "norm_layer": _NormLayer}
        for name, kind in named.items():
            fix = f"use one of {', '.join(get_args(kind))}"
            rules.append((getattr(self, name) not in get_args(kind), name, fix))
        for is_wrong, names, fix in rules:
            if is_wrong:
                shown = ", ".join(f"{name} {getattr(self, name)!r}" for name in names.split())
                raise UsageError(f"invalid or incompatible model settings: {shown}", fix=fix)
        can_read = 1 < self.read_blocks <= self.depth and self.supports_read_blocks
        if self.read_blocks != 1 and not can_read:
            raise UsageError(
                f"a head cannot read {self.read_blocks} blocks of this model (depth {self.depth}, "
                f"pool {self.pool!r}, distilled {self.distilled}, pre_logits {self.pre_logits})",
                fix="use read_blocks = 1, or a model without a distillation token, attention "
                "pooling or a pre_logits layer",
            )

    @property
    def supports_read_blocks(self) -> bool:
        """Whether the layers after the last block allow a head that reads several blocks."""
        return self.pool != "map" and not self.distilled and not self.pre_logits

    @property
    def grid(self) -> tuple[int, int]:
        """Numbers of rows and columns in the grid of patches."""
        (height, width), (down, across) = self.image_size, self.patch_size
        return height // down, width // across

    @property
    def stride(self) -> int:
        """Side in image pixels of one cell of the stem's feature map; 1 if there is no stem."""
        if self.stem is not None:
            return stem_stride(self.stem)
        return math.prod(conv_strides(self.convs, self.patch_size))

    @property
    def first_conv(self) -> str:
        """Name of the convolution that reads the pixels."""
        if self.stem is not None:
            return f"patch_embed.backbone.{'stem.' if self.stem else ''}conv"
        return "patch_embed.backbone.0.conv" if self.convs else "patch_embed.proj"

    @property
    def num_prefix(self) -> int:
        """Number of tokens before the patch tokens."""
        return self.class_token + self.distilled + self.registers

    @property
    def num_placed_prefix(self) -> int:
        """Number of prefix tokens with position embeddings, whose rows precede the patches'."""
        return self.num_prefix if self.prefix_positions else 0

    @property
    def num_read(self) -> int:
        """Number of class and distillation tokens, which the heads read if `pool` is "cls"."""
        return 1 + self.distilled

    @property
    def feature_size(self) -> int:
        """Number of dimensions of an image's pooled feature."""
        reads = self.num_read if self.pool == "cls" else 1
        return self.width * (reads + self.read_of_earlier * (self.read_blocks - 1))

    @property
    def read_of_earlier(self) -> int:
        """Number of tokens that a head on several blocks uses from each block but the last."""
        return 1 if self.pool == "mean" else 2

    @property
    def last_norm(self) -> str:
        """Name of the last norm: `norm` before pooling, `fc_norm` after it; empty if none."""
        if not self.final_norm:
            return ""
        return "norm" if self.pool != "mean" or self.norm_before_pool else "fc_norm"

    @property
    def hidden(self) -> int:
        """Number of inputs of the last layer of an MLP."""
        return int(self.width * self.mlp_ratio)

    def without_head(self) -> Self:
        """Return the configuration without a head, pre_logits layer or stochastic depth."""
        return replace(self, num_classes=0, pre_logits=False, drop_path=0.0, read_blocks=1)


def as_pair(side: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width), given either this pair or the side of a square."""
    return side if isinstance(side, tuple) else (side, side)


def stem_stride(stages: tuple[int, ...]) -> int:
    """Return the side in image pixels of one cell of a ResNet stem's feature map."""
    return 4 * 2 ** max(0, len(stages) - 1)


def conv_strides(convs: tuple[int, ...], patch: tuple[int, int]) -> tuple[int, ...]:
    """Return the strides of the 3x3 convolutions of a convolutional stem.

    The last k have stride 2, for the largest k such that 2^k divides both patch sides.
    """
    side = math.gcd(*patch)
    halvings = min(len(convs), (side & -side).bit_length() - 1)
    return (1,) * (len(convs) - halvings) + (2,) * halvings


# names and shapes of the tensors of a Vision Transformer, derived from its configuration ----------

_Tensors = Iterator[tuple[str, tuple[int, ...], bool]]
"""The name and shape of each tensor that a Vision Transformer may have, and whether it has it."""


def _layer(name: str, *weight: int, has: object = True, bias: object = True) -> _Tensors:
    yield f"{name}.weight", weight, bool(has)
    yield f"{name}.bias", weight[:1], bool(has and bias)


def _norm(config: ViTConfig, name: str, size: int = 0, *, has: object = True) -> _Tensors:
    has_bias = config.norm_layer == "layernorm"
    return _layer(name, size or config.width, has=has, bias=has_bias)


def _mlp(config: ViTConfig, name: str, *, has: object = True, is_gated: bool = False) -> _Tensors:
    width, hidden, bias = config.width, config.hidden, config.proj_bias
    rows = 2 * hidden if is_gated else hidden
    yield from _layer(f"{name}.fc1", rows, width, has=has, bias=bias)
    yield from _norm(config, f"{name}.norm", hidden, has=has and config.mlp_norm)
    yield from _layer(f"{name}.fc2", width, hidden, has=has, bias=bias)


def _patch_embed(config: ViTConfig) -> _Tensors:
    place, channels = "patch_embed.backbone", config.in_channels
    found: list[tuple[str, str, tuple[int, ...]]] = []  # convolutions, their norms and kernels
    if config.stem is not None:
        root = f"{place}.stem" if config.stem else place
        found.append((f"{root}.conv", f"{root}.norm", (64, channels, 7, 7)))
        channels = 64
    for i, j in ((i, j) for i, depth in enumerate(config.stem or ()) for j in range(depth)):
        unit, outputs, inner = f"{place}.stages.{i}.blocks.{j}", 256 * 2**i, 64 * 2**i
        kernels = (inner, channels, 1, 1), (inner, inner, 3, 3), (outputs, inner, 1, 1)
        found += [(f"{unit}.conv{k}", f"{unit}.norm{k}", x) for k, x in enumerate(kernels, 1)]
        if j == 0:
            down = f"{unit}.downsample"
            found.append((f"{down}.conv", f"{down}.norm", (outputs, channels, 1, 1)))
        channels = outputs
    for i, outputs in enumerate(config.convs):
        found.append((f"{place}.{i}.conv", f"{place}.{i}.norm", (outputs, channels, 3, 3)))
        channels = outputs
    for conv, norm, kernel in found:
        yield from _layer(conv, *kernel, bias=False)
        yield from _layer(norm, kernel[0])
    sides = (side // config.stride for side in config.patch_size)
    yield from _layer(
        "patch_embed.proj", config.width, channels, *sides, bias=not config.embed_norm
    )
    yield from _norm(config, "patch_embed.norm", has=config.patch_norm)


def _tensors(config: ViTConfig) -> _Tensors:
    """Yield all tensors of a Vision Transformer, and those of the parts that it lacks."""
    width, map_pool = config.width, config.pool == "map"
    yield "cls_token", (1, 1, width), config.class_token
    yield "dist_token", (1, 1, width), config.distilled
    yield "reg_token", (1, config.registers, width), config.registers > 0
    rows = config.num_placed_prefix + math.prod(config.grid)
    yield "pos_embed", (1, rows, width), config.positions
    yield from _patch_embed(config)
    yield from _norm(config, "norm_pre", has=config.embed_norm)
    for block in (f"blocks.{i}" for i in range(config.depth)):
        yield from _norm(config, f"{block}.norm1")
        yield from _layer(f"{block}.attn.qkv", 3 * width, width, bias=config.qkv_bias)
        yield from _layer(f"{block}.attn.proj", width, width, bias=config.proj_bias)
        yield from _norm(config, f"{block}.attn.norm", has=config.attn_norm)
        yield from _norm(config, f"{block}.norm2")
        yield from _mlp(config, f"{block}.mlp", is_gated=config.gated_mlp)
        for branch in (1, 2):
            yield f"{block}.ls{branch}.gamma", (width,), config.layer_scale > 0
    for name in ("norm", "fc_norm"):
        yield from _norm(config, name, has=config.last_norm == name)
    yield "attn_pool.latent", (1, 1, width), map_pool
    for name, outputs in (("q", width), ("kv", 2 * width), ("proj", width)):
        yield from _layer(f"attn_pool.{name}", outputs, width, has=map_pool)
    yield from _norm(config, "attn_pool.norm", has=map_pool)
    yield from _mlp(config, "attn_pool.mlp", has=map_pool)
    yield from _layer("pre_logits.fc", width, width, has=config.pre_logits)
    classes, several = config.num_classes, config.read_blocks > 1
    inputs = config.feature_size if several else width
    yield from _layer("head", classes, inputs, has=classes)
    yield from _layer("last_head", classes, width, has=classes and several)
    yield from _layer("head_dist", classes, width, has=classes and config.distilled)


def vit_shapes(config: ViTConfig) -> dict[str, TensorFacts]:
    """Return the type and shape of each tensor of a Vision Transformer."""
    return {name: TensorFacts("F32", shape) for name, shape, has in _tensors(config) if has}


@functools.cache
def _possible_names() -> frozenset[str]:
    """Return the names of all tensors that a Vision Transformer may have, with 0 as numbers."""
    stems = (ViTConfig(stem=stem, depth=1) for stem in (None, (), (1,)))
    return frozenset(re.sub(r"\d+", "0", name) for one in stems for name, *_ in _tensors(one))


def may_have(name: str) -> bool:
    """Return whether a Vision Transformer without `convs` may have a tensor with this name."""
    return re.sub(r"\d+", "0", name) in _possible_names()
