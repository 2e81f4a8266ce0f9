"""Images in the shards of a local copy: their positions, and what is refused."""

import os
import pickle  # noqa: TID251 - what must not be read
from pathlib import Path

import pytest

from tests.support.pictures import encoded, scene
from tests.support.shards import shard, write_shards
from vitft.config import DataSpec
from vitft.data import prepare_data, read_bytes
from vitft.system import ImageError

PICTURES = [encoded(scene(seed, (8, 8))) for seed in range(6)]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The folder of a copy of two shards with three images each."""
    shards = [
        shard({f"{i}": {"jpg": PICTURES[i]} for i in numbers}) for numbers in ((0, 1, 2), (3, 4, 5))
    ]
    return prepare_data(write_shards(tmp_path, shards), DataSpec()).parent


@pytest.mark.parametrize("is_newer", [True, False])
def test_an_image_of_a_shard_that_has_changed_is_an_error(
    copied: Path, tmp_path: Path, is_newer: bool
) -> None:
    path, file = f"{copied}/part-01.tar/5.jpg", tmp_path / "part-01.tar"
    before = file.stat()
    file.write_bytes(file.read_bytes() if is_newer else file.read_bytes() + b"\0")
    times = (before.st_atime_ns, before.st_mtime_ns + is_newer)
    os.utime(file, ns=times)

    with pytest.raises(ImageError, match=r"the shard part-01\.tar has changed"):
        read_bytes(path)
    file.unlink()
    with pytest.raises(ImageError, match=r"the shard part-01\.tar is missing"):
        read_bytes(path)


class Command:
    """An object that creates the folder `executed` when it is read from a pickle."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    ("name", "content"), [("source.json", b"{}"), ("members.npy", pickle.dumps(Command()))]
)
def test_a_copy_without_its_description_or_positions_has_no_images(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    (copied / name).write_bytes(content)

    with pytest.raises(ImageError, match="not found"):
        read_bytes(f"{copied}/part-00.tar/0.jpg")
    assert not (tmp_path / "executed").exists()
