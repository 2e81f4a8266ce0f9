"""Export formats --timm, --safetensors and --transformers: weights that libraries open by name.

For --safetensors, config.json is written if timm can build the model. timm then opens it with
`timm.create_model('local-dir:DIR', pretrained=True)` or from the hub.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.data.transforms import CROP_MODES, EvalTransform
from vitft.export.formats.base import ExportFormat, OpenedModel, module_logits, open_module
from vitft.export.trained import TrainedRun
from vitft.metrics.outputs import Outputs
from vitft.models.card import RUN_KEY, SEVERAL, THRESHOLDS, AnyConfig, Card
from vitft.models.checkpoint import build_model, load_checkpoint, save_checkpoint
from vitft.models.vit_config import SIZES, STEMS, TIMM_POOLS, Activation, ViTConfig
from vitft.system.files import write_atomically, write_json
from vitft.system.rundir import MODEL

# what timm and the formats of other programs can represent --------------------------------------

_HYBRIDS: Mapping[tuple[int, ...], str] = {
    stages: f"vit_{size}_{stem}_224"
    for size, (stem, (stages, _)) in zip(SIZES, STEMS.items(), strict=False)
}
"""Name of the timm model with each ResNet stem, keyed by the numbers of bottlenecks per stage."""


def _is_eva(shape: ViTConfig) -> bool:
    """Return whether only timm's `Eva` can build this architecture, not its `VisionTransformer`."""
    pools_prefix = shape.pool == "map" and bool(shape.num_prefix or shape.pool_heads)
    has_gate = shape.gated_mlp and shape.norm_layer == "layernorm"
    return shape.rope is not None or not shape.positions or has_gate or pools_prefix


_PROGRAMS = {
    "timm": "the timm format",
    "transformers": "ViTForImageClassification",
    "html": "the page",
}
_OTHERS, _BOTH = "transformers html", "timm transformers"
_PARTS: tuple[tuple[str, Callable[[Any], object], str], ...] = (
    ("a network of timm", lambda s: s.timm, _OTHERS),
    # The other rows are about Vision Transformers: only timm knows the parts of its networks.
    ("pre_logits (a Linear + Tanh before the head)", lambda s: s.pre_logits, _BOTH),
    ("a post-norm encoder", lambda s: s.norm == "post", _BOTH),
    ("a distillation token", lambda s: s.distilled, _BOTH),
    ("a convolutional stem", lambda s: s.convs, f"timm {_OTHERS}"),
    ("a hybrid stem", lambda s: s.stem is not None, _OTHERS),
    ("attention pooling", lambda s: s.pool == "map", _OTHERS),
    ("rotary position embeddings", lambda s: s.rope, _OTHERS),
    ("a SwiGLU MLP", lambda s: s.gated_mlp, _OTHERS),
    ("RMSNorm", lambda s: s.norm_layer == "rmsnorm", _OTHERS),
    ("no final LayerNorm", lambda s: not s.final_norm, _OTHERS),
    ("additional LayerNorms", lambda s: s.attn_norm or s.mlp_norm or s.patch_norm, _OTHERS),
    ("layers without biases", lambda s: not s.proj_bias, _OTHERS),
    ("no learned position embeddings", lambda s: not s.positions, _OTHERS),
    ("mean pooling", lambda s: s.pool == "mean", "transformers"),
    ("a LayerNorm before the first block", lambda s: s.embed_norm, "transformers"),
    ("LayerScale", lambda s: s.layer_scale, "transformers"),
    ("registers", lambda s: s.registers, "transformers"),
    ("position embeddings for the patches only", lambda s: not s.prefix_positions, "transformers"),
    ("neither learned nor rotary positions", lambda s: not (s.positions or s.rope), "timm"),
    ("a LayerNorm eps other than 1e-6 or 1e-5", lambda s: s.norm_eps not in (1e-6, 1e-5), "timm"),
    ("a non-standard ResNet stem", lambda s: s.stem not in (None, *_HYBRIDS), "timm"),
    (
        "a hybrid stem with a LayerNorm eps of 1e-5",
        lambda s: s.stem is not None and s.norm_eps == 1e-5,
        "timm",
    ),
    (
        "RMSNorm without SwiGLU or with an eps other than 1e-5",
        lambda s: s.norm_layer == "rmsnorm" and not (s.gated_mlp and s.norm_eps == 1e-5),
        "timm",
    ),
    (
        "RMSNorm with attention pooling or rotary position embeddings",
        lambda s: s.norm_layer == "rmsnorm" and (s.pool == "map" or _is_eva(s)),
        "timm",
    ),
    (
        "a norm after the patch projection without RMSNorm or without a bias",
        lambda s: s.patch_norm and (s.norm_layer != "rmsnorm" or s.embed_norm),
        "timm",
    ),
    (
        "rotary position embeddings or SwiGLU in layers without biases",
        lambda s: _is_eva(s) and not s.proj_bias,
        "timm",
    ),
    (
        "rotary position embeddings or SwiGLU without the activation GELU",
        lambda s: _is_eva(s) and s.activation != "gelu" and (not s.gated_mlp or s.pool == "map"),
        "timm",
    ),
)
"""Parts of a model, whether an architecture has them, and formats that cannot represent them."""


