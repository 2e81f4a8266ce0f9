"""Configurations of vitft's own Vision Transformer, read from the networks that timm builds.

timm builds the network without allocating memory for its tensors, and its parts are translated to a
`ViTConfig`. If vitft's own model lacks a part, the network is refused, and the message names the
part. Finally, the names and shapes of the tensors are compared with the configuration.

Notation: D width, H heads, C classes.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitft.models.shapes import vit_shapes
from vitft.models.timm_config import TIMM_VITS, timm_module
from vitft.models.vit_config import Activation, ViTConfig, as_pair
from vitft.system.errors import UsageError
from vitft.system.text import listing

TIMM_ACTIVATIONS: Mapping[str, Activation] = {
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "QuickGELU": "quick_gelu",
}
"""Mapping from the class names of timm's activation functions to vitft's names."""
NORMS = ("LayerNorm", "LayerNormFp32")
"""Class names of LayerNorm in torch and timm; all compute the same function in float32."""


def timm_vit_config(name: str) -> ViTConfig:
    """Return the configuration of one of timm's architectures, e.g. `flexivit_base`.

    The image size and the number of classes match timm's default weights.

    Raises:
        UsageError: timm does not have this architecture, or vitft's own model does not support it.
            The message states the reason.
    """
    found = translate(name)
    if isinstance(found, str):
        problem, fix = unsupported(name, found)
        raise UsageError(problem, fix=fix)
    return found


@functools.cache
def translate(name: str) -> ViTConfig | str:
    """Return the configuration of one of timm's architectures, or the reason why there is none."""
    module = timm_module(name)
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
    found = {n: tuple(t.shape) for n, t in fuse_split_biases(net.state_dict()).items()}
    wanted = {n: facts.shape for n, facts in vit_shapes(config).items()}
    differing = sorted(n for n, _ in found.items() ^ wanted.items())
    return f"its tensors differ, e.g. {differing[0]}" if differing else config


def unsupported(name: str, reason: str) -> tuple[str, str]:
    """Return the message and the fix for an architecture that only timm can build."""
    return (
        f"vitft's own Vision Transformer does not support {name}: {reason}",
        f"use timm:{name} to let timm build and run the model",
    )


def unsupported_parts(net: Any) -> list[str]:  # noqa: ANN401 - timm's type
    """Return descriptions of the parts of a timm network that vitft's own model lacks."""
    block = net.blocks[0]
    kind = type(block).__name__
    if kind not in ("Block", "EvaBlock"):
        return [f"an unsupported kind of block ({kind})"]
    parts = {
        **embedding_parts(net),
        **attention_parts(block.attn, net.embed_dim),
        **mlp_parts(block.mlp),
        **pooling_parts(net),
        "normalisation layers other than LayerNorm": type(block.norm1).__name__ not in NORMS,
        "LayerNorms with different eps": len({m.eps for m in norms_of(net)}) > 1,
        "LayerScale under another name": getattr(block, "gamma_1", None) is not None,
    }
    return [part for part, is_there in parts.items() if is_there]


def embedding_parts(net: Any) -> dict[str, bool]:  # noqa: ANN401
    """Return whether the network has unsupported parts before the first block, by description."""
    return {
        "rotary position embeddings": getattr(net, "rope", None) is not None,
        "no learned position embeddings": net.pos_embed is None,
        "a LayerNorm before the first block with a bias in the patch projection": is_module(
            net, "norm_pre"
        )
        and getattr(getattr(net.patch_embed, "proj", None), "bias", None) is not None,
        "a convolutional stem": not hasattr(net.patch_embed, "proj")
        or is_module(net.patch_embed, "backbone"),
        "a norm after the patch projection": is_module(net.patch_embed, "norm"),
    }


