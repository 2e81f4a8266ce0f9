"""What timm and transformers can build, and the settings with which they build it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_model

from tests.conftest import draw_folder, tiny
from vitft.cli.main import main
from vitft.export import unsupported_part
from vitft.models import RopeConfig, TimmConfig
from vitft.predict import Predictor

RMS: dict[str, Any] = {"norm_layer": "rmsnorm", "gated_mlp": True, "norm_eps": 1e-5}
ROPE: dict[str, Any] = {"rope": RopeConfig(), "positions": False}


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"pre_logits": True}, "pre_logits (a Linear + Tanh before the head)"),
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
        ({**RMS, "pool": "map"}, "RMSNorm with attention pooling or rotary position embeddings"),
        ({**RMS, **ROPE}, "RMSNorm with attention pooling or rotary position embeddings"),
        (
            {"patch_norm": True},
            "a norm after the patch projection without RMSNorm or without a bias",
        ),
        (
            {**RMS, "patch_norm": True, "embed_norm": True},
            "a norm after the patch projection without RMSNorm or without a bias",
        ),
        (
            {**ROPE, "proj_bias": False},
            "rotary position embeddings or SwiGLU in layers without biases",
        ),
        (
            {**ROPE, "activation": "quick_gelu"},
            "rotary position embeddings or SwiGLU without the activation GELU",
        ),
        (
            {"gated_mlp": True, "pool": "map", "class_token": False, "activation": "gelu_tanh"},
            "rotary position embeddings or SwiGLU without the activation GELU",
        ),
        ({"positions": False}, "neither learned nor rotary positions"),
    ],
)
def test_timm_cannot_build_these_parts(fields: dict[str, Any], part: str) -> None:
    found = unsupported_part("timm", tiny(3, **fields))

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
    assert unsupported_part("timm", tiny(3, **fields)) == ""


def test_only_timm_can_build_its_own_models() -> None:
    network = TimmConfig(timm="test_resnet", image_size=(32, 32), num_classes=3)

    assert unsupported_part("timm", network) == ""
    for form in ("transformers", "html"):
        assert "a network of timm" in unsupported_part(form, network)


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
    found = unsupported_part("transformers", tiny(3, **fields))

    words = f"the model has {part}, which ViTForImageClassification does not support"
    assert found == (words if part else "")


# the page ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"pool": "map", "class_token": False}, "attention pooling"),
        ({"rope": RopeConfig()}, "rotary position embeddings"),
        ({"gated_mlp": True}, "a SwiGLU MLP"),
        ({"norm_layer": "rmsnorm"}, "RMSNorm"),
        ({"final_norm": False}, "no final LayerNorm"),
        ({"mlp_norm": True}, "additional LayerNorms"),
        ({"proj_bias": False}, "layers without biases"),
        ({"positions": False}, "no learned position embeddings"),
        ({"stem": (), "patch_size": (8, 8)}, "a hybrid stem"),
        ({"convs": (8, 8)}, "a convolutional stem"),
        ({"norm": "post", "registers": 2, "layer_scale": 0.1}, ""),
    ],
)
def test_the_page_cannot_run_these_parts(fields: dict[str, Any], part: str) -> None:
    found = unsupported_part("html", tiny(3, **fields))

    assert found == (f"the model has {part}, which the page does not support" if part else "")


# from timm and back ------------------------------------------------------------------------------


def test_a_fine_tuned_hybrid_from_a_file_of_timm_goes_back_to_timm(tmp_path: Path) -> None:
    name, data = "vit_tiny_r_s16_p8_224", draw_folder(tmp_path / "data", per_class=2)
    original = timm.create_model(name, num_classes=0, img_size=32)
    file, run, out = tmp_path / f"{name}.safetensors", tmp_path / "run", tmp_path / "out"
    save_model(original, str(file))
    words = ["--weights", str(file), "--image-size", "32", "--train", "all", "--epochs", "1"]

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
