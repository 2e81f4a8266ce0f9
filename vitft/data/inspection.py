"""Inspection of image files: each file is read, hashed and decoded once.

Every pass over a data folder uses this module. The caller provides a function that computes
anything else that is needed from each image, such as features or a fingerprint. This module does
not import torch.
"""

import contextlib
import functools
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from PIL import Image

from vitft.data.folder import File, Folder
from vitft.data.grey_levels import GreyRange
from vitft.data.images import MAX_PIXELS, Decoded, decode, read_bytes
from vitft.data.jpeg import decode_upright, header_oddities
from vitft.data.loading import Pixels, in_order
from vitft.data.parts import Part
from vitft.system.console import NOTE
from vitft.system.errors import DataError, ImageError
from vitft.system.imports import missing_library_command
from vitft.system.text import count

log = logging.getLogger(__name__)

_Inspected = TypeVar("_Inspected")


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """Facts about a file that was decoded completely."""

    path: str
    label: int
    part: Part
    sha256: str
    width: int
    """Width in pixels of the upright image."""
    height: int
    odd: tuple[str, ...] = ()
    """Remarks on the decoding, e.g. `rotated by EXIF`."""
    group: str = ""


def inspected_file(
    file: File, sha256: str, size: tuple[int, int], odd: tuple[str, ...]
) -> InspectedFile:
    """Return the facts about a file, given its digest, its width and height, and remarks."""
    return InspectedFile(file.path, file.label, file.part, sha256, *size, odd, file.group)


@dataclass(frozen=True, slots=True)
class InspectedFolder:
    """The readable and the unreadable files of a folder."""

    folder: Folder
    good: tuple[InspectedFile, ...]
    """Readable files in the order of the folder's files."""
    bad: tuple[tuple[str, str], ...]
    """Paths of unreadable files, with the reasons, sorted by path."""
    odd: Mapping[str, int]
    """Number of images with each remark, most frequent first."""


class OpenedImage:
    """The bytes of an image file, decoded at most once and only when needed.

    With `fast`, simplejpeg decodes ordinary upright JPEGs to the same pixels in less time.
    """

    def __init__(
        self, file: File, data: bytes, *, max_pixels: int, fast: bool, grey_range: GreyRange = ()
    ) -> None:
        self.file, self.data = file, data
        self.max_pixels, self.grey_range, self.fast = max_pixels, grey_range, fast
        self.sha256 = hashlib.sha256(data).hexdigest()

    @functools.cached_property
    def jpeg(self) -> Pixels | None:
        """Pixels (H, W, 3) of an undamaged upright JPEG, or None if Pillow must decode the file."""
        return decode_upright(self.data, max_pixels=self.max_pixels) if self.fast else None

    @functools.cached_property
    def decoded(self) -> Decoded:
        """Image as decoded by Pillow, with remarks.

        Raises:
            ImageError: The bytes cannot be decoded (see `images.decode`).
        """
        return decode(
            self.data, self.file.path, max_pixels=self.max_pixels, grey_range=self.grey_range
        )

    @property
    def image(self) -> Image.Image:
        """Upright RGB image."""
        return self.decoded.image if self.jpeg is None else Image.fromarray(self.jpeg)

    def facts(self) -> InspectedFile:
        """Return the facts about the file: digest, size and remarks.

        Raises:
            ImageError: The bytes cannot be decoded (see `images.decode`).
        """
        if self.jpeg is None:
            (width, height), odd = self.decoded.image.size, self.decoded.odd
        else:
            height, width = self.jpeg.shape[:2]
            odd = header_oddities(self.data, self.file.path)
        file = self.file
        return inspected_file(file, self.sha256, (width, height), odd)


def inspect_file(
    root: str,
    file: File,
    function: Callable[[OpenedImage], _Inspected],
    *,
    max_pixels: int = MAX_PIXELS,
    grey_range: GreyRange = (),
    fast: bool = False,
) -> _Inspected | ImageError:
    """Read one file and return the result of `function`, or the error if the file is unreadable.

    The error contains the path of the file relative to `root`.
    """
    try:
        data = read_bytes(f"{root}/{file.path}", max_pixels=max_pixels)
        return function(
            OpenedImage(file, data, max_pixels=max_pixels, grey_range=grey_range, fast=fast)
        )
    except ImageError as error:
        reason = error.reason
    return ImageError(file.path, reason)  # new: the old traceback would keep the bytes in memory


