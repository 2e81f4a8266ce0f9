"""Tensors of transformers' vision towers (CLIP, SigLIP, SigLIP 2, DINOv3) under vitft's names.

The towers of CLIP and SigLIP are often stored together with a text tower, which is not used.
Queries, keys and values still have separate names (q, k and v).

Notation: D width, N tokens.

Source: transformers' `modeling_clip.py`, `modeling_siglip.py`, `modeling_siglip2.py` and
`modeling_dinov3_vit.py`.
"""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from vitft.models.timm_names import from_timm_names

TOWER_OUTER: Mapping[str, str] = {
    "embeddings.class_embedding": "cls_token",
    "embeddings.cls_token": "cls_token",
    "embeddings.register_tokens": "reg_token",
    "embeddings.position_embedding.weight": "pos_embed",
    "embeddings.patch_embedding": "patch_embed.proj",
    "embeddings.patch_embeddings": "patch_embed.proj",
    "pre_layrnorm": "norm_pre",  # spelled like this in transformers
    "post_layernorm": "norm",
    "norm": "norm",
    "head.probe": "attn_pool.latent",
    "head.attention.out_proj": "attn_pool.proj",
    "head.layernorm": "attn_pool.norm",
    "head.mlp.fc1": "attn_pool.mlp.fc1",
    "head.mlp.fc2": "attn_pool.mlp.fc2",
}
TOWER_BLOCK: Mapping[str, str] = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "norm1": "norm1",
    "norm2": "norm2",
    "self_attn.out_proj": "attn.proj",
    "attention.o_proj": "attn.proj",
    **{f"{name}.{letter}_proj": f"attn.{letter}" for name in ("self_attn", "attention")
       for letter in "qkv"},
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.gate_proj": "mlp.fc1_g",
    "mlp.up_proj": "mlp.fc1_x",
    "mlp.down_proj": "mlp.fc2",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}  # fmt: skip
UNUSED = re.compile(r"(text_model|text_projection|visual_projection|logit_(scale|bias))(\.|$)")
"""Pattern for tensors of the text tower and of the comparison between images and texts."""


def is_tower(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether these are the tensors of a vision tower of CLIP, SigLIP or DINOv3."""
    signs = ("embeddings.patch_embedding.weight", "embeddings.patch_embeddings.weight")
    return any(name.removeprefix("vision_model.") in signs for name in tensors)


def is_naflex(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether these are the tensors of a SigLIP 2 NaFlex model.

    Its patches are projected by a linear layer instead of a convolution. Images may have any number
    of patches, for which the position embeddings are resampled bilinearly.
    """
    sign = "embeddings.patch_embedding.weight"
    return any(n.removeprefix("vision_model.") == sign and t.ndim == 2 for n, t in tensors.items())


def patch_kernels(weight: Tensor) -> Tensor:
    """Return a linear projection of RGB patches (D, h*w*3) as kernels (D, 3, h, w) with h = w.

    The weight is returned unchanged if the patches are not square.
    """
    side = math.isqrt(weight.shape[1] // 3)
    if 3 * side**2 != weight.shape[1]:
        return weight
    return weight.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)


def tower_tensors(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return a vision tower's tensors under vitft's names, and descriptions of unused tensors.

    An unused tensor is described by its name and shape. Unknown names are not changed.
    """
    result: dict[str, Tensor] = {}
    unused: list[str] = []
    for name, tensor in tensors.items():
        if UNUSED.match(name) or name == "embeddings.mask_token":
            unused.append(f"{name} {tuple(tensor.shape)}")
        else:
            result[tower_name(name.removeprefix("vision_model."))] = tensor
    for name in ("cls_token", "pos_embed"):  # (D,) or (N, D) in CLIP and SigLIP
        if name in result:
            result[name] = result[name].reshape(1, -1, result[name].shape[-1])
    if is_naflex(tensors):
        result["patch_embed.proj.weight"] = patch_kernels(result["patch_embed.proj.weight"])
    split_pooling(result)
    has_gate = any(".mlp.fc1_g." in name for name in result)
    if not has_gate:
        result = {name.replace(".mlp.fc1_x.", ".mlp.fc1."): t for name, t in result.items()}
    add_key_biases(result)
    return from_timm_names(result), tuple(unused)


def tower_name(name: str) -> str:
    """Return vitft's name for a tensor, or the given name if it is unknown."""
    if name in TOWER_OUTER:
        return TOWER_OUTER[name]
    block = re.fullmatch(r"(?:model\.|encoder\.)?layers?\.(\d{1,4})\.(.+)", name)
    if block and block[2] in TOWER_BLOCK:
        return f"blocks.{int(block[1])}.{TOWER_BLOCK[block[2]]}"
    stem, _, leaf = (block[2] if block else name).rpartition(".")
    ours = (TOWER_BLOCK if block else TOWER_OUTER).get(stem)
    if ours is None:
        return name
    return f"blocks.{int(block[1])}.{ours}.{leaf}" if block else f"{ours}.{leaf}"


def split_pooling(tensors: dict[str, Tensor]) -> None:
    """Split the input projection of attention pooling (3 * D rows) as in timm, in place."""
    for leaf in ("weight", "bias"):
        fused = tensors.pop(f"head.attention.in_proj_{leaf}", None)
        if fused is not None:
            width = fused.shape[0] // 3
            tensors[f"attn_pool.q.{leaf}"] = fused[:width]
            tensors[f"attn_pool.kv.{leaf}"] = fused[width:]


def add_key_biases(tensors: dict[str, Tensor]) -> None:
    """Add zero biases for the keys, which have no biases in DINOv3, in place."""
    for name in [n for n in tensors if n.endswith(".attn.q.bias")]:
        tensors.setdefault(name.replace(".q.", ".k."), torch.zeros_like(tensors[name]))
