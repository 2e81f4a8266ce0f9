"""Architectures by name, and the names that describe a model."""

import pytest

from vitft.models import ViTConfig, architecture_config


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
        (
            "vit_large_r50_s32_224",
            ViTConfig(patch_size=(32, 32), width=1024, depth=24, heads=16, stem=(3, 4, 6, 3)),
        ),
        (
            "vit_huge_patch14_224",
            ViTConfig(patch_size=(14, 14), width=1280, depth=32, heads=16),
        ),
    ],
)
def test_a_name_gives_the_configuration_of_its_paper(name: str, expected: ViTConfig) -> None:
    assert architecture_config(name) == expected
