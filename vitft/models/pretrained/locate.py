"""Resolution of weight names and paths to catalogue entries and weight files.

Does not import torch, so that a wrong name or path is reported at once.
"""

import contextlib
import fnmatch
import os
import re
from pathlib import Path

from vitft.data.mistaken import mistaken_data
from vitft.data.signatures import looks_like
from vitft.models.pretrained.catalog import REPOSITORY, CatalogEntry, entries_by_name, find_entry
from vitft.models.vit_config import SIZES, frozen_blocks
from vitft.system.errors import WeightsError
from vitft.system.files import (
    CHECKSUM_SUFFIXES,
    INDEX_SUFFIX,
    WEIGHT_SUFFIXES,
    resource,
    weight_format,
)
from vitft.system.safetensors_file import read_header
from vitft.system.suggest import near_paths, path_fix
from vitft.system.text import count, listing, shell_quote

_FILE_SUFFIXES = (*WEIGHT_SUFFIXES, ".onnx", ".h5", ".gguf", ".zip", ".tar")
"""Suffixes that identify a string as a path rather than a name, even if no such file exists."""
_BLOCK = re.compile(r"(?:blocks|encoder\.layer|vit\.encoder\.layer)\.(\d+)\.")
"""Beginning of the name of a tensor of a block, in files of vitft and timm or transformers."""
RANDOM = "random:"  # `random:NAME` has NAME's architecture and random weights


def check_weights_name(
    name_or_path: str | Path,
    *,
    allow_pickle: bool = True,
    allow_random: bool = False,
    layers: str = "head",
) -> None:
    """Check that `load_backbone` can find these weights, without torch or network access.

    `layers` are the stages of training.

    Raises:
        WeightsError: They cannot be found, or are of an unsupported kind or a rejected pickle.
        UsageError: The weights are known to have fewer blocks than `layers`.
    """
    if isinstance(name_or_path, str) and allow_random:
        name_or_path = name_or_path.removeprefix(RANDOM)
    found = locate(name_or_path)
    size = ""
    if isinstance(found, CatalogEntry):
        size = found.size
        found = bundled_file(found) if found.path else Path(found.local)
    check_pickle(found, allowed=allow_pickle)
    depth = SIZES[size].depth if size in SIZES else _depth_in_header(found)
    for stage in layers.split(",") if depth else ():
        frozen_blocks(stage.strip(), depth)


def _depth_in_header(path: Path) -> int:
    """Return the number of blocks whose tensors a safetensors file names, or 0."""
    if weight_format(path) != "safetensors":
        return 0
    with contextlib.suppress(OSError, ValueError):
        found = (_BLOCK.match(name) for name in read_header(path).tensors)
        return max((1 + int(block[1]) for block in found if block), default=0)
    return 0


def locate(name_or_path: str | Path) -> CatalogEntry | Path:
    """Return the catalogue entry or the path of the weight file for a name or path.

    Catalogue names take precedence. For `hf:` and `timm:` names, an entry is created.

    Raises:
        WeightsError: The name is unknown or invalid, or the file is missing or not supported.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if isinstance(name_or_path, str):
        name = canonical_name(name)
        if name in entries_by_name():
            return find_entry(name)
        if entry := _parse_prefixed_name(name):
            return entry
    if "://" in name:
        raise WeightsError(
            f"{name} is a web address, and weights are fetched only from huggingface.co",
            fix="download the file, and pass its path",
        )
    if not name.strip():
        raise WeightsError(
            "the name of the weights is empty",
            fix="use a name from `vitft weights list`, or the path of a weight file",
        )
    if path.is_dir():
        return _weights_in_folder(path)
    if file_and_part(path)[0].exists():
        return check_weight_file(path)
    is_name = isinstance(name_or_path, str) and not name.startswith((".", "~", os.sep))
    is_misspelt = bool(path.suffix and near_paths(path, _may_be_weights))
    is_file = path.suffix.lower() in _FILE_SUFFIXES or is_misspelt
    if not is_name or name.endswith(os.sep) or is_file:
        raise WeightsError(
            f"weights not found: {path}",
            fix=path_fix(
                path, _may_be_weights, otherwise="or choose a name from `vitft weights list`"
            ),
        )
    return find_entry(name)  # raises an error that suggests similar names


def _weights_in_folder(path: Path) -> Path:
    """Return a folder's weight file: model.safetensors, or the only one of the best format."""
    with os.scandir(path) as found:
        entries = sorted(entry.name + "/" * entry.is_dir() for entry in found)
    parts = re.compile(r"-\d+-of-\d+\.")  # of which only their index counts
    training = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|random_states)")
    names = [n for n in entries if n.lower().endswith((*WEIGHT_SUFFIXES, ".tar", INDEX_SUFFIX))]
    names = [n for n in names if not parts.search(n) and not training.match(n)]
    for pattern in ("model.safetensors", "*.safetensors*", "pytorch_model.bin", "*"):
        files = fnmatch.filter(names, pattern)
        if len(files) == 1:
            return check_weight_file(path / files[0])
        if files:
            raise WeightsError(
                f"{path} contains {count(len(files), 'weight file')}: {listing(files)}",
                fix=f"pass one of them, e.g. {shell_quote(str(path / files[0]))}",
            )
    if (path / "model.onnx").is_file():
        raise WeightsError(
            f"{path} contains an ONNX graph, from which no weights are loaded",
            fix="use it with --run or vitft.load, or export the run with --safetensors",
        )
    if data := mistaken_data(path):
        raise WeightsError(f"{path} is {data.what}, not weights", fix=data.weights_fix)
    raise WeightsError(
        f"{path} contains no weight file ({listing(entries) if entries else 'it is empty'})",
        fix="pass a weight file, a run directory or a folder exported by vitft",
    )


