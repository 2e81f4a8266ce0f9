"""Safe unpacking of tar and zip archives from untrusted sources.

All entries are checked before the first is written, and each is checked again when it is written.
An archive is refused if it contains a link, a device or a path that leads out of the folder, or if
its contents are too large. Only new regular files and folders are created, in an empty folder.
"""

import contextlib
import errno
import gzip
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast

from vitft.system import console
from vitft.system.errors import DataError
from vitft.system.files import check_space, writing

# reader for the entries of tar and zip archives from untrusted sources ----------------------------

_ArchiveKind = Literal["tar", "tar.gz", "zip"]

_CHUNK_BYTES = 2**20
_TAR_BLOCK = 512
"""Tar block size in bytes. Headers and contents fill whole blocks; two zero blocks mark the end."""
_MAX_READ = 4 * _CHUNK_BYTES
"""Maximum number of bytes that tarfile may read at once, so that no header can exhaust memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Limits on the contents of an archive."""

    entries: int = 1_000_000
    content: int = 100 * 10**9  # total bytes of all files
    ratio: int = 200  # maximum bytes of contents per byte of the archive
    small: int = 2**24  # bytes of contents up to which the ratio is not checked

    def allows(self, content: int, packed: int) -> bool:
        """Return whether an archive of `packed` bytes may unpack to `content` bytes."""
        return content <= self.content and (content <= self.small or content <= self.ratio * packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArchiveEntry:
    name: str
    size: int = 0
    is_folder: bool = False
    refused: str = ""  # why an entry of this kind is refused; empty if it is not
    content: Callable[[], Iterator[bytes]] = lambda: iter(())


class ArchiveRefusedError(Exception):
    """Error with the reason for refusing an archive; `archive.unpack` turns it into a DataError."""


def _open_entries(
    file: BinaryIO, kind: _ArchiveKind, packed: int, limits: ArchiveLimits
) -> Generator[_ArchiveEntry, None, None]:
    """Yield every entry, whose contents can be read only until the next one is yielded."""
    file.seek(0)
    if kind == "zip":
        # zipfile reads the whole central directory, whose size is at the end of the file (PKWARE's
        # APPNOTE.TXT, sections 4.3.14 to 4.3.16)
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2**17))
        tail = file.read()
        at, large = tail.rfind(b"PK\x05\x06"), tail.rfind(b"PK\x06\x06")
        size = struct.unpack_from("<L", tail, at + 12)[0] if 0 <= at <= len(tail) - 22 else 0
        if 0 <= large <= len(tail) - 56:
            size = max(size, struct.unpack_from("<Q", tail, large + 40)[0])
        file.seek(0)
        if size > 120 * limits.entries:
            raise ArchiveRefusedError(f"it has more than {limits.entries:,} entries")
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                yield _zip_entry(info, archive)
        return
    raw = gzip.GzipFile(fileobj=file) if kind == "tar.gz" else file
    stream = TarStream(cast("IO[bytes]", raw), packed, limits)
    # TarStream has all methods that tarfile calls.
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # do not keep all members in memory
            yield tar_entry(member, stream)
        stream.finish()


# tar --------------------------------------------------------------------------------------------


class TarStream:
    """Forward-only stream of the uncompressed bytes of a tar file, for use by tarfile."""

    def __init__(self, file: IO[bytes], packed: int, limits: ArchiveLimits) -> None:
        self.file, self.packed, self.limits = file, packed, limits
        self.place = 0
        self.last = b""  # bytes of the last read

    def tell(self) -> int:
        return self.place

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_READ:
            raise ArchiveRefusedError("one of its headers is too large")
        data = self.file.read(size)
        self.place, self.last = self.place + len(data), data
        if not self.limits.allows(self.place, self.packed):
            raise ArchiveRefusedError(
                f"it unpacks to at least {self.place:,} bytes; the limit is "
                f"{self.limits.ratio} times its size"
            )
        return data

    def seek(self, place: int) -> int:
        """Seek forwards; seeking backwards is refused."""
        if place < self.place:
            raise ArchiveRefusedError("its headers overlap")
        while self.place < place and self.read(min(_CHUNK_BYTES, place - self.place)):
            pass
        return self.place

    def content(self, start: int, size: int) -> Iterator[bytes]:
        self.seek(start)
        while size > 0 and (piece := self.read(min(_CHUNK_BYTES, size))):
            size -= len(piece)
            yield piece

    def finish(self) -> None:
        """Refuse an archive without end marker: tarfile takes an invalid header for the end."""
        if len(self.last) < _TAR_BLOCK:
            raise ArchiveRefusedError("its end marker is missing")
        while True:
            if self.last.strip(b"\0"):
                raise ArchiveRefusedError(f"it is damaged at byte {self.place - len(self.last):,}")
            if not self.read(_CHUNK_BYTES):
                return


