"""timm's plain ViTs in vitft's own model: one architecture per family.

Each network is timm's own, 32 wide and with two blocks, so what makes the family different stays.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.models.pretrained.test_flavours import write_timm_config
from vitft import create_model, load_pretrained
from vitft.data import EvalTransform
from vitft.export import ExportPlan, TimmFormat, TrainedRun
from vitft.features import cut_model
from vitft.models import Card, VisionTransformer, build_model, from_timm_names, network_config
from vitft.system import UsageError

FAMILIES = [
    "aimv2_large_patch14_224", "beit3_base_patch16_224", "deit3_small_patch16_224",
    "deit_tiny_distilled_patch16_224", "eva02_base_patch14_448", "eva02_base_patch16_clip_224",
    "eva02_tiny_patch14_336", "eva_giant_patch14_224", "eva_giant_patch14_clip_224",
    "eva_large_patch14_196", "flexivit_small", "vit_base_patch16_radio_v3",
    "vit_base_patch16_siglip_224", "vit_giant_patch14_reg4_dinov2", "vit_giant_patch16_lingbot",
    "vit_intern300m_patch14_448", "vit_mediumd_patch16_rope_reg1_gap_256",
    "vit_pe_core_tiny_patch16_384", "vit_pe_lang_large_patch14_448",
    "vit_pe_spatial_tiny_patch16_512", "vit_small_patch16_dinov3_qkvb",
    "vit_small_patch16_rope_224", "vit_small_patch16_rope_ape_224", "vit_small_plus_patch16_dinov3",
    "vit_so400m_patch16_siglip_256", "vit_base_patch16_224_miil", "vit_base_patch16_clip_224",
    "vit_base_patch32_clip_quickgelu_224", "vit_base_patch16_siglip_gap_224",
    "vit_so400m_patch16_siglip_gap_256", "vit_medium_patch16_gap_256",
    "vit_medium_patch16_reg4_gap_256", "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_36x1_224", "vit_so400m_patch14_reg1_tipsv2", "vit_tiny_patch16_224",
]  # fmt: skip
GRIDS = [(3, 3), (2, 4)]


def small_timm(name: str, grid: tuple[int, int], *, width: int = 32, depth: int = 2) -> Any:
    """Return timm's network `name`, small and with random weights, for a grid."""
    patch = 14 if "patch14" in name else 32 if "patch32" in name else 16
    sizes = {"img_size": tuple(side * patch for side in grid), "embed_dim": width, "depth": depth}
    net = timm.create_model(name, **sizes, num_heads=2, num_classes=3).eval()
    random = torch.Generator().manual_seed(0)
    for key, parameter in net.named_parameters():
        is_gain = "norm" in key and key.endswith("weight")
        parameter.data.normal_(mean=float(is_gain), std=0.2, generator=random)
    return net


def translated(
    name: str, grid: tuple[int, int] = (2, 4), **sizes: int
) -> tuple[Any, VisionTransformer, Tensor]:
    """Return timm's small network, ours with the same weights, and two images."""
    theirs = small_timm(name, grid, **sizes)
    ours = build_model(from_timm_names(theirs.state_dict()), network_config(theirs))
    images = torch.randn(2, 3, *ours.config.image_size, generator=torch.Generator().manual_seed(1))
    return theirs, ours, images


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_translated_network_computes_what_timms_computes(
    name: str, grid: tuple[int, int]
) -> None:
    theirs, ours, images = translated(name, grid)

    expected = theirs(images)

    assert (ours(images) - expected).abs().max() <= 1e-6
    assert expected.abs().max() > 0.1  # it says something


@pytest.mark.parametrize("blocks", [0, 1, 2])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_cut_model_of_every_family_equals_the_whole_model(name: str, blocks: int) -> None:
    _, ours, images = translated(name)
    cut = cut_model(ours, f"blocks:{blocks}" if blocks else "head")
    assert cut.prefix is not None

    logits = cut.suffix(cut.prefix(images))

    assert cut.prefix(images).shape[1:] == cut.prefix.shape
    assert torch.allclose(logits, ours(images), atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_an_export_of_every_family_is_opened_by_timm_or_refused(name: str, tmp_path: Path) -> None:
    _, ours, images = translated(name)
    transform = EvalTransform(image_size=ours.config.image_size)
    card = Card(architecture=ours.config, transform=transform, classes=("a", "b", "c"))
    trained = TrainedRun(tmp_path, ours.state_dict(), card)
    form = TimmFormat(trained, ExportPlan(formats=(), out=tmp_path))

    if "distilled" in name:
        assert "a distillation token" in form.obstacle()
        return
    assert not form.obstacle()
    form.write(tmp_path)
    opened = form.open(tmp_path)

    assert opened.outputs.classes == ("a", "b", "c")
    assert opened.logits(images.numpy()) == pytest.approx(ours(images).numpy(), abs=1e-5)
    again, _ = load_pretrained(tmp_path)
    assert torch.allclose(again(images), ours(images), atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_file_of_every_family_is_opened_with_timms_config(name: str, tmp_path: Path) -> None:
    theirs, ours, images = translated(name)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    size = list(ours.config.image_size)
    arguments = {"num_heads": 2, "img_size": size}
    if "pe_core" in name:
        arguments["attn_pool_num_heads"] = 8
    write_timm_config(tmp_path, architecture=name, model_args=arguments)

    opened, _ = load_pretrained(tmp_path)

    assert opened.config == replace(ours.config, layer_scale=opened.config.layer_scale)
    assert torch.equal(opened(images), ours(images))


# names --------------------------------------------------------------------------------------------


REFUSALS = [
    ("resnet50", r"not a plain Vision Transformer \(resnet in timm\)"),
    ("vit_small_patch16_rope_mixed_224", r"unsupported layers \(RotaryEmbeddingMixed\)"),
    ("vit_base_patch16_sapiens2", r"unknown tensors: blocks\.0\.attn\.k_norm\.weight"),
    ("vit_dwee_patch16_reg1_gap_256", r"unsupported layers \(DiffAttention\)"),
    ("vit_base_patch16_rpn_224", r"unsupported layers \(ResPostBlock\)"),
    ("vit_so400m_patch14_siglip_384", r"384 pixels\) is not a multiple"),
]


@pytest.mark.parametrize(("name", "reason"), REFUSALS)
def test_an_architecture_that_is_not_supported_is_refused_with_the_reason_and_the_way_out(
    name: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=f"does not support {name}: .*{reason}") as caught:
        create_model(name)

    assert f"use timm:{name} " in caught.value.fix
