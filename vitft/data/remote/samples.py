"""Samples of a tar shard in WebDataset's convention: KEY.jpg with KEY.cls, KEY.json or KEY.txt.

The shard is not unpacked: only headers and small text members are read, and the position of every
image is recorded. All members are checked as those of an archive are (see `download.archive`).
"""

import csv
import functools
import hashlib
import io
import json
import os
import posixpath
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from vitft.data.download.archive import (
    ARCHIVE_ERRORS,
    ArchiveLimits,
    ArchiveRefusedError,
    TarStream,
    parts_of,
    tar_entry,
)
from vitft.data.parts import part_named
from vitft.data.remote.places import COPY, INDEX
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import TableReader, cell_text, open_text
from vitft.data.walk import suffix_of, unused_notes
from vitft.system.errors import DataError, ImageError, RunError
from vitft.system.files import open_regular, read_regular, write_atomically
from vitft.system.structure import parse_json, structured
from vitft.system.text import count, listing

_TEXTS = frozenset({"cls", "txt", "text"})  # members of a sample that contain one value as text
_MAX_MEMBER_BYTES = 2**20  # maximum size of a member that is read as text
_MAX_CELL = 10_000  # number of characters after which a text is cut, e.g. a long caption
_LIMITS = ArchiveLimits(content=10**13)


class _Member(NamedTuple):
    name: str
    offset: int  # in bytes
    size: int


@dataclass(slots=True)
class _Sample:
    images: dict[str, _Member] = field(default_factory=dict)
    """Mapping from components (the text after the first dot of the name, e.g. `jpg`) to images."""
    fields: dict[str, str] = field(default_factory=dict)
    """Text of the members `cls` and `txt`, and the fields of `json` that are not nested."""


@dataclass(frozen=True, slots=True)
class _ShardSamples:
    samples: Mapping[str, _Sample]  # mapping from keys to samples, in the order of the shard
    unused: Mapping[str, int]  # number of members that are neither images nor text, by suffix


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


def read_samples(shard: Path, *, shown: str) -> _ShardSamples:
    """Read the samples of a shard, called `shown` in messages.

    Raises:
        DataError: The file is not a tar file, is damaged, or has a member that is refused.
        OSError: The file cannot be read.
    """
    found: dict[str, _Sample] = {}
    unused: Counter[str] = Counter()
    try:
        with shard.open("rb") as file:
            head = file.read(tarfile.BLOCKSIZE)
            if head[257:262] != b"ustar":
                compressed = "it is compressed, and only uncompressed shards are read"
                kinds = (
                    (not head, "it is empty"),
                    (head[:2] == b"\x1f\x8b", compressed),
                    (head.lstrip()[:1] == b"<", "it is not a tar file (it looks like a web page)"),
                    (True, "it is not a tar file"),
                )
                raise ArchiveRefusedError(next(kind for is_kind, kind in kinds if is_kind))
            file.seek(0)
            _collect_samples(file, os.fstat(file.fileno()).st_size, found, unused)
    except ArchiveRefusedError as refusal:
        fix = "write the shard again, or get it from another source"
        raise DataError(f"the shard {shown} was refused: {refusal}", fix=fix) from refusal
    except ARCHIVE_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(
            f"the shard {shown} is incomplete or damaged ({reason})",
            fix="write or fetch the shard again",
        ) from error
    return _ShardSamples(found, unused)


def _collect_samples(
    file: IO[bytes], size: int, found: dict[str, _Sample], unused: Counter[str]
) -> None:
    """Add the samples of an open tar file to `found`, and count members that are not used."""
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
                place = _Member(name, member.offset_data, member.size)
                found.setdefault(key, _Sample()).images[component] = place
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
                found.setdefault(key, _Sample()).fields.update(fields)
            else:
                unused[suffix_of(name)] += 1
        stream.finish()


def _json_fields(name: str, text: str) -> dict[str, str]:
    """Return the fields of a JSON object, or another value as `json`, as text; nothing nested."""
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


# index of a local copy: its samples as a table of labels ------------------------------------------


