"""Parts of timm's networks that vitft's own Vision Transformer lacks, and their configurations."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitft.models.timm_vit import (
    is_module,
    network_config,
    unsupported,
    unsupported_parts,
)


def small(**options: Any) -> Any:
    """Return a network of timm with two blocks of 16 numbers, without memory for its tensors."""
    sizes: dict[str, Any] = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2}
    with torch.device("meta"):
        return VisionTransformer(**{**sizes, "num_heads": 2, "num_classes": 3, **options})


def change(path: str, value: object) -> Callable[[Any], None]:
    """Return a function that sets an attribute of a network."""

    def apply(net: Any) -> None:
        owner, _, name = path.rpartition(".")
        setattr(net.get_submodule(owner), name, value)

    return apply


Mixer, Diff = type("Mixer", (Mlp,), {}), type("Diff", (Attention,), {})
MAP = {"global_pool": "map", "class_token": False}


@pytest.mark.parametrize(
    ("options", "changed", "part"),
    [
        ({}, change("rope", nn.Identity()), "an unsupported kind of rotary position embeddings"),
        ({}, change("pos_embed", None), "no position embeddings"),
        (
            {"pre_norm": True},
            change("patch_embed.proj.bias", nn.Parameter(torch.zeros(16))),
            "a LayerNorm before the first block with a bias in the patch projection",
        ),
        ({}, change("patch_embed.backbone", nn.Linear(1, 1)), "a convolutional stem"),
        ({}, change("blocks.0.attn.head_dim", 4), "heads that are not D / H wide"),
        (
            {},
            change("blocks.0.attn.num_kv_heads", 1),
            "fewer keys and values than queries",
        ),
        ({}, change("blocks.0.attn.q_norm", nn.Linear(1, 1)), "normalised queries and keys"),
        ({}, change("blocks.0.attn.gate", nn.Linear(1, 1)), "gated attention"),
        ({}, change("blocks.1.norm1.eps", 0.5), "normalisation layers with different eps"),
        (
            {},
            change("blocks.0.norm1", nn.GroupNorm(1, 16, eps=1e-6)),
            "an unsupported set of normalisation layers (GroupNorm, LayerNorm)",
        ),
        (
            {},
            change("blocks.0.ls1", nn.Linear(1, 1)),
            "LayerScale in only one of the branches",
        ),
        ({}, change("blocks.0.gamma_2", 1.0), "LayerScale in only one of the branches"),
        ({}, change("blocks.0.mlp.act", nn.ReLU()), "the activation ReLU"),
        ({}, change("fc_norm", nn.LayerNorm(16, eps=1e-6)), "a norm after class token pooling"),
        ({}, change("global_pool", "max"), "max pooling"),
        ({}, change("blocks.0.mlp.__class__", Mixer), "an unsupported kind of MLP (Mixer)"),
        ({}, change("blocks.0.attn.__class__", Diff), "an unsupported kind of attention (Diff)"),
        (
            {"global_pool": "avg", "fc_norm": False},
            change("pool_include_prefix", True),
            "a mean that includes the prefix tokens",
        ),
        (MAP, change("attn_pool.mlp.fc2", nn.Linear(3, 16)), "attention pooling with an MLP of a"),
    ],
)
def test_each_part_that_is_not_supported_is_named(
    options: dict[str, Any], changed: Callable[[Any], None], part: str
) -> None:
    net = small(**options)
    assert unsupported_parts(net) == []

    changed(net)

    (found,) = unsupported_parts(net)
    assert found.startswith(part)


def test_attention_pooling_of_the_patches_only_needs_a_network_without_prefix_tokens() -> None:
    with_token = small(global_pool="map")

    for includes, parts in ((False, ["attention pooling of the patches only"]), (True, [])):
        with_token.pool_include_prefix = includes
        assert unsupported_parts(with_token) == parts
    without: Any = small(**MAP)
    without.pool_include_prefix = False
    assert unsupported_parts(without) == []


@pytest.mark.parametrize("kind", ["Block", "EvaBlock"])
def test_another_kind_of_block_is_the_only_part_named(kind: str) -> None:
    net = small()
    net.blocks[0].__class__ = type(kind, (type(net.blocks[0]),), {})
    assert unsupported_parts(net) == []

    net.blocks[0].__class__ = type("Other", (type(net.blocks[0]),), {})
    net.pos_embed = None

    assert unsupported_parts(net) == ["an unsupported kind of block (Other)"]


def test_an_identity_or_nothing_is_no_module() -> None:
    parent = SimpleNamespace(identity=nn.Identity(), none=None, norm=nn.LayerNorm(2))

    names = ("identity", "none", "missing", "norm")
    assert [is_module(parent, name) for name in names] == [False, False, False, True]


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"pool": "cls", "class_token": True, "final_norm": True, "qkv_bias": True}),
        ({"qkv_bias": False, "init_values": 0.1}, {"qkv_bias": False, "registers": 0}),
        ({"reg_tokens": 2}, {"registers": 2, "prefix_positions": True}),
        ({"reg_tokens": 2, "no_embed_class": True}, {"registers": 2, "prefix_positions": False}),
        (
            {"global_pool": "avg", "class_token": False, "fc_norm": False},
            {"pool": "mean", "class_token": False, "norm_before_pool": True, "final_norm": True},
        ),
        ({"global_pool": "avg"}, {"pool": "mean", "norm_before_pool": False, "final_norm": True}),
        ({"final_norm": False}, {"final_norm": False}),
        ({**MAP, "num_classes": 0}, {"pool": "map", "pool_heads": 0, "num_classes": 0}),
        ({"mlp_ratio": 1.375, "in_chans": 1}, {"mlp_ratio": 1.375, "in_channels": 1}),
        ({"pre_norm": True}, {"embed_norm": True, "patch_norm": False}),
    ],
)
def test_a_configuration_has_the_parts_of_its_network(
    options: dict[str, Any], fields: dict[str, Any]
) -> None:
    config = network_config(small(**options))

    assert {name: getattr(config, name) for name in fields} == fields
    assert (config.image_size, config.patch_size, config.width) == ((8, 8), (4, 4), 16)
    assert (config.depth, config.heads) == (2, 2)


def test_another_number_of_heads_in_the_pooling_is_kept() -> None:
    net = small(**MAP)
    net.attn_pool.num_heads = 4

    assert network_config(net).pool_heads == 4


@pytest.mark.parametrize(("width", "hidden"), [(192, 511), (1408, 6144), (49, 130), (16, 64)])
def test_the_width_of_an_mlp_is_that_of_the_network(width: int, hidden: int) -> None:
    config = network_config(small(embed_dim=width, num_heads=1, mlp_ratio=(hidden + 0.5) / width))

    assert int(config.width * config.mlp_ratio) == hidden


def test_a_network_that_only_timm_can_build_is_answered_with_the_way_to_use_it() -> None:
    assert unsupported("vit_x", "it has wheels") == (
        "vitft's own Vision Transformer does not support vit_x: it has wheels",
        "use timm:vit_x to let timm build and run the model",
    )
