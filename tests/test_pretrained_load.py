"""Weights of every flavour compute here what they compute at home, and the report tells all."""

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
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor

from tests.conftest import random_timm
from vitft import load_pretrained
from vitft.checkpoint import Card, save_checkpoint
from vitft.errors import UsageError, WeightsError
from vitft.model import VisionTransformer, ViTConfig
from vitft.transforms import EvalTransform

SHARED = Path(__file__).parents[2] / "shared"
SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 4}
CONFIG = ViTConfig(
    image_size=(32, 32), patch_size=(8, 8), width=192, depth=2, heads=3, num_classes=7
)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def random_weights(config: ViTConfig) -> dict[str, Tensor]:
    """A state dict without zeros: heads, biases and class tokens matter as well."""
    random = torch.Generator().manual_seed(0)
    state = VisionTransformer(config).state_dict()
    return {
        name: torch.randn(tensor.shape, generator=random) * 0.05 + float("norm" in name)
        for name, tensor in state.items()
    }


def hf_folder(root: Path, kind: str, **options: object) -> tuple[Any, Path]:
    """A random transformers model and the folder that it was saved to."""
    fields: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "image_size": 32,
        "patch_size": 8,
        "layer_norm_eps": 1e-6,
        "num_labels": 5,
    }
    config = transformers.ViTConfig(**(fields | options))
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and positions start as zeros
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(root)
    return model, root


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


# Google's .npz


def google_arrays(config: ViTConfig, state: dict[str, Tensor]) -> dict[str, Any]:
    """Our tensors in the layout of vit_jax, written out name by name."""
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


@torch.no_grad()
def test_googles_npz_computes_what_timms_own_loader_makes_of_it(
    tmp_path: Path, images: Tensor
) -> None:
    config = replace(CONFIG, width=64, heads=4)
    file = tmp_path / "ViT-test.npz"
    np.savez(file, **google_arrays(config, random_weights(config)))
    options: dict[str, Any] = {"img_size": 32, "patch_size": 8, "num_classes": 7, **SMALL}

    theirs = timm.create_model("vit_tiny_patch16_224", checkpoint_path=str(file), **options).eval()
    ours, report = load_pretrained(file)

    assert (ours(images) - theirs(images)).abs().max() <= 1e-5
    assert ours.config.heads == 4  # the layout shows them
    assert (report.flavour, report.loaded) == ("npz", len(ours.state_dict()))


@torch.no_grad()
@pytest.mark.parametrize("renaming", ["vit_jax", "big_vision"])
def test_an_npz_with_pre_logits_is_read_to_the_last_tensor(
    renaming: str, tmp_path: Path, images: Tensor
) -> None:
    config = replace(CONFIG, pre_logits=True)
    state = random_weights(config)
    arrays = google_arrays(config, state)
    if renaming == "big_vision":
        for old, new in (("LayerNorm_2", "LayerNorm_1"), ("MlpBlock_3", "MlpBlock_0"), (
            "Attention_1/", "Attention_0/"), ("Transformer/posembed_input/", "")):  # fmt: skip
            arrays = {name.replace(old, new): array for name, array in arrays.items()}
        arrays = {f"params/{name}": array for name, array in arrays.items()}
    np.savez(tmp_path / "vit.npz", **arrays)

    ours, _ = load_pretrained(tmp_path / "vit.npz", pre_logits="keep")

    assert ours.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())


# timm, old and new


@torch.no_grad()
def test_an_old_jx_file_keeps_its_pre_logits_or_drops_them(tmp_path: Path, images: Tensor) -> None:
    config = replace(CONFIG, pre_logits=True)
    state = random_weights(config)
    file = tmp_path / "jx_vit_base_patch16_224_in21k-e5005f0a.pth"
    torch.save(state, file)

    kept, first = load_pretrained(file, allow_pickle=True, pre_logits="keep")
    dropped, second = load_pretrained(file, allow_pickle=True, num_classes=5)

    reference = VisionTransformer(config).eval()
    reference.load_state_dict(state)
    assert torch.equal(kept(images), reference(images))
    assert (first.pre_logits, second.pre_logits) == ("kept", "dropped")
    assert "pre_logits.fc.weight (192, 192)" in second.dropped
    assert not dropped(images).any()  # a zero head


