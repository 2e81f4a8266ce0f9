"""The files that a table lists, also by paths that nearly exist.

A path may begin in another folder, lack folders or the suffix, or be spelled differently. It is
completed if only one image can be meant.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from vitft.data.label_columns import LabelledRow
from vitft.data.label_table import LabelTable
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import is_utf8, leads_outside, path_in
from vitft.data.walk import Walk
from vitft.system.errors import DataError, RunError
from vitft.system.near_paths import folded
from vitft.system.text import count, describe_os_error, shell_quote

Images = Mapping[str, Sequence[str]]
"""Mapping from the keys of names (see `name_key`) to the paths of the images below a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFiles:
    """The rows of a table, with the paths of the files that were found."""

    table: LabelTable
    root: Path
    """Folder to which the paths are relative."""
    rows: tuple[LabelledRow, ...]
    missing: Mapping[str, str]
    """Mapping from the paths that lead to no file to the reasons."""
    notes: tuple[str, ...] = ()
    fix: str = ""
    """What to do about the missing files."""

    def error(self) -> DataError | RunError:
        """Return the error for the missing files."""
        row = next(row for row in self.rows if row.path in self.missing)
        missing, total = len(self.missing), len(self.rows)
        reason, place = self.missing[row.path], str(self.root / row.path)
        if "://" in row.path:
            reason, place = "images are not fetched for training", row.path
        skip = ", or skip missing files with --set data.allow_bad=true" * (missing < total)
        return self.table.error(
            f"{reason}: {place} ({missing:,} of {total:,} files "
            f"{'is' if missing == 1 else 'are'} missing)",
            row,
            "path",
            fix=self.fix + skip,
        )


def find_files(table: LabelTable) -> ListedFiles:
    """Find the files that a table lists, and complete paths that can mean only one image.

    Raises:
        DataError: A path that leads to no file is not UTF-8, or a file is listed twice.
    """
    if table.copy:
        return ListedFiles(table=table, root=table.root, rows=table.rows, missing={})
    root, rows, notes = with_common_root(table)
    reasons = {row.path: reason_missing(os.path.join(root, row.path)) for row in rows}  # noqa: PTH118
    missing = {path: reason for path, reason in reasons.items() if reason}
    if not missing:
        return ListedFiles(table=table, root=root, rows=rows, missing={}, notes=notes)
    images = images_by_name(root)
    meant = {path: only_fit(path, images) for path in missing}
    claims = Counter([*meant.values(), *(reasons.keys() - missing.keys())])
    completed = {path: image for path, image in meant.items() if image and claims[image] == 1}
    missing = {path: reason for path, reason in missing.items() if path not in completed}
    for row in rows:
        if row.path in missing and not is_utf8(row.path):
            raise table.error(
                "the path is not UTF-8 and does not lead to a file",
                row,
                "path",
                fix="save the table in UTF-8 (in Excel: CSV UTF-8)",
            )
    if completed:
        path, image = next(iter(completed.items()))
        notes += (f"{count(len(completed), 'path')} completed, e.g. {path!r} to {image}",)
    return ListedFiles(
        table=table,
        root=root,
        rows=tuple(row._replace(path=completed.get(row.path, row.path)) for row in rows),
        missing=missing,
        notes=notes,
        fix=missing_fix(list(missing), root, images, alone=len(missing) < len(rows))
        if missing
        else "",
    )


def with_common_root(table: LabelTable) -> tuple[Path, tuple[LabelledRow, ...], tuple[str, ...]]:
    """Return the folder of the images, the rows with paths relative to it, and a note.

    It is the base folder of the table or, if existing images are outside it, the innermost folder
    that contains all images.

    Raises:
        DataError: Two paths lead to the same file.
    """
    paths = [os.path.abspath(os.path.join(table.root, row.path)) for row in table.rows]  # noqa: PTH100, PTH118
    outside = {
        path
        for path, row in zip(paths, table.rows, strict=True)
        if leads_outside(row.path) and not reason_missing(path)
    }
    if not outside:
        return table.root, table.rows, ()
    inside = {
        path
        for path, row in zip(paths, table.rows, strict=True)
        if not leads_outside(row.path) and "://" not in row.path
    }
    root = Path(os.path.commonpath([os.path.dirname(path) for path in outside | inside]))  # noqa: PTH120
    rows: dict[str, LabelledRow] = {}
    for path, row in zip(paths, table.rows, strict=True):
        moved = row if "://" in row.path else row._replace(path=path_in(root, path))
        if rows.setdefault(moved.path, moved) is not moved:
            raise table.error(
                f"{row.path} is listed twice", row, "path", fix="keep one of the two lines"
            )
    note = f"the images are outside {table.root}: their paths are relative to {root}"
    return root, tuple(rows.values()), (note,)


