"""Architecture names such as `vit_base_patch16_224`, and the models they denote."""

import re
from dataclasses import asdict, replace
from typing import Any

from vitft.config.options import SETTINGS
from vitft.models.card import timm_modules
from vitft.models.pretrained.catalog import SIZE_LETTERS, similar_models
from vitft.models.timm_vit import translate, unsupported
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import SIZES, STEMS, ViTConfig, as_pair
from vitft.system.errors import UsageError
from vitft.system.suggest import suggest
from vitft.system.text import count, format_size


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
            found = translate(name)
            if isinstance(found, ViTConfig):
                return found
            problem, fix = unsupported(name, found)
            raise UsageError(problem, fix=fix)
        near = similar_models(name, [*architecture_names(), *timm_modules()])
        raise UsageError(
            f"unknown architecture {name!r}",
            fix=f"check the name, similar ones are {', '.join(near)}",
        )
    config = ViTConfig(width=size.width, depth=size.depth, heads=size.heads)
    image_size, patch_size = as_pair(int(match[4])), as_pair(patch)
    return replace(config, image_size=image_size, patch_size=patch_size, stem=stem)


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
        name, known = min(unknown), [*asdict(config)]
        others = [
            key
            for key, one in SETTINGS.items()
            if key.startswith("model.") and name in one.aliases.split()
        ]
        near = others or suggest(name, known)
        fix = f"use {near[0].removeprefix('model.')}" if near else ""
        fix = fix or f"use a field of ViTConfig: {', '.join(known)}"
        raise UsageError(f"unknown model setting {name!r}", fix=fix)
    if fields.get("pool", config.pool) != config.pool:
        fields = {"norm_before_pool": False, "pool_heads": 0, **fields}
    size = config.image_size if image_size is None else as_pair(image_size)
    return VisionTransformer(replace(config, image_size=size, **fields))


def describe_vit(config: ViTConfig) -> str:
    """Return the name of an architecture in the notation of papers, e.g. "ViT-B/16 224 px"."""
    named = {(size.width, size.depth, size.heads): name for name, size in SIZES.items()}
    name = named.get((config.width, config.depth, config.heads))
    size, extras = f"-{SIZE_LETTERS[name]}" if name else "", list[str]()
    if not name:
        extras += [count(config.depth, "block"), f"width {config.width}"]
        extras.append(count(config.heads, "head"))
    if config.stem is not None:
        extras.append(f"ResNet stem {'-'.join(str(n) for n in config.stem) or 'of one layer'}")
    if config.convs:
        channels = ", ".join(str(n) for n in config.convs)
        extras.append(f"{count(len(config.convs), 'convolution')} ({channels} channels)")
    extras += ["distilled"] * config.distilled + ["LayerScale"] * bool(config.layer_scale)
    extras += [count(config.registers, "register")] * bool(config.registers)
    extras += [config.activation] * (config.activation != "gelu")
    extras += ["SwiGLU"] * config.gated_mlp + ["RMSNorm"] * (config.norm_layer == "rmsnorm")
    extras += ["rotary positions"] * bool(config.rope)
    extras += ["attention pooling"] * (config.pool == "map")
    extras += ["no final norm"] * (not config.final_norm)
    extras += ["LayerNorm before the first block"] * config.embed_norm
    extras += ["no class token"] * (not config.class_token)
    extras += ["post-norm"] * (config.norm == "post")
    extras += [count(config.in_channels, "channel")] * (config.in_channels != 3)
    tail = "".join(f", {extra}" for extra in extras)
    return f"ViT{size}/{format_size(config.patch_size)} {format_size(config.image_size)} px{tail}"
