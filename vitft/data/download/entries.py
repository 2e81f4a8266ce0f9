"""Reader for the entries of tar and zip archives from untrusted sources.

Header values are checked against limits before they are used. Tar files are only read forwards and
must have an end marker. The checksums of gzip and zip files are verified. `download.archive`
decides which entries are accepted.
"""

import gzip
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO, Literal, cast

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
class ArchiveEntry:
    """An archive entry as described by its header."""

    name: str
    size: int = 0
    is_folder: bool = False
    refused: str = ""  # why an entry of this kind is refused; empty if it is not
    content: Callable[[], Iterator[bytes]] = lambda: iter(())


class ArchiveRefusedError(Exception):
    """Error with the reason for refusing an archive; `archive.unpack` turns it into a DataError."""


def archive_kind(file: BinaryIO) -> _ArchiveKind:
    """Return the archive's kind, detected from its first bytes, which are read.

    Raises:
        ArchiveRefusedError: The file is not an archive of a supported kind.
    """
    head = file.read(_TAR_BLOCK)
    if head[:2] == b"\x1f\x8b":
        return "tar.gz"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[257:262] == b"ustar":
        return "tar"
    seems = " (it looks like a web page)" if head.lstrip()[:1] == b"<" else ""
    raise ArchiveRefusedError(f"it is not a .tar, .tar.gz or .zip archive{seems}")


def open_entries(
    file: BinaryIO, kind: _ArchiveKind, packed: int, limits: ArchiveLimits
) -> Generator[ArchiveEntry, None, None]:
    """Yield every entry, in the order of the tar file or of the zip file's central directory.

    The contents of an entry can be read only until the next entry is yielded.
    """
    file.seek(0)
    if kind == "zip":
        if _directory_size(file) > 120 * limits.entries:  # zipfile reads the whole directory
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
        """Yield the bytes of one file in chunks."""
        self.seek(start)
        while size > 0 and (piece := self.read(min(_CHUNK_BYTES, size))):
            size -= len(piece)
            yield piece

    def finish(self) -> None:
        """Check that the last header block and all bytes after it are zeros.

        tarfile treats an invalid header as the end of the archive, so without this check, missing
        entries could go unnoticed.

        Raises:
            ArchiveRefusedError: The end marker is missing, or nonzero bytes follow it.
        """
        if len(self.last) < _TAR_BLOCK:
            raise ArchiveRefusedError("its end marker is missing")
        while True:
            if self.last.strip(b"\0"):
                raise ArchiveRefusedError(f"it is damaged at byte {self.place - len(self.last):,}")
            if not self.read(_CHUNK_BYTES):
                return


def tar_entry(member: tarfile.TarInfo, stream: TarStream) -> ArchiveEntry:
    """Convert a `TarInfo` to an `ArchiveEntry`."""
    if member.isdir():
        return ArchiveEntry(name=member.name, is_folder=True)
    refused = ""
    if member.issym() or member.islnk():
        refused = f"is a link to '{member.linkname[:200]}'"
    elif member.issparse():
        refused = "is a sparse file"
    elif not member.isreg():
        refused = "is a device or other special file"
    return ArchiveEntry(
        name=member.name,
        size=max(0, member.size),
        refused=refused or ("has a negative size" if member.size < 0 else ""),
        content=lambda: stream.content(member.offset_data, member.size),
    )


# zip --------------------------------------------------------------------------------------------


def _directory_size(file: BinaryIO) -> int:
    """Return the size in bytes of a zip file's central directory.

    Source: PKWARE's APPNOTE.TXT, sections 4.3.14 to 4.3.16.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 2**17))
    tail = file.read()
    at, large = tail.rfind(b"PK\x05\x06"), tail.rfind(b"PK\x06\x06")
    file.seek(0)
    sizes = [0]
    if 0 <= at <= len(tail) - 22:
        sizes.append(struct.unpack_from("<L", tail, at + 12)[0])
    if 0 <= large <= len(tail) - 56:
        sizes = [sizes[0], struct.unpack_from("<Q", tail, large + 40)[0]]
    return max(sizes)


def _zip_entry(info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> ArchiveEntry:
    """Convert a `ZipInfo` to an `ArchiveEntry`."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.is_dir():
        return ArchiveEntry(name=info.orig_filename, is_folder=True)
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

    return ArchiveEntry(
        name=info.orig_filename, size=info.file_size, refused=refused, content=content
    )
