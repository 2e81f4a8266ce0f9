"""Tensors under the names of tools that need not be installed, by value.

The golden checkpoints have those of torchvision and transformers.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.contract.built.weights import TORCHVISION, hugging_face, renamed, state
from vitft.models import open_pretrained
from vitft.system import WeightsError

OLDER_TORCHVISION = TORCHVISION | {"mlp.fc1": "mlp.linear_1", "mlp.fc2": "mlp.linear_2"}
OPENAI = {
    "cls_token": "class_embedding",
    "pos_embed": "positional_embedding",
    "patch_embed.proj": "conv1",
    "blocks.": "transformer.resblocks.",
    "norm1": "ln_1",
    "norm2": "ln_2",
    "attn.qkv.": "attn.in_proj_",
    "attn.proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "norm_pre": "ln_pre",
}


def check_tensors(folder: Path, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.clone() for name, tensor in theirs.items()}, folder / "any.safetensors")
    found = open_pretrained(folder / "any.safetensors").tensors
    assert found.keys() == ours.keys()
    for name, tensor in ours.items():
        assert torch.equal(found[name], tensor), name


def test_names_of_older_torchvision(tmp_path: Path) -> None:
    check_tensors(tmp_path, renamed(OLDER_TORCHVISION, "encoder.ln"), state())


def test_names_of_openai(tmp_path: Path) -> None:
    absent = ("head.weight", "head.bias", "patch_embed.proj.bias")
    ours = {name: tensor for name, tensor in state().items() if name not in absent}
    before = {"weight": torch.full((64,), 2.0), "bias": torch.full((64,), 3.0)}
    theirs = renamed(OPENAI, "ln_post")
    for name in ("head.weight", "head.bias", "conv1.bias"):
        del theirs[name]
    theirs["class_embedding"] = ours["cls_token"][0, 0]
    theirs["positional_embedding"] = ours["pos_embed"][0]
    theirs |= {f"ln_pre.{name}": tensor for name, tensor in before.items()}
    unused = {"proj": torch.ones(64, 8), "logit_scale": torch.ones(1)}

    ours |= {f"norm_pre.{name}": tensor for name, tensor in before.items()}
    check_tensors(tmp_path, theirs | unused, ours)


def test_registers_take_the_position_of_the_class_token_into_it(tmp_path: Path) -> None:
    ours, theirs = state(), hugging_face()
    theirs["vit.embeddings.register_tokens"] = ours["reg_token"] = torch.ones(1, 3, 64)
    ours["cls_token"] = ours["cls_token"] + ours["pos_embed"][:, :1]
    ours["pos_embed"] = ours["pos_embed"][:, 1:]
    for block in (0, 1):
        for place in (1, 2):
            gamma = torch.full((64,), block + place / 10)
            ours[f"blocks.{block}.ls{place}.gamma"] = gamma
            theirs[f"vit.encoder.layer.{block}.layer_scale{place}.lambda1"] = gamma

    check_tensors(tmp_path, theirs, ours)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"vit.encoder.layer.0.surprise": (1,)}, "unknown tensors: vit.encoder.layer.0.surprise"),
        ({"vit.encoder.layer.0.q_norm": (1,)}, "unknown tensors: vit.encoder.layer.0.q_norm"),
        ({"vit.encoder.layer.12345.layernorm_before.bias": (64,)}, "unknown tensors"),
        ({"layernorm.bias": (64,)}, "two tensors in the file map to norm.bias"),
        ({"vit.encoder.layer.1.attention.attention.key.bias": (63,)}, "blocks.1.attn.k_proj.bias"),
        (
            {"vit.encoder.layer.2.attention.attention.key.bias": (64,)},
            "unknown tensors: blocks.2.attn.k_proj.bias",
        ),
    ],
)
def test_a_tensor_without_a_counterpart_is_refused(
    tmp_path: Path, more: Mapping[str, tuple[int, ...]], problem: str
) -> None:
    theirs = hugging_face() | {name: torch.zeros(shape) for name, shape in more.items()}
    save_file({n: t.clone() for n, t in theirs.items()}, tmp_path / "any.safetensors")

    with pytest.raises(WeightsError) as caught:
        open_pretrained(tmp_path / "any.safetensors")

    assert problem in caught.value.problem


def test_weights_of_half_precision_are_widened(tmp_path: Path) -> None:
    tensors = state()
    exact = {name: tensor.half().float() for name, tensor in tensors.items()}

    check_tensors(tmp_path, {n: t.half() for n, t in tensors.items()}, exact)
