"""Opening of checkpoint files: the card is checked, and the tensors are mapped into memory.

Both engines (torch and NumPy) open a checkpoint with `open_checkpoint`, so they accept the same
files. Does not import torch.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitft.models.card import Card, read_card
from vitft.system.errors import RunError
from vitft.system.safetensors_file import TensorFacts, map_tensors, read_header

_FORMAT_VERSION = "1"
TORCH_TYPES: Mapping[str, str] = {
    "F64": "torch.float64",
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "I64": "torch.int64",
    "I32": "torch.int32",
    "I16": "torch.int16",
    "I8": "torch.int8",
    "U8": "torch.uint8",
    "BOOL": "torch.bool",
}
"""Mapping from the names of tensor types in a checkpoint to the names used in its digest."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint whose card is valid and matches the tensors; the digest is not verified."""

    path: Path
    card: Card
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorFacts]  # type and shape of each tensor, sorted by name
    data: Mapping[str, memoryview]  # bytes of each tensor in the memory-mapped file

    def digest(self) -> str:
        """Return the digest of the card and the tensors, after reading the whole file."""
        return content_digest(self.metadata["vitft.card"], self.tensors, self.data)

    def check_digest(self, digest: str) -> None:
        """Raise RunError if the metadata differ from those for `digest`, that of the contents."""
        if self.metadata != checkpoint_metadata(self.metadata["vitft.card"], digest):
            raise _damaged_checkpoint(self.path)


def open_checkpoint(path: Path) -> CheckpointFile:
    """Map a checkpoint into memory and check its card, but do not verify its digest.

    Raises:
        RunError: The file is missing, damaged, of another format or not written by vitft.
    """
    if not path.is_file():
        raise RunError(f"checkpoint not found: {path}", fix="check the path of the run directory")
    try:
        header = read_header(path)
        data = map_tensors(path, header)
    except (OSError, ValueError) as error:
        raise _damaged_checkpoint(path, str(error)) from error
    metadata, tensors = header.metadata, {name: header.tensors[name] for name in data}
    if "vitft.card" not in metadata:
        raise RunError(
            f"{path} was not written by vitft",
            fix="use a run directory, or pass the file to a new run with --weights",
        )
    if metadata.get("vitft.format") != _FORMAT_VERSION:
        raise RunError(
            f"{path} has checkpoint format {str(metadata.get('vitft.format'))[:20]}, but this "
            f"version of vitft supports only format {_FORMAT_VERSION}",
            fix="install the version of vitft that wrote the file",
        )
    try:
        for name, facts in tensors.items():
            if facts.dtype not in TORCH_TYPES:
                raise ValueError(f"tensor {name[:100]} has unsupported type {facts.dtype}")
        card = read_card(metadata["vitft.card"], tensors)
    except ValueError as error:
        digest = content_digest(metadata["vitft.card"], tensors, data)
        if metadata != checkpoint_metadata(metadata["vitft.card"], digest):
            raise _damaged_checkpoint(path) from error
        raise _damaged_checkpoint(path, f"its card is invalid: {error}") from error
    return CheckpointFile(path, card, metadata, tensors, data)


def lacks_card(path: Path) -> bool:
    """Return whether a file is a safetensors file without a vitft card. Reads only the header."""
    try:
        return "vitft.card" not in read_header(path).metadata
    except (OSError, ValueError):
        return False  # the error is reported when the file is read


def content_digest(
    card: str, tensors: Mapping[str, TensorFacts], data: Mapping[str, memoryview]
) -> str:
    """Return the sha256 of the card and of each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(card.encode())
    for name, facts in tensors.items():
        kind = TORCH_TYPES.get(facts.dtype, facts.dtype)
        digest.update(f"\n{name} {kind} {facts.shape}\n".encode())
        digest.update(data[name])
    return digest.hexdigest()


def checkpoint_metadata(card: str, digest: str) -> dict[str, str]:
    """Return the complete metadata of a checkpoint; any others show that a file has changed."""
    return {
        "format": "pt",
        "vitft.format": _FORMAT_VERSION,
        "vitft.card": card,
        "vitft.sha256": digest,
    }


def _damaged_checkpoint(
    path: Path, reason: str = "the sha256 of the contents differs from the recorded one"
) -> RunError:
    return RunError(
        f"damaged checkpoint: {path} ({reason})",
        fix="copy the file again from its original location, or train the model again",
    )
