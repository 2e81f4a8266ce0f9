"""The stem of hybrids: the same outputs as timm."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from tests.conftest import fill, save_model
from vitft import load_pretrained
from vitft.models import VisionTransformer, ViTConfig, architecture_config, build_model
from vitft.system import UsageError, WeightsError


def random_hybrid(name: str, image_size: tuple[int, int], **options: Any) -> Any:
    """timm's hybrid of that name with random weights; norms stay near one."""
    model = timm.create_model(name, img_size=image_size, num_classes=10, **options)
    noise = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0)) * 0.02
    for offset, (key, tensor) in enumerate(model.state_dict().items()):
        centre = float("norm" in key and "weight" in key)
        fill(tensor, noise.roll(7919 * offset), centre=centre)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "image_size", "limit"),
    [
        pytest.param("vit_tiny_r_s16_p8_224", (224, 224), 1e-5, id="R+Ti/16"),
        pytest.param("vit_small_r26_s32_224", (96, 160), 1e-5, id="R26+S/32"),
        # 16 bottlenecks add up rounding: on noise, the last digits of GroupNorm differ.
        pytest.param("vit_base_r50_s16_224", (64, 96), 1e-4, id="R50+B/16"),
        pytest.param("vit_large_r50_s32_224", (64, 64), 1e-4, id="R50+L/32"),
    ],
)
@torch.no_grad()
def test_logits_of_a_hybrid_equal_timms(
    name: str, image_size: tuple[int, int], limit: float
) -> None:
    theirs = random_hybrid(name, image_size, depth=2)
    config = replace(architecture_config(name), image_size=image_size, depth=2, num_classes=10)
    ours = build_model(theirs.state_dict(), config)
    images = torch.randn(1, 3, *image_size, generator=torch.Generator().manual_seed(1))

    assert (ours(images) - theirs(images)).abs().max() <= limit


def test_other_patches_never_change_the_strides_of_trained_convolutions(tmp_path: Path) -> None:
    config = ViTConfig(image_size=(24, 24), patch_size=(4, 4), convs=(8, 8), width=8, depth=1,
                       heads=2)  # fmt: skip
    save_model(tmp_path / "m.safetensors", VisionTransformer(config))

    twice, _ = load_pretrained(tmp_path / "m.safetensors", patch_size=8)

    assert twice.patch_embed.proj.weight.shape == (8, 8, 2, 2)
    with pytest.raises(UsageError, match=r"supports patch size \(4, 4\), but not \(6, 6\)"):
        load_pretrained(tmp_path / "m.safetensors", patch_size=6)


@pytest.mark.parametrize("other", ["3", "10"], ids=["a gap", "two digits"])
def test_a_hybrid_file_with_other_stages_is_refused(tmp_path: Path, other: str) -> None:
    config = ViTConfig(image_size=(32, 32), patch_size=(16, 16), stem=(1, 1), width=64, depth=1,
                       heads=1)  # fmt: skip
    state = VisionTransformer(config).state_dict()
    renamed = {name.replace("stages.1.", f"stages.{other}."): t for name, t in state.items()}
    save_file(renamed, tmp_path / "m.safetensors")

    with pytest.raises(WeightsError):
        load_pretrained(tmp_path / "m.safetensors")


def test_a_model_behind_convolutions_trains_down_to_its_first_kernel() -> None:
    model = VisionTransformer(
        ViTConfig(image_size=(8, 8), patch_size=(4, 4), convs=(8, 12), width=8, depth=1, heads=2)
    )
    assert isinstance(model.head, nn.Linear)
    nn.init.normal_(model.head.weight)

    model(torch.randn(2, 3, 8, 8)).sum().backward()

    first = model.patch_embed.backbone.get_parameter("0.conv.weight")
    assert first.grad is not None
    assert bool(first.grad.any())
