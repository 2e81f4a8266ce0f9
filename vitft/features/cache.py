"""On-disk cache of fixed-size rows, keyed by digests of their inputs.

A `Store` contains the rows of one space, e.g. one combination of weights, cut, view and precision,
and looks them up by key. On disk, a store is a folder of shards. Each shard is written
once and never changed, so several processes can fill a store concurrently, and a crash loses only
unflushed rows. Many small shards are replaced by one with the same rows. Every row has a checksum
that is verified when the row is read: a damaged row counts as missing and is recomputed. Rows are
memory-mapped, not loaded. Each mapped shard uses a file descriptor, so only the most recently used
shards are mapped.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import shutil
import threading
import time
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitft.system.cores import cache_folder
from vitft.system.errors import ResourceError, RunError
from vitft.system.files import open_regular, read_regular, write_atomically, writing
from vitft.system.structure import parse_json, structured

CachedRows = np.ndarray[Any, np.dtype[Any]]
_SHARD_MAGIC = b"vitftrow"
_KEY_BYTES = 32
_ALIGN = 64
_MAPPED_SHARDS = 64
"""Maximum number of mapped shards per store: a run opens several stores, and some systems limit a
process to 256 open files."""
_SHARD_BYTES = 2**26  # of rows that are written as one shard, even if they have not waited long
_SMALL_SHARD_BYTES = 2**24  # shards of fewer bytes are merged if there are over `_MAPPED_SHARDS`
LIMIT_GB = 20.0  # total cache size in GB above which the least recently used spaces are removed
_OPTION = "--cache DIR, or use --cache none"


def default_folder() -> Path:
    """Return the default folder of cached features."""
    return cache_folder("features")


def key_of(*parts: str) -> bytes:
    """Return a key derived from strings such as a file's digest and the name of a view."""
    return hashlib.sha256("\n".join(parts).encode()).digest()


