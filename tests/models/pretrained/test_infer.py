"""Architectures read from the tensors of a file without a card, and files that lack some."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitft.models import ViTConfig, open_pretrained, vit_shapes
from vitft.system import WeightsError

PLAIN = ViTConfig(image_size=(16, 16), patch_size=(4, 4), width=32, depth=2, heads=2, num_classes=3)
HYBRID = {"patch_size": (16, 16), "image_size": (32, 32)}


def tensors_of(config: ViTConfig) -> dict[str, Tensor]:
    return {name: torch.zeros(facts.shape) for name, facts in vit_shapes(config).items()}


def opened(folder: Path, tensors: dict[str, Tensor], **facts: Any) -> ViTConfig:
    """Return the architecture of tensors beside which timm's config.json states facts."""
    save_file(tensors, folder / "any.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_args": facts}))
    return open_pretrained(folder / "any.safetensors").architecture


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
        {"pool": "mean", "norm_before_pool": True, "class_token": False},
        {"pool": "map", "class_token": False},
        {"pool": "map"},
        {"gated_mlp": True},
        {"gated_mlp": True, "mlp_norm": True, "attn_norm": True},
        {"embed_norm": True},
        {"patch_norm": True},
        {"norm_layer": "rmsnorm"},
        {"mlp_ratio": 8 / 3},
        {"mlp_ratio": 1.3},
        {"width": 28, "mlp_ratio": math.nextafter(61 / 28, 9)},  # int(28 * (61 / 28)) is 60
        {"depth": 11},
        {"stem": (), **HYBRID},
        {"stem": (1, 2), **HYBRID},
    ],
    ids=str,
)
def test_every_architecture_is_read_from_its_tensors(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    config = replace(PLAIN, **fields)

    found = opened(tmp_path, tensors_of(config), num_heads=2, img_size=[*config.image_size])

    assert vit_shapes(found) == vit_shapes(config)
    same = replace(found, mlp_ratio=config.mlp_ratio)
    assert config == (same if config.num_prefix else replace(same, prefix_positions=True))


@pytest.mark.parametrize(
    ("width", "facts", "heads"),
    [(192, {}, 3), (384, {}, 6), (640, {}, 10), (64, {}, 1), (192, {"num_heads": 4}, 4)],
)
def test_heads_that_are_not_stated_are_those_of_named_sizes_or_64_wide(
    tmp_path: Path, width: int, facts: dict[str, Any], heads: int
) -> None:
    config = replace(PLAIN, width=width, depth=1, num_classes=0, mlp_ratio=1.0)

    assert opened(tmp_path, tensors_of(config), **facts).heads == heads


@pytest.mark.parametrize(
    ("positions", "stated", "grid", "prefix"),
    [
        (17, None, (4, 4), True),
        (16, None, (4, 4), False),
        (9, (8, 16), (2, 4), True),
        (8, (8, 16), (2, 4), False),
        (17, (8, 16), (4, 4), True),  # another size is stated
        (2, None, (1, 1), True),
    ],
)
def test_the_grid_is_that_of_the_stated_image_or_a_square(
    tmp_path: Path, positions: int, stated: tuple[int, int] | None, grid: tuple[int, int],
    prefix: bool,
) -> None:  # fmt: skip
    tensors = tensors_of(PLAIN) | {"pos_embed": torch.zeros(1, positions, 32)}
    facts = {"img_size": [*stated]} if stated else {}

    found = opened(tmp_path, tensors, num_heads=2, **facts)

    assert (found.grid, found.prefix_positions) == (grid, prefix)


def without(part: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name: t for name, t in tensors.items() if part not in name}


def shaped(name: str, *shape: int) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: tensors | {name: torch.zeros(shape)}


@pytest.mark.parametrize(
    ("damage", "facts", "problem", "fix"),
    [
        (without("norm.bias"), {}, "missing: norm.bias", "incomplete or edited"),
        (without("blocks."), {}, "block 0 is missing from the weights, which have 0", ""),
        (without("pos_embed"), {}, "rotary position embeddings, but their settings", "config.json"),
        (without("fc2.weight"), {}, "blocks.0.mlp.fc2.weight is missing", "2 dimensions"),
        (shaped("norm_pre.bias", 32), {}, "unexpected: norm_pre.bias", "two models"),
        (shaped("pos_embed", 1, 12, 32), {}, "do not form a square grid", "config.json"),
        (shaped("pos_embed", 17, 32), {}, "pos_embed has unexpected shape (17, 32)", "3 dimen"),
        (shaped("head.weight", 0, 32), {}, "head.weight has unexpected shape", ""),
        (dict, {"num_heads": 5}, "32 is not a multiple of the number of attention heads, 5", ""),
        (dict, {"num_heads": 0}, "the number of attention heads is unknown", "config.json"),
    ],
)  # fmt: skip
def test_a_file_whose_tensors_form_no_model_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    facts: dict[str, Any], problem: str, fix: str,
) -> None:  # fmt: skip
    with pytest.raises(WeightsError) as caught:
        opened(tmp_path, damage(tensors_of(PLAIN)), **{"num_heads": 2, **facts})

    assert problem in caught.value.problem
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("stages", "is_read"), [((1, 0, 1), False), ((1, 1, 1, 1, 1), False), ((1, 1, 1, 1), True)]
)
def test_a_stem_has_up_to_four_stages_and_none_is_empty(
    tmp_path: Path, stages: tuple[int, ...], is_read: bool
) -> None:
    whole = tensors_of(replace(PLAIN, stem=(1,) * 4, patch_size=(32, 32), image_size=(32, 32)))
    place = "patch_embed.backbone.stages"
    tensors = {name: t for name, t in whole.items() if not name.startswith(place)}
    for number, count in enumerate(stages):
        unit = f"{place}.{min(number, 3)}."
        tensors |= {name.replace(unit, f"{place}.{number}."): t.clone()
                    for name, t in whole.items() if count and name.startswith(unit)}  # fmt: skip

    if is_read:
        assert opened(tmp_path, tensors, num_heads=2).stem == stages
        return
    with pytest.raises(WeightsError, match=r"do not form a valid Vision Transformer: .*stem"):
        opened(tmp_path, tensors, num_heads=2)
