"""Configuration of a Vision Transformer: dimensions and options, validated on creation.

Notation: D width, H heads, C classes.

Sources: Dosovitskiy et al. 2021, table 1, https://arxiv.org/abs/2010.11929 (base, large, huge);
Touvron et al. 2021 (DeiT), 2012.12877, and Steiner et al. 2021 (AugReg), 2106.10270 (tiny, small).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, NamedTuple, Self

from vitft.config.sections import MAX_IMAGE_SIDE
from vitft.system.errors import UsageError
from vitft.system.structure import Range, check_ranges

Pool = Literal["cls", "mean"]
Norm = Literal["pre", "post"]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
LATER: Mapping[str, bool] = {"later": True}
"""Metadata of fields that older models lack. Cards and digests omit such a field if it has its
default value, so they remain valid for older models.
"""
MAX_PATCHES = 16384
"""Maximum number of patches per image, e.g. in a grid of 128 x 128."""


class NamedSize(NamedTuple):
    """Dimensions of a named model size.

    `patches` contains the patch sides, in pixels, for which weights have been published.
    """

    width: int
    depth: int
    heads: int
    patches: tuple[int, ...]


SIZES: Mapping[str, NamedSize] = {
    "tiny": NamedSize(192, 12, 3, (16,)),
    "small": NamedSize(384, 12, 6, (8, 14, 16, 32)),
    "base": NamedSize(768, 12, 12, (8, 14, 16, 32)),
    "large": NamedSize(1024, 24, 16, (14, 16, 32)),
    "huge": NamedSize(1280, 32, 16, (14, 16)),
}


STEMS: Mapping[str, tuple[tuple[int, ...], int]] = {
    "r_s16_p8": ((), 32),  # despite "s16": root of stride 4, patches of 8 cells
    "r26_s32": ((2, 2, 2, 2), 32),
    "r50_s16": ((3, 4, 9), 16),
    "r50_s32": ((3, 4, 6, 3), 32),
}
"""Bottlenecks per stage, and patch side in pixels, keyed by the middle part of the model name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """Architecture of a VisionTransformer."""

    image_size: Annotated[tuple[int, int], Range(ge=1, le=MAX_IMAGE_SIDE)] = (224, 224)
    """Height and width in pixels; multiples of the patch size."""
    patch_size: Annotated[tuple[int, int], Range(ge=1, le=MAX_IMAGE_SIDE)] = (16, 16)
    """Height and width of a patch in pixels of the image, even in hybrids."""
    in_channels: Annotated[int, Range(ge=1, le=1024)] = 3
    width: Annotated[int, Range(ge=1, le=65536)] = 768
    """Number of dimensions of a token (D)."""
    depth: Annotated[int, Range(ge=1, le=1024)] = 12
    """Number of blocks."""
    heads: Annotated[int, Range(ge=1, le=65536)] = 12
    mlp_ratio: Annotated[float, Range(gt=0, le=1024)] = 4.0
    """Hidden width of the MLP, as a multiple of `width`."""
    qkv_bias: bool = True
    num_classes: Annotated[int, Range(ge=0)] = 1000
    """Number of classes; 0 for a model without a head, which returns pooled features."""
    pre_logits: bool = False
    """Whether a Linear + Tanh of `width` units precedes the head (original in21k weights)."""
    pool: Pool = "cls"
    """Input of the head: the class token (cls) or the mean of the patch tokens (mean)."""
    drop_path: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Stochastic depth: probability of skipping a residual branch in training. It increases
    linearly from 0 in the first block to this value in the last."""
    norm: Norm = "pre"
    """Position of LayerNorm: before each residual branch (pre), or after each residual sum (post),
    as in the original Transformer."""
    norm_eps: Annotated[float, Range(gt=0, lt=1)] = 1e-6
    """Epsilon of LayerNorm, as in the JAX reference; torch's default would change the outputs."""
    layer_scale: Annotated[float, Range(ge=0, le=1)] = 0.0
    """Initial value of LayerScale's factors (DINOv2); 0 for no LayerScale."""
    registers: Annotated[int, Range(ge=0, le=1024)] = 0
    """Number of register tokens (DINOv2)."""
    prefix_positions: bool = True
    """Whether the prefix tokens have position embeddings."""
    distilled: bool = False
    """Whether there is a distillation token with its own head (DeiT); the logits of both heads are
    averaged."""
    stem: Annotated[tuple[int, ...] | None, Range(ge=1, le=1024)] = None
    """Bottlenecks per stage of a hybrid's ResNet; () for the root alone, None for no ResNet."""
    convs: Annotated[tuple[int, ...], Range(ge=2, le=65536)] = ()
    """Output channels of the 3x3 convolutions of a convolutional stem; not allowed with `stem`."""
    # Not in the repr, which is part of the key of cached features of the last block.
    read_blocks: Annotated[int, Range(ge=0, le=1024)] = field(default=1, repr=False)
    """Number of final blocks that the head reads: the class token of the last block, and the class
    token and mean patch token of each other block.
    """
    class_token: bool = field(default=True, repr=False, metadata=LATER)
    norm_before_pool: bool = field(default=False, repr=False, metadata=LATER)
    """Whether the last LayerNorm is applied before mean pooling (SigLIP with average pooling)
    instead of after it; requires mean pooling.
    """
    embed_norm: bool = field(default=False, repr=False, metadata=LATER)
    """Whether a LayerNorm follows the position embeddings, as in CLIP. The patch projection then
    has no bias."""
    activation: Activation = field(default="gelu", repr=False, metadata=LATER)
    """Activation function of the MLPs: the exact GELU, or one of two approximations, with tanh
    (some SigLIP models) or with a sigmoid (OpenAI's CLIP)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        sides = zip(self.image_size, self.patch_size, ("height", "width"), strict=True)
        for side, patch, axis in sides:
            if side < patch or side % patch:
                near = max(patch, round(side / patch) * patch)
                raise UsageError(
                    f"the image {axis} ({side} pixels) is not a multiple of the patch size "
                    f"({patch} pixels)",
                    fix=f"use a multiple of {patch}, e.g. {near}",
                )
        if math.prod(self.grid) > MAX_PATCHES:
            raise UsageError(
                f"{self.grid[0]}x{self.grid[1]} patches exceed the limit of {MAX_PATCHES:,}",
                fix="use smaller images or larger patches",
            )
        both = bool(self.convs) and self.stem is not None
        is_short = len(self.stem or ()) <= 4 and len(self.convs) <= 16
        uneven = self.width % self.heads or any(side % self.stride for side in self.patch_size)
        if uneven or both or not is_short or int(self.width * self.mlp_ratio) < 1:
            raise UsageError(
                "invalid or incompatible model settings: "
                f"num_classes {self.num_classes}, registers {self.registers}, in_channels "
                f"{self.in_channels}, stem {self.stem}, convs {self.convs}, depth {self.depth}, "
                f"width {self.width}, heads {self.heads}, patch_size {self.patch_size}, "
                f"stride {self.stride}",
                fix="make width a multiple of heads and patch_size a multiple of the stride; use "
                "only one of stem (up to 4 stages) and convs (up to 16); increase mlp_ratio if it "
                "is below 1 / width",
            )
        known = self.activation in ("gelu", "gelu_tanh", "quick_gelu")
        known = known and self.pool in ("cls", "mean") and self.norm in ("pre", "post")
        fits_heads = not self.distilled or (self.pool == "cls" and not self.pre_logits)
        fits_pool = not self.norm_before_pool if self.pool == "cls" else not self.distilled
        has_read_token = self.class_token or self.pool != "cls"
        if not known or not fits_heads or not fits_pool or not has_read_token:
            raise UsageError(
                "invalid or incompatible model settings: "
                f"pool {self.pool!r}, norm {self.norm!r}, drop_path {self.drop_path}, "
                f"distilled {self.distilled}, pre_logits {self.pre_logits}, class_token "
                f"{self.class_token}, norm_before_pool {self.norm_before_pool}, activation "
                f"{self.activation!r}",
                fix='use pool "cls" or "mean", norm "pre" or "post", activation "gelu", '
                '"gelu_tanh" or "quick_gelu", and drop_path in [0, 1); a '
                'distilled model needs pool "cls" and no pre_logits; pool "cls" needs a class '
                "token and no norm_before_pool",
            )

        if self.read_blocks != 1:
            self.check_read_blocks()

    def check_read_blocks(self) -> None:
        """Check that a head can read the last `read_blocks` blocks of this architecture.

        Raises:
            UsageError: `read_blocks` is 0 or exceeds the depth, or the head of this architecture
                can read only the last block.
        """
        reads_class_token = self.pool == "cls" and not self.distilled and not self.pre_logits
        if not 1 < self.read_blocks <= self.depth or not reads_class_token:
            raise UsageError(
                f"a head cannot read {self.read_blocks} blocks of this model (depth {self.depth}, "
                f"pool {self.pool!r}, distilled {self.distilled}, pre_logits {self.pre_logits})",
                fix="use read_blocks = 1, or a model with one class token and no pre_logits layer",
            )

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
    def num_read(self) -> int:
        """Number of leading tokens that the classification heads read if `pool` is "cls".

        These are the class token and, in a distilled model, the distillation token.
        """
        return 1 + self.distilled

    @property
    def feature_size(self) -> int:
        """Number of dimensions of an image's pooled feature."""
        reads = self.num_read if self.pool == "cls" else 1
        return self.width * (reads + 2 * (self.read_blocks - 1))

    @property
    def last_norm(self) -> str:
        """Name of the last LayerNorm: `norm` before pooling, or `fc_norm` after it."""
        return "norm" if self.pool == "cls" or self.norm_before_pool else "fc_norm"

    @property
    def key(self) -> str:
        """Text that identifies the architecture in digests."""
        later = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata}
        others = {n: v for n, v in later.items() if n in stated_fields(self)}
        return f"{self} {others}" if others else str(self)

    def without_head(self) -> Self:
        """Return the configuration without a head, pre_logits layer or stochastic depth."""
        return replace(self, num_classes=0, pre_logits=False, drop_path=0.0, read_blocks=1)


def stated_fields(config: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass instance
    """Return a configuration's fields by name, without `LATER` fields that have the default."""
    values = {f.name: (f, getattr(config, f.name)) for f in fields(config)}
    return {n: v for n, (f, v) in values.items() if not f.metadata or v != f.default}


def as_pair(side: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width), given either this pair or the side of a square."""
    return side if isinstance(side, tuple) else (side, side)


def stem_stride(stages: tuple[int, ...]) -> int:
    """Return the side in image pixels of one cell of a ResNet stem's feature map."""
    return 4 * 2 ** max(0, len(stages) - 1)


def conv_strides(convs: tuple[int, ...], patch: tuple[int, int]) -> tuple[int, ...]:
    """Return the strides of the 3x3 convolutions of a convolutional stem.

    The last k convolutions have stride 2 and the others stride 1. Here, k is the largest number for
    which 2^k divides both patch sides, but at most the number of convolutions.
    """
    side = math.gcd(*patch)
    halvings = min(len(convs), (side & -side).bit_length() - 1)
    return (1,) * (len(convs) - halvings) + (2,) * halvings
