"""Weights of every format give the same outputs as in the library that they come from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.contract.built.weights import random_weights
from tests.models.test_stem import random_hybrid
from vitft import load_pretrained
from vitft.data import EvalTransform
from vitft.models import ViTConfig, find_model, load_classifier
from vitft.system import RunError, WeightsError

SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 4}
CONFIG = ViTConfig(
    image_size=(32, 32), patch_size=(8, 8), width=192, depth=2, heads=3, num_classes=7
)


SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"image_size": 32, "patch_size": 8}


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def write_timm_config(folder: Path, **fields: object) -> None:
    cfg = {"mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2], "crop_pct": 1.0}
    table = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": cfg, **fields}
    (folder / "config.json").write_text(json.dumps(table))


def hf_folder(root: Path, kind: str, **options: object) -> tuple[Any, Path]:
    """Return a random transformers model and the folder with its files."""
    fields: dict[str, Any] = {"intermediate_size": 128, "layer_norm_eps": 1e-6, "num_labels": 5}
    config = transformers.ViTConfig(**(SIZES | fields | options))
    return random_and_saved(getattr(transformers, kind)(config), root), root


def random_and_saved(model: Any, folder: Path) -> Any:
    """Write a transformers model with random numbers also where it starts with zeros."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(folder)
    return model.eval()


# Hugging Face


@torch.no_grad()
def test_the_pooler_of_a_saved_hf_vit_is_our_pre_logits(tmp_path: Path, images: Tensor) -> None:
    theirs, folder = hf_folder(tmp_path, "ViTModel")

    ours, report = load_pretrained(folder, pre_logits="keep")

    pooled = ours.pre_logits(ours.pool(ours.encode(ours.embed(images))))
    assert (pooled - theirs(images).pooler_output).abs().max() <= 1e-5
    assert (report.flavour, report.pre_logits) == ("hf", "kept")
    assert report.head.startswith("none")


@torch.no_grad()
def test_both_spellings_of_hf_names_are_read(tmp_path: Path, images: Tensor) -> None:
    theirs, folder = hf_folder(tmp_path, "ViTModel")
    old = load_file(folder / "model.safetensors")
    new = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    assert any("attention.attention.query" in name for name in old)
    assert any("attention.q_proj" in name for name in new)

    first, _ = load_pretrained(folder)
    save_file(new, folder / "model.safetensors")
    second, _ = load_pretrained(folder)

    assert torch.equal(first(images), second(images))


@torch.no_grad()
def test_the_logits_of_a_saved_hf_classifier_are_ours(tmp_path: Path, images: Tensor) -> None:
    names = {0: "rose", 1: "tulip", 2: "daisy", 3: "lily", 4: "iris"}
    theirs, folder = hf_folder(tmp_path, "ViTForImageClassification", id2label=names)
    transformers.ViTImageProcessorPil(
        size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]
    ).save_pretrained(folder)

    ours, report = load_pretrained(folder)

    assert (ours(images) - theirs(images).logits).abs().max() <= 1e-5
    assert report.classes == tuple(names.values())
    assert report.head == "kept, 5 classes"
    assert report.transform == EvalTransform(
        image_size=(32, 32),
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        interpolation="bilinear",
        fit="squash",
        crop=1.0,
    )
    assert "preprocessor_config.json" in report.statistics_source


@torch.no_grad()
def test_the_epsilon_that_a_hf_config_states_is_used(tmp_path: Path, images: Tensor) -> None:
    theirs, folder = hf_folder(tmp_path, "ViTForImageClassification", layer_norm_eps=0.1)

    ours, _ = load_pretrained(folder)

    assert ours.config.norm_eps == 0.1
    assert (ours(images) - theirs(images).logits).abs().max() <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Dinov2", "Dinov2WithRegisters"])
def test_a_hf_dinov2_gives_its_features(kind: str, tmp_path: Path, images: Tensor) -> None:
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    theirs = random_and_saved(getattr(transformers, f"{kind}Model")(config), tmp_path)

    ours, report = load_pretrained(tmp_path)

    assert (ours(images) - theirs(images).pooler_output).abs().max() <= 1e-5
    assert report.dropped == ("embeddings.mask_token (1, 64)",)
    assert ours.config.registers == (4 if "Registers" in kind else 0)


