"""Samples of a tar shard in WebDataset's convention: KEY.jpg with KEY.cls, KEY.json or KEY.txt.

The shard is not unpacked: only headers and small text members are read, and the position of every
image is recorded. Shards come from untrusted places, so names, kinds and sizes of all members are
checked as those of an archive are (see `download.archive`).
"""

import os
import posixpath
import tarfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from vitft.data.download.archive import ARCHIVE_ERRORS, parts_of
from vitft.data.download.entries import (
    ArchiveLimits,
    ArchiveRefusedError,
    TarStream,
    tar_entry,
)
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import cell_text
from vitft.data.unused import suffix_of
from vitft.system.errors import DataError
from vitft.system.structure import parse_json

_TEXTS = frozenset({"cls", "txt", "text"})
"""Members of a sample that contain one value as text."""
_MAX_MEMBER_BYTES = 2**20
"""Maximum size of a member that is read as text."""
_MAX_CELL = 10_000
"""Number of characters after which a text is cut, e.g. a long caption."""
_LIMITS = ArchiveLimits(content=10**13)


class Member(NamedTuple):
    """An image in a shard."""

    name: str
    offset: int  # in bytes
    size: int


@dataclass(slots=True)
class Sample:
    """The members of a shard that share a key."""

    images: dict[str, Member] = field(default_factory=dict)
    """Mapping from components (the text after the first dot of the name, e.g. `jpg`) to images."""
    fields: dict[str, str] = field(default_factory=dict)
    """Text of the members `cls` and `txt`, and the fields of `json` that are not nested."""


@dataclass(frozen=True, slots=True)
class ShardSamples:
    """Contents of a shard."""

    samples: Mapping[str, Sample]
    """Mapping from keys to samples, in the order of the shard."""
    unused: Mapping[str, int]
    """Number of members that are neither images nor text, by suffix."""


class _SeekingStream(TarStream):
    """Stream of a tar file that skips the contents of members instead of reading them."""

    def seek(self, place: int) -> int:
        if place < self.place:
            raise ArchiveRefusedError("its headers overlap")
        if place > self.packed:
            raise ArchiveRefusedError(f"it ends after {self.packed:,} bytes, within a member")
        self.file.seek(place)
        self.place = place
        return place


def read_samples(shard: Path, *, shown: str) -> ShardSamples:
    """Read the samples of a shard.

    `shown` is the name of the shard in messages.

    Raises:
        DataError: The file is not a tar file, is truncated or damaged, or has a member that is
            refused: a link, a device, a name that leads outside, the same name twice, or a text
            that is too large or not valid JSON.
        OSError: The file cannot be read.
    """
    found: dict[str, Sample] = {}
    unused: Counter[str] = Counter()
    try:
        with shard.open("rb") as file:
            _check_is_tar(file.read(tarfile.BLOCKSIZE))
            file.seek(0)
            _collect_samples(file, os.fstat(file.fileno()).st_size, found, unused)
    except ArchiveRefusedError as refusal:
        raise DataError(
            f"the shard {shown} was refused: {refusal}",
            fix="write the shard again, or get it from another source",
        ) from refusal
    except ARCHIVE_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(
            f"the shard {shown} is incomplete or damaged ({reason})",
            fix="write or fetch the shard again",
        ) from error
    return ShardSamples(found, unused)


def _check_is_tar(head: bytes) -> None:
    """Raise an ArchiveRefusedError if the first block is not that of an uncompressed tar file."""
    if head[257:262] == b"ustar":
        return
    kind = "it is not a tar file"
    if head[:2] == b"\x1f\x8b":
        kind = "it is compressed, and only uncompressed shards are read"
    elif head.lstrip()[:1] == b"<":
        kind = "it is not a tar file (it looks like a web page)"
    elif not head:
        kind = "it is empty"
    raise ArchiveRefusedError(kind)


def _collect_samples(
    file: IO[bytes], size: int, found: dict[str, Sample], unused: Counter[str]
) -> None:
    """Add the samples of an open tar file to `found`, and count members that are not used.

    Raises:
        ArchiveRefusedError: A member is refused, or the end marker is missing.
    """
    stream = _SeekingStream(file, size, _LIMITS)
    seen: set[str] = set()
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # do not keep all members in memory
            entry = tar_entry(member, stream)
            name = "/".join(parts_of(entry))
            if entry.is_folder or posixpath.basename(name).startswith("."):
                continue
            if name in seen:
                raise ArchiveRefusedError(f"the entry '{name}' occurs twice")
            seen.add(name)
            if len(seen) > _LIMITS.entries:
                raise ArchiveRefusedError(f"it has more than {_LIMITS.entries:,} entries")
            folder, slash, base = name.rpartition("/")  # the key ends as in `base_plus_ext`
            stem, _, component = base.partition(".")  # of WebDataset
            key, component = f"{folder}{slash}{stem}", component.lower()
            if f".{component.rpartition('.')[2]}" in FORMAT_BY_SUFFIX:
                place = Member(name, member.offset_data, member.size)
                found.setdefault(key, Sample()).images[component] = place
            elif component in _TEXTS or component == "json":
                if entry.size > _MAX_MEMBER_BYTES:
                    raise ArchiveRefusedError(
                        f"the entry '{name}' has {entry.size:,} bytes, more than the limit of "
                        f"{_MAX_MEMBER_BYTES:,}"
                    )
                text = b"".join(entry.content()).decode("utf-8", "surrogateescape")
                fields = (
                    _json_fields(name, text)
                    if component == "json"
                    else {component: _one_line(text)}
                )
                found.setdefault(key, Sample()).fields.update(fields)
            else:
                unused[suffix_of(name)] += 1
        stream.finish()


def _json_fields(name: str, text: str) -> dict[str, str]:
    """Return the fields of a JSON object as text; lists of values are joined with `|`.

    Nested objects are left out. A value that is not an object is returned as the field `json`.

    Raises:
        ArchiveRefusedError: The text is not valid JSON.
    """
    try:
        value: Any = parse_json(text)
    except ValueError as error:
        raise ArchiveRefusedError(f"the entry '{name}' is not valid JSON") from error
    fields = value if isinstance(value, dict) else {"json": value}
    texts: dict[str, str] = {}
    for key, inside in fields.items():
        items = inside if isinstance(inside, list) else [inside]
        if not any(isinstance(item, list | dict) for item in items):
            texts[key] = _one_line("|".join(cell_text(item) for item in items))
    return texts


def _one_line(text: str) -> str:
    """Return a text on one line, without surrounding spaces, cut after `_MAX_CELL` characters."""
    return " ".join(text.strip().splitlines())[:_MAX_CELL]
