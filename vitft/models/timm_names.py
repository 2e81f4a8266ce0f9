"""Conversion of tensor names and layouts between timm's EVA models and vitft.

vitft's own model has the tensor names of timm's `VisionTransformer`. timm's `Eva`, which also
builds DINOv3, PE and TIPS, names or divides the same weights differently:

- the biases of queries and values are separate tensors, and the keys have none;
- queries, keys and values may have one matrix each, as may the gate and the value of a SwiGLU MLP;
- LayerScale is called `gamma_1` and `gamma_2`.

In vitft's model, each of these has only one form.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_OTHER_NAMES = (
    (re.compile(r"(blocks\.\d+\.)gamma_([12])"), r"\1ls\2.gamma"),
    (re.compile(r"(blocks\.\d+\.mlp\.)w12\b"), r"\1fc1"),  # Meta's DINOv2-giant
    (re.compile(r"(blocks\.\d+\.mlp\.)w3\b"), r"\1fc2"),
)
"""Pairs of a regular expression for a tensor name in another library and vitft's replacement."""


def from_timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a timm network's tensors under vitft's names and in vitft's layout.

    Tensors with vitft's names are left unchanged. If one of the tensors to be
    combined is missing, the others are also left unchanged and are reported later.
    """
    result = {renamed(name): tensor for name, tensor in tensors.items()}
    for name in [n for n in result if n.endswith((".attn.q_bias", ".attn.q_proj.bias"))]:
        place, ending = name.rsplit(".attn.", 1)
        _fuse_biases(result, f"{place}.attn.", ending)
    groups = {
        "attn.q_proj.weight": ("attn.k_proj.weight", "attn.v_proj.weight", "attn.qkv.weight"),
        "mlp.fc1_g.weight": ("mlp.fc1_x.weight", "mlp.fc1.weight"),
        "mlp.fc1_g.bias": ("mlp.fc1_x.bias", "mlp.fc1.bias"),
    }
    for first, (*others, fused) in groups.items():
        for name in [n for n in result if n.endswith(f".{first}")]:
            place = name.removesuffix(first)
            names = [name, *(place + other for other in others)]
            if all(n in result for n in names):
                result[place + fused] = torch.cat([result.pop(n) for n in names])
    return result


def renamed(name: str) -> str:
    """Return vitft's name for a tensor that needs no conversion other than renaming."""
    for pattern, ours in _OTHER_NAMES:
        name = pattern.sub(ours, name)
    return name


def may_rotate(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether timm's names suggest rotary position embeddings, which are not stored.

    A model without learned position embeddings has rotary ones. The other signs are names and
    layouts that occur almost exclusively in published models with rotary position embeddings.
    """
    gated = {n for n in tensors if n.endswith((".mlp.fc1_g.weight", ".attn.q_proj.weight"))}
    first, last = (tensors.get(f"blocks.0.mlp.{n}.weight") for n in ("fc1", "fc2"))
    is_packed = first is not None and last is not None and first.shape[:1] != last.shape[1:]
    has_separate_bias = "blocks.0.attn.q_bias" in tensors
    is_perception_encoder = "norm_pre.weight" in tensors and "attn_pool.latent" in tensors
    return (
        "pos_embed" not in tensors
        or (bool(gated) and "blocks.0.norm1.bias" in tensors)
        or (is_packed and has_separate_bias)
        or is_perception_encoder
        or "blocks.0.gamma_1" in tensors
    )


def _fuse_biases(tensors: dict[str, Tensor], place: str, ending: str) -> None:
    """Replace separate biases of queries and values with one bias for qkv, in place.

    If the keys have no bias, zeros are used. The queries' bias has the name `place` + `ending`.
    """
    query, key, value = (place + letter + ending[1:] for letter in "qkv")
    if value not in tensors:
        return
    zero = torch.zeros_like(tensors[query])
    parts = tensors.pop(query), tensors.pop(key, zero), tensors.pop(value)
    tensors[f"{place}qkv.bias"] = torch.cat(parts)


def to_eva_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's tensors under the names of timm's `Eva` with attn_type="rope"."""
    scaled = {
        re.sub(r"(blocks\.\d+\.)ls([12])\.gamma", r"\1gamma_\2", name): tensor
        for name, tensor in tensors.items()
    }
    first, last = (tensors[f"blocks.0.mlp.{n}.weight"].shape for n in ("fc1", "fc2"))
    is_split = "blocks.0.mlp.norm.weight" in tensors and first[0] == 2 * last[1]
    return split_gates(scaled) if is_split else scaled


def split_gates(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with one matrix for the gates and one for the values of SwiGLU MLPs."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(blocks\.\d+\.mlp\.)fc1\.(weight|bias)", name)
        if found is None:
            result[name] = tensor
            continue
        gate, value = tensor.chunk(2)
        result[f"{found[1]}fc1_g.{found[2]}"] = gate.contiguous()
        result[f"{found[1]}fc1_x.{found[2]}"] = value.contiguous()
    return result
