"""Unpacks a tar or zip archive that may have been made to do harm.

Every entry is looked at before the first one is written, and again when its turn comes; what no
folder of images needs (links, devices, ways out of the folder, contents out of all proportion) is
refused with its name. Nothing but new plain files and folders is ever made, in a folder that was
empty.

How entries are read is told in `archive_entries`, where the bytes come from in `download`.
"""

import contextlib
import errno
import gzip
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitft.data.download.entries import Entry, Limits, Refusal, entries_of, kind_of
from vitft.system.errors import DataError, ResourceError
from vitft.system.files import writing

LONGEST_PART, LONGEST_NAME = 255, 1000
"""Bytes of one part of a name, and of the whole of it."""
CLUTTER = "__MACOSX"
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RecursionError,
    ValueError,
)
"""What Python's readers raise on bytes that are no whole archive."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What a look through a whole archive found."""

    files: int
    content: int
    """Bytes."""
    wrapper: tuple[str, ...]
    """Folders that everything lies in."""


def unpack(archive: Path, folder: Path, *, name: str, limits: Limits | None = None) -> Inside:
    """Unpack an archive into an empty folder, without the folder that wraps everything in it.

    Args:
        archive: A .tar, .tar.gz or .zip file, whatever it is called.
        folder: Exists and is empty; what is in it after an error is for the caller to remove.
        name: What the archive is called in errors.
        limits: What it may hold.

    Raises:
        DataError: No archive, cut, damaged, or with an entry that is refused; only damage inside
            a file of a zip is noticed after something was written.
        ResourceError: The disk is or would be full.
    """
    limits = limits or Limits()
    with archive.open("rb") as file, as_data_error(name):
        packed, kind = os.fstat(file.fileno()).st_size, kind_of(file)
        with contextlib.closing(entries_of(file, kind, packed, limits)) as entries:
            inside = looked_through(checked(entries, packed, limits))
        if not inside.files:
            raise Refusal("it holds no files")
        free = shutil.disk_usage(folder).free
        if inside.content > free:
            raise ResourceError(
                f"{name} needs {inside.content / 1e9:.1f} GB unpacked and {free / 1e9:.1f} GB are "
                f"free in {folder.parent}",
                fix="free some space, or name a place on another disk with --to",
            )
        with contextlib.closing(entries_of(file, kind, packed, limits)) as entries:
            for entry, parts in checked(entries, packed, limits):
                if parts[: len(inside.wrapper)] == inside.wrapper:  # else an empty folder beside it
                    write(entry, folder.joinpath(*parts[len(inside.wrapper) :]))
    return inside


@contextlib.contextmanager
def as_data_error(name: str) -> Iterator[None]:
    """Refusals, and what Python's readers raise on bytes that are no whole archive, in words."""
    try:
        yield
    except Refusal as refusal:
        raise DataError(
            f"{name} is not unpacked: {refusal}",
            fix="nothing of it was kept; take it from another place, or unpack what you trust "
            "of it yourself",
        ) from refusal
    except DAMAGE as error:
        raise damaged(name, error) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before the file's beginning: zipfile goes there
            raise
        raise damaged(name, error) from error


def damaged(name: str, error: Exception) -> DataError:
    """The error of an archive that is not whole."""
    return DataError(
        f"{name} is cut off or damaged ({told(error)})",
        fix="nothing of it was kept; fetch it again, or take it from another place",
    )


def told(error: BaseException) -> str:
    """The first line of an exception, short."""
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def checked(
    entries: Iterator[Entry], packed: int, limits: Limits
) -> Iterator[tuple[Entry, tuple[str, ...]]]:
    """The entries with the parts of their names, clutter left out.

    Raises:
        Refusal: At the first entry that no folder of images needs.
    """
    content = 0
    files: set[tuple[str, ...]] = set()
    folders: set[tuple[str, ...]] = {()}
    for number, entry in enumerate(entries, start=1):
        if number > limits.entries:
            raise Refusal(f"it holds more than {limits.entries:,} entries, from '{entry.name}' on")
        parts = parts_of(entry)
        content += entry.size
        if not limits.allows(content, packed):
            raise Refusal(
                f"with the entry '{entry.name}' it holds {content:,} bytes in {packed:,}, and "
                f"{limits.content / 1e9:g} GB and {limits.ratio} times its size are the limits"
            )
        if entry.is_folder and not parts:
            continue
        above = {parts[:i] for i in range(1, len(parts) + entry.is_folder)}
        if not entry.is_folder and (parts in files or parts in folders):
            raise Refusal(f"the entry '{entry.name}' comes twice")
        if blocking := above & files:
            blocked = "/".join(min(blocking))
            raise Refusal(f"the entry '{entry.name}' needs the file '{blocked}' to be a folder")
        folders |= above
        if not entry.is_folder:
            files.add(parts)
        if parts[0] != CLUTTER:
            yield entry, parts


def parts_of(entry: Entry) -> tuple[str, ...]:
    """The name of an entry as folders and a file name.

    Raises:
        Refusal: Its kind is refused, or the name leads out of the folder or cannot be a name here.
    """
    why, name = entry.refused, entry.name
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not why and (name.startswith("/") or name[1:3] in (":/", ":\\")):
        why = "is an absolute path"
    elif not why and ".." in parts:
        why = "leads out of the folder"
    elif not why and ("\\" in name or "\0" in name):
        why = "has a backslash or a zero byte in its name"
    elif not why and (
        any(len(os.fsencode(part)) > LONGEST_PART for part in parts)
        or len(os.fsencode(name)) > LONGEST_NAME
    ):
        why = "has too long a name"
    elif not why and not parts and not entry.is_folder:
        why = "is a file without a name"
    if why:
        shown = name if len(name) <= 200 else f"{name[:200]}..."
        raise Refusal(f"the entry '{shown}' {why}")
    return parts


def looked_through(entries: Iterator[tuple[Entry, tuple[str, ...]]]) -> Inside:
    """Go to the end, and tell what there is."""
    files = content = 0
    wrapper: tuple[str, ...] | None = None
    for entry, parts in entries:
        if entry.is_folder:
            continue
        files, content = files + 1, content + entry.size
        above = parts[:-1]
        if wrapper is None:
            wrapper = above
        while wrapper != above[: len(wrapper)]:
            wrapper = wrapper[:-1]
    return Inside(files, content, wrapper or ())


def write(entry: Entry, place: Path) -> None:
    """Make a folder or a new file; nothing that exists is opened."""
    with writing(place, option="--to"):
        if entry.is_folder:
            place.mkdir(parents=True, exist_ok=True)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        file = place.open("xb")
    size = 0
    with file:
        for piece in entry.content():
            size += len(piece)
            with writing(place, option="--to"):
                file.write(piece)
        with writing(place, option="--to"):
            file.flush()
    if size != entry.size:
        raise Refusal(f"the entry '{entry.name}' has {size:,} bytes, not {entry.size:,} as stated")
