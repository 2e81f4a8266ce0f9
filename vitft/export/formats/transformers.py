"""Export format --transformers: a folder that transformers opens as one of its Vision Transformers.

The image processors of transformers resize torchvision tensors, and the results differ from
Pillow's by one grey level in most pixels. They also round odd margins down, whereas timm and
torchvision round half to even. The folder therefore specifies the processor for timm models, the
only one in transformers that computes vitft's transform exactly.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.export.formats.base import ExportFormat, OpenedModel, module_logits, unsupported_part
from vitft.export.formats.onnx import (
    MAX_ERROR_RESIZED,
    MAX_INLINE_BYTES,
    open_onnx,
    parameter_bytes,
    quantize_file,
    resize_obstacle,
    save_graph,
    silenced,
)
from vitft.export.formats.timm import timm_preprocessing
from vitft.export.trained import TrainedRun
from vitft.models.card import RUN_KEY, SEVERAL, THRESHOLDS, Card
from vitft.models.find import ONNX_FILE
from vitft.models.vit_config import Activation
from vitft.system.errors import RunError
from vitft.system.files import write_atomically, write_json, writing
from vitft.system.rundir import MODEL

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

    reads_last_block = True

    def obstacle(self, card: Card) -> str:
        return unsupported_part("transformers", card.architecture)

    def write(self, trained: TrainedRun, folder: Path) -> None:
        card, shape = trained.card, trained.card.vit
        processor: dict[str, Any] = {
            "image_processor_type": "TimmWrapperImageProcessor",
            "architecture": "vit",
            "pretrained_cfg": timm_preprocessing(card.transform, shape.in_channels),
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
            **_labels_of(card),
            "dtype": "float32",
            **({THRESHOLDS: list(card.thresholds)} if card.thresholds else {}),
            **({RUN_KEY: card.run.to_json()} if card.run else {}),
        }
        # If a folder is opened by its path, transformers reads the processor from config.json.
        write_json(folder / "config.json", config | processor)
        write_json(folder / "preprocessor_config.json", processor)
        tensors = {name: tensor.contiguous() for name, tensor in _hf_tensors(trained.state).items()}
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
            classes=tuple(names[i] for i in range(len(names))),
            prepare=lambda image: np.asarray(
                processor(image.convert(mode), return_tensors="pt")["pixel_values"][0].numpy()
            ),
            logits=lambda inputs: module_logits(lambda x: model(pixel_values=x).logits, inputs),
        )


def _labels_of(card: Card) -> dict[str, Any]:
    """Return the fields of transformers' configurations that describe the classes."""
    return {
        "id2label": {str(i): name for i, name in enumerate(card.classes)},
        "label2id": {name: i for i, name in enumerate(card.classes)},
        "problem_type": SEVERAL if card.thresholds else "single_label_classification",
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
            renamed[new.replace("qkv", part)] = rows
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


# export format --transformers-js: a folder for image classification with transformers.js ----------

_PROCESSOR_SETTINGS: Mapping[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_convert_rgb": True,
    **dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), False),
}


class TransformersJsFormat(ExportFormat):
    """The files config.json, preprocessor_config.json and two graphs in onnx/."""

    graphs = (f"onnx/{ONNX_FILE}", "onnx/model_quantized.onnx")
    max_error = MAX_ERROR_RESIZED

    def obstacle(self, card: Card) -> str:
        if card.thresholds:
            return (
                "it is a multi-label model, and the image-classification pipeline of "
                "transformers.js would apply a softmax to its logits"
            )
        return resize_obstacle(card)

    def write(self, trained: TrainedRun, folder: Path) -> None:
        if parameter_bytes(trained) > MAX_INLINE_BYTES:
            raise RunError(
                "the model is too large for transformers.js, which reads a graph from one file of "
                "up to 2 GB",
                fix="use --onnx",
            )
        config = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
        write_json(folder / "config.json", config | _labels_of(trained.card))
        write_json(folder / "preprocessor_config.json", dict(_PROCESSOR_SETTINGS))
        exact, small = (folder / graph for graph in self.graphs)
        with writing(folder):
            exact.parent.mkdir()
        save_graph(trained, exact, takes_bytes=False, any_size=True)
        with writing(folder), silenced():
            quantize_file(exact, small)

    def open(self, folder: Path) -> OpenedModel:
        return open_onnx(folder / self.graphs[0])
