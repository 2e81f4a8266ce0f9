"""Reader for weight files of any supported kind; never executes code from a file.

A file may contain several models, an optimiser and more. One model is chosen, and only the prefix
of its tensor names is removed. `convert` interprets these names and the layouts.
"""

import hashlib
import json
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from msgspec import Meta
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitft.data.signatures import looks_like
from vitft.models.card import TORCH_TYPES, sha256_of
from vitft.models.pretrained.catalog import catalog_entries, check_weight_file, file_and_part
from vitft.models.pretrained.convert import ROOT, described
from vitft.models.pretrained.fetch import short_message
from vitft.system.errors import WeightsError
from vitft.system.files import INDEX_SUFFIX, read_regular, weight_format
from vitft.system.structure import StructureError, structured
from vitft.system.tensors import check_expansion, read_header, read_npz
from vitft.system.text import count, listing, shell_quote

_WRAPPER = re.compile(
    r"(?<![^.:])(_orig_mod|_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module)\."
)
"""Pattern for the parts of names that torch.compile and sharded training add."""
_AVERAGE = re.compile(r"(?<![a-z])(ema|averaged_model)(?![a-z])|^teacher:")
_UNFIT = re.compile(r"(?<![a-z])momentum(?![a-z])|^student:")
"""Patterns for the roots of the better one (EMA) and of the worse one of two models in a file."""
_OPTIMISER = re.compile(r"(?<![a-z])(optim(izer)?s?|opt_?state|opt[/.:]state|mu|nu)(?![a-z])")
"""Pattern for the names of an optimiser's tensors, which may repeat those of the model."""
_BESIDE = (
    *("argparse.Namespace", "collections.defaultdict", "yacs.config.CfgNode"),
    *(f"pathlib{m}.{kind}Path" for m in ("", "._local") for kind in ("Posix", "Windows")),
    *(f"{m}.utilities.parsing.AttributeDict" for m in ("pytorch_lightning", "lightning.pytorch")),
    *("numpy.dtype", "numpy.ndarray"),
    *(f"numpy.{m}.multiarray.{f}" for m in ("core", "_core") for f in ("scalar", "_reconstruct")),
)
"""Globals in pickles that are allowed because a `_StandIn` replaces them."""


class _StandIn(dict[Any, Any]):
    """Inert object in place of settings, paths or numbers that are stored beside the weights."""

    def __init__(self, *_: object) -> None:
        super().__init__()

    def __setstate__(self, _: object) -> None:
        pass


@dataclass(frozen=True, slots=True)
class JsonTable:
    """JSON object with typed access to its values; errors name the file and the key."""

    path: Path
    values: Mapping[str, Any]

    def get(self, key: str, kind: Any, *, is_needed: bool = False) -> Any:  # noqa: ANN401
        """Return a value of an annotated type, or None if it is absent or null."""
        value = self.values.get(key)
        try:
            return structured(value, kind, key) if is_needed or value is not None else None
        except StructureError as error:
            raise WeightsError(f"{self.path}: {error}", fix="correct or remove the file") from error

    def table(self, key: str) -> "JsonTable":
        return JsonTable(self.path, self.get(key, dict[str, Any]) or {})

    def size(self, key: str) -> tuple[int, int] | None:
        """Return height and width from 224, [224, 224] or [3, 224, 224], or None if absent."""
        value = self.values.get(key)
        sides = value[-2:] if isinstance(value, list) else [value, value]
        side = Annotated[int, Meta(ge=1, le=16384)]
        pair = tuple[side, side]
        return None if value is None else JsonTable(self.path, {key: sides}).get(key, pair)


