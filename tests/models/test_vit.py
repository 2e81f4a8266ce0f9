"""The Vision Transformer: the same outputs as timm, and the properties of its parts."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.conftest import random_timm
from vitft import create_model
from vitft.models import (
    VisionTransformer,
    ViTConfig,
    architecture_config,
    build_model,
    sinusoidal_positions,
)
from vitft.system import UsageError

SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 4}
SMALL_CONFIG = ViTConfig(
    image_size=(32, 32), patch_size=(16, 16), width=64, depth=2, heads=4, num_classes=10
)


# The full table, at 224 pixels and another size, is run by benchmarks/accuracy/parity.py.
@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("vit_tiny_patch16_224", 224),
        ("vit_tiny_patch16_224", 384),
        ("vit_small_patch8_224", 64),
        ("vit_small_patch14_224", 98),
        ("vit_small_patch16_224", 224),
        ("vit_small_patch32_224", 224),
        ("vit_base_patch8_224", 48),
        ("vit_base_patch14_224", 56),
        ("vit_base_patch16_224", 96),
        ("vit_base_patch32_224", 224),
        ("vit_large_patch16_224", 64),
        ("vit_large_patch32_224", 96),
    ],
)
@torch.no_grad()
def test_logits_equal_timms(name: str, side: int) -> None:
    theirs = random_timm(name, side, depth=4)  # the whole depth: benchmarks/accuracy/parity.py
    config = replace(architecture_config(name), image_size=(side, side), depth=4, num_classes=10)
    ours = build_model(theirs.state_dict(), config)
    images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))

    difference = (ours(images) - theirs(images)).abs().max()

    assert difference <= 1e-5


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param({}, {}, id="class token"),
        pytest.param({"pool": "mean"}, {"global_pool": "avg"}, id="mean of the patches"),
        pytest.param({"image_size": (32, 64)}, {"img_size": (32, 64)}, id="wider than high"),
        pytest.param({"in_channels": 5}, {"in_chans": 5}, id="five channels"),
        pytest.param({"qkv_bias": False}, {"qkv_bias": False}, id="no bias before attention"),
        pytest.param({"num_classes": 0}, {"num_classes": 0}, id="features, no head"),
        pytest.param({"mlp_ratio": 2.0}, {"mlp_ratio": 2.0}, id="narrow MLP"),
        pytest.param(
            {"image_size": (24, 40), "patch_size": (4, 8)},
            {"img_size": (24, 40), "patch_size": (4, 8)},
            id="flat patches",
        ),
        pytest.param({"layer_scale": 1e-5}, {"init_values": 1e-5}, id="LayerScale"),
        pytest.param({"registers": 4}, {"reg_tokens": 4}, id="registers with positions"),
        pytest.param(
            {"layer_scale": 1e-5, "registers": 4, "prefix_positions": False},
            {"init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True},
            id="DINOv2 with registers",
        ),
        pytest.param(
            {"registers": 2, "pool": "mean"},
            {"reg_tokens": 2, "global_pool": "avg"},
            id="registers are not averaged",
        ),
        pytest.param({"prefix_positions": False}, {"no_embed_class": True}, id="as in DeiT III"),
    ],
)
@torch.no_grad()
def test_variants_equal_timms_and_weights_go_both_ways(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    config = replace(SMALL_CONFIG, **ours)
    options: dict[str, Any] = {"patch_size": 16, **SMALL, **theirs}
    options.pop("img_size", None)
    reference = random_timm("vit_tiny_patch16_224", config.image_size, **options)
    model = VisionTransformer(config).eval()
    images = torch.randn(2, config.in_channels, *config.image_size)

    model.load_state_dict(reference.state_dict(), strict=True)
    assert torch.allclose(model(images), reference(images), atol=1e-5)

    fresh = VisionTransformer(config).eval()
    reference.load_state_dict(fresh.state_dict(), strict=True)
    assert torch.allclose(fresh(images), reference(images), atol=1e-5)


@torch.no_grad()
def test_a_distilled_deit_averages_its_two_heads_as_timm_does() -> None:
    reference = timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, num_classes=10, **SMALL
    ).eval()
    for parameter in reference.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.02)
    images = torch.randn(2, 3, 32, 32)

    for classes in (10, 0):
        reference.reset_classifier(classes) if not classes else None
        model = VisionTransformer(replace(SMALL_CONFIG, distilled=True, num_classes=classes)).eval()
        assert model.state_dict()["dist_token"].std() == pytest.approx(0.02, rel=0.3)
        model.load_state_dict(reference.state_dict(), strict=True)
        assert torch.allclose(model(images), reference(images), atol=1e-6)


@torch.no_grad()
def test_post_norm_blocks_are_those_of_the_original_transformer() -> None:
    layer = nn.TransformerEncoderLayer(
        64, 4, 256, dropout=0, activation=F.gelu, layer_norm_eps=1e-6, batch_first=True
    )
    block = VisionTransformer(replace(SMALL_CONFIG, norm="post")).blocks[0]
    renames = {"self_attn.in_proj_": "attn.qkv.", "self_attn.out_proj": "attn.proj"}
    renames |= {"linear1": "mlp.fc1", "linear2": "mlp.fc2"}
    state = layer.state_dict()
    for old, new in renames.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    tokens = torch.randn(2, 5, 64)

    block.load_state_dict(state, strict=True)

    assert torch.allclose(block(tokens), layer(tokens), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"qkv_bias": False}, id="no bias"),
        pytest.param({"layer_scale": 0.5}, id="LayerScale"),
        pytest.param({"norm": "post"}, id="post-norm"),
        pytest.param({"norm": "post", "layer_scale": 0.5}, id="post-norm, LayerScale"),
        pytest.param({"registers": 4, "prefix_positions": False}, id="registers"),
        pytest.param({"distilled": True}, id="distilled"),
    ],
)
@torch.no_grad()
def test_the_last_block_for_the_class_token_alone_gives_the_same_feature(
    options: dict[str, Any],
) -> None:
    model = VisionTransformer(replace(SMALL_CONFIG, **options)).eval()
    tokens = model.encode(model.embed(torch.randn(2, 3, 32, 32)), stop=1)

    last: Any = model.blocks[1]
    short = last.for_class_token(tokens)

    assert short.shape == (2, model.config.num_read, 64)
    assert torch.allclose(model.pool(short), model.pool(last(tokens)), atol=1e-6)


@torch.no_grad()
def test_attention_maps_are_what_forward_applies() -> None:
    attention: Any = VisionTransformer(SMALL_CONFIG).blocks[0].attn
    tokens = torch.randn(2, 5, 64)

    q, k, values = attention.split_heads(tokens)
    maps = (q @ k.mT / 4).softmax(dim=-1)  # heads of 16 dimensions
    mixed = attention.proj((maps @ values).transpose(1, 2).flatten(2))

    assert maps.shape == (2, 4, 5, 5)
    assert torch.allclose(maps.sum(dim=-1), torch.ones(2, 4, 5), atol=1e-6)
    assert torch.allclose(mixed, attention(tokens), atol=1e-6)


def test_the_first_loss_of_a_zeroed_head_is_the_log_of_the_class_count() -> None:
    model = VisionTransformer(SMALL_CONFIG)

    loss = F.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.tensor([0, 3, 9, 1]))

    assert loss.item() == pytest.approx(math.log(10), abs=1e-6)  # ten classes, equally likely


@torch.no_grad()
def test_pre_logits_is_a_linear_and_a_tanh_before_the_head() -> None:
    model = VisionTransformer(replace(SMALL_CONFIG, pre_logits=True)).eval()
    nn.init.normal_(model.head.get_parameter("weight"))
    pooled = torch.randn(2, 64)

    layer = model.pre_logits.get_submodule("fc")

    assert torch.equal(model.classify(pooled), model.head(torch.tanh(layer(pooled))))
    assert {"pre_logits.fc.weight", "pre_logits.fc.bias"} <= set(model.state_dict())


@torch.no_grad()
def test_a_head_reads_the_class_token_and_the_mean_patch_of_earlier_blocks() -> None:
    config = replace(SMALL_CONFIG, depth=3, read_blocks=3, registers=1)
    model = VisionTransformer(config).eval()
    images = torch.randn(2, 3, 32, 32)

    features = model.features(images)

    tokens = [model.embed(images)]
    for block in model.blocks:
        tokens.append(block(tokens[-1]))
    first, second, last = tokens[1:]
    expected = [model.norm(last)[:, 0]]
    for earlier in (first, second):  # two prefix tokens: class token and register
        expected += [model.norm(earlier)[:, 0], model.norm(earlier[:, 2:].mean(dim=1))]
    assert features.shape == (2, model.feature_size) == (2, 5 * 64)
    assert torch.allclose(features, torch.cat(expected, dim=1), atol=1e-5)
    assert torch.allclose(model(images), model.classify(features), atol=1e-5)
    assert model.last_head is not None
    assert model.last_head.weight.shape == (config.num_classes, 64)


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("early", [True, False])
@torch.no_grad()
def test_with_mean_pooling_a_head_reads_the_mean_of_the_last_block_and_earlier_blocks(
    early: bool, class_token: bool
) -> None:
    fields: dict[str, Any] = {"norm_before_pool": early, "class_token": class_token, "depth": 3}
    config = replace(SMALL_CONFIG, pool="mean", read_blocks=2, registers=1, **fields)
    model = VisionTransformer(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    images = torch.randn(2, 3, 32, 32)

    features = model.features(images)

    second = model.encode(model.embed(images), stop=2)
    last, first = model.encode(second, start=2), 1 + class_token  # class token and register
    norm = model.norm if early else model.fc_norm
    mean = norm(last)[:, first:].mean(dim=1) if early else norm(last[:, first:].mean(dim=1))
    expected = [mean, norm(second[:, first:].mean(dim=1))]
    assert features.shape == (2, model.feature_size) == (2, 2 * 64)
    assert torch.allclose(features, torch.cat(expected, dim=1), atol=1e-4)
    assert torch.allclose(model(images), model.classify(features), atol=1e-4)
    model.read_last_blocks(1)
    assert torch.equal(model.features(images), features[:, :64])


@torch.no_grad()
def test_forward_is_its_four_public_steps_wherever_the_blocks_are_cut() -> None:
    model = VisionTransformer(SMALL_CONFIG).eval()
    nn.init.normal_(model.head.get_parameter("weight"))
    images = torch.randn(2, 3, 32, 32)

    halfway = model.encode(model.embed(images), stop=1)
    stepwise = model.classify(model.pool(model.encode(halfway, start=1)))

    assert torch.equal(stepwise, model(images))


def test_drop_path_skips_whole_images_while_training_and_keeps_the_mean() -> None:
    branch = torch.ones(10_000, 3, 2)
    skip: Any = VisionTransformer(replace(SMALL_CONFIG, drop_path=0.25)).blocks[-1].drop_path

    dropped = skip(branch)

    per_image = dropped.flatten(1)
    assert per_image.unique().tolist() == pytest.approx([0, 4 / 3])
    assert bool((per_image == per_image[:, :1]).all())
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)  # 3.5 standard errors
    assert torch.equal(skip.eval()(branch), branch)


def test_parameter_counts_are_the_published_ones() -> None:
    names = {"vit_tiny_patch16_224": 5_717_416, "vit_huge_patch14_224": 632_045_800}

    with torch.device("meta"):
        models = {name: create_model(name) for name in names}
    counts = {n: sum(p.numel() for p in model.parameters()) for n, model in models.items()}

    assert counts == names  # of DeiT's table 1 and of Dosovitskiy's table 1, with 1000 classes


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ({}, lambda model, tokens: model.norm(tokens)[:, 0]),
        ({"registers": 2, "distilled": True}, lambda model, tokens: model.norm(tokens)[:, 0]),
        ({"pool": "mean"}, lambda model, tokens: model.fc_norm(tokens[:, 1:].mean(dim=1))),
        (
            {"pool": "mean", "norm_before_pool": True, "registers": 1},
            lambda model, tokens: model.norm(tokens[:, 2:].mean(dim=1)),
        ),
        (
            {"pool": "map", "class_token": False},
            lambda model, tokens: model.norm(tokens.mean(dim=1)),
        ),
    ],
)
def test_an_intermediate_feature_follows_the_pooled_one(
    settings: dict[str, Any], read: Callable[[VisionTransformer, Tensor], Tensor], start: int
) -> None:
    config = ViTConfig(
        image_size=(16, 16), patch_size=(8, 8), width=8, depth=4, heads=2, num_classes=3
    )
    torch.manual_seed(0)
    model = VisionTransformer(replace(config, **settings)).eval()
    pixels = torch.randn(2, 3, 16, 16)

    with torch.no_grad():
        tokens = model.encode(model.embed(pixels), stop=2)
        found = model.finish(model.encode(model.embed(pixels), stop=start), start, intermediate=2)
        whole, plain = model.features(pixels, 2), model.features(pixels)
        expected = read(model, tokens)

    assert torch.allclose(found, whole, atol=1e-6)
    assert torch.allclose(whole[:, : model.feature_size], plain, atol=1e-6)
    assert torch.allclose(whole[:, model.feature_size :], expected, atol=1e-6)


def test_positions_of_a_patch_are_waves_of_lengths_from_2_pi_to_200_pi() -> None:
    table = sinusoidal_positions((3, 4), 12)  # three frequencies: 1, 1/10 and 1/100

    expected = [
        [f(place / scale) for place in (x, y) for f in (np.sin, np.cos) for scale in (1, 10, 100)]
        for y in range(3)
        for x in range(4)
    ]
    assert table.numpy() == pytest.approx(np.array(expected), abs=1e-6)


def test_an_unknown_name_of_a_model_or_setting_is_an_error_with_a_fix() -> None:
    with pytest.raises(UsageError, match="unknown architecture 'vit_bse_patch16_224'") as caught:
        create_model("vit_bse_patch16_224")
    assert "vit_base_patch16_224" in caught.value.fix
    with pytest.raises(UsageError, match="unknown model setting 'depht'") as caught:
        create_model("vit_tiny_patch16_224", depht=2)
    assert "depth" in caught.value.fix


def test_a_model_rejects_images_of_another_size() -> None:
    model = create_model("vit_tiny_patch16_224", depth=1, image_size=32)
    with pytest.raises(UsageError, match="expects images of 32x32 pixels, but got 32x48"):
        model(torch.zeros(1, 3, 32, 48))