class Store:
    """Cached rows of one space (all rows computed with the same settings), looked up by key.

    The folder of the space contains the rows and, as JSON, the settings.
    """

    def __init__(
        self, root: Path, space: Mapping[str, str], shape: Sequence[int], dtype: str
    ) -> None:
        """Open a space, creating it if needed; errors name the option `--cache`."""
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape)
        settings = {**space, "shape": str(list(shape)), "dtype": dtype}
        self.text = json.dumps(settings, sort_keys=True, indent=1)
        self.folder = root / hashlib.sha256(self.text.encode()).hexdigest()[:32]
        self.places: dict[bytes, tuple[int, int]] = {}
        self.shards: list[tuple[Path, int, CachedRows]] = []  # offset and checksums of the rows
        self.mapped: OrderedDict[int, CachedRows] = OrderedDict()  # of the shards used last
        self.lock = threading.RLock()
        self.damaged = 0  # number of damaged rows and files found since the store was opened
        self.waiting: dict[bytes, CachedRows] = {}
        self.flushed = time.monotonic()
        self.pause_s = 1.0
        with writing(root, option=_OPTION):
            self.make_folder()
        with contextlib.suppress(OSError):  # read-only shared cache
            os.utime(self.folder)  # record the last use for `prune`
        self.find_new_shards()
        self.merge_small_shards()

    def make_folder(self) -> None:
        """Create the folder and its description if missing, and remove stale temporary files."""
        if not (self.folder / "space.json").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / "space.json", self.text)
        for leftover in self.folder.glob(".*"):  # from a process killed while writing
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime > 86400:
                    leftover.unlink()

    def open_shard(self, path: Path) -> None:
        """Add the rows of a shard, or delete its file if `_read_shard` finds it damaged."""
        shard = _read_shard(path, self.shape, self.dtype)
        if shard is None:
            self.damaged += 1
            path.unlink()
            return
        keys, sums, start = shard
        with self.lock:
            number = len(self.shards)
            self.shards.append((path, start, sums))
            if number < _MAPPED_SHARDS:  # map now, so that its rows outlast the file
                self.rows_of(number)
            for row in range(len(sums)):
                self.places[keys[row * _KEY_BYTES : (row + 1) * _KEY_BYTES]] = (number, row)

    def rows_of(self, number: int) -> CachedRows | None:
        """Return the mapped rows of a shard, or None if its file was deleted or truncated."""
        with self.lock:
            if number not in self.mapped:
                path, start, sums = self.shards[number]
                shape = (len(sums), *self.shape)
                try:
                    self.mapped[number] = np.memmap(path, self.dtype, "r", start, shape)
                except (OSError, ValueError):  # deleted or truncated
                    return None
            self.mapped.move_to_end(number)
            if len(self.mapped) > _MAPPED_SHARDS:
                self.mapped.popitem(last=False)  # rows in use keep their mapping alive
            return self.mapped[number]

    def find_new_shards(self) -> None:
        """Add shards that other processes have created, also while this one was reading some."""
        with self.lock:
            known = {path for path, _, _ in self.shards}
            while new := {*self.folder.glob("*.rows")} - known:
                for path in sorted(new):
                    with contextlib.suppress(OSError):  # it was deleted, or no descriptor is free
                        self.open_shard(path)
                known |= new

    def merge_small_shards(self) -> None:
        """Replace many small shards by one; a crash meanwhile leaves rows in both, which is valid.

        Other processes that read the old shards find the new one (see `get`).
        """
        sizes = [(len(sums) * self.row_bytes, i) for i, (_, _, sums) in enumerate(self.shards)]
        small = sorted(one for one in sizes if one[0] < _SMALL_SHARD_BYTES)
        if len(small) <= _MAPPED_SHARDS:
            return
        totals = itertools.accumulate(size for size, _ in small)
        merged = {i for (_, i), total in zip(small, totals, strict=True) if total <= _SHARD_BYTES}
        found = {key: self.get(key) for key, place in [*self.places.items()] if place[0] in merged}
        rows = {key: np.array(row) for key, row in found.items() if row is not None}
        with contextlib.suppress(RunError, ResourceError):  # read-only or full: keep the shards
            if rows:
                self.write_shard(rows)
            for i in merged:
                self.mapped.pop(i, None)  # Windows deletes no mapped file
                with contextlib.suppress(OSError):
                    self.shards[i][0].unlink()

    def __contains__(self, key: bytes) -> bool:
        """Return whether there is a row for a key, even a damaged one."""
        return key in self.waiting or key in self.places

    def get(self, key: bytes) -> CachedRows | None:
        """Return the row for a key, or None if the row is missing or damaged."""
        if key in self.waiting:
            return self.waiting[key]
        place = self.places.get(key)
        if place is None:
            return None
        if (rows := self.rows_of(place[0])) is None:
            self.places.pop(key, None)
            self.find_new_shards()
            return self.get(key)
        row = rows[place[1]]
        if _checksum(key, row) != int(self.shards[place[0]][2][place[1]]):
            self.damaged += 1
            del self.places[key]
            return None
        return row

    def add(self, rows: Mapping[bytes, CachedRows]) -> None:
        """Add rows, and write all pending rows if there are many or they have waited long."""
        if not rows:
            return
        for key, row in rows.items():
            assert row.shape == self.shape
            self.waiting[key] = np.ascontiguousarray(row, dtype=self.dtype)
        is_much = len(self.waiting) * self.row_bytes > _SHARD_BYTES
        if time.monotonic() - self.flushed > self.pause_s or is_much:
            self.pause_s = min(300.0, 2 * self.pause_s)  # few files, little lost work
            self.flush()

    def flush(self) -> None:
        """Write the pending rows as a new shard."""
        self.flushed = time.monotonic()
        if not self.waiting:
            return
        self.make_folder()
        self.write_shard(self.waiting)
        self.waiting = {}

    def write_shard(self, rows: Mapping[bytes, CachedRows]) -> None:
        """Write rows as a new shard and add it to the store.

        A shard has the magic, the length of the header, the header, keys, checksums, aligned rows.
        """
        path = self.folder / f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}.rows"
        keys = b"".join(rows)
        sums = np.array([_checksum(k, r) for k, r in rows.items()], dtype="<u4").tobytes()
        some = next(iter(rows.values()))
        fields = {"count": len(rows), "shape": list(some.shape), "dtype": str(some.dtype)}
        header = json.dumps(fields | {"index": zlib.crc32(sums, zlib.crc32(keys))}).encode()
        head = _SHARD_MAGIC + len(header).to_bytes(8, "little") + header + keys + sums
        padding = b"\0" * (-len(head) % _ALIGN)
        with writing(path, option=_OPTION):
            write_atomically(path, [head, padding, *(row.tobytes() for row in rows.values())])
        self.open_shard(path)


