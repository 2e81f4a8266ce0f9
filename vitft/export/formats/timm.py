"""Export formats --timm and --safetensors: a checkpoint, with a config.json for timm.

The file config.json is written if timm can build the model. timm then opens the model with
`timm.create_model('local-dir:DIR', pretrained=True)` or from the hub.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.data.transforms import CROP_MODES, EvalTransform
from vitft.export.formats.base import (
    HYBRIDS,
    ExportFormat,
    OpenedModel,
    is_eva,
    module_logits,
    open_module,
    unsupported_part,
)
from vitft.export.trained import TrainedRun
from vitft.models.card import RUN_KEY, Card
from vitft.models.checkpoint import build_model, load_checkpoint, save_checkpoint
from vitft.models.vit_config import SIZES, TIMM_POOLS, ViTConfig
from vitft.system.files import write_atomically, write_json
from vitft.system.rundir import MODEL


class SafetensorsFormat(ExportFormat):
    """The file model.safetensors with its card, and config.json if timm can open this file."""

    reads_last_block = True

    def write(self, trained: TrainedRun, folder: Path) -> None:
        save_checkpoint(folder / MODEL, trained.state, trained.card)
        card = trained.card
        if not unsupported_part("timm", card.architecture) and not _has_other_names(card):
            write_json(folder / "config.json", _timm_config(trained))

    def open(self, folder: Path) -> OpenedModel:
        state, card = load_checkpoint(folder / MODEL)
        return open_module(build_model(state, card.architecture), card, by="vitft")


class TimmFormat(SafetensorsFormat):
    """The same files as `SafetensorsFormat`, for timm; only for models that timm can build.

    If timm uses other names for some tensors, the file has timm's names and no card.
    """

    def obstacle(self, card: Card) -> str:
        return unsupported_part("timm", card.architecture)

    def write(self, trained: TrainedRun, folder: Path) -> None:
        if not _has_other_names(trained.card):
            super().write(trained, folder)
            return
        tensors = _timm_tensors(trained)
        write_atomically(folder / MODEL, to_safetensors(tensors, metadata={"format": "pt"}))
        results = {RUN_KEY: trained.results.to_json()}  # no card states them
        write_json(folder / "config.json", _timm_config(trained) | results)

    def open(self, folder: Path) -> OpenedModel:
        import timm
        from timm.data import create_transform, resolve_data_config

        model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        view = create_transform(**resolve_data_config(model.pretrained_cfg))
        # timm does not convert images to grey itself.
        mode = "L" if model.pretrained_cfg["input_size"][0] == 1 else "RGB"
        return OpenedModel(
            by=f"timm {timm.__version__}",
            classes=tuple(model.pretrained_cfg["label_names"]),
            prepare=lambda image: np.asarray(view(image.convert(mode)).numpy()),
            logits=lambda inputs: module_logits(model, inputs),
        )


def _has_other_names(card: Card) -> bool:
    """Return whether timm uses other names for some tensors of this architecture."""
    return not card.architecture.timm and (is_eva(card.vit) or card.vit.gated_mlp)


def _timm_tensors(trained: TrainedRun) -> dict[str, Tensor]:
    """Return the tensors as in timm's `Eva`, or in a ViT with two matrices per SwiGLU MLP."""
    vit, result = trained.card.vit, dict[str, Tensor]()
    is_split = vit.gated_mlp and (vit.mlp_norm or not is_eva(vit))
    for name, tensor in trained.state.items():
        if is_eva(vit):
            name = re.sub(r"(blocks\.\d+\.)ls([12])\.gamma", r"\1gamma_\2", name)
        fused = re.fullmatch(r"(blocks\.\d+\.mlp\.fc1)\.(weight|bias)", name)
        if fused and is_split:
            for part, half in zip(("g", "x"), tensor.chunk(2), strict=True):  # gates and values
                result[f"{fused[1]}_{part}.{fused[2]}"] = half.contiguous()
        else:
            result[name] = tensor.contiguous()
    return result


def _timm_config(trained: TrainedRun) -> dict[str, Any]:
    """Return the content of config.json in timm's hub format, for a model that timm can build."""
    card, shape, model = trained.card, trained.card.architecture, trained.model
    ours, pool = dict[str, Any](classifier=model.head_name), dict[str, Any]()
    size = {"img_size": list(shape.image_size)} if shape.sized else {}
    name, arguments = shape.timm, dict[str, Any](in_chans=shape.in_channels, **size)
    if not shape.timm:
        vit = card.vit
        name, pool = _timm_name(vit), {"global_pool": TIMM_POOLS[vit.pool]}
        arguments = {
            **size,
            "patch_size": list(vit.patch_size),
            "in_chans": vit.in_channels,
            "embed_dim": vit.width,
            "depth": vit.depth,
            "num_heads": vit.heads,
            "mlp_ratio": vit.mlp_ratio,
            "qkv_bias": vit.qkv_bias,
            "no_embed_class": not vit.prefix_positions,
            **pool,
            **(_eva_arguments(vit) if is_eva(vit) else _vit_arguments(vit)),
        }
        ours |= {"pool_size": None, "first_conv": vit.first_conv}
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
            # Otherwise, timm would pass an image size to a builder that does not accept one.
            "fixed_input_size": shape.sized,
        },
    }


