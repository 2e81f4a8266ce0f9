"""Shapes derived from a configuration are those of the model that torch builds."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from vitft.models import (
    RopeConfig,
    VisionTransformer,
    ViTConfig,
    architecture_config,
    architecture_names,
    facts_of,
    vit_shapes,
)

SMALL = ViTConfig(image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, heads=2, num_classes=5)


def shapes_of_model(config: ViTConfig) -> dict[str, Any]:
    with torch.device("meta"):
        return facts_of(VisionTransformer(config).state_dict())


@pytest.mark.parametrize("name", architecture_names())
def test_every_named_architecture_has_the_shapes_of_its_model(name: str) -> None:
    config = architecture_config(name)

    assert vit_shapes(config) == shapes_of_model(config)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"norm": "post", "qkv_bias": False}, id="post-norm"),
        pytest.param({"pool": "mean", "num_classes": 0}, id="mean, no head"),
        pytest.param({"registers": 4, "prefix_positions": False}, id="registers"),
        pytest.param({"registers": 2, "layer_scale": 1e-5}, id="LayerScale"),
        pytest.param({"distilled": True, "registers": 1}, id="distilled"),
        pytest.param({"pre_logits": True, "mlp_ratio": 0.7}, id="pre_logits"),
        pytest.param({"convs": (4, 6, 10), "patch_size": (4, 8)}, id="convolutions"),
        pytest.param({"stem": (), "in_channels": 1}, id="root"),
        pytest.param({"stem": (1, 2, 3)}, id="stages"),
        pytest.param({"read_blocks": 2}, id="two blocks read"),
        pytest.param({"read_blocks": 2, "pool": "mean"}, id="two blocks read by means"),
        pytest.param({"pool": "map", "class_token": False}, id="attention pooling"),
        pytest.param({"gated_mlp": True, "mlp_norm": True, "attn_norm": True}, id="gates, norms"),
        pytest.param({"norm_layer": "rmsnorm", "patch_norm": True}, id="RMSNorm"),
        pytest.param({"embed_norm": True, "proj_bias": False}, id="CLIP, without biases"),
        pytest.param({"rope": RopeConfig(), "positions": False}, id="rotary positions"),
        pytest.param({"final_norm": False}, id="no last norm"),
    ],
)
def test_every_option_has_the_shapes_of_its_model(options: dict[str, Any]) -> None:
    patch: dict[str, Any] = (
        {"image_size": (64, 64), "patch_size": (32, 32)} if "stem" in options else {}
    )
    config = replace(SMALL, **patch, **options)

    assert vit_shapes(config) == shapes_of_model(config)