class IndexTable:
    """The samples of all shards as a table.

    The column `path` contains the image of a sample or, if it has several, the one whose component
    has no dot, e.g. `jpg` rather than `seg.png`. If that does not choose one image of each sample,
    there is one column for each component, and `data.path_column` chooses.
    """

    def __init__(self, shards: Mapping[str, _ShardSamples]) -> None:
        self.shards = shards
        components: dict[str, None] = {}
        fields: dict[str, None] = {}
        self.images = self.without = 0
        has_main = True
        for _, sample in self.samples():
            components |= dict.fromkeys(sample.images)
            fields |= dict.fromkeys(sample.fields)
            self.images += bool(sample.images)
            self.without += not sample.images
            has_main = has_main and (not sample.images or len(_main_images(sample)) == 1)
        self.fields = tuple(fields)
        # The subset that each shard's name contains as a word, e.g. `train-00.tar`
        words = (re.split(r"[^A-Za-z]+", name) for name in shards)
        found = [{*map(part_named, own)} - {""} for own in words]
        parts = [str(min(own)) for own in found if len(own) == 1 and "split" not in fields]
        is_split = len(parts) == len(shards) and "train" in parts and len({*parts}) > 1
        self.parts = dict(zip(shards, parts, strict=True)) if is_split else {}
        self.components = tuple(
            sorted(name for name in components if not (has_main and "." not in name))
        )
        if has_main and not any("." not in name for name in components):
            self.components = ()  # the only image of each sample has a dot in its component
        own = ["path"] * has_main + [*self.components] + ["split"] * bool(self.parts)
        taken = {name.lower() for name in own}
        names = [f"json.{name}" if name.lower() in taken else name for name in self.fields]
        self.has_main = has_main
        self.header = [*own, *names]

    def samples(self) -> Iterator[tuple[str, _Sample]]:
        for name, contents in self.shards.items():
            for sample in contents.samples.values():
                yield name, sample

    def rows(self) -> Iterator[list[str]]:
        for shard, sample in self.samples():
            if not sample.images:
                continue
            found = {name: f"{shard}/{one.name}" for name, one in sample.images.items()}
            main = [found[_main_images(sample)[0]]] if self.has_main else []
            part = [self.parts[shard]] if self.parts else []
            others = (found.get(name, "") for name in self.components)
            yield [*main, *others, *part, *(sample.fields.get(name, "") for name in self.fields)]

    def notes(self) -> list[str]:
        unused: Counter[str] = Counter()
        for contents in self.shards.values():
            unused.update(contents.unused)
        notes = unused_notes(unused)
        if self.without:
            notes.append(f"not used: {count(self.without, 'sample')} without an image")
        if self.parts:
            parts = listing(dict.fromkeys(self.parts.values()))
            notes.append(f"the names of the shards divide the data into {parts}")
        return notes


def _main_images(sample: _Sample) -> list[str]:
    """Return the components of a sample's images that have no dot, or its only component."""
    if len(sample.images) == 1:
        return [*sample.images]
    return [name for name in sample.images if "." not in name]


class IndexReader(TableReader):
    """Reader for the index of a local copy; its errors name the dataset and the sample."""

    def __init__(self, index: Path, data: str) -> None:
        choose = "choose the field that contains it with --set data.label=NAME"
        if not data.startswith("hf:"):
            choose = f"write the class of each sample as KEY.cls or in KEY.json, or {choose}"
        super().__init__(index, missing="run the command again", fix=choose)
        self.shown = data

    def error(
        self, problem: str, *, line: int = 0, column: str = "", fix: str = ""
    ) -> DataError | RunError:
        """Return the error for a problem with a field of a sample, given the line of the index."""
        line = line or self.line
        rows = csv.reader(open_text(io.BytesIO(self.data), self.data))
        cells = next((cells for number, cells in enumerate(rows, 1) if number == line), [""])
        sample = f"the sample {cells[0]}" if line > 1 else ""
        places = [self.shown, sample, f"the field {column.strip()[:40]}" * bool(column)]
        if setting := re.search(r"--set data\.(path_column|split_column|group)=\w+", fix):
            fix = f"choose a field with {setting[0]}"
        elif not fix or re.search("cell|line|rename", fix):  # of a table that the user wrote
            fix = self.fix
        return DataError(f"{', '.join(filter(None, places))}: {problem}", fix=fix)


# local copy of a remote dataset: a folder of the cache that is read like a table of labels --------

