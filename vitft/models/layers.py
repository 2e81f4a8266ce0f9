"""Normalisation layers and activation functions of the blocks.

Sources: Ba et al. 2016 (LayerNorm), https://arxiv.org/abs/1607.06450; Zhang and Sennrich 2019
(RMSNorm), 1910.07467; Hendrycks and Gimpel 2016 (GELU and both approximations), 1606.08415.
"""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitft.models.vit_config import Activation, ViTConfig


def build_norm(config: ViTConfig, size: int | None = None) -> nn.Module:
    """Return a LayerNorm or RMSNorm, as configured, for `size` dimensions (default: D)."""
    kind = nn.RMSNorm if config.norm_layer == "rmsnorm" else nn.LayerNorm
    return kind(config.width if size is None else size, eps=config.norm_eps)


def optional_norm(config: ViTConfig, is_there: bool, size: int | None = None) -> nn.Module:
    """Return a normalisation layer, or the identity if `is_there` is false."""
    return build_norm(config, size) if is_there else nn.Identity()


def _quick_gelu(x: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x), which differs from the exact GELU by at most 0.021."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATION_FUNCTIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": _quick_gelu,
}
"""Mapping from the names of activation functions, which are the same in timm, to the functions."""
