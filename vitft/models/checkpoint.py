"""Checkpoints: one file with model weights and everything needed to use them, verified on load.

A checkpoint is a safetensors file whose metadata contain a `Card` and a digest of the card and the
tensors. It is written under a temporary name, flushed and renamed, so a crash leaves either the old
file or the new one. Files written by other tools are read by `vitft.models.pretrained`.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import overload

import torch
from safetensors import safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.models.card import (
    TORCH_TYPES,
    AnyConfig,
    Card,
    TimmConfig,
    checkpoint_metadata,
    open_checkpoint,
    tensor_mismatch,
)
from vitft.models.timm_model import Model, TimmModel, untrained
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import RunError
from vitft.system.files import write_atomically
from vitft.system.tensors import TensorFacts, with_sorted_metadata


def save_checkpoint(path: Path, state: Mapping[str, Tensor], card: Card) -> str:
    """Write weights and card to `path` atomically and return their digest.

    Raises:
        ResourceError: The disk is full.
        RunError: The folder is not writable.
    """
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    text = card.to_json()
    digest = state_digest(text, tensors)
    content = to_safetensors(tensors, metadata=checkpoint_metadata(text, digest))
    write_atomically(path, with_sorted_metadata(content))
    return digest


def load_checkpoint(
    path: Path, *, digest: Callable[[], str] | None = None
) -> tuple[dict[str, Tensor], Card]:
    """Return the tensors and the card of a checkpoint, after verifying its digest.

    The tensors are views of the memory-mapped file. `digest` returns the digest of the contents,
    e.g. from a thread that is already computing it (default: `CheckpointFile.digest`).

    Raises:
        RunError: The file is missing, damaged, of another format or not written by vitft.
    """
    opened = open_checkpoint(path)
    opened.check_digest(opened.digest() if digest is None else digest())
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in opened.tensors}, opened.card


def state_digest(card: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of the card and of each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(card.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@overload
def build_model(state: Mapping[str, Tensor], config: ViTConfig) -> VisionTransformer: ...
@overload
def build_model(state: Mapping[str, Tensor], config: AnyConfig) -> Model: ...
def build_model(state: Mapping[str, Tensor], config: AnyConfig) -> Model:
    """Return a model in eval mode that uses the given tensors without copying them.

    A timm model is first initialised by timm, because some of its buffers are not stored in files.

    Raises:
        RunError: The tensors do not match the architecture, or timm cannot build the model.
    """
    model = on_meta(config)
    if mismatch := tensor_mismatch(facts_of(state), facts_of(model.state_dict())):
        raise RunError(
            f"the weights do not match the architecture: {mismatch}",
            fix="copy the file again from its original location",
        )
    if isinstance(config, TimmConfig):
        model = TimmModel(config)
    model.load_state_dict(dict(state), strict=True, assign=True)
    return model.eval()


def on_meta(config: AnyConfig) -> Model:
    """Return a model whose tensors take up no memory, or raise RunError if timm cannot build it."""
    try:
        with torch.device("meta"):
            return untrained(config)
    except Exception as error:  # timm's architectures raise different errors
        assert isinstance(config, TimmConfig)
        raise RunError(
            f"timm cannot build {config.timm} for {config.image_size[0]}x{config.image_size[1]} "
            f"pixels: {str(error)[:100]}",
            fix="install the version of timm with which the model was trained",
        ) from error


def facts_of(state: Mapping[str, Tensor]) -> dict[str, TensorFacts]:
    """Return the shape and type of each tensor; types are named as in safetensors headers."""
    names = {kind: name for name, kind in TORCH_TYPES.items()}
    return {
        name: TensorFacts(names.get(str(value.dtype), str(value.dtype)), tuple(value.shape))
        for name, value in state.items()
    }
