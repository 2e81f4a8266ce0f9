"""Local copy of a remote dataset: a folder of the cache that is read like a table of labels.

    index.csv     path of every image (SHARD/MEMBER) and the fields of its sample
    members.npy   position of every image in the shards, so that each is read at random
    source.json   shards with their sizes, and notes; written last: a copy without it is incomplete
    shards/       fetched shards, each with its samples in SHARD.json (shards on this machine are
                  read where they are)

Everything above this module treats `index.csv` as a table, and a path below the folder as an image.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitft.data.remote.places import COPY, INDEX
from vitft.data.remote.samples import Member, Sample, ShardSamples
from vitft.system.files import read_regular, write_atomically
from vitft.system.structure import parse_json, structured

SOURCE, MEMBERS = "source.json", "members.npy"
COPY_OPTION = "the environment variable VITFT_CACHE"
"""What chooses the folder of copies, for messages."""
_FORMAT = 1
"""Version of the files of a copy; a copy of another version is made again."""
_MAX_JSON_BYTES = 2**32


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard of a copy, as it was when it was read."""

    name: str
    file: str
    """Path, relative to the copy if the shard was fetched."""
    size: int
    modified: str
    """Time of the last change in nanoseconds; as text, because it exceeds 53 bits."""

    def is_unchanged(self, folder: Path) -> bool:
        """Return whether the file still has its size and time of change."""
        try:
            found = (folder / self.file).stat()
        except OSError:
            return False
        return (found.st_size, str(found.st_mtime_ns)) == (self.size, self.modified)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCopy:
    """Contents of source.json."""

    data: str
    """Value of `--data`, without secrets."""
    shards: tuple[ShardFile, ...]
    notes: tuple[str, ...]
    images: int
    version: str = ""
    """Commit or digest of a Hugging Face dataset."""
    format: int = _FORMAT


class IndexedShard(NamedTuple):
    """A shard and its samples."""

    file: ShardFile
    contents: ShardSamples


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
            key: Sample({name: Member(*one) for name, one in images.items()}, texts)
            for key, (images, texts) in fields["samples"].items()
        }
        return IndexedShard(
            structured(fields["file"], ShardFile), ShardSamples(samples, fields["unused"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
