"""Conversion of other tools' tensor names and layouts to vitft's, which are the same as timm's.

Pure functions over dictionaries of tensors. Every name in a file is converted, listed as dropped or
listed in an error. Shapes are checked elsewhere (`infer`). Values do not change, with one
exception: if the file contains register tokens, the position embedding of the class token is added
to the class token, as in timm.

Notation: D width, H heads, K head width.

Sources: transformers' `modeling_vit.py` (old and new names), `modeling_deit.py` and
`modeling_dinov2.py`; vit_jax `checkpoint.py`, big_vision `models/vit.py` (Google's layout); timm's
`_convert_dinov2` (Meta's names).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitft.models.card import first_five
from vitft.models.pretrained.hf_towers import is_naflex, is_tower, tower_tensors
from vitft.models.timm_names import from_timm_names, may_rotate
from vitft.system.errors import WeightsError

Flavour = Literal["timm", "hf", "npz", "vitft"]

VITFT_NAMES = re.compile(
    r"cls_token|dist_token|reg_token|pos_embed|patch_embed\.(proj|norm)\.(weight|bias)"
    r"|blocks\.\d{1,4}\.(norm1|norm2|attn\.(qkv|norm|proj)|mlp\.(fc1|norm|fc2))\.(weight|bias)"
    r"|blocks\.\d{1,4}\.ls[12]\.gamma"
    r"|attn_pool\.(latent|(q|kv|proj|norm|mlp\.(fc1|norm|fc2))\.(weight|bias))"
    r"|(norm|norm_pre|fc_norm|pre_logits\.fc|head|head_dist)\.(weight|bias)"
    r"|patch_embed\.backbone\.(stem\.)?(conv\.weight|norm\.(weight|bias))"
    r"|patch_embed\.backbone\.stages\.\d\.blocks\.\d{1,2}\."
    r"(conv[123]\.weight|norm[123]\.(weight|bias)|downsample\.(conv\.weight|norm\.(weight|bias)))"
)
"""Pattern for vitft's tensor names, except those of `convs` layers, which only a card describes."""

HF_PREFIX = re.compile(r"^(vit|deit|dinov2|dinov2_with_registers|vision_model)\.")
HF_TOKENS = {
    "embeddings.cls_token": "cls_token",
    "embeddings.distillation_token": "dist_token",
    "embeddings.register_tokens": "register_tokens",
    "embeddings.position_embeddings": "pos_embed",
}
HF_OUTER = {
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "cls_classifier": "head",
    "distillation_classifier": "head_dist",
    "layernorm": "norm",
    "pooler.dense": "pre_logits.fc",
    "classifier": "head",
}
HF_BLOCK = {
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    # names in the files on the hub, which transformers still writes
    "attention.attention.query": "attn.q",
    "attention.attention.key": "attn.k",
    "attention.attention.value": "attn.v",
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    # in-memory names in transformers 5 and later
    "attention.q_proj": "attn.q",
    "attention.k_proj": "attn.k",
    "attention.v_proj": "attn.v",
    "attention.o_proj": "attn.proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    # DINOv2
    "norm1": "norm1",
    "norm2": "norm2",
    "mlp.weights_in": "mlp.fc1",  # SwiGLU: gate and value in one matrix, as here
    "mlp.weights_out": "mlp.fc2",
    "layer_scale1": "ls1",
    "layer_scale2": "ls2",
}