SOURCE, MEMBERS = "source.json", "members.npy"
COPY_OPTION = "the environment variable VITFT_CACHE"
"""What chooses the folder of copies, for messages."""
_FORMAT = 1  # version of the files of a copy; a copy of another version is made again
_MAX_JSON_BYTES = 2**32


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard of a copy, as it was when it was read."""

    name: str
    file: str  # path, relative to the copy if the shard was fetched
    size: int
    modified: str  # time of the last change in nanoseconds; as text, because it exceeds 53 bits

    def is_unchanged(self, folder: Path) -> bool:
        try:
            found = (folder / self.file).stat()
        except OSError:
            return False
        return (found.st_size, str(found.st_mtime_ns)) == (self.size, self.modified)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCopy:
    """Contents of source.json."""

    data: str  # value of `--data`, without secrets
    shards: tuple[ShardFile, ...]
    notes: tuple[str, ...]
    images: int
    version: str = ""  # commit or digest of a Hugging Face dataset
    format: int = _FORMAT


class IndexedShard(NamedTuple):
    """A shard and its samples."""

    file: ShardFile
    contents: _ShardSamples


def read_copy(folder: Path) -> LocalCopy | None:
    """Return the description of a copy, or None if it does not exist or is not complete."""
    try:
        fields = parse_json(read_regular(folder / SOURCE, limit=_MAX_JSON_BYTES))
        found: LocalCopy = structured(fields, LocalCopy)
    except (OSError, ValueError, TypeError):
        return None
    return found if found.format == _FORMAT else None


def find_copies(cache: Path) -> list[tuple[Path, LocalCopy]]:
    """Return the complete copies in a folder of the cache, sorted by name."""
    folders = sorted(cache.glob("*.copy")) if cache.is_dir() else []
    pairs = ((folder, read_copy(folder)) for folder in folders)
    return [(folder, copy) for folder, copy in pairs if copy is not None]


def copy_of_table(table: Path) -> LocalCopy | None:
    """Return the copy of which a path is the index, or None if it is another table."""
    if table.name != INDEX or not COPY.fullmatch(table.as_posix()):
        return None
    return read_copy(table.parent)


def write_samples(path: Path, shard: IndexedShard) -> None:
    """Record the samples of a shard, so that a copy that was interrupted does not read it again."""
    samples = {key: [one.images, one.fields] for key, one in shard.contents.samples.items()}
    fields = {"format": _FORMAT, "file": asdict(shard.file), "unused": shard.contents.unused}
    write_atomically(path, json.dumps({**fields, "samples": samples}))


def read_samples_record(path: Path) -> IndexedShard | None:
    """Return a shard that `write_samples` recorded, or None if there is no valid record."""
    try:
        fields: Mapping[str, Any] = parse_json(read_regular(path, limit=_MAX_JSON_BYTES))
        if fields["format"] != _FORMAT:
            return None
        samples = {
            key: _Sample({name: _Member(*one) for name, one in images.items()}, texts)
            for key, (images, texts) in fields["samples"].items()
        }
        return IndexedShard(
            structured(fields["file"], ShardFile), _ShardSamples(samples, fields["unused"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


# images in the shards of a local copy: each is found by its path and read at random ---------------

_Positions = np.ndarray[Any, np.dtype[np.uint64]]


def encode_positions(table: IndexTable) -> bytes:
    """Return the content of members.npy for the images of all samples."""
    numbers = {name: number for number, name in enumerate(table.shards)}
    columns = [
        (_key_of_path(f"{shard}/{one.name}"), numbers[shard], one.offset, one.size)
        for shard, sample in table.samples()
        for one in sample.images.values()
    ]
    array = np.array(sorted(columns), np.uint64).reshape(-1, 4).T
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _key_of_path(path: str) -> int:
    """Return the key under which the position of an image is found: 64 bits of a digest."""
    data = path.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@functools.lru_cache(maxsize=8)
def _load_positions(folder: str, _changed_ns: int) -> tuple[_Positions, LocalCopy] | None:
    """Return the positions of the images of a copy, memory-mapped, and its description."""
    copy = read_copy(Path(folder))
    if copy is None:
        return None
    return np.load(f"{folder}/{MEMBERS}", mmap_mode="r", allow_pickle=False), copy


def copy_member(path: str, most: int | None = None) -> bytes | None:
    """Return up to `most` bytes of an image in a copy, or None; an ImageError if it has changed."""
    match = COPY.fullmatch(path)
    if match is None:
        return None
    root = match["root"]
    try:
        found = _load_positions(root, os.stat(f"{root}/{SOURCE}").st_mtime_ns)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    if found is None:
        return None
    positions, copy = found
    key = _key_of_path(match["member"])
    column = int(np.searchsorted(positions[0], np.uint64(key)))
    if column == positions.shape[1] or int(positions[0, column]) != key:
        return None
    _, number, offset, size = map(int, positions[:, column])
    size = size if most is None else min(size, most)
    shard = copy.shards[number]
    try:
        with open(os.path.join(root, shard.file), "rb", opener=open_regular) as file:  # noqa: PTH118
            state = os.fstat(file.fileno())
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        raise ImageError(path, f"the shard {shard.name} is missing") from error
    if (state.st_size, str(state.st_mtime_ns)) != (shard.size, shard.modified) or len(data) < size:
        raise ImageError(path, f"the shard {shard.name} has changed")
    return data