def read_table_file(path: Path) -> JsonTable | None:
    """Return the object in a JSON file, or None if it does not exist; raise an error if invalid."""
    if not path.is_file():
        return None
    fix = "correct or remove the file"
    try:
        values = json.loads(read_regular(path, limit=16 * 2**20))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON: {str(error)[:100]}", fix=fix) from error
    if not isinstance(values, dict):
        raise WeightsError(f"{path} does not contain a JSON object", fix=fix)
    return JsonTable(path, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawWeights:
    """Unchanged content of a weight file."""

    path: Path  # FILE, or FILE#NAME of one of several models
    tensors: Mapping[str, Tensor]  # those of one model, without the root of their names in the file
    metadata: Mapping[str, str]  # metadata in the header of a safetensors file
    sha256: str
    dropped: tuple[str, ...] = ()  # descriptions of the tensors that do not belong to the model
    notes: tuple[str, ...] = ()


def read_weights(
    path: Path,
    *,
    allow_pickle: bool = False,
    sha256: str | None = None,
    digest: str | None = None,
    names: Sequence[str] = (),
) -> RawWeights:
    """Read the tensors of a model; tensors in a .safetensors file are memory-mapped.

    `path` is FILE, which may be the index of several, or FILE#NAME for one of several models in it.
    `sha256` is the expected digest of the file, and `digest` the actual one, if already computed.
    `names` are those of the model's tensors (default: those of any Vision Transformer).
    """
    file, part = file_and_part(path)
    files = [file]
    if file.name.endswith(INDEX_SUFFIX) and (index := read_table_file(file)):
        names_of_files = sorted({*map(str, index.table("weight_map").values.values())})
        files = [file.parent / Path(name).name for name in names_of_files] or files
    for each in files:
        check_weight_file(each, allow_pickle=allow_pickle)
    if len(files) > 1:
        digest = hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()
    digest = digest or sha256_of(files[0])
    if sha256 is not None and sha256.lower() != digest:
        raise WeightsError(
            f"the sha256 of {path} is {digest}, not {sha256}",
            fix="download the file again, or correct the digest",
        )
    # The name of a published file contains the first 8 digits of its digest
    digits = re.search(r"-([0-9a-f]{8})\.", file.name)
    is_published = any(entry.was == file.name for entry in catalog_entries())
    if is_published and digits and not digest.startswith(digits[1]):
        raise WeightsError(
            f"{file} is not the published file of that name: its sha256 starts with {digest[:8]}",
            fix="download the file again, or rename it if it contains other weights",
        )
    metadata: Mapping[str, str] = {}
    every: dict[str, Tensor] = {}
    for each in files:
        found, metadata = _read_file(each)
        every |= found
    tensors, others, notes = _one_model(every, file, part, names)
    if any(weight_format(each) == "pickle" for each in files):
        _check_storage(tensors, file, sum(each.stat().st_size for each in files))
    _check_finite(tensors, file)
    return RawWeights(
        path=path,
        tensors=tensors,
        metadata=metadata,
        sha256=digest,
        dropped=described(others),
        notes=notes,
    )


def _one_model(
    tensors: Mapping[str, Tensor], file: Path, part: str | None, names: Sequence[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors of one model without the root of their names, the others, and notes."""
    plain = {_WRAPPER.sub("", name): tensor for name, tensor in tensors.items()}
    tensors = plain if len(plain) == len(tensors) else tensors
    labels = _model_roots(tensors, names)
    ranks = {
        root: bool(_UNFIT.search(root)) - bool(_AVERAGE.search(root))
        for root, label in labels.items()
        if part in (None, label) or f".{part}." in f".{label}."
    }
    best = min(ranks.values(), default=0)
    root, *rest = [root for root in ranks if ranks[root] == best] or ["", ""]
    shown = listing(label[:100] or "-" for label in labels.values())
    several = f"{count(len(labels), 'model')}: {shown}"
    choices = [shell_quote(f"{file}#{label}") for other, label in labels.items() if other != root]
    if rest:
        choices = [shell_quote(f"{file}#{label}") for label in labels.values()]
        raise WeightsError(
            f"{file} contains no model named {part}" if not ranks else f"{file} contains {several}",
            fix=f"use {' or '.join(choices[:3] if len(labels) > 1 else [str(file)])}",
        )
    used: dict[str, Tensor] = {}
    unused: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        inner = name.removeprefix(root)
        ends = [match.end() for match in re.finditer("[./:]", inner)]
        is_other = ":" in inner or any(root + inner[:end] in labels for end in ends)
        if is_other or not name.startswith(root):
            unused[name] = tensor
        else:
            used[inner] = tensor
    notes = (
        f"the file contains {several}. Of these, {labels[root] or '-'} is used. For another, use "
        f"{' or '.join(choices[:3])}",
    )
    return used, unused, notes if choices and part is None else ()


def _model_roots(tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, str]:
    """Return roots of names, such as `state_dict:module.`, with models' names."""
    tensors = {name: tensor for name, tensor in tensors.items() if not _OPTIMISER.search(name)}
    roots = [match[1] for name in tensors if (match := ROOT.fullmatch(name))]
    if names:  # the first and the last one of a timm model
        ends = [name.removesuffix(names[0]) for name in tensors if name.endswith(names[0])]
        roots = [root for root in ends if root + names[-1] in tensors]
    if not roots:
        folders = Counter(name.rpartition(":")[0] for name in tensors)
        largest = max(folders, key=folders.__getitem__, default="")
        inside = [name for name in tensors if name.rpartition(":")[0] == largest]
        added = re.compile(r"(?:.*:)?(?:(?:module|model)\.)*")
        roots = [min((m[0] for n in inside if (m := added.match(n))), key=len, default="")]
    return {root: re.sub("[./:]", ".", root).strip(".") for root in roots}


def _read_file(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Return all tensors in a file, memory-mapped if possible, and the header's metadata."""
    kind = weight_format(path)
    if kind == "pickle":
        return _read_pickle(path), {}
    try:
        if kind == "npz":
            return {name: torch.from_numpy(array) for name, array in read_npz(path).items()}, {}
        header = read_header(path)
        for name, facts in header.tensors.items():
            if facts.dtype not in TORCH_TYPES:
                raise _unsupported_type(path, name, facts.dtype)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in header.tensors}, header.metadata
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        name = ".npz file" if kind == "npz" else "safetensors file"
        raise _damaged_weights(name, path, error) from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Return all tensors in a torch pickle, with the keys of nested dictionaries in their names."""
    stand_ins: Any = [(_StandIn, name) for name in _BESIDE]
    try:
        with (
            path.open("rb") as file,  # from a path, torch chooses the format by the suffix
            warnings.catch_warnings(),
            torch.serialization.safe_globals(stand_ins),
        ):
            warnings.simplefilter("ignore")  # about tensors that are refused below
            if file.peek(2).startswith(b"PK"):  # torch's zip format; older files are plain pickles
                members = zipfile.ZipFile(file).infolist()
                check_expansion(sum(one.file_size for one in members), path.stat().st_size)
                file.seek(0)
            content = torch.load(file, weights_only=True, map_location="cpu", mmap=False)
    except MemoryError:
        raise
    except Exception as error:  # damaged pickles raise many kinds of exceptions
        refused = re.search(r"GLOBAL ([\w.]+)|(TorchScript)", str(error))
        if refused:
            raise WeightsError(
                f"rejected: {path} needs {refused[1] or refused[2]}, but vitft never runs code "
                "from a pickle",
                fix="save only the state dict, or use a .safetensors file",
            ) from error
        raise _damaged_weights("torch file", path, error) from error
    tensors = _nested_tensors(content, set())
    if not tensors or "" in tensors:
        raise WeightsError(
            f"{path} contains no named torch tensors, but a value of type {type(content).__name__}",
            fix="save model.state_dict() instead",
        )
    return tensors


def _nested_tensors(content: object, seen: set[int], root: str = "") -> dict[str, Tensor]:
    """Return the tensors in nested dictionaries, by their keys joined with colons."""
    if isinstance(content, Tensor):
        return {root: content}
    result: dict[str, Tensor] = {}
    if isinstance(content, dict) and id(content) not in seen and root.count(":") < 8:  # levels
        seen.add(id(content))  # a pickle may repeat dictionaries
        for key, value in content.items():
            result |= _nested_tensors(value, seen, f"{root}:{key}" if root else str(key))
    return result


def _check_storage(tensors: Mapping[str, Tensor], path: Path, packed: int) -> None:
    """Raise an error unless the tensors are dense arrays, all within files of `packed` bytes.

    A pickled tensor may have no data, be sparse, or repeat a few bytes to fill a huge shape.
    """
    total = 0
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in TORCH_TYPES.values() or tensor.is_quantized:
            raise _unsupported_type(path, name, str(tensor.dtype).removeprefix("torch."))
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.is_nested:
            raise WeightsError(
                f"{path}: tensor {name[:100]} has no data or is not a dense array",
                fix="move the model to the CPU, and save its state_dict()",
            )
        size = tensor.numel() * tensor.element_size()
        total += size
        if size > tensor.untyped_storage().nbytes() or total > 4 * packed + 2**20:
            raise WeightsError(
                f"rejected: {path} declares tensors larger than the file, e.g. {name[:100]} "
                f"{tuple(tensor.shape)}",
                fix="save model.state_dict() with contiguous tensors",
            )


def _unsupported_type(path: Path, name: str, kind: str) -> WeightsError:
    return WeightsError(
        f"{path}: tensor {name[:100]} has unsupported type {kind}",
        fix="use the original weights in float32, float16 or bfloat16",
    )


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    for name, tensor in tensors.items():  # NaN or infinity would make the sum non-finite
        if not tensor.is_floating_point() or bool(torch.isfinite(tensor.float().sum())):
            continue
        if number := int((~torch.isfinite(tensor.float())).sum()):
            raise WeightsError(
                f"{path}: tensor {name} contains {count(number, 'non-finite value')}",
                fix="use an earlier checkpoint, or other weights",
            )


def _damaged_weights(kind: str, path: Path, error: Exception) -> WeightsError:
    with path.open("rb") as file:
        start = file.read(64)
    content = looks_like(start) if start else "it is empty"
    reason = short_message(error) if "unknown" in content else content
    if "weights_only" in reason:  # torch's advice to run the code in the file
        reason = "its pickle is invalid"
    return WeightsError(f"damaged {kind}: {path} ({reason})", fix="copy or download the file again")
