"""Samples of a tar shard in WebDataset's convention: KEY.jpg with KEY.cls, KEY.json or KEY.txt.

The shard is not unpacked: only headers and small text members are read, and the position of every
image is recorded. All members are checked like the entries of an archive (see `download.archive`).
"""

import csv
import functools
import hashlib
import io
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitft.data.download.archive import (
    ArchiveEntry,
    ArchiveLimits,
    ArchiveRefusedError,
    accepted_entries,
    as_data_error,
    tar_entries,
)
from vitft.data.parts import part_named
from vitft.data.remote.places import COPY, INDEX
from vitft.data.signatures import FORMAT_BY_SUFFIX
from vitft.data.table import TableReader, cell_text, open_text
from vitft.data.walk import suffix_of, unused_notes
from vitft.system.errors import DataError, ImageError, RunError
from vitft.system.files import open_regular, read_regular
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
class ShardSamples:
    """The contents of a shard."""

    samples: Mapping[str, _Sample]  # mapping from keys to samples, in the order of the shard
    unused: Mapping[str, int]  # number of members that are neither images nor text, by suffix


def read_samples(shard: Path, *, shown: str) -> ShardSamples:
    """Read the samples of a shard, called `shown` in messages.

    Raises:
        DataError: The file is not a tar file, is damaged, or has a member that is rejected.
        OSError: The file cannot be read.
    """
    found: dict[str, _Sample] = {}
    unused: Counter[str] = Counter()
    seen: set[str] = set()
    fix = "write the shard again, or get it from another source"
    with shard.open("rb") as file, as_data_error(f"the shard {shown}", fix=fix):
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
        size = os.fstat(file.fileno()).st_size
        for entry, parts in accepted_entries(tar_entries(file, size, _LIMITS), size, _LIMITS):
            name = "/".join(parts)
            if parts[-1].startswith("."):
                continue
            if name in seen:
                raise ArchiveRefusedError(f"the entry '{name}' occurs twice")
            seen.add(name)
            folder, slash, base = name.rpartition("/")  # the key ends as in `base_plus_ext`
            stem, _, component = base.partition(".")  # of WebDataset
            key, component = f"{folder}{slash}{stem}", component.lower()
            if f".{component.rpartition('.')[2]}" in FORMAT_BY_SUFFIX:
                place = _Member(name, entry.offset, entry.size)
                found.setdefault(key, _Sample()).images[component] = place
            elif component in _TEXTS or component == "json":
                fields = _text_fields(entry, component)
                found.setdefault(key, _Sample()).fields.update(fields)
            else:
                unused[suffix_of(name)] += 1
    return ShardSamples(found, unused)


def _text_fields(entry: ArchiveEntry, component: str) -> dict[str, str]:
    """Return the text of a member, or the fields of its JSON object that are not nested."""
    if entry.size > _MAX_MEMBER_BYTES:
        raise ArchiveRefusedError(
            f"the entry '{entry.name}' has {entry.size:,} bytes, more than the limit of "
            f"{_MAX_MEMBER_BYTES:,}"
        )
    source = entry.open()
    assert source is not None
    text = source.read().decode("utf-8", "surrogateescape")
    if component != "json":
        return {component: _one_line(text)}
    try:
        value: Any = parse_json(text)
    except ValueError as error:
        raise ArchiveRefusedError(f"the entry '{entry.name}' is not valid JSON") from error
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


class IndexTable(NamedTuple):
    """The samples of all shards as a table."""

    header: list[str]
    rows: Iterator[list[str]]
    images: int  # number of samples with an image, i.e. of rows
    notes: list[str]


def index_table(shards: Mapping[str, ShardSamples]) -> IndexTable:
    """Return the samples of all shards as a table.

    The column `path` contains the image of a sample or, if it has several, the one whose component
    has no dot, e.g. `jpg` rather than `seg.png`. If that does not single out one image per sample,
    there is one column for each component, and `data.path_column` chooses.
    """
    found: set[str] = set()  # components of images
    fields: dict[str, None] = {}
    images, has_main = 0, True
    for _, sample in _all_samples(shards):
        found.update(sample.images)
        fields |= dict.fromkeys(sample.fields)
        images += bool(sample.images)
        has_main = has_main and (not sample.images or len(_main_images(sample)) == 1)
    if has_main:  # others, unless the only image of each sample has a dot in its component
        dotted = {name for name in found if "." in name}
        found = dotted if dotted != found else set()
    components = sorted(found)
    # The subset that each shard's name contains as a word, e.g. `train-00.tar`
    words = [{*map(part_named, re.split(r"[^A-Za-z]+", name))} - {""} for name in shards]
    parts = dict(zip(shards, (min(own, default="") for own in words), strict=True))
    is_split = "split" not in fields and all(len(own) == 1 for own in words)
    is_split = is_split and "train" in parts.values() and len({*parts.values()}) > 1
    own = ["path"] * has_main + components + ["split"] * is_split
    taken = {name.lower() for name in own}
    names = [f"json.{name}" if name.lower() in taken else name for name in fields]
    notes = unused_notes(sum((Counter(one.unused) for one in shards.values()), Counter()))
    if without := sum(len(one.samples) for one in shards.values()) - images:
        notes.append(f"not used: {count(without, 'sample')} without an image")
    if is_split:
        listed = listing(dict.fromkeys(parts.values()))
        notes.append(f"the names of the shards divide the data into {listed}")

    def rows() -> Iterator[list[str]]:
        for shard, sample in _all_samples(shards):
            if sample.images:
                paths = {name: f"{shard}/{one.name}" for name, one in sample.images.items()}
                main = [paths[_main_images(sample)[0]]] if has_main else []
                others = (paths.get(name, "") for name in components)
                texts = (sample.fields.get(name, "") for name in fields)
                yield [*main, *others, *[parts[shard]] * is_split, *texts]

    return IndexTable([*own, *names], rows(), images, notes)


def _all_samples(shards: Mapping[str, ShardSamples]) -> Iterator[tuple[str, _Sample]]:
    for name, contents in shards.items():
        for sample in contents.samples.values():
            yield name, sample


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


# images in the shards of a local copy: each is found by its path and read at random ---------------

_Positions = np.ndarray[Any, np.dtype[np.uint64]]


def encode_positions(shards: Mapping[str, ShardSamples]) -> bytes:
    """Return the content of members.npy for the images of all samples."""
    numbers = {name: number for number, name in enumerate(shards)}
    columns = [
        (_key_of_path(f"{shard}/{one.name}"), numbers[shard], one.offset, one.size)
        for shard, sample in _all_samples(shards)
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
    """Return up to `most` bytes of an image in a copy, or None (ImageError if it has changed)."""
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
