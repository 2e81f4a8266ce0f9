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


GELU = "rotary position embeddings or SwiGLU without the activation GELU"
NORMED = "a norm after the patch projection without RMSNorm or without a bias"
ROOTED = "RMSNorm without SwiGLU or with an eps other than 1e-5"
TURNED = "RMSNorm with attention pooling or rotary position embeddings"
TANH: dict[str, Any] = {"pool": "map", "class_token": False, "activation": "gelu_tanh"}
HYBRID: dict[str, Any] = {"stem": (), "patch_size": (8, 8)}
NOT_PLAIN: list[tuple[dict[str, Any], str]] = [
    ({"pool": "map", "class_token": False}, "attention pooling"),
    ({"rope": RopeConfig()}, "rotary position embeddings"),
    ({"gated_mlp": True}, "a SwiGLU MLP"),
    ({"norm_layer": "rmsnorm"}, "RMSNorm"),
    ({"final_norm": False}, "no final LayerNorm"),
    ({"mlp_norm": True}, "additional LayerNorms"),
    ({"proj_bias": False}, "layers without biases"),
    ({"positions": False}, "no learned position embeddings"),
    (HYBRID, "a hybrid stem"),
    ({"convs": (8, 8)}, "a convolutional stem"),
]
PARTS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "the timm format": [
        ({"pre_logits": True}, "pre_logits (a Linear + Tanh before the head)"),
        ({"norm": "post"}, "a post-norm encoder"),
        ({"distilled": True}, "a distillation token"),
        ({"norm_eps": 1e-12}, "a LayerNorm eps other than 1e-6 or 1e-5"),
        ({**HYBRID, "norm_eps": 1e-5}, "a hybrid stem with a LayerNorm eps of 1e-5"),
        ({**HYBRID, "stem": (1,)}, "a non-standard ResNet stem"),
        ({"convs": (8, 8)}, "a convolutional stem"),
        ({"norm_layer": "rmsnorm", "norm_eps": 1e-5}, ROOTED),
        ({**RMS, "norm_eps": 1e-6}, ROOTED),
        ({**RMS, "pool": "map"}, TURNED),
        ({**RMS, **ROPE}, TURNED),
        ({"patch_norm": True}, NORMED),
        ({**RMS, "patch_norm": True, "embed_norm": True}, NORMED),
        (
            {**ROPE, "proj_bias": False},
            "rotary position embeddings or SwiGLU in layers without biases",
        ),
        ({**ROPE, "activation": "quick_gelu"}, GELU),
        ({**TANH, "gated_mlp": True}, GELU),
        ({"positions": False}, "neither learned nor rotary positions"),
        *(
            (fields, "")
            for fields in (
                *({}, {"norm_eps": 1e-5}, HYBRID, {"embed_norm": True}, TANH, RMS, ROPE),
                *({"activation": "quick_gelu"}, {"proj_bias": False}, {"final_norm": False}),
                *({"layer_scale": 0.1, "registers": 4}, {"attn_norm": True, "mlp_norm": True}),
                *({"rope": RopeConfig()}, {"gated_mlp": True}, {**RMS, "activation": "quick_gelu"}),
                {**RMS, "patch_norm": True, "proj_bias": False},
                {**ROPE, "gated_mlp": True, "activation": "quick_gelu"},
            )
        ),
    ],
    "ViTForImageClassification": [
        *NOT_PLAIN,
        ({"pre_logits": True}, "pre_logits (a Linear + Tanh before the head)"),
        ({"pool": "mean"}, "mean pooling"),
        ({"attn_norm": True}, "additional LayerNorms"),
        ({"patch_norm": True}, "additional LayerNorms"),
        ({"embed_norm": True}, "a LayerNorm before the first block"),
        ({"layer_scale": 0.1}, "LayerScale"),
        ({"registers": 1}, "registers"),
        ({"norm": "post"}, "a post-norm encoder"),
        ({"distilled": True}, "a distillation token"),
        ({"prefix_positions": False}, "position embeddings for the patches only"),
        ({}, ""),
        ({"norm_eps": 1e-3, "qkv_bias": False, "activation": "quick_gelu"}, ""),
    ],
    "the page": [*NOT_PLAIN, ({"norm": "post", "registers": 2, "layer_scale": 0.1}, "")],
}


@pytest.mark.parametrize(
    ("name", "fields", "part"),
    [(name, fields, part) for name, found in PARTS.items() for fields, part in found],
)
def test_a_part_that_a_format_cannot_contain_is_named(
    name: str, fields: dict[str, Any], part: str
) -> None:
    forms = {"the timm format": "timm", "the page": "html"}

    found = unsupported_part(forms.get(name, "transformers"), tiny(3, **fields))

    assert found == (f"the model has {part}, which {name} does not support" if part else "")


def test_only_timm_can_build_its_own_models() -> None:
    network = TimmConfig(timm="test_resnet", image_size=(32, 32), num_classes=3)

    assert unsupported_part("timm", network) == ""
    for form in ("transformers", "html"):
        assert "a network of timm" in unsupported_part(form, network)


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