def unsupported_part(form: str, shape: AnyConfig) -> str:
    """Return which part of a model a format cannot represent, as a clause; empty if there is none.

    Formats that `_PARTS` does not name can represent every model.
    """
    for part, has_part, formats in _PARTS[:1] if shape.timm else _PARTS:
        if form in formats.split() and has_part(shape):
            return f"the model has {part}, which {_PROGRAMS[form]} does not support"
    return ""


# the formats -------------------------------------------------------------------------------------


class SafetensorsFormat(ExportFormat):
    """The file model.safetensors with its card, and config.json if timm can open this file."""

    name = "safetensors"
    reads_last_block = True

    def write(self, folder: Path) -> None:
        card = self.card
        save_checkpoint(folder / MODEL, self.trained.state, card)
        if not unsupported_part("timm", card.architecture) and not _has_other_names(card):
            write_json(folder / "config.json", _timm_config(self.trained))

    def open(self, folder: Path) -> OpenedModel:
        state, card = load_checkpoint(folder / MODEL)
        return open_module(build_model(state, card.architecture), card)


class TimmFormat(SafetensorsFormat):
    """The same files as `SafetensorsFormat`, for timm; only for models that timm can build.

    If timm uses other names for some tensors, the file has timm's names and no card.
    """

    name = "timm"

    def obstacle(self) -> str:
        return unsupported_part("timm", self.card.architecture)

    def write(self, folder: Path) -> None:
        trained = self.trained
        if not _has_other_names(self.card):
            super().write(folder)
            return
        # The tensors as in timm's `Eva`, or in a ViT with two matrices per SwiGLU MLP
        vit, tensors = self.card.vit, dict[str, Tensor]()
        is_split = vit.gated_mlp and (vit.mlp_norm or not _is_eva(vit))
        for name, tensor in trained.state.items():
            if _is_eva(vit):
                name = re.sub(r"(blocks\.\d+\.)ls([12])\.gamma", r"\1gamma_\2", name)
            fused = re.fullmatch(r"(blocks\.\d+\.mlp\.fc1)\.(weight|bias)", name)
            if fused and is_split:
                for part, half in zip(("g", "x"), tensor.chunk(2), strict=True):  # gates and values
                    tensors[f"{fused[1]}_{part}.{fused[2]}"] = half.contiguous()
            else:
                tensors[name] = tensor.contiguous()
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
            outputs=Outputs.of(model.pretrained_cfg["label_names"]),
            prepare=lambda image: np.asarray(view(image.convert(mode)).numpy()),
            logits=module_logits(model),
        )


def _has_other_names(card: Card) -> bool:
    """Return whether timm uses other names for some tensors of this architecture."""
    return not card.architecture.timm and (_is_eva(card.vit) or card.vit.gated_mlp)


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
            **(_eva_arguments(vit) if _is_eva(vit) else _vit_arguments(vit)),
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
            **_timm_preprocessing(card.transform, shape.in_channels),
            # Otherwise, timm would pass an image size to a builder that does not accept one.
            "fixed_input_size": shape.sized,
        },
    }


def _timm_preprocessing(transform: EvalTransform, channels: int) -> dict[str, Any]:
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


# export format --transformers: a folder that transformers opens as one of its Vision Transformers.
# The image processors of transformers resize torchvision tensors, and the results differ from
# Pillow's by one grey level in most pixels. They also round odd margins down, whereas timm and
# torchvision round half to even. The folder therefore specifies the processor for timm models, the
# only one in transformers that computes vitft's transform exactly.

