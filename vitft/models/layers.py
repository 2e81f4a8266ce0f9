"""Layers of the blocks and heads: normalisation, MLP, LayerScale, DropPath and attention pooling.

The parameters have the same names as in timm.

Notation: B images, N tokens, D width, H heads, K head width (D / H).

Sources: Ba et al. 2016 (LayerNorm), https://arxiv.org/abs/1607.06450; Zhang and Sennrich 2019
(RMSNorm), 1910.07467; Hendrycks and Gimpel 2016 (GELU and both approximations), 1606.08415; Shazeer
2020 (SwiGLU), 2002.05202; Touvron et al. 2021 (LayerScale), 2103.17239; Huang et al. 2016
(stochastic depth), 1603.09382; Zhai et al. 2022 (MAP head), appendix A, 2106.04560; Zhai et al.
2023 (SigLIP), 2303.15343.
"""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.models.vit_config import Activation, ViTConfig


def build_norm(config: ViTConfig, size: int = 0, *, is_there: bool = True) -> nn.Module:
    """Return a LayerNorm or RMSNorm for `size` dimensions (default: D), or else the identity."""
    if not is_there:
        return nn.Identity()
    kind = nn.RMSNorm if config.norm_layer == "rmsnorm" else nn.LayerNorm
    return kind(size or config.width, eps=config.norm_eps)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)  # differs from the exact GELU by at most 0.021


_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": _quick_gelu,
}
"""Mapping from the names of activation functions, which are the same in timm, to the functions."""


class MLP(nn.Module):
    """Two linear layers with an activation in between, applied to each token (B, N, D).

    With `is_gated`, it is SwiGLU: the first layer computes a gate (its first rows) and a value, and
    the value is multiplied by SiLU of the gate.
    """

    def __init__(self, config: ViTConfig, *, is_gated: bool = False) -> None:
        super().__init__()
        hidden, bias = config.hidden, config.proj_bias
        self.is_gated, self.activation = is_gated, _ACTIVATIONS[config.activation]
        self.fc1 = nn.Linear(config.width, 2 * hidden if is_gated else hidden, bias=bias)
        self.norm = build_norm(
            config, hidden, is_there=config.mlp_norm
        )  # the identity in a plain ViT
        self.fc2 = nn.Linear(hidden, config.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        if self.is_gated:
            gate, value = hidden.chunk(2, dim=-1)
            return self.fc2(self.norm(F.silu(gate) * value))
        return self.fc2(self.norm(self.activation(hidden)))


class LayerScale(nn.Module):
    """Learned factor for each of the D channels of a residual branch (B, N, D)."""

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), initial))

    def forward(self, branch: Tensor) -> Tensor:
        return branch * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: skips a residual branch (B, N, D) for random images during training.

    Branches that are not skipped are scaled up so that the expected value does not change.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate  # (B, 1, 1)
        return branch * kept.to(branch.dtype) / (1 - self.rate)


class AttentionPool(nn.Module):
    """Attention with one learned query, then a residual MLP: (B, N, D) to (B, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.pool_heads or config.heads
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = build_norm(config)
        self.mlp = MLP(config)

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
