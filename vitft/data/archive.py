"""Tar and zip archives from untrusted sources.

Entries are checked one by one, each before it is written. An archive is rejected if it contains a
link, a device or a path that leads out of the folder, or if its contents are too large. Only new
regular files are created, in an empty folder.
"""

import contextlib
import errno
import gzip
import io
import os
import re
import shutil
import stat
import struct
import tarfile
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from vitft.system import console
from vitft.system.errors import DataError
from vitft.system.files import check_space, writing

KNOWN_ARCHIVES: Mapping[str, tuple[str, str, str]] = {
    "flower_photos": (
        "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz",
        # Source: TensorFlow Datasets (tf_flowers, checksums.tsv)
        "4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c",
        "3,670 photos of five kinds of flower (CC BY 2.0, photographers in LICENSE.txt)",
    ),
}
"""Address, SHA-256 and description of the archives that `vitft data fetch` knows by name."""

_CHUNK_BYTES = 2**20
_MAX_READ = 4 * _CHUNK_BYTES
"""Maximum number of bytes that tarfile may read at once, so that no header can exhaust memory."""
_ARCHIVE_ERRORS = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error, EOFError,
    NotImplementedError, RecursionError, ValueError,
)  # fmt: skip
"""Errors that Python's readers raise for incomplete or damaged archives."""


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


class ArchiveRefusedError(Exception):
    """Error with the reason for rejecting an archive, which `opened_archive` converts."""


class ArchiveEntry(NamedTuple):
    """A file or folder in an archive."""

    name: str
    size: int
    is_folder: bool
    is_plain: bool  # a folder or a file that is neither a link, a device, sparse nor encrypted
    open: Callable[[], IO[bytes] | None]  # may be called until the next entry is read
    offset: int = 0  # place of the contents in a tar file


class _LimitedReader:
    """Forward-only reader for the uncompressed bytes of a tar file, with all that tarfile calls."""

    def __init__(self, file: Any, packed: int, limits: ArchiveLimits) -> None:  # noqa: ANN401
        self.file, self.packed, self.limits = file, packed, limits
        self.tell = file.tell
        self.last = b""  # bytes of the last read

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_READ:
            raise ArchiveRefusedError("one of its headers is too large")
        self.last = self.file.read(size)
        self.check(self.tell())
        return self.last

    def seek(self, place: int) -> None:
        self.check(place)
        self.file.seek(place)

    def check(self, place: int) -> None:
        if not self.limits.allows(place, self.packed):
            limit = f"the limit is {self.limits.ratio} times its size"
            raise ArchiveRefusedError(f"it unpacks to at least {place:,} bytes, and {limit}")


def _tar_entries(
    file: IO[bytes] | gzip.GzipFile, packed: int, limits: ArchiveLimits
) -> Iterator[ArchiveEntry]:
    """Yield the entries of an uncompressed tar file, and reject it if it has no end marker."""
    stream: Any = _LimitedReader(file, packed, limits)
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # do not keep all members in memory
            is_folder, read = member.isdir(), partial(tar.extractfile, member)
            is_plain = is_folder or (member.isreg() and not member.issparse() and member.size >= 0)
            size = 0 if is_folder else member.size
            yield ArchiveEntry(member.name, size, is_folder, is_plain, read, member.offset_data)
    # tarfile takes an invalid header for the end
    if len(stream.last) < tarfile.BLOCKSIZE:
        raise ArchiveRefusedError("its end marker is missing")
    while stream.last:
        if stream.last.strip(b"\0"):
            raise ArchiveRefusedError(f"it is damaged at byte {stream.tell() - len(stream.last):,}")
        stream.read(_CHUNK_BYTES)


def _zip_entries(file: IO[bytes], limits: ArchiveLimits) -> Iterator[ArchiveEntry]:
    # zipfile reads the whole central directory, whose size is at the end of the file (PKWARE's
    # APPNOTE.TXT, sections 4.3.14 to 4.3.16)
    file.seek(max(0, file.seek(0, os.SEEK_END) - 2**17))
    tail = file.read()
    at, large = tail.rfind(b"PK\x05\x06"), tail.rfind(b"PK\x06\x06")
    size = struct.unpack_from("<L", tail, at + 12)[0] if 0 <= at <= len(tail) - 22 else 0
    if 0 <= large <= len(tail) - 56:
        size = max(size, struct.unpack_from("<Q", tail, large + 40)[0])
    if size > 120 * limits.entries:
        raise ArchiveRefusedError(f"it has more than {limits.entries:,} entries")
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            is_plain = info.is_dir() or (
                stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
                and not info.flag_bits & 1  # encrypted
                and info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            )
            name, read = info.orig_filename, partial(archive.open, info)
            yield ArchiveEntry(name, info.file_size, info.is_dir(), is_plain, read)


