"""Resolve what the user typed to a catalogue entry or a weight file, before anything is read.

Does not import torch, so that a wrong name or path is reported at once.
"""

import os
import re
from pathlib import Path

from vitft.models.pretrained import catalog
from vitft.models.pretrained.catalog import CatalogEntry
from vitft.system.errors import WeightsError
from vitft.system.files import resource

PICKLE_SUFFIXES = (".pth", ".pt", ".bin")
WEIGHT_SUFFIXES = (".safetensors", ".npz", *PICKLE_SUFFIXES)
HUB_NAME = re.compile(
    r"hf:(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w][\w./-]*))?", re.ASCII
)
"""hf:owner/name or hf:owner/name@revision."""
TIMM_NAME = re.compile(r"timm:[a-z0-9_]{1,100}(\.[\w-]{1,100})?", re.ASCII)
"""timm:architecture or timm:architecture.tag."""
READABLE_KINDS = ".safetensors, .npz (Google's), or .pth, .pt, .bin with --allow-pickle"


def check_weights_name(name_or_path: str | Path, *, allow_pickle: bool = True) -> None:
    """Check, without torch and without the network, that `load_pretrained` could load this.

    Args:
        name_or_path: A catalogue name, hf:owner/name, timm:NAME, a weight file, or a folder that
            contains one.
        allow_pickle: False also refuses files that can only be read with `--allow-pickle`.

    Raises:
        WeightsError: Unknown name, missing file, or an unsupported kind of file.
    """
    found = locate(name_or_path)
    if isinstance(found, CatalogEntry):
        if found.path:
            bundled_file(found)
    elif not allow_pickle:
        check_pickle(found, allowed=False)


def locate(name_or_path: str | Path) -> CatalogEntry | Path:
    """Return the catalogue entry or the weight file; a catalogue name takes precedence over a file.

    Raises:
        WeightsError: Unknown name, missing file, or an unsupported kind of file.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if isinstance(name_or_path, str) and catalog.in_catalog(name):
        return catalog.find_entry(name)
    if isinstance(name_or_path, str) and name.startswith("hf:"):
        return parse_hub_name(name)
    if isinstance(name_or_path, str) and name.startswith("timm:"):
        return parse_timm_name(name)
    if not name.strip():
        raise WeightsError(
            "the name of the weights is empty",
            fix="give a name (see `vitft weights list`) or a file",
        )
    if path.is_dir():
        return weights_in_folder(path)
    if path.exists():
        return check_weight_file(path)
    if looks_like_path(name_or_path):
        raise WeightsError(
            f"weights not found: {path}",
            fix="check the path, or choose a name from `vitft weights list`",
        )
    return catalog.find_entry(name)  # raises an error with similar names


def parse_hub_name(name: str) -> CatalogEntry:
    """Return an entry for any hub repository, of which only the location is known.

    Raises:
        WeightsError: Not of the form hf:owner/name or hf:owner/name@revision.
    """
    match = HUB_NAME.fullmatch(name)
    if match is None or ".." in name:
        raise WeightsError(
            f"invalid hub name {name!r}",
            fix="write hf:owner/name or hf:owner/name@revision, e.g. "
            "hf:google/vit-base-patch16-224-in21k",
        )
    return CatalogEntry(
        name=name,
        licence=f"see https://huggingface.co/{match['repo']}",
        repo=match["repo"],
        file="model.safetensors",
        revision=match["revision"] or "main",
    )


def parse_timm_name(name: str) -> CatalogEntry:
    """Return an entry for any timm model, which `timm_weights.complete_entry` completes.

    Raises:
        WeightsError: Not of the form timm:architecture or timm:architecture.tag.
    """
    if not TIMM_NAME.fullmatch(name):
        raise WeightsError(
            f"invalid timm name {name!r}",
            fix="write timm:NAME or timm:NAME.TAG, e.g. timm:convnext_tiny.in12k_ft_in1k",
        )
    return CatalogEntry(name=name, licence="as stated by timm", file="model.safetensors")


def looks_like_path(name: str | Path) -> bool:
    """Return whether a string that matches nothing was meant as a path rather than as a name."""
    if isinstance(name, Path) or name.startswith((".", "~", os.sep)) or name.endswith(os.sep):
        return True
    return Path(name).suffix.lower() in (*WEIGHT_SUFFIXES, ".onnx", ".h5", ".ckpt", ".gguf", ".zip")


def weights_in_folder(folder: Path) -> Path:
    """Return the weight file of a run folder, an export folder or a hub snapshot."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"{folder} does not contain a model.safetensors",
            fix="give the weight file itself, or a run folder or export folder of vitft",
        )
    return path


def check_weight_file(path: Path) -> Path:
    """Return `path` if it is a regular file of a supported kind."""
    if not path.is_file():
        raise WeightsError(f"{path} is not a regular file", fix="give the path of a weight file")
    if path.suffix.lower() not in WEIGHT_SUFFIXES:
        suffix = f"the suffix {path.suffix}" if path.suffix else "no suffix"
        raise WeightsError(
            f"{path} is not a weight file: it has {suffix}",
            fix=f"give one of these: {READABLE_KINDS}",
        )
    return path


def check_pickle(path: Path, *, allowed: bool) -> None:
    """Refuse a pickle unless the user allowed it; the suffix decides."""
    if path.suffix.lower() in PICKLE_SUFFIXES and not allowed:
        raise WeightsError(
            f"{path} is a Python pickle, which can contain programs",
            fix="use a .safetensors file, or add --allow-pickle (allow_pickle=True), which reads "
            "the tensors and runs no code",
        )


def bundled_file(entry: CatalogEntry) -> Path:
    """Return the file of a catalogue entry that is part of vitft."""
    path = resource("weights") / entry.path
    if not path.is_file():
        raise WeightsError(
            f"the weights {entry.name!r} are missing from this installation: {path}",
            fix="reinstall vitft, or choose other weights",
        )
    return path


def locate_entry(name: str) -> CatalogEntry | Path:
    """Return the entry or the file of a name as `locate`, with the metadata that timm has of it.

    Raises:
        WeightsError: The name is unknown, or the file is missing or of another kind.
    """
    found = locate(name)
    if isinstance(found, CatalogEntry) and found.is_timm:
        from vitft.models.pretrained.timm_weights import complete_entry

        return complete_entry(found)
    return found
