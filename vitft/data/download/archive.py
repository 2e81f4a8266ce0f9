"""Safe unpacking of tar and zip archives from untrusted sources.

Every entry is checked before the first one is written, and again when it is written; entries
that no image folder needs (links, devices, paths out of the folder, disproportionate contents)
are refused by name. Only new plain files and folders are created, in a folder that was empty.

`download.entries` reads the entries.
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
from pathlib import Path
from typing import NamedTuple

from vitft.data.download.entries import (
    ArchiveEntry,
    ArchiveLimits,
    ArchiveRefusedError,
    archive_kind,
    open_entries,
)
from vitft.system.errors import DataError, ResourceError
from vitft.system.files import writing

# Raised by Python's readers on incomplete or damaged archives.
ARCHIVE_ERRORS = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error, EOFError,
    NotImplementedError, RecursionError, ValueError,
)  # fmt: skip


class ArchiveContents(NamedTuple):
    """Number of files, their bytes, and the folders that contain everything."""

    files: int
    content: int
    wrapper: tuple[str, ...]


def unpack(
    archive: Path, folder: Path, *, name: str, limits: ArchiveLimits | None = None
) -> ArchiveContents:
    """Unpack an archive into an empty folder, without the folder that wraps everything in it.

    The archive is a .tar, .tar.gz or .zip file, whatever its name; `name` is for messages. After
    an error the caller removes the content of the folder.

    Raises:
        DataError: Not an archive, incomplete, damaged, or with a refused entry; only damage inside
            a file of a zip is detected after something was written.
        ResourceError: The disk is or would be full.
    """
    limits = limits or ArchiveLimits()
    with archive.open("rb") as file, as_data_error(name):
        packed, kind = os.fstat(file.fileno()).st_size, archive_kind(file)
        with contextlib.closing(open_entries(file, kind, packed, limits)) as entries:
            inside = contents_of(accepted_entries(entries, packed, limits))
        if not inside.files:
            raise ArchiveRefusedError("it contains no files")
        free = shutil.disk_usage(folder).free
        if inside.content > free:
            raise ResourceError(
                f"{name} takes {inside.content / 1e9:.1f} GB unpacked, but only "
                f"{free / 1e9:.1f} GB are free in {folder.parent}",
                fix="free some space, or choose a folder on another disk with --to",
            )
        with contextlib.closing(open_entries(file, kind, packed, limits)) as entries:
            for entry, parts in accepted_entries(entries, packed, limits):
                if parts[: len(inside.wrapper)] == inside.wrapper:  # else an empty folder outside
                    write_entry(entry, folder.joinpath(*parts[len(inside.wrapper) :]))
    return inside


@contextlib.contextmanager
def as_data_error(name: str) -> Iterator[None]:
    """Convert refusals and the errors of Python's archive readers to a DataError."""
    try:
        yield
    except ArchiveRefusedError as refusal:
        raise DataError(
            f"{name} was refused: {refusal}",
            fix="nothing was kept; get the archive from another source, or unpack the files "
            "that you trust yourself",
        ) from refusal
    except (*ARCHIVE_ERRORS, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # EINVAL: zipfile seeks to a negative position
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(
            f"{name} is incomplete or damaged ({reason})",
            fix="nothing was kept; fetch it again, or get it from another source",
        ) from error


def accepted_entries(
    entries: Iterator[ArchiveEntry], packed: int, limits: ArchiveLimits
) -> Iterator[tuple[ArchiveEntry, tuple[str, ...]]]:
    """Yield the entries with the parts of their names, without resource forks.

    Raises:
        ArchiveRefusedError: An entry is of a kind that no image folder needs.
    """
    content = 0
    files: set[tuple[str, ...]] = set()
    folders: set[tuple[str, ...]] = {()}
    for number, entry in enumerate(entries, start=1):
        if number > limits.entries:
            raise ArchiveRefusedError(f"it has more than {limits.entries:,} entries")
        parts = parts_of(entry)
        content += entry.size
        if not limits.allows(content, packed):
            raise ArchiveRefusedError(
                f"up to the entry '{entry.name}' it unpacks {packed:,} bytes to {content:,}; the "
                f"limits are {limits.content / 1e9:g} GB and {limits.ratio} times its size"
            )
        if entry.is_folder and not parts:
            continue
        above = {parts[:i] for i in range(1, len(parts) + entry.is_folder)}
        if not entry.is_folder and (parts in files or parts in folders):
            raise ArchiveRefusedError(f"the entry '{entry.name}' occurs twice")
        if blocking := above & files:
            blocked = "/".join(min(blocking))
            raise ArchiveRefusedError(
                f"the entry '{entry.name}' needs the file '{blocked}' to be a folder"
            )
        folders |= above
        if not entry.is_folder:
            files.add(parts)
        if parts[0] != "__MACOSX":  # resource forks
            yield entry, parts


def parts_of(entry: ArchiveEntry) -> tuple[str, ...]:
    """Return the name of an entry as folders and a file name.

    Raises:
        ArchiveRefusedError: The entry is of a refused kind, or its name leads out of the folder or
            is not a valid file name.
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
        any(len(os.fsencode(part)) > 255 for part in parts) or len(os.fsencode(name)) > 1000
    ):
        why = "has a name that is too long"
    elif not why and not parts and not entry.is_folder:
        why = "has no file name"
    if why:
        shown = name if len(name) <= 200 else f"{name[:200]}..."
        raise ArchiveRefusedError(f"the entry '{shown}' {why}")
    return parts


def contents_of(entries: Iterator[tuple[ArchiveEntry, tuple[str, ...]]]) -> ArchiveContents:
    """Read all entries and return their summary."""
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
    return ArchiveContents(files, content, wrapper or ())


def write_entry(entry: ArchiveEntry, place: Path) -> None:
    """Create a folder or a new file; existing files are never opened."""
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
        raise ArchiveRefusedError(
            f"the entry '{entry.name}' has {size:,} bytes instead of {entry.size:,}"
        )
