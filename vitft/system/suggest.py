"""Search for the known names most similar to an unknown one."""

import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path


def suggest(
    name: str, known: Iterable[str], *, cutoff: float = 0.7, inside: bool = False, most: int = 1
) -> list[str]:
    """Return at most `most` known names that were probably meant, the most similar ones first.

    Neither case nor the kind of separator matters. `cutoff` is the minimum ratio of difflib; with
    0, the most similar names are returned in any case. With `inside`, names that contain `name`
    come first: those that begin with it, then the shortest ones. Others follow only with cutoff 0.
    """
    wanted, by_form = _form(name), {_form(other): other for other in reversed([*known])}
    forms = [*reversed(by_form)]
    longer = [other for other in forms if inside and len(wanted) > 2 and wanted in other]
    longer.sort(key=lambda other: (not other.startswith(wanted), len(other)))
    near = [] if longer and cutoff else get_close_matches(wanted, forms, n=most, cutoff=cutoff)
    return [by_form[one] for one in dict.fromkeys([*longer, *near])][:most]


def _form(name: str) -> str:
    """Return a name with differences in case and separators removed."""
    return name.casefold().replace("_", "-").replace(" ", "-")


# existing paths that were probably meant by a path that does not exist ----------------------------

_SHORT, _SIMILAR = 4, 0.66
"""Number of characters up to which another letter makes another word; minimum ratio of difflib."""

_Accept = Callable[["os.DirEntry[str]"], bool]


def near_path(path: Path, accept: _Accept) -> Path | None:
    """Return the existing path that was probably meant by `path`, which does not exist, if any.

    The first missing part is replaced with the name in the same folder of which it is probably a
    misspelling, and so on for the remaining parts.
    """
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    missing, *rest = path.relative_to(parent).parts
    entries = entries_of(parent, os.DirEntry.is_dir if rest else accept)
    name = misspelt_name(missing, [entry.name for entry in entries])
    if name is None:
        return None
    found = parent / name
    whole = found.joinpath(*rest)
    return whole if whole.exists() else near_path(whole, accept) or found


def path_fix(path: Path, accept: _Accept, *, otherwise: str = "") -> str:
    """Return the fix for a missing path: a similar path, or else where it was expected."""
    if near := near_path(path, accept):
        return f"check the path: did you mean {near}?"
    where = "" if path.is_absolute() else f" (it is relative to the current folder, {Path.cwd()})"
    return f"check the path{where}{f', {otherwise}' * bool(otherwise)}"


class EquivalentNames:
    """Known names, also found under spellings that look the same.

    macOS writes umlauts as two characters (NFD), and other systems as one (NFC). Windows writes
    paths with backslashes.
    """

    def __init__(self, known: Collection[str]) -> None:
        self.by_form = {unicodedata.normalize("NFC", name): name for name in known}
        self.by_form |= {name: name for name in known}

    def find(self, name: str) -> str:
        """Return the known name that is meant, or `name` if there is none."""
        form = unicodedata.normalize("NFC", name)
        tried = (name, form, form.replace("\\", "/"))
        return next((self.by_form[one] for one in tried if one in self.by_form), name)


def misspelt_name(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name of which `name` may be a misspelling.

    The suffix may differ, and so may leading zeros of numbers, but numbers are never misspelt:
    `001.jpg` is not `0051.jpg`. Short names of the same length must have the same letters: `dgo` is
    `dog`, but `cow` is not `owl`.
    """

    def key(text: str) -> str:
        return re.sub(r"(?<!\d)0+(?=\d)", "", without_suffix(folded(text)))

    wanted = key(name)
    numbers = re.findall(r"\d+", wanted)
    by_ratio = {
        SequenceMatcher(a=wanted, b=key(other)).ratio(): other
        for other in sorted(known, reverse=True)
        if numbers in ([], re.findall(r"\d+", key(other)))
        and not (len(wanted) == len(key(other)) <= _SHORT and sorted(wanted) != sorted(key(other)))
    }
    best = max(by_ratio, default=0.0)
    return by_ratio[best] if best >= _SIMILAR else None


def without_suffix(name: str) -> str:
    """Return a name without a suffix of letters and digits, such as `.jpg` or `.mp4`."""
    stem, _, suffix = name.rpartition(".")
    return stem if stem and re.fullmatch(r"[^\W\d]\w{0,8}", suffix) else name


def entries_of(folder: Path, accept: _Accept) -> list["os.DirEntry[str]"]:
    """Return the accepted entries of a folder by name; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if not e.name.startswith(".") and accept(e)]
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)


def folded(name: str) -> str:
    """Return a name with differences in case and Unicode normalisation removed."""
    return unicodedata.normalize("NFC", name).casefold()
