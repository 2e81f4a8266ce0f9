"""Description of a local copy on the disk."""

import json
from pathlib import Path

import pytest

from vitft.data.remote.local_copy import (
    IndexedShard,
    LocalCopy,
    ShardFile,
    copy_of_table,
    find_copies,
    read_copy,
    read_samples_record,
    write_samples,
)
from vitft.data.remote.samples import Member, Sample, ShardSamples

FIELDS = {"data": "wds:a.tar", "shards": [["a.tar", "/a.tar", 5, "7"]], "notes": [], "images": 3}
SHARD = {"name": "a.tar", "file": "/a.tar", "size": 5, "modified": "7"}


@pytest.mark.parametrize(("version", "is_read"), [(1, True), (2, False), (0, False)])
def test_copies_of_this_version_are_read(tmp_path: Path, version: int, is_read: bool) -> None:
    folder = tmp_path / "x-0123456789ab.copy"
    folder.mkdir()
    fields = {**FIELDS, "shards": [SHARD], "format": version}
    (folder / "source.json").write_text(json.dumps(fields))
    expected = LocalCopy(
        data="wds:a.tar", shards=(ShardFile("a.tar", "/a.tar", 5, "7"),), notes=(), images=3
    )

    assert read_copy(folder) == (expected if is_read else None)
    assert find_copies(tmp_path) == ([(folder, expected)] if is_read else [])
    assert copy_of_table(folder / "index.csv") == (expected if is_read else None)
    assert copy_of_table(folder / "other.csv") is None
    assert copy_of_table(tmp_path / "index.csv") is None


def test_a_copy_without_a_description_is_not_complete(tmp_path: Path) -> None:
    (tmp_path / "source.json").write_text("{")

    assert read_copy(tmp_path) is None
    assert read_copy(tmp_path / "gone") is None
    assert find_copies(tmp_path / "gone") == []


def test_a_shard_is_unchanged_if_its_size_and_time_are(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"12345")
    state = (tmp_path / "a.tar").stat()
    same = ShardFile("a.tar", "a.tar", 5, str(state.st_mtime_ns))

    assert same.is_unchanged(tmp_path)
    assert not ShardFile("a.tar", "a.tar", 6, same.modified).is_unchanged(tmp_path)
    assert not ShardFile("a.tar", "a.tar", 5, "7").is_unchanged(tmp_path)
    assert not ShardFile("b.tar", "b.tar", 5, same.modified).is_unchanged(tmp_path)


def test_the_samples_of_a_shard_are_recorded(tmp_path: Path) -> None:
    samples = {"k": Sample({"jpg": Member("k.jpg", 512, 9)}, {"cls": "cat"})}
    shard = IndexedShard(ShardFile("a.tar", "/a.tar", 5, "7"), ShardSamples(samples, {".npy": 2}))
    record = tmp_path / "a.tar.json"

    write_samples(record, shard)

    assert read_samples_record(record) == shard
    fields = json.loads(record.read_text())
    assert fields["format"] == 1
    record.write_text(json.dumps({**fields, "format": 2}))
    assert read_samples_record(record) is None
    record.write_text("[]")
    assert read_samples_record(record) is None