def timm_preprocessing(transform: EvalTransform, channels: int) -> dict[str, Any]:
    """Convert the evaluation transform to timm's settings."""
    return {
        "input_size": [channels, *transform.image_size],
        "interpolation": transform.interpolation,
        "crop_pct": transform.crop,
        "crop_mode": next(mode for mode, fit in CROP_MODES.items() if fit == transform.fit),
        "mean": list(transform.mean),
        "std": list(transform.std),
    }


def _vit_arguments(shape: ViTConfig) -> dict[str, Any]:
    """Return the arguments of timm's `VisionTransformer` only, not of `Eva`."""
    arguments: dict[str, Any] = {
        "patch_size": [side // shape.stride for side in shape.patch_size],  # in stem cells
        "reg_tokens": shape.registers,
        **({"pre_norm": False} if _is_clip_like(shape) else {}),
    }
    values_and_defaults = {
        "pre_norm": (shape.embed_norm, False),
        "act_layer": (shape.activation, "gelu"),
        "class_token": (shape.class_token, True),
        "fc_norm": (not shape.norm_before_pool, True),
        "final_norm": (shape.final_norm, True),
        "proj_bias": (shape.proj_bias, True),
        "scale_attn_norm": (shape.attn_norm, False),
        "scale_mlp_norm": (shape.mlp_norm, False),
        "init_values": (shape.layer_scale, 0.0),
    }
    arguments |= {k: value for k, (value, usual) in values_and_defaults.items() if value != usual}
    if shape.gated_mlp:  # AIMv2, whose own defaults would otherwise apply
        arguments.pop("act_layer", None)
        arguments |= {"class_token": shape.class_token, "proj_bias": shape.proj_bias}
        arguments |= {"fc_norm": shape.last_norm == "fc_norm"}
        arguments |= {} if shape.patch_norm else {"embed_norm_layer": None}
    return arguments


def _eva_arguments(shape: ViTConfig) -> dict[str, Any]:
    """Return the arguments of timm's `Eva` only, not of `VisionTransformer`."""
    arguments: dict[str, Any] = {
        "attn_type": "rope",  # the only type with a key bias
        "swiglu_mlp": shape.gated_mlp,
        "swiglu_align_to": 0,
        "scale_mlp": shape.mlp_norm,
        "scale_attn_inner": shape.attn_norm,
        "init_values": shape.layer_scale or None,
        "class_token": shape.class_token,
        "num_reg_tokens": shape.registers,
        "dynamic_img_size": False,
        "use_abs_pos_emb": shape.positions,
        "use_rot_pos_emb": shape.rope is not None,
        "use_pre_transformer_norm": shape.embed_norm,
        "use_post_transformer_norm": shape.last_norm == "norm",
        "use_fc_norm": shape.last_norm == "fc_norm",
        "attn_pool_num_heads": shape.pool_heads or shape.heads,
        "attn_pool_mlp_ratio": shape.mlp_ratio,
    }
    if rope := shape.rope:
        arguments |= {
            "rope_type": "dinov3" if rope.unit else "cat",
            "rope_temperature": rope.base,
            "rope_grid_offset": rope.offset,
            "rope_grid_indexing": "xy" if rope.x_first else "ij",
            "rope_rotate_half": rope.halves,
            "ref_feat_shape": None if rope.grid is None else list(rope.grid),
        }
    return arguments


def _timm_name(shape: ViTConfig) -> str:
    """Return the name of the timm model to build with the arguments of this architecture."""
    if shape.stem is not None:
        return HYBRIDS[shape.stem]
    if is_eva(shape):
        return f"vit_small_patch16_{'dinov3_qkvb' if _is_clip_like(shape) else 'rope_224'}"
    if shape.gated_mlp:
        return "aimv2_large_patch14_224"
    if _is_clip_like(shape):
        return "vit_base_patch16_clip_224"
    known = {"tiny": (16,), "small": (16, 32), "base": (8, 16, 32), "large": (16, 32)}
    patch = shape.patch_size[0]
    for size, patches in known.items():
        row = SIZES[size]
        if (row.width, row.depth, row.heads) == (shape.width, shape.depth, shape.heads):
            return f"vit_{size}_patch{patch if patch in patches else 16}_224"
    return "vit_base_patch16_224"


def _is_clip_like(shape: ViTConfig) -> bool:
    """Return whether an export is based on timm's CLIP tower, the only one with an eps of 1e-5."""
    return shape.norm_eps == 1e-5