def test_a_head_behind_pre_logits_is_not_kept_without_them(tmp_path: Path) -> None:
    save_file(random_weights(replace(CONFIG, pre_logits=True)), tmp_path / "model.safetensors")

    with pytest.raises(WeightsError, match=r"trained behind pre_logits.*\n.*give num_classes"):
        load_pretrained(tmp_path)


def test_pre_logits_that_are_not_there_cannot_be_kept(tmp_path: Path) -> None:
    save_file(random_weights(CONFIG), tmp_path / "model.safetensors")

    with pytest.raises(WeightsError, match=r"has no pre_logits to keep.*\n.*in21k"):
        load_pretrained(tmp_path, num_classes=5, pre_logits="keep")


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
@pytest.mark.parametrize("prefix", ["module.", "model.", "module._orig_mod."])
def test_what_training_scripts_wrap_around_weights_comes_off(
    wrapper: str, prefix: str, tmp_path: Path
) -> None:
    state = random_weights(CONFIG)
    wrapped = {wrapper: {prefix + name: tensor for name, tensor in state.items()}, "epoch": 3}
    torch.save(wrapped, tmp_path / "last.pt")

    model, _ = load_pretrained(tmp_path / "last.pt", allow_pickle=True)

    assert model.state_dict().keys() == state.keys()


@torch.no_grad()
def test_another_image_size_computes_what_timm_computes(tmp_path: Path) -> None:
    small = random_timm("vit_tiny_patch16_224", 64, **SMALL)
    save_file(small.state_dict(), tmp_path / "model.safetensors")
    write_timm_config(tmp_path, model_args={"num_heads": 4})
    images = torch.randn(2, 3, 96, 160)

    large = random_timm("vit_tiny_patch16_224", (96, 160), **SMALL)
    large.load_state_dict(checkpoint_filter_fn(small.state_dict(), large))
    ours, report = load_pretrained(tmp_path, image_size=(96, 160))

    assert (ours(images) - large(images)).abs().max() <= 1e-5
    assert report.positions == "4x4 -> 6x10, bicubic"
    assert report.transform.image_size == (96, 160)


