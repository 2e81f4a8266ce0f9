"""Checkpoints: model weights and everything needed to use them in one file, verified on load.

A checkpoint is a safetensors file whose metadata holds a `Card` and a digest of card and
tensors. It is written to a temporary name, flushed and renamed, so a crash leaves either the old
file or the new one. Files written by other tools are read by `vitft.models.pretrained`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypedDict, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from vitft.data.transforms import EvalTransform
from vitft.models.timm_model import AnyConfig, Model, TimmConfig, TimmModel, config_from_json
from vitft.models.vit import VisionTransformer
from vitft.models.vit_config import ViTConfig
from vitft.system.errors import RunError, UsageError
from vitft.system.files import write_atomically

FORMAT_VERSION = "1"

Provenance = TypedDict(
    "Provenance",
    {
        "name": str,  # catalogue name, or file name without suffix
        "source": str,  # path, or repository and file
        "revision": str,  # commit of the repository
        "sha256": str,  # digest of the file
        "licence": str,
        "from": str,  # name of the weights that a checkpoint was fine-tuned from
        "training": str,  # training recipe of bundled weights
        "data": str,  # training data of bundled weights
    },
    total=False,
)
"""Origin of pretrained weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Description of a model, stored in the same file as its weights."""

    architecture: AnyConfig
    transform: EvalTransform
    """Evaluation transform: the complete description of how to prepare an image for the model."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the head's outputs; empty for a backbone without a head."""
    weights: Provenance = field(default_factory=Provenance)
    """Origin of the pretrained weights."""
    pos_embed: str = "as loaded"
    """Description of how the positions were resampled from the pretrained grid."""
    split: str = ""
    """Digest of the split manifest used for training and validation."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the card that `save_checkpoint` stored as JSON."""
        known = {
            "architecture": config_from_json(fields["architecture"]),
            "transform": EvalTransform.from_json(fields["transform"]),
            "classes": tuple(fields["classes"]),
        }
        return cls(**{**fields, **known})


def save_checkpoint(path: Path, state: Mapping[str, Tensor], card: Card) -> str:
    """Write weights and card to `path` atomically and return the digest.

    Raises:
        ResourceError: The disk is full. An older file at `path` is left unchanged.
        RunError: The folder cannot be written.
    """
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    text = json.dumps(asdict(card), sort_keys=True)
    digest = state_digest(text, tensors)
    write_atomically(path, to_safetensors(tensors, metadata=checkpoint_metadata(text, digest)))
    return digest


def load_checkpoint(
    path: Path, *, digest: Callable[[], str] | None = None
) -> tuple[dict[str, Tensor], Card]:
    """Read a checkpoint and verify its digest. The tensors are views of the memory-mapped file.

    `digest` returns the result of `state_digest` if another thread is already computing it
    (`numpy_vit.MappedFile.digest`).

    Raises:
        RunError: The file is missing, damaged (the digest does not match) or of a newer format.
    """
    if not path.is_file():
        raise RunError(f"checkpoint not found: {path}", fix="check the path of the run directory")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise damaged_checkpoint(path, str(error)) from error
    if "vitft.card" not in metadata:
        raise RunError(
            f"{path} was not written by vitft",
            fix="use a run directory, or pass the file as --weights to a new run",
        )
    if metadata.get("vitft.format") != FORMAT_VERSION:
        raise RunError(
            f"{path} has checkpoint format {metadata.get('vitft.format')}, but this version of "
            f"vitft supports only format {FORMAT_VERSION}",
            fix="install the version of vitft that wrote the file",
        )
    card = metadata["vitft.card"]
    found = digest() if digest is not None else state_digest(card, tensors)
    if metadata != checkpoint_metadata(card, found):
        raise damaged_checkpoint(path, "the sha256 of the contents differs from the recorded one")
    try:
        return tensors, Card.from_json(json.loads(card))
    except (ValueError, TypeError, KeyError, UsageError) as error:
        raise damaged_checkpoint(path, f"its card is invalid: {error}") from error


def checkpoint_metadata(card: str, digest: str) -> dict[str, str]:
    """Return the complete metadata of a checkpoint; comparing all of it detects any change."""
    return {
        "format": "pt",
        "vitft.format": FORMAT_VERSION,
        "vitft.card": card,
        "vitft.sha256": digest,
    }


def damaged_checkpoint(path: Path, reason: str) -> RunError:
    """Return the error for a checkpoint whose content has changed since it was written."""
    return RunError(
        f"damaged checkpoint: {path} ({reason})",
        fix="copy the file again from its original location, or train the model again",
    )


def state_digest(card: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of the card and of the name, type, shape and bytes of each tensor."""
    digest = hashlib.sha256(card.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@overload
def build_model(state: Mapping[str, Tensor], config: ViTConfig) -> VisionTransformer: ...
@overload
def build_model(state: Mapping[str, Tensor], config: AnyConfig) -> Model: ...
def build_model(state: Mapping[str, Tensor], config: AnyConfig) -> Model:
    """Return a model in eval mode that uses the given tensors, without initialising or copying.

    (A timm model is first initialised by timm, because some of its buffers are not in its files.)

    Raises:
        RunError: The tensors' names or shapes do not match the architecture.
    """
    if isinstance(config, TimmConfig):
        return assign_state(TimmModel(config), state)
    blocks = {name.split(".")[1] for name in state if name.startswith("blocks.")}
    if len(blocks) != config.depth:  # checked before building a model of untrusted size
        raise RunError(
            f"the weights have {len(blocks)} blocks, but the architecture has {config.depth}",
            fix="copy the file again from its original location: it seems to mix two models",
        )
    with torch.device("meta"):
        return assign_state(VisionTransformer(config), state)


def assign_state(model: Model, state: Mapping[str, Tensor]) -> Model:
    """Return `model` in eval mode with exactly these tensors as its parameters."""
    if mismatch := state_mismatch(model, state):
        raise RunError(
            f"the weights do not match the architecture; {mismatch}",
            fix="copy the file again from its original location: it seems to mix two models",
        )
    model.load_state_dict(dict(state), strict=True, assign=True)
    return model.eval()


def state_mismatch(model: Model, state: Mapping[str, Tensor]) -> str:
    """Return the first five missing, unexpected and wrongly shaped tensors, or an empty string."""
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    lists = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "wrong shape": [
            f"{name} {found[name]} instead of {shape}"
            for name, shape in wanted.items()
            if found.get(name, shape) != shape
        ],
    }
    return "; ".join(f"{kind}: {first_five(names)}" for kind, names in lists.items() if names)


def first_five(names: Sequence[str]) -> str:
    """Return the first five names, separated by commas, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def holds_timm(path: Path) -> bool:
    """Return whether a file is a vitft checkpoint of a timm model. Reads only the header."""
    if path.suffix.lower() != ".safetensors":
        return False
    try:
        with safe_open(path, framework="pt") as file:
            card = json.loads((file.metadata() or {}).get("vitft.card", "{}"))
        return "timm" in card.get("architecture", {})
    except (SafetensorError, OSError, ValueError, AttributeError, TypeError):
        return False  # the error is reported when the file is read


def lacks_card(path: Path) -> bool:
    """Return whether a file is a safetensors file of another tool. Reads only the header."""
    try:
        with safe_open(path, framework="pt") as file:
            return "vitft.card" not in (file.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return False  # the error is reported when the file is read
