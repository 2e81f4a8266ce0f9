"""Vision towers of transformers, with random weights: the same features in vitft's own model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.models.test_later_parts import randomised
from vitft import load_pretrained

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"patch_size": 8}
HIDDEN: dict[str, Any] = {**SIZES, "intermediate_size": 64, "image_size": 32}


def dinov3(**fields: Any) -> Any:
    config = transformers.DINOv3ViTConfig(**HIDDEN, num_register_tokens=4, **fields)
    return transformers.DINOv3ViTModel(config)


def dinov2(**fields: Any) -> Any:
    config = transformers.Dinov2Config(**SIZES, mlp_ratio=2, image_size=32, **fields)
    return transformers.Dinov2Model(config)


def clip() -> Any:
    return transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**HIDDEN))


def siglip() -> Any:
    """Return the class that opens SigLIP, and SigLIP 2 of a fixed resolution."""
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**HIDDEN))


def siglip2() -> Any:
    """Return SigLIP 2 NaFlex, trained with any number of patches around 4 x 4."""
    config = transformers.Siglip2VisionConfig(**SIZES, intermediate_size=64, num_patches=16)
    return transformers.Siglip2VisionModel(config)


def naflex_inputs(images: Tensor, patch: int = 8) -> dict[str, Tensor]:
    """Return images (B, 3, H, W) as NaFlex's image processor does: rows of patches, all valid."""
    patches = images.unfold(2, patch, patch).unfold(3, patch, patch)  # (B, 3, gh, gw, p, p)
    grid = patches.shape[2:4]
    rows = patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)  # (B, P, p*p*3)
    return {
        "pixel_values": rows,
        "pixel_attention_mask": torch.ones(rows.shape[:2], dtype=torch.int32),
        "spatial_shapes": torch.tensor([grid] * len(images)),
    }


TOWERS = {
    "DINOv3": lambda: dinov3(),
    "DINOv3 S+": lambda: dinov3(use_gated_mlp=True, hidden_act="silu"),
    "DINOv2": lambda: dinov2(),
    "DINOv2 giant": lambda: dinov2(use_swiglu_ffn=True),
    "CLIP": clip,
    "SigLIP 2": siglip,
    "SigLIP 2 NaFlex": siglip2,
}


def write_tower(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def images_of(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, (32, 32)) for name in TOWERS), ("DINOv3", (40, 16)),
        ("SigLIP 2 NaFlex", (16, 40)), ("SigLIP 2 NaFlex", (64, 24)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}x{value[1]}",
)  # fmt: skip
@torch.no_grad()
def test_a_tower_of_transformers_gives_the_same_features(
    name: str, size: tuple[int, int], tmp_path: Path
) -> None:
    theirs, images = randomised(TOWERS[name]()), images_of(*size)

    ours, report = load_pretrained(write_tower(theirs, tmp_path), image_size=size)
    inputs = naflex_inputs(images) if "NaFlex" in name else {"pixel_values": images}
    expected = theirs(**inputs).pooler_output

    assert report.flavour == "hf"
    if "NaFlex" in name:
        assert ours.config.pool == "map"
        assert ("bilinear" in report.positions) == (size != (32, 32))
    assert (ours(images) - expected).abs().max() <= 1e-6 * max(1, float(expected.abs().max()))


@torch.no_grad()
def test_the_vision_tower_of_a_whole_clip_model_is_used_and_its_text_tower_is_not(
    tmp_path: Path,
) -> None:
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    config = transformers.CLIPConfig(
        text_config={**text, "intermediate_size": 16}, vision_config=HIDDEN, projection_dim=8
    )
    theirs = randomised(transformers.CLIPModel(config))
    images = images_of(32, 32)

    ours, report = load_pretrained(write_tower(theirs, tmp_path))

    expected = theirs.vision_model(images).pooler_output
    assert (ours(images) - expected).abs().max() <= 1e-5
    assert ours.config.activation == "quick_gelu"
    assert any(name.startswith("text_model (") for name in report.dropped)
    assert any(name.startswith("visual_projection.weight") for name in report.dropped)
