"""Our own file, which says everything about itself, with the config.json by which timm opens it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitft.data.transforms import EvalTransform
from vitft.export.compare import Array, Opened
from vitft.export.trained import Trained
from vitft.models.checkpoint import Card, build_model, load_checkpoint, save_checkpoint
from vitft.models.timm_model import TimmConfig, TimmModel
from vitft.models.vit_config import SIZES, ViTConfig
from vitft.system.files import write_atomically
from vitft.system.rundir import MODEL

CONFIG = "config.json"


def write_native(trained: Trained, folder: Path) -> None:
    """model.safetensors with its card, and config.json where timm can build the model."""
    save_checkpoint(folder / MODEL, trained.state, trained.card)
    if not not_for_timm(trained.card):
        text = json.dumps(timm_config(trained), indent=2)
        write_atomically(folder / CONFIG, text + "\n")


def open_native(folder: Path) -> Opened:
    """The file as vitft reads it."""
    state, card = load_checkpoint(folder / MODEL)
    return as_opened(build_model(state, card.architecture), card, by="vitft")


def as_opened(model: torch.nn.Module, card: Card, *, by: str) -> Opened:
    """Any module from pixels to logits, with our own preprocessing."""
    return Opened(
        by=by,
        classes=card.classes,
        prepare=lambda image: normalised(card.transform, image),
        logits=lambda inputs: torch_logits(model, inputs),
    )


def normalised(transform: EvalTransform, image: Image.Image) -> Array:
    """An image as the model's input, float32 (channels, S, S)."""
    view = torch.from_numpy(transform.pixels(image)[None])
    return np.asarray(transform.normalise(view)[0].contiguous().numpy())


def torch_logits(model: torch.nn.Module, inputs: Array) -> Array:
    """What a module says, as an array."""
    with torch.inference_mode():
        return np.asarray(model(torch.from_numpy(inputs)).numpy())


def open_timm(folder: Path) -> Opened:
    """The folder as timm opens it, with the preprocessing that timm reads from it."""
    import timm
    from timm.data import create_transform, resolve_data_config

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    view = create_transform(**resolve_data_config(model.pretrained_cfg))
    mode = "L" if model.pretrained_cfg["input_size"][0] == 1 else "RGB"  # timm leaves it to users
    return Opened(
        by=f"timm {timm.__version__}",
        classes=tuple(model.pretrained_cfg["label_names"]),
        prepare=lambda image: np.asarray(view(image.convert(mode)).numpy()),
        logits=lambda inputs: torch_logits(model, inputs),
    )


def not_for_timm(card: Card) -> str:
    """Why timm cannot open this model exactly, or nothing."""
    shape = card.architecture
    if isinstance(shape, TimmConfig):
        return ""
    odd_parts = {
        "pre_logits": shape.pre_logits,
        "a post-norm encoder": shape.norm == "post",
        "two class tokens": shape.distilled,
        "another LayerNorm eps": shape.norm_eps != 1e-6,
        "a hybrid's stem": shape.stem is not None,
        "convolutions before the patches": bool(shape.convs),
    }
    odd = [name for name, there in odd_parts.items() if there]
    return f"the model has {odd[0]}: timm has no such layer under this name" if odd else ""


def timm_config(trained: Trained) -> dict[str, Any]:
    """The config.json of timm's hub format, for a model that timm can build (`not_for_timm`)."""
    card, shape, model = trained.card, trained.card.architecture, trained.model
    ours: dict[str, Any] = {"classifier": "head"}
    if isinstance(shape, ViTConfig):
        name, arguments = timm_name(shape), vit_arguments(shape)
        ours |= {"pool_size": None, "first_conv": "patch_embed.proj"}
        pool = {"global_pool": timm_pool(shape)}
    else:
        name, arguments, pool = shape.timm, net_arguments(shape), {}
    if isinstance(model, TimmModel):
        ours = {"classifier": model.head_name}
    return {
        "architecture": name,
        "num_classes": shape.num_classes,
        "num_features": model.feature_size,
        **pool,
        "label_names": list(card.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "custom_load": False,
            "num_classes": shape.num_classes,
            **ours,
            **timm_preprocessing(card.transform, shape.in_channels),
            # Of a model that takes any size, timm would tell its builder one, which knows none.
            "fixed_input_size": isinstance(shape, ViTConfig) or shape.sized,
        },
    }


def timm_preprocessing(transform: EvalTransform, channels: int) -> dict[str, Any]:
    """The transform in timm's words."""
    return {
        "input_size": [channels, *transform.image_size],
        "interpolation": transform.interpolation,
        "crop_pct": transform.crop,
        "crop_mode": "center" if transform.fit == "crop" else "squash",
        "mean": list(transform.mean),
        "std": list(transform.std),
    }


def net_arguments(shape: TimmConfig) -> dict[str, Any]:
    """What timm must be told to build one of its own models as it was built here."""
    size = {"img_size": list(shape.image_size)} if shape.sized else {}
    return {"in_chans": shape.in_channels, **size}


def vit_arguments(shape: ViTConfig) -> dict[str, Any]:
    """What turns timm's defaults into this architecture."""
    arguments = {
        "img_size": list(shape.image_size),
        "patch_size": list(shape.patch_size),
        "in_chans": shape.in_channels,
        "embed_dim": shape.width,
        "depth": shape.depth,
        "num_heads": shape.heads,
        "mlp_ratio": shape.mlp_ratio,
        "qkv_bias": shape.qkv_bias,
        "reg_tokens": shape.registers,
        "no_embed_class": not shape.prefix_positions,
        "global_pool": timm_pool(shape),
    }
    return arguments | ({"init_values": shape.layer_scale} if shape.layer_scale else {})


def timm_pool(shape: ViTConfig) -> str:
    """Timm's word for what the head reads."""
    return "token" if shape.pool == "cls" else "avg"


def timm_name(shape: ViTConfig) -> str:
    """The timm entry point whose defaults `vit_arguments` turns into this architecture."""
    known = {"tiny": (16,), "small": (16, 32), "base": (8, 16, 32), "large": (16, 32)}
    patch = shape.patch_size[0]
    for size, patches in known.items():
        row = SIZES[size]
        if (row.width, row.depth, row.heads) == (shape.width, shape.depth, shape.heads):
            return f"vit_{size}_patch{patch if patch in patches else 16}_224"
    return "vit_base_patch16_224"
