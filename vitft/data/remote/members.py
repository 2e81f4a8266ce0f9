"""Images in the shards of a local copy: each is found by its path and read at random.

members.npy is a table (4, n) of unsigned 64-bit integers, memory-mapped and thus shared by all
threads and processes: key of the path, number of the shard, offset and size. Its columns are sorted
by key.
"""

import functools
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from vitft.data.remote.index import IndexTable
from vitft.data.remote.local_copy import MEMBERS, SOURCE, LocalCopy, read_copy
from vitft.data.remote.places import COPY
from vitft.system.errors import ImageError
from vitft.system.files import open_regular

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
    """Return the bytes of an image in a local copy, or None if the path does not lead into one.

    If `most` is given, only that many bytes are read.

    Raises:
        ImageError: There is no such image, or its shard has changed since it was indexed.
    """
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
