"""Safe unpacking of tar and zip archives from untrusted sources.

All entries are checked before the first is written, and each is checked again when it is written.
An archive is refused if it contains a link, a device or a path that leads out of the folder, or if
its contents are too large. Only new regular files and folders are created, in an empty folder.

The entries are read by `download.entries`.
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
from typing import BinaryIO, NamedTuple

from vitft.data.download.entries import (
    ArchiveEntry,
    ArchiveLimits,
    ArchiveRefusedError,
    archive_kind,
    open_entries,
)
from vitft.system import console
from vitft.system.errors import DataError, ResourceError
from vitft.system.files import writing

# Errors that Python's readers raise for incomplete or damaged archives.
ARCHIVE_ERRORS = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error, EOFError,
    NotImplementedError, RecursionError, ValueError,
)  # fmt: skip


class _ArchiveContents(NamedTuple):
    """Number of files, their total size in bytes, and the outer folders that contain them all."""

    files: int
    content: int
    wrapper: tuple[str, ...]


def unpack(
    archive: Path, folder: Path, *, name: str, limits: ArchiveLimits | None = None
) -> _ArchiveContents:
    """Unpack an archive into an empty folder, stripping outer folders that contain all files.

    The archive must be a tar, gzipped tar or zip file; its suffix is ignored. Messages refer to the
    archive as `name`. After an error, the caller must remove the contents of the folder.

    Raises:
        DataError: The file is not an archive, is incomplete or damaged, or has an entry that is
            refused. Except for damaged file contents in a zip archive, this is detected before
            anything is written.
        ResourceError: The disk is full or too small.
        RunError: A file cannot be written.
    """
    limits, label = limits or ArchiveLimits(), console.visible(archive.name.removesuffix(".part"))
    with archive.open("rb") as file, _as_data_error(name):
        packed, kind = os.fstat(file.fileno()).st_size, archive_kind(file)
        megabytes = max(1, round(packed / 1e6))
        with (
            contextlib.closing(open_entries(file, kind, packed, limits)) as entries,
            console.Progress(f"checking {label}", megabytes, unit="MB") as read,
        ):
            inside = _contents_of(
                _accepted_entries(counted(entries, file, read, megabytes), packed, limits)
            )
        if not inside.files:
            raise ArchiveRefusedError("it contains no files")
        free = shutil.disk_usage(folder).free
        if inside.content > free:
            raise ResourceError(
                f"{name} would take up {inside.content / 1e9:.1f} GB when unpacked, but only "
                f"{free / 1e9:.1f} GB is free in {folder.parent}",
                fix="free some disk space, or choose a folder on another disk with --to",
            )
        with (
            contextlib.closing(open_entries(file, kind, packed, limits)) as entries,
            console.Progress(f"unpacking {label}", inside.files, unit="files") as written,
        ):
            for entry, parts in _accepted_entries(entries, packed, limits):
                written.advance(not entry.is_folder)
                if parts[: len(inside.wrapper)] == inside.wrapper:  # skip empty folders outside
                    _write_entry(entry, folder.joinpath(*parts[len(inside.wrapper) :]))
    return inside


def counted(
    entries: Iterator[ArchiveEntry], file: BinaryIO, progress: console.Progress, megabytes: int
) -> Iterator[ArchiveEntry]:
    """Yield the entries, reporting how many of the `megabytes` have been read as progress."""
    for entry in entries:
        progress.advance(min(megabytes, round(file.tell() / 1e6)) - progress.done)
        yield entry


@contextlib.contextmanager
def _as_data_error(name: str) -> Iterator[None]:
    """Convert ArchiveRefusedError and errors raised by Python's archive readers to DataError."""
    try:
        yield
    except ArchiveRefusedError as refusal:
        raise DataError(
            f"{name} was refused: {refusal}; nothing was kept",
            fix="get the archive from another source, or manually extract only the files you trust",
        ) from refusal
    except (*ARCHIVE_ERRORS, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # EINVAL: zipfile tried to seek to a negative position
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(
            f"{name} is incomplete or damaged ({reason}); nothing was kept",
            fix="fetch it again, or get it from another source",
        ) from error


def _accepted_entries(
    entries: Iterator[ArchiveEntry], packed: int, limits: ArchiveLimits
) -> Iterator[tuple[ArchiveEntry, tuple[str, ...]]]:
    """Yield each entry with the parts of its path, skipping macOS resource forks.

    Raises:
        ArchiveRefusedError: An entry is refused (see `parts_of`), occurs twice or is inside a file,
            or the archive exceeds the limits.
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
                f"it has {packed:,} bytes, but its entries up to '{entry.name}' unpack to "
                f"{content:,} bytes; the limits are {limits.content / 1e9:g} GB and "
                f"{limits.ratio} times its size"
            )
        if entry.is_folder and not parts:
            continue
        above = {parts[:i] for i in range(1, len(parts) + entry.is_folder)}
        if not entry.is_folder and (parts in files or parts in folders):
            raise ArchiveRefusedError(f"the entry '{entry.name}' occurs twice")
        if blocking := above & files:
            blocked = "/".join(min(blocking))
            raise ArchiveRefusedError(
                f"the entry '{entry.name}' is inside '{blocked}', which is a file"
            )
        folders |= above
        if not entry.is_folder:
            files.add(parts)
        if parts[0] != "__MACOSX":  # skip macOS resource forks
            yield entry, parts


def parts_of(entry: ArchiveEntry) -> tuple[str, ...]:
    """Return the path of an entry, split into folder names and a file name.

    Raises:
        ArchiveRefusedError: The entry is of a refused kind, its name is not a valid file name, or
            its path leads out of the target folder.
    """
    why, name = entry.refused, entry.name
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not why and (name.startswith("/") or name[1:3] in (":/", ":\\")):
        why = "is an absolute path"
    elif not why and ".." in parts:
        why = "points outside the target folder"
    elif not why and ("\\" in name or "\0" in name):
        why = "has a backslash or a null byte in its name"
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


def _contents_of(entries: Iterator[tuple[ArchiveEntry, tuple[str, ...]]]) -> _ArchiveContents:
    """Consume all entries and return a summary of their contents."""
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
    return _ArchiveContents(files, content, wrapper or ())


def _write_entry(entry: ArchiveEntry, place: Path) -> None:
    """Create the folder or file of an entry, never overwriting an existing file.

    Raises:
        ArchiveRefusedError: The file does not have the size given in the entry's header.
        ResourceError: The disk is full.
        RunError: The folder or file cannot be written.
    """
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
