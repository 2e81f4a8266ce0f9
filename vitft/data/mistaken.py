"""Data that are given where a model or weights are expected: what they are, and where they belong.

Does not import torch, and reads at most the list of arrays in a .npz file.
"""

import contextlib
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

from vitft.data.arrays import npz_subsets
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import TABLE_SUFFIXES
from vitft.data.walk import ARCHIVE_SUFFIXES, suffix_of
from vitft.system.files import weight_format
from vitft.system.text import shell_quote

_MOST_ENTRIES = 200
"""Maximum number of entries of a folder, and of its first subfolder, that are listed."""


class MistakenData(NamedTuple):
    """Data that are neither a model nor weights."""

    what: str  # description, such as `a data set of labelled images`
    use: str  # how to use them

    @property
    def weights_fix(self) -> str:
        return f"{self.use}, and choose weights from `vitft weights list`"


def mistaken_data(path: Path) -> MistakenData | None:
    """Return what the data at a path are, or None if the path does not contain data by its name."""
    suffix = suffix_of(path.name)
    command = f"with `vitft finetune --data {shell_quote(str(path))}`"
    train = f"train on it {command}"
    if path.is_dir():
        return MistakenData("a folder of images", train) if _contains_images(path) else None
    if not path.is_file():
        return None
    if suffix == ".npz":
        names = []
        damaged = (OSError, ValueError, zipfile.BadZipFile, NotImplementedError)
        with contextlib.suppress(*damaged), zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        return MistakenData("a data set of labelled images", train) if npz_subsets(names) else None
    if suffix in TABLE_SUFFIXES:
        return MistakenData("a table", f"if it lists images, train on them {command}")
    if suffix in FORMAT_BY_SUFFIX:
        return MistakenData("an image", "train on its folder with `vitft finetune --data DIR`")
    if suffix in ARCHIVE_SUFFIXES and not weight_format(path):
        return MistakenData(
            "an archive", "unpack it, and train on images in it with `vitft finetune --data DIR`"
        )
    return None


def _contains_images(folder: Path, *, depth: int = 2) -> bool:
    """Return whether a folder, or the first in it (to `depth` levels), has a file named so."""
    first = None
    try:
        with os.scandir(folder) as entries:
            for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False):
                if suffix_of(entry.name) in FORMAT_BY_SUFFIX:
                    return True
                if first is None and not entry.name.startswith(".") and entry.is_dir():
                    first = Path(entry.path)
    except OSError:
        return False
    return first is not None and depth > 0 and _contains_images(first, depth=depth - 1)