def inspect_folder(
    folder: Folder,
    *,
    max_pixels: int = MAX_PIXELS,
    workers: int = 2,
    allow_bad: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> InspectedFolder:
    """Read and fully decode every file of a folder once, in `workers` threads.

    Raises:
        DataError: More than ten files and more than a tenth of all files are unreadable, and
            `allow_bad` is not set.
    """
    root = os.fspath(folder.root)
    results = in_order(
        lambda file: inspect_file(root, file, OpenedImage.facts, max_pixels=max_pixels),
        folder.files,
        workers=workers,
    )
    with contextlib.closing(results):
        return collect(folder, results, allow_bad=allow_bad, progress=progress)


def collect(
    folder: Folder,
    results: Iterable[InspectedFile | ImageError],
    *,
    allow_bad: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> InspectedFolder:
    """Collect the results of a pass over a folder's files, calling `progress(1)` after each.

    Raises:
        DataError: More than ten files and more than a tenth of all files are unreadable, and
            `allow_bad` is not set.
    """
    good: list[InspectedFile] = []
    bad: list[tuple[str, str]] = []
    for result in results:
        if isinstance(result, ImageError):
            bad.append((result.path, result.reason))
        else:
            good.append(result)
        progress(1)
    bad = sorted([*folder.bad, *bad])
    total = len(good) + len(bad)
    if not allow_bad and len(bad) > max(10, total / 10):
        examples = "; ".join(f"{path}: {reason}" for path, reason in bad[:3])
        raise DataError(
            f"{len(bad):,} of {total:,} files in {folder.source} are unreadable ({examples})",
            fix=_remedy(bad),
        )
    odd = Counter(remark for file in good for remark in file.odd)
    return InspectedFolder(folder, tuple(good), tuple(bad), dict(odd.most_common()))


def merge_inspections(
    folder: Folder, shards: Iterable[InspectedFolder], *, allow_bad: bool
) -> InspectedFolder:
    """Merge the inspections of the shards of a folder.

    Raises:
        DataError: Too many files are unreadable (see `inspect_folder`).
    """
    results: dict[str, InspectedFile | ImageError] = {}
    for shard in shards:
        results |= {file.path: file for file in shard.good}
        results |= {path: ImageError(path, reason) for path, reason in shard.bad}
    return collect(folder, (results[file.path] for file in folder.files), allow_bad=allow_bad)


def _remedy(bad: Iterable[tuple[str, str]]) -> str:
    """Return the fix to suggest for unreadable files, given their paths and the reasons."""
    usual = "repair or remove them, or ignore them with --set data.allow_bad=true"
    for _, reason in bad:
        if command := missing_library_command(reason):
            return f"run {command}, or {usual}"
        if "unsupported" in reason and "): " in reason:
            return f"{reason.rpartition('): ')[2]}, or {usual}"
    return usual


def readable_now(folder: Folder, paths: Collection[str], *, max_pixels: int) -> list[str]:
    """Return those of the given files of a folder that can be read and decoded completely."""
    root, read = os.fspath(folder.root), OpenedImage.facts
    asked = [file for file in folder.files if file.path in paths]
    results = (inspect_file(root, file, read, max_pixels=max_pixels) for file in asked)
    return [result.path for result in results if isinstance(result, InspectedFile)]


def describe_counts(bad: int, good: int, *, different: int) -> str:
    """Return the number of readable images, and how it comes from the number of files.

    E.g. `135 readable images (136 files, 1 unreadable; 130 different, 5 identical copies)`.

    Args:
        bad: Number of unreadable files.
        good: Number of readable files.
        different: Number of different readable files: identical copies count once.
    """
    parts = [f"{count(good + bad, 'file')}, {bad:,} unreadable"] * (bad > 0)
    copies = count(good - different, "identical copy", "identical copies")
    parts += [f"{different:,} different, {copies}"] * (different < good)
    more = f" ({'; '.join(parts)})" if parts else ""
    return f"{count(good, 'readable image')}{more}"


_MOST_NOTES = 3


def log_inspection(inspected: InspectedFolder) -> None:
    """Log a folder's notes, its unreadable files and the number of images with each remark.

    Without `-v`, notes are shown only as long as there are at most `_MOST_NOTES` lines, those with
    a setting first, because the user may have to change it. The others are counted.
    """
    bad = [f"skipped {path}: {reason}" for path, reason in inspected.bad[:10]]
    if len(inspected.bad) > 10:
        bad.append(f"skipped {count(len(inspected.bad) - 10, 'more unreadable file')}")
    warnings = (*inspected.folder.warnings, *bad)
    for text in warnings:
        log.warning(text)
    odd = (f"{kind}: {count(number, 'image')}" for kind, number in sorted(inspected.odd.items()))
    harmless = [text for text in inspected.folder.notes if "no action is needed" in text]
    notes = [text for text in (*inspected.folder.notes, *odd) if text not in harmless]
    notes.sort(key=lambda text: "--" not in text)
    for text in harmless:
        log.debug(text)
    for number, text in enumerate(notes, start=len(warnings)):
        log.log(logging.INFO if number < _MOST_NOTES else NOTE, text)