def images_by_name(root: Path) -> Images:
    """Return the paths of all images below a folder, unless it is that of a whole disk."""
    found: dict[str, list[str]] = {}
    if root.is_dir() and len(root.absolute().parts) > 1:
        for path in Walk(os.fspath(root)).images_in(""):
            found.setdefault(name_key(path.rpartition("/")[2]), []).append(path)
    return found


def name_key(name: str) -> str:
    """Return a file name without its image suffix, case, outer blanks and zeros before a number."""
    stem, dot, suffix = (name := folded(name.strip())).rpartition(".")
    stem = stem if dot + suffix in FORMAT_BY_SUFFIX else name
    return stem.lstrip("0") if stem.isdecimal() else stem


def split_path(path: str) -> tuple[list[str], str]:
    """Return the folders of a path in lower case, from the last to the first, and its name."""
    parts = [part.strip() for part in path.replace("\\", "/").split("/")]
    *folders, name = [part for part in parts if part not in ("", ".")] or [""]
    return [folded(folder) for folder in folders[::-1]], name


def compare(path: str, images: Images) -> Iterator[tuple[str, int, bool, tuple[int, bool, int]]]:
    """Yield each image that has the name of a path (see `name_key`).

    The other values are the number of last folders that both share, whether these are all folders
    of one of them, and by how much the image resembles the path in three respects.
    """
    folders, name = split_path(path)
    for image in images.get(name_key(name), ()):
        others, other = split_path(image)
        pairs = zip(folders, others, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        stem = other.rpartition(".")[0] in (name, name.rpartition(".")[0])
        alike = (shared, len(folders) == len(others), stem + (name == other))
        yield image, shared, shared == min(len(folders), len(others)), alike


def only_fit(path: str, images: Images) -> str:
    """Return the only image that a path can mean, or an empty string.

    The folders of one of the paths are the last ones of the other. If there are several images,
    one must resemble the path at least as much as the others in every respect.
    """
    ranks = {image: alike for image, _, fits, alike in compare(path, images) if fits}
    best = tuple(map(max, zip(*ranks.values(), strict=True)))
    found = [image for image, rank in ranks.items() if rank == best]
    return found[0] if len(found) == 1 else ""


def missing_fix(missing: Sequence[str], root: Path, images: Images, *, alone: bool) -> str:
    """Return what to do about paths that lead to no file.

    If other paths do (`alone`), images in other folders are not proposed.
    """
    first, places = missing[0], Counter[str]()
    if not reason_missing(first):  # as `vitft predict` writes them
        return "use --set data.root=. (the paths are relative to the current folder)"
    for path in () if alone else missing:
        found = [(image.split("/")[: -1 - n], r[2]) for image, n, _, r in compare(path, images)]
        best = max((rank for _, rank in found), default=0)
        here = Counter("/".join(folders) for folders, rank in found if rank == best)
        places.update(place for place, number in here.items() if place and number == 1)
    roots = [place for place, number in places.items() if number == len(missing)]
    if roots:
        ways = (f"--set {shell_quote(f'data.root={root / place}')}" for place in roots[:3])
        return f"use {' or '.join(ways)} if the right images are there"
    if names := [image for image, _, fits, _ in compare(first, images) if fits or not alone][:3]:
        return f"write paths below {root}, e.g. {' or '.join(names)} in place of {first}"
    if "://" in first:
        return "download the images, and choose their folder with --set data.root=DIR"
    return (
        "correct the paths, or choose their folder with --set data.root=DIR or another column with "
        "--set data.path_column=NAME"
    )


def reason_missing(path: str) -> str:
    """Return why a path is not a regular file, or an empty string if it is one."""
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - Path is slow
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return describe_os_error(error)
    return "" if is_regular else "not a regular file"
