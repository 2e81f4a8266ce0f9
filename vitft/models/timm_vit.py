"""Configurations of vitft's own Vision Transformer, read from the networks that timm builds.

timm builds the network without allocating memory for its tensors, and its parts are translated to a
`ViTConfig`. If vitft's own model lacks a part, the network is rejected, and the message names the
part. Finally, the names and shapes of the tensors are compared with the configuration.

Notation: D width, H heads, C classes.
"""

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitft.models.card import TIMM_VITS, timm_modules
from vitft.models.vit_config import (
    Activation,
    NormLayer,
    Pool,
    RopeConfig,
    ViTConfig,
    as_pair,
    vit_shapes,
)
from vitft.system.errors import UsageError
from vitft.system.text import listing

# conversion of tensor names and layouts between timm's EVA models and vitft -----------------------

_OTHER_NAMES = (
    (re.compile(r"(blocks\.\d+\.)gamma_([12])"), r"\1ls\2.gamma"),
    (re.compile(r"(blocks\.\d+\.mlp\.)w12\b"), r"\1fc1"),  # Meta's DINOv2-giant
    (re.compile(r"(blocks\.\d+\.mlp\.)w3\b"), r"\1fc2"),
)
"""Pairs of a regular expression for a tensor name in another library and vitft's replacement."""


def from_timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a timm network's tensors under vitft's names and in vitft's layout.

    Tensors that cannot be combined, because one is missing or differs in shape, are left unchanged.
    """
    result = {renamed(name): tensor for name, tensor in tensors.items()}
    for name in [n for n in result if n.endswith((".attn.q_bias", ".attn.q_proj.bias"))]:
        place, ending = name.rsplit(".attn.q", 1)
        if f"{place}.attn.v{ending}" in result:  # the keys need no biases
            result.setdefault(f"{place}.attn.k{ending}", torch.zeros_like(result[name]))
    groups = {
        "attn.q_bias": ("attn.k_bias", "attn.v_bias", "attn.qkv.bias"),
        "attn.q_proj.bias": ("attn.k_proj.bias", "attn.v_proj.bias", "attn.qkv.bias"),
        "attn.q_proj.weight": ("attn.k_proj.weight", "attn.v_proj.weight", "attn.qkv.weight"),
        "mlp.fc1_g.weight": ("mlp.fc1_x.weight", "mlp.fc1.weight"),
        "mlp.fc1_g.bias": ("mlp.fc1_x.bias", "mlp.fc1.bias"),
    }
    for first, (*others, fused) in groups.items():
        for name in [n for n in result if n.endswith(f".{first}")]:
            place = name.removesuffix(first)
            names = [name, *(place + other for other in others)]
            shapes = {result[n].shape if n in result else None for n in names}
            if len(shapes) == 1:
                result[place + fused] = torch.cat([result.pop(n) for n in names])
    return result


def renamed(name: str) -> str:
    """Return vitft's name for a tensor that needs no conversion other than renaming."""
    for pattern, ours in _OTHER_NAMES:
        name = pattern.sub(ours, name)
    return name


