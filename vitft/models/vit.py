"""The Vision Transformer, from pixels to class scores, in one file.

This module does not depend on file formats, on the origin of the weights or on training. Its
parameter names are timm's, so `load_state_dict(strict=True)` works in both directions. Components
of later models are in `layers`.

Notation in the shape comments:
    B images, P patches, N tokens (prefix + P), D width, H heads, K head width (D / H),
    C classes, S image side in pixels, g grid side in patches (the height and width may differ);
    `pixels` are normalised, (B, channels, S, S).
    The prefix consists of the class token and, in some models, a distillation token and registers;
    a few models have no class token.

Sources: Dosovitskiy et al. 2021 (ViT), https://arxiv.org/abs/2010.11929;
google-research/vision_transformer (eps, zero head, Linear + Tanh); Touvron et al. 2021 (DeiT,
LayerScale), 2012.12877 and 2103.17239; Darcet et al. 2024 (registers), 2309.16588; timm's
`VisionTransformer` (names).
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitft.models.layers import (
    MLP,
    AttentionPool,
    DropPath,
    LayerScale,
    Rotary,
    StdConv2d,
    build_norm,
    build_stem,
)
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import UsageError


class PatchEmbed(nn.Module):
    """Projection of image patches to tokens: (B, channels, S, S) to (B, P, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.image_size = config.image_size
        # In a hybrid, a feature map, not the image, is cut into patches.
        self.backbone, channels = build_stem(
            config.in_channels, config.stem, config.convs, config.patch_size
        )
        kernel = config.patch_size[0] // config.stride, config.patch_size[1] // config.stride
        # A convolution with stride = kernel applies one matrix to every patch.
        has_bias = not config.embed_norm
        self.proj = nn.Conv2d(channels, config.width, kernel, stride=kernel, bias=has_bias)
        self.norm = build_norm(config, is_there=config.patch_norm)

    @property
    def first_kernels(self) -> Tensor:
        """The kernels (F, channels, k, k) of the convolution that reads the pixels, as applied."""
        first = next(m for m in self.modules() if isinstance(m, nn.Conv2d))
        return first.kernels if isinstance(first, StdConv2d) else first.weight

    def forward(self, pixels: Tensor) -> Tensor:
        if tuple(pixels.shape[-2:]) != self.image_size:
            raise UsageError(
                f"the model expects images of {self.image_size[0]}x{self.image_size[1]} pixels, "
                f"but got {pixels.shape[-2]}x{pixels.shape[-1]}",
                fix="resize the images, or load the weights with image_size=...",
            )
        features = self.proj(self.backbone(pixels))  # (B, D, g, g)
        return self.norm(features.flatten(2).mT)  # (B, P, D)


class Attention(nn.Module):
    """Multi-head self-attention (appendix A)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.num_read = config.heads, config.num_read
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.rotary = Rotary(config, config.rope) if config.rope else nn.Identity()
        self.norm = build_norm(config, is_there=config.attn_norm)
        self.proj = nn.Linear(config.width, config.width, bias=config.proj_bias)

    def split_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of tokens `x` (B, N, D), each (B, H, N, K)."""
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, N, 3, H, K)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # each (B, H, N, K)
        return self.rotary(q), self.rotary(k), v

    def join_heads(self, mixed: Tensor) -> Tensor:
        """Combine the heads' weighted values for M tokens: (B, H, M, K) to (B, M, D)."""
        return self.proj(self.norm(mixed.transpose(1, 2).flatten(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.join_heads(_weighted_values(*self.split_heads(x)))  # (B, N, D)

    def for_class_token(self, x: Tensor) -> Tensor:
        """Return the outputs that the classification heads read: (B, N, D) to (B, 1 or 2, D)."""
        if type(self.qkv) is not nn.Linear:  # LoRA: the query weights cannot be separated
            q, k, v = self.split_heads(x)
            return self.join_heads(_weighted_values(q[:, :, : self.num_read], k, v))
        width, bias = self.qkv.in_features, cast("Tensor | None", self.qkv.bias)
        of_q, of_kv = (None, None) if bias is None else bias.split((width, 2 * width))
        q = F.linear(x[:, : self.num_read], self.qkv.weight[:width], of_q)
        kv = F.linear(x, self.qkv.weight[width:], of_kv)
        k, v = kv.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, N, K)
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, 1 or 2, K)
        return self.join_heads(_weighted_values(self.rotary(q), self.rotary(k), v))


def _weighted_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(K)) v for queries (B, H, M, K), keys and values (B, H, N, K)."""
    # The fused kernel never stores the weights, but is slower here (benchmarks/notebook/speed.md)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[-2] <= 1024:
        weights = ((q / math.sqrt(q.shape[-1])) @ k.mT).softmax(dim=-1)  # (B, H, M, N)
        return weights @ v
    return F.scaled_dot_product_attention(q, k, v)


class Block(nn.Module):
    """Encoder layer: attention, then an MLP (equations 2 and 3)."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        self.is_post, self.num_read = config.norm == "post", config.num_read
        self.norm1 = build_norm(config)
        self.attn = Attention(config)
        self.ls1 = _layer_scale(config)
        self.norm2 = build_norm(config)
        self.mlp = MLP(config, is_gated=config.gated_mlp)
        self.ls2 = _layer_scale(config)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        return self.add_branches(x, x, self.attn)

    def for_class_token(self, x: Tensor) -> Tensor:
        """Return the outputs that the classification heads read: (B, N, D) to (B, 1 or 2, D)."""
        return self.add_branches(x[:, : self.num_read], x, self.attn.for_class_token)

    def add_branches(self, rows: Tensor, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply both residual branches to `rows`, the first tokens of `x` (B, N, D).

        `attend` computes the attention output for `rows` from all tokens.
        """
        if self.is_post:  # Vaswani et al. 2017, section 3.1
            rows = self.norm1(rows + self.drop_path(self.ls1(attend(x))))
            return self.norm2(rows + self.drop_path(self.ls2(self.mlp(rows))))
        rows = rows + self.drop_path(self.ls1(attend(self.norm1(x))))
        return rows + self.drop_path(self.ls2(self.mlp(self.norm2(rows))))


def blocks_of(module: nn.Module) -> list[Block]:
    """Return the blocks in a module, in order."""
    return [each for each in module.modules() if isinstance(each, Block)]


def _layer_scale(config: ViTConfig) -> nn.Module:
    return LayerScale(config.width, config.layer_scale) if config.layer_scale else nn.Identity()


class VisionTransformer(nn.Module):
    """Embedding, a stack of encoder blocks, pooling and a linear head.

    `forward` is `classify(pool(*encode_read(embed(pixels))))`; the four steps are public because
    feature caching, explanation and partial freezing use them separately.
    """

    attends: Literal[True] = True  # the attention weights can be read
    casts_to_bf16 = True  # less memory than autocast, and equally accurate
    libraries = ()  # besides torch, whose versions affect the last bits of features
    head_name = "head"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False  # see `set_checkpointing`
        self.patch_embed = PatchEmbed(config)
        width, rows = config.width, config.num_placed_prefix + math.prod(config.grid)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if config.class_token else None
        self.dist_token = nn.Parameter(torch.zeros(1, 1, width)) if config.distilled else None
        registers = torch.zeros(1, config.registers, width)
        self.reg_token = nn.Parameter(registers) if config.registers else None
        positions = torch.zeros(1, rows, width)
        self.pos_embed = nn.Parameter(positions) if config.positions else None
        # Radford et al. 2021 (CLIP), section 2.4
        self.norm_pre = build_norm(config, is_there=config.embed_norm)
        rates = [config.drop_path * i / max(1, config.depth - 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        # The last LayerNorm comes before class-token pooling, but after most models' mean pooling.
        self.norm = build_norm(config, is_there=config.last_norm == "norm")
        self.fc_norm = build_norm(config, is_there=config.last_norm == "fc_norm")
        self.attn_pool = AttentionPool(config) if config.pool == "map" else None
        self.pre_logits: nn.Module = nn.Identity()
        if config.pre_logits:  # Linear + Tanh from pretraining (section 3.1)
            self.pre_logits = nn.Sequential(OrderedDict(fc=nn.Linear(width, width), act=nn.Tanh()))
        several = config.read_blocks > 1
        self.head = _linear_head(config, config.feature_size if several else width)
        self.head_dist = _linear_head(config, width) if config.distilled else None
        # For exports to libraries whose heads read only the last block; not used by `forward`.
        self.last_head = _linear_head(config, width) if several else None
        if not self.patch_embed.proj.weight.is_meta:  # on "meta", weights are assigned later
            self.init_weights()

    def embed(self, pixels: Tensor) -> Tensor:
        """Convert pixels (B, channels, S, S) to tokens (B, N, D) with position embeddings."""
        patches = self.patch_embed(pixels)  # (B, P, D)
        tokens = [t for t in (self.cls_token, self.dist_token, self.reg_token) if t is not None]
        prefix = [token.expand(patches.shape[0], -1, -1) for token in tokens]
        positions = 0 if self.pos_embed is None else self.pos_embed
        if self.config.prefix_positions:
            return self.norm_pre(torch.cat([*prefix, patches], dim=1) + positions)
        return self.norm_pre(torch.cat([*prefix, patches + positions], dim=1))  # (B, N, D)

    def encode(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Apply blocks `start` to `stop` - 1 (default: the last) to tokens (B, N, D)."""
        for block in self.blocks[start:stop]:
            tokens = self.apply_block(block, block, tokens)
        return tokens

    def apply_block(
        self, block: nn.Module, compute: Callable[[Tensor], Tensor], tokens: Tensor
    ) -> Tensor:
        """Apply `compute`, which is a block or one of its methods, to tokens (B, N, D)."""
        # The model itself is in eval mode if only its last blocks are trained
        if self.checkpointing and block.training:
            return checkpoint(compute, tokens, use_reentrant=False)
        return compute(tokens)

    def encode_read(
        self, tokens: Tensor, start: int = 0, stop: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Like `encode`, but also return the outputs (B, N, D) of earlier blocks for the head."""
        depth, found = self.config.depth, list[Tensor]()
        for i, block in enumerate(self.blocks[start:stop], start):
            tokens = self.apply_block(block, block, tokens)
            if depth - self.config.read_blocks <= i < depth - 1:
                found.append(tokens)
        return tokens, found

    def pool(self, tokens: Tensor, earlier: Sequence[Tensor] = ()) -> Tensor:
        """Return one normalised feature vector per image: (B, `feature_size`).

        It is the class token (and the distillation token of a distilled model), the mean patch
        token or the output of attention pooling, followed by `summarise` of each earlier block that
        the head reads. `tokens` and `earlier` are the blocks' outputs, each (B, N, D).
        """
        assert len(earlier) == self.config.read_blocks - 1, "outputs of earlier blocks are missing"
        tokens = self.norm(tokens)
        if self.attn_pool is not None:
            return self.attn_pool(tokens)
        if self.config.pool == "mean":
            last = self.fc_norm(tokens[:, self.config.num_prefix :].mean(dim=1))
        else:
            last = tokens[:, : self.config.num_read].flatten(1)
        return torch.cat([last, *map(self.summarise, earlier)], dim=-1) if earlier else last

    def summarise(self, tokens: Tensor) -> Tensor:
        """Return the normalised class token and mean patch token: (B, N, D) to (B, 2 * D).

        With `pool="mean"`, only the mean patch token is returned, (B, D).
        """
        if self.config.pool == "mean":
            return self.intermediate_feature(tokens)
        mean = tokens[:, self.config.num_prefix :].mean(dim=1, keepdim=True)
        return self.norm(torch.cat([tokens[:, :1], mean], dim=1)).flatten(1)

    def intermediate_feature(self, tokens: Tensor) -> Tensor:
        """Return the feature of a block's output for detecting out-of-distribution images, (B, D).

        It is the normalised class token or, unless `pool` is "cls", mean patch token.
        """
        if self.config.pool == "cls":
            return self.norm(tokens[:, 0])  # with other pooling, one of the norms is the identity
        return self.fc_norm(self.norm(tokens[:, self.config.num_prefix :].mean(dim=1)))

    def classify(self, pooled: Tensor) -> Tensor:
        """Return class scores (logits) from pooled features: (B, `feature_size`) to (B, C)."""
        if self.head_dist is None:
            return self.head(self.pre_logits(pooled))
        cls, dist = pooled.chunk(2, dim=-1)
        return (self.head(cls) + self.head_dist(dist)) / 2

    def forward(self, pixels: Tensor) -> Tensor:
        return self.classify(self.pool(*self.encode_read(self.embed(pixels))))

    @property
    def feature_size(self) -> int:
        """Number of dimensions of an image's pooled feature."""
        return self.config.feature_size

    @property
    def last_block_size(self) -> int:
        """Number of leading dimensions of the pooled feature that come from the last block."""
        return replace(self.config, read_blocks=1).feature_size

    def token_shape(self, block: int) -> tuple[int, ...]:  # noqa: ARG002 - differs in timm models
        """Return the shape of the input to a block for one image, (N, D)."""
        return self.config.num_prefix + math.prod(self.config.grid), self.config.width

    def tokens_before(self, pixels: Tensor, block: int) -> Tensor:
        """Return the input to a block (B, N, D), given pixels (B, channels, S, S)."""
        return self.encode(self.embed(pixels), stop=block)

    def trained_after(self, start: int) -> frozenset[str]:
        """Return the names of the parameters that are used only from a block on, or in a head.

        If `start` is `depth`, only those after pooling are returned.
        """
        after = ["pre_logits.", "head.", "head_dist.", "last_head."]
        if start < self.config.depth:
            blocks = (f"blocks.{i}." for i in range(start, self.config.depth))
            after += [*blocks, "norm.", "fc_norm.", "attn_pool."]
        names = (name for name, _ in self.named_parameters())
        return frozenset(name for name in names if name.startswith(tuple(after)))

    def layer_numbers(self) -> dict[int, int]:
        """Return the number of each parameter's layer by the parameter's id.

        They count from the embedding, 0, and the blocks to the layers after them, `depth` + 1.
        """
        after, last = self.trained_after(0), self.config.depth + 1
        return {
            id(parameter): int(name.split(".")[1]) + 1
            if name.startswith("blocks.")
            else last * (name in after)
            for name, parameter in self.named_parameters()
        }

    def set_checkpointing(self, enabled: bool) -> None:
        """Choose whether activations are recomputed in the backward pass, not stored."""
        self.checkpointing = enabled

    def require_vit(self, feature: str) -> Self:  # noqa: ARG002 - timm models refuse it
        """Return the model, which supports everything."""
        return self

    def features(self, pixels: Tensor, intermediate: int = 0) -> Tensor:
        """Return pooled features of pixels (B, channels, S, S), as `finish` does."""
        return self.finish(self.embed(pixels), intermediate=intermediate)

    def finish(self, tokens: Tensor, start: int = 0, *, intermediate: int = 0) -> Tensor:
        """Return pooled features (B, `feature_size`), given the input to block `start`, (B, N, D).

        If `start` is `depth`, the tokens are the output of the last block. With `intermediate`, the
        `intermediate_feature` of the first `intermediate` blocks, at least `start`, of which the
        head uses none, follows: (B, `feature_size` + D).
        """
        if intermediate:
            tokens = self.encode(tokens, start, intermediate)
            parts = self.finish(tokens, intermediate), self.intermediate_feature(tokens)
            return torch.cat(parts, dim=1)
        last = self.config.depth - 1
        if self.config.pool != "cls" or start > last:
            return self.pool(*self.encode_read(tokens, start))
        # The last block's outputs for the patch tokens are not used.
        tokens, earlier = self.encode_read(tokens, start, last)
        block = cast("Block", self.blocks[last])
        return self.pool(self.apply_block(block, block.for_class_token, tokens), earlier)

    def read_last_blocks(self, count: int) -> None:
        """Replace the head with a zero one that reads the last `count` blocks, if it does not."""
        if count == self.config.read_blocks:
            return
        self.config = config = replace(self.config, read_blocks=count)
        self.head = _linear_head(config, config.feature_size)
        self.last_head = _linear_head(config, config.width) if count > 1 else None
        for head in (self.head, self.last_head):
            if isinstance(head, nn.Linear):
                nn.init.zeros_(head.weight)
                nn.init.zeros_(head.bias)
                head.to(self.patch_embed.proj.weight.device)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise all parameters; every bias is zero.

        - Linear layers: truncated normal, std 0.02 (timm and DeiT).
        - Patch projection: truncated normal, std 1/sqrt(inputs) (JAX reference, lecun_normal).
        - Position embeddings: truncated normal, std 0.02 (JAX reference).
        - Class token and registers: normal, std 1e-6; distillation token: std 0.02 (timm).
        - Query of attention pooling: normal, std 1/sqrt(D) (timm).
        - Convolutions of a stem: torch's default, because their weights are standardised anyway.
        - Heads: zero, so that the first loss is ln(C) (Dosovitskiy et al. 2021, appendix B.1.1).
        - LayerNorm, GroupNorm and LayerScale: the default values of these modules.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
            heads = (self.head, self.head_dist, self.last_head)
            if module in heads and isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)
            if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
                nn.init.zeros_(module.bias)
        kernel = self.patch_embed.proj.weight
        nn.init.trunc_normal_(kernel, std=1 / math.sqrt(kernel[0].numel()))
        query = self.attn_pool.latent if self.attn_pool is not None else None
        tokens = (self.cls_token, 1e-6), (self.reg_token, 1e-6), (self.dist_token, 0.02)
        if self.pos_embed is not None:
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for token, std in (*tokens, (query, self.config.width**-0.5)):
            if token is not None:
                nn.init.normal_(token, std=std)


def _linear_head(config: ViTConfig, inputs: int) -> nn.Module:
    return nn.Linear(inputs, config.num_classes) if config.num_classes else nn.Identity()
