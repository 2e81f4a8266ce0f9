"""Attention pooling: a layer that computes one feature vector from all tokens (SigLIP, PE).

It consists of multi-head attention with a single learned query, which is the same for every image,
and a residual MLP. The parameters have the same names as in timm's `AttentionPoolLatent`.

Notation: B images, N tokens, D width, H heads, K head width (D / H).

Sources: Zhai et al. 2022 (MAP head), appendix A, https://arxiv.org/abs/2106.04560; Zhai et al. 2023
(SigLIP), 2303.15343.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.models.layers import build_norm
from vitft.models.vit_config import ViTConfig


class AttentionPool(nn.Module):
    """Attention with one learned query, then a residual MLP: (B, N, D) to (B, D).

    `mlp` is an MLP like those in the blocks.
    """

    def __init__(self, config: ViTConfig, mlp: nn.Module) -> None:
        super().__init__()
        width = config.width
        self.heads = config.pool_heads or config.heads
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = build_norm(config)
        self.mlp = mlp

    def split_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query (B, H, 1, K), and the keys and values (B, H, N, K) of tokens `x`."""
        q = self.q(self.latent.expand(x.shape[0], -1, -1))  # (B, 1, D)
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q.unflatten(-1, (self.heads, -1)).transpose(1, 2), k, v

    def join_heads(self, mixed: Tensor) -> Tensor:
        """Combine the heads' weighted values: (B, H, 1, K) to (B, 1, D)."""
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def refine(self, pooled: Tensor) -> Tensor:
        """Apply the residual MLP: (B, 1, D) to (B, D)."""
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_heads(x)
        return self.refine(self.join_heads(F.scaled_dot_product_attention(q, k, v)))
