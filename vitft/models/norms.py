"""Normalisation layers: LayerNorm, or RMSNorm in later models.

Sources: Ba et al. 2016 (LayerNorm), https://arxiv.org/abs/1607.06450; Zhang and Sennrich 2019
(RMSNorm), 1910.07467.
"""

from torch import nn

from vitft.models.vit_config import ViTConfig


def build_norm(config: ViTConfig, size: int | None = None) -> nn.Module:
    """Return a LayerNorm or RMSNorm, as configured, for `size` dimensions (default: D)."""
    kind = nn.RMSNorm if config.norm_layer == "rmsnorm" else nn.LayerNorm
    return kind(config.width if size is None else size, eps=config.norm_eps)


def optional_norm(config: ViTConfig, is_there: bool, size: int | None = None) -> nn.Module:
    """Return a normalisation layer, or the identity if `is_there` is false."""
    return build_norm(config, size) if is_there else nn.Identity()
