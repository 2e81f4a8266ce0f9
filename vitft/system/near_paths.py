"""Existing paths that were probably meant by a path that does not exist."""

import os
import unicodedata
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path

MAX_FOLDERS = 200
"""Maximum number of folders in which a name is searched."""
MAX_FOUND = 3
"""Maximum number of paths to suggest."""

Accept = Callable[["os.DirEntry[str]"], bool]


def near_paths(path: Path, accept: Accept) -> list[Path]:
    """Return existing paths that were probably meant by `path`, which does not exist.

    First choice: the first part that is missing is replaced with the most similar name in the same
    folder; the remaining parts are appended if they exist there. Second choice: entries of the
    same name one or two levels below that folder, or next to it. Case and Unicode normalisation do
    not matter.

    Args:
        path: The path; symlinks and `..` are not resolved, so results look as the user wrote them.
        accept: Whether an entry may be suggested.
    """
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    missing, *rest = path.relative_to(parent).parts
    names = {folded(entry.name): entry.name for entry in entries_of(parent, accept)}
    if near := get_close_matches(folded(missing), names, n=1):
        found = parent / names[near[0]]
        whole = found.joinpath(*rest)
        return [whole if whole.exists() else found]
    return namesakes(parent, folded(path.name), accept)


def namesakes(parent: Path, name: str, accept: Accept) -> list[Path]:
    """Return paths of entries with a name (see `folded`) below a folder or next to it."""
    found: list[Path] = []
    for folder in nearby_folders(parent):
        found += (folder / e.name for e in entries_of(folder, accept) if folded(e.name) == name)
        if len(found) >= MAX_FOUND:
            break
    return found[:MAX_FOUND]


def nearby_folders(parent: Path) -> Iterator[Path]:
    """Yield the subfolders of a folder, the folder above it, and the folders two levels below."""
    below = subfolders(parent)
    above = Path(os.pardir) / parent if str(parent) == os.curdir else parent.parent
    folders = [*below, above]
    for folder in below:
        if len(folders) >= MAX_FOLDERS:
            break
        folders += subfolders(folder)
    yield from folders[:MAX_FOLDERS]


def subfolders(folder: Path) -> list[Path]:
    """Return the sorted folders in a folder; links are left out."""
    return [folder / e.name for e in entries_of(folder, lambda e: e.is_dir(follow_symlinks=False))]


def entries_of(folder: Path, accept: Accept) -> list["os.DirEntry[str]"]:
    """Return the accepted entries of a folder by name; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if not e.name.startswith(".") and accept(e)]
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)


def folded(name: str) -> str:
    """Return a name without differences in case and Unicode normalisation."""
    return unicodedata.normalize("NFC", name).casefold()
