"""Local copies of tar shards and Hugging Face datasets: made once, then read without the network.

A shard is fetched whole into the cache, resumed after an interruption, checked and indexed; shards
on this machine are only indexed. Rows of Hugging Face datasets are written to shards of their own.
One process makes the copy, others wait for it.

A shard follows WebDataset's convention: KEY.jpg with KEY.cls, KEY.json or KEY.txt. It is not
unpacked: only headers and small text members are read, and the position of every image is recorded.
All members are checked like the entries of an archive (see `data.archive`).
"""

import contextlib
import csv
import functools
import glob
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from vitft.config.sections import DataSpec
from vitft.data.archive import ArchiveEntry, ArchiveLimits, ArchiveRefusedError, opened_archive
from vitft.data.arrays import data_path
from vitft.data.parts import part_named
from vitft.data.places import COPY, INDEX, KINDS, Place, absolute_path, place_of, scheme_of
from vitft.data.signatures import FORMAT_BY_SUFFIX, SUPPORTED, identify_format
from vitft.data.table import PATH_COLUMNS, TableReader, cell_text, encode_table, open_text
from vitft.data.walk import suffix_of, unused_notes
from vitft.data.web import DownloadLimits, fetch_to_part, is_url, locked, remove_part
from vitft.system import console
from vitft.system.errors import DataError, ImageError, RunError, UsageError, VitftError
from vitft.system.files import (
    check_space,
    open_regular,
    read_regular,
    write_atomically,
    write_json,
    writing,
)
from vitft.system.imports import install_command, require_extra
from vitft.system.structure import parse_json, structured
from vitft.system.text import count, describe_os_error, labelled, listing, redacted

log = logging.getLogger(__name__)

_SOURCE, _MEMBERS = "source.json", "members.npy"
_OPTION = "the environment variable VITFT_CACHE"  # what chooses the folder of copies
_PRIVATE = "--set data.allow_private_addresses=true, or in predict --allow-private-addresses"
_MAX_SHARDS = 100_000
_FILE_SYSTEMS = {
    "s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub",
}  # fmt: skip
"""Mapping from the schemes that fsspec reads to the libraries that it needs for them."""


def prepare_data(data: str, spec: DataSpec, limits: DownloadLimits | None = None) -> Path:
    """Return the path of a dataset (see `data_path`), after making the local copy if it has one.

    Raises:
        UsageError: The place is not supported, a library is missing, or a setting has no effect.
        DataError: A shard is missing, cannot be fetched, or is rejected.
        ResourceError: The disk is full or too small.
        RunError: The cache folder is not writable.
    """
    place, scheme = place_of(data), scheme_of(data)
    if place is None:
        # An address, or a tar file that may be a shard or an archive
        fetch = "fetch an archive of images with vitft data fetch --url URL"
        is_tar = (urlsplit(data).path if scheme else data).lower().endswith(".tar")
        if is_tar and (scheme or not os.path.isdir(data)):  # noqa: PTH112
            problem = f"{data} is a tar file, which may be a shard or an archive of a folder"
            fix = f"use --data wds:{data} if it is a shard (KEY.jpg, KEY.cls). Otherwise, unpack"
            raise UsageError(problem, fix=f"{fix} it, or {fetch}")
        if re.search(r"\.(tar\.\w+|tgz|tbz2?|txz|zip)$", data, re.I) and os.path.isfile(data):  # noqa: PTH113
            raise UsageError(f"{data} is an archive", fix="unpack it, and use the folder")
        if scheme:
            what = "is a web address, not" if is_url(data) else "cannot be read as"
            fix = "use wds:URL{00..99}.tar for tar shards, copy the folder to this machine, or "
            raise UsageError(f"{data} {what} a folder or a table", fix=fix + fetch)
        return data_path(data, spec.root)
    if not place.address.strip("/"):
        raise UsageError(f"{data} names no data", fix=f"use e.g. --data {KINDS[place.kind]}")
    if spec.root:
        problem = f"data.root={spec.root} has no effect: {place.text} contains its images"
        raise UsageError(problem, fix="remove it")
    if (scheme := scheme_of(place.address)) in _FILE_SYSTEMS:
        extra, libraries = "s3" if scheme == "s3" else "sources", ("fsspec", _FILE_SYSTEMS[scheme])
        try:
            require_extra(extra, feature=f"reading {scheme}://", libraries=libraries)
        except UsageError as error:
            fix = error.fix if scheme in ("s3", "hf") else install_command(libraries)
            raise UsageError(error.problem, fix=fix) from error
    private = spec.allow_private_addresses
    limits = limits or DownloadLimits()
    limits = replace(limits, allow_private=private, option=_OPTION, private_option=_PRIVATE)
    _make_copy(place, limits)
    return data_path(data)


