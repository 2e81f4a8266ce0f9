"""Configurations of vitft's own Vision Transformer, read from the networks that timm builds.

timm builds the network without allocating memory for its tensors. Its configuration is inferred
from their names and shapes, as that of a weight file. What they do not show is read from the
modules. If vitft's own model lacks a part, the network is rejected, and the message names the part.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vitft.models.card import TIMM_VITS, timm_modules
from vitft.models.pretrained.convert import from_timm_names, refuse_unmapped
from vitft.models.pretrained.infer import SidecarFacts, check_fit, infer_config
from vitft.models.vit_config import Activation, RopeConfig, ViTConfig, as_pair, may_have
from vitft.system.errors import UsageError, WeightsError
from vitft.system.text import listing

_TIMM_ACTIVATIONS: Mapping[str, Activation] = {
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "QuickGELU": "quick_gelu",
}
"""Mapping from the class names of timm's activation functions to vitft's names."""
_TIMM_NORMS = ("LayerNorm", "LayerNormFp32", "RmsNorm")  # supported classes
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
    try:
        return network_config(net)
    except (WeightsError, UsageError) as error:
        return error.problem


def unsupported(name: str, reason: str) -> tuple[str, str]:
    """Return the message and the fix for an architecture that only timm can build."""
    return (
        f"vitft's own Vision Transformer does not support {name}: {reason}",
        f"use timm:{name} to let timm build and run the model",
    )


def network_config(net: Any) -> ViTConfig:  # noqa: ANN401 - timm's type
    """Return the configuration of a timm network, inferred from its tensors as that of a file.

    Raises:
        WeightsError: Vitft's own model lacks one of its parts.
        UsageError: The dimensions are not supported.
    """
    parts = _hidden_parts(net)
    if unsupported := [part for part, is_there in parts.items() if is_there]:
        raise WeightsError(f"it has {listing(unsupported)}", fix="")
    block, pooling = net.blocks[0], getattr(net, "attn_pool", None)
    attention, turns, rope = block.attn, getattr(net, "rope", None), None
    pool_heads = attention.num_heads if pooling is None else pooling.num_heads
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
    facts = SidecarFacts(
        image_size=(size := as_pair(net.patch_embed.img_size)),
        heads=attention.num_heads,
        norm_eps=block.norm1.eps,
        activation=_TIMM_ACTIVATIONS.get(type(block.mlp.act).__name__),
        pool=net.global_pool,
        rope=rope,
        pool_heads=0 if pool_heads == attention.num_heads else pool_heads,
        final_norm=_is_module(net, "norm") or _is_module(net, "fc_norm"),
    )
    tensors = from_timm_names(net.state_dict())
    refuse_unmapped(name for name in tensors if not may_have(name))
    config = replace(infer_config(tensors, facts), image_size=size)
    check_fit(tensors, config)
    return config


def _hidden_parts(net: Any) -> Mapping[str, bool]:  # noqa: ANN401
    """Return which unsupported parts, of those that no tensor shows, a timm network has."""
    block, pool = net.blocks[0], net.global_pool
    if (kind := type(block).__name__) not in ("Block", "EvaBlock"):
        return {f"an unsupported kind of block ({kind})": True}
    attention, mlp, patch = block.attn, block.mlp, net.patch_embed
    rope: Any = getattr(net, "rope", None)
    pooling: Any = getattr(net, "attn_pool", None)
    parts = (rope, attention, mlp, getattr(mlp, "act", None), pooling)
    rope_kind, attention_kind, mlp_kind, activation, pool_kind = (type(p).__name__ for p in parts)
    is_gated = mlp_kind == "SwiGLU" or (mlp_kind == "GluMlp" and not mlp.gate_last)
    activations = {"SiLU"} if is_gated else {*_TIMM_ACTIVATIONS}
    has_prefix = getattr(net, "pool_include_prefix", None)
    layers: list[Any] = [module for module in net.modules() if hasattr(module, "eps")]
    norms = {type(layer).__name__ for layer in layers}
    is_rms = norms == {"RmsNorm"}
    return {
        f"an unsupported kind of rotary position embeddings ({rope_kind})": rope is not None
        and rope_kind not in _ROPES,
        "no position embeddings": net.pos_embed is None and rope is None,
        "a convolutional stem": not hasattr(patch, "proj") or _is_module(patch, "backbone"),
        f"an unsupported kind of attention ({attention_kind})": attention_kind
        not in ("Attention", "AttentionRope", "EvaAttention"),
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
        f"an unsupported set of normalisation layers ({', '.join(sorted(norms))})": len(norms) > 1
        or not norms <= {*_TIMM_NORMS}
        or any((getattr(layer, "bias", None) is None) is not is_rms for layer in layers),
        "normalisation layers with different eps": len({layer.eps for layer in layers}) > 1,
    }


def _is_module(parent: Any, name: str) -> bool:  # noqa: ANN401
    """Return whether a network has a submodule with this name that is not an identity."""
    return not isinstance(getattr(parent, name, None), nn.Identity | None)
