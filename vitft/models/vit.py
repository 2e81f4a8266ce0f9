"""The Vision Transformer, all of it in this file: pixels in, class scores out.

It does not know file formats, where weights come from or how it is trained. Its parameter names
are timm's, so a `state_dict` goes both ways with strict=True. `hybrid` has what later models added.

Letters of the shape comments:
    B images, P patches, N tokens (prefix + P), D width, H heads, K head width (D / H),
    C classes, S image side in pixels, g grid side in patches; `pixels` are (B, 3, S, S).
    The prefix is the class token, and in some models a distillation token and registers.

Sources: Dosovitskiy et al. 2021 (ViT), https://arxiv.org/abs/2010.11929; vision_transformer of
google-research (eps, zero head, Linear + Tanh); Touvron et al. 2021 (DeiT, LayerScale), 2012.12877
and 2103.17239; Darcet et al. 2024 (registers), 2309.16588; timm's `VisionTransformer` (names).
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitft.models.stem import DropPath, LayerScale, build_stem, stride_of
from vitft.system.errors import UsageError

Pool = Literal["cls", "mean"]
Norm = Literal["pre", "post"]


class Size(NamedTuple):
    """One row of the size table; `patches` are the patch sides that published weights use."""

    width: int
    depth: int
    heads: int
    patches: tuple[int, ...]


# Ti and S: Touvron et al. 2021 (DeiT), Steiner et al. 2021 (AugReg); B, L, H: Dosovitskiy table 1.
SIZES: Mapping[str, Size] = {
    "tiny": Size(192, 12, 3, (16,)),
    "small": Size(384, 12, 6, (8, 14, 16, 32)),
    "base": Size(768, 12, 12, (8, 14, 16, 32)),
    "large": Size(1024, 24, 16, (14, 16, 32)),
    "huge": Size(1280, 32, 16, (14, 16)),
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


class PatchEmbed(nn.Module):
    """Cut the image into patches and project each to one token (section 3.1, equation 1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.image_size = config.image_size
        # A hybrid cuts a feature map instead of the image.
        self.backbone, channels = build_stem(
            config.in_channels, config.stem, config.convs, config.patch_size
        )
        kernel = config.patch_size[0] // config.stride, config.patch_size[1] // config.stride
        # A convolution with stride = kernel is one matrix applied to every patch.
        self.proj = nn.Conv2d(channels, config.width, kernel, stride=kernel)

    def forward(self, pixels: Tensor) -> Tensor:
        if tuple(pixels.shape[-2:]) != self.image_size:
            raise UsageError(
                f"the model reads images of {self.image_size[0]}x{self.image_size[1]} pixels, "
                f"but got {pixels.shape[-2]}x{pixels.shape[-1]}",
                fix="resize the images, or load the weights with image_size=...",
            )
        return self.proj(self.backbone(pixels)).flatten(2).mT  # (B, D, g, g) -> (B, P, D)


class Attention(nn.Module):
    """Every token gathers from every other, once per head (appendix A)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.num_read = config.heads, config.num_read
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.proj = nn.Linear(config.width, config.width)

    def split_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens `x` (B, N, D), each (B, H, N, K)."""
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, N, 3, H, K)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # each (B, H, N, K)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_heads(x)
        return self.proj(mix(q, k, v).transpose(1, 2).flatten(2))  # (B, N, D)

    def for_class_token(self, x: Tensor) -> Tensor:
        """The rows of `forward` that the heads read, (B, 1 or 2, D), and no others."""
        if type(self.qkv) is not nn.Linear:  # an adapter (LoRA) adds to it: its rows are not apart
            q, k, v = self.split_heads(x)
            mixed = mix(q[:, :, : self.num_read], k, v)
            return self.proj(mixed.transpose(1, 2).flatten(2))  # (B, 1 or 2, D)
        width, bias = self.qkv.in_features, cast("Tensor | None", self.qkv.bias)
        q = F.linear(
            x[:, : self.num_read], self.qkv.weight[:width], None if bias is None else bias[:width]
        )
        kv = F.linear(x, self.qkv.weight[width:], None if bias is None else bias[width:])
        k, v = kv.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, N, K)
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, 1 or 2, K)
        return self.proj(mix(q, k, v).transpose(1, 2).flatten(2))  # (B, 1 or 2, D)

    def maps(self, x: Tensor) -> Tensor:
        """The weights `forward` applies without ever storing them: (B, H, N, N), rows sum to 1."""
        q, k, _ = self.split_heads(x)
        return shares(q, k)


