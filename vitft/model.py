"""The Vision Transformer, all of it in this file: pixels in, class scores out.

It does not know file formats, where weights come from or how it is trained. Its parameter names
are timm's, so a `state_dict` goes both ways with strict=True.

Letters of the shape comments:
    B images, P patches, N tokens (1 class token + P), D width, H heads, K head width (D / H),
    C classes, S image side in pixels, g grid side in patches; `pixels` are (B, 3, S, S).

Sources: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929
(the architecture); google-research/vision_transformer (LayerNorm eps 1e-6, zero head, Linear+Tanh
"representation layer"); timm's `VisionTransformer` (parameter names).
"""

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.errors import UsageError

Pool = Literal["cls", "mean"]


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
    """Height and width of a patch in pixels."""
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

    def __post_init__(self) -> None:
        for axis, side, patch in zip(
            ("high", "wide"), self.image_size, self.patch_size, strict=True
        ):
            if side < patch or side % patch:
                near = max(patch, round(side / patch) * patch)
                raise UsageError(
                    f"an image {side} pixels {axis} cannot be cut into patches of {patch} pixels",
                    fix=f"use a multiple of {patch}, e.g. {near}",
                )
        if self.width % self.heads:
            raise UsageError(
                f"width {self.width} cannot be shared by {self.heads} heads",
                fix="choose a width that is a multiple of the number of heads",
            )
        if self.num_classes < 0 or self.in_channels < 1 or self.depth < 1:
            raise UsageError(
                f"num_classes {self.num_classes}, in_channels {self.in_channels} and depth "
                f"{self.depth} do not make a model",
                fix="use at least one channel and one block, and no negative number of classes",
            )
        if self.pool not in ("cls", "mean") or not 0 <= self.drop_path < 1:
            raise UsageError(
                f"pool is {self.pool!r} and drop_path is {self.drop_path}",
                fix='pool is "cls" or "mean"; drop_path is from 0 up to but not including 1',
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return (
            self.image_size[0] // self.patch_size[0],
            self.image_size[1] // self.patch_size[1],
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read back `to_json`; JSON knows lists where we mean pairs."""
        pairs: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
        }
        return cls(**pairs)


class PatchEmbed(nn.Module):
    """Cut the image into patches and project each to one token (section 3.1, equation 1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.image_size = config.image_size
        # A convolution with stride = kernel is one matrix applied to every patch.
        self.proj = nn.Conv2d(
            config.in_channels, config.width, config.patch_size, stride=config.patch_size
        )

    def forward(self, pixels: Tensor) -> Tensor:
        if tuple(pixels.shape[-2:]) != self.image_size:
            raise UsageError(
                f"the model reads images of {self.image_size[0]}x{self.image_size[1]} pixels, "
                f"but got {pixels.shape[-2]}x{pixels.shape[-1]}",
                fix="resize the images, or load the weights with image_size=...",
            )
        return self.proj(pixels).flatten(2).mT  # (B, D, g, g) -> (B, P, D)


class Attention(nn.Module):
    """Every token gathers from every other, once per head (appendix A)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
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
        """The first row of `forward`, (B, 1, D), without computing the others."""
        width, bias = self.qkv.in_features, cast("Tensor | None", self.qkv.bias)
        q = F.linear(x[:, :1], self.qkv.weight[:width], None if bias is None else bias[:width])
        kv = F.linear(x, self.qkv.weight[width:], None if bias is None else bias[width:])
        k, v = kv.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, N, K)
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, 1, K)
        return self.proj(mix(q, k, v).transpose(1, 2).flatten(2))  # (B, 1, D)

    def maps(self, x: Tensor) -> Tensor:
        """The weights `forward` applies without ever storing them: (B, H, N, N), rows sum to 1."""
        q, k, _ = self.split_heads(x)
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)


def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(K)) v: values (B, H, N, K) mixed for each query (B, H, M, K).

    On a CPU in bf16 the fused kernel is slower than the three steps spelled out, in both
    directions (docs/experiments.md); everywhere else it is faster and never stores the weights.
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


class DropPath(nn.Module):
    """Skip a residual branch for a random share of the images while training.

    Source: Huang et al. 2016, "Deep Networks with Stochastic Depth", https://arxiv.org/abs/1603.09382
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate  # (B, 1, 1)
        return branch * kept.to(branch.dtype) / (1 - self.rate)


class Block(nn.Module):
    """One pre-norm encoder layer: mix tokens, then transform each (equations 2 and 3)."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.norm1 = layer_norm(config)
        self.attn = Attention(config)
        self.norm2 = layer_norm(config)
        self.mlp = MLP(config)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def for_class_token(self, x: Tensor) -> Tensor:
        """The first row of `forward` in eval mode, (B, 1, D): all tokens are read, one is written."""
        cls = x[:, :1] + self.attn.for_class_token(self.norm1(x))
        return cls + self.mlp(self.norm2(cls))


def layer_norm(config: ViTConfig) -> nn.LayerNorm:
    """With eps 1e-6 as in the JAX reference; torch's default of 1e-5 shifts pretrained outputs."""
    return nn.LayerNorm(config.width, eps=1e-6)


class VisionTransformer(nn.Module):
    """A stack of blocks over patch tokens, read out by a linear head.

    `forward` is `classify(pool(encode(embed(pixels))))`; the four steps are public because
    feature caching, explanation and partial freezing cut the model between them.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        rows, columns = config.grid
        self.patch_embed = PatchEmbed(config)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + rows * columns, config.width))
        rates = [config.drop_path * i / max(1, config.depth - 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        # The last LayerNorm stands before pooling for the class token, after it for the mean.
        self.norm = layer_norm(config) if config.pool == "cls" else nn.Identity()
        self.fc_norm = layer_norm(config) if config.pool == "mean" else nn.Identity()
        self.pre_logits = representation_layer(config) if config.pre_logits else nn.Identity()
        self.head = (
            nn.Linear(config.width, config.num_classes) if config.num_classes else nn.Identity()
        )
        if not self.cls_token.is_meta:  # a loader is about to put real weights there
            self.init_weights()

    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (B, channels, S, S) to tokens with positions (B, N, D)."""
        patches = self.patch_embed(pixels)  # (B, P, D)
        cls = self.cls_token.expand(patches.shape[0], -1, -1)  # (B, 1, D)
        return torch.cat([cls, patches], dim=1) + self.pos_embed

    def encode(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Run blocks `start` up to `stop` (default: all that remain): (B, N, D) to (B, N, D)."""
        for block in self.blocks[start:stop]:
            tokens = block(tokens)
        return tokens

    def pool(self, tokens: Tensor) -> Tensor:
        """One normalised feature per image from the last block's tokens: (B, N, D) to (B, D)."""
        tokens = self.norm(tokens)
        pooled = tokens[:, 0] if self.config.pool == "cls" else tokens[:, 1:].mean(dim=1)
        return self.fc_norm(pooled)

    def classify(self, pooled: Tensor) -> Tensor:
        """Class scores (logits) from the pooled feature: (B, D) to (B, C)."""
        return self.head(self.pre_logits(pooled))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classify(self.pool(self.encode(self.embed(pixels))))

    @torch.no_grad()
    def init_weights(self) -> None:
        """All initialisation in one place; every bias is zero.

        | what | how | source |
        |---|---|---|
        | linear layers | truncated normal, std 0.02 | timm and DeiT |
        | patch projection | truncated normal, std 1/sqrt(inputs) | JAX reference (lecun_normal) |
        | positions | truncated normal, std 0.02 | JAX reference |
        | class token | normal, std 1e-6 | timm |
        | head | zero, so the first loss is ln(C) | Dosovitskiy et al. 2021, appendix B.1.1 |
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        kernel = self.patch_embed.proj
        nn.init.trunc_normal_(kernel.weight, std=1 / math.sqrt(kernel.weight[0].numel()))
        if kernel.bias is not None:
            nn.init.zeros_(kernel.bias)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)


def representation_layer(config: ViTConfig) -> nn.Module:
    """The "pre-logits": Linear + Tanh, kept from pre-training (Dosovitskiy et al., section 3.1)."""
    return nn.Sequential(
        OrderedDict(fc=nn.Linear(config.width, config.width), act=nn.Tanh()),
    )


def as_pair(side: int | tuple[int, int]) -> tuple[int, int]:
    """One side for squares, or (height, width)."""
    return side if isinstance(side, tuple) else (side, side)


def config_of(name: str) -> ViTConfig:
    """Settings of an architecture name such as `vit_base_patch16_224`.

    Raises:
        UsageError: No such name; the nearest ones are named.
    """
    match = re.fullmatch(r"vit_([a-z]+)_patch(\d+)_(\d+)", name)
    size = SIZES.get(match[1]) if match else None
    if match is None or size is None or int(match[2]) not in size.patches:
        near = get_close_matches(name, architecture_names(), n=5, cutoff=0)
        raise UsageError(
            f"no architecture is called {name!r}", fix=f"the nearest names: {', '.join(near)}"
        )
    return ViTConfig(
        image_size=as_pair(int(match[3])),
        patch_size=as_pair(int(match[2])),
        width=size.width,
        depth=size.depth,
        heads=size.heads,
    )


def architecture_names() -> list[str]:
    """Every size with each of its patch sides, at 224 pixels; other image sizes work as well."""
    return [f"vit_{size}_patch{p}_224" for size, row in SIZES.items() for p in row.patches]


def create_model(
    name: str,
    *,
    num_classes: int = 1000,
    image_size: int | tuple[int, int] | None = None,
    in_channels: int = 3,
    pre_logits: bool = False,
    pool: Pool = "cls",
    drop_path: float = 0.0,
) -> VisionTransformer:
    """Build an untrained model by its architecture's name.

    Args:
        name: `vit_<tiny|small|base|large|huge>_patch<side>_<image side>`.
        num_classes: Outputs of the head; 0 for none, so that the pooled feature comes out.
        image_size: Side or (height, width) in pixels, instead of the one in the name.
        in_channels: Planes of the input image.
        pre_logits: Put a Linear + Tanh in front of the head.
        pool: What the head reads: the class token or the mean of the patch tokens.
        drop_path: Stochastic depth of the last block, from 0 up to 1.

    Returns:
        The model in training mode, in float32 on the current default device.

    Raises:
        UsageError: Unknown name, or an image that the patches do not tile.
    """
    config = config_of(name)
    return VisionTransformer(
        replace(
            config,
            num_classes=num_classes,
            image_size=config.image_size if image_size is None else as_pair(image_size),
            in_channels=in_channels,
            pre_logits=pre_logits,
            pool=pool,
            drop_path=drop_path,
        )
    )
