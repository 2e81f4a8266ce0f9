"""Names of models: those of weight files, and suggestions for unknown ones. Without torch."""

import re
from collections.abc import Iterable
from pathlib import Path

from vitft.system.suggest import suggest

SIZE_LETTERS = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
"""Letters of the sizes in the notation of papers, such as ViT-B/16."""


def file_name(path: Path) -> str:
    """Return the name of the weights in a file: its stem, or its folder's name for `model.*`."""
    is_plain = path.stem in ("model", "pytorch_model")
    return path.absolute().parent.name if is_plain else path.stem


def weights_name(name: str) -> str:
    """Return the catalogue name of weights; for a path, return the name of its file or folder."""
    path = Path(name)
    if path.suffix in (".safetensors", ".bin", ".pth", ".npz"):
        return file_name(path)
    return path.name if name.startswith(("/", "~", ".")) else name


def similar_models(name: str, known: Iterable[str]) -> list[str]:
    """Return up to five names of models that were probably meant, the most similar ones first.

    `name` may be written as in papers (ViT-B/16), in torchvision (vit_b_16) or on the hub
    (google/vit-base-patch16-224).
    """
    text = re.sub(r"[^a-z0-9./]+", "_", name.lower())
    sizes = {letter.lower(): size for size, letter in SIZE_LETTERS.items()} | {"t": "tiny"}
    short = re.match(r"(vit|deit3?)_(ti|[tsblh])[_/]?(\d+)(?![0-9])", text)
    full = f"{short[1]}_{sizes[short[2]]}_patch{short[3]}" if short else text.rpartition("/")[2]
    return suggest(full, known, cutoff=0, inside=True, most=5)
