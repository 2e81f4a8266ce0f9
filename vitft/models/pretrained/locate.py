"""From what the user typed to one catalogue row or one file, before anything is read.

Nothing here imports torch, so that a wrong name or path is reported at once.
"""

import os
import re
from pathlib import Path

from vitft.models.pretrained import catalog
from vitft.models.pretrained.catalog import Entry
from vitft.system.errors import WeightsError
from vitft.system.resources import resource

PICKLES = (".pth", ".pt", ".bin")
SUFFIXES = (".safetensors", ".npz", *PICKLES)
HUB = re.compile(r"hf:(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w][\w./-]*))?", re.ASCII)
"""hf:owner/name or hf:owner/name@revision."""
TIMM = re.compile(r"timm:[a-z0-9_]{1,100}(\.[\w-]{1,100})?", re.ASCII)
"""timm:architecture or timm:architecture.tag."""
ACCEPTED = ".safetensors, .npz (Google's), or .pth, .pt, .bin with --allow-pickle"


def check_weights_name(name_or_path: str | Path, *, allow_pickle: bool = True) -> None:
    """Refuse, without torch and without the network, what `load_pretrained` cannot load.

    Args:
        name_or_path: A name of the catalogue, hf:owner/name, timm:NAME, a weight file, or a folder
            with one.
        allow_pickle: False also refuses files that could only be read with `--allow-pickle`.

    Raises:
        WeightsError: Unknown name, missing file, or a file of another kind.
    """
    found = locate(name_or_path)
    if isinstance(found, Entry):
        if found.path:
            bundled(found)
    elif not allow_pickle:
        check_pickle(found, allowed=False)


def locate(name_or_path: str | Path) -> Entry | Path:
    """The catalogue row or the weight file that is meant; a name of the catalogue wins.

    Raises:
        WeightsError: Unknown name, missing file, or a file of another kind.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if isinstance(name_or_path, str) and catalog.known(name):
        return catalog.find(name)
    if isinstance(name_or_path, str) and name.startswith("hf:"):
        return on_the_hub(name)
    if isinstance(name_or_path, str) and name.startswith("timm:"):
        return of_timm(name)
    if not name.strip():
        raise WeightsError("the name of the weights is empty", fix="give a name or a file")
    if path.is_dir():
        return file_in(path)
    if path.exists():
        return usable(path)
    if looks_like_path(name_or_path):
        raise WeightsError(
            f"weights not found: {path}",
            fix="check the path; names such as vit_base_patch16_224_in21k need no file",
        )
    return catalog.find(name)  # unknown: the error names the nearest ones


def on_the_hub(name: str) -> Entry:
    """Any repository of the hub as a row that knows nothing but its place.

    Raises:
        WeightsError: Not of the form hf:owner/name or hf:owner/name@revision.
    """
    match = HUB.fullmatch(name)
    if match is None or ".." in name:
        raise WeightsError(
            f"{name!r} names no repository of the hub",
            fix="write hf:owner/name or hf:owner/name@revision, e.g. "
            "hf:google/vit-base-patch16-224-in21k",
        )
    return Entry(
        name=name,
        licence=f"see https://huggingface.co/{match['repo']}",
        repo=match["repo"],
        file="model.safetensors",
        revision=match["revision"] or "main",
    )


def of_timm(name: str) -> Entry:
    """Any model of timm, as a row that `through_timm` completes.

    Raises:
        WeightsError: Not of the form timm:architecture or timm:architecture.tag.
    """
    if not TIMM.fullmatch(name):
        raise WeightsError(
            f"{name!r} names no model of timm",
            fix="write timm:NAME or timm:NAME.TAG, e.g. timm:convnext_tiny.in12k_ft_in1k",
        )
    return Entry(name=name, licence="as timm states it", file="model.safetensors")


def looks_like_path(name: str | Path) -> bool:
    """Whether something that does not exist was meant as a file rather than as a name."""
    if isinstance(name, Path) or name.startswith((".", "~", os.sep)) or name.endswith(os.sep):
        return True
    return Path(name).suffix.lower() in (*SUFFIXES, ".onnx", ".h5", ".ckpt", ".gguf", ".zip")


def file_in(folder: Path) -> Path:
    """The weight file of a run folder, an export folder or a hub snapshot."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"{folder} is a folder without a model.safetensors in it",
            fix="give the weight file itself, or a run folder or export folder of vitft",
        )
    return path


def usable(path: Path) -> Path:
    """`path`, if it is a regular file of a kind that vitft reads."""
    if not path.is_file():
        raise WeightsError(f"{path} is not a regular file", fix="give a weight file")
    if path.suffix.lower() not in SUFFIXES:
        raise WeightsError(
            f"{path} has the suffix {path.suffix or 'none'!r}, which no weight file has here",
            fix=f"vitft reads {ACCEPTED}",
        )
    return path


def check_pickle(path: Path, *, allowed: bool) -> None:
    """Refuse a pickle that the user did not allow; only the suffix decides."""
    if path.suffix.lower() in PICKLES and not allowed:
        raise WeightsError(
            f"{path} is a Python pickle, and pickles can carry programs",
            fix="take a .safetensors file; if you trust this one, add --allow-pickle "
            "(allow_pickle=True), which still runs none of its code",
        )


def bundled(entry: Entry) -> Path:
    """The file of an entry that travels with vitft."""
    path = resource("weights") / entry.path
    if not path.is_file():
        raise WeightsError(
            f"the weights {entry.name!r} are missing from this installation: {path}",
            fix="install vitft again, or choose other weights",
        )
    return path


def locate_entry(name: str) -> Entry | Path:
    """Return the entry or the file of a name as `locate`, with the metadata that timm has of it.

    Raises:
        WeightsError: The name is unknown, or the file is missing or of another kind.
    """
    found = locate(name)
    if isinstance(found, Entry) and found.is_of_timm:
        from vitft.models.pretrained.timm_weights import resolved

        return resolved(found)
    return found
