"""Paths of images that are missing or not quite right, in tables, lists and on the command line.

A listed path may begin in another folder, lack folders or the suffix, or be spelled differently. It
is completed if only one image can be meant.
"""

import contextlib
import errno
import logging
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import RowError, is_utf8, leads_outside, path_in
from vitft.data.walk import Walk, is_surely_no_image
from vitft.data.web import is_url
from vitft.system.console import visible
from vitft.system.errors import DataError, ImageError
from vitft.system.suggest import folded, near_path
from vitft.system.text import count, describe_os_error, listing, redacted, shell_quote

if TYPE_CHECKING:  # it imports numpy
    from vitft.data.image_table import Images

log = logging.getLogger(__name__)


def find_files(
    images: "Images", error: RowError, *, allow_bad: bool
) -> tuple["Images", Mapping[str, str]]:
    """Return the images of a table with the paths of their files, and why others are missing.

    Paths that can mean only one image are completed. A DataError is raised if all files are missing
    or, unless `allow_bad` is set, any file, and if one is listed twice.
    """
    images = _with_common_root(images, error)
    root = os.fspath(images.root)
    if images.shown:  # a local copy, which is complete
        return images, {}
    reasons = {row.path: _reason_missing(f"{root}/{row.path}") for row in images.rows}
    reasons |= {path: "no such file" for path in reasons if leads_outside(path)}
    missing = {path: reason for path, reason in reasons.items() if reason}
    if not missing:
        return images, missing
    below = ImagesBelow(root)
    meant = {path: below.only_fit(path) for path in missing}
    claims = Counter([*meant.values(), *(reasons.keys() - missing.keys())])
    completed = {path: image for path, image in meant.items() if image and claims[image] == 1}
    for path, image in [*completed.items()][:1]:
        note = f"{count(len(completed), 'path')} completed, e.g. {path!r} to {image}"
        images = images.with_column("path", [completed.get(one, one) for one in reasons])
        images = replace(images, notes=(*images.notes, note))
    missing = {path: reason for path, reason in missing.items() if path not in completed}
    lost = [(i, row.path) for i, row in enumerate(images.rows) if row.path in missing]
    for i, path in lost:
        if not is_utf8(path):
            problem = "the path is not UTF-8 and does not lead to a file"
            fix = "save the table in UTF-8 (in Excel: CSV UTF-8)"
            raise error(problem, i, "path", fix)
    alone = len(lost) < len(images.rows)
    if lost and not (allow_bad and alone):
        first, path = lost[0]
        fix = _missing_fix(images.root, missing, below, alone=alone)
        fix += ", or skip missing files with --set data.allow_bad=true" * alone
        problem = f"{missing[path]}: {images.root / path}"
        if "://" in path:
            problem = f"images are not fetched for training: {path}"
        are = "is" if len(lost) == 1 else "are"
        problem += f" ({len(lost):,} of {len(images.rows):,} files {are} missing)"
        raise error(problem, first, "path", fix)
    return images, missing


def _with_common_root(images: "Images", error: RowError) -> "Images":
    """Return the images, relative to another folder if existing images are outside their own."""
    outside = [leads_outside(row.path) for row in images.rows]
    if not any(outside):  # the usual case
        return images
    names = (r.path.strip() if out else r.path for r, out in zip(images.rows, outside, strict=True))
    paths = [os.path.join(images.root, name) for name in names]  # noqa: PTH118
    there = [p for p, out in zip(paths, outside, strict=True) if not (out and _reason_missing(p))]
    if len(there) == outside.count(False):
        return images
    folders = {os.path.dirname(os.path.abspath(path)) for path in there}  # noqa: PTH100, PTH120
    root, seen = Path(os.path.commonpath(folders)), set[str]()
    moved = [path_in(root, os.path.abspath(path)) for path in paths]  # noqa: PTH100
    for i, path in enumerate(moved):
        if path in seen:
            problem = f"{images.rows[i].path} is listed twice"
            raise error(problem, i, "path", "keep one of the two lines")
        seen.add(path)
    note = f"the images are outside {images.root}: their paths are relative to {root}"
    images = images.with_column("path", moved)
    return replace(images, root=root, notes=(*images.notes, note))


def _split_path(path: str) -> tuple[list[str], str, str]:
    """Return the folders of a path from the last to the first, in lower case, its name and its key.

    The key is the name without image suffix, case, and zeros before a number.
    """
    parts = [part.strip() for part in path.replace("\\", "/").split("/")]
    *folders, name = [part for part in parts if part not in ("", ".")] or [""]
    stem, dot, suffix = folded(name).rpartition(".")
    key = stem if dot + suffix in FORMAT_BY_SUFFIX else folded(name)
    key = key.lstrip("0") if key.isdecimal() else key
    return [folded(folder) for folder in folders[::-1]], name, key