def file_and_part(path: Path) -> tuple[Path, str | None]:
    """Return the file and the name of one of its models from `FILE#NAME`, or None for no name."""
    file, sign, part = str(path).rpartition("#")
    return (Path(file), part) if sign and not path.exists() else (path, None)


def _may_be_weights(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir() or entry.name.lower().endswith(WEIGHT_SUFFIXES)


def canonical_name(name: str) -> str:
    """Return hf:owner/name[@revision] for an address on the hub or timm's `hf-hub:`, or `name`."""
    found = re.fullmatch(r"(hf[-_]hub:|(https?://)?(www\.)?(huggingface\.co|hf\.co)/)(.+)", name)
    if found is None:
        return name
    named = re.sub(r"/(?:tree|blob|resolve)/([^/?]+).*|/?(?:\?.*)?$", r"@\1", found[5], count=1)
    return f"hf:{named.removesuffix('@main').rstrip('@')}"


def _parse_prefixed_name(name: str) -> CatalogEntry | None:
    """Return the entry for a name that begins with `hf:` or `timm:`, or None for any other name."""
    if name == "none" or name.startswith(RANDOM):
        usual = "a name from `vitft weights list`"
        other = "" if name == "none" else name.removeprefix(RANDOM)
        raise WeightsError(
            f"{name} means new random weights, but pretrained weights are needed here",
            fix=f"use {other or usual}, because only vitft finetune, study and check accept random "
            "weights",
        )
    if name.startswith("hf:"):
        return parse_hub_name(name)
    if not name.startswith("timm:"):
        return None
    # timm:NAME[.TAG] or timm:NAME=FILE, as yet without timm's metadata
    model, has_file, file = name.partition("=")
    if not re.fullmatch(r"timm:[a-z0-9_]{1,100}(\.[\w-]{1,100})?", model, re.ASCII):
        raise WeightsError(
            f"invalid timm name {model!r}",
            fix="use timm:NAME, timm:NAME.TAG or timm:NAME=FILE, e.g. "
            "timm:convnext_tiny.in12k_ft_in1k",
        )
    if not has_file:
        return CatalogEntry(name=name, licence="see timm's metadata", file="model.safetensors")
    path = Path(file).expanduser()
    return CatalogEntry(name=model, licence="", local=str(check_weight_file(path)))


def parse_hub_name(name: str) -> CatalogEntry:
    """Return a catalogue entry for hf:owner/name[@revision], or raise an error if it is invalid."""
    pattern = rf"hf:(?P<repo>{REPOSITORY})(@(?P<revision>[\w][\w./-]*))?"
    match = re.fullmatch(pattern, name, re.ASCII)
    if match is None or ".." in name:
        raise WeightsError(
            f"invalid hub name {name!r}",
            fix="use hf:owner/name or hf:owner/name@revision, e.g. "
            "hf:google/vit-base-patch16-224-in21k",
        )
    return CatalogEntry(
        name=name,
        licence=f"see https://huggingface.co/{match['repo']}",
        repo=match["repo"],
        file="model.safetensors",
        revision=match["revision"] or "main",
    )


def check_weight_file(path: Path) -> Path:
    """Return `path`, a FILE or FILE#NAME, or raise WeightsError if it is not a supported file."""
    file, _ = file_and_part(path)
    if not file.is_file():
        raise WeightsError(
            f"{file} is not a regular file" if file.exists() else f"weights not found: {file}",
            fix="check the path of the weight file",
        )
    if file.suffix.lower() in CHECKSUM_SUFFIXES:
        other = file.with_suffix("")
        raise WeightsError(
            f"{file} is not a weight file, but the checksum file of {other.name}",
            fix=f"use {other}" if other.is_file() else "use the weight file to which it belongs",
        )
    if data := mistaken_data(file):
        raise WeightsError(f"{file} is {data.what}, not a weight file", fix=data.weights_fix)
    if not weight_format(file):
        suffix = f"the suffix {file.suffix}" if file.suffix else "no suffix"
        raise WeightsError(
            f"{file} is not a weight file: it has {suffix}",
            fix="use a .safetensors file, a .npz file in Google's format, or a .pth, .pt or .bin "
            "file with --allow-pickle",
        )
    return path


def check_pickle(path: Path, *, allowed: bool) -> None:
    """Raise an error if a FILE or FILE#NAME is a pickle, unless pickles are allowed."""
    file, _ = file_and_part(path)
    if weight_format(file) != "pickle" or allowed:
        return
    with file.open("rb") as opened:
        content = looks_like(opened.read(64))
    if content.startswith("looks like"):
        raise WeightsError(f"{path} is not a weight file: it {content}", fix="use another file")
    raise WeightsError(
        f"{path} is a Python pickle, which can contain code",
        fix="use a .safetensors file, or add --allow-pickle (in Python: allow_pickle=True), which "
        "reads only tensors and runs no code",
    )


def bundled_file(entry: CatalogEntry) -> Path:
    """Return the path of a bundled file; raise an error if the installation lacks it."""
    path = resource("weights") / entry.path
    if not path.is_file():
        raise WeightsError(
            f"the weights {entry.name!r} are missing from this installation: {path}",
            fix="reinstall vitft, or choose other weights",
        )
    return path


def locate_entry(name: str) -> CatalogEntry | Path:
    """Return the result of `locate`, after adding timm's metadata to the entry of a timm model."""
    found = locate(name)
    if isinstance(found, CatalogEntry) and found.is_timm:
        from vitft.models.pretrained.timm_weights import complete_entry

        return complete_entry(found)
    return found
