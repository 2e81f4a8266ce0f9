"""The one file a model lives in: weights plus everything needed to use them, checked on every load.

A checkpoint is a safetensors file whose metadata holds a `Card` and a digest over card and
tensors. It is written to a temporary name, flushed and renamed, so a crash leaves the old file or
the new one. Foreign weight files are read in `pretrained`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, overload

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

FORMAT = "1"

M = TypeVar("M", VisionTransformer, TimmModel)


Provenance = TypedDict(
    "Provenance",
    {
        "name": str,  # as given by --weights; "none" for a new model
        "source": str,  # file, or owner/repository/file on the hub
        "revision": str,  # commit of the repository
        "sha256": str,  # of the file
        "licence": str,  # SPDX identifier, as the catalogue states it
        "training": str,  # how weights of this project were made
        "data": str,  # and on what
        "from": str,  # name of the weights from which these were fine-tuned
    },
    total=False,
)
"""Origin of pretrained weights; only what is known is present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What travels with the weights."""

    architecture: AnyConfig
    transform: EvalTransform
    """How an image becomes the model's input; the only description of it."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the head's outputs; empty for a bare backbone."""
    weights: Provenance = field(default_factory=Provenance)
    """Where the pretrained weights came from."""
    pos_embed: str = "as loaded"
    """How the positions were resized from the pretrained grid."""
    split: str = ""
    """Digest of the split manifest that training and validation used."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read back `to_json`."""
        rest = dict(fields)
        return cls(
            architecture=config_from_json(rest.pop("architecture")),
            transform=EvalTransform.from_json(rest.pop("transform")),
            classes=tuple(rest.pop("classes")),
            **rest,
        )


def save_checkpoint(path: Path, state: Mapping[str, Tensor], card: Card) -> str:
    """Write weights and card to `path`, whole or not at all; returns the digest.

    Raises:
        ResourceError: The disk is full. An older file at `path` is untouched.
        RunError: The folder cannot be written.
    """
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    text = json.dumps(card.to_json(), sort_keys=True)
    digest = digest_of(text, tensors)
    write_atomically(path, to_safetensors(tensors, metadata=metadata_of(text, digest)))
    return digest


def load_checkpoint(
    path: Path, *, digest: Callable[[], str] | None = None
) -> tuple[dict[str, Tensor], Card]:
    """Read what `save_checkpoint` wrote; the tensors are views of the mapped file.

    Args:
        path: The file.
        digest: Gives what `digest_of` would, computed meanwhile (`numpy_model.Mapped.digest`).

    Raises:
        RunError: Missing, damaged (the digest does not fit) or of a newer format.
    """
    if not path.is_file():
        raise RunError(f"checkpoint not found: {path}", fix="check the path of the run folder")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise damaged(path, str(error)) from error
    if "vitft.card" not in metadata:
        raise RunError(
            f"{path} was not written by vitft",
            fix="give a run folder, or use the file as --weights of a new run",
        )
    if metadata.get("vitft.format") != FORMAT:
        raise RunError(
            f"{path} has format {metadata.get('vitft.format')}, this vitft reads {FORMAT}",
            fix="update vitft to the version that wrote it",
        )
    card = metadata["vitft.card"]
    found = digest() if digest is not None else digest_of(card, tensors)
    if metadata != metadata_of(card, found):
        raise damaged(path, "the sha256 of its contents differs from the recorded one")
    try:
        return tensors, Card.from_json(json.loads(card))
    except (ValueError, TypeError, KeyError, UsageError) as error:
        raise damaged(path, f"its card cannot be read: {error}") from error


def metadata_of(card: str, digest: str) -> dict[str, str]:
    """The whole of the file's metadata, so that no byte of it can change unnoticed."""
    return {"format": "pt", "vitft.format": FORMAT, "vitft.card": card, "vitft.sha256": digest}


def is_checkpoint(metadata: Mapping[str, str] | None) -> bool:
    """Whether a safetensors file with this metadata is one of ours."""
    return bool(metadata) and "vitft.card" in (metadata or {})


def damaged(path: Path, reason: str) -> RunError:
    """The error of a file that is not what was written."""
    return RunError(
        f"damaged checkpoint: {path} ({reason})",
        fix="copy it again from where it came, or train again",
    )


def digest_of(card: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the card and each tensor's name, type, shape and bytes, names in order."""
    digest = hashlib.sha256(card.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@overload
def build_model(state: Mapping[str, Tensor], config: ViTConfig) -> VisionTransformer: ...
@overload
def build_model(state: Mapping[str, Tensor], config: TimmConfig) -> TimmModel: ...
@overload
def build_model(state: Mapping[str, Tensor], config: AnyConfig) -> Model: ...
def build_model(state: Mapping[str, Tensor], config: AnyConfig) -> Model:
    """A model that holds the given tensors themselves: no initialisation, no copy; in eval mode.

    (A model of timm is initialised by timm, whose buffers are not all in its files.)

    Raises:
        RunError: Names or shapes do not fit the architecture.
    """
    if isinstance(config, TimmConfig):
        return filled(TimmModel(config), state)
    blocks = {name.split(".")[1] for name in state if name.startswith("blocks.")}
    if len(blocks) != config.depth:  # before anything of a stranger's size is built
        raise RunError(
            f"the weights have {len(blocks)} blocks, the architecture {config.depth}",
            fix="the file and its card belong to different models; copy both again",
        )
    with torch.device("meta"):
        model = VisionTransformer(config)
    return filled(model, state)


def filled(model: M, state: Mapping[str, Tensor]) -> M:
    """The model around exactly these tensors."""
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    if wanted != found:
        names = sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))
        detail = ", ".join(f"{n} {found.get(n)} for {wanted.get(n)}" for n in names[:5])
        raise RunError(
            f"{len(names)} tensors do not fit the architecture: {detail}",
            fix="the file and its card belong to different models; copy both again",
        )
    model.load_state_dict(dict(state), strict=True, assign=True)
    return model.eval()


def holds_timm(path: Path) -> bool:
    """Whether a file is a checkpoint of ours with a model of timm in it; reads only its header."""
    if path.suffix.lower() != ".safetensors":
        return False
    try:
        with safe_open(path, framework="pt") as file:
            card = json.loads((file.metadata() or {}).get("vitft.card", "{}"))
        return "timm" in card.get("architecture", {})
    except (SafetensorError, OSError, ValueError, AttributeError, TypeError):
        return False  # whoever reads it says what is wrong
