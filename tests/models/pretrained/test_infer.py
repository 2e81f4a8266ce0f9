"""Architectures read from the shapes of tensors."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from vitft.models.pretrained.infer import (
    check_fit,
    depth_of,
    grid_of,
    heads_of,
    infer_config,
    pool_fields,
    shape_of,
    square,
    stem_of,
)
from vitft.models.pretrained.sidecar import SidecarFacts, UnstoredFacts
from vitft.models.shapes import vit_shapes
from vitft.models.vit_config import RopeConfig, ViTConfig
from vitft.system.errors import WeightsError

PLAIN = ViTConfig(image_size=(16, 16), patch_size=(4, 4), width=32, depth=2, heads=2, num_classes=3)
FACTS = SidecarFacts(heads=2)


def tensors_of(config: ViTConfig) -> dict[str, Tensor]:
    shapes = vit_shapes(config).items()
    return {name: torch.empty(facts.shape, device="meta") for name, facts in shapes}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_classes": 0},
        {"in_channels": 1},
        {"patch_size": (4, 8)},
        {"registers": 3},
        {"registers": 3, "prefix_positions": False},
        {"distilled": True},
        {"pre_logits": True},
        {"qkv_bias": False},
        {"proj_bias": False},
        {"layer_scale": 1e-5},
        {"pool": "mean"},
        {"pool": "mean", "class_token": False},
        {"pool": "map", "class_token": False},
        {"pool": "map"},
        {"gated_mlp": True},
        {"gated_mlp": True, "mlp_norm": True, "attn_norm": True},
        {"embed_norm": True},
        {"patch_norm": True},
        {"norm_layer": "rmsnorm"},
        {"mlp_ratio": 8 / 3},
        {"mlp_ratio": 1.3},
        {"stem": (), "patch_size": (16, 16), "image_size": (32, 32)},
        {"stem": (1, 2), "patch_size": (16, 16), "image_size": (32, 32)},
    ],
    ids=str,
)
def test_every_architecture_is_read_from_its_tensors(fields: dict[str, Any]) -> None:
    config = replace(PLAIN, **fields)
    facts = replace(FACTS, image_size=config.image_size)

    found = infer_config(tensors_of(config), facts)

    assert vit_shapes(found) == vit_shapes(config)
    same = replace(found, mlp_ratio=config.mlp_ratio)
    if not config.num_prefix:
        same = replace(same, prefix_positions=True)
    assert same == config
    check_fit(tensors_of(config), found)


def test_facts_decide_what_tensors_do_not_tell() -> None:
    facts = SidecarFacts(heads=4, norm_eps=0.5, activation="quick_gelu", image_size=(8, 32))

    found, plain = infer_config(tensors_of(PLAIN), facts), infer_config(tensors_of(PLAIN), FACTS)

    assert (found.heads, found.norm_eps, found.activation) == (4, 0.5, "quick_gelu")
    assert found.image_size == (8, 32)
    assert (plain.heads, plain.norm_eps, plain.activation) == (2, 1e-6, "gelu")
    assert plain.image_size == (16, 16)
    assert plain.rope is None


def test_a_model_without_learned_positions_needs_its_image_size() -> None:
    rope = RopeConfig(base=9.0)
    tensors = tensors_of(replace(PLAIN, positions=False, rope=rope))
    unstored = UnstoredFacts(rope=rope, pool_heads=0, final_norm=True)

    found = infer_config(tensors, replace(FACTS, unstored=unstored, image_size=(16, 24)))

    assert (found.grid, found.rope, found.positions) == ((4, 6), rope, False)
    assert found.prefix_positions
    with pytest.raises(WeightsError, match="pos_embed is missing"):
        infer_config(tensors, replace(FACTS, unstored=unstored))


@pytest.mark.parametrize(
    ("names", "pool", "final_norm", "expected"),
    [
        (["cls_token", "norm.weight"], "", None, ("cls", True, False)),
        (["cls_token", "norm.weight"], "avg", None, ("mean", True, True)),
        (["cls_token", "fc_norm.weight"], "", None, ("mean", True, False)),
        (["norm.weight"], "", None, ("mean", True, True)),
        (["norm.weight", "attn_pool.latent"], "", None, ("map", True, False)),
        (["cls_token"], "", None, ("cls", True, False)),
        (["cls_token"], "", False, ("cls", False, False)),
        (["cls_token", "norm.weight"], "", False, ("cls", True, False)),
        (["cls_token", "fc_norm.weight"], "", False, ("mean", True, False)),
        (["cls_token"], "avg", False, ("mean", False, False)),
    ],
)
def test_the_pooling_follows_from_names_and_facts(
    names: list[str], pool: str, final_norm: bool | None, expected: tuple[object, ...]
) -> None:
    known = UnstoredFacts(rope=None, pool_heads=6, final_norm=bool(final_norm))
    facts = SidecarFacts(pool=pool, unstored=None if final_norm is None else known)

    found = pool_fields({name: torch.empty(1) for name in names}, facts)

    assert (found["pool"], found["final_norm"], found["norm_before_pool"]) == expected
    is_map = expected[0] == "map" and final_norm is not None
    assert found["pool_heads"] == (6 if is_map else 0)


def test_heads_of_attention_pooling_are_those_of_the_named_architecture() -> None:
    known = UnstoredFacts(rope=None, pool_heads=6, final_norm=True)

    found = pool_fields({"attn_pool.latent": torch.empty(1)}, SidecarFacts(unstored=known))

    assert found["pool_heads"] == 6
    assert (
        pool_fields({"cls_token": torch.empty(1)}, SidecarFacts(unstored=known))["pool_heads"] == 0
    )


@pytest.mark.parametrize(
    ("positions", "prefix", "size", "expected"),
    [
        (17, 1, None, ((4, 4), 1)),
        (16, 1, None, ((4, 4), 0)),
        (16, 0, None, ((4, 4), 0)),
        (9, 1, (8, 16), ((2, 4), 1)),
        (8, 1, (8, 16), ((2, 4), 0)),
        (17, 1, (8, 16), ((4, 4), 1)),
        (17, 1, (16, 16), ((4, 4), 1)),
        (20, 4, None, ((4, 4), 4)),
        (1, 0, None, ((1, 1), 0)),
        (2, 1, None, ((1, 1), 1)),
        (4, 4, (4, 0), ((2, 2), 0)),
    ],
)
def test_the_grid_is_that_of_the_stated_image_or_a_square(
    positions: int, prefix: int, size: tuple[int, int] | None, expected: object
) -> None:
    assert grid_of(positions, prefix, (4, 4), size) == expected


@pytest.mark.parametrize("positions", [3, 8, 12])
def test_positions_that_form_no_square_are_refused(positions: int) -> None:
    with pytest.raises(WeightsError, match="do not form a square grid"):
        grid_of(positions, 1, (4, 4), None)


@pytest.mark.parametrize("count", [-1, 0, 2, 15, 17])
def test_only_square_numbers_have_a_side(count: int) -> None:
    assert (square(1), square(16)) == ((1, 1), (4, 4))
    with pytest.raises(WeightsError, match=f"{count} position embeddings"):
        square(count)


@pytest.mark.parametrize(
    ("width", "stated", "heads"),
    [(192, None, 3), (384, None, 6), (768, None, 12), (1024, None, 16), (1280, None, 16),
     (640, None, 10), (64, None, 1), (192, 4, 4), (100, 5, 5)],
)  # fmt: skip
def test_heads_that_are_not_stated_are_those_of_named_sizes_or_64_wide(
    width: int, stated: int | None, heads: int
) -> None:
    assert heads_of(width, stated) == heads


@pytest.mark.parametrize(
    ("width", "stated", "message"),
    [(100, None, "unknown for a width of 100"), (192, 5, "192 is not a multiple .* heads, 5"),
     (192, 0, "heads, 0"), (32, None, "unknown")],
)  # fmt: skip
def test_heads_that_do_not_divide_the_width_are_refused(
    width: int, stated: int | None, message: str
) -> None:
    with pytest.raises(WeightsError, match=message):
        heads_of(width, stated)


def named(*names: str) -> dict[str, Tensor]:
    return {name: torch.empty(1) for name in names}


def test_blocks_are_counted_and_none_may_be_missing() -> None:
    assert depth_of(named("blocks.0.x", "blocks.1.x", "blocks.1.y", "head.blocks.7.x")) == 2
    assert depth_of(named(*(f"blocks.{i}.x" for i in range(12)))) == 12
    with pytest.raises(WeightsError, match="block 1 is missing from the weights, which have 2"):
        depth_of(named("blocks.0.x", "blocks.2.x"))
    with pytest.raises(WeightsError, match="block 0 is missing from the weights, which have 0"):
        depth_of(named("norm.weight"))


def test_bottlenecks_are_counted_by_stage() -> None:
    place = "patch_embed.backbone."
    units = [f"{place}stages.{i}.blocks.{j}.conv1.weight" for i, n in enumerate((3, 4, 12))
             for j in range(n)]  # fmt: skip

    assert stem_of(named("patch_embed.proj.weight")) is None
    assert stem_of(named(f"{place}conv.weight")) == ()
    assert stem_of(named(f"{place}stem.conv.weight", *units)) == (3, 4, 12)
    with pytest.raises(WeightsError, match=r"stages have \[3, 0, 12\] blocks"):
        stem_of(named(*(name for name in units if "stages.1" not in name)))
    assert stem_of(named(*(f"{place}stages.{i}.blocks.0.x" for i in range(4)))) == (1,) * 4
    with pytest.raises(WeightsError, match="unsupported convolutional stem"):
        stem_of(named(*(f"{place}stages.{i}.blocks.0.x" for i in range(5))))


@pytest.mark.parametrize("shape", [(2,), (2, 3, 4), (0, 3)])
def test_a_tensor_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    assert shape_of({"x": torch.empty(2, 3)}, "x", 2) == (2, 3)
    with pytest.raises(WeightsError, match="x has unexpected shape"):
        shape_of({"x": torch.empty(shape)}, "x", 2)
    with pytest.raises(WeightsError, match="y is missing"):
        shape_of({"x": torch.empty(shape)}, "y", 2)


def test_half_precision_fits_and_other_tensors_do_not() -> None:
    tensors = tensors_of(PLAIN)

    check_fit({name: tensor.half() for name, tensor in tensors.items()}, PLAIN)
    with pytest.raises(WeightsError, match=r"missing: norm\.bias") as caught:
        check_fit({n: t for n, t in tensors.items() if n != "norm.bias"}, PLAIN)
    assert "incomplete or edited" in caught.value.fix
    with pytest.raises(WeightsError, match="unexpected: extra") as caught:
        check_fit(tensors | {"extra": torch.empty(1)}, PLAIN)
    assert "a mixture of two models" in caught.value.fix
