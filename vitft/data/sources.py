"""What the user named, as a lazy row of images to answer: one `Source` per future row of output.

Files, folders (everything below them, sorted), globs that no shell has expanded, addresses on the
web, lists of all these, and standard input. Nothing is opened that need not be, and a list of a
million names is read as it is used. Neither numpy nor torch is imported here.
"""

import csv
import glob
import io
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TextIO

from vitft.data.download.web_image import WebLimits, fetch_image, is_url
from vitft.data.signatures import kind_of, looks_like
from vitft.data.walk import Walk
from vitft.system.errors import DataError, ImageError, UsageError

STDIN = "-"
LISTS = frozenset({".txt", ".csv", ".tsv", ".lst"})
COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path",
           "img", "url")  # fmt: skip
"""Headers under which the paths of a table are looked for."""
HEAD = 4096
"""Bytes of standard input that decide whether it is an image or a list."""
MAX_STDIN = 2**28
"""Bytes of an image on standard input."""
FETCHING, FETCHED_AHEAD = 8, 32
"""Addresses fetched at a time, and images at most that wait for their turn."""


@dataclass(frozen=True, slots=True)
class Source:
    """One image to be: `name` is what its row says, `path` what is opened unless there are data."""

    name: str
    path: str = ""
    data: bytes | None = None
    error: str = ""
    """Why there is no image, if that is known already."""


def sources(
    inputs: Sequence[str], *, lists: Sequence[str] = (), stdin: BinaryIO | None = None
) -> Iterator[Source]:
    """Everything that was named, in order, lazily.

    What is certainly wrong is said here, before anything expensive: a folder or a pattern without
    images, a list that cannot be read. A file that does not exist gets its error row.

    Raises:
        DataError: As above.
        UsageError: Standard input twice, or a table without a column of paths.
    """
    if inputs.count(STDIN) > 1:
        raise UsageError("- is named twice", fix="standard input can be read once")
    parts = [*(part_of(name, stdin) for name in inputs), *(from_list(name) for name in lists)]
    return (source for part in parts for source in part)


def part_of(name: str, stdin: BinaryIO | None) -> Iterable[Source]:
    """The images behind one argument."""
    if name == STDIN:
        assert stdin is not None
        return from_stdin(stdin)
    if is_url(name):
        return [Source(name)]
    if os.path.isdir(name):  # noqa: PTH112 - Path would raise for odd names
        if next(iter(below(name)), None) is None:
            raise empty_folder(name)
        return below(name)
    if glob.has_magic(name) and not os.path.lexists(name):
        return matching(name)
    if Path(name).suffix.lower() in LISTS and is_list(name):
        return from_list(name)
    return [Source(name, name)]


def expand(inputs: Iterable[str]) -> Iterator[str]:
    """Files as they are, folders as all images below them, sorted.

    Raises:
        DataError: A folder holds no image.
    """
    for name in inputs:
        if not Path(name).is_dir():
            yield name
            continue
        count = 0
        for source in below(name):
            count += 1
            yield source.path
        if not count:
            raise empty_folder(name)


def empty_folder(name: str) -> DataError:
    """The error of a folder that was named for nothing."""
    return DataError(
        f"no images in {name}", fix="give a folder that holds .jpg, .png, .webp ... files"
    )


def below(root: str) -> Iterator[Source]:
    """All image files in and below a folder in the order of their paths as strings.

    One folder's names are held at a time. What has an image's name and is no file is among them:
    opening it tells why. A folder that may not be read becomes one error row; links that lead back
    are not followed.
    """
    walk = Walk(root)
    yield from inside(walk, "", frozenset())


