"""The cache of rows on disk, also damaged and shared by processes."""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitft.features import Store, key_of, spaces

SPACE = {"prefix": "abc"}


def same(found: Any, expected: Any) -> bool:
    return found is not None and np.array_equal(found, expected)


def keys(count: int) -> list[bytes]:
    return [key_of(str(i)) for i in range(count)]


def row(i: int) -> Any:
    return np.arange(6, dtype=np.float32).reshape(2, 3) + i


def filled(root: Path, count: int = 10) -> Store:
    store = Store(root, SPACE, (2, 3), "float32")
    for i, key in enumerate(keys(count)):
        store.add({key: row(i)})
    store.flush()
    return store


def test_other_settings_are_another_space(tmp_path: Path) -> None:
    filled(tmp_path)

    for space, shape, dtype in [
        ({"prefix": "abd"}, (2, 3), "float32"),
        (SPACE, (3, 2), "float32"),
        (SPACE, (2, 3), "uint16"),
    ]:
        assert Store(tmp_path, space, shape, dtype).get(keys(1)[0]) is None


def test_every_kind_of_damage_is_noticed_and_nothing_wrong_is_returned(tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = next(filled(tmp_path / "0").folder.glob("*.rows")).read_bytes()
    noticed = 0
    for n in range(1, 101):
        path = next(filled(tmp_path / str(n)).folder.glob("*.rows"))
        mutant = bytearray(whole)
        kind = rng.choice(["flip", "cut", "longer", "zeros"])
        place = rng.randrange(len(mutant))
        if kind == "flip":
            mutant[place] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del mutant[place:]
        elif kind == "longer":
            mutant += b"x"
        else:
            mutant[place : place + 9] = bytes(len(mutant[place : place + 9]))
        path.write_bytes(mutant)

        store = Store(tmp_path / str(n), SPACE, (2, 3), "float32")
        found = [store.get(key) for key in keys(10)]

        for i, answer in enumerate(found):
            assert answer is None or np.array_equal(answer, row(i))
        missing = any(answer is None for answer in found)
        assert missing == bool(store.damaged)
        noticed += missing
        harmless = bytes(mutant) == whole or padding_only(whole, mutant)
        assert missing or harmless, (kind, place)
    assert noticed > 80


def padding_only(whole: bytes, mutant: bytearray) -> bool:
    """Whether only the unused bytes between index and rows differ."""
    length = int.from_bytes(whole[8:16], "little")
    used = 16 + length + 10 * (32 + 4)
    start = used + -used % 64
    return whole[:used] == mutant[:used] and whole[start:] == mutant[start:]


def fill_some(root: Path, start: int) -> None:
    store = Store(root, SPACE, (2, 3), "float32")
    for i, key in list(enumerate(keys(40)))[start:40:2]:
        store.add({key: row(i)})
        store.flush()
    os._exit(0)  # as abruptly as a kill


def test_processes_fill_one_space_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=fill_some, args=(tmp_path, start)) for start in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)

    store = Store(tmp_path, SPACE, (2, 3), "float32")
    assert all(same(store.get(key), row(i)) for i, key in enumerate(keys(40)))
    assert not list(store.folder.glob(".*"))  # no temporary files


@pytest.mark.parametrize("content", [b"", b"vitftrow", b"vitftrow" + b"\xff" * 8, b"x" * 500])
def test_a_file_that_is_not_a_shard_is_ignored(tmp_path: Path, content: bytes) -> None:
    folder = filled(tmp_path).folder
    (folder / "0.rows").write_bytes(content)

    store = Store(tmp_path, SPACE, (2, 3), "float32")

    assert store.damaged == 1
    assert same(store.get(keys(1)[0]), row(0))


