"""Files and folders given in place of others: what they are, and where they belong.

Does not import torch, and reads at most the list of arrays in a .npz file.
"""

import contextlib
import os
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

from vitft.data.archive import KNOWN_ARCHIVES
from vitft.data.arrays import PUBLISHED_SIZES, TORCHVISION, npz_subsets
from vitft.data.places import place_of
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import OTHER_EXCEL, TABLE_SUFFIXES
from vitft.data.walk import ARCHIVE_SUFFIXES, suffix_of
from vitft.system.errors import DataError, UsageError
from vitft.system.files import WEIGHT_SUFFIXES, weight_format
from vitft.system.suggest import path_fix
from vitft.system.text import describe_os_error, shell_quote

_ARRAY_FIX = "save images and labels together: numpy.savez('data.npz', x=images, y=labels)"
_TABLE_FIX = (
    "write a table {stem}.csv: the line `path,label`, then one like `img/1.jpg,cat` per image"
)
_EXCEL_FIX = "save the table as {stem}.xlsx, or as CSV"
_IMAGE_FIX = "use the folder that contains its class folder, or classify it: vitft predict {path}"
_WEIGHTS_FIX = "pass it with --weights {path}, and the images with --data"
_OTHER_FILES: Sequence[tuple[Collection[str], str, str]] = (
    ({".npy"}, "contains a single array, without labels", _ARRAY_FIX),
    ({".h5", ".hdf5", ".mat", ".pkl", ".pickle"}, "is not a supported file of arrays", _ARRAY_FIX),
    (OTHER_EXCEL, "is in an Excel format that vitft does not read", _EXCEL_FIX),
    (WEIGHT_SUFFIXES, "is a weight file, not a folder of images", _WEIGHTS_FIX),
    ({".txt", ".lst"}, "is a text file, not a table", _TABLE_FIX),
    ({".json", ".xml", ".yaml", ".yml"}, "has annotations that vitft does not read", _TABLE_FIX),
    (ARCHIVE_SUFFIXES, "is an archive, which is not opened", "unpack it, and use the new folder"),
    (FORMAT_BY_SUFFIX, "is an image, not a folder", _IMAGE_FIX),
)
"""Suffixes of files that are not data, what is wrong with them, and what to do."""


def check_is_folder(root: Path) -> None:
    """Raise a DataError if `root` is not a folder or cannot be accessed; suggest what was meant."""
    if place_of(str(root)):
        raise UsageError(f"{root} is not a folder", fix="use a folder for this command")
    try:
        if root.is_dir():
            return
        exists = root.exists()
    except OSError as error:  # e.g. no permission for a parent folder
        problem = f"cannot read the data folder {root}: {describe_os_error(error)}"
        fix = "check the path and its permissions"
        raise DataError(problem, fix=fix) from error
    if exists:
        suffix = root.suffix.lower()
        found = (entry for suffixes, *entry in _OTHER_FILES if suffix in suffixes)
        usual = f"use a folder, or a table of labels ({', '.join(TABLE_SUFFIXES)})"
        what, fix = next(found, ["is a file, not a folder", usual])
        names = {"path": shell_quote(str(root)), "stem": root.stem}
        raise DataError(f"{root} {what}", fix=fix.format(**names))
    data = (".npz", *TABLE_SUFFIXES)
    fix = path_fix(root, lambda entry: entry.is_dir() or entry.name.lower().endswith(data))
    known = {name.lower(): name for name in PUBLISHED_SIZES}
    if str(root).lower() in known and "did you mean" not in fix:
        fix = f"use --data {TORCHVISION}{known[str(root).lower()]}, which torchvision downloads"
    if str(root) in KNOWN_ARCHIVES:
        fix = f"fetch it first with `vitft data fetch {root}`, or try the command with --data demo"
    kind = "file" if root.suffix.lower() in data else "folder"
    raise DataError(f"data {kind} not found: {root}", fix=fix)


# data in place of a model or weights --------------------------------------------------------------

_MOST_ENTRIES = 200
"""Maximum number of entries of a folder, and of its first subfolder, that are listed."""


def mistaken_data(path: Path) -> tuple[str, str] | None:
    """Return what the data at a path are and how to use them; None if its name is not of data."""
    suffix = suffix_of(path.name)
    command = f"with `vitft finetune --data {shell_quote(str(path))}`"
    if path.is_dir():
        return ("a folder of images", f"train on it {command}") if _has_images(path) else None
    if not path.is_file() or (suffix in ARCHIVE_SUFFIXES and weight_format(path)):
        return None
    if suffix == ".npz":
        names = []
        damaged = (OSError, ValueError, zipfile.BadZipFile, NotImplementedError)
        with contextlib.suppress(*damaged), zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        found = npz_subsets(names)
        return ("a data set of labelled images", f"train on it {command}") if found else None
    directory = "`vitft finetune --data DIR`"
    kinds: Sequence[tuple[Collection[str], tuple[str, str]]] = (
        (TABLE_SUFFIXES, ("a table", f"if it lists images, train on them {command}")),
        (FORMAT_BY_SUFFIX, ("an image", f"train on its folder with {directory}")),
        (
            ARCHIVE_SUFFIXES,
            ("an archive", f"unpack it, and train on images in it with {directory}"),
        ),
    )
    return next((data for suffixes, data in kinds if suffix in suffixes), None)


def _has_images(folder: Path, *, depth: int = 2) -> bool:
    """Return whether a folder, or the first in it (to `depth` levels), has a file named so."""
    first = None
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False):
            if suffix_of(entry.name) in FORMAT_BY_SUFFIX:
                return True
            if first is None and not entry.name.startswith(".") and entry.is_dir():
                first = Path(entry.path)
    return first is not None and depth > 0 and _has_images(first, depth=depth - 1)
