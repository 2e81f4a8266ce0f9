"""What timm and transformers can build, and the settings with which they build it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_model

from tests.conftest import draw_folder
from tests.support.export_run import make_run, tiny
from vitft.cli.main import main
from vitft.data.transforms import EvalTransform
from vitft.export.formats.timm import (
    SafetensorsFormat,
    TimmFormat,
    eva_arguments,
    has_other_names,
    is_eva,
    timm_name,
    timm_obstacle,
    timm_preprocessing,
    vit_arguments,
)
from vitft.export.formats.transformers import (
    TransformersFormat,
    hf_config,
    hf_tensors,
    side_or_sides,
)
from vitft.export.trained import load_trained
from vitft.models.card import AnyConfig, Card
from vitft.models.timm_config import TimmConfig
from vitft.models.vit_config import RopeConfig
from vitft.predict.torch_engine import Predictor

RMS: dict[str, Any] = {"norm_layer": "rmsnorm", "gated_mlp": True, "norm_eps": 1e-5}
ROPE: dict[str, Any] = {"rope": RopeConfig(), "positions": False}


def card_of(architecture: AnyConfig, **fields: Any) -> Card:
    usual: dict[str, Any] = {"classes": ("a", "b", "c"), "weights": {"name": "noise"}, "split": ""}
    transform = EvalTransform(image_size=architecture.image_size)
    return Card(architecture=architecture, transform=transform, **{**usual, **fields})


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"pre_logits": True}, "pre_logits"),
        ({"norm": "post"}, "a post-norm encoder"),
        ({"distilled": True}, "a distillation token"),
        ({"norm_eps": 1e-12}, "a LayerNorm eps other than 1e-6 or 1e-5"),
        (
            {"stem": (), "patch_size": (8, 8), "norm_eps": 1e-5},
            "a hybrid stem with a LayerNorm eps of 1e-5",
        ),
        ({"stem": (1,), "patch_size": (8, 8)}, "a non-standard ResNet stem"),
        ({"convs": (8, 8)}, "a convolutional stem"),
        (
            {"norm_layer": "rmsnorm", "norm_eps": 1e-5},
            "RMSNorm without SwiGLU or with an eps other than 1e-5",
        ),
        ({**RMS, "norm_eps": 1e-6}, "RMSNorm without SwiGLU or with an eps other than 1e-5"),
        ({**RMS, "pool": "map"}, "RMSNorm and attention pooling"),
        ({**RMS, **ROPE}, "RMSNorm and rotary position embeddings"),
        ({"patch_norm": True}, "a norm after the patch projection without RMSNorm"),
        (
            {**RMS, "patch_norm": True, "embed_norm": True},
            "a patch projection with a norm but without a bias",
        ),
        (
            {**ROPE, "proj_bias": False},
            "rotary position embeddings or SwiGLU in layers without biases",
        ),
        (
            {**ROPE, "activation": "quick_gelu"},
            "rotary position embeddings or SwiGLU and the activation quick_gelu",
        ),
        (
            {"gated_mlp": True, "pool": "map", "class_token": False, "activation": "gelu_tanh"},
            "rotary position embeddings or SwiGLU and the activation gelu_tanh",
        ),
        ({"positions": False}, "neither learned nor rotary position embeddings"),
    ],
)
def test_timm_cannot_build_these_parts(fields: dict[str, Any], part: str) -> None:
    found = timm_obstacle(card_of(tiny(3, **fields)))

    assert found == f"the model has {part}, which the timm format does not support"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"norm_eps": 1e-5},
        {"stem": (), "patch_size": (8, 8)},
        {"embed_norm": True},
        {"activation": "quick_gelu"},
        {"activation": "gelu_tanh", "pool": "map", "class_token": False},
        {"proj_bias": False},
        {"layer_scale": 0.1, "registers": 4},
        {"attn_norm": True, "mlp_norm": True},
        {"final_norm": False},
        RMS,
        {**RMS, "patch_norm": True, "proj_bias": False},
        {**RMS, "activation": "quick_gelu"},
        ROPE,
        {"rope": RopeConfig()},
        {"gated_mlp": True},
        {**ROPE, "gated_mlp": True, "activation": "quick_gelu"},
    ],
)
def test_timm_can_build_these_parts(fields: dict[str, Any]) -> None:
    assert timm_obstacle(card_of(tiny(3, **fields))) == ""


def test_timm_can_build_its_own_models() -> None:
    card = card_of(TimmConfig(timm="test_resnet", image_size=(32, 32), num_classes=3))

    assert timm_obstacle(card) == ""
    assert not has_other_names(card.architecture)


@pytest.mark.parametrize(
    ("fields", "eva", "others"),
    [
        ({}, False, False),
        ({"pool": "map", "class_token": False}, False, False),
        ({"pool": "map"}, True, True),
        ({"pool": "map", "class_token": False, "registers": 1}, True, True),
        ({"pool": "map", "class_token": False, "pool_heads": 4}, True, True),
        ({"rope": RopeConfig()}, True, True),
        ({"positions": False}, True, True),
        ({"gated_mlp": True}, True, True),
        (RMS, False, True),
        ({"registers": 1}, False, False),
    ],
)
def test_later_parts_need_another_class_of_timm(
    fields: dict[str, Any], *, eva: bool, others: bool
) -> None:
    shape = tiny(3, **fields)

    assert (is_eva(shape), has_other_names(shape)) == (eva, others)


COMMON = {
    "img_size": [16, 24],
    "patch_size": [4, 8],
    "in_chans": 1,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 3.0,
    "qkv_bias": False,
    "no_embed_class": True,
    "global_pool": "avg",
}
SHAPE: dict[str, Any] = {"image_size": (16, 24), "patch_size": (4, 8), "in_channels": 1,
                         "mlp_ratio": 3.0, "qkv_bias": False, "prefix_positions": False,
                         "pool": "mean"}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({}, {}),
        ({"registers": 3}, {"reg_tokens": 3}),
        ({"norm_eps": 1e-5}, {"pre_norm": False}),
        ({"norm_eps": 1e-5, "embed_norm": True}, {"pre_norm": True}),
        ({"embed_norm": True}, {"pre_norm": True}),
        ({"activation": "quick_gelu"}, {"act_layer": "quick_gelu"}),
        ({"class_token": False}, {"class_token": False}),
        ({"norm_before_pool": True}, {"fc_norm": False}),
        ({"final_norm": False}, {"final_norm": False}),
        ({"proj_bias": False}, {"proj_bias": False}),
        ({"attn_norm": True}, {"scale_attn_norm": True}),
        ({"mlp_norm": True}, {"scale_mlp_norm": True}),
        ({"layer_scale": 0.25}, {"init_values": 0.25}),
        ({"pool": "cls"}, {"global_pool": "token"}),
        ({"pool": "map"}, {"global_pool": "map"}),
        ({"prefix_positions": True}, {"no_embed_class": False}),
        (
            {**RMS, "activation": "quick_gelu"},
            {"pre_norm": False, "class_token": True, "proj_bias": True, "fc_norm": True,
             "embed_norm_layer": None},
        ),
        (
            {**RMS, "patch_norm": True, "class_token": False, "norm_before_pool": True},
            {"pre_norm": False, "class_token": False, "proj_bias": True, "fc_norm": False},
        ),
    ],
)  # fmt: skip
def test_settings_of_a_vision_transformer_are_stated_where_they_differ_from_those_of_timm(
    fields: dict[str, Any], more: dict[str, Any]
) -> None:
    shape = tiny(3, **{**SHAPE, **fields})

    assert vit_arguments(shape) == {**COMMON, "reg_tokens": 0, **more}


def test_the_patches_of_a_hybrid_are_counted_in_cells_of_its_stem() -> None:
    shape = tiny(3, stem=(), patch_size=(8, 4), image_size=(16, 24))

    assert vit_arguments(shape)["patch_size"] == [2, 1]


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({}, {}),
        ({"gated_mlp": True}, {"swiglu_mlp": True}),
        ({"mlp_norm": True}, {"scale_mlp": True}),
        ({"attn_norm": True}, {"scale_attn_inner": True}),
        ({"layer_scale": 0.25}, {"init_values": 0.25}),
        ({"class_token": False}, {"class_token": False}),
        ({"registers": 3}, {"num_reg_tokens": 3}),
        ({"positions": True}, {"use_abs_pos_emb": True}),
        ({"embed_norm": True}, {"use_pre_transformer_norm": True}),
        ({"norm_before_pool": True}, {"use_post_transformer_norm": True, "use_fc_norm": False}),
        ({"final_norm": False}, {"use_post_transformer_norm": False, "use_fc_norm": False}),
        ({"pool": "map", "pool_heads": 8},
         {"global_pool": "map", "attn_pool_num_heads": 8, "use_post_transformer_norm": True,
          "use_fc_norm": False}),
        ({"rope": RopeConfig(unit=False, base=1e4, offset=1.0, grid=(5, 7), x_first=True,
                             halves=False)},
         {"rope_type": "cat", "rope_temperature": 1e4, "rope_grid_offset": 1.0,
          "rope_grid_indexing": "xy", "rope_rotate_half": False, "ref_feat_shape": [5, 7]}),
    ],
)  # fmt: skip
def test_settings_of_rotary_models_are_all_stated(
    fields: dict[str, Any], more: dict[str, Any]
) -> None:
    usual: dict[str, Any] = {
        **COMMON,
        "attn_type": "rope",
        "swiglu_mlp": False,
        "swiglu_align_to": 0,
        "scale_mlp": False,
        "scale_attn_inner": False,
        "init_values": None,
        "class_token": True,
        "num_reg_tokens": 0,
        "dynamic_img_size": False,
        "use_abs_pos_emb": False,
        "use_rot_pos_emb": True,
        "use_pre_transformer_norm": False,
        "use_post_transformer_norm": False,
        "use_fc_norm": True,
        "attn_pool_num_heads": 2,
        "attn_pool_mlp_ratio": 3.0,
        "rope_type": "dinov3",
        "rope_temperature": 100.0,
        "rope_grid_offset": 0.0,
        "rope_grid_indexing": "ij",
        "rope_rotate_half": True,
        "ref_feat_shape": None,
    }

    assert eva_arguments(tiny(3, **{**SHAPE, **ROPE, **fields})) == {**usual, **more}


def test_a_model_without_rotary_positions_has_no_settings_of_them() -> None:
    found = eva_arguments(tiny(3, gated_mlp=True))

    assert found["use_rot_pos_emb"] is False
    assert found["use_abs_pos_emb"] is True
    assert not [name for name in found if name.startswith("rope") or name == "ref_feat_shape"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "vit_base_patch16_224"),
        ({"norm_eps": 1e-5}, "vit_base_patch16_clip_224"),
        ({"stem": (), "patch_size": (8, 8)}, "vit_tiny_r_s16_p8_224"),
        (RMS, "aimv2_large_patch14_224"),
        (ROPE, "vit_small_patch16_rope_224"),
        ({**ROPE, "norm_eps": 1e-5}, "vit_small_patch16_dinov3_qkvb"),
        ({"width": 192, "depth": 12, "heads": 3}, "vit_tiny_patch16_224"),
        ({"width": 192, "depth": 11, "heads": 3}, "vit_base_patch16_224"),
        ({"width": 192, "depth": 12, "heads": 6}, "vit_base_patch16_224"),
        ({"width": 96, "depth": 12, "heads": 3}, "vit_base_patch16_224"),
        ({"width": 384, "depth": 12, "heads": 6}, "vit_small_patch16_224"),
        ({"width": 1280, "depth": 32, "heads": 16}, "vit_base_patch16_224"),
    ],
)
def test_the_name_is_that_of_the_nearest_model_of_timm(fields: dict[str, Any], name: str) -> None:
    assert timm_name(tiny(3, **fields)) == name


@pytest.mark.parametrize(
    ("fit", "mode"), [("crop", "center"), ("squash", "squash"), ("pad", "border")]
)
def test_the_transform_has_the_names_of_timm(fit: Any, mode: str) -> None:
    transform = EvalTransform(
        image_size=(16, 24), fit=fit, crop=1.0, interpolation="bilinear", mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
    )  # fmt: skip

    assert timm_preprocessing(transform, 3) == {
        "input_size": [3, 16, 24],
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "crop_mode": mode,
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
    }


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        ({}, {"config.json", "model.safetensors"}),
        ({"norm": "post"}, {"model.safetensors"}),
        ({"gated_mlp": True}, {"model.safetensors"}),
    ],
)
def test_a_checkpoint_has_settings_for_timm_if_timm_can_open_it(
    tmp_path: Path, fields: dict[str, Any], files: set[str]
) -> None:
    trained = load_trained(str(make_run(tmp_path / "made", config=tiny(3, **fields))))
    (tmp_path / "export").mkdir()

    SafetensorsFormat().write(trained, tmp_path / "export")

    assert {path.name for path in (tmp_path / "export").iterdir()} == files
    opened = SafetensorsFormat().open(tmp_path / "export")
    assert (opened.by, opened.classes) == ("vitft", ("blue", "green", "red"))


@pytest.mark.parametrize("run", [{}, {"top1": 0.5}])
def test_a_file_with_names_of_timm_has_the_figures_of_the_run_in_its_settings(
    tmp_path: Path, run: dict[str, Any]
) -> None:
    trained = load_trained(str(make_run(tmp_path / "made", config=tiny(3, gated_mlp=True))))
    figures: Any = run
    trained = replace(trained, card=replace(trained.card, run=figures))
    (tmp_path / "export").mkdir()

    TimmFormat().write(trained, tmp_path / "export")

    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert config.get("vitft_run", {}) == run
    assert config["architecture"] == "vit_small_patch16_rope_224"
    assert (config["num_classes"], config["num_features"]) == (3, 32)
    assert config["label_names"] == ["blue", "green", "red"]
    assert config["pretrained_cfg"]["fixed_input_size"] is True
    assert config["pretrained_cfg"]["custom_load"] is False


# transformers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"pre_logits": True}, "pre_logits (a Linear + Tanh before the head)"),
        ({"pool": "mean"}, "mean pooling"),
        ({"pool": "map"}, "attention pooling"),
        ({"rope": RopeConfig()}, "rotary position embeddings"),
        ({"gated_mlp": True}, "a SwiGLU MLP"),
        ({"norm_layer": "rmsnorm"}, "RMSNorm"),
        ({"final_norm": False}, "no final LayerNorm"),
        ({"attn_norm": True}, "additional LayerNorms"),
        ({"mlp_norm": True}, "additional LayerNorms"),
        ({"patch_norm": True}, "additional LayerNorms"),
        ({"proj_bias": False}, "layers without biases"),
        ({"positions": False}, "no learned position embeddings"),
        ({"embed_norm": True}, "a LayerNorm before the first block"),
        ({"layer_scale": 0.1}, "LayerScale"),
        ({"registers": 1}, "registers"),
        ({"norm": "post"}, "a post-norm encoder"),
        ({"distilled": True}, "a distillation token"),
        ({"prefix_positions": False}, "position embeddings for the patches only"),
        ({"stem": (), "patch_size": (8, 8)}, "a hybrid stem"),
        ({"convs": (8, 8)}, "a convolutional stem"),
        ({}, ""),
        ({"norm_eps": 1e-3, "qkv_bias": False, "activation": "quick_gelu"}, ""),
    ],
)
def test_transformers_cannot_build_these_parts(fields: dict[str, Any], part: str) -> None:
    found = TransformersFormat().obstacle(card_of(tiny(3, **fields)))

    words = f"the model has {part}, which ViTForImageClassification does not support"
    assert found == (words if part else "")


@pytest.mark.parametrize(
    ("activation", "theirs"),
    [("gelu", "gelu"), ("gelu_tanh", "gelu_pytorch_tanh"), ("quick_gelu", "quick_gelu")],
)
def test_the_configuration_has_the_names_of_transformers(activation: Any, theirs: str) -> None:
    shape = tiny(
        2, image_size=(16, 24), mlp_ratio=3.0, norm_eps=1e-5, qkv_bias=False,
        activation=activation, in_channels=1,
    )  # fmt: skip
    card = card_of(shape, classes=("a", "b"))

    found = hf_config(card, shape)

    assert found == {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 96,
        "hidden_act": theirs,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-5,
        "image_size": [16, 24],
        "patch_size": 4,
        "num_channels": 1,
        "qkv_bias": False,
        "id2label": {"0": "a", "1": "b"},
        "label2id": {"a": 0, "b": 1},
        "problem_type": "single_label_classification",
        "dtype": "float32",
    }


def test_the_configuration_states_thresholds_figures_and_the_grey_range() -> None:
    figures: Any = {"top1": 0.5}
    card = card_of(tiny(3), thresholds=(0.25, 0.5, 0.75), run=figures)

    found = hf_config(card, tiny(3))

    assert found["problem_type"] == "multi_label_classification"
    assert found["vitft_thresholds"] == [0.25, 0.5, 0.75]
    assert found["vitft_run"] == {"top1": 0.5}
    assert side_or_sides((16, 16)) == 16
    assert side_or_sides((16, 24)) == [16, 24]


def test_queries_keys_and_values_are_separate_tensors_in_this_order() -> None:
    state = {
        "cls_token": torch.zeros(1),
        "pos_embed": torch.ones(1),
        "patch_embed.proj.weight": torch.full((1,), 2.0),
        "blocks.11.attn.qkv.weight": torch.arange(6.0)[:, None],
        "blocks.11.attn.qkv.bias": torch.arange(6.0),
        "blocks.0.mlp.fc2.bias": torch.full((1,), 3.0),
        "norm.weight": torch.full((1,), 4.0),
        "head.bias": torch.full((1,), 5.0),
    }

    found = {name: tensor.flatten().tolist() for name, tensor in hf_tensors(state).items()}

    layer = "vit.encoder.layer.11.attention.attention"
    assert found == {
        "vit.embeddings.cls_token": [0],
        "vit.embeddings.position_embeddings": [1],
        "vit.embeddings.patch_embeddings.projection.weight": [2],
        f"{layer}.query.weight": [0, 1],
        f"{layer}.key.weight": [2, 3],
        f"{layer}.value.weight": [4, 5],
        f"{layer}.query.bias": [0, 1],
        f"{layer}.key.bias": [2, 3],
        f"{layer}.value.bias": [4, 5],
        "vit.encoder.layer.0.output.dense.bias": [3],
        "vit.layernorm.weight": [4],
        "classifier.bias": [5],
    }


def test_a_fine_tuned_hybrid_from_a_file_of_timm_goes_back_to_timm(tmp_path: Path) -> None:
    name, data = "vit_tiny_r_s16_p8_224", draw_folder(tmp_path / "data", per_class=2)
    original = timm.create_model(name, num_classes=0, img_size=32)
    file, run, out = tmp_path / f"{name}.safetensors", tmp_path / "run", tmp_path / "out"
    save_model(original, str(file))
    words = ["--weights", str(file), "--image-size", "32", "--freeze", "none", "--epochs", "1"]

    assert main(["finetune", "--data", str(data), *words, "--out", str(run)]) == 0
    assert main(["export", "--timm", "--run", str(run), "--out", str(out)]) == 0

    reopened = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    before, after = original.state_dict(), reopened.state_dict()
    stem = next(key for key in after if "backbone" in key and key.endswith("weight"))
    assert not torch.equal(after[stem], before[stem])
    views = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    inputs = torch.from_numpy(views / np.float32(127.5) - 1).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = reopened(inputs.float()).numpy()
    trained = Predictor.from_run(str(run), device="cpu").scores(views).logits
    assert logits == pytest.approx(trained, abs=1e-4)
