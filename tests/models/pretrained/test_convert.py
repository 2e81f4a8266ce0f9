"""Tensors under the names of tools that need not be installed, by value."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitft.models import ViTConfig, open_pretrained, vit_shapes
from vitft.system import WeightsError

PLAIN = ViTConfig(image_size=(16, 16), patch_size=(4, 4), width=64, depth=2, heads=1, num_classes=3)
TORCHVISION = {
    r"cls_token": "class_token",
    r"pos_embed": "encoder.pos_embedding",
    r"patch_embed\.proj": "conv_proj",
    r"blocks\.(\d)": r"encoder.layers.encoder_layer_\1",
    r"\.norm(\d)": r".ln_\1",
    r"attn\.qkv\.": "self_attention.in_proj_",
    r"attn\.proj": "self_attention.out_proj",
    r"mlp\.fc1": "mlp.0",
    r"mlp\.fc2": "mlp.3",
    r"^norm": "encoder.ln",
    r"head": "heads.head",
}
OLDER_TORCHVISION = TORCHVISION | {r"mlp\.fc1": "mlp.linear_1", r"mlp\.fc2": "mlp.linear_2"}
OPENAI = {
    r"cls_token": "class_embedding",
    r"pos_embed": "positional_embedding",
    r"patch_embed\.proj": "conv1",
    r"blocks\.(\d)": r"transformer.resblocks.\1",
    r"\.norm(\d)": r".ln_\1",
    r"attn\.qkv\.": "attn.in_proj_",
    r"attn\.proj": "attn.out_proj",
    r"mlp\.fc1": "mlp.c_fc",
    r"mlp\.fc2": "mlp.c_proj",
    r"norm_pre": "ln_pre",
    r"^norm": "ln_post",
}
TRANSFORMERS = {
    r"cls_token": "vit.embeddings.cls_token",
    r"pos_embed": "vit.embeddings.position_embeddings",
    r"patch_embed\.proj": "vit.embeddings.patch_embeddings.projection",
    r"blocks\.(\d)": r"vit.encoder.layer.\1",
    r"\.norm1": ".layernorm_before",
    r"\.norm2": ".layernorm_after",
    r"attn\.proj": "attention.output.dense",
    r"attn\.": "attention.attention.",
    r"mlp\.fc1": "intermediate.dense",
    r"mlp\.fc2": "output.dense",
    r"ls(\d)\.gamma": r"layer_scale\1.lambda1",
    r"^norm": "vit.layernorm",
    r"^head": "classifier",
}


def random_tensors(config: ViTConfig) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = vit_shapes(config).items()
    return {name: torch.randn(facts.shape, generator=random) for name, facts in shapes}


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in tensors.items():
        for ours, theirs in names.items():
            name = re.sub(ours, theirs, name)
        found[name] = tensor
    return found


def parted(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with queries, keys and values apart."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        names = [name.replace("qkv", f"{word}") for word in ("query", "key", "value")]
        parts = tensor.chunk(3) if "qkv" in name else (tensor,)
        found |= dict(zip(names, (part.clone() for part in parts), strict=False))
    return found


def flat(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with class token and positions as in CLIP, without the first dimension."""
    return {n: t.squeeze(0).squeeze(0) if n in ("cls_token", "pos_embed") else t
            for n, t in tensors.items()}  # fmt: skip


def check_tensors(folder: Path, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> None:
    save_file(dict(theirs), folder / "any.safetensors")
    found = open_pretrained(folder / "any.safetensors").tensors
    assert found.keys() == ours.keys()
    for name, tensor in ours.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("names", [TORCHVISION, OLDER_TORCHVISION], ids=["current", "older"])
def test_names_of_torchvision(tmp_path: Path, names: Mapping[str, str]) -> None:
    tensors = random_tensors(PLAIN)

    check_tensors(tmp_path, renamed(tensors, names), tensors)


def test_names_of_openai(tmp_path: Path) -> None:
    config = ViTConfig(image_size=(16, 16), patch_size=(4, 4), width=64, depth=2, heads=1,
                       num_classes=0, embed_norm=True)  # fmt: skip
    tensors = random_tensors(config)
    unused = {"proj": torch.ones(64, 8), "logit_scale": torch.ones(1)}

    check_tensors(tmp_path, renamed(flat(tensors), OPENAI) | unused, tensors)


def test_names_of_transformers(tmp_path: Path) -> None:
    config = ViTConfig(image_size=(16, 16), patch_size=(4, 4), width=64, depth=2, heads=1,
                       num_classes=3, layer_scale=0.1)  # fmt: skip
    tensors = random_tensors(config)

    check_tensors(tmp_path, renamed(parted(tensors), TRANSFORMERS), tensors)


def test_registers_take_the_position_of_the_class_token_into_it(tmp_path: Path) -> None:
    tensors = random_tensors(PLAIN)
    registers = torch.ones(1, 3, 64)
    place = tensors["pos_embed"][:, :1]
    ours = tensors | {"cls_token": tensors["cls_token"] + place, "reg_token": registers}
    ours["pos_embed"] = tensors["pos_embed"][:, 1:]
    theirs = renamed(parted(tensors), TRANSFORMERS)

    check_tensors(tmp_path, theirs | {"vit.embeddings.register_tokens": registers}, ours)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"vit.encoder.layer.0.surprise": (1,)}, "unknown tensors: vit.encoder.layer.0.surprise"),
        ({"vit.encoder.layer.0.q_norm": (1,)}, "normalised queries and keys"),
        ({"vit.encoder.layer.12345.layernorm_before.bias": (64,)}, "unknown tensors"),
        ({"layernorm.bias": (64,)}, "two tensors in the file map to norm.bias"),
        ({"vit.encoder.layer.1.attention.attention.key.bias": (63,)}, "blocks.1.attn.k_proj.bias"),
        ({"vit.encoder.layer.2.attention.attention.key.bias": (64,)}, "values that do not match"),
    ],
)
def test_a_tensor_without_a_counterpart_is_refused(
    tmp_path: Path, more: Mapping[str, tuple[int, ...]], problem: str
) -> None:
    theirs = renamed(parted(random_tensors(PLAIN)), TRANSFORMERS)
    theirs |= {name: torch.zeros(shape) for name, shape in more.items()}
    save_file(theirs, tmp_path / "any.safetensors")

    with pytest.raises(WeightsError) as caught:
        open_pretrained(tmp_path / "any.safetensors")

    assert problem in caught.value.problem


def test_only_floating_point_numbers_are_weights(tmp_path: Path) -> None:
    tensors = random_tensors(PLAIN)
    exact = {name: tensor.half().float() for name, tensor in tensors.items()}

    check_tensors(tmp_path, {n: t.half() for n, t in tensors.items()}, exact)
    with pytest.raises(WeightsError, match=r"norm\.bias has dtype torch.int8"):
        check_tensors(tmp_path, tensors | {"norm.bias": torch.ones(64, dtype=torch.int8)}, {})
