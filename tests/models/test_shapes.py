"""Configurations of a Vision Transformer: their limits, and the shapes of the model."""

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
    vit_shapes,
)
from vitft.system import UsageError

SMALL = ViTConfig(image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, heads=2, num_classes=5)


def check_shapes(config: ViTConfig) -> None:
    with torch.device("meta"):
        state = VisionTransformer(config).state_dict()
    shapes = {name: ("F32", tuple(tensor.shape)) for name, tensor in state.items()}
    assert {n: (facts.dtype, facts.shape) for n, facts in vit_shapes(config).items()} == shapes


@pytest.mark.parametrize("name", architecture_names())
def test_every_named_architecture_has_the_shapes_of_its_model(name: str) -> None:
    check_shapes(architecture_config(name))


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

    check_shapes(replace(SMALL, **patch, **options))


PLAIN = ViTConfig(image_size=(32, 48), patch_size=(8, 8), width=24, depth=3, heads=3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"image_size": (36, 48)},
            r"height \(36 pixels\).*\n.*multiple of 8, e.g. --image-size 32",
        ),
        ({"image_size": (32, 46)}, r"width \(46 pixels\).*\n.*--image-size 48"),
        ({"image_size": (32, 4)}, r"width \(4 pixels\).*\n.*--image-size 8"),
        ({"image_size": (1032, 1024)}, "129x128 patches exceed the limit of 16,384"),
        ({"width": 25}, "width 25, heads 3"),
        ({"mlp_ratio": 1 / 25}, "increase mlp_ratio"),
        ({"convs": (2,) * 17}, "invalid or incompatible"),
        ({"stem": (1,) * 5, "patch_size": (8, 8)}, "invalid or incompatible"),
        ({"stem": (1, 1, 1), "patch_size": (8, 8)}, "stride 16"),
        ({"stem": (), "convs": (8,)}, "invalid or incompatible"),
        ({"distilled": True, "pre_logits": True}, "distilled True"),
        ({"distilled": True, "pool": "mean"}, "distilled True"),
        ({"class_token": False}, "class_token False"),
        ({"norm_before_pool": True}, "norm_before_pool True"),
        ({"norm_before_pool": True, "pool": "mean", "final_norm": False}, "final_norm False"),
        ({"pool_heads": 3}, "pool_heads 3"),
        ({"pool": "map", "pool_heads": 5}, "pool_heads 5"),
        ({"activation": "relu"}, "activation 'relu'.*\n.*gelu, gelu_tanh, quick_gelu"),
        ({"width": 18, "rope": RopeConfig()}, "width 18, heads 3\n.*a multiple of 4"),
        ({"read_blocks": 0}, "cannot read 0 blocks"),
        ({"read_blocks": 4}, "cannot read 4 blocks"),
        ({"read_blocks": 2, "pool": "map"}, "cannot read 2 blocks"),
        ({"read_blocks": 2, "distilled": True}, "cannot read 2 blocks"),
        ({"read_blocks": 2, "pre_logits": True}, "cannot read 2 blocks"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        replace(PLAIN, **fields)