def copied_images(data: str, *, allow_private: bool) -> Iterator[tuple[str, str]]:
    """Yield the name (SHARD/MEMBER) and the path of each image after `prepare_data`."""
    index = prepare_data(data, DataSpec(allow_private_addresses=allow_private))
    reader = IndexReader(index, data)
    rows = iter(reader)
    header = next(rows)
    if "path" not in header:
        fix = "keep one image in each sample, named KEY.jpg"
        raise reader.error(f"each sample has several images ({', '.join(header)})", fix=fix)
    column = header.index("path")
    return ((row[column], f"{index.parent}/{row[column]}") for row in rows)


# addresses ----------------------------------------------------------------------------------------


def _list_shards(address: str) -> list[tuple[str, str]]:
    """Return names and addresses of the shards that one with braces or, for paths, `*` stands for.

    A name is the path relative to the folder that contains all shards.
    """
    scheme = "pipe" if address.lower().startswith("pipe:") else scheme_of(address)
    known = ("http", "https", *_FILE_SYSTEMS)
    if scheme not in ("", "file", *known):
        problem = f"wds:{address}: {scheme}: is not supported"
        schemes = ", ".join(f"{name}://" for name in known)
        fix = f"use a path, {schemes}, or copy the shards to this machine"
        raise UsageError(problem, fix=fix)
    addresses = _without_braces(address)
    if scheme in ("", "file"):
        patterns, addresses = map(absolute_path, addresses), []
        for one in patterns:
            is_pattern = any(sign in one for sign in "*?") and not os.path.lexists(one)
            found = sorted(glob.glob(one)) if is_pattern else [one]  # noqa: PTH207 - names as typed
            if not found:
                raise DataError(f"no shards match {one}", fix="check the pattern and the folder")
            addresses += found
    paths = [unquote(urlsplit(one).path) if is_url(one) else one for one in addresses]
    for path, one in zip(paths, addresses, strict=True):
        if not path.lower().endswith(".tar"):
            fix = "use uncompressed .tar shards: single images are read from them"
            raise UsageError(f"wds:{one} is not a .tar file", fix=fix)
    prefix = os.path.commonprefix(paths)  # noqa: RUF071 - cut at a slash
    folder = prefix.rpartition("/")[0]  # the longest in which all files lie
    names = [_safe_name(path[len(folder) :]) for path in paths]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"wds:{address} names {twice} twice", fix="name each shard once")
    return list(zip(names, addresses, strict=True))


def _without_braces(address: str) -> list[str]:
    """Return the addresses for which one with braces stands: `{00..09}` or `{train,val}`."""
    addresses = [address]
    while match := re.search(r"\{([^{}]*)\}", addresses[0]):
        texts = match[1].split(",")
        if limits := re.fullmatch(r"(\d+)\.\.(\d+)", match[1]):
            first, last = map(int, limits.groups())
            # Numbers have leading zeros if one of the limits has
            is_padded = any(n[0] == "0" and len(n) > 1 for n in limits.groups())
            width = max(map(len, limits.groups())) if is_padded else 0
            step = 1 if last >= first else -1
            every = range(first, last + step, step)[: _MAX_SHARDS + 1]
            texts = [f"{n:0{width}}" for n in every]
        elif len(texts) == 1:
            fix = "use {00..99} for numbers, or {train,val} for names"
            raise UsageError(f"wds:{address}: {match[0]} is not a list of shards", fix=fix)
        if len(texts) * len(addresses) > _MAX_SHARDS:
            fix = "correct the numbers in braces, or divide the data"
            raise UsageError(f"wds:{address} names more than {_MAX_SHARDS:,} shards", fix=fix)
        addresses = [one.replace(match[0], text, 1) for one in addresses for text in texts]
    return addresses