def inside(walk: Walk, folder: str, above: frozenset[object]) -> Iterator[Source]:
    """The images of one folder and those below it."""
    identity = walk.identity(walk.full(folder))
    if identity in above:
        return
    names: list[str] = []
    for entry in walk.entries(folder):
        if walk.is_hidden(entry.name):
            continue
        if is_folder(entry):
            names.append(entry.name + "/")  # so that the order is that of whole paths
        elif walk.has_image_name(entry.name):
            names.append(entry.name)
    for refused in walk.refused:
        yield Source(refused, error="a folder that may not be read")
    walk.refused.clear()
    names.sort()
    for name in names:
        path = f"{folder}/{name}" if folder else name
        if name.endswith("/"):
            yield from inside(walk, path[:-1], above | {identity})
        else:
            yield Source(walk.full(path), walk.full(path))


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """A folder, or a link to one; a link to itself is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def matching(pattern: str) -> Iterable[Source]:
    """What a pattern matches, sorted; `**` goes into folders. Folders bring their images."""
    found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - for names as typed
    if not found:
        raise DataError(f"no file matches {pattern}", fix="check the pattern and the folder")
    return (source for name in found for source in of_name(name, name))


def of_name(name: str, path: str) -> Iterable[Source]:
    """One entry of a list or a pattern: never an error that ends everything."""
    if is_url(name):
        return [Source(name)]
    if not name:
        return [Source(name, error="an empty line")]
    if os.path.isdir(path):  # noqa: PTH112
        images = below(path)
        first = next(images, None)
        return [Source(name, error="a folder without images")] if first is None else below(path)
    return [Source(name, path)]


# ---- lists


def is_list(name: str) -> bool:
    """Whether a .txt or .csv file among the arguments names images, or is a stray text.

    A text beside photos must not become a hundred error rows, so its first entry has to exist.
    """
    try:
        first = next(iter(entries(name)), None)
    except (DataError, UsageError):
        return False
    if first is None:
        return False
    return is_url(first) or any(os.path.lexists(home + first) for home in (beside(name), ""))


def from_list(name: str) -> Iterable[Source]:
    """The images that a list names.

    Relative paths are looked for beside the list; if its first path is not there but in the
    current folder, all of them are taken from there.

    Raises:
        DataError: It cannot be read or is empty.
        UsageError: A table in which no column is known to hold paths.
    """
    first = next(iter(entries(name)), None)
    if first is None:
        raise DataError(f"{name} names no images", fix="write one path a line")
    home = beside(name)
    if not os.path.lexists(home + first) and os.path.lexists(first):
        home = ""
    return (
        source
        for entry in entries(name)
        for source in of_name(entry, entry if os.path.isabs(entry) else home + entry)  # noqa: PTH117
    )


def beside(name: str) -> str:
    """The folder of a list with its slash, or nothing if that is the current one."""
    folder = os.path.dirname(name)  # noqa: PTH120 - Path would fold names
    return f"{folder}/" if folder else ""


def entries(name: str) -> Iterator[str]:
    """The paths in a list file, read as they are asked for."""
    try:
        with Path(name).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            table = Path(name).suffix.lower() in (".csv", ".tsv")
            yield from (cells_of(file, name) if table else lines_of(file))
    except OSError as error:
        raise DataError(
            f"cannot read the list {name}: {(error.strerror or '').lower()}",
            fix="give a text file with one path a line, or a CSV file with a column path",
        ) from error


def lines_of(file: TextIO) -> Iterator[str]:
    """One path a line; empty lines and lines that start with # are left out."""
    for line in file:
        text = line.rstrip("\r\n")
        if text.strip() and not text.startswith("#"):
            yield text


def cells_of(file: TextIO, name: str) -> Iterator[str]:
    """The cells of the column that holds paths.

    Raises:
        UsageError: No header is known, and there are several columns.
        DataError: The table is damaged.
    """
    reader = csv.reader(file, delimiter="\t" if name.lower().endswith(".tsv") else ",")
    try:
        header = next(reader, [])
        known = [cell.strip().lower() for cell in header]
        column = next((known.index(title) for title in COLUMNS if title in known), None)
        if column is None and len(header) > 1:
            raise UsageError(
                f"no column of {name} is known to hold paths: {', '.join(header)[:200]}",
                fix=f"call it path (or one of {', '.join(COLUMNS[1:])})",
            )
        if column is None and header:
            yield header[0]
        for cells in reader:
            if any(cells):
                yield cells[column or 0] if len(cells) > (column or 0) else ""
    except csv.Error as error:
        raise DataError(
            f"{name}, line {reader.line_num}: {error}", fix="write it as a CSV file"
        ) from error


# ---- standard input


