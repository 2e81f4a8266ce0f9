"""Inputs for prediction as a lazy sequence of images, with one `ImageSource` per output row.

Inputs are files, folders (everything below them, sorted), globs that the shell did not expand, web
addresses, lists of any of these, and standard input. Files are opened only when needed, and lists
are read incrementally. This module imports neither numpy nor torch.
"""

import contextlib
import glob
import io
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, starmap, tee
from pathlib import Path
from typing import BinaryIO

from vitft.config.sections import DataSpec
from vitft.data.groups import groups_of, no_columns
from vitft.data.listed_files import ImagesBelow, check_some_exist, is_missing, warn_of_misspelt
from vitft.data.places import place_of
from vitft.data.signatures import identify_format, looks_like
from vitft.data.table import (
    NOT_UTF_16,
    PATH_COLUMNS,
    TABLE_SUFFIXES,
    TableReader,
    is_table,
    open_text,
)
from vitft.data.walk import Walk, by_suffix
from vitft.data.web import WebLimits, fetch_image, is_url
from vitft.system.console import visible
from vitft.system.errors import DataError, ImageError, UsageError
from vitft.system.text import describe_os_error, listing, redacted, shell_quote

log = logging.getLogger(__name__)

STDIN = "-"
_LISTS = frozenset({".txt", ".lst", *TABLE_SUFFIXES})
_LIST_COLUMNS = (*PATH_COLUMNS, "url")  # headers that identify the path column of a table
_LIST_FIX = "use a text file with one path per line, or a table with a path column"
_MAX_LINE = 2**16  # maximum number of characters in a line of a list
_TOO_LONG = f"has a line of more than {_MAX_LINE:,} characters, so it is not a list of paths"
_HEAD = 4096  # bytes of standard input used to tell an image from a list
_MAX_STDIN = 2**28  # maximum size in bytes of an image on standard input
_FETCHING, _FETCHED_AHEAD = 8, 32
"""Number of concurrent downloads, and maximum number of images fetched ahead."""


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image to be classified."""

    name: str
    path: str = ""
    url: str = ""  # address of an image on the web; `name` is the same address without passwords
    data: bytes | None = None
    error: str = ""  # reason why there is no image, if already known
    group: str = ""  # name of its group, if images are grouped

    def read(self, *, max_pixels: int) -> bytes:
        """Return the bytes of the image (ImageError if it has an error or cannot be read)."""
        from vitft.data.images import read_bytes  # Pillow is not needed to list files

        if self.error:
            raise ImageError(self.name, self.error)
        return read_bytes(self.path, max_pixels=max_pixels) if self.data is None else self.data


def sources(
    inputs: Sequence[str],
    *,
    lists: Sequence[str] = (),
    stdin: BinaryIO | None = None,
    private: bool = False,
    groups: DataSpec | None = None,
) -> Iterator[ImageSource]:
    """Return an iterator over all images of the inputs and lists, in order.

    A missing file becomes an error row, and a path that was probably meant is logged. Tar shards
    are copied first, from this machine's local network only with `private`. If `groups` names a
    column or has a pattern (`data.group_by`), each image has a group, perhaps of its own.

    Raises:
        DataError: An input contains no images, a folder or list cannot be read, a column is missing
            or no image has a group.
        UsageError: Standard input is given more than once.
    """
    if inputs.count(STDIN) > 1:
        raise UsageError("standard input (-) is given more than once", fix="use - only once")
    groups = groups or DataSpec()
    column = groups.group
    if others := [one for one in (*inputs, *lists) if column and not is_table(Path(one))]:
        raise no_columns(others[0], column, "--group-by")
    parts = [_argument_sources(name, stdin, private, column) for name in inputs]
    warn_of_misspelt(file.path for part in parts if isinstance(part, list) for file in part)
    images = chain.from_iterable([*parts, *(_from_list(name, column) for name in lists)])
    return _with_groups(images, groups) if groups != DataSpec() else images


def _with_groups(images: Iterable[ImageSource], spec: DataSpec) -> Iterator[ImageSource]:
    """Yield the images with the groups in their paths or, as before, in a column of a list."""
    images, again = tee(images)
    named = ((one.name.replace(os.sep, "/"), one.group) for one in again)
    for one, group in zip(images, groups_of(named, spec, "--group-by"), strict=True):
        yield replace(one, group=group or one.name)


def _argument_sources(
    name: str, stdin: BinaryIO | None, private: bool, column: str
) -> Iterable[ImageSource]:
    if name == STDIN:
        assert stdin is not None
        return _from_stdin(stdin)
    if place_of(name):
        from vitft.data.copies import copied_images  # it imports numpy

        return starmap(ImageSource, copied_images(name, allow_private=private))
    if is_url(name):
        return [ImageSource(redacted(name), url=name)]
    if os.path.isdir(name):  # noqa: PTH112 - Path would raise on odd names
        return _folder_images(name)
    if glob.has_magic(name) and not os.path.lexists(name):
        literal = os.path.dirname(name)  # noqa: PTH120 - the first folders, if they exist as typed
        while glob.has_magic(literal) and not os.path.isdir(literal):  # noqa: PTH112
            literal = os.path.dirname(literal)  # noqa: PTH120
        pattern = glob.escape(literal) + name[len(literal) :]
        found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - keeps names as typed
        if not found:
            raise DataError(f"no files match {name}", fix="check the pattern and the folder")
        return (source for match in found for source in _named_sources(match, match))
    if Path(name).suffix.lower() in _LISTS and (column or _is_list(name)):
        return _from_list(name, column)
    return [ImageSource(name, name)]


def expand(inputs: Sequence[str]) -> Iterator[str]:
    """Yield each file name and the sorted images of each folder (DataError if there are none)."""
    check_some_exist(inputs)
    warn_of_misspelt(inputs)
    for name in inputs:
        if Path(name).is_dir():
            yield from (source.path for source in _folder_images(name))
        else:
            yield name


def _folder_images(root: str) -> Iterator[ImageSource]:
    """Return the images in and below a folder, sorted by path."""
    if all((Path(root) / name).is_file() for name in ("model.safetensors", "split.csv")):
        fix = f"name the run with --run {shell_quote(root)}, and give images or folders besides"
        raise DataError(f"{root} is a run, not a folder of images", fix=fix)
    images = _walk_and_log(walk := Walk(root.rstrip("/") or "/"))
    first = next(images, None)
    if first is None or not walk.has_image_name(first.name):
        from vitft.data.arrays import no_image_reason  # it imports numpy

        problem, _, way = no_image_reason(root).partition(": ")
        if problem:
            raise DataError(f"{root} is {problem}", fix=way)
    if first is None:
        content = [by_suffix(walk.unused()), walk.hidden()]
        known = f", which contains {listing(filter(None, content))}" if any(content) else ""
        fix = "use a folder with .jpg, .png or .webp files"
        raise DataError(f"no images in {root}{known}", fix=fix)
    return chain([first], images)


def _walk_and_log(walk: Walk) -> Iterator[ImageSource]:
    """Yield all files in and below the walk's folder that may be images, then log on the others.

    A folder without read permission becomes one error row, and circular links are not followed.
    """
    paths, is_empty = walk.images(any_suffix=True), True
    while (path := next(paths, "")) or walk.refused:
        is_empty = False
        while walk.refused:
            yield ImageSource(walk.refused.pop(0), error="permission denied")
        if path:
            yield ImageSource(walk.full(path), walk.full(path))
    if not is_empty:
        for note in walk.notes():
            log.info(f"{walk.root}: {note}")


def _named_sources(name: str, path: str) -> Iterable[ImageSource]:
    """Return the images for an entry of a list or pattern; problems become error rows."""
    if is_url(name):
        return [ImageSource(redacted(name), url=name)]
    if not name:
        return [ImageSource(name, error="empty line")]
    if os.path.isdir(path):  # noqa: PTH112
        images = _walk_and_log(Walk(path))
        return chain([next(images, ImageSource(name, error="no images in this folder"))], images)
    return [ImageSource(name, path)]


# ---- lists


def _is_list(name: str) -> bool:
    """Return whether the first line of a text or CSV file exists or is a web address."""
    with contextlib.suppress(DataError, UsageError):
        first, _ = next(_list_entries(name), (None, ""))
        if first is None:
            return Path(name).suffix.lower() in TABLE_SUFFIXES
        homes = (_list_folder(name), "")
        return any(is_url(first) or os.path.lexists(f"{home}{first}") for home in homes)
    return False


def _from_list(name: str, column: str) -> Iterable[ImageSource]:
    """Return the images in a list, whose paths are relative to its folder or the current one."""
    entries = _list_entries(name, column)
    first = next(entries, None)
    if first is None:
        raise DataError(f"{name} lists no images", fix="add one path per line")
    home, (path, _) = _list_folder(name), first
    if not (os.path.isabs(path) or os.path.lexists(home + path)) and os.path.lexists(path):  # noqa: PTH117
        home = ""
    return _listed_sources(chain([first], entries), home, lambda: _list_entries(name, column))


def _listed_sources(
    entries: Iterable[tuple[str, str]],
    home: str,
    again: Callable[[], Iterable[tuple[str, str]]],
) -> Iterator[ImageSource]:
    """Yield the images for the entries of a list; paths are completed as in tables of labels.

    A completed path replaces the one in the list, and is not one that the list has, too.
    """
    images: ImagesBelow | None = None
    taken, is_told = set[str](), False
    for entry, group in entries:
        path = entry if os.path.isabs(entry) else home + entry  # noqa: PTH117
        if entry and not is_url(entry) and is_missing(path):
            if images is None:
                images, taken = ImagesBelow(home or os.curdir), {one for one, _ in again()}
            meant = images.only_fit(entry)
            names = {meant, home + meant, os.path.abspath(home + meant)} - {entry}  # noqa: PTH100
            if meant and taken.isdisjoint(names):
                if not is_told:
                    is_told, example = True, f"{visible(home + meant)} for {visible(entry)}"
                    log.info(f"files with nearly the same path are used instead, e.g. {example}")
                taken.add(meant)
                entry = path = home + meant
        for source in _named_sources(entry, path):
            yield replace(source, group=group) if group else source


def _list_folder(name: str) -> str:
    """Return the folder of a list, ending in a slash, or an empty string for the current folder."""
    folder = os.path.dirname(name)  # noqa: PTH120 - Path would normalise names
    return f"{folder}/" if folder else ""


def _list_entries(name: str, groups: str = "") -> Iterator[tuple[str, str]]:
    """Yield the paths in a list and the cells of the column `groups`, or "" without one.

    Empty lines and, in text files, comments (# and no name of a file) are skipped.
    """
    if Path(name).suffix.lower() in TABLE_SUFFIXES:
        table = TableReader(Path(name), missing=_LIST_FIX, fix=_LIST_FIX)
        header = next(iter(table), [])
        known = [cell.strip().lower() for cell in header]
        titles = f"Columns found: {', '.join(filter(None, header))[:200] or 'none'}"
        column = next((known.index(title) for title in _LIST_COLUMNS if title in known), None)
        if column is None and len(header) > 1:
            raise UsageError(
                f"{name} has no path column. {titles}",
                fix="rename the column that contains the paths to path or to one of "
                f"{', '.join(_LIST_COLUMNS[1:])}",
            )
        place = table.column_named(header, groups, "--group-by") if groups else len(known)
        if column is None:  # a single column needs no header
            yield from ((path, "") for path in header)
        places = (column or 0, place)
        for cells in filter(any, table):
            path, group = (cells[i] if i < len(cells) else "" for i in places)
            yield path, group.strip()
        return
    try:
        with Path(name).open("rb") as file:
            lines = open_text(file, file.peek(2))
            while line := lines.readline(_MAX_LINE):
                if len(line) == _MAX_LINE:
                    raise DataError(f"the list {name} {_TOO_LONG}", fix=_LIST_FIX)
                path = line.rstrip("\r\n")
                is_comment = path.startswith("#") and is_missing(_list_folder(name) + path)
                if path.strip() and not is_comment:
                    yield path, ""
    except (OSError, UnicodeError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else NOT_UTF_16
        raise DataError(f"cannot read the list {name}: {reason}", fix=_LIST_FIX) from error


# ---- standard input


def _from_stdin(stdin: BinaryIO) -> Iterable[ImageSource]:
    """Return the image on standard input, or those of a list, separated by newlines or NULs."""
    head = b""
    while len(head) < _HEAD and (piece := _read_some(stdin, _HEAD - len(head))):
        head += piece
        if _is_image(head) or b"\n" in head:
            break
    if not head:
        raise DataError(
            "standard input is empty", fix="pipe an image or a list of paths to the command"
        )
    if _is_image(head):
        data = head + stdin.read(_MAX_STDIN)
        error = f"larger than {_MAX_STDIN / 2**20:g} MB" if len(data) > _MAX_STDIN else ""
        return [ImageSource(STDIN, data=b"" if error else data, error=error)]
    names = _split_at(stdin, head, b"\0" if b"\0" in head else b"\n")
    return (source for name in names for source in _named_sources(name, name))


def _read_some(stdin: BinaryIO, most: int) -> bytes:
    """Read the bytes that are available on standard input, but no more than `most`."""
    read1 = getattr(stdin, "read1", None)
    data: bytes = read1(most) if read1 is not None else stdin.read(most)
    return data


def _is_image(head: bytes) -> bool:
    """Return whether the first bytes belong to an image or another file, not to a list of names."""
    # A path may also begin with the letters BM, the signature of a BMP file
    has_signature = not identify_format(head).startswith("not an image")
    if b"\0\0" in head or (len(head) > 2 and not head.startswith(b"BM") and has_signature):
        return True
    guess = looks_like(head.replace(b"\0", b"\n"))
    return guess not in ("looks like text", "looks like JSON") or head.lstrip().startswith(b"{")


def _split_at(stdin: BinaryIO, head: bytes, mark: bytes) -> Iterator[str]:
    """Yield the non-empty names separated by `mark` in `head` and in the rest of the input."""
    rest, piece = b"", head
    while piece:
        *whole, rest = (rest + piece).split(mark)
        if len(rest) > _MAX_LINE:
            raise DataError(f"standard input {_TOO_LONG}", fix="pipe one path per line")
        yield from filter(None, (os.fsdecode(name.rstrip(b"\r")) for name in whole))
        piece = _read_some(stdin, io.DEFAULT_BUFFER_SIZE)
    if rest.rstrip(b"\r"):
        yield os.fsdecode(rest.rstrip(b"\r"))


# ---- the web


def with_fetched(
    items: Iterable[ImageSource], *, limits: WebLimits | None = None
) -> Iterator[ImageSource]:
    """Yield the sources in order, with the bytes of a few images fetched ahead."""

    def fetched(item: ImageSource) -> ImageSource:
        try:
            return replace(item, data=fetch_image(item.url, limits))
        except ImageError as error:
            return replace(item, error=error.reason)

    waiting: deque[Future[ImageSource]] = deque()
    pool = ThreadPoolExecutor(_FETCHING, thread_name_prefix="vitft-fetch")
    try:
        for item in items:
            waiting.append(pool.submit(fetched, item) if item.url else Future())
            if not item.url:  # no thread is started for images on this machine
                waiting[-1].set_result(item)
            while waiting and (len(waiting) >= _FETCHED_AHEAD or waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
