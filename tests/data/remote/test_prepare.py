"""Making of a local copy: room on the disk, waiting for another process, images of samples."""

import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import draw_folder
from tests.support.pictures import encoded, scene
from tests.support.shards import serving_shards, shard, shards_of, write_shards
from vitft.config.sections import DataSpec
from vitft.data.download.resumable import DownloadLimits
from vitft.data.remote import prepare
from vitft.data.remote.hugging_face import local_version
from vitft.data.remote.local_copy import SOURCE, IndexedShard, LocalCopy, ShardFile, read_copy
from vitft.data.remote.places import Place, ShardPlace, check_place, list_shards
from vitft.data.remote.prepare import (
    check_free_space,
    copied_images,
    fetch_shard,
    is_complete,
    prepare_data,
)
from vitft.data.remote.samples import ShardSamples
from vitft.system.errors import DataError, ResourceError, UsageError

PICTURE = encoded(scene(0, (32, 32)))


def with_free(monkeypatch: pytest.MonkeyPatch, path: Path, free: float) -> None:
    usage = shutil.disk_usage(path)._replace(free=round(free))
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)


def indexed(size: int, *, is_fetched: bool = True) -> IndexedShard:
    file = f"{'shards' * is_fetched}/x.tar"
    return IndexedShard(ShardFile("x.tar", file, size, ""), ShardSamples({}, {}))


@pytest.mark.parametrize(
    ("sizes", "left", "free", "fits"),
    [
        pytest.param([100, 200], 3, 450, True, id="just enough"),
        pytest.param([100, 200], 3, 449, False, id="too little"),
        pytest.param([100, 200], 0, 0, True, id="nothing is left"),
        pytest.param([], 3, 0, True, id="nothing is known"),
    ],
)
def test_the_rest_is_estimated_by_the_mean_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], left: int, free: int,
    fits: bool,
) -> None:  # fmt: skip
    place, found = Place("wds", "a.tar"), [*map(indexed, sizes), indexed(10**9, is_fetched=False)]
    place.folder.mkdir(parents=True)
    with_free(monkeypatch, tmp_path, free)

    if fits:
        check_free_space(place, found, left)
    else:
        with pytest.raises(ResourceError, match="needs about another"):
            check_free_space(place, found, left)


@pytest.mark.parametrize(("free", "asked"), [(1.5, 1), (2.5, 3)])
def test_the_room_for_the_shards_that_are_left_is_checked_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, asked: int
) -> None:
    contents = [shards_of(draw_folder(tmp_path / "data", per_class=10), shards=1)[0]] * 3
    with_free(monkeypatch, tmp_path, free * len(contents[0]))
    spec = DataSpec(allow_private_addresses=True)

    with serving_shards(contents) as (site, requests):
        if asked == 3:
            prepare_data(site.url, spec)
        else:
            with pytest.raises(ResourceError):
                prepare_data(site.url, spec)
    assert len(requests) == asked


def test_a_wait_for_another_process_is_logged_once_after_five_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    place = Place("wds", "a.tar")
    place.folder.mkdir(parents=True)
    now, logged = 0.0, list[float]()
    with (place.folder / ".lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def sleep(seconds: float) -> None:
            nonlocal now
            assert 0 < seconds <= 0.5
            if caplog.records and not logged:
                logged.append(now)
            now += seconds
            if now > 8:
                fcntl.flock(other, fcntl.LOCK_UN)

        clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
        monkeypatch.setattr(prepare, "time", clock)
        with prepare.locked_copy(place):
            assert now > 8

    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for another process that is copying {place.text}"
    ]
    assert 5 < logged[0] <= 5.5


def test_images_to_predict_are_named_by_shard_and_member(tmp_path: Path) -> None:
    one = shard({"a": {"jpg": PICTURE}, "b/c": {"jpg": PICTURE}})
    two = shard({"a": {"jpg": PICTURE, "png": PICTURE}})

    found = list(copied_images(write_shards(tmp_path / "one", [one]), allow_private=False))

    assert [name for name, _ in found] == ["part-00.tar/a.jpg", "part-00.tar/b/c.jpg"]
    assert all(path.endswith(f".copy/{name}") for name, path in found)
    with pytest.raises(DataError, match=r"each sample has several images \(jpg, png\)"):
        list(copied_images(write_shards(tmp_path / "two", [two]), allow_private=False))


def test_a_copy_has_no_folder_of_images(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "one", [shard({"a": {"jpg": PICTURE}})])

    with pytest.raises(UsageError, match=r"data\.root=x has no effect"):
        prepare_data(data, DataSpec(root="x"))


def test_a_copy_is_complete_if_it_has_all_shards_in_order_and_none_has_changed(
    tmp_path: Path,
) -> None:
    data = write_shards(tmp_path, [shard({name: {"jpg": PICTURE}}) for name in "ab"])
    index = prepare_data(data, DataSpec())
    written = index.stat().st_ino, (index.parent / SOURCE).stat().st_ino
    place, copy = check_place(data), read_copy(index.parent)
    assert place is not None
    shards = list_shards(place.address)

    assert is_complete(copy, place, shards)
    for others in (shards[:1], shards[::-1], [*shards, shards[0]]):
        assert not is_complete(copy, place, others)
    assert not is_complete(None, place, [])
    assert prepare_data(data, DataSpec()) == index
    assert (index.stat().st_ino, (index.parent / SOURCE).stat().st_ino) == written
    os.utime(tmp_path / "part-01.tar", ns=(0, 0))
    assert not is_complete(copy, place, shards)


def test_a_copy_of_a_hugging_face_dataset_is_complete_until_local_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.parquet").write_bytes(b"one")
    copy = LocalCopy(data="", shards=(), notes=(), images=1)
    local, remote = Place("hf", "set:train"), Place("hf", "user/name@v2:train")

    assert is_complete(replace(copy, version=local_version(f"{tmp_path}/set")), local, []) is True
    assert is_complete(replace(copy, version="a commit"), local, []) is False
    assert is_complete(replace(copy, version="a commit"), remote, []) is True
    lost = ShardFile("x.tar", "shards/x.tar", 1, "1")
    assert is_complete(replace(copy, shards=(lost,)), remote, []) is False


def test_a_shard_of_an_object_store_is_fetched_to_a_part_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, Path, DownloadLimits]] = []

    def fetch(address: str, part: Path, *, limits: DownloadLimits) -> None:
        fetched.append((address, part, limits))
        part.write_bytes(PICTURE)
        part.with_name(f"{part.name}.json").touch()

    monkeypatch.setattr(prepare, "fetch_file", fetch)
    limits, path = DownloadLimits(attempts=7), tmp_path / "x.tar"

    fetch_shard(ShardPlace("x.tar", "s3://set/x.tar"), path, limits)

    assert fetched == [("s3://set/x.tar", tmp_path / "x.tar.part", limits)]
    assert path.read_bytes() == PICTURE
    assert list(tmp_path.iterdir()) == [path]
