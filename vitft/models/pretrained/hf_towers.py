"""Layouts of vision towers (CLIP, SigLIP, SigLIP 2, DINOv3), converted to vitft's.

The tensors have vitft's names, but queries, keys and values still have separate ones (q, k and v).

Notation: D width, N tokens.

Source: transformers' `modeling_clip.py`, `modeling_siglip.py`, `modeling_siglip2.py` and
`modeling_dinov3_vit.py`.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def is_naflex(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether these are the tensors of a SigLIP 2 NaFlex model.

    Its patches are projected by a linear layer instead of a convolution. Images may have any number
    of patches, for which the position embeddings are resampled bilinearly.
    """
    weight = tensors.get("patch_embed.proj.weight")
    return weight is not None and weight.ndim == 2


def patch_kernels(weight: Tensor) -> Tensor:
    """Return a linear projection of RGB patches (D, h*w*3) as kernels (D, 3, h, w) with h = w.

    The weight is returned unchanged if the patches are not square.
    """
    side = math.isqrt(weight.shape[1] // 3)
    if 3 * side**2 != weight.shape[1]:
        return weight
    return weight.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)


def tower_layout(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a tower, or of any model like it, in vitft's layout."""
    result = dict(tensors)
    for name in {"cls_token", "pos_embed"} & result.keys():  # (D,) or (N, D) in CLIP and SigLIP
        result[name] = result[name][(None,) * (3 - result[name].ndim)]
    if is_naflex(tensors):
        result["patch_embed.proj.weight"] = patch_kernels(result["patch_embed.proj.weight"])
    for leaf in ("weight", "bias"):
        fused = result.pop(f"attn_pool.qkv.{leaf}", None)
        if fused is not None:
            width = fused.shape[0] // 3
            result[f"attn_pool.q.{leaf}"] = fused[:width]
            result[f"attn_pool.kv.{leaf}"] = fused[width:]
    if not any(".mlp.fc1_g." in name for name in result):
        result = {name.replace(".mlp.fc1_x.", ".mlp.fc1."): t for name, t in result.items()}
    if "pos_embed" not in result:  # the keys have no biases in DINOv3
        for name in [n for n in result if n.endswith(".attn.q.bias")]:
            result.setdefault(name.replace(".q.", ".k."), torch.zeros_like(result[name]))
    return result