class JoinedStore:
    """Two stores used as one: the leading part of each row, and the rest."""

    def __init__(self, leading: Store, rest: Store) -> None:
        self.leading, self.rest = leading, rest

    def get(self, key: bytes) -> CachedRows | None:
        leading, rest = self.leading.get(key), self.rest.get(key)
        return None if leading is None or rest is None else np.concatenate([leading, rest])

    def __contains__(self, key: bytes) -> bool:
        return key in self.leading and key in self.rest

    def add(self, rows: Mapping[bytes, CachedRows]) -> None:
        size = self.leading.shape[0]
        self.leading.add({k: row[:size] for k, row in rows.items() if self.leading.get(k) is None})
        self.rest.add({key: row[size:] for key, row in rows.items()})

    def find_new_shards(self) -> None:
        self.leading.find_new_shards()
        self.rest.find_new_shards()

    def flush(self) -> None:
        self.leading.flush()
        self.rest.flush()


def _checksum(key: bytes, row: CachedRows) -> int:
    """Return the CRC-32 of a row and its key, which detects misplaced rows."""
    return zlib.crc32(np.ascontiguousarray(row).view(np.uint8).data, zlib.crc32(key))


def _read_shard(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[bytes, CachedRows, int] | None:
    """Return keys, checksums and the offset of the rows, or None if a part of a shard is wrong."""
    size = path.stat().st_size
    try:
        with open(path, "rb", opener=open_regular) as file:
            magic, length = file.read(8), int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(min(length, 4096)))
            count, index = header["count"], header["index"]
            is_same = (header["shape"], header["dtype"]) == (list(shape), str(dtype))
            if not isinstance(count, int) or not 0 < count <= size // _KEY_BYTES:
                return None
            keys, sums = file.read(count * _KEY_BYTES), file.read(count * 4)
    except (ValueError, KeyError, TypeError):
        return None
    start = 16 + length + count * (_KEY_BYTES + 4)
    start += -start % _ALIGN
    is_whole = size == start + count * dtype.itemsize * math.prod(shape)
    is_intact = magic == _SHARD_MAGIC and zlib.crc32(sums, zlib.crc32(keys)) == index
    if not (is_same and is_whole and is_intact):
        return None
    return keys, np.frombuffer(sums, dtype="<u4"), start


@dataclass(frozen=True, slots=True)
class _Space:
    """The cached rows that were computed with the same settings, as listed by `vitft cache`."""

    folder: Path
    settings: Mapping[str, str]
    size: int  # bytes on disk
    used: float  # time of last use in seconds since the epoch


def spaces(root: Path) -> list[_Space]:
    """Return the readable spaces in a cache folder, most recently used first."""
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, TypeError):
            data = read_regular(folder / "space.json", limit=2**20)
            settings = structured(parse_json(data), dict[str, str])
            files = [path.stat().st_size for path in folder.iterdir()]
            used = folder.stat().st_mtime
            found.append(_Space(folder, settings, sum(files), used))
    return sorted(found, key=lambda space: -space.used)


def prune(root: Path, limit_gb: float = LIMIT_GB, *, idle_s: float = 0.0) -> int:
    """Delete the least recently used spaces until the others fit; return the number of bytes freed.

    Spaces used within the last `idle_s` seconds are kept.
    """
    total = freed = 0
    for space in spaces(root):
        total += space.size
        if total > limit_gb * 1e9 and time.time() - space.used >= idle_s:
            shutil.rmtree(space.folder, ignore_errors=True)
            freed += 0 if space.folder.exists() else space.size  # it may be read-only
    return freed
