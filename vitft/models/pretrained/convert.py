"""Foreign names and layouts -> ours, which are timm's: pure functions over dictionaries of tensors.

Every key of a file is mapped, named as dropped or named in an error; nothing is passed over in
silence. Shapes are not judged here (`source` does). Values stay as they are, but for one case: the
class token's position is added to it where register tokens follow, as in timm.

Letters: D width, H heads, K head width.

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

from vitft.system.errors import WeightsError

Flavour = Literal["timm", "hf", "npz", "vitft"]

PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DistributedDataParallel, torch.compile and training scripts put before every name."""

OURS = re.compile(
    r"cls_token|dist_token|reg_token|pos_embed|patch_embed\.proj\.(weight|bias)"
    r"|blocks\.\d{1,4}\.(norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.(weight|bias)"
    r"|blocks\.\d{1,4}\.ls[12]\.gamma"
    r"|(norm|fc_norm|pre_logits\.fc|head|head_dist)\.(weight|bias)"
    r"|patch_embed\.backbone\.(stem\.)?(conv\.weight|norm\.(weight|bias))"
    r"|patch_embed\.backbone\.stages\.\d\.blocks\.\d{1,2}\."
    r"(conv[123]\.weight|norm[123]\.(weight|bias)|downsample\.(conv\.weight|norm\.(weight|bias)))"
)
"""Every name of our Vision Transformers, but those of `convs`, which only a file's card tells."""

IDLE = ("mask_token", "embeddings.mask_token")
"""Tensors of masked pre-training that no image classifier uses."""

HF_PREFIX = re.compile(r"^(vit|deit|dinov2|dinov2_with_registers)\.")
HF_ALONE = {
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
    # as every file on the hub has it, and as transformers still writes it
    "attention.attention.query": "attn.q",
    "attention.attention.key": "attn.k",
    "attention.attention.value": "attn.v",
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    # as transformers >= 5 names them in memory
    "attention.q_proj": "attn.q",
    "attention.k_proj": "attn.k",
    "attention.v_proj": "attn.v",
    "attention.o_proj": "attn.proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    # DINOv2
    "norm1": "norm1",
    "norm2": "norm2",
    "layer_scale1": "ls1",
    "layer_scale2": "ls2",
}

NPZ_ALONE = {
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
    "MultiHeadDotProductAttention_1/query": "attn.q",
    "MultiHeadDotProductAttention_1/key": "attn.k",
    "MultiHeadDotProductAttention_1/value": "attn.v",
    "MultiHeadDotProductAttention_1/out": "attn.proj",
    "LayerNorm_2": "norm2",
    "MlpBlock_3/Dense_0": "mlp.fc1",
    "MlpBlock_3/Dense_1": "mlp.fc2",
    # big_vision counts each kind for itself
    "MultiHeadDotProductAttention_0/query": "attn.q",
    "MultiHeadDotProductAttention_0/key": "attn.k",
    "MultiHeadDotProductAttention_0/value": "attn.v",
    "MultiHeadDotProductAttention_0/out": "attn.proj",
    "LayerNorm_1": "norm2",
    "MlpBlock_0/Dense_0": "mlp.fc1",
    "MlpBlock_0/Dense_1": "mlp.fc2",
}
NPZ_LEAF = {"kernel": "weight", "scale": "weight", "bias": "bias"}