_HF_NAMES = {
    r"^blocks\.": "vit.encoder.layer.",
    r"attn\.qkv": "attention.attention.qkv",
    r"attn\.proj": "attention.output.dense",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    r"mlp\.fc1": "intermediate.dense",
    r"mlp\.fc2": "output.dense",
    "^cls_token": "vit.embeddings.cls_token",
    "^pos_embed": "vit.embeddings.position_embeddings",
    r"^patch_embed\.proj": "vit.embeddings.patch_embeddings.projection",
    "^norm": "vit.layernorm",
    "^head": "classifier",
}
"""Mapping from parts of vitft's tensor names to those in transformers' files.

Both transformers 4 and 5 read and write these names; in memory, version 5 uses shorter ones.
"""
_HF_ACTIVATIONS: Mapping[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
}
"""Mapping from vitft's names of activation functions to the names in transformers."""


class TransformersFormat(ExportFormat):
    """The files config.json, preprocessor_config.json and model.safetensors for transformers."""

    name = "transformers"
    reads_last_block = True

    def obstacle(self) -> str:
        return unsupported_part("transformers", self.card.architecture)

    def write(self, folder: Path) -> None:
        card, shape = self.card, self.card.vit
        processor: dict[str, Any] = {
            "image_processor_type": "TimmWrapperImageProcessor",
            "architecture": "vit",
            "pretrained_cfg": _timm_preprocessing(card.transform, shape.in_channels),
        }
        if card.transform.grey_range:  # only vitft reads it
            processor["pretrained_cfg"]["grey_range"] = [*card.transform.grey_range]
        config = {
            "architectures": ["ViTForImageClassification"],
            "model_type": "vit",
            "hidden_size": shape.width,
            "num_hidden_layers": shape.depth,
            "num_attention_heads": shape.heads,
            "intermediate_size": int(shape.width * shape.mlp_ratio),
            "hidden_act": _HF_ACTIVATIONS[shape.activation],
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "layer_norm_eps": shape.norm_eps,  # transformers' default is 1e-12
            "image_size": _side_or_sides(shape.image_size),
            "patch_size": _side_or_sides(shape.patch_size),
            "num_channels": shape.in_channels,
            "qkv_bias": shape.qkv_bias,
            **labels_of(card),
            "dtype": "float32",
            **({THRESHOLDS: list(card.thresholds)} if card.several else {}),
            **({RUN_KEY: card.run.to_json()} if card.run else {}),
        }
        # If a folder is opened by its path, transformers reads the processor from config.json.
        write_json(folder / "config.json", config | processor)
        write_json(folder / "preprocessor_config.json", processor)
        tensors = _hf_tensors(self.trained.state)
        write_atomically(folder / MODEL, to_safetensors(tensors, metadata={"format": "pt"}))

    def open(self, folder: Path) -> OpenedModel:
        import transformers

        with _silenced_transformers():
            processor = transformers.AutoImageProcessor.from_pretrained(
                folder, local_files_only=True
            )
            model = transformers.AutoModelForImageClassification.from_pretrained(
                folder, local_files_only=True
            ).eval()
        names = model.config.id2label
        mode = "L" if model.config.num_channels == 1 else "RGB"
        return OpenedModel(
            by=f"transformers {transformers.__version__}",
            outputs=Outputs.of(names[i] for i in range(len(names))),
            prepare=lambda image: np.asarray(
                processor(image.convert(mode), return_tensors="pt")["pixel_values"][0].numpy()
            ),
            logits=module_logits(lambda pixels: model(pixel_values=pixels).logits),
        )


def labels_of(card: Card) -> dict[str, Any]:
    """Return the fields of transformers' configurations that describe the classes."""
    return {
        "id2label": {str(i): name for i, name in enumerate(card.classes)},
        "label2id": {name: i for i, name in enumerate(card.classes)},
        "problem_type": SEVERAL if card.several else "single_label_classification",
    }


def _side_or_sides(size: tuple[int, int]) -> int | list[int]:
    """Return a single number for a square size, and [height, width] otherwise."""
    return size[0] if size[0] == size[1] else [*size]


def _hf_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by their names in transformers, with separate queries, keys and values."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        new = name
        for ours, theirs in _HF_NAMES.items():
            new = re.sub(ours, theirs, new)
        parts = ("query", "key", "value") if "qkv" in new else ("",)
        for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
            renamed[new.replace("qkv", part)] = rows.contiguous()
    return renamed


@contextmanager
def _silenced_transformers() -> Iterator[None]:
    """Suppress transformers' progress bars and warnings inside the `with` block."""
    from transformers.utils import logging

    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()
