"""Tensor names and layouts of other tools, converted to vitft's."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitft.models.pretrained.convert import (
    convert,
    flavour_of,
    from_flax,
    fuse_qkv,
    in_float32,
    our_name,
    tower_layout,
    unstacked,
)
from vitft.models.pretrained.read import one_model
from vitft.system.errors import WeightsError


def named(*names: str) -> dict[str, Tensor]:
    return {name: torch.full((2, 2), float(i)) for i, name in enumerate(names, start=1)}


@pytest.mark.parametrize(
    ("names", "stripped"),
    [
        (["module.a", "module.b"], ["a", "b"]),
        (["module._orig_mod.model.a"], ["a"]),
        (["module.a", "b"], ["module.a", "b"]),
        (["model.model.a"], ["a"]),
        (["x.cls_token", "x.blocks.0._orig_mod.a", "y"], ["cls_token", "blocks.0.a"]),
        ([], []),
    ],
)
def test_the_root_of_a_models_names_is_removed(names: list[str], stripped: list[str]) -> None:
    assert [*one_model(named(*names), Path("a.pth"), None)[0]] == stripped


@pytest.mark.parametrize(
    ("names", "flavour"),
    [
        (["cls_token"], "timm"),
        (["blocks.0.norm1.weight", "x"], "timm"),
        (["norm.weight", "vit.embeddings.cls_token"], "hf"),
        (["embeddings.x"], "hf"),
        (["deit.embeddings.x"], "hf"),
        (["embedding/kernel"], "npz"),
        (["conv_proj.weight"], "torchvision"),
        (["class_embedding"], "clip"),
    ],
)
def test_the_naming_scheme_is_recognised(names: list[str], flavour: str) -> None:
    assert flavour_of(names) == flavour


@pytest.mark.parametrize(
    ("names", "message"), [([], "no tensors"), (["norm.weight"], "norm.weight")]
)
def test_other_names_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        flavour_of(names)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vit.embeddings.cls_token", "cls_token"),
        ("deit.embeddings.distillation_token", "dist_token"),
        ("vit.encoder.layer.11.layernorm_before.bias", "blocks.11.norm1.bias"),
        ("layers.0.mlp.fc1.weight", "blocks.0.mlp.fc1.weight"),
        ("encoder.layer.0.attention.attention.query.weight", "blocks.0.attn.q.weight"),
        ("dinov2.encoder.layer.2.layer_scale1.lambda1", "blocks.2.ls1.gamma"),
        ("dinov2.encoder.layer.2.layer_scale2.weight", None),
        ("class_token", "cls_token"),
        ("encoder.layers.encoder_layer_3.self_attention.in_proj_bias", "blocks.3.attn.qkv.bias"),
        ("encoder.layers.encoder_layer_3.mlp.3.weight", "blocks.3.mlp.fc2.weight"),
        ("heads.head.weight", "head.weight"),
        ("transformer.resblocks.0.mlp.c_fc.bias", "blocks.0.mlp.fc1.bias"),
        ("vit.pooler.dense.bias", "pre_logits.fc.bias"),
        ("classifier.weight", "head.weight"),
        ("classifier.running_mean", None),
        ("vit.encoder.layer.0.unknown.weight", None),
        ("encoder.layer.12345.norm1.weight", None),
    ],
)
def test_names_of_transformers(theirs: str, ours: str | None) -> None:
    assert our_name(theirs) == ours


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("cls", "cls_token"),
        ("pos_embedding", "pos_embed"),
        ("embedding/kernel", "patch_embed.proj.weight"),
        ("Transformer/encoder_norm/scale", "norm.weight"),
        ("Transformer/encoderblock_3/MlpBlock_3/Dense_1/bias", "blocks.3.mlp.fc2.bias"),
        ("Transformer/encoderblock_3/MlpBlock_0/Dense_0/kernel", "blocks.3.mlp.fc1.weight"),
        (
            "Transformer/encoderblock_10/MultiHeadDotProductAttention_0/out/kernel",
            "blocks.10.attn.proj.weight",
        ),
        ("conv_root/kernel", "patch_embed.backbone.stem.conv.weight"),
        ("block1/unit01/conv2/kernel", "patch_embed.backbone.stages.0.blocks.0.conv2.weight"),
        ("block3/unit12/gn3/scale", "patch_embed.backbone.stages.2.blocks.11.norm3.weight"),
        (
            "block2/unit1/conv_proj/kernel",
            "patch_embed.backbone.stages.1.blocks.0.downsample.conv.weight",
        ),
        (
            "block2/unit1/gn_proj/bias",
            "patch_embed.backbone.stages.1.blocks.0.downsample.norm.bias",
        ),
        ("embedding/mean", None),
        ("other/kernel", None),
    ],
)
def test_names_of_google(theirs: str, ours: str | None) -> None:
    assert our_name(theirs) == ours


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blocks.0.attn.q.weight", (6, 2, 3), (6, 6)),
        ("blocks.0.attn.k.bias", (2, 3), (6,)),
        ("blocks.0.attn.proj.weight", (2, 3, 5), (5, 6)),
        ("patch_embed.proj.weight", (4, 8, 3, 5), (5, 3, 4, 8)),
        ("patch_embed.backbone.stem.norm.weight", (1, 1, 1, 7), (7,)),
        ("head.weight", (3, 4), (4, 3)),
        ("head.bias", (4,), (4,)),
        ("norm.weight", (4,), (4,)),
        ("pos_embed", (1, 5, 4), (1, 5, 4)),
    ],
)
def test_arrays_of_flax_are_transposed(
    name: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    array = torch.randn(shape)

    found = from_flax(name, array)

    assert found.shape == expected
    assert torch.equal(found.flatten().sort()[0], array.flatten().sort()[0])
    x = torch.randn(6)
    if name == "blocks.0.attn.q.weight":  # head 1, its dimension 2
        assert (found @ x)[5].item() == pytest.approx((x @ array[:, 1, 2]).item(), abs=1e-5)
    if name == "blocks.0.attn.proj.weight":
        value = torch.einsum("hk,hkd->d", x.view(2, 3), array)
        assert torch.allclose(found @ x, value, atol=1e-5)
    if name == "patch_embed.proj.weight":
        assert found[4, 2, 1, 7] == array[1, 7, 2, 4]


def test_stacked_blocks_are_taken_apart() -> None:
    place = "Transformer/encoderblock"
    stack = torch.arange(6.0).view(3, 2)

    found = unstacked({f"{place}/LayerNorm_0/bias": stack, "cls": stack})

    assert [*found] == ["cls", *(f"{place}_{i}/LayerNorm_0/bias" for i in range(3))]
    assert found[f"{place}_2/LayerNorm_0/bias"].tolist() == [4, 5]


def test_queries_keys_and_values_are_joined_in_this_order() -> None:
    place = "blocks.0.attn."

    found = fuse_qkv(named(f"{place}v.weight", "x", f"{place}q.weight", f"{place}k.weight"))

    assert [*found] == [f"{place}qkv.weight", "x"]
    assert found[f"{place}qkv.weight"][:, 0].tolist() == [3, 3, 4, 4, 1, 1]
    with pytest.raises(WeightsError, match=rf"do not match: {place}k\.weight, {place}v\.weight"):
        fuse_qkv(named(f"{place}q.weight"))
    other = named(f"{place}v.bias", f"{place}q.bias") | {f"{place}k.bias": torch.zeros(3)}
    with pytest.raises(WeightsError, match=rf"{place}q\.bias, {place}k\.bias, {place}v\.bias"):
        fuse_qkv(other)


def test_only_floating_point_numbers_are_weights() -> None:
    found = in_float32({"a": torch.ones(2, 3).half().T})

    assert found["a"].dtype == torch.float32
    assert found["a"].is_contiguous()
    with pytest.raises(WeightsError, match=r"b has dtype torch.int8"):
        in_float32({"a": torch.ones(1), "b": torch.ones(1, dtype=torch.int8)})


@pytest.mark.parametrize("registers", [True, False])
def test_registers_take_the_position_of_the_class_token_into_it(registers: bool) -> None:
    tensors = {
        "embeddings.cls_token": torch.full((1, 1, 2), 1.0),
        "embeddings.position_embeddings": torch.arange(10.0).view(1, 5, 2) + 5,
        "embeddings.mask_token": torch.zeros(1, 2),
        **({"embeddings.register_tokens": torch.zeros(1, 3, 2)} if registers else {}),
    }

    found = convert(tensors)

    assert found.flavour == "hf"
    assert found.dropped == ("embeddings.mask_token (1, 2)",)
    assert not found.is_naflex
    assert ("reg_token" in found.tensors) == registers
    assert found.tensors["cls_token"].tolist() == ([[[6, 7]]] if registers else [[[1, 1]]])
    assert found.tensors["pos_embed"].shape == (1, 4 if registers else 5, 2)
    assert found.tensors["pos_embed"][0, -1].tolist() == [13, 14]


def test_a_tensor_without_a_counterpart_is_refused_with_the_likely_cause() -> None:
    with pytest.raises(WeightsError, match=r"unknown tensors: a.q_norm; this suggests normalised"):
        convert(named("cls_token", "a.q_norm"))
    with pytest.raises(
        WeightsError, match=r"unknown tensors: surprise$|unknown tensors: surprise\n"
    ):
        convert(named("cls_token", "surprise"))


@pytest.mark.parametrize("width", [2, 4])
def test_heads_are_read_from_the_kernels_of_google(width: int) -> None:
    place = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1"
    tensors = {"embedding/kernel": torch.zeros(1, 1, 3, 2 * width)}
    tensors |= {f"{place}/{part}/kernel": torch.zeros(2 * width, 2, width)
                for part in ("query", "key", "value")}  # fmt: skip

    found = convert(tensors)

    assert (found.flavour, found.heads) == ("npz", 2)
    assert found.tensors["blocks.0.attn.qkv.weight"].shape == (6 * width, 2 * width)
    assert convert({"embedding/kernel": tensors["embedding/kernel"]}).heads is None


def test_the_root_of_a_stem_without_stages_has_a_shorter_name() -> None:
    tensors = {
        "embedding/kernel": torch.zeros(1, 1, 64, 8),
        "conv_root/kernel": torch.zeros(7, 7, 3, 64),
    }
    unit = {"block1/unit1/conv1/kernel": torch.zeros(1, 1, 64, 64)}

    assert "patch_embed.backbone.conv.weight" in convert(tensors).tensors
    assert "patch_embed.backbone.stem.conv.weight" in convert(tensors | unit).tensors


# vision towers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("embeddings.class_embedding", "cls_token"),
        ("embeddings.patch_embedding.bias", "patch_embed.proj.bias"),
        ("pre_layrnorm.weight", "norm_pre.weight"),
        ("encoder.layers.3.self_attn.q_proj.bias", "blocks.3.attn.q.bias"),
        ("model.layer.12.attention.o_proj.weight", "blocks.12.attn.proj.weight"),
        ("layer.0.layer_scale2.lambda1", "blocks.0.ls2.gamma"),
        ("layer.0.mlp.gate_proj.weight", "blocks.0.mlp.fc1_g.weight"),
        ("head.mlp.fc2.weight", "attn_pool.mlp.fc2.weight"),
        ("layer.0.surprise.weight", None),
        ("surprise", None),
    ],
)
def test_names_of_towers(theirs: str, ours: str | None) -> None:
    assert our_name(theirs) == ours


def test_a_linear_projection_of_square_patches_becomes_kernels() -> None:
    def kernels(weight: Tensor) -> Tensor:
        return tower_layout({"patch_embed.proj.weight": weight}, is_naflex=True)[
            "patch_embed.proj.weight"
        ]

    weight = torch.arange(24.0).view(2, 12)

    assert kernels(weight).shape == (2, 3, 2, 2)
    assert kernels(weight)[1, 2, 0, 1] == weight[1, 5]  # row 0, column 1, channel 2
    assert kernels(torch.zeros(2, 18)).shape == (2, 18)


def test_the_projection_of_attention_pooling_is_split_into_query_and_the_rest() -> None:
    found = tower_layout(
        {f"attn_pool.qkv.{leaf}": torch.arange(6.0) for leaf in ("weight", "bias")}
    )

    assert found["attn_pool.q.weight"].tolist() == [0, 1]
    assert found["attn_pool.kv.bias"].tolist() == [2, 3, 4, 5]
    assert len(found) == 4


def test_keys_without_biases_get_zeros_and_others_keep_theirs() -> None:
    tensors = named("blocks.0.attn.q.bias", "blocks.1.attn.q.bias", "blocks.1.attn.k.bias")

    found = tower_layout(tensors)

    assert not found["blocks.0.attn.k.bias"].any()
    assert bool((found["blocks.1.attn.k.bias"] == 3).all())


def test_the_text_tower_is_described_and_not_used() -> None:
    tensors = {
        "vision_model.embeddings.class_embedding": torch.ones(4),
        "vision_model.embeddings.position_embedding.weight": torch.ones(5, 4),
        "vision_model.encoder.layers.0.mlp.up_proj.weight": torch.ones(8, 4),
        "vision_model.embeddings.patch_embedding.weight": torch.ones(4, 3, 2, 2),
        "text_model.x": torch.ones(2),
        "text_model.y": torch.ones(2),
        "logit_scale": torch.ones(()),
        "embeddings.mask_token": torch.ones(1, 4),
    }

    found = convert(tensors)

    assert found.dropped == (
        "text_model (2 tensors)", "logit_scale ()", "embeddings.mask_token (1, 4)",
    )  # fmt: skip
    assert found.tensors["cls_token"].shape == (1, 1, 4)
    assert found.tensors["pos_embed"].shape == (1, 5, 4)
    assert "blocks.0.mlp.fc1.weight" in found.tensors  # without a gate
