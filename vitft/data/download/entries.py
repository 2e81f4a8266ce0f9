"""The entries of a tar or a zip, read as if somebody had made it to do harm.

What a header says is bounded before it is believed, nothing is ever read backwards, and a tar must
end as a tar ends; gzip and zip carry checksums. Which entries are accepted is told in `archive`.
"""

import contextlib
import gzip
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO, Literal, cast

Kind = Literal["tar", "tar.gz", "zip"]

CHUNK = 2**20
BLOCK = 512
"""Of a tar: headers and contents fill whole blocks, and two blocks of zeros end it."""
MOST_AT_ONCE = 4 * CHUNK
"""Bytes that tarfile may ask for at once; a header that wants more is made to fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an archive may hold."""

    entries: int = 1_000_000
    content: int = 100 * 10**9
    """Bytes of all files together."""
    ratio: int = 200
    """Bytes of content for each byte of the archive."""
    small: int = 2**24
    """Bytes up to which the ratio does not matter."""

    def allows(self, content: int, packed: int) -> bool:
        """Whether so many bytes may come out of so many."""
        return content <= self.content and (content <= self.small or content <= self.ratio * packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry, as its header describes it."""

    name: str
    """As it stands in the archive."""
    size: int = 0
    is_folder: bool = False
    refused: str = ""
    """Why its kind is not accepted, if it is not."""
    content: Callable[[], Iterator[bytes]] = lambda: iter(())


class Refusal(Exception):
    """Why an archive is not unpacked, in words; becomes a DataError with the archive's name."""


def kind_of(file: BinaryIO) -> Kind:
    """What the first bytes say.

    Raises:
        Refusal: Neither tar, gzip nor zip.
    """
    file.seek(0)
    head = file.read(BLOCK)
    if head[:2] == b"\x1f\x8b":
        return "tar.gz"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[257:262] == b"ustar":
        return "tar"
    seems = "; it is a web page" if head.lstrip()[:1] == b"<" else ""
    raise Refusal(f"it is no .tar, .tar.gz or .zip archive{seems}")


def entries_of(
    file: BinaryIO, kind: Kind, packed: int, limits: Limits
) -> Generator[Entry, None, None]:
    """Every entry in the order of the archive; its content can be read until the next one."""
    file.seek(0)
    if kind == "zip":
        return zip_entries(file, limits)
    return tar_entries(file, packed, limits, is_zipped=kind == "tar.gz")


# tar --------------------------------------------------------------------------------------------


class Stream:
    """The bytes of a tar in order, unzipped on the way, as far as tarfile needs a file."""

    def __init__(self, file: IO[bytes], packed: int, limits: Limits) -> None:
        self.file, self.packed, self.limits = file, packed, limits
        self.place = 0
        self.last = b""
        """What was read last."""

    def tell(self) -> int:
        return self.place

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MOST_AT_ONCE:
            raise Refusal("one of its headers is made to fill the memory")
        data = self.file.read(size)
        self.place, self.last = self.place + len(data), data
        if not self.limits.allows(self.place, self.packed):
            raise Refusal(
                f"it unpacks to more than {self.place:,} bytes, {self.limits.ratio} times its size"
            )
        return data

    def seek(self, place: int) -> int:
        """Forwards only."""
        if place < self.place:
            raise Refusal("its headers overlap")
        while self.place < place and self.read(min(CHUNK, place - self.place)):
            pass
        return self.place

    def content(self, start: int, size: int) -> Iterator[bytes]:
        """The bytes of one file."""
        self.seek(start)
        while size > 0 and (piece := self.read(min(CHUNK, size))):
            size -= len(piece)
            yield piece

    def finish(self) -> None:
        """Make sure that the block after the last entry, just read, and all that follows is zeros.

        Raises:
            Refusal: tarfile takes anything that is no header for the end; then entries are missing.
        """
        if len(self.last) < BLOCK:
            raise Refusal("its end is cut off")
        while True:
            if self.last.strip(b"\0"):
                raise Refusal(f"it is damaged at byte {self.place - len(self.last):,}")
            if not self.read(CHUNK):
                return


def tar_entries(
    file: BinaryIO, packed: int, limits: Limits, *, is_zipped: bool
) -> Generator[Entry, None, None]:
    """The entries of a tar, read once from front to back."""
    with contextlib.ExitStack() as stack:
        plain = gzip.GzipFile(fileobj=file) if is_zipped else file
        stream = Stream(cast("IO[bytes]", plain), packed, limits)
        # What tarfile asks of a file is what a Stream has.
        tar = stack.enter_context(tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:"))
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # else a million stay in memory
            yield tar_entry(member, stream)
        stream.finish()


def tar_entry(member: tarfile.TarInfo, stream: Stream) -> Entry:
    """One member in our words."""
    if member.isdir():
        return Entry(name=member.name, is_folder=True)
    refused = ""
    if member.issym() or member.islnk():
        refused = f"is a link to '{member.linkname[:200]}'"
    elif member.issparse():
        refused = "is a file with holes"
    elif not member.isreg():
        refused = "is a device or another special file"
    return Entry(
        name=member.name,
        size=max(0, member.size),
        refused=refused or ("has a negative size" if member.size < 0 else ""),
        content=lambda: stream.content(member.offset_data, member.size),
    )


# zip --------------------------------------------------------------------------------------------


def zip_entries(file: BinaryIO, limits: Limits) -> Generator[Entry, None, None]:
    """The entries of a zip, by its directory."""
    if directory_size(file) > 120 * limits.entries:  # zipfile makes objects of all of it at once
        raise Refusal(f"it holds more than {limits.entries:,} entries")
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            yield zip_entry(info, archive)


def directory_size(file: BinaryIO) -> int:
    """Bytes of the list of entries at the end of a zip.

    Source: APPNOTE.TXT of PKWARE, sections 4.3.14 to 4.3.16.
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


def zip_entry(info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> Entry:
    """One member in our words."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.is_dir():
        return Entry(name=info.orig_filename, is_folder=True)
    refused = ""
    if kind == stat.S_IFLNK:
        refused = "is a link"
    elif kind not in (0, stat.S_IFREG):
        refused = "is a device or another special file"
    elif info.flag_bits & 1:
        refused = "is encrypted"
    elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        refused = "is compressed by a method that is not read here"

    def content() -> Iterator[bytes]:
        with archive.open(info) as member:
            while piece := member.read(CHUNK):
                yield piece

    return Entry(name=info.orig_filename, size=info.file_size, refused=refused, content=content)
