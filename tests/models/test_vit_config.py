"""Configurations of a Vision Transformer: limits of each setting, and what follows from them."""

from dataclasses import replace
from typing import Any

import pytest

from vitft.models import RopeConfig, ViTConfig
from vitft.system import UsageError

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