def write_timm_config(folder: Path, **fields: object) -> None:
    cfg = {"mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2], "crop_pct": 1.0}
    table = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": cfg, **fields}
    (folder / "config.json").write_text(json.dumps(table))


def test_half_precision_weights_become_float32(tmp_path: Path) -> None:
    state = {name: tensor.half() for name, tensor in random_weights(CONFIG).items()}
    save_file(state, tmp_path / "model.safetensors")

    model, _ = load_pretrained(tmp_path)

    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


# our own


def test_our_own_checkpoint_brings_its_card(tmp_path: Path, images: Tensor) -> None:
    transform = EvalTransform(image_size=(32, 32), mean=(0.1,) * 3, std=(0.3,) * 3, crop=0.8)
    card = Card(
        architecture=replace(CONFIG, pool="mean", heads=2, drop_path=0.1),
        transform=transform,
        classes=tuple("abcdefg"),
        weights={"name": "vit_tiny_patch16_224.augreg_in21k"},
    )
    state = random_weights(card.architecture)
    save_checkpoint(tmp_path / "model.safetensors", state, card)

    model, report = load_pretrained(tmp_path)

    assert model.config == replace(card.architecture, drop_path=0.0)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert (report.flavour, report.transform, report.classes) == ("vitft", transform, card.classes)
    assert report.provenance["from"] == "vit_tiny_patch16_224.augreg_in21k"


def test_our_own_checkpoint_is_verified(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    card = Card(architecture=CONFIG, transform=EvalTransform(image_size=(32, 32)))
    save_checkpoint(file, random_weights(CONFIG), card)
    content = bytearray(file.read_bytes())
    content[-1000] ^= 1
    file.write_bytes(content)

    with pytest.raises(WeightsError, match=r"damaged checkpoint.*sha256"):
        load_pretrained(tmp_path)


# the report


def test_num_classes_always_gives_a_new_zero_head(tmp_path: Path, images: Tensor) -> None:
    save_file(random_weights(CONFIG), tmp_path / "model.safetensors")

    model, report = load_pretrained(tmp_path, num_classes=7, drop_path=0.1)

    assert not model(images).any()
    assert report.head == "new, 7 classes, zero"
    assert report.dropped == ("head.bias (7,)", "head.weight (7, 192)")
    assert model.config.drop_path == 0.1
    assert not model.training


def test_the_report_says_everything_in_lines(tmp_path: Path) -> None:
    file = tmp_path / "vit.safetensors"
    save_file(random_weights(CONFIG), file)

    _, report = load_pretrained(file, num_classes=3, image_size=64, pos_embed="jax")

    assert [line.split(":")[0] for line in report.lines()] == [
        "weights", "model", "loaded", "dropped", "head", "pre_logits", "positions", "pixels",
    ]  # fmt: skip
    assert report.positions == "4x4 -> 8x8, jax"
    assert report.architecture == "ViT/8 64 px, 2 blocks 192 wide, 3 heads"
    assert report.provenance["name"] == "vit"
    assert len(report.provenance["sha256"]) == 64


def test_statistics_come_from_the_user_then_the_file_then_nowhere(tmp_path: Path) -> None:
    save_file(random_weights(CONFIG), tmp_path / "model.safetensors")

    _, unstated = load_pretrained(tmp_path)
    write_timm_config(tmp_path)
    _, stated = load_pretrained(tmp_path)
    _, given = load_pretrained(tmp_path, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))

    assert unstated.transform.mean == (0.5, 0.5, 0.5)
    assert "0.5 assumed" in unstated.statistics_source
    assert stated.transform.std == (0.2, 0.2, 0.2)
    assert stated.statistics_source == f"from {tmp_path / 'config.json'}"
    assert given.transform.mean == (0.1, 0.2, 0.3)
    assert given.statistics_source == "as given by --mean and --std"
    assert given.transform.crop == 1.0  # still the file's


def test_one_mean_is_not_enough(tmp_path: Path) -> None:
    save_file(random_weights(CONFIG), tmp_path / "model.safetensors")

    with pytest.raises(UsageError, match=r"for 3 channels\n.*one number per channel"):
        load_pretrained(tmp_path, mean=(0.5,), std=(0.5,))


def test_a_zeroed_head_is_noticed(tmp_path: Path) -> None:
    state = random_weights(CONFIG)
    state["head.weight"].zero_()
    save_file(state, tmp_path / "model.safetensors")

    _, report = load_pretrained(tmp_path)

    assert any("all zeros" in note for note in report.notes)


# the real weights


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="no real weights beside the checkout")
@torch.no_grad()
def test_the_real_vit_tiny_gives_the_golden_logits_and_top_five() -> None:
    folder = SHARED / "weights" / "vit_tiny_patch16_224"
    expected = load_file(folder / "expected.safetensors")

    model, report = load_pretrained(folder)
    logits = model(expected["input"])

    assert (logits - expected["logits"][:4]).abs().max() <= 1e-4
    assert torch.equal(logits.topk(5).indices, expected["logits"][:4].topk(5).indices)
    assert report.architecture == "ViT-Ti/16 224 px"
    assert report.parameters == 5_717_416


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="no real weights beside the checkout")
@torch.no_grad()
def test_the_real_vit_tiny_sees_the_golden_features_in_the_photos_themselves() -> None:
    from PIL import Image, ImageOps

    folder = SHARED / "weights" / "vit_tiny_patch16_224"
    expected = load_file(folder / "expected.safetensors")
    facts = json.loads((folder / "expected.json").read_text())
    model, report = load_pretrained(folder)

    views = []
    for name in facts["files"]:
        with Image.open(SHARED / "data" / name, formats=["JPEG"]) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
            views.append(torch.from_numpy(report.transform.pixels(upright)))
    features = model.pool(model.encode(model.embed(report.transform.normalise(torch.stack(views)))))
    logits = model.classify(features)

    assert (features - expected["cls_feature"]).abs().max() <= 1e-4
    assert (logits - expected["logits"]).abs().max() <= 1e-4
    assert torch.equal(logits.topk(5).indices, expected["logits"].topk(5).indices)