NPZ_TOKENS = {
    "cls": "cls_token",
    "Transformer/posembed_input/pos_embedding": "pos_embed",
    "pos_embedding": "pos_embed",  # big_vision
}
NPZ_OUTER = {
    "conv_root": "patch_embed.backbone.stem.conv",
    "gn_root": "patch_embed.backbone.stem.norm",
    "embedding": "patch_embed.proj",
    "Transformer/encoder_norm": "norm",
    "pre_logits": "pre_logits.fc",
    "head": "head",
}
NPZ_BLOCK = {
    "LayerNorm_0": "norm1",
    "LayerNorm_1": "norm2",  # big_vision
    "MultiHeadDotProductAttention_1/query": "attn.q",
    "MultiHeadDotProductAttention_1/key": "attn.k",
    "MultiHeadDotProductAttention_1/value": "attn.v",
    "MultiHeadDotProductAttention_1/out": "attn.proj",
    "LayerNorm_2": "norm2",
    "MlpBlock_3/Dense_0": "mlp.fc1",
    "MlpBlock_3/Dense_1": "mlp.fc2",
}
NPZ_LEAF = {"kernel": "weight", "scale": "weight", "bias": "bias"}

LIKELY_CAUSES = {
    "gamma": "LayerScale under an unknown name",
    "MAPHead": "attention pooling under names other than timm's",
    "backbone": "a convolutional stem that is not Google's ResNet, or a missing vitft card",
    "relative_position": "relative position biases, as in BEiT",
    "decoder": "a masked autoencoder's decoder",
    "q_norm": "normalised queries and keys",
    "rope": "learned rotary position embeddings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Tensors under vitft's names."""

    flavour: Flavour
    tensors: Mapping[str, Tensor]
    heads: int | None = None
    """Number of attention heads, if evident from the layout."""
    dropped: tuple[str, ...] = ()
    """Names and shapes of unused tensors."""
    may_rotate: bool = False
    """Whether the model may have rotary position embeddings, which are not stored as tensors."""
    is_naflex: bool = False
    """Whether this is SigLIP 2 NaFlex, whose position embeddings are resampled bilinearly."""


def convert(tensors: Mapping[str, Tensor]) -> Converted:
    """Detect the naming scheme of tensors; convert their names, layout and dtype (to float32).

    Raises:
        WeightsError: The naming scheme or a name is unknown, two tensors map to the same name,
            queries, keys and values do not match, or a tensor is not of a floating-point type.
    """
    names = strip_prefixes(tensors)
    flavour = flavour_of(names)
    heads: int | None = None
    rotates = False
    masks = [n for n in ("mask_token", "embeddings.mask_token") if n in names]  # from pretraining
    unused = tuple(f"{name} {tuple(names.pop(name).shape)}" for name in masks)
    flexible = is_naflex(names)
    if flavour == "hf" and is_tower(names):
        names, texts = tower_tensors(names)
        names, unused = fuse_qkv(names), (*unused, *texts)
    elif flavour == "hf":
        names = fuse_qkv(rename_all(names, hf_name))
    elif flavour == "npz":
        names, heads = convert_npz(names)
    else:
        rotates = may_rotate(names)
        names = from_timm_names(names)
    if "register_tokens" in names and {"cls_token", "pos_embed"} <= names.keys():
        names["reg_token"] = names.pop("register_tokens")  # these have no position embeddings
        names["cls_token"] = names["cls_token"] + names["pos_embed"][:, :1]  # as in timm
        names["pos_embed"] = names["pos_embed"][:, 1:]
    refuse_unmapped(name for name in names if not VITFT_NAMES.fullmatch(name))
    return Converted(
        flavour=flavour,
        tensors=in_float32(names),
        heads=heads,
        dropped=unused,
        may_rotate=rotates,
        is_naflex=flexible,
    )


def strip_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove name prefixes added by DistributedDataParallel, torch.compile or training scripts."""
    names, known = dict(tensors), ("module.", "_orig_mod.", "model.")
    while prefix := next((p for p in known if names and all(n.startswith(p) for n in names)), ""):
        names = {name.removeprefix(prefix): value for name, value in names.items()}
    return names


def flavour_of(names: Iterable[str]) -> Flavour:
    """Return the naming scheme of tensors: `timm`, `hf` or `npz`.

    Raises:
        WeightsError: The names do not match any naming scheme, or there are no tensors.
    """
    present = set(names)
    if "cls_token" in present or any(VITFT_NAMES.fullmatch(n) and "blocks" in n for n in present):
        return "timm"
    if any(HF_PREFIX.sub("", n).startswith("embeddings.") for n in present):
        return "hf"
    if any(n.endswith("embedding/kernel") for n in present):
        return "npz"
    raise WeightsError(
        "these are not the weights of a Vision Transformer (tensors: "
        f"{', '.join(sorted(present)[:5])} ...)"
        if present
        else "the file contains no tensors",
        fix="use a ViT from timm, Hugging Face or Google, e.g. one listed by `vitft weights list`",
    )


def hf_name(name: str) -> str | None:
    """Return vitft's name for a Hugging Face tensor, or None if there is none.

    Queries, keys and values still have separate names (q, k and v).
    """
    name = HF_PREFIX.sub("", name)
    if name in HF_TOKENS:
        return HF_TOKENS[name]
    stem, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"(?:encoder\.)?layers?\.(\d{1,4})\.(.+)", stem)
    ours = HF_BLOCK.get(block[2]) if block else HF_OUTER.get(stem)
    if ours in ("ls1", "ls2"):
        leaf = "gamma" if leaf == "lambda1" else ""
    if ours is None or leaf not in ("weight", "bias", "gamma"):
        return None
    return f"blocks.{int(block[1])}.{ours}.{leaf}" if block else f"{ours}.{leaf}"


def convert_npz(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int | None]:
    """Convert tensors from Google's layout; return them and the number of heads (None if unknown).

    Raises:
        WeightsError: As in `rename_all` and `fuse_qkv`.
    """
    tensors = {re.sub(r"^(params/img|params|opt/target)/", "", n): t for n, t in tensors.items()}
    names = rename_all(unstacked(tensors), npz_name)
    queries = [t for n, t in names.items() if n.endswith("attn.q.weight") and t.ndim == 3]
    heads = queries[0].shape[1] if queries else None  # kernels of q, k, v are (D, H, K)
    if not any("backbone.stages" in name for name in names):  # as in timm for a root without stages
        names = {n.replace("backbone.stem.", "backbone."): t for n, t in names.items()}
    return fuse_qkv({n: from_flax(n, t) for n, t in names.items()}), heads


def unstacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split arrays that stack all blocks, as in big_vision, into one array per block."""
    scanned = "Transformer/encoderblock/"
    result = {n: t for n, t in tensors.items() if not n.startswith(scanned)}
    for name, stack in tensors.items():
        if name.startswith(scanned) and stack.ndim:
            for i, tensor in enumerate(stack):
                result[f"Transformer/encoderblock_{i}/{name.removeprefix(scanned)}"] = tensor
    return result


def npz_name(name: str) -> str | None:
    """Return vitft's name for one of Google's arrays, or None if there is none.

    Queries, keys and values still have separate names (q, k and v).
    """
    if name in NPZ_TOKENS:
        return NPZ_TOKENS[name]
    stem, _, leaf = name.rpartition("/")
    block = re.fullmatch(r"Transformer/encoderblock_(\d{1,4})/(.+)", stem)
    unit = re.fullmatch(r"block(\d)/unit(\d{1,2})/(conv|gn)(\d|_proj)", stem)
    ours = NPZ_OUTER.get(stem)
    if block:  # big_vision numbers attention and MLP separately
        layer = block[2].replace("Attention_0/", "Attention_1/").replace("Block_0/", "Block_3/")
        ours = NPZ_BLOCK.get(layer)
    if unit:
        kind = "conv" if unit[3] == "conv" else "norm"
        part = f"downsample.{kind}" if unit[4] == "_proj" else f"{kind}{unit[4]}"
        place = f"stages.{int(unit[1]) - 1}.blocks.{int(unit[2]) - 1}"
        ours = f"patch_embed.backbone.{place}.{part}"
    if ours is None or leaf not in NPZ_LEAF:
        return None
    tail = f"{ours}.{NPZ_LEAF[leaf]}"
    return f"blocks.{int(block[1])}.{tail}" if block else tail


def from_flax(name: str, array: Tensor) -> Tensor:
    """Convert an array from Flax's layout to torch's."""
    if re.search(r"attn\.[qkv]\.weight$", name) and array.ndim == 3:
        return array.flatten(1).T  # (D, H, K) -> (H*K, D)
    if re.search(r"attn\.[qkv]\.bias$", name) or ("backbone" in name and "norm" in name):
        return array.flatten()  # (H, K) -> (H*K,); (1, 1, 1, channels) -> (channels,)
    if name.endswith("attn.proj.weight") and array.ndim == 3:
        return array.flatten(0, 1).T  # (H, K, D) -> (D, H*K)
    if name.startswith("patch_embed") and array.ndim == 4:
        return array.permute(3, 2, 0, 1)  # (height, width, channels, D) -> (D, channels, h, w)
    if name.endswith("weight") and array.ndim == 2:
        return array.T  # (inputs, outputs) -> (outputs, inputs)
    return array


def rename_all(
    tensors: Mapping[str, Tensor], rule: Callable[[str], str | None]
) -> dict[str, Tensor]:
    """Return the tensors, renamed by the function `rule`.

    Raises:
        WeightsError: `rule` returns None for a name, or the same name for two tensors.
    """
    pairs = [(name, rule(name)) for name in tensors]
    refuse_unmapped(name for name, ours in pairs if ours is None)
    result: dict[str, Tensor] = {}
    for name, ours in pairs:
        if ours in result:
            raise WeightsError(
                f"two tensors in the file map to {ours}; one of them is {name}",
                fix="save the model again with a single naming scheme",
            )
        result[str(ours)] = tensors[name]
    return result


def fuse_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate the queries, keys and values of each block into one tensor, as in timm.

    Raises:
        WeightsError: One of the three is missing, or their shapes differ.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        part = re.fullmatch(r"(blocks\.\d+\.attn\.)[qkv](\.weight|\.bias)", name)
        if part is None:
            result[name] = tensor
            continue
        three = [f"{part[1]}{letter}{part[2]}" for letter in "qkv"]
        missing = [n for n in three if n not in tensors]
        shapes = {tensors[n].shape for n in three if n in tensors}
        if missing or len(shapes) > 1:
            raise WeightsError(
                f"the queries, keys and values do not match: {', '.join(missing or three)}",
                fix="use a complete weight file of a plain Vision Transformer; BEiT models, which "
                "have no key biases, are not supported",
            )
        fused = f"{part[1]}qkv{part[2]}"
        if fused not in result:
            result[fused] = torch.cat([tensors[n] for n in three])  # rows [0:D], [D:2D], [2D:3D]
    return result


def refuse_unmapped(names: Iterable[str]) -> None:
    """Refuse tensors that have no counterpart in vitft.

    Raises:
        WeightsError: `names` is not empty. The message states the likely cause, if known.
    """
    unknown = sorted(names)
    if not unknown:
        return
    found = (cause for sign, cause in LIKELY_CAUSES.items() if any(sign in n for n in unknown))
    cause = next(found, None)
    raise WeightsError(
        f"unknown tensors: {first_five(unknown)}" + (f"; this suggests {cause}" if cause else ""),
        fix="use timm:NAME=FILE with timm's name for the model, or the weights of a plain Vision "
        "Transformer",
    )


def in_float32(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert all tensors to float32; contiguous float32 tensors are not copied.

    Raises:
        WeightsError: A tensor is not of a floating-point type.
    """
    whole = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if whole:
        raise WeightsError(
            f"{whole[0]} has dtype {tensors[whole[0]].dtype}, not a floating-point type",
            fix="use the original weights; quantised ones cannot be fine-tuned",
        )
    return {name: tensor.float().contiguous() for name, tensor in tensors.items()}
