"""Tar shards."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tests.contract.rows import draw

Members = Iterable[tuple[str, bytes]]


def jpeg(folder: Path, name: str) -> bytes:
    """Draw an image, remove its file, and return the bytes."""
    path = folder / name
    draw(path)
    data = path.read_bytes()
    path.unlink()
    path.parent.rmdir()
    return data


def write(folder: Path, number: int, members: Members) -> Path:
    """Write s/part-N.tar with the given members."""
    path = folder / "s" / f"part-{number}.tar"
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def samples(folder: Path, label: Callable[[str], tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the members of eight samples each of cat and dog; `label` makes the second member."""
    found = []
    for name in ("cat", "dog"):
        for number in range(8):
            suffix, data = label(name)
            key = f"{name}{number}"
            found += [
                (f"{key}.jpg", jpeg(folder, f"{name}/{number}.jpg")),
                (f"{key}.{suffix}", data),
            ]
    return found


def two(folder: Path) -> None:
    """Write two shards with classes in text."""
    members = samples(folder, lambda name: ("cls", name.encode()))
    for number in range(2):
        keys = [m for m in members if int(m[0].partition(".")[0][3:]) % 2 == number]
        write(folder, number, keys)


def with_labels(folder: Path, label: Callable[[str], tuple[str, bytes]]) -> None:
    """Write a shard of `samples`."""
    write(folder, 0, samples(folder, label))


json_fields = partial(
    with_labels, label=lambda name: ("json", json.dumps({"species": name}).encode())
)
texts = partial(with_labels, label=lambda name: ("txt", name.encode()))
numbers = partial(with_labels, label=lambda name: ("cls", str(int(name == "dog")).encode()))
no_images = partial(write, number=0, members=[("a.cls", b"0"), ("b.cls", b"1")])
outside = partial(write, number=0, members=[("../a.jpg", b"x"), ("../a.cls", b"0")])
twice = partial(write, number=0, members=[("a.jpg", b"x"), ("a.jpg", b"y")])
broken_json = partial(write, number=0, members=[("a.jpg", b"x"), ("a.json", b"{")])


def no_classes(folder: Path) -> None:
    write(folder, 0, [m for m in samples(folder, lambda _: ("txt2", b"x")) if "jpg" in m[0]])


def one_unlabelled(folder: Path) -> None:
    members = samples(folder, lambda name: ("cls", name.encode()))
    write(folder, 0, [m for m in members if m[0] != "cat3.cls"])


def truncated(folder: Path) -> None:
    two(folder)
    path = folder / "s" / "part-0.tar"
    path.write_bytes(path.read_bytes()[:3000])


def compressed(folder: Path) -> None:
    two(folder)
    path = folder / "s" / "part-0.tar"
    path.write_bytes(gzip.compress(path.read_bytes()))


def link(folder: Path) -> None:
    path = write(folder, 0, [])
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("a.jpg")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)


def two_folders(folder: Path) -> None:
    """Write the two shards under one name in two folders."""
    two(folder)
    for number, name in enumerate("ab"):
        (folder / "s" / name).mkdir()
        (folder / "s" / f"part-{number}.tar").rename(folder / "s" / name / "part-0.tar")