def tar_entry(member: tarfile.TarInfo, stream: TarStream) -> _ArchiveEntry:
    """Convert a `TarInfo` to an `_ArchiveEntry`."""
    if member.isdir():
        return _ArchiveEntry(name=member.name, is_folder=True)
    refused = ""
    if member.issym() or member.islnk():
        refused = f"is a link to '{member.linkname[:200]}'"
    elif member.issparse():
        refused = "is a sparse file"
    elif not member.isreg():
        refused = "is a device or other special file"
    return _ArchiveEntry(
        name=member.name,
        size=max(0, member.size),
        refused=refused or ("has a negative size" if member.size < 0 else ""),
        content=lambda: stream.content(member.offset_data, member.size),
    )


# zip --------------------------------------------------------------------------------------------


def _zip_entry(info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> _ArchiveEntry:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.is_dir():
        return _ArchiveEntry(name=info.orig_filename, is_folder=True)
    refused = ""
    if kind == stat.S_IFLNK:
        refused = "is a link"
    elif kind not in (0, stat.S_IFREG):
        refused = "is a device or other special file"
    elif info.flag_bits & 1:
        refused = "is encrypted"
    elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        refused = "has an unsupported compression method"

    def content() -> Iterator[bytes]:
        with archive.open(info) as member:
            while piece := member.read(_CHUNK_BYTES):
                yield piece

    return _ArchiveEntry(
        name=info.orig_filename, size=info.file_size, refused=refused, content=content
    )


# safe unpacking of tar and zip archives from untrusted sources ------------------------------------

# Errors that Python's readers raise for incomplete or damaged archives.
ARCHIVE_ERRORS = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error, EOFError,
    NotImplementedError, RecursionError, ValueError,
)  # fmt: skip


def unpack(archive: Path, folder: Path, *, name: str, limits: ArchiveLimits | None = None) -> None:
    """Unpack an archive into an empty folder, stripping outer folders that contain all files.

    Messages refer to it as `name`. After an error, the caller must remove the contents of the
    folder.

    Raises:
        DataError: The file is not an archive, is damaged, or has an entry that is refused. Except
            for damaged contents in a zip archive, this is detected before anything is written.
        ResourceError: The disk is full or too small.
        RunError: A file cannot be written.
    """
    limits, label = limits or ArchiveLimits(), console.visible(archive.name.removesuffix(".part"))
    with archive.open("rb") as file, _as_data_error(name):
        packed, head = os.fstat(file.fileno()).st_size, file.read(_TAR_BLOCK)
        is_zip = head[:4] in (b"PK\x03\x04", b"PK\x05\x06")
        kind: _ArchiveKind = "tar.gz" if head[:2] == b"\x1f\x8b" else "zip" if is_zip else "tar"
        if kind == "tar" and head[257:262] != b"ustar":
            seems = " (it looks like a web page)" if head.lstrip()[:1] == b"<" else ""
            raise ArchiveRefusedError(f"it is not a .tar, .tar.gz or .zip archive{seems}")
        megabytes = max(1, round(packed / 1e6))
        with (
            contextlib.closing(_open_entries(file, kind, packed, limits)) as entries,
            console.Progress(f"checking {label}", megabytes, unit="MB") as read,
        ):
            files = []
            for entry, parts in _accepted_entries(entries, packed, limits):
                read.advance(min(megabytes, round(file.tell() / 1e6)) - read.done)
                if not entry.is_folder:
                    files.append((parts, entry.size))
        if not files:
            raise ArchiveRefusedError("it contains no files")
        content = sum(size for _, size in files)
        check_space(folder.parent, content, f"unpacking {name}", option="--to")
        # The outer folders that contain all files
        folders = [parts[:-1] for parts, _ in files]
        pairs = zip(min(folders), max(folders), strict=False)
        outer = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        wrapper = folders[0][:outer]
        with (
            contextlib.closing(_open_entries(file, kind, packed, limits)) as entries,
            console.Progress(f"unpacking {label}", len(files), unit="files") as written,
        ):
            for entry, parts in _accepted_entries(entries, packed, limits):
                written.advance(not entry.is_folder)
                if parts[:outer] == wrapper:  # skip empty folders outside
                    _write_entry(entry, folder.joinpath(*parts[outer:]))


@contextlib.contextmanager
def _as_data_error(name: str) -> Iterator[None]:
    """Convert ArchiveRefusedError and errors raised by Python's archive readers to DataError."""
    try:
        yield
    except ArchiveRefusedError as refusal:
        fix = "get the archive from another source, or manually extract only the files you trust"
        raise DataError(f"{name} was refused: {refusal}; nothing was kept", fix=fix) from refusal
    except (*ARCHIVE_ERRORS, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # EINVAL: zipfile tried to seek to a negative position
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(
            f"{name} is incomplete or damaged ({reason}); nothing was kept",
            fix="fetch it again, or get it from another source",
        ) from error


def _accepted_entries(
    entries: Iterator[_ArchiveEntry], packed: int, limits: ArchiveLimits
) -> Iterator[tuple[_ArchiveEntry, tuple[str, ...]]]:
    """Yield each entry with the parts of its path, skipping macOS resource forks."""
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


def parts_of(entry: _ArchiveEntry) -> tuple[str, ...]:
    """Return the parts of an entry's path; an ArchiveRefusedError if its kind or path is unsafe."""
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


def _write_entry(entry: _ArchiveEntry, place: Path) -> None:
    """Create the folder or file of an entry, never overwriting an existing file."""
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
