"""Configurations of a Vision Transformer: limits of each setting, and what follows from them."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from vitft.models.vit_config import (
    SIZES,
    STEMS,
    RopeConfig,
    ViTConfig,
    as_pair,
    conv_strides,
    stem_stride,
)
from vitft.system.errors import UsageError

PLAIN = ViTConfig(image_size=(32, 48), patch_size=(8, 8), width=24, depth=3, heads=3)
LIMITS: list[tuple[str, Any, Any]] = [
    ("in_channels", 1, 1024),
    ("depth", 1, 1024),
    ("num_classes", 0, None),
    ("registers", 0, 1024),
    ("layer_scale", 0.0, 1.0),
]


def test_a_configuration_is_by_default_that_of_vit_base_for_imagenet() -> None:
    config = ViTConfig()

    assert (config.image_size, config.patch_size) == ((224, 224), (16, 16))
    assert (config.width, config.depth, config.heads, config.hidden) == (768, 12, 12, 3072)
    assert (config.in_channels, config.num_classes, config.norm_eps) == (3, 1000, 1e-6)
    assert (config.pool, config.norm, config.activation) == ("cls", "pre", "gelu")
    assert (config.drop_path, config.layer_scale, config.registers) == (0, 0, 0)
    assert config.qkv_bias
    assert config.prefix_positions
    assert not config.distilled
    assert not config.pre_logits


def test_a_plain_transformer_has_none_of_the_later_parts() -> None:
    found = asdict(ViTConfig())

    later = {
        "class_token": True, "norm_before_pool": False, "embed_norm": False, "activation": "gelu",
        "pool_heads": 0, "norm_layer": "layernorm", "final_norm": True, "patch_norm": False,
        "proj_bias": True, "attn_norm": False, "mlp_norm": False, "gated_mlp": False,
        "positions": True, "rope": None,
    }  # fmt: skip
    earlier = {
        "mlp_ratio": 4.0, "qkv_bias": True, "pre_logits": False, "pool": "cls", "drop_path": 0.0,
        "norm": "pre", "norm_eps": 1e-6, "layer_scale": 0.0, "registers": 0,
        "prefix_positions": True, "distilled": False, "stem": None, "convs": (), "read_blocks": 1,
    }  # fmt: skip
    assert {name: found[name] for name in [*later, *earlier]} == {**later, **earlier}


@pytest.mark.parametrize(("name", "low", "high"), LIMITS)
def test_each_setting_has_its_limits(name: str, low: Any, high: Any) -> None:
    step = 1 if isinstance(low, int) else 1e-6

    assert getattr(replace(PLAIN, **{name: low}), name) == low
    with pytest.raises(UsageError, match=f"{name} is {low - step}"):
        replace(PLAIN, **{name: low - step})
    if high is not None:
        assert getattr(replace(PLAIN, **{name: high}), name) == high
        with pytest.raises(UsageError, match=f"{name} is {high + step}"):
            replace(PLAIN, **{name: high + step})


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"image_size": (4104, 8)}, "image_size"),
        ({"image_size": (4104, 4104), "patch_size": (4104, 4104)}, "_size"),
        ({"patch_size": (0, 8)}, "patch_size"),
        ({"width": 65538, "heads": 1}, "width"),
        ({"width": 0}, "width"),
        ({"width": 65536, "heads": 65538}, "heads"),
        ({"heads": 0}, "heads"),
        ({"mlp_ratio": 0.0}, "mlp_ratio"),
        ({"mlp_ratio": 1024.5}, "mlp_ratio"),
        ({"drop_path": 1.0}, "drop_path"),
        ({"drop_path": -0.1}, "drop_path"),
        ({"norm_eps": 0.0}, "norm_eps"),
        ({"norm_eps": 1.0}, "norm_eps"),
        ({"stem": (0,)}, "stem"),
        ({"stem": (1025,)}, "stem"),
        ({"convs": (1,)}, "convs"),
        ({"convs": (65537,)}, "convs"),
        ({"pool": "map", "pool_heads": -1}, "pool_heads"),
        ({"pool": "map", "pool_heads": 65537}, "pool_heads"),
        ({"read_blocks": -1}, "read_blocks"),
        ({"depth": 1024, "read_blocks": 1025}, "read_blocks"),
    ],
)
def test_settings_outside_their_limits_are_refused_by_name(
    fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(UsageError, match=f"{name} is"):
        replace(PLAIN, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"image_size": (4096, 8)},
        {"image_size": (4096, 4096), "patch_size": (4096, 4096)},
        {"image_size": (1, 1), "patch_size": (1, 1)},
        {"width": 65536, "heads": 65536},
        {"width": 1, "heads": 1},
        {"mlp_ratio": 1024.0},
        {"mlp_ratio": 1 / 24},
        {"drop_path": 0.99},
        {"norm_eps": 1e-12},
        {"norm_eps": 0.99},
        {"image_size": (64, 64), "patch_size": (32, 32), "stem": (1024, 1, 1, 1)},
        {"convs": (2,) * 16},
        {"convs": (65536,)},
        {"depth": 1024, "read_blocks": 1024},
        {"image_size": (1024, 1024)},
    ],
    ids=str,
)
def test_settings_at_their_limits_are_accepted(fields: dict[str, Any]) -> None:
    replace(PLAIN, **fields)


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


@pytest.mark.parametrize(
    ("fields", "prefix", "read", "size", "norm"),
    [
        ({}, 1, 1, 24, "norm"),
        ({"registers": 4}, 5, 1, 24, "norm"),
        ({"distilled": True}, 2, 2, 48, "norm"),
        ({"pool": "mean"}, 1, 1, 24, "fc_norm"),
        ({"pool": "mean", "norm_before_pool": True}, 1, 1, 24, "norm"),
        ({"pool": "mean", "class_token": False}, 0, 1, 24, "fc_norm"),
        ({"pool": "map", "class_token": False, "registers": 2}, 2, 1, 24, "norm"),
        ({"final_norm": False}, 1, 1, 24, ""),
        ({"read_blocks": 3}, 1, 1, 24 * 5, "norm"),
        ({"read_blocks": 3, "pool": "mean"}, 1, 1, 24 * 3, "fc_norm"),
    ],
)
def test_tokens_features_and_norms_follow_from_the_settings(
    fields: dict[str, Any], prefix: int, read: int, size: int, norm: str
) -> None:
    config = replace(PLAIN, **fields)

    assert (config.num_prefix, config.num_read) == (prefix, read)
    assert (config.feature_size, config.last_norm) == (size, norm)
    assert config.grid == (4, 6)


@pytest.mark.parametrize(
    ("fields", "name", "stride"),
    [
        ({}, "patch_embed.proj", 1),
        ({"convs": (8, 8)}, "patch_embed.backbone.0.conv", 4),
        ({"stem": ()}, "patch_embed.backbone.conv", 4),
        ({"stem": (1, 1)}, "patch_embed.backbone.stem.conv", 8),
    ],
)
def test_the_first_convolution_and_the_stride_depend_on_the_stem(
    fields: dict[str, Any], name: str, stride: int
) -> None:
    config = replace(PLAIN, **fields)

    assert (config.first_conv, config.stride) == (name, stride)


@pytest.mark.parametrize(
    ("stages", "stride"), [((), 4), ((3,), 4), ((3, 4), 8), ((3, 4, 9), 16), ((3, 4, 6, 3), 32)]
)
def test_each_stage_after_the_first_halves_the_map(stages: tuple[int, ...], stride: int) -> None:
    assert stem_stride(stages) == stride


@pytest.mark.parametrize(
    ("patch", "strides"),
    [((8, 8), (2, 2, 2)), ((16, 16), (2, 2, 2)), ((4, 8), (1, 2, 2)), ((6, 4), (1, 1, 2)),
     ((7, 7), (1, 1, 1)), ((12, 12), (1, 2, 2))],
)  # fmt: skip
def test_the_last_convolutions_halve_the_image(
    patch: tuple[int, int], strides: tuple[int, ...]
) -> None:
    assert conv_strides((8, 8, 8), patch) == strides


def test_the_sizes_are_those_of_the_papers() -> None:
    facts = {name: (s.width, s.depth, s.heads) for name, s in SIZES.items()}

    assert facts == {
        "tiny": (192, 12, 3),
        "small": (384, 12, 6),
        "base": (768, 12, 12),
        "large": (1024, 24, 16),
        "huge": (1280, 32, 16),
    }
    assert STEMS["r50_s16"] == ((3, 4, 9), 16)  # the last stage of a ResNet-50 moves to the third
    assert STEMS["r50_s32"] == ((3, 4, 6, 3), 32)


def test_without_a_head_nothing_after_the_encoder_and_no_noise_is_left() -> None:
    config = replace(PLAIN, pre_logits=True, drop_path=0.3, num_classes=5)

    assert config.without_head() == replace(PLAIN, num_classes=0)
    assert replace(PLAIN, read_blocks=2).without_head() == replace(PLAIN, num_classes=0)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"base": 1.0}, "base"),
        ({"base": 2e9}, "base"),
        ({"offset": 1025.0}, "offset"),
        ({"offset": -1025.0}, "offset"),
        ({"grid": (0, 1)}, "grid"),
        ({"grid": (1, 4097)}, "grid"),
    ],
)
def test_rotary_positions_have_limits(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is"):
        RopeConfig(**fields)
    RopeConfig(base=1e9, offset=-1024.0, grid=(1, 4096))
    RopeConfig(base=1.001, offset=1024.0)


def test_a_side_is_that_of_a_square() -> None:
    assert as_pair(3) == (3, 3)
    assert as_pair((3, 4)) == (3, 4)


@pytest.mark.parametrize(
    ("image_size", "axis", "side", "near"),
    [
        ((100, 32), "height", 100, 96),
        ((32, 105), "width", 105, 112),
        ((8, 32), "height", 8, 16),
        ((32, 20), "width", 20, 16),
    ],
)
def test_the_nearest_multiple_of_the_patch_size_is_proposed(
    image_size: tuple[int, int], axis: str, side: int, near: int
) -> None:
    with pytest.raises(UsageError) as refused:
        ViTConfig(image_size=image_size, patch_size=(16, 16))

    assert refused.value.problem == (
        f"the image {axis} ({side} pixels) is not a multiple of the patch size (16 pixels)"
    )
    assert refused.value.fix == f"use a multiple of 16, e.g. --image-size {near}"


@pytest.mark.parametrize(
    ("fields", "can_read_several"),
    [
        ({}, True),
        ({"pool": "mean"}, True),
        ({"pool": "map"}, False),
        ({"distilled": True}, False),
        ({"pre_logits": True}, False),
    ],
)
def test_a_head_reads_several_blocks_only_behind_plain_pooling(
    fields: dict[str, Any], *, can_read_several: bool
) -> None:
    config = replace(PLAIN, **fields)
    assert config.supports_read_blocks is can_read_several
    assert replace(config, read_blocks=1) == config

    if can_read_several:
        assert replace(config, read_blocks=3).read_blocks == 3
    for number in (0, 4, *([] if can_read_several else [2])):
        with pytest.raises(UsageError, match=f"a head cannot read {number} blocks of this model"):
            replace(config, read_blocks=number)


def test_rotary_positions_are_by_default_those_of_dinov3() -> None:
    assert asdict(RopeConfig()) == {
        "unit": True, "base": 100.0, "offset": 0.0, "grid": None, "x_first": False, "halves": True
    }  # fmt: skip
