"""Architecture names such as `vit_base_patch16_224`, and the models they denote.

Other names than those of the ViT paper are looked up in timm, which builds the network without
allocating memory for its tensors. Its configuration is inferred from their names and shapes, as
that of a weight file. What they do not show is read from the modules. If vitft's own model lacks a
part, the network is rejected, and the message names the part.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from vitft.models.card import TIMM_VITS, timm_modules
from vitft.models.pretrained.convert import (
    SidecarFacts,
    from_timm_names,
    infer_config,
    refuse_unmapped,
)
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import (
    SIZES,
    STEMS,
    Activation,
    RopeConfig,
    ViTConfig,
    as_pair,
    may_have,
    similar_models,
)
from vitft.system.errors import UsageError, WeightsError
from vitft.system.text import listing


def architecture_config(name: str) -> ViTConfig:
    """Return the configuration for a name such as `vit_base_patch16_224` or `vit_base_r50_s16_224`.

    The last number is the side of the image in pixels. Any other name, e.g.
    `vit_base_patch14_reg4_dinov2`, is looked up in timm, which is then imported.

    Raises:
        UsageError: The name is unknown, or vitft's own model does not support this architecture.
    """
    match = re.fullmatch(r"vit_([a-z]+)_(?:patch(\d+)|(r\d*_s\d+(?:_p8)?))_(\d+)", name)
    size = SIZES.get(match[1]) if match else None
    stem, patch = STEMS.get(match[3], (None, int(match[2] or 0))) if match else (None, 0)
    if match is None or size is None or (stem is None and patch not in size.patches):
        if name in timm_modules():
            return translate(name)
        near = similar_models(name, [*architecture_names(), *timm_modules()])
        raise UsageError(
            f"unknown architecture {name!r}",
            fix=f"check the name, similar ones are {', '.join(near)}",
        )
    image_size, patch_size = as_pair(int(match[4])), as_pair(patch)
    dimensions: Any = {"width": size.width, "depth": size.depth, "heads": size.heads}
    return ViTConfig(image_size=image_size, patch_size=patch_size, stem=stem, **dimensions)


def architecture_names() -> list[str]:
    """Return the names of all models for 224-pixel images: plain models first, then hybrids."""
    plain = [f"vit_{size}_patch{p}_224" for size, row in SIZES.items() for p in row.patches]
    return plain + [f"vit_{s}_{r}_224" for s, r in zip(SIZES, STEMS, strict=False)]


def create_model(
    name: str,
    *,
    image_size: int | tuple[int, int] | None = None,
    **fields: Any,  # noqa: ANN401
) -> VisionTransformer:
    """Return an untrained model of a named architecture, in float32 on the default device.

    The name is as in `architecture_config`. `image_size`, a side or (height, width) in pixels,
    overrides the size in the name. `fields` sets other fields of `ViTConfig`, e.g. num_classes=5 or
    pool="mean".

    Raises:
        UsageError: The name or a field is unknown, or a value is invalid or incompatible.
    """
    config = architecture_config(name)
    if unknown := fields.keys() - asdict(config).keys():
        raise UsageError(
            f"unknown model setting {min(unknown)!r}",
            fix=f"use a field of ViTConfig: {', '.join(asdict(config))}",
        )
    if fields.get("pool", config.pool) != config.pool:
        fields = {"norm_before_pool": False, "pool_heads": 0, **fields}
    size = config.image_size if image_size is None else as_pair(image_size)
    return VisionTransformer(replace(config, image_size=size, **fields))


_TIMM_ACTIVATIONS: Mapping[str, Activation] = {
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "QuickGELU": "quick_gelu",
}
"""Mapping from the class names of timm's activation functions to vitft's names."""
_TIMM_LAYERS = frozenset(
    {
        "Attention", "AttentionPoolLatent", "AttentionRope", "Block", "Conv2d", "DropPath",
        "Dropout", "Eva", "EvaAttention", "EvaBlock", "GELU", "GELUTanh", "GluMlp", "Identity",
        "LayerNorm", "LayerNormFp32", "LayerScale", "Linear", "Mlp", "ModuleList", "PatchEmbed",
        "QuickGELU", "RmsNorm", "RotaryEmbeddingCat", "RotaryEmbeddingDinoV3", "Sequential",
        "SiLU", "SwiGLU", "VisionTransformer", "VisionTransformerDistilled",
    }
)  # fmt: skip
"""Class names of the layers of timm's Vision Transformers that vitft's own model has, too."""


@functools.cache
def translate(name: str) -> ViTConfig:
    """Return the configuration of a timm architecture; raise UsageError if there is none."""
    module = timm_modules().get(name)
    reason = f"it is not a plain Vision Transformer ({module or 'unknown'} in timm)"
    if module in TIMM_VITS:
        import timm  # takes seconds to import

        with torch.device("meta"):
            net = timm.create_model(name)
        try:
            return network_config(net)
        except (WeightsError, UsageError) as error:
            reason = error.problem
    raise UsageError(
        f"vitft's own Vision Transformer does not support {name}: {reason}",
        fix=f"use timm:{name} to let timm build and run the model, with =FILE for your own weights",
    )


def network_config(net: Any) -> ViTConfig:  # noqa: ANN401 - timm's type
    """Return the configuration of a timm network, inferred from its tensors as that of a file.

    Raises:
        WeightsError: Vitft's own model lacks one of its parts.
        UsageError: The dimensions are not supported.
    """
    parts = _hidden_parts(net)
    if present := [part for part, is_there in parts.items() if is_there]:
        raise WeightsError(f"it has {listing(present)}", fix="")
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
    return replace(infer_config(tensors, facts), image_size=size)


def _hidden_parts(net: Any) -> Mapping[str, bool]:  # noqa: ANN401
    """Return which unsupported parts, of those that no tensor shows, a timm network has."""
    if odd := {type(module).__name__ for module in net.modules()} - _TIMM_LAYERS:
        return {f"unsupported layers ({', '.join(sorted(odd))})": True}
    mlp, pool, pooling = net.blocks[0].mlp, net.global_pool, getattr(net, "attn_pool", None)
    activation, is_gated = type(mlp.act).__name__, type(mlp).__name__ != "Mlp"
    pools_prefix = getattr(net, "pool_include_prefix", None)
    norms: list[Any] = [module for module in net.modules() if hasattr(module, "eps")]
    kinds = {(type(norm).__name__, getattr(norm, "bias", None) is None) for norm in norms}
    return {
        "no position embeddings": net.pos_embed is None and getattr(net, "rope", None) is None,
        "gates that follow the values in the MLP": getattr(mlp, "gate_last", False),
        f"the activation {activation}": activation
        not in ({"SiLU"} if is_gated else _TIMM_ACTIVATIONS),
        "attention pooling of the patches only": pooling is not None
        and net.num_prefix_tokens > 0
        and pools_prefix is False,
        f"{pool} pooling": pool not in ("token", "avg", "map"),
        "a norm after class token pooling": pool != "avg" and _is_module(net, "fc_norm"),
        "a mean that includes the prefix tokens": pool == "avg" and bool(pools_prefix),
        "an unsupported set of normalisation layers": len(kinds) > 1
        or any((name == "RmsNorm") is not lacks_bias for name, lacks_bias in kinds),
        "normalisation layers with different eps": len({norm.eps for norm in norms}) > 1,
    }


def _is_module(parent: Any, name: str) -> bool:  # noqa: ANN401
    """Return whether a network has a submodule with this name that is not an identity."""
    return not isinstance(getattr(parent, name, None), nn.Identity | None)
