"""Existing paths that were probably meant by a path that does not exist."""

import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path

MAX_FOLDERS = 200
"""Maximum number of folders in which a name is searched."""
MAX_FOUND = 3
"""Maximum number of paths to suggest."""

Accept = Callable[["os.DirEntry[str]"], bool]

PAIR = re.compile(r"([A-Za-z][\w.-]*)=(.+)", re.DOTALL)
"""An argument as other tools write it, such as `source=photos`."""


def near_paths(path: Path, accept: Accept) -> list[Path]:
    """Return existing paths that were probably meant by `path`, which does not exist.

    First choice: the part after the equals sign in an argument such as `source=photos`. Second
    choice: the first part that is missing is replaced with a name in the same folder of which it is
    probably a misspelling (see `is_misspelling`), and so on for the remaining parts, as far as they
    exist there. Third choice: entries of the same name one or two levels below that folder, or next
    to it, unless the name is a number, which other folders have too. Case and Unicode normalisation
    do not matter.

    Args:
        path: The path; symlinks and `..` are not resolved, so results look as the user wrote them.
        accept: Whether an entry may be suggested.
    """
    if (pair := PAIR.fullmatch(str(path))) and (value := Path(pair[2])).exists():
        return [value]
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    missing, *rest = path.relative_to(parent).parts
    entries = entries_of(parent, os.DirEntry.is_dir if rest else accept)
    if name := misspelt_name(missing, [entry.name for entry in entries]):
        found = parent / name
        whole = found.joinpath(*rest)
        return [whole] if whole.exists() else near_paths(whole, accept) or [found]
    if without_suffix(path.name).isdecimal():
        return []
    return namesakes(parent, folded(path.name), accept)


def path_fix(path: Path, accept: Accept, *, otherwise: str = "") -> str:
    """Return the fix for a path that does not exist: what was probably meant, or where it would be.

    Args:
        path: The path.
        accept: Whether an entry may be suggested.
        otherwise: A second fix, e.g. `or choose another`, added if no suggestion is found.
    """
    if near := " or ".join(map(str, near_paths(path, accept))):
        return f"check the path: did you mean {near}?"
    where = "" if path.is_absolute() else f" (it is relative to the current folder, {Path.cwd()})"
    return f"check the path{where}{f', {otherwise}' * bool(otherwise)}"


class EquivalentNames:
    """Known names, also found under spellings that look the same.

    A Mac writes umlauts as two characters (NFD), other systems as one (NFC); Windows writes paths
    with backslashes.
    """

    def __init__(self, known: Collection[str]) -> None:
        self.known = known
        self.by_form: dict[str, str] | None = None

    def find(self, name: str) -> str:
        """Return the known name that is meant, or `name` if there is none."""
        if name in self.known:
            return name
        if self.by_form is None:
            self.by_form = {unicodedata.normalize("NFC", other): other for other in self.known}
        form = unicodedata.normalize("NFC", name)
        return self.by_form.get(form) or self.by_form.get(form.replace("\\", "/"), name)


def misspelt_name(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar one of the known names that `name` may be a misspelling of."""
    wanted = folded(name)
    plausible = [other for other in known if is_misspelling(wanted, folded(other))]
    matcher = SequenceMatcher(a=wanted)

    def similarity(other: str) -> float:
        matcher.set_seq2(folded(other))
        return matcher.ratio()

    return max(plausible, key=similarity, default=None)


def is_misspelling(name: str, known: str) -> bool:
    """Return whether a name was probably meant to be a known one.

    The suffix and leading zeros of numbers may differ, and one in four characters; or one name
    consists of words of the other. Numbers are never misspelt: `001.jpg` is not `0051.jpg`.
    """
    stems = without_suffix(name), without_suffix(known)
    numbers = [[number.lstrip("0") for number in re.findall(r"\d+", stem)] for stem in stems]
    if numbers[0] and numbers[0] != numbers[1]:
        return False
    one, other = (re.sub(r"(?<!\d)0+(?=\d)", "", stem) for stem in stems)
    most = max(1, len(one) // 4)
    if abs(len(one) - len(other)) <= most and edit_distance(one, other) <= most:
        return True
    words = [{*re.split(r"[\W_]+", stem)} - {""} for stem in (one, other)]
    return numbers[0] == numbers[1] and (words[0] < words[1] or words[1] < words[0])


def without_suffix(name: str) -> str:
    """Return a name without a suffix of letters and digits, such as `.jpg` or `.mp4`."""
    stem, _, suffix = name.rpartition(".")
    return stem if stem and re.fullmatch(r"[^\W\d]\w{0,8}", suffix) else name


def edit_distance(one: str, other: str) -> int:
    """Return how many characters are missing, added, different or swapped with the next one."""
    before: list[int] = []
    last = [*range(len(other) + 1)]
    for i, a in enumerate(one):
        row = [i + 1]
        for j, b in enumerate(other):
            row.append(min(last[j] + (a != b), last[j + 1] + 1, row[j] + 1))
            if i and j and a == other[j - 1] and b == one[i - 1]:
                row[-1] = min(row[-1], before[j - 1] + 1)
        before, last = last, row
    return last[-1]


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