@torch.no_grad()
def test_a_hf_distilled_deit_averages_its_heads(tmp_path: Path, images: Tensor) -> None:
    config = transformers.DeiTConfig(**SIZES, layer_norm_eps=1e-6)
    theirs = random_and_saved(transformers.DeiTForImageClassificationWithTeacher(config), tmp_path)

    ours, report = load_pretrained(tmp_path)

    assert (ours(images) - theirs(images).logits).abs().max() <= 1e-5
    assert "distilled" in report.architecture


TEXT: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT |= {"intermediate_size": 16, "vocab_size": 9, "bos_token_id": 1, "eos_token_id": 2}


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Dinov2", r"wrong shape: head.weight \(5, 128\) instead of \(5, 64\)"),
        ("DeiT", "missing: head_dist.weight"),
        ("CLIP", "the mean of the patch tokens"),
        ("Siglip", "the mean of the patch tokens"),
    ],
)
def test_a_hf_head_on_another_feature_is_not_used(
    kind: str, reason: str, tmp_path: Path, images: Tensor
) -> None:
    is_tower = kind in ("CLIP", "Siglip")
    fields = {"vision_config": SIZES, "text_config": TEXT} if is_tower else SIZES
    names = dict(enumerate("abcde"))
    config = getattr(transformers, f"{kind}Config")(**fields, id2label=names)
    model = getattr(transformers, f"{kind}ForImageClassification")
    theirs = random_and_saved(model(config), tmp_path)

    ours, report = load_pretrained(tmp_path, num_classes=0)

    if is_tower:
        expected = theirs.vision_model(images).pooler_output
    else:
        expected = theirs.base_model(images).last_hidden_state[:, 0]
    assert (ours(images) - expected).abs().max() <= 1e-5
    assert "head.bias (5,)" in report.dropped
    with pytest.raises(WeightsError, match=f"cannot use the head of .*{reason}"):
        load_pretrained(tmp_path)
    with pytest.raises(RunError, match=f"cannot classify with .*{reason}"):
        load_classifier(find_model(str(tmp_path)))


# Google's .npz