def _safe_name(path: str) -> str:
    """Return the relative path of a shard as a name that every file system accepts."""
    parts = (re.sub(r"[^\w.@+-]", "_", part) for part in path.split("/"))
    return "/".join(part for part in parts if part.strip("."))


# samples of a tar shard in WebDataset's convention ------------------------------------------------

_TEXTS = frozenset({"cls", "txt", "text"})  # members of a sample that contain one value as text
_MAX_MEMBER_BYTES = 2**20  # maximum size of a member that is read as text
_MAX_CELL = 10_000  # number of characters after which a text is cut, e.g. a long caption


@dataclass(slots=True)
class _Sample:
    shard: str
    images: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Mapping from components (the text after the first dot of the name, e.g. `jpg`) to the paths
    of images (SHARD/MEMBER), and their offsets and sizes in bytes."""
    fields: dict[str, str] = field(default_factory=dict)
    """Text of the members `cls` and `txt`, and the fields of `json` that are not nested."""

    def main_images(self) -> list[str]:
        """Return the components of the images that have no dot, or the only component."""
        return [c for c in self.images if "." not in c or len(self.images) == 1]


def _read_samples(path: Path, name: str, shown: str) -> tuple[list[_Sample], Counter[str]]:
    """Return the samples of a shard, called `shown` in messages, and unused members by suffix."""
    found: dict[str, _Sample] = {}
    unused: Counter[str] = Counter()
    seen: set[str] = set()
    limits = ArchiveLimits(content=10**13)
    with opened_archive(path, f"the shard {shown}", limits=limits, is_shard=True) as (_, entries):
        for entry, parts in entries:
            member = "/".join(parts)
            if parts[-1].startswith("."):
                continue
            if member in seen:
                raise ArchiveRefusedError(f"the entry '{member}' occurs twice")
            seen.add(member)
            folder, slash, base = member.rpartition("/")  # the key ends as in `base_plus_ext`
            stem, _, component = base.partition(".")  # of WebDataset
            key, component = f"{folder}{slash}{stem}", component.lower()
            if f".{component.rpartition('.')[2]}" in FORMAT_BY_SUFFIX:
                place = f"{name}/{member}", entry.offset, entry.size
                found.setdefault(key, _Sample(name)).images[component] = place
            elif component in _TEXTS or component == "json":
                fields = _text_fields(entry, component)
                found.setdefault(key, _Sample(name)).fields.update(fields)
            else:
                unused[suffix_of(member)] += 1
    return [*found.values()], unused


def _text_fields(entry: ArchiveEntry, component: str) -> dict[str, str]:
    """Return the text of a member, or the fields of its JSON object that are not nested.

    A list is joined with |, so one with | in its texts is left out, too.
    """
    if entry.size > _MAX_MEMBER_BYTES:
        found = f"{entry.size:,} bytes, more than the limit of {_MAX_MEMBER_BYTES:,}"
        raise ArchiveRefusedError(f"the entry '{entry.name}' has {found}")
    source = entry.open()
    assert source is not None
    text = source.read().decode("utf-8", "surrogateescape")
    texts = {component: text}
    if component == "json":
        try:
            value: Any = parse_json(text)
        except ValueError as error:
            raise ArchiveRefusedError(f"the entry '{entry.name}' is not valid JSON") from error
        fields = value if isinstance(value, dict) else {"json": value}
        lists = {key: one if isinstance(one, list) else [one] for key, one in fields.items()}
        texts = {
            key: "|".join(cell_text(item) for item in items)
            for key, items in lists.items()
            if not any(isinstance(item, list | dict) for item in items)
            and not (len(items) > 1 and any("|" in str(item) for item in items))
        }
    return {key: " ".join(one.strip().splitlines())[:_MAX_CELL] for key, one in texts.items()}


# index of a local copy: its samples as a table of labels ------------------------------------------


def _index_table(
    shards: Sequence[str], samples: Sequence[_Sample]
) -> tuple[list[str], Iterator[list[str]], list[str]]:
    """Return the header, the rows (one for each sample with an image) and notes.

    The column `path` contains the image of a sample or, if it has several, the one whose component
    has no dot, e.g. `jpg` rather than `seg.png`. If that does not single out one image per sample,
    there is one column for each component, and `data.path_column` chooses.
    """
    found = {name for sample in samples for name in sample.images}  # components of images
    fields = [*dict.fromkeys(name for sample in samples for name in sample.fields)]
    has_main = all(len(sample.main_images()) == 1 for sample in samples if sample.images)
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
    listed = (
        f"the names of the shards divide the data into {listing(dict.fromkeys(parts.values()))}"
    )

    def rows() -> Iterator[list[str]]:
        for sample in (sample for sample in samples if sample.images):
            paths = {name: one[0] for name, one in sample.images.items()}
            main = [paths[sample.main_images()[0]]] if has_main else []
            others = (paths.get(name, "") for name in components)
            texts = (sample.fields.get(name, "") for name in fields)
            yield [*main, *others, *[parts[sample.shard]] * is_split, *texts]

    return [*own, *names], rows(), [listed] * is_split


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
        cells = next(islice(rows, max(line - 1, 0), None), [""])
        sample = f"the sample {cells[0]}" if line > 1 else ""
        places = [self.shown, sample, f"the field {column.strip()[:40]}" * bool(column)]
        if setting := re.search(r"--set data\.(path_column|split_column|group)=\w+", fix):
            fix = f"choose a field with {setting[0]}"
        elif not fix or re.search("cell|line|rename", fix):  # of a table that the user wrote
            fix = self.fix
        return DataError(f"{', '.join(filter(None, places))}: {problem}", fix=fix)


# local copy of a remote dataset: a folder of the cache that is read like a table of labels --------


@dataclass(frozen=True, slots=True)
class _ShardFile:
    """A shard of a copy, as it was when it was read."""

    name: str
    file: str  # path, relative to the copy if the shard was fetched
    size: int
    modified: str  # time of the last change in nanoseconds; as text, because it exceeds 53 bits

    def matches(self, state: os.stat_result) -> bool:
        return (state.st_size, str(state.st_mtime_ns)) == (self.size, self.modified)


@dataclass(frozen=True, slots=True)
class _LocalCopy:
    """Contents of source.json."""

    data: str  # value of `--data`, without secrets
    shards: tuple[_ShardFile, ...]
    notes: tuple[str, ...]
    images: int
    version: str = ""  # commit or digest of a Hugging Face dataset


def _read_copy(folder: Path) -> _LocalCopy | None:
    """Return the description of a copy, or None if it does not exist or is not complete."""
    try:
        fields = parse_json(read_regular(folder / _SOURCE, limit=2**32))
        copy: _LocalCopy = structured(fields, _LocalCopy)
        return copy
    except (OSError, ValueError, TypeError):
        return None


def find_copies(cache: Path) -> list[tuple[Path, _LocalCopy]]:
    """Return the complete copies in a folder of the cache, sorted by name."""
    pairs = ((folder, _read_copy(folder)) for folder in sorted(cache.glob("*.copy")))
    return [(folder, copy) for folder, copy in pairs if copy is not None]


def copy_of_table(table: Path) -> _LocalCopy | None:
    """Return the copy of which a path is the index, or None if it is another table."""
    is_index = table.name == INDEX and COPY.fullmatch(table.as_posix())
    return _read_copy(table.parent) if is_index else None


# images in the shards of a local copy: each is found by its path and read at random ---------------


def _key_of_path(path: str) -> int:
    """Return the key under which the position of an image is found: 64 bits of a digest."""
    data = path.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@functools.lru_cache(maxsize=8)
def _load_positions(
    folder: str, _changed_ns: int
) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], _LocalCopy]:
    """Return the positions of the images of a copy, memory-mapped, and its description."""
    copy = _read_copy(Path(folder))
    if copy is None:
        raise FileNotFoundError(folder)
    return np.load(f"{folder}/{_MEMBERS}", mmap_mode="r", allow_pickle=False), copy


def copy_member(path: str, most: int | None = None) -> bytes | None:
    """Return up to `most` bytes of an image in a copy, or None (ImageError if it has changed)."""
    match = COPY.fullmatch(path)
    if match is None:
        return None
    root = match["root"]
    try:
        changed = os.stat(f"{root}/{_SOURCE}").st_mtime_ns  # noqa: PTH116
        positions, copy = _load_positions(root, changed)
    except (OSError, ValueError):
        return None
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
    if not shard.matches(state) or len(data) < size:
        raise ImageError(path, f"the shard {shard.name} has changed")
    return data


# making of a local copy ---------------------------------------------------------------------------


def _make_copy(place: Place, limits: DownloadLimits) -> None:
    """Make the local copy of a dataset, or complete it; a complete copy is not touched."""
    is_hub, folder = place.kind == "hf", place.folder
    shards = [] if is_hub else _list_shards(place.address)
    if _is_complete(place, shards):
        return
    if is_hub:
        require_extra("sources", feature=f"reading {place.text}")
    busy = f"another process is copying {place.text}"
    with locked(folder / ".lock", busy, wait=True, option=_OPTION):
        if _is_complete(place, shards):
            return
        notes, version = list[str](), ""
        if is_hub:
            shards, notes, version = _copy_rows(place)
        files, samples, unused = _ready_shards(place, shards, limits)
        filled = [sample for sample in samples if sample.images]
        if not filled:
            problem = f"no images: {count(len(shards), 'shard')} without KEY.jpg or another image"
            fix = "write each image as KEY.jpg and its class as KEY.cls, or in KEY.json"
            raise DataError(f"{place.text} contains {problem}", fix=fix)
        notes += unused_notes(unused)
        if without := len(samples) - len(filled):
            notes.append(f"not used: {count(without, 'sample')} without an image")
        header, rows, more = _index_table([name for name, _ in shards], samples)
        # Key, shard, offset and size of each image (4, n), sorted by key
        numbers = {name: number for number, (name, _) in enumerate(shards)}
        columns = [
            (_key_of_path(path), numbers[sample.shard], offset, size)
            for sample in filled
            for path, offset, size in sample.images.values()
        ]
        positions = np.array(sorted(columns), np.uint64).reshape(-1, 4).T
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(positions), allow_pickle=False)
        (folder / _SOURCE).unlink(missing_ok=True)
        write_atomically(folder / _MEMBERS, buffer.getvalue())
        write_atomically(folder / INDEX, encode_table(header, rows))
        copy = _LocalCopy(place.text, tuple(files), (*notes, *more), len(filled), version)
        write_json(folder / _SOURCE, asdict(copy))


def _is_complete(place: Place, shards: Sequence[tuple[str, str]]) -> bool:
    """Return whether a copy has all shards, and none has changed since it was indexed."""
    copy = _read_copy(place.folder)
    with contextlib.suppress(OSError):  # a shard was removed
        if copy and all(s.matches((place.folder / s.file).stat()) for s in copy.shards):
            if place.kind == "wds":
                return [file.name for file in copy.shards] == [name for name, _ in shards]
            name = place.hub_name()[0]
            return not os.path.exists(name) or copy.version == _local_version(name)  # noqa: PTH110
    return False


def _ready_shards(
    place: Place, shards: Sequence[tuple[str, str]], limits: DownloadLimits
) -> tuple[list[_ShardFile], list[_Sample], Counter[str]]:
    """Return all shards, after fetching those that are new, their samples and unused members."""
    files, samples, unused = list[_ShardFile](), list[_Sample](), Counter[str]()
    is_local = place.kind == "wds" and not scheme_of(shards[0][1])
    copies = place.folder / "shards"
    missing = {name for name, _ in shards if not (is_local or (copies / name).is_file())}
    if not is_local and place.kind == "wds":
        log.info(labelled("Data", f"copying {place.text} to {place.folder}"))
    bar = console.Progress(f"reading {place.name}", len(shards), unit="shards")
    with bar if is_local else contextlib.nullcontext():  # each download has its own progress bar
        for number, (name, address) in enumerate(shards, start=1):
            log.debug(f"shard {number} of {len(shards)}: {name}")
            file = address if is_local else f"shards/{name}"
            path = place.folder / file
            if name in missing:
                part = path.with_name(f"{path.name}.part")
                with writing(part, option=_OPTION):
                    part.parent.mkdir(parents=True, exist_ok=True)
                fetch_to_part(address, part, limits=limits)
                with writing(path, option=_OPTION):
                    part.replace(path)
                remove_part(part)
            try:
                found, others = _read_samples(path, name, address)
                state = path.stat()
            except OSError as error:
                problem = f"cannot read the shard {address}: {describe_os_error(error)}"
                raise DataError(problem, fix="check the path and its permissions") from error
            except DataError:
                if not is_local:
                    path.unlink(missing_ok=True)
                raise
            samples += found
            unused += others
            files.append(_ShardFile(name, file, state.st_size, str(state.st_mtime_ns)))
            # Those that are missing must fit on the disk; their size is the mean of the others
            missing.discard(name)
            needed = len(missing) * sum(file.size for file in files) / number
            check_space(place.folder.parent, needed, place.text, option=_OPTION)
            if is_local:
                bar.advance()
    return files, samples, unused


# rows of Hugging Face datasets as tar shards of a local copy --------------------------------------
#
# The rows are streamed once through the library `datasets`. An image is stored as the bytes of its
# file, and the other columns as JSON. A shard is written whole, with the position of the stream
# after it, so that an interrupted copy continues with the next row.

_SHARD_ROWS = 500  # number of rows in a shard
_PROGRESS = "progress.json"


def _copy_rows(place: Place) -> tuple[list[tuple[str, str]], list[str], str]:
    """Write, or continue writing, the rows of a dataset to shards in the folder of its locked copy.

    Return the shards, notes on splits that are not used, and the version of the data.
    """
    import datasets
    from huggingface_hub import HfApi

    name, rest = place.hub_name()  # NAME[@REVISION][:[CONFIG/]SPLIT]
    is_local = os.path.exists(name)  # noqa: PTH110
    config, _, chosen = rest.rpartition("/")
    name, _, revision = (name, "", "") if is_local else name.partition("@")
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        progress: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            progress = parse_json(read_regular(place.folder / _PROGRESS, limit=2**28))
        version = _local_version(name) if is_local else str(progress.get("version", ""))
        if not version:
            version = str(HfApi().dataset_info(name, revision=revision or None).sha)
        if progress.get("version") != version:  # new, or changed since it was copied
            shutil.rmtree(place.folder / "shards", ignore_errors=True)
            progress = {"version": version, "splits": {}}
            write_json(place.folder / _PROGRESS, progress)
        options: dict[str, Any] = {"path": name, "name": config or None}
        options["revision"] = None if is_local else version
        if name.endswith(".parquet") and os.path.isfile(name):  # noqa: PTH113
            options = {"path": "parquet", "data_files": name}
            progress["all"] = ["train"]
        if "all" not in progress:
            found = datasets.get_dataset_split_names
            progress["all"] = found(name, options["name"], revision=options["revision"])
        # The splits to copy, and a note on the others
        every = names = progress["all"]
        if chosen or len(every) > 1:
            names = [one for one in every if (one == chosen if chosen else part_named(one))]
        if not names:
            problem = f"there is no split {chosen or 'named train, validation or test'}"
            raise DataError(
                f"{place.text}: {problem}. Splits found: {listing(every)}",
                fix=f"choose one of them, e.g. hf:{name}:{every[0]}",
            )
        others = listing(one for one in every if not chosen and one not in names)
        shards = [
            shard for split in names for shard in _copy_split(place, options, split, progress)
        ]
        notes = [f"not used: the splits {others}"] * bool(others)
        return [(shard, f"hf://{name}/{shard}") for shard in shards], notes, version
    except VitftError:
        raise
    except Exception as error:  # `datasets` and the libraries below it raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = redacted((lines or [type(error).__name__])[0])[:200]
        fix = "check the name, the split and the network, or log in with `hf auth login`"
        raise DataError(f"cannot read {place.text}: {reason}", fix=fix) from error


def _local_version(path: str) -> str:
    """Return a digest of the names, sizes and modification times of local files."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    lines = [f"{file} {(s := file.stat()).st_size} {s.st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _copy_split(
    place: Place, options: Mapping[str, Any], split: str, progress: dict[str, Any]
) -> list[str]:
    """Write the rows of a split to shards, beginning after the last whole shard; return them."""
    import datasets

    state = progress["splits"].setdefault(split, {"shards": [], "stream": None, "done": False})
    shards: list[str] = state["shards"]
    stream = datasets.load_dataset(**options, split=split, streaming=True)
    features: Mapping[str, Any] = stream.features or {}
    images = _image_columns(features)
    if not images:
        problem = f"{place.text} has no column of images. Columns found: {listing(features)}"
        raise DataError(problem, fix="use a dataset with a column of the type Image")
    for name in images:
        if isinstance(features[name], datasets.Image):
            stream = stream.cast_column(name, datasets.Image(decode=False))
    if state["stream"]:
        stream.load_state_dict(state["stream"])
    found = stream.info.splits if stream.info else None
    total = found[split].num_examples if found and split in found else 0
    first = len(shards) * _SHARD_ROWS
    rows = iter(stream)
    with console.Progress(f"copying {place.name} {split}", max(total - first, 1)) as bar:
        while not state["done"]:
            name = f"{_safe_name(split)}-{len(shards):05}.tar"
            number = len(shards) * _SHARD_ROWS
            path = place.folder / "shards" / name
            part = path.with_name(f"{name}.part")
            # One shard
            written = 0
            with writing(part, option=_OPTION):
                part.parent.mkdir(parents=True, exist_ok=True)
                file = part.open("wb")
            with file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                while written < _SHARD_ROWS and (row := next(rows, None)) is not None:
                    for component, data in _row_members(row, images, features):
                        info = tarfile.TarInfo(f"{number + written:07}.{component}")
                        info.size = len(data)
                        with writing(part, option=_OPTION):
                            tar.addfile(info, io.BytesIO(data))
                    written += 1
            if written:
                part.replace(path)
                shards.append(name)
                bar.advance(written)
            state["done"] = written < _SHARD_ROWS
            state["stream"] = None if state["done"] else stream.state_dict()
            write_json(place.folder / _PROGRESS, progress)
    return shards


def _image_columns(features: Mapping[str, Any]) -> list[str]:
    """Return the columns of images or their bytes, beginning with the one of a usual name."""
    import datasets

    found = []
    for name, feature in features.items():
        is_bytes = getattr(feature, "dtype", "") in ("binary", "large_binary")
        is_file = isinstance(feature, dict) and {*feature} == {"bytes", "path"}
        usual = name.lower() in PATH_COLUMNS
        if isinstance(feature, datasets.Image) or is_file or (is_bytes and usual):
            found.append(name)
    return sorted(found, key=lambda name: name.lower() not in PATH_COLUMNS)


def _row_members(
    row: Mapping[str, Any], images: list[str], features: Mapping[str, Any]
) -> Iterator[tuple[str, bytes]]:
    """Yield the images of a row and its other columns as JSON, each with its component."""
    for place, name in enumerate(images):
        value = row[name]
        data: bytes | None = value.get("bytes") if isinstance(value, dict) else value
        if data is None and value and value.get("path"):
            import fsspec

            with fsspec.open(value["path"], "rb") as file:
                data = file.read()
        if data is not None:
            kind = identify_format(data)  # any other is reported as unreadable
            known = kind in SUPPORTED and kind != "JPEG"
            suffix = {"TIFF": "tif"}.get(kind, kind.lower()) if known else "jpg"
            yield (f"{_safe_name(name)}.{suffix}" if place else suffix), data
    others = {name: value for name, value in row.items() if name not in images}
    fields = {name: _json_value(value, features.get(name)) for name, value in others.items()}
    yield "json", json.dumps(fields).encode()


def _json_value(value: Any, feature: Any) -> Any:  # noqa: ANN401 - a cell of any type
    """Return a cell for JSON: names instead of class indices, and text for other objects."""
    if isinstance(value, list | tuple):
        inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        return [_json_value(item, inner) for item in value]
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return {} if isinstance(value, dict | bytes) else str(value)