class ImagesBelow:
    """Images in and below a folder by the keys of their names; none for a whole disk."""

    def __init__(self, root: str) -> None:
        self.by_key: dict[str, list[str]] = {}
        if os.path.isdir(root) and len(Path(root).absolute().parts) > 1:  # noqa: PTH112
            for path in Walk(root).images():
                self.by_key.setdefault(_split_path(path)[2], []).append(path)

    def compare(self, path: str) -> Iterator[tuple[str, bool, tuple[int, bool, int]]]:
        """Yield each image that has the key of a path, with two values.

        These are whether all folders of one of them are the last ones of the other, and how closely
        the image resembles the path, first by the number of last folders that both share.
        """
        folders, name, key = _split_path(path)
        for image in self.by_key.get(key, ()):
            others, other, _ = _split_path(image)
            pairs = zip(folders, others, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            stem = other.rpartition(".")[0] in (name, name.rpartition(".")[0])
            alike = (shared, len(folders) == len(others), stem + (name == other))
            yield image, shared == min(len(folders), len(others)), alike

    def only_fit(self, path: str) -> str:
        """Return the only image that a path can mean, or an empty string.

        Of several images, one must resemble the path at least as much as the others in every way.
        """
        ranks = {image: alike for image, fits, alike in self.compare(path) if fits}
        best = tuple(map(max, zip(*ranks.values(), strict=True)))
        found = [image for image, rank in ranks.items() if rank == best]
        return found[0] if len(found) == 1 else ""


def _missing_fix(
    root: Path, missing: Mapping[str, str], images: ImagesBelow, *, alone: bool
) -> str:
    """Return what to do about missing files: not all are if `alone`, so no folder is named."""
    first, *_ = missing
    places = Counter[str]()
    for path in () if alone else missing:
        near = [(image.split("/")[: -1 - r[0]], r[2]) for image, _, r in images.compare(path)]
        best = max((rank for _, rank in near), default=0)
        here = Counter("/".join(folders) for folders, rank in near if rank == best)
        places.update(place for place, number in here.items() if place and number == 1)
    roots = [place for place, number in places.items() if number == len(missing)][:3]
    if roots:
        ways = [f"--set {shell_quote(f'data.root={root / place}')}" for place in roots]
        return f"use {' or '.join(ways)} if the right images are there"
    if names := [image for image, fits, _ in images.compare(first) if fits or not alone][:3]:
        return f"write paths below {root}, e.g. {' or '.join(names)} in place of {first}"
    if "://" in first:
        return "download the images, and choose their folder with --set data.root=DIR"
    return (
        "correct the paths, or choose their folder with --set data.root=DIR or another column with "
        "--set data.path_column=NAME"
    )


def _reason_missing(path: str) -> str:
    """Return why a path is not a regular file, or an empty string if it is one."""
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - Path is slow
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return describe_os_error(error)
    return "" if is_regular else "not a regular file"


# warnings and errors about paths that do not exist -----------------------------------------------

_MOST_WARNED = 3  # maximum number of misspelt paths for which a path is suggested


def warn_of_misspelt(names: Iterable[str]) -> None:
    """Log, for the first paths that do not exist, the paths that were probably meant, if any."""
    found = ((name, near) for name in names if (near := _probably_meant(name)))
    for name, near in islice(found, _MOST_WARNED):
        log.warning(f"{visible(name)} not found: did you mean {visible(str(near))}?")


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
    """Raise a DataError if all paths are missing, with the path that was probably meant."""
    if not names or not all(map(is_missing, names)):
        return
    if is_url(names[0]):
        problem = f"{redacted(names[0])} is a web address, but this command reads local images"
        fix = "download the image first, or use `vitft predict`, which also reads web addresses"
        raise DataError(problem, fix=fix)
    near = _probably_meant(names[0])
    several = len(names) > 1
    fix = f"check the path{'s' * several}{f': did you mean {near}?' if near else ''}"
    raise DataError(f"{listing(names, most=2)} {'do' if several else 'does'} not exist", fix=fix)


def _probably_meant(name: str) -> Path | None:
    """Return the existing path that a missing path of an image or folder probably meant, if any."""
    if not name or os.path.lexists(name):
        return None
    near = None
    with contextlib.suppress(OSError, ValueError):  # impossible names, closed folders
        near = near_path(
            Path(name), lambda entry: entry.is_dir() or not is_surely_no_image(entry.name)
        )
    return near if near and (near.is_file() or not Path(name).suffix) else None