def attention_parts(attention: Any, width: int) -> dict[str, bool]:  # noqa: ANN401
    """Return whether the attention layers have unsupported parts, by description."""
    kind = type(attention).__name__
    qkv = getattr(attention, "qkv", None)
    return {
        f"an unsupported kind of attention ({kind})": kind not in ("Attention", "EvaAttention"),
        "separate projections for queries, keys and values": qkv is None,
        "heads that are not D / H wide": qkv is not None and qkv.out_features != 3 * width,
        "normalised queries and keys": is_module(attention, "q_norm"),
        "a norm inside the attention": is_module(attention, "norm"),
        "gated attention": getattr(attention, "gate", None) is not None,
    }


def mlp_parts(mlp: Any) -> dict[str, bool]:  # noqa: ANN401
    """Return whether the MLPs have unsupported parts, by description."""
    kind = type(mlp).__name__
    activation = type(getattr(mlp, "act", None)).__name__
    return {
        f"a gated MLP ({kind})": kind != "Mlp",
        f"the activation {activation}": kind == "Mlp" and activation not in TIMM_ACTIVATIONS,
        "a norm inside the MLP": is_module(mlp, "norm"),
    }


def pooling_parts(net: Any) -> dict[str, bool]:  # noqa: ANN401
    """Return whether the network has unsupported parts after the last block, by description."""
    pool, has_norm = net.global_pool, is_module(net, "norm")
    return {
        "attention pooling": getattr(net, "attn_pool", None) is not None,
        "no final norm": not has_norm and not is_module(net, "fc_norm"),
        f"{pool} pooling": pool not in ("token", "avg", "map"),
        "a norm after class token pooling": pool == "token" and is_module(net, "fc_norm"),
        "a mean that includes the prefix tokens": pool == "avg"
        and getattr(net, "pool_include_prefix", False),
    }


def is_module(parent: Any, name: str) -> bool:  # noqa: ANN401
    """Return whether a network has a submodule with this name that is not an identity."""
    return not isinstance(getattr(parent, name, None), nn.Identity | None)


def norms_of(net: nn.Module) -> list[Any]:
    """Return all LayerNorms of a network."""
    return [module for module in net.modules() if type(module).__name__ in NORMS]


def network_config(net: Any) -> ViTConfig:  # noqa: ANN401
    """Return the configuration of one of timm's networks without `unsupported_parts`."""
    block, patch = net.blocks[0], net.patch_embed
    hidden, width = block.mlp.fc1.out_features, net.embed_dim
    ratio = hidden / width
    has_bias = block.attn.qkv.bias is not None or getattr(block.attn, "q_bias", None) is not None
    rows = net.pos_embed.shape[1] - math.prod(patch.grid_size)
    return ViTConfig(
        image_size=as_pair(patch.img_size),
        patch_size=as_pair(patch.patch_size),
        in_channels=patch.proj.in_channels,
        width=width,
        depth=len(net.blocks),
        heads=block.attn.num_heads,
        mlp_ratio=ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf),
        qkv_bias=has_bias,
        num_classes=net.num_classes,
        pool="cls" if net.global_pool == "token" else "mean",
        norm_eps=block.norm1.eps,
        layer_scale=1e-5 if is_module(block, "ls1") else 0.0,
        registers=getattr(net, "num_reg_tokens", 0),
        prefix_positions=rows > 0,
        distilled=getattr(net, "dist_token", None) is not None,
        class_token=net.cls_token is not None,
        activation=TIMM_ACTIVATIONS[type(block.mlp.act).__name__],
        embed_norm=is_module(net, "norm_pre"),
        norm_before_pool=net.global_pool == "avg" and is_module(net, "norm"),
    )


def fuse_split_biases(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace EVA's separate biases of queries and values with one bias for qkv.

    The keys get a zero bias, because a bias would shift all scores of a query equally.
    """
    result = dict(tensors)
    for name in [n for n in tensors if n.endswith(".attn.q_bias")]:
        place = name.removesuffix("q_bias")
        query, value = result.pop(name), result.pop(f"{place}v_bias", None)
        if value is None:
            return dict(tensors)  # the missing tensor is reported later
        result[f"{place}qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
    return result