def written_by_hand(rows: list[Any], names: list[bytes], header: dict[str, Any]) -> bytes:
    """Return a shard as the format describes it, with the given fields of the header changed."""
    sums = b"".join(
        zlib.crc32(row.tobytes(), zlib.crc32(name)).to_bytes(4, "little")
        for row, name in zip(rows, names, strict=True)
    )
    index = zlib.crc32(sums, zlib.crc32(b"".join(names)))
    fields = {"count": len(rows), "shape": [2, 3], "dtype": "float32", "index": index} | header
    text = json.dumps(fields).encode()
    head = b"vitftrow" + len(text).to_bytes(8, "little") + text + b"".join(names) + sums
    return head.ljust(-(-len(head) // 64) * 64, b"\0") + b"".join(row.tobytes() for row in rows)


@pytest.mark.parametrize("count", range(1, 9))
def test_shards_have_the_same_format_in_every_version(tmp_path: Path, count: int) -> None:
    expected = written_by_hand([row(i) for i in range(count)], keys(count), {})
    store = Store(tmp_path / "ours", SPACE, (2, 3), "float32")
    store.add({key: row(i) for i, key in enumerate(keys(count))})
    store.flush()
    theirs = Store(tmp_path / "theirs", SPACE, (2, 3), "float32").folder / "0.rows"
    theirs.write_bytes(expected)

    found = Store(tmp_path / "theirs", SPACE, (2, 3), "float32")

    assert next(store.folder.glob("*.rows")).read_bytes() == expected
    assert all(same(found.get(key), row(i)) for i, key in enumerate(keys(count)))
    assert found.shards[0][1] % 64 == 0


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"count": 0}, id="no rows"),
        pytest.param({"count": "1"}, id="a count that is not a number"),
        pytest.param({"count": 10**9}, id="more rows than bytes"),
        pytest.param({"shape": [3, 2]}, id="another shape"),
        pytest.param({"dtype": "int32"}, id="another type"),
        pytest.param({"index": 0}, id="another checksum"),
        pytest.param({"more": "x" * 5000}, id="a header that is too long"),
    ],
)
def test_a_shard_with_another_header_is_damaged(tmp_path: Path, header: dict[str, Any]) -> None:
    path = Store(tmp_path, SPACE, (2, 3), "float32").folder / "0.rows"
    path.write_bytes(written_by_hand([row(0)], keys(1), header))

    store = Store(tmp_path, SPACE, (2, 3), "float32")

    assert store.damaged == 1
    assert store.get(keys(1)[0]) is None
    assert not path.exists()


def test_the_folder_of_a_space_has_the_same_name_in_every_version(tmp_path: Path) -> None:
    store = Store(tmp_path, {"with": "torch", "cut": "pooled"}, (2, 3), "float32")

    text = '{\n "cut": "pooled",\n "dtype": "float32",\n "shape": "[2, 3]",\n "with": "torch"\n}'
    assert store.folder.name == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert (store.folder / "space.json").read_text() == text


def test_a_cache_that_is_deleted_while_it_is_open_is_written_again(tmp_path: Path) -> None:
    store = filled(tmp_path)
    shutil.rmtree(store.folder)
    store.add({key_of("new"): row(7)})
    store.flush()

    (store.folder / "space.json").unlink()  # as after a crash
    again = Store(tmp_path, SPACE, (2, 3), "float32")

    assert same(again.get(key_of("new")), row(7))
    assert len(spaces(tmp_path)) == 1
    assert spaces(tmp_path / "nowhere") == []


def test_temporary_files_of_a_killed_process_are_removed_after_a_day(tmp_path: Path) -> None:
    folder = filled(tmp_path).folder
    for name in (".old", ".new"):
        (folder / name).write_bytes(b"half a shard")
    os.utime(folder / ".old", (10**9, 10**9))

    assert same(Store(tmp_path, SPACE, (2, 3), "float32").get(keys(1)[0]), row(0))

    assert sorted(path.name for path in folder.glob(".*")) == [".new"]


def test_more_files_than_may_be_open_are_read_and_then_merged(tmp_path: Path) -> None:
    store = Store(tmp_path, SPACE, (2, 3), "float32")
    for i, key in enumerate(keys(150)):
        store.add({key: row(i)})
        store.flush()
    old = {path.name: path.read_bytes() for path in store.folder.glob("*.rows")}

    again = Store(tmp_path, SPACE, (2, 3), "float32")

    assert len(old) == 150
    assert len([*store.folder.glob("*.rows")]) == 1
    assert all(same(again.get(key), row(i)) for i, key in enumerate(keys(150)))
    assert all(same(store.get(key), row(i)) for i, key in enumerate(keys(150)))  # still open
    for name in [*old][:100]:  # as after a crash, before these were deleted
        (store.folder / name).write_bytes(old[name])
    after = Store(tmp_path, SPACE, (2, 3), "float32")
    assert len([*store.folder.glob("*.rows")]) == 1
    assert all(same(after.get(key), row(i)) for i, key in enumerate(keys(150)))


def test_the_number_of_files_is_bounded_if_each_run_adds_few_rows(tmp_path: Path) -> None:
    most = 0
    for i, key in enumerate(keys(200)):
        store = Store(tmp_path, SPACE, (2, 3), "float32")
        store.add({key: row(i)})
        store.flush()
        most = max(most, len([*store.folder.glob("*.rows")]))

    again = Store(tmp_path, SPACE, (2, 3), "float32")

    assert most == 65
    assert again.damaged == 0
    assert all(same(again.get(key), row(i)) for i, key in enumerate(keys(200)))


def test_large_files_are_not_merged(tmp_path: Path) -> None:
    store = Store(tmp_path, SPACE, (2**22,), "float32")  # 16 MiB
    store.add({keys(1)[0]: np.ones(2**22, np.float32)})
    store.flush()
    for key in keys(66)[1:]:
        os.link(next(store.folder.glob("*.rows")), store.folder / f"{key.hex()}.rows")

    Store(tmp_path, SPACE, (2**22,), "float32")

    assert len([*store.folder.glob("*.rows")]) == 66
