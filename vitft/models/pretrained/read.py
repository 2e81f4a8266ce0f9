"""Reader for weight files of any supported kind; never executes code from a file.

Names and layouts are not changed; `convert` interprets them.
"""

import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitft.models.checkpoint_file import TORCH_TYPES
from vitft.models.pretrained.catalog import catalog_entries
from vitft.models.pretrained.fetch import sha256_of
from vitft.models.pretrained.hub import short_message
from vitft.models.pretrained.locate import check_pickle, check_weight_file
from vitft.system.errors import WeightsError
from vitft.system.npz import read_npy
from vitft.system.safetensors_file import read_header
from vitft.system.text import count

WRAPPERS = ("state_dict", "model", "model_state_dict", "model_ema", "net", "module")
"""Keys under which training scripts store the weights in a pickle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawWeights:
    """Unchanged content of a weight file."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    """Metadata in the header of a safetensors file."""
    sha256: str


def read_weights(
    path: Path, *, allow_pickle: bool = False, sha256: str | None = None, digest: str | None = None
) -> RawWeights:
    """Read all tensors in a weight file; tensors in a .safetensors file are memory-mapped.

    Args:
        path: Path of the file; its suffix determines the format.
        allow_pickle: Whether to read .pth, .pt and .bin files too (with `weights_only=True`).
        sha256: Expected digest of the file.
        digest: Actual digest of the file, if already computed.

    Raises:
        WeightsError: The file is missing, damaged, refused or of an unsupported kind, has a
            different digest, or contains a value that is not finite.
    """
    if not path.exists():
        raise WeightsError(f"weights not found: {path}", fix="check the path")
    check_pickle(check_weight_file(path), allowed=allow_pickle)
    digest = digest or sha256_of(path)
    if sha256 is not None and sha256.lower() != digest:
        raise WeightsError(
            f"the sha256 of {path} is {digest}, not {sha256}",
            fix="download the file again, or correct the digest",
        )
    check_published_digest(path, digest)
    metadata: Mapping[str, str] = {}
    if path.suffix.lower() == ".safetensors":
        tensors, metadata = read_safetensors(path)
    elif path.suffix.lower() == ".npz":
        tensors = read_npz_weights(path)
    else:
        tensors = read_pickle(path)
    check_finite(tensors, path)
    return RawWeights(path=path, tensors=tensors, metadata=metadata, sha256=digest)


def check_published_digest(path: Path, digest: str) -> None:
    """Check the digest of a file that has the same name as a published file.

    The name of a published file contains the first 8 digits of its digest.

    Raises:
        WeightsError: The digest does not begin with the digits in the name.
    """
    published = {entry.was for entry in catalog_entries() if entry.was}
    digits = re.search(r"-([0-9a-f]{8})\.", path.name)
    if path.name in published and digits and not digest.startswith(digits[1]):
        raise WeightsError(
            f"{path} is not the published file of that name: its sha256 starts with {digest[:8]}",
            fix="download the file again, or rename it if it contains other weights",
        )


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Return the memory-mapped tensors and the header's metadata of a safetensors file.

    Raises:
        WeightsError: The file is damaged, or a tensor has an unsupported type.
    """
    try:
        header = read_header(path)
        for name, facts in header.tensors.items():
            if facts.dtype not in TORCH_TYPES:
                raise unsupported_type(path, name, facts.dtype)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in header.entries}, header.metadata
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise damaged_weights("safetensors file", path, error) from error


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a torch pickle, without the wrappers that training scripts add.

    Raises:
        WeightsError: The installed torch reads pickles unsafely, or the file is damaged or contains
            anything other than named dense tensors.
    """
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 10):
        raise WeightsError(
            f"torch {torch.__version__} reads pickles unsafely (CVE-2026-24747)",
            fix="update to torch 2.10 or later, or use a .safetensors file",
        )
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"  # torch's zip format; older files are plain pickles
    if zipped:
        open_archive(path, "torch file").close()  # refuses zip bombs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tensors that are refused below
            content = torch.load(path, weights_only=True, map_location="cpu", mmap=False)
    except MemoryError:
        raise
    except Exception as error:  # damaged pickles raise many kinds of exceptions
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise WeightsError(
                f"refused: {path} needs {refused[1]}, but vitft never runs code from a pickle",
                fix="save only the state dict, or use a .safetensors file",
            ) from error
        raise damaged_weights("torch file", path, error) from error
    return state_dict_in(content, path)


def state_dict_in(content: Any, path: Path) -> dict[str, Tensor]:  # noqa: ANN401
    """Return the named tensors in an object that a training script has saved.

    Raises:
        WeightsError: The object contains no named tensors, contains other values as well, or has
            tensors that `check_storage` refuses.
    """
    for _ in WRAPPERS:
        inner = [content[key] for key in WRAPPERS if isinstance(content, dict) and key in content]
        if not inner or not isinstance(inner[0], dict):
            break
        content = inner[0]
    if not isinstance(content, dict) or not content:
        raise WeightsError(
            f"{path} contains a value of type {type(content).__name__} instead of named tensors",
            fix="save model.state_dict() instead",
        )
    odd = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if odd:
        raise WeightsError(
            f"{path} contains values that are not tensors: {', '.join(odd[:5])}",
            fix="save only model.state_dict()",
        )
    tensors = {str(name): value for name, value in content.items()}
    check_storage(tensors, path)
    return tensors


def check_storage(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Check that the tensors from a pickle are dense arrays whose values are all in the file.

    A pickled tensor may have no data, be sparse, or repeat a few bytes to fill a huge shape.

    Raises:
        WeightsError: A tensor is of one of these kinds, or its type is not supported.
    """
    total = 0
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in TORCH_TYPES.values() or tensor.is_quantized:
            raise unsupported_type(path, name, str(tensor.dtype).removeprefix("torch."))
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.is_nested:
            raise WeightsError(
                f"{path}: tensor {name[:100]} has no data or is not a dense array",
                fix="move the model to the CPU, and save its state_dict()",
            )
        size = tensor.numel() * tensor.element_size()
        total += size
        if size > tensor.untyped_storage().nbytes() or total > 4 * path.stat().st_size + 2**20:
            raise WeightsError(
                f"refused: {path} is smaller than its tensors, e.g. {name[:100]} "
                f"{tuple(tensor.shape)}",
                fix="save model.state_dict() with contiguous tensors",
            )


