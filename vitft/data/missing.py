"""Warnings and errors about paths of images that are missing, or that name something else."""

import contextlib
import errno
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitft.data.walk import is_surely_no_image
from vitft.data.web import is_url
from vitft.system.console import visible
from vitft.system.errors import DataError, ImageError
from vitft.system.suggest import folded, namesakes, near_paths
from vitft.system.text import listing, redacted

log = logging.getLogger(__name__)

_MOST_WARNED = 3  # maximum number of misspelt paths for which a path is suggested


def warn_of_misspelt(names: Iterable[str]) -> None:
    """Log, for the first paths that do not exist, the paths that were probably meant, if any."""
    warned = 0
    for name in names:
        if near := _probably_meant(name):
            log.warning(f"{visible(name)} not found: did you mean {visible(' or '.join(near))}?")
            warned += 1
        if warned == _MOST_WARNED:
            return


def is_missing(name: str) -> bool:
    """Return whether a path is neither a file or folder nor an image inside an array dataset."""
    if os.path.lexists(name):
        return False
    from vitft.data.images import OPEN_ERRORS, read_bytes  # imports numpy

    try:
        read_bytes(name)
    except ImageError as error:
        return error.reason == OPEN_ERRORS[errno.ENOENT]
    return False


def check_some_exist(names: Sequence[str]) -> None:
    """Warn of missing paths (see `warn_of_misspelt`); raise a DataError if all are missing."""
    if not names or not all(map(is_missing, names)):
        return warn_of_misspelt(names)
    if is_url(names[0]):
        raise DataError(
            f"{redacted(names[0])} is a web address, but this command reads local images",
            fix="download the image first, or use `vitft predict`, which also reads web addresses",
        )
    near = " or ".join(_probably_meant(names[0]))
    several = len(names) > 1
    fix = f"check the path{'s' * several}{f': did you mean {near}?' if near else ''}"
    raise DataError(f"{listing(names, most=2)} {'do' if several else 'does'} not exist", fix=fix)


def _probably_meant(name: str) -> list[str]:
    """Return the existing paths that a path of an image or folder probably meant, if missing."""
    if not name or os.path.lexists(name):
        return []
    with contextlib.suppress(OSError, ValueError):  # impossible names, closed folders
        near = near_paths(
            Path(name), lambda entry: entry.is_dir() or not is_surely_no_image(entry.name)
        )
        wants_file = bool(Path(name).suffix)
        return [str(path) for path in near if path.is_file() or not wants_file]
    return []


def same_names_below(root: Path, name: str) -> list[str]:
    """Return the relative paths of files of a name in the subfolders of a folder, at most three."""
    if os.sep in name:
        return []
    found = namesakes(root, folded(name), os.DirEntry.is_file)
    inside = (path for path in found if path.is_relative_to(root) and os.pardir not in path.parts)
    return [str(path.relative_to(root)) for path in inside]