CAUSES = {
    "mlp.w12": "SwiGLU, as in the giant DINOv2",
    "mlp.weights_in": "SwiGLU, as in the giant DINOv2",
    "gamma": "LayerScale under a name that is not known",
    "norm_pre": "a CLIP tower",
    "attn_pool": "attention pooling, as in SigLIP",
    "MAPHead": "attention pooling, as in SigLIP",
    "backbone": "a convolutional stem that is not Google's ResNet, or our own without its card",
    "relative_position": "relative positions, as in BEiT",
    "decoder": "a masked autoencoder's decoder",
    "q_norm": "normalised queries and keys",
    "rope": "rotary positions, as in DINOv3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Tensors under our names."""

    flavour: Flavour
    tensors: Mapping[str, Tensor]
    heads: int | None = None
    """Heads, where the layout shows them."""
    dropped: tuple[str, ...] = ()
    """Names with shapes of tensors that have no use here."""


def convert(tensors: Mapping[str, Tensor]) -> Converted:
    """Recognise the flavour of foreign tensors and give them our names, in float32.

    Raises:
        WeightsError: No flavour that is known, or a name that has no counterpart here.
    """
    names = strip_prefixes(tensors)
    flavour = flavour_of(names)
    heads: int | None = None
    idle = tuple(f"{n} {tuple(names.pop(n).shape)}" for n in IDLE if n in names)
    if flavour == "hf":
        names = convert_hf(names)
    elif flavour == "npz":
        names, heads = convert_npz(names)
    names = fold_class_position(names)
    refuse_unmapped(name for name in names if not OURS.fullmatch(name))
    return Converted(flavour=flavour, tensors=in_float32(names), heads=heads, dropped=idle)


def fold_class_position(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Meta's register tokens have no positions, but the class token has: timm adds it once."""
    names = dict(tensors)
    if "register_tokens" in names and {"cls_token", "pos_embed"} <= names.keys():
        names["reg_token"] = names.pop("register_tokens")
        names["cls_token"] = names["cls_token"] + names["pos_embed"][:, :1]
        names["pos_embed"] = names["pos_embed"][:, 1:]
    return names


def strip_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without what a wrapper put before every one of them."""
    names = dict(tensors)
    while names:
        prefix = next((p for p in PREFIXES if all(n.startswith(p) for n in names)), None)
        if prefix is None:
            break
        names = {name.removeprefix(prefix): value for name, value in names.items()}
    return names


def flavour_of(names: Iterable[str]) -> Flavour:
    """Who named these tensors."""
    present = set(names)
    if "cls_token" in present or any(OURS.fullmatch(n) and "blocks" in n for n in present):
        return "timm"
    if any(HF_PREFIX.sub("", n).startswith("embeddings.") for n in present):
        return "hf"
    if any(n.endswith("embedding/kernel") for n in present):
        return "npz"
    raise WeightsError(
        f"these are not the weights of a Vision Transformer: {', '.join(sorted(present)[:5])} ..."
        if present
        else "the file holds no tensors",
        fix="vitft reads ViTs of timm, Hugging Face and Google; vitft weights list names some",
    )


def convert_hf(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face's ViT, under the names of its files or of transformers >= 5 in memory."""
    return fuse_qkv(rename_all(tensors, hf_name))


def hf_name(name: str) -> str | None:
    """Our name of a Hugging Face tensor, with q, k and v still apart."""
    name = HF_PREFIX.sub("", name)
    if name in HF_ALONE:
        return HF_ALONE[name]
    stem, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"(?:encoder\.)?layers?\.(\d{1,4})\.(.+)", stem)
    ours = HF_BLOCK.get(block[2]) if block else HF_OUTER.get(stem)
    if ours in ("ls1", "ls2"):
        leaf = "gamma" if leaf == "lambda1" else ""
    if ours is None or leaf not in ("weight", "bias", "gamma"):
        return None
    return f"blocks.{int(block[1])}.{ours}.{leaf}" if block else f"{ours}.{leaf}"


def convert_npz(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int | None]:
    """Google's layout: kernels are transposed, heads are axes; also the number of heads."""
    tensors = {re.sub(r"^(params/img|params|opt/target)/", "", n): t for n, t in tensors.items()}
    names = rename_all(unstacked(tensors), npz_name)
    queries = [t for n, t in names.items() if n.endswith("attn.q.weight") and t.ndim == 3]
    heads = queries[0].shape[1] if queries else None  # kernels of q, k, v are (D, H, K)
    if not any("backbone.stages" in name for name in names):  # timm's name of a root alone
        names = {n.replace("backbone.stem.", "backbone."): t for n, t in names.items()}
    return fuse_qkv({n: from_flax(n, t) for n, t in names.items()}), heads


def unstacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One array per block where big_vision scanned over blocks and stacked theirs."""
    scanned = "Transformer/encoderblock/"
    result = {n: t for n, t in tensors.items() if not n.startswith(scanned)}
    for name, stack in tensors.items():
        if name.startswith(scanned) and stack.ndim:
            for i, tensor in enumerate(stack):
                result[f"Transformer/encoderblock_{i}/{name.removeprefix(scanned)}"] = tensor
    return result


def npz_name(name: str) -> str | None:
    """Our name of one of Google's arrays, with q, k and v still apart."""
    if name in NPZ_ALONE:
        return NPZ_ALONE[name]
    stem, _, leaf = name.rpartition("/")
    block = re.fullmatch(r"Transformer/encoderblock_(\d{1,4})/(.+)", stem)
    unit = re.fullmatch(r"block(\d)/unit(\d{1,2})/(conv|gn)(\d|_proj)", stem)
    ours = NPZ_BLOCK.get(block[2]) if block else NPZ_OUTER.get(stem)
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
    """One array in torch's layout."""
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
    """Every tensor under the name that `rule` gives it."""
    pairs = [(name, rule(name)) for name in tensors]
    refuse_unmapped(name for name, ours in pairs if ours is None)
    result: dict[str, Tensor] = {}
    for name, ours in pairs:
        if ours in result:
            raise WeightsError(
                f"two tensors of the file are both {ours} here; one is {name}",
                fix="the file mixes two ways of naming; save the model again",
            )
        result[str(ours)] = tensors[name]
    return result


def fuse_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys and values of each block stacked into the one matrix that we and timm use."""
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
                f"queries, keys and values do not belong together: {', '.join(missing or three)}",
                fix="the file is incomplete or of another architecture (BEiT has no key bias)",
            )
        fused = f"{part[1]}qkv{part[2]}"
        if fused not in result:
            result[fused] = torch.cat([tensors[n] for n in three])  # rows [0:D], [D:2D], [2D:3D]
    return result


def refuse_unmapped(names: Iterable[str]) -> None:
    """Say which tensors have no place here, and of what they are a sign."""
    unknown = sorted(names)
    if not unknown:
        return
    causes = [cause for sign, cause in CAUSES.items() if any(sign in name for name in unknown)]
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    raise WeightsError(
        f"no place here for {', '.join(unknown[:5])}{more}"
        + (f": a sign of {causes[0]}" if causes else ""),
        fix="vitft reads plain Vision Transformers; take one of those, "
        "or remove these tensors if you are sure that they do nothing",
    )


def in_float32(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All numbers as the model computes with them; float32 is passed on as it is."""
    whole = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if whole:
        raise WeightsError(
            f"{whole[0]} holds {tensors[whole[0]].dtype}, not floating point numbers",
            fix="quantised weights cannot be fine-tuned; take the original ones",
        )
    return {name: tensor.float().contiguous() for name, tensor in tensors.items()}
