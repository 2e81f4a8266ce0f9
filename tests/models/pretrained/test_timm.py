"""Files of timm, of Meta and of training scripts, at their own size and at others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import resample_patch_embed
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor

from tests.conftest import random_timm
from tests.contract.built.weights import random_weights
from tests.models.pretrained.test_flavours import CONFIG, SMALL, write_timm_config
from vitft import load_pretrained
from vitft.models import VisionTransformer
from vitft.system import WeightsError


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


# timm, old and new


@torch.no_grad()
def test_an_old_jx_file_keeps_its_pre_logits_or_drops_them(tmp_path: Path, images: Tensor) -> None:
    config = replace(CONFIG, pre_logits=True)
    state = random_weights(config)
    file = tmp_path / "jx_vit.pth"
    torch.save(state, file)

    kept, first = load_pretrained(file, allow_pickle=True, pre_logits="keep")
    dropped, second = load_pretrained(file, allow_pickle=True, num_classes=5)
    with pytest.raises(WeightsError, match="works only with its pre_logits layer"):
        load_pretrained(file, allow_pickle=True, pre_logits="drop")

    reference = VisionTransformer(config).eval()
    reference.load_state_dict(state)
    assert torch.equal(kept(images), reference(images))
    assert (first.pre_logits, second.pre_logits) == ("kept", "dropped")
    assert "pre_logits.fc.weight (192, 192)" in second.dropped
    assert not dropped(images).any()  # a zero head


DINOV2 = {"init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True, "num_classes": 0}


@pytest.mark.parametrize(
    ("side", "size", "options", "positions"),
    [
        (64, (96, 160), {}, "4x4 -> 6x10, bicubic"),
        (112, (48, 80), DINOV2, "7x7 -> 3x5, bicubic"),
    ],
)
@torch.no_grad()
def test_another_image_size_computes_what_timm_computes(
    tmp_path: Path, side: int, size: tuple[int, int], options: dict[str, Any], positions: str
) -> None:
    known = random_timm("vit_tiny_patch16_224", side, **SMALL, **options)
    save_file(known.state_dict(), tmp_path / "model.safetensors")
    write_timm_config(tmp_path, model_args={"num_heads": 4})
    images = torch.randn(2, 3, *size)

    theirs = random_timm("vit_tiny_patch16_224", size, **SMALL, **options)
    theirs.load_state_dict(checkpoint_filter_fn(known.state_dict(), theirs))
    ours, report = load_pretrained(tmp_path, image_size=size)

    assert (ours(images) - theirs(images)).abs().max() <= 1e-5
    assert report.positions == positions
    assert report.transform.image_size == size


@torch.no_grad()
def test_metas_own_dinov2_file_is_what_timm_makes_of_it(tmp_path: Path, images: Tensor) -> None:
    config = replace(CONFIG, layer_scale=1e-5, registers=4, num_classes=0)
    state = random_weights(config)
    meta = {n: t for n, t in state.items() if n not in ("reg_token", "pos_embed")}
    meta["register_tokens"] = state["reg_token"]
    meta["pos_embed"] = state["pos_embed"][:, :17]  # Meta's registers have no positions
    meta["mask_token"] = torch.zeros(1, 192)
    torch.save(meta, tmp_path / "dinov2_vits14_reg4_pretrain.pth")
    theirs = random_timm(
        "vit_tiny_patch16_224",
        32,
        depth=2,
        num_classes=0,
        patch_size=8,
        init_values=1e-5,
        reg_tokens=4,
        no_embed_class=True,
    )
    theirs.load_state_dict(checkpoint_filter_fn(dict(meta), theirs))

    ours, report = load_pretrained(tmp_path / "dinov2_vits14_reg4_pretrain.pth", allow_pickle=True)

    assert torch.allclose(ours(images), theirs(images), atol=1e-5)
    assert "mask_token (1, 192)" in report.dropped


@pytest.mark.parametrize("names", [("fc1", "fc2"), ("w12", "w3")], ids=["timm", "Meta"])
def test_a_swiglu_mlp_is_recognised_by_its_shapes(names: tuple[str, str], tmp_path: Path) -> None:
    state = random_weights(replace(CONFIG, layer_scale=1e-5, num_classes=0, gated_mlp=True))
    renamed = {
        name.replace("mlp.fc1", f"mlp.{names[0]}").replace("mlp.fc2", f"mlp.{names[1]}"): tensor
        for name, tensor in state.items()
    }
    save_file(renamed, tmp_path / "model.safetensors")

    model, report = load_pretrained(tmp_path)

    assert model.config.gated_mlp
    assert "SwiGLU" in report.architecture
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())


@torch.no_grad()
def test_a_head_on_the_mean_of_normalised_tokens_is_kept(tmp_path: Path, images: Tensor) -> None:
    save_file(random_weights(CONFIG), tmp_path / "model.safetensors")
    write_timm_config(tmp_path, global_pool="avg")  # and no fc_norm in the file

    model, _ = load_pretrained(tmp_path)

    tokens = model.norm(model.encode(model.embed(images)))
    assert torch.allclose(model(images), model.head(tokens[:, 1:].mean(dim=1)), atol=1e-6)


def test_a_head_on_a_pooling_that_we_do_not_compute_is_not_kept(tmp_path: Path) -> None:
    save_file(random_weights(CONFIG), tmp_path / "model.safetensors")
    write_timm_config(tmp_path, global_pool="avgmax")

    with pytest.raises(WeightsError, match=r"cannot use the head .*: the head expects .* avgmax"):
        load_pretrained(tmp_path)
    model, _ = load_pretrained(tmp_path, num_classes=3)
    assert model.config.pool == "cls"


@torch.no_grad()
def test_a_new_head_on_a_distilled_deit_reads_the_class_token_alone(
    tmp_path: Path, images: Tensor
) -> None:
    state = random_weights(replace(CONFIG, distilled=True))
    save_file(state, tmp_path / "model.safetensors")

    kept, _ = load_pretrained(tmp_path)
    fresh, report = load_pretrained(tmp_path, num_classes=0)

    tokens = kept.norm(kept.encode(kept.embed(images)))
    assert torch.allclose(fresh(images), tokens[:, 0], atol=1e-6)
    assert torch.equal(fresh.state_dict()["reg_token"], state["dist_token"])
    assert {"head_dist.weight (7, 192)", "head.weight (7, 192)"} <= set(report.dropped)
    assert any("is used as a register" in note for note in report.notes)


# other pixels


@torch.no_grad()
@pytest.mark.parametrize("sides", [(8, 8), (16, 16), (4, 4), (8, 16), (6, 6)])
def test_kernels_for_other_patches_are_timms(sides: tuple[int, int], tmp_path: Path) -> None:
    state = random_weights(CONFIG)
    save_file(state, tmp_path / "model.safetensors")
    size = 4 * sides[0], 4 * sides[1]

    ours, report = load_pretrained(tmp_path, patch_size=sides, image_size=size)

    kernel = state["patch_embed.proj.weight"]
    resized = resample_patch_embed(kernel, list(sides))
    assert torch.allclose(ours.patch_embed.proj.weight, resized, atol=1e-4)
    note = f"patch kernels 8x8 -> {sides[0]}x{sides[1]}"
    assert any(note in one for one in report.notes) == (sides != (8, 8))
