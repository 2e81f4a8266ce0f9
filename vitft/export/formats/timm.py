"""Export formats --timm and --safetensors: a checkpoint, with a config.json for timm.

The file config.json is written if timm can build the model. timm then opens the model with
`timm.create_model('local-dir:DIR', pretrained=True)` or from the hub.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as to_safetensors

from vitft.data.transforms import CROP_MODES, EvalTransform
from vitft.export.formats.base import (
    ExportFormat,
    OpenedModel,
    first_unsupported,
    module_logits,
    open_module,
)
from vitft.export.trained import TrainedRun
from vitft.models.card import RUN_KEY, AnyConfig, Card, TimmConfig
from vitft.models.checkpoint import build_model, load_checkpoint, save_checkpoint
from vitft.models.pretrained.convert import split_gates, to_eva_names
from vitft.models.pretrained.weights import timm_pool
from vitft.models.vit_config import SIZES, ViTConfig
from vitft.system.files import write_atomically, write_json
from vitft.system.rundir import MODEL

_HYBRIDS: Mapping[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
"""Name of the timm model with each ResNet stem, keyed by the numbers of bottlenecks per stage."""


class SafetensorsFormat(ExportFormat):
    """The file model.safetensors with its card, and config.json if timm can open this file.

    For some newer models, timm uses other tensor names (`timm_names`) and cannot open the file.
    """

    reads_last_block = True

    def write(self, trained: TrainedRun, folder: Path) -> None:
        save_checkpoint(folder / MODEL, trained.state, trained.card)
        if not timm_obstacle(trained.card) and not has_other_names(trained.card.architecture):
            write_json(folder / "config.json", _timm_config(trained))

    def open(self, folder: Path) -> OpenedModel:
        state, card = load_checkpoint(folder / MODEL)
        return open_module(build_model(state, card.architecture), card, by="vitft")


class TimmFormat(SafetensorsFormat):
    """The same files as `SafetensorsFormat`, for timm; only for models that timm can build.

    If timm uses other names for some tensors, the file has timm's names and no card.
    """

    def obstacle(self, card: Card) -> str:
        return timm_obstacle(card)

    def write(self, trained: TrainedRun, folder: Path) -> None:
        shape = trained.card.architecture
        if not isinstance(shape, ViTConfig) or not has_other_names(shape):
            super().write(trained, folder)
            return
        rename = to_eva_names if _is_eva(shape) else split_gates
        tensors = {name: tensor.contiguous() for name, tensor in rename(trained.state).items()}
        content = to_safetensors(tensors, metadata={"format": "pt"})
        write_atomically(folder / MODEL, content)
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


def timm_obstacle(card: Card) -> str:
    """Return why timm cannot represent this model exactly, or an empty string if it can."""
    shape = card.architecture
    if isinstance(shape, TimmConfig):
        return ""
    is_rms, eva = shape.norm_layer == "rmsnorm", _is_eva(shape)
    uses_gelu = not shape.gated_mlp or shape.pool == "map"
    odd = first_unsupported(
        {
            "pre_logits": shape.pre_logits,
            "a post-norm encoder": shape.norm == "post",
            "a distillation token": shape.distilled,
            "a LayerNorm eps other than 1e-6 or 1e-5": shape.norm_eps not in (1e-6, 1e-5),
            "a hybrid stem with a LayerNorm eps of 1e-5": shape.stem is not None
            and shape.norm_eps == 1e-5,
            "a non-standard ResNet stem": shape.stem not in (None, *_HYBRIDS),
            "a convolutional stem": bool(shape.convs),
            "RMSNorm without SwiGLU or with an eps other than 1e-5": is_rms
            and not (shape.gated_mlp and shape.norm_eps == 1e-5),
            "RMSNorm and attention pooling": is_rms and shape.pool == "map",
            "RMSNorm and rotary position embeddings": is_rms and eva,
            "a norm after the patch projection without RMSNorm": shape.patch_norm and not is_rms,
            "a patch projection with a norm but without a bias": shape.patch_norm
            and shape.embed_norm,
            "rotary position embeddings or SwiGLU in layers without biases": eva
            and not shape.proj_bias,
            f"rotary position embeddings or SwiGLU and the activation {shape.activation}": eva
            and uses_gelu
            and shape.activation != "gelu",
            "neither learned nor rotary position embeddings": not (shape.positions or shape.rope),
        }
    )
    return odd and f"the model has {odd}, which the timm format does not support"


def _is_eva(shape: ViTConfig) -> bool:
    """Return whether only timm's `Eva` can build this architecture, not its `VisionTransformer`."""
    pools_prefix = shape.pool == "map" and bool(shape.num_prefix or shape.pool_heads)
    has_gate = shape.gated_mlp and shape.norm_layer == "layernorm"
    return shape.rope is not None or not shape.positions or has_gate or pools_prefix


def has_other_names(shape: AnyConfig) -> bool:
    """Return whether timm uses other names for some tensors of this architecture."""
    return isinstance(shape, ViTConfig) and (_is_eva(shape) or shape.gated_mlp)


def _timm_config(trained: TrainedRun) -> dict[str, Any]:
    """Return the content of config.json in timm's hub format, for a model that timm can build."""
    card, shape, model = trained.card, trained.card.architecture, trained.model
    ours: dict[str, Any] = {"classifier": model.head_name}
    if isinstance(shape, ViTConfig):
        name, pool = _timm_name(shape), {"global_pool": timm_pool(shape)}
        arguments = {
            "img_size": list(shape.image_size),
            "patch_size": list(shape.patch_size),
            "in_chans": shape.in_channels,
            "embed_dim": shape.width,
            "depth": shape.depth,
            "num_heads": shape.heads,
            "mlp_ratio": shape.mlp_ratio,
            "qkv_bias": shape.qkv_bias,
            "no_embed_class": not shape.prefix_positions,
            **pool,
            **(_eva_arguments(shape) if _is_eva(shape) else _vit_arguments(shape)),
        }
        ours |= {"pool_size": None, "first_conv": shape.first_conv}
    else:
        size = {"img_size": list(shape.image_size)} if shape.sized else {}
        name, arguments, pool = shape.timm, {"in_chans": shape.in_channels, **size}, {}
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
            "fixed_input_size": isinstance(shape, ViTConfig) or shape.sized,
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
    }
    arguments |= {"pre_norm": False} if _is_clip_like(shape) else {}
    arguments |= {"pre_norm": True} if shape.embed_norm else {}
    arguments |= {"act_layer": shape.activation} if shape.activation != "gelu" else {}
    arguments |= {} if shape.class_token else {"class_token": False}
    arguments |= {"fc_norm": False} if shape.norm_before_pool else {}
    arguments |= {} if shape.final_norm else {"final_norm": False}
    arguments |= {} if shape.proj_bias else {"proj_bias": False}
    arguments |= {"scale_attn_norm": True} if shape.attn_norm else {}
    arguments |= {"scale_mlp_norm": True} if shape.mlp_norm else {}
    if shape.gated_mlp:  # AIMv2, whose own defaults would otherwise apply
        arguments.pop("act_layer", None)
        arguments |= {"class_token": shape.class_token, "proj_bias": shape.proj_bias}
        arguments |= {"fc_norm": shape.last_norm == "fc_norm"}
        arguments |= {} if shape.patch_norm else {"embed_norm_layer": None}
    return arguments | ({"init_values": shape.layer_scale} if shape.layer_scale else {})


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
    rope = shape.rope
    if rope is not None:
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
        return _HYBRIDS[shape.stem]
    if _is_eva(shape):
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