def may_rotate(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether timm's names suggest rotary position embeddings, which are not stored.

    These names occur almost exclusively in published models with rotary position embeddings.
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


# configurations of vitft's own Vision Transformer, read from the networks that timm builds --------

_TIMM_ACTIVATIONS: Mapping[str, Activation] = {
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "QuickGELU": "quick_gelu",
}
"""Mapping from the class names of timm's activation functions to vitft's names."""
_TIMM_NORMS: Mapping[str, NormLayer] = {
    "LayerNorm": "layernorm",
    "LayerNormFp32": "layernorm",  # the same function in float32
    "RmsNorm": "rmsnorm",
}
"""Mapping from the class names of timm's normalisation layers to vitft's names."""
_POOLS: Mapping[str, Pool] = {"token": "cls", "avg": "mean", "map": "map"}  # by timm's names
_ROPES = ("RotaryEmbeddingDinoV3", "RotaryEmbeddingCat")  # supported kinds


@functools.cache
def translate(name: str) -> ViTConfig | str:
    """Return the configuration of a timm architecture, or the reason why there is none."""
    module = timm_modules().get(name)
    if module not in TIMM_VITS:
        return f"it is not a plain Vision Transformer ({module or 'unknown'} in timm)"
    import timm  # takes seconds to import

    with torch.device("meta"):
        net = timm.create_model(name)
    if parts := unsupported_parts(net):
        return f"it has {listing(parts)}"
    try:
        config = network_config(net)
    except UsageError as error:
        return error.problem
    found = {n: tuple(t.shape) for n, t in from_timm_names(net.state_dict()).items()}
    wanted = {n: facts.shape for n, facts in vit_shapes(config).items()}
    differing = sorted(n for n, _ in found.items() ^ wanted.items())
    return f"its tensors differ from vitft's, e.g. {differing[0]}" if differing else config


def unsupported(name: str, reason: str) -> tuple[str, str]:
    """Return the message and the fix for an architecture that only timm can build."""
    return (
        f"vitft's own Vision Transformer does not support {name}: {reason}",
        f"use timm:{name} to let timm build and run the model",
    )


def unsupported_parts(net: Any) -> list[str]:  # noqa: ANN401 - timm's type
    """Return descriptions of the parts of a timm network that vitft's own model lacks."""
    block, pool = net.blocks[0], net.global_pool
    if (kind := type(block).__name__) not in ("Block", "EvaBlock"):
        return [f"an unsupported kind of block ({kind})"]
    attention, mlp, patch = block.attn, block.mlp, net.patch_embed
    rope: Any = getattr(net, "rope", None)
    pooling: Any = getattr(net, "attn_pool", None)
    parts = (rope, attention, mlp, getattr(mlp, "act", None), pooling)
    rope_kind, attention_kind, mlp_kind, activation, pool_kind = (type(p).__name__ for p in parts)
    is_gated = mlp_kind == "SwiGLU" or (mlp_kind == "GluMlp" and not mlp.gate_last)
    activations = {"SiLU"} if is_gated else {*_TIMM_ACTIVATIONS}
    heads, has_prefix = attention.num_heads, getattr(net, "pool_include_prefix", None)
    has_bias = getattr(getattr(patch, "proj", None), "bias", None) is not None
    norms = {type(module).__name__ for module in _norms_of(net)}
    found = {
        f"an unsupported kind of rotary position embeddings ({rope_kind})": rope is not None
        and rope_kind not in _ROPES,
        "no position embeddings": net.pos_embed is None and rope is None,
        "a LayerNorm before the first block with a bias in the patch projection": has_bias
        and _is_module(net, "norm_pre"),
        "a convolutional stem": not hasattr(patch, "proj") or _is_module(patch, "backbone"),
        f"an unsupported kind of attention ({attention_kind})": attention_kind
        not in ("Attention", "AttentionRope", "EvaAttention"),
        "heads that are not D / H wide": attention.head_dim * heads != net.embed_dim,
        "fewer keys and values than queries": getattr(attention, "num_kv_heads", heads) != heads,
        "normalised queries and keys": _is_module(attention, "q_norm"),
        "gated attention": getattr(attention, "gate", None) is not None,
        f"an unsupported kind of MLP ({mlp_kind})": mlp_kind != "Mlp" and not is_gated,
        f"the activation {activation}": activation not in activations,
        f"an unsupported kind of attention pooling ({pool_kind})": pooling is not None
        and pool_kind != "AttentionPoolLatent",
        "attention pooling of the patches only": pooling is not None
        and net.num_prefix_tokens > 0
        and has_prefix is False,
        f"{pool} pooling": pool not in ("token", "avg", "map"),
        "a norm after class token pooling": pool != "avg" and _is_module(net, "fc_norm"),
        "a mean that includes the prefix tokens": pool == "avg" and bool(has_prefix),
        "attention pooling with an MLP of a different width": _is_module(net, "attn_pool")
        and pooling.mlp.fc2.in_features != mlp.fc2.in_features,
        f"an unsupported set of normalisation layers ({', '.join(sorted(norms))})": len(norms) > 1
        or not norms <= {*_TIMM_NORMS},
        "normalisation layers with different eps": len({m.eps for m in _norms_of(net)}) > 1,
        "LayerScale in only one of the branches": _has_layer_scale(block, 1)
        is not _has_layer_scale(block, 2),
    }
    return [part for part, is_there in found.items() if is_there]


def _is_module(parent: Any, name: str) -> bool:  # noqa: ANN401
    """Return whether a network has a submodule with this name that is not an identity."""
    return not isinstance(getattr(parent, name, None), nn.Identity | None)


def _has_layer_scale(block: Any, branch: int) -> bool:  # noqa: ANN401
    """Return whether branch 1 (attention) or 2 (MLP) of a block has LayerScale."""
    return _is_module(block, f"ls{branch}") or getattr(block, f"gamma_{branch}", None) is not None


def _norms_of(net: nn.Module) -> list[Any]:
    """Return all normalisation layers of a network: the modules that have an eps."""
    return [module for module in net.modules() if hasattr(module, "eps")]


def network_config(net: Any) -> ViTConfig:  # noqa: ANN401
    """Return the configuration of a timm network that has no unsupported parts."""
    block, patch, pooling = net.blocks[0], net.patch_embed, getattr(net, "attn_pool", None)
    attention, mlp, width = block.attn, block.mlp, net.embed_dim
    hidden = mlp.fc2.in_features
    ratio = hidden / width
    rows = 0 if net.pos_embed is None else net.pos_embed.shape[1] - math.prod(patch.grid_size)
    first = getattr(attention, "qkv", None) or attention.q_proj
    pool_heads = 0 if pooling is None else pooling.num_heads
    rope, turns = None, getattr(net, "rope", None)
    if turns is not None:
        grid = getattr(turns, "ref_feat_shape", None)
        rope = RopeConfig(
            unit=type(turns).__name__ == "RotaryEmbeddingDinoV3",
            base=float(turns.temperature),
            offset=float(turns.grid_offset),
            grid=None if grid is None else as_pair(tuple(grid)),
            x_first=turns.grid_indexing == "xy",
            halves=attention.rotate_half,
        )
    return ViTConfig(
        image_size=as_pair(patch.img_size),
        patch_size=as_pair(patch.patch_size),
        in_channels=patch.proj.in_channels,
        width=width,
        depth=len(net.blocks),
        heads=attention.num_heads,
        mlp_ratio=ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf),
        num_classes=net.num_classes,
        norm_eps=block.norm1.eps,
        norm_layer=_TIMM_NORMS[type(block.norm1).__name__],
        layer_scale=1e-5 if _has_layer_scale(block, 1) else 0.0,
        registers=0 if getattr(net, "reg_token", None) is None else net.reg_token.shape[1],
        prefix_positions=rows > 0 or net.pos_embed is None,  # without positions: no effect
        positions=net.pos_embed is not None,
        rope=rope,
        distilled=getattr(net, "dist_token", None) is not None,
        class_token=net.cls_token is not None,
        embed_norm=_is_module(net, "norm_pre"),
        patch_norm=_is_module(patch, "norm"),
        qkv_bias=first.bias is not None or getattr(attention, "q_bias", None) is not None,
        proj_bias=attention.proj.bias is not None,
        attn_norm=_is_module(attention, "norm"),
        mlp_norm=_is_module(mlp, "norm"),
        gated_mlp=type(mlp).__name__ != "Mlp",
        activation=_TIMM_ACTIVATIONS.get(type(mlp.act).__name__, "gelu"),
        pool=_POOLS[net.global_pool],
        pool_heads=0 if pool_heads == attention.num_heads else pool_heads,
        final_norm=_is_module(net, "norm") or _is_module(net, "fc_norm"),
        norm_before_pool=net.global_pool == "avg" and _is_module(net, "norm"),
    )
