"""Layers that normalise tokens, and the approximations of the GELU."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from vitft.models.activations import ACTIVATION_FUNCTIONS
from vitft.models.norms import build_norm, optional_norm
from vitft.models.vit_config import ViTConfig

CONFIG = ViTConfig(width=8, heads=2, norm_eps=0.1)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("size", [None, 6])
def test_a_norm_divides_by_the_spread_of_the_tokens(kind: str, size: int | None) -> None:
    config = replace(CONFIG, norm_layer=kind)  # type: ignore[arg-type]
    x = torch.randn(3, size or 8)

    norm = build_norm(config, size)

    centred = x - x.mean(dim=1, keepdim=True) if kind == "layernorm" else x
    expected = centred / (centred.square().mean(dim=1, keepdim=True) + 0.1).sqrt()
    assert torch.allclose(norm(x), expected, atol=1e-5)
    assert len([*norm.parameters()]) == (2 if kind == "layernorm" else 1)


def test_a_norm_that_is_not_there_changes_nothing() -> None:
    assert isinstance(optional_norm(CONFIG, False), nn.Identity)
    assert isinstance(layer := optional_norm(CONFIG, True, 5), nn.LayerNorm)
    assert layer.normalized_shape == (5,)


def test_the_approximations_of_the_gelu_are_close_to_it() -> None:
    x = torch.linspace(-6, 6, 10_001, dtype=torch.float64)
    exact = x * torch.distributions.Normal(0.0, 1.0).cdf(x)

    errors = {
        name: (function(x) - exact).abs().max().item()
        for name, function in ACTIVATION_FUNCTIONS.items()
    }

    assert errors["gelu"] < 1e-6
    assert 1e-4 < errors["gelu_tanh"] < 1e-3
    assert errors["quick_gelu"] == pytest.approx(0.0203, abs=2e-4)
    quick = ACTIVATION_FUNCTIONS["quick_gelu"](torch.tensor(1.0, dtype=torch.float64))
    assert quick.item() == pytest.approx(1 / (1 + 2.718281828459045**-1.702))