def shares(q: Tensor, k: Tensor) -> Tensor:
    """How much of each key (B, H, N, K) each query takes: (B, H, N, N), rows sum to 1."""
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)


def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(K)) v: values (B, H, N, K) mixed for each query (B, H, M, K).

    On a CPU in bf16 the fused kernel is slower than the three steps spelled out
    (docs/experiments.md); everywhere else it is faster and never stores the weights.
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] <= 1024:
        weights = ((q / math.sqrt(q.shape[-1])) @ k.mT).softmax(dim=-1)  # (B, H, M, N)
        return weights @ v
    return F.scaled_dot_product_attention(q, k, v)


class MLP(nn.Module):
    """Two layers with an exact (erf) GELU between, applied to each token alone."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        hidden = int(config.width * config.mlp_ratio)
        self.fc1 = nn.Linear(config.width, hidden)
        self.fc2 = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """One encoder layer: mix tokens, then transform each (equations 2 and 3)."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.is_post, self.num_read = config.norm == "post", config.num_read
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = (
            LayerScale(config.width, config.layer_scale) if config.layer_scale else nn.Identity()
        )
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)
        self.ls2 = (
            LayerScale(config.width, config.layer_scale) if config.layer_scale else nn.Identity()
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        return self.add_branches(x, x, self.attn)

    def for_class_token(self, x: Tensor) -> Tensor:
        """What `pool` reads of `forward`: all tokens (B, N, D) in, (B, 1 or 2, D) out."""
        return self.add_branches(x[:, : self.num_read], x, self.attn.for_class_token)

    def add_branches(self, rows: Tensor, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """`rows` of the tokens `x`, after `attend` has gathered from all of `x` for them."""
        if self.is_post:  # Vaswani et al. 2017, section 3.1
            rows = self.norm1(rows + self.drop_path(self.ls1(attend(x))))
            return self.norm2(rows + self.drop_path(self.ls2(self.mlp(rows))))
        rows = rows + self.drop_path(self.ls1(attend(self.norm1(x))))
        return rows + self.drop_path(self.ls2(self.mlp(self.norm2(rows))))


class VisionTransformer(nn.Module):
    """A stack of blocks over patch tokens, read out by a linear head.

    `forward` is `classify(pool(encode(embed(pixels))))`; the four steps are public because
    feature caching, explanation and partial freezing cut the model between them.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        """Whether training computes the activations of blocks twice instead of keeping them."""
        self.patch_embed = PatchEmbed(config)
        width, rows = config.width, config.num_prefix if config.prefix_positions else 0
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.dist_token = nn.Parameter(torch.zeros(1, 1, width)) if config.distilled else None
        registers = torch.zeros(1, config.registers, width)
        self.reg_token = nn.Parameter(registers) if config.registers else None
        self.pos_embed = nn.Parameter(torch.zeros(1, rows + math.prod(config.grid), width))
        rates = [config.drop_path * i / max(1, config.depth - 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        # The last LayerNorm stands before pooling for the class token, after it for the mean.
        norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.norm = norm if config.pool == "cls" else nn.Identity()
        self.fc_norm = norm if config.pool == "mean" else nn.Identity()
        self.pre_logits = representation_layer(config) if config.pre_logits else nn.Identity()
        self.head = linear_head(config)
        self.head_dist = linear_head(config) if config.distilled else None
        if not self.cls_token.is_meta:  # a loader is about to put real weights there
            self.init_weights()

    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (B, channels, S, S) to tokens with positions (B, N, D)."""
        patches = self.patch_embed(pixels)  # (B, P, D)
        tokens = [t for t in (self.cls_token, self.dist_token, self.reg_token) if t is not None]
        prefix = [token.expand(patches.shape[0], -1, -1) for token in tokens]
        if self.config.prefix_positions:
            return torch.cat([*prefix, patches], dim=1) + self.pos_embed  # (B, N, D)
        return torch.cat([*prefix, patches + self.pos_embed], dim=1)

    def encode(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Run blocks `start` up to `stop` (default: all that remain): (B, N, D) to (B, N, D)."""
        for block in self.blocks[start:stop]:
            if self.checkpointing and self.training:
                tokens = checkpoint(block, tokens, use_reentrant=False)
            else:
                tokens = block(tokens)
        return tokens

    def pool(self, tokens: Tensor) -> Tensor:
        """One normalised feature per image from the last block's tokens: (B, N, D) to (B, D).

        Of a distilled model the features of both class tokens, one after the other: (B, 2 * D).
        """
        tokens = self.norm(tokens)
        if self.config.pool == "cls":
            return tokens[:, : self.config.num_read].flatten(1)
        return self.fc_norm(tokens[:, self.config.num_prefix :].mean(dim=1))

    def classify(self, pooled: Tensor) -> Tensor:
        """Class scores (logits) from the pooled feature: (B, D) to (B, C)."""
        if self.head_dist is None:
            return self.head(self.pre_logits(pooled))
        cls, dist = pooled.chunk(2, dim=-1)
        return (self.head(cls) + self.head_dist(dist)) / 2

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classify(self.pool(self.encode(self.embed(pixels))))

    @property
    def feature_size(self) -> int:
        """Numbers in the pooled feature of one image."""
        return self.config.width * (self.config.num_read if self.config.pool == "cls" else 1)

    def features(self, pixels: Tensor) -> Tensor:
        """What `classify` reads of an image, (B, D), without the work that nobody reads."""
        return self.finish(self.embed(pixels))

    def finish(self, tokens: Tensor, start: int = 0) -> Tensor:
        """The pooled feature (B, D) from the tokens in front of block `start`."""
        last = self.config.depth - 1
        if self.config.pool != "cls" or start > last:
            return self.pool(self.encode(tokens, start=start))
        # Nobody reads what the last block does to the patches.
        tokens = self.encode(tokens, start=start, stop=last)
        return self.pool(cast("Block", self.blocks[last]).for_class_token(tokens))

    @torch.no_grad()
    def init_weights(self) -> None:
        """All initialisation in one place; every bias is zero.

        | what | how | source |
        |---|---|---|
        | linear layers | truncated normal, std 0.02 | timm and DeiT |
        | patch projection | truncated normal, std 1/sqrt(inputs) | JAX reference (lecun_normal) |
        | positions | truncated normal, std 0.02 | JAX reference |
        | class token, registers | normal, std 1e-6 (distillation token: 0.02) | timm |
        | convolutions of a stem | torch's, their scale means nothing | hybrid.py |
        | heads | zero, so the first loss is ln(C) | Dosovitskiy et al. 2021, appendix B.1.1 |
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
            if module in (self.head, self.head_dist) and isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)
            if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
                nn.init.zeros_(module.bias)
        kernel = self.patch_embed.proj.weight
        nn.init.trunc_normal_(kernel, std=1 / math.sqrt(kernel[0].numel()))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for token, std in ((self.cls_token, 1e-6), (self.reg_token, 1e-6), (self.dist_token, 0.02)):
            if token is not None:
                nn.init.normal_(token, std=std)


def representation_layer(config: ViTConfig) -> nn.Module:
    """The "pre-logits": Linear + Tanh, kept from pre-training (Dosovitskiy et al., section 3.1)."""
    return nn.Sequential(OrderedDict(fc=nn.Linear(config.width, config.width), act=nn.Tanh()))


def linear_head(config: ViTConfig) -> nn.Module:
    """Scores from features; features themselves where there are no classes."""
    return nn.Linear(config.width, config.num_classes) if config.num_classes else nn.Identity()


def as_pair(side: int | tuple[int, int]) -> tuple[int, int]:
    """One side for squares, or (height, width)."""
    return side if isinstance(side, tuple) else (side, side)