def google_arrays(config: ViTConfig, state: dict[str, Tensor]) -> dict[str, Any]:
    """Return our tensors under the names and in the layout of vit_jax."""
    width, heads = config.width, config.heads
    split = (width, heads, width // heads)
    arrays = {
        "cls": state["cls_token"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "embedding/kernel": state["patch_embed.proj.weight"].permute(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
        "head/kernel": state["head.weight"].T,
        "head/bias": state["head.bias"],
    }
    if config.pre_logits:
        arrays["pre_logits/kernel"] = state["pre_logits.fc.weight"].T
        arrays["pre_logits/bias"] = state["pre_logits.fc.bias"]
    for i in range(config.depth):
        block, there = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        for number, norm in ((0, "norm1"), (2, "norm2")):
            arrays[f"{there}/LayerNorm_{number}/scale"] = state[f"{block}.{norm}.weight"]
            arrays[f"{there}/LayerNorm_{number}/bias"] = state[f"{block}.{norm}.bias"]
        attention = f"{there}/MultiHeadDotProductAttention_1"
        weights = state[f"{block}.attn.qkv.weight"].split(width)
        biases = state[f"{block}.attn.qkv.bias"].split(width)
        for part, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            arrays[f"{attention}/{part}/kernel"] = weight.T.reshape(split)
            arrays[f"{attention}/{part}/bias"] = bias.reshape(split[1:])
        out = state[f"{block}.attn.proj.weight"].T
        arrays[f"{attention}/out/kernel"] = out.reshape(*split[1:], width)
        arrays[f"{attention}/out/bias"] = state[f"{block}.attn.proj.bias"]
        for number in (0, 1):
            dense, layer = f"{there}/MlpBlock_3/Dense_{number}", f"{block}.mlp.fc{number + 1}"
            arrays[f"{dense}/kernel"] = state[f"{layer}.weight"].T
            arrays[f"{dense}/bias"] = state[f"{layer}.bias"]
    return {name: array.numpy() for name, array in arrays.items()}


BIG_VISION = (
    ("LayerNorm_2", "LayerNorm_1"),
    ("MlpBlock_3", "MlpBlock_0"),
    ("Attention_1/", "Attention_0/"),
    ("Transformer/posembed_input/", ""),
)


def renamed_for_big_vision(arrays: dict[str, Any], *, stacked: bool) -> dict[str, Any]:
    """Return the same arrays under the names of big_vision, per block or stacked over blocks."""
    for old, new in BIG_VISION:
        arrays = {name.replace(old, new): array for name, array in arrays.items()}
    if stacked:
        first = [name for name in arrays if "encoderblock_0/" in name]
        for name in first:
            both = [arrays.pop(name.replace("block_0/", f"block_{i}/")) for i in (0, 1)]
            arrays[name.replace("encoderblock_0/", "encoderblock/")] = np.stack(both)
    return {f"params/{name}": array for name, array in arrays.items()}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["vit_jax", "big_vision", "big_vision, scanned"])
def test_an_npz_of_google_gives_the_outputs_of_timms_loader(
    kind: str, tmp_path: Path, images: Tensor
) -> None:
    config = replace(CONFIG, width=64, heads=4)
    arrays, file = google_arrays(config, random_weights(config)), tmp_path / "ViT-test.npz"
    if kind != "vit_jax":
        arrays = renamed_for_big_vision(arrays, stacked="scanned" in kind)
    np.savez(file, **arrays)
    options: dict[str, Any] = {"img_size": 32, "patch_size": 8, "num_classes": 7, **SMALL}

    theirs = timm.create_model("vit_tiny_patch16_224", checkpoint_path=str(file), **options).eval()
    ours, report = load_pretrained(file)

    assert (ours(images) - theirs(images)).abs().max() <= 1e-5
    assert ours.config.heads == 4  # the layout shows them
    assert (report.flavour, report.loaded) == ("npz", len(ours.state_dict()))


@torch.no_grad()
def test_an_npz_of_a_hybrid_gives_the_outputs_of_timms_loader(tmp_path: Path) -> None:
    theirs = random_hybrid("vit_small_r26_s32_224", (64, 64), depth=2)
    np.savez(tmp_path / "R26_S_32.npz", **google_hybrid(theirs))
    images = torch.randn(1, 3, 64, 64)

    again = timm.create_model(
        "vit_small_r26_s32_224",
        checkpoint_path=str(tmp_path / "R26_S_32.npz"),
        img_size=64,
        depth=2,
        num_classes=10,
    ).eval()
    ours, report = load_pretrained(tmp_path / "R26_S_32.npz")

    assert (again(images) - theirs(images)).abs().max() <= 1e-5  # the file is as timm expects it
    assert (ours(images) - theirs(images)).abs().max() <= 1e-5
    assert report.architecture.endswith("ResNet stem 2-2-2-2")


def google_hybrid(model: Any) -> dict[str, Any]:
    """Return a hybrid of timm in the layout of vit_jax."""
    state = model.state_dict()
    stem = {n: t for n, t in state.items() if "backbone" in n}
    rest = {n: t for n, t in state.items() if "backbone" not in n}
    config = ViTConfig(width=384, depth=2, heads=6, num_classes=10)
    arrays = google_arrays(config, rest)
    for name, tensor in stem.items():
        place = name.removeprefix("patch_embed.backbone.")
        leaf = "kernel" if "conv" in name else "scale" if name.endswith("weight") else "bias"
        array = tensor.permute(2, 3, 1, 0) if tensor.ndim == 4 else tensor.view(1, 1, 1, -1)
        if place.startswith("stem"):
            arrays[f"{'conv' if 'conv' in place else 'gn'}_root/{leaf}"] = array.numpy()
            continue
        _, stage, _, block, part = place.split(".", 4)
        kind = "conv" if "conv" in part else "gn"
        number = "_proj" if "downsample" in part else part[4]
        unit = f"block{int(stage) + 1}/unit{int(block) + 1}"
        arrays[f"{unit}/{kind}{number}/{leaf}"] = array.numpy()
    return arrays


@torch.no_grad()
@pytest.mark.parametrize("renaming", ["vit_jax", "big_vision"])
def test_every_tensor_of_an_npz_with_pre_logits_is_read(
    renaming: str, tmp_path: Path, images: Tensor
) -> None:
    config = replace(CONFIG, pre_logits=True)
    state = random_weights(config)
    arrays = google_arrays(config, state)
    if renaming == "big_vision":
        arrays = renamed_for_big_vision(arrays, stacked=False)
    np.savez(tmp_path / "vit.npz", **arrays)

    ours, _ = load_pretrained(tmp_path / "vit.npz", pre_logits="keep")

    assert ours.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())