def unsupported_type(path: Path, name: str, kind: str) -> WeightsError:
    """Return the error for a tensor whose values have an unsupported type."""
    return WeightsError(
        f"{path}: tensor {name[:100]} has unsupported type {kind}",
        fix="use the original weights in float32, float16 or bfloat16",
    )


def read_npz_weights(path: Path) -> dict[str, Tensor]:
    """Return the arrays of a NumPy archive, each checked against the archive's directory.

    Raises:
        WeightsError: The archive is damaged or refused, or an array does not contain floating-point
            numbers.
    """
    tensors: dict[str, Tensor] = {}
    with open_archive(path, ".npz file") as archive:
        for member in archive.infolist():
            try:
                with archive.open(member) as file:
                    array = read_npy(file, member.file_size, kinds="f")
            except MemoryError:
                raise
            except Exception as error:  # zipfile, zlib, tokenize and ast raise different errors
                raise damaged_weights(".npz file", path, error) from error
            tensors[member.filename.removesuffix(".npy")] = torch.from_numpy(array)
    return tensors


def open_archive(path: Path, kind: str) -> zipfile.ZipFile:
    """Open a zip archive, unless the unpacked size given in its directory is implausible.

    Raises:
        WeightsError: The archive is damaged, or the unpacked size is implausible.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise damaged_weights(kind, path, error) from error
    unpacked = sum(member.file_size for member in archive.infolist())
    packed = path.stat().st_size
    if unpacked > min(16 * 2**30, 20 * packed):  # ViT-H takes 2.5 GB; weights hardly compress
        archive.close()
        raise WeightsError(
            f"refused: {path} has {packed:,} bytes but unpacks to {unpacked:,}",
            fix="download the file again from its publisher",
        )
    return archive


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Check that no tensor contains NaN or infinity, which would affect every prediction.

    Raises:
        WeightsError: A tensor contains a value that is not finite.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or bool(torch.isfinite(tensor.float().sum())):
            continue  # any non-finite value would make the sum non-finite
        number = int((~torch.isfinite(tensor.float())).sum())
        if number:
            raise WeightsError(
                f"{path}: tensor {name} contains {count(number, 'non-finite value')}",
                fix="use an earlier checkpoint, or other weights",
            )


def damaged_weights(kind: str, path: Path, error: Exception) -> WeightsError:
    """Return an error that states why a file is not a valid `kind`."""
    reason = short_message(error)
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        reason = "it is empty"
    elif start.startswith(b"version https://git-lfs"):
        reason = "it is a Git LFS pointer; run `git lfs pull`"
    elif start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        reason = "it is a web page"
    return WeightsError(f"damaged {kind}: {path} ({reason})", fix="copy or download the file again")