def from_stdin(stdin: BinaryIO) -> Iterable[Source]:
    """The bytes of an image, or names of images: one a line, or with NULs between (find -print0).

    Raises:
        DataError: Nothing comes in.
    """
    head = b""
    while len(head) < HEAD and (piece := read_some(stdin, HEAD - len(head))):
        head += piece
        if is_image(head) or b"\n" in head:
            break
    if not head:
        raise DataError("nothing on standard input", fix="pipe an image or a list of paths into it")
    if is_image(head):
        data = head + stdin.read(MAX_STDIN)
        error = f"larger than {MAX_STDIN / 2**20:g} MB" if len(data) > MAX_STDIN else ""
        return [Source(STDIN, data=b"" if error else data, error=error)]
    names = split_at(stdin, head, b"\0" if b"\0" in head else b"\n")
    return (source for name in names for source in of_name(name, name))


def read_some(stdin: BinaryIO, most: int) -> bytes:
    """What is there, without waiting for all of it."""
    read1 = getattr(stdin, "read1", None)
    data: bytes = read1(most) if read1 is not None else stdin.read(most)
    return data


def is_image(head: bytes) -> bool:
    """Whether bytes begin a file, of whatever kind, rather than a list of names.

    BMP starts with two letters that a path may start with, so the rest of it decides.
    """
    if b"\0\0" in head or (len(head) > 2 and not head.startswith(b"BM") and is_known(head)):
        return True
    guess = looks_like(head.replace(b"\0", b"\n"))
    return guess not in ("looks like text", "looks like JSON") or head.lstrip().startswith(b"{")


def is_known(head: bytes) -> bool:
    """Whether bytes begin with the signature of any format."""
    return not kind_of(head).startswith("not an image")


def split_at(stdin: BinaryIO, head: bytes, mark: bytes) -> Iterator[str]:
    """Names between marks; `head` has been read already."""
    rest, piece = b"", head
    while piece:
        *whole, rest = (rest + piece).split(mark)
        yield from filter(None, (os.fsdecode(name.rstrip(b"\r")) for name in whole))
        piece = read_some(stdin, io.DEFAULT_BUFFER_SIZE)
    if rest.rstrip(b"\r"):
        yield os.fsdecode(rest.rstrip(b"\r"))


# ---- the web


def fetched(
    items: Iterable[Source], *, limits: WebLimits | None = None, others: int = FETCHED_AHEAD
) -> Iterator[Source]:
    """The same sources in the same order; those on the web bring their bytes or an error.

    A few are fetched ahead at a time; what lies on the disk passes through.
    """
    waiting: deque[Source | Future[Source]] = deque()
    pool: ThreadPoolExecutor | None = None
    try:
        for item in items:
            if not waiting and not is_remote(item):
                yield item
                continue
            if is_remote(item):
                pool = pool or ThreadPoolExecutor(FETCHING, thread_name_prefix="vitft-fetch")
                waiting.append(pool.submit(with_bytes, item, limits))
            else:
                waiting.append(item)
            while waiting and (len(waiting) >= others or is_ready(waiting[0])):
                yield settled(waiting.popleft())
        while waiting:
            yield settled(waiting.popleft())
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def is_remote(item: Source) -> bool:
    """Whether the image is on the web and still to be fetched."""
    return item.data is None and not item.path and not item.error and is_url(item.name)


def with_bytes(item: Source, limits: WebLimits | None) -> Source:
    """A source with its bytes, or with the reason why there are none."""
    try:
        return replace(item, data=fetch_image(item.name, limits))
    except ImageError as error:
        return replace(item, error=error.reason)


def is_ready(item: "Source | Future[Source]") -> bool:
    """Whether nothing has to be waited for."""
    return isinstance(item, Source) or item.done()


def settled(item: "Source | Future[Source]") -> Source:
    """The source itself."""
    return item if isinstance(item, Source) else item.result()


def bytes_of(source: Source, *, max_pixels: int) -> bytes:
    """The content of a source's file.

    Raises:
        ImageError: With the reason that its row will say.
    """
    from vitft.data.images import read_bytes  # Pillow; not needed to list what there is

    if source.error:
        raise ImageError(source.name, source.error)
    if source.data is not None:
        return source.data
    return read_bytes(source.path, max_pixels=max_pixels)
