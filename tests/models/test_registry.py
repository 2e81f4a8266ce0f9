"""Architectures by name, and the names that describe a model."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from vitft.config.names import ALIASES
from vitft.models.registry import (
    architecture_config,
    architecture_names,
    create_model,
    describe_vit,
    unknown_field,
)
from vitft.models.vit_config import RopeConfig, ViTConfig
from vitft.system.errors import UsageError

ODD = ViTConfig(image_size=(32, 48), patch_size=(8, 8), width=24, depth=3, heads=3)


def test_the_names_of_all_architectures() -> None:
    assert architecture_names() == [
        "vit_tiny_patch16_224",
        *(f"vit_small_patch{p}_224" for p in (8, 14, 16, 32)),
        *(f"vit_base_patch{p}_224" for p in (8, 14, 16, 32)),
        *(f"vit_large_patch{p}_224" for p in (14, 16, 32)),
        *(f"vit_huge_patch{p}_224" for p in (14, 16)),
        "vit_tiny_r_s16_p8_224",
        "vit_small_r26_s32_224",
        "vit_base_r50_s16_224",
        "vit_large_r50_s32_224",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "vit_large_patch32_384",
            ViTConfig(image_size=(384, 384), patch_size=(32, 32), width=1024, depth=24, heads=16),
        ),
        ("vit_base_patch16_224", ViTConfig()),
        ("vit_base_r50_s16_384", ViTConfig(image_size=(384, 384), stem=(3, 4, 9))),
        (
            "vit_tiny_r_s16_p8_224",
            ViTConfig(patch_size=(32, 32), width=192, heads=3, stem=()),
        ),
        (
            "vit_small_r26_s32_224",
            ViTConfig(patch_size=(32, 32), width=384, heads=6, stem=(2, 2, 2, 2)),
        ),
    ],
)
def test_a_name_gives_the_configuration_of_its_paper(name: str, expected: ViTConfig) -> None:
    assert architecture_config(name) == expected


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch8_224", "vit_bass_patch14_224", "vit_base_patch16", "xvit_base_patch16_224",
     "vit_base_r51_s16_224"],
)  # fmt: skip
def test_names_without_published_weights_are_unknown(name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown architecture '{name}'\n.*similar ones are vit_"):
        architecture_config(name)


def test_fields_and_another_image_size_replace_those_of_the_name() -> None:
    with torch.device("meta"):
        square = create_model("vit_tiny_patch16_224", image_size=64, depth=1, num_classes=7)
        wide = create_model("vit_tiny_patch16_224", image_size=(32, 64), depth=1)
        plain = create_model("vit_tiny_patch16_384", depth=1, pool="mean")

    assert square.config.image_size == (64, 64)
    assert (square.config.depth, square.config.num_classes) == (1, 7)
    assert wide.config.image_size == (32, 64)
    assert plain.config.image_size == (384, 384)
    assert plain.config.pool == "mean"


def test_another_pooling_drops_the_settings_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = replace(ODD, pool="map", pool_heads=6)
    monkeypatch.setattr("vitft.models.registry.architecture_config", lambda _: pooled)

    with torch.device("meta"):
        changed, kept = create_model("x", pool="cls"), create_model("x", pool="map", depth=1)
        heads = create_model("x", pool="map", pool_heads=2)

    assert (changed.config.pool, changed.config.pool_heads) == ("cls", 0)
    assert (kept.config.pool_heads, heads.config.pool_heads) == (6, 2)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(UsageError, match="unknown model setting 'classes'"):
        create_model("vit_tiny_patch16_224", depths=3, classes=5)
    for name, field in (("num_class", "num_classes"), ("num_heads", "heads"), ("depht", "depth")):
        with pytest.raises(UsageError, match=f"setting '{name}'\n  fix: use {field}$"):
            create_model("vit_tiny_patch16_224", **{name: 3})
    for setting, names in ALIASES.items():
        section, _, field = setting.partition(".")
        for name in names if section == "model" else ():
            assert unknown_field(name, ["zzz"]).fix == f"use {field}"
    assert unknown_field("learning_rate", ["zzz"]).fix == "use a field of ViTConfig: zzz"
    with pytest.raises(UsageError, match="use a field of ViTConfig: image_size, "):
        create_model("vit_tiny_patch16_224", zzz=3)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "ViT/8 32x48 px, 3 blocks, width 24, 3 heads"),
        ({"depth": 1, "heads": 1}, "ViT/8 32x48 px, 1 block, width 24, 1 head"),
        ({"stem": ()}, ", ResNet stem of one layer"),
        ({"stem": (1, 2)}, ", ResNet stem 1-2"),
        ({"convs": (4, 6)}, ", 2 convolutions (4, 6 channels)"),
        ({"convs": (4,)}, ", 1 convolution (4 channels)"),
        ({"distilled": True}, ", distilled"),
        ({"layer_scale": 0.1}, ", LayerScale"),
        ({"registers": 1}, ", 1 register"),
        ({"registers": 4}, ", 4 registers"),
        ({"activation": "quick_gelu"}, ", quick_gelu"),
        ({"gated_mlp": True}, ", SwiGLU"),
        ({"norm_layer": "rmsnorm"}, ", RMSNorm"),
        ({"rope": RopeConfig()}, ", rotary positions"),
        ({"pool": "map"}, ", attention pooling"),
        ({"final_norm": False}, ", no final norm"),
        ({"embed_norm": True}, ", LayerNorm before the first block"),
        ({"class_token": False, "pool": "mean"}, ", no class token"),
        ({"norm": "post"}, ", post-norm"),
        ({"in_channels": 1}, ", 1 channel"),
        ({"in_channels": 5}, ", 5 channels"),
    ],
)
def test_what_is_unusual_in_a_model_is_described(fields: dict[str, Any], text: str) -> None:
    described = describe_vit(replace(ODD, **fields))

    assert described == (text if text.startswith("ViT") else describe_vit(ODD) + text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vit_tiny_patch16_224", "ViT-Ti/16 224 px"),
        ("vit_small_patch32_384", "ViT-S/32 384 px"),
        ("vit_base_patch8_224", "ViT-B/8 224 px"),
        ("vit_large_patch14_224", "ViT-L/14 224 px"),
        ("vit_huge_patch14_224", "ViT-H/14 224 px"),
        ("vit_base_r50_s16_224", "ViT-B/16 224 px, ResNet stem 3-4-9"),
    ],
)
def test_named_sizes_have_the_letters_of_the_papers(name: str, text: str) -> None:
    assert describe_vit(architecture_config(name)) == text
