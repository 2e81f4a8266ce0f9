"""Configuration of a Vision Transformer: its dimensions and options, checked on creation.

Letters: D width, H heads, C classes.

Sources: Dosovitskiy et al. 2021, table 1, https://arxiv.org/abs/2010.11929 (base, large, huge);
Touvron et al. 2021 (DeiT), 2012.12877, and Steiner et al. 2021 (AugReg), 2106.10270 (tiny, small).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from vitft.models.stem import stride_of
from vitft.system.errors import UsageError

Pool = Literal["cls", "mean"]
Norm = Literal["pre", "post"]


class NamedSize(NamedTuple):
    """One row of the size table; `patches` are the patch sides that published weights use."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """Everything that decides the shape of a VisionTransformer."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width in pixels; multiples of the patch size."""
    patch_size: tuple[int, int] = (16, 16)
    """Height and width of a patch in pixels of the image, in hybrids too."""
    in_channels: int = 3
    width: int = 768
    """Numbers per token, D."""
    depth: int = 12
    """Number of blocks."""
    heads: int = 12
    mlp_ratio: float = 4.0
    """Width of the hidden layer of the MLP, as a multiple of `width`."""
    qkv_bias: bool = True
    num_classes: int = 1000
    """0 means no head: the model returns the pooled feature."""
    pre_logits: bool = False
    """A Linear + Tanh of `width` units in front of the head, as the original in21k weights have."""
    pool: Pool = "cls"
    """What the head sees: the class token, or the mean of the patch tokens."""
    drop_path: float = 0.0
    """Probability of skipping the last block's branches while training; earlier blocks less."""
    norm: Norm = "pre"
    """LayerNorm before each branch, or after each sum as in the original Transformer."""
    norm_eps: float = 1e-6
    """As in the JAX reference; torch's default of 1e-5 shifts pretrained outputs."""
    layer_scale: float = 0.0
    """Initial factor on every channel of every branch (LayerScale, DINOv2); 0 means none."""
    registers: int = 0
    """Prefix tokens that start without meaning, for the model to use (DINOv2)."""
    prefix_positions: bool = True
    """Whether the position table has rows for the prefix tokens too."""
    distilled: bool = False
    """A second class token with its own head; the two heads are averaged (distilled DeiT)."""
    stem: tuple[int, ...] | None = None
    """Bottlenecks per stage of a ResNet before the patches (hybrids); () for its root alone."""
    convs: tuple[int, ...] = ()
    """Channels of 3x3 convolutions before the patches, in place of a ResNet."""

    def __post_init__(self) -> None:
        sides = zip(self.image_size, self.patch_size, ("high", "wide"), strict=True)
        for side, patch, axis in sides:
            if side < patch or side % patch:
                near = max(patch, round(side / patch) * patch)
                raise UsageError(
                    f"an image {side} pixels {axis} cannot be cut into patches of {patch} pixels",
                    fix=f"use a multiple of {patch}, e.g. {near}",
                )
        positive = (self.in_channels, self.depth, *(n - 1 for n in self.convs))
        both = bool(self.convs) and self.stem is not None
        fits = self.heads > 0 and not (self.width % self.heads or self.patch_size[0] % self.stride)
        if not fits or both or min(positive) < 1 or min(self.num_classes, self.registers) < 0:
            raise UsageError(
                f"num_classes {self.num_classes}, registers {self.registers}, in_channels "
                f"{self.in_channels}, stem {self.stem}, convs {self.convs}, depth {self.depth}, "
                f"width {self.width}, heads {self.heads}, patches of {self.patch_size} behind a "
                f"stride of {self.stride} do not make a model",
                fix="width is a multiple of heads and a patch of the stride; nothing is negative",
            )
        known = self.pool in ("cls", "mean") and self.norm in ("pre", "post")
        fits_heads = not self.distilled or (self.pool == "cls" and not self.pre_logits)
        if not known or not fits_heads or not 0 <= self.drop_path < 1:
            raise UsageError(
                f"pool is {self.pool!r}, norm is {self.norm!r}, drop_path is {self.drop_path}, "
                f"distilled is {self.distilled}, pre_logits is {self.pre_logits}",
                fix='pool is "cls" or "mean", norm "pre" or "post", drop_path from 0 to below 1; '
                "a distilled model reads two class tokens and has no pre_logits",
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (height, width), (down, across) = self.image_size, self.patch_size
        return height // down, width // across

    @property
    def stride(self) -> int:
        """Pixels per side of one cell of what is cut into patches."""
        return stride_of(self.stem, self.convs, self.patch_size)

    @property
    def num_prefix(self) -> int:
        """Tokens in front of those of the patches."""
        return 1 + self.distilled + self.registers

    @property
    def num_read(self) -> int:
        """Class tokens that the heads read, first in the sequence."""
        return 1 + self.distilled

    def without_head(self) -> Self:
        """The settings that features depend on."""
        return replace(self, num_classes=0, pre_logits=False, drop_path=0.0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read back `to_json`; JSON knows lists where we mean tuples."""
        pairs: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        return cls(**pairs)


def as_pair(side: int | tuple[int, int]) -> tuple[int, int]:
    """One side for squares, or (height, width)."""
    return side if isinstance(side, tuple) else (side, side)