def _accepted(
    entries: Iterator[ArchiveEntry], packed: int, limits: ArchiveLimits
) -> Iterator[tuple[ArchiveEntry, tuple[str, ...]]]:
    """Yield each file with the parts of its path, once it and those before it are within limits."""
    content = 0
    for number, entry in enumerate(entries, start=1):
        if number > limits.entries:
            raise ArchiveRefusedError(f"it has more than {limits.entries:,} entries")
        name = entry.name
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if not entry.is_plain:
            kinds = "a link, a device, or a sparse, encrypted or unusually packed file"
            raise ArchiveRefusedError(f"the entry '{name[:200]}' is {kinds}")
        if (
            name.startswith("/")
            or re.search(r"^.:/|[\\\0]", name)
            or ".." in parts
            or max(map(len, map(os.fsencode, parts)), default=0) > 255
            or len(os.fsencode(name)) > 1000
            or not (parts or entry.is_folder)
        ):
            problem = "has a name that is empty, absolute, too long or leads outside"
            raise ArchiveRefusedError(f"the entry '{name[:200]}' {problem}")
        content += entry.size
        if not limits.allows(content, packed):
            bounds = f"{limits.content / 1e9:g} GB and {limits.ratio} times its size"
            found = f"its entries up to '{name}' unpack to {content:,} bytes (limits: {bounds})"
            raise ArchiveRefusedError(f"it has {packed:,} bytes, but {found}")
        if not entry.is_folder:
            yield entry, parts


@contextlib.contextmanager
def opened_archive(
    path: Path, name: str, *, limits: ArchiveLimits, is_shard: bool = False
) -> Iterator[tuple[IO[bytes], Iterator[tuple[ArchiveEntry, tuple[str, ...]]]]]:
    """Open an archive, or a tar shard, and yield the file and an iterator over its checked entries.

    ArchiveRefusedError, also of the block, and errors of Python's readers become a DataError about
    `name`.
    """
    kept = "" if is_shard else ". Nothing was kept"
    fix = "get the archive from another source, or manually extract only the files you trust"
    fix = "write the shard again, or get it from another source" if is_shard else fix
    try:
        with path.open("rb") as file:
            packed, head = os.fstat(file.fileno()).st_size, file.read(tarfile.BLOCKSIZE)
            file.seek(0)
            if head[257:262] == b"ustar":
                entries = _tar_entries(file, packed, limits)
            elif head[:2] == b"\x1f\x8b" and not is_shard:
                entries = _tar_entries(gzip.GzipFile(fileobj=file), packed, limits)
            elif head[:4] in (b"PK\x03\x04", b"PK\x05\x06") and not is_shard:
                entries = _zip_entries(file, limits)
            else:
                kind = "n uncompressed tar file" if is_shard else " .tar, .tar.gz or .zip archive"
                seems = " (it looks like a web page)" if head.lstrip()[:1] == b"<" else ""
                raise ArchiveRefusedError(f"it is not a{kind}{seems}")
            yield file, _accepted(entries, packed, limits)
    except ArchiveRefusedError as refusal:
        raise DataError(f"{name} was rejected: {refusal}{kept}", fix=fix) from refusal
    except (*_ARCHIVE_ERRORS, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # EINVAL: zipfile tried to seek to a negative position
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(f"{name} is incomplete or damaged ({reason}){kept}", fix=fix) from error


def unpack(archive: Path, folder: Path, *, name: str, limits: ArchiveLimits | None = None) -> None:
    """Unpack an archive into an empty folder, leaving out outer folders that contain all files.

    Messages refer to it as `name`. After an error, the caller must remove the folder.

    Raises:
        DataError: The file is not an archive, is damaged, or has an entry that is rejected.
        ResourceError: The disk is full or too small.
        RunError: A file cannot be written.
    """
    limits, label = limits or ArchiveLimits(), console.visible(archive.name.removesuffix(".part"))
    with opened_archive(archive, name, limits=limits) as (file, entries):
        packed = archive.stat().st_size
        check_space(folder.parent, packed, f"unpacking {name}", option="--out")
        megabytes = max(1, round(packed / 1e6))
        with console.Progress(f"unpacking {label}", megabytes, unit="MB") as progress:
            for entry, parts in entries:
                if parts[0] == "__MACOSX":  # resource forks of macOS
                    continue
                path = folder.joinpath(*parts)
                with writing(path):
                    try:  # an existing file is never overwritten
                        path.parent.mkdir(parents=True, exist_ok=True)
                        target = path.open("xb")
                    except (FileExistsError, NotADirectoryError):
                        problem = "occurs twice, or is both a file and a folder"
                        raise ArchiveRefusedError(f"the entry '{entry.name}' {problem}") from None
                with target, entry.open() or io.BytesIO() as source:
                    while piece := source.read(_CHUNK_BYTES):
                        with writing(path):
                            target.write(piece)
                    with writing(path):
                        target.flush()
                progress.advance(min(megabytes, round(file.tell() / 1e6)) - progress.done)
        inner = folder
        while len(inside := [*inner.iterdir()]) == 1 and inside[0].is_dir():
            inner = inside[0]
        if not inside:
            raise ArchiveRefusedError("it contains no files")
    if inner != folder:
        top, *below = inner.relative_to(folder).parts
        outer = (folder / top).rename(folder / uuid.uuid4().hex)
        for path in [*outer.joinpath(*below).iterdir()]:
            path.rename(folder / path.name)
        shutil.rmtree(outer)
