"""An archive is unpacked into new plain files, or refused, and then nothing of it is kept."""

import gzip
import io
import random
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from vitft.data import ArchiveLimits, unpack
from vitft.system import DataError, atomic_folder

SMALL = ArchiveLimits(small=10_000)
"""The ratio counts from here on, so that a bomb of a test stays small."""


def member(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar_bytes(*members: tuple[tarfile.TarInfo, bytes], gz: bool = False) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            if info.type == tarfile.REGTYPE:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue()) if gz else buffer.getvalue()


def zip_bytes(*entries: tuple[str, bytes], mode: int = 0o100644) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            info = zipfile.ZipInfo(name)
            info.filename = info.orig_filename = name  # as it is, be it hostile
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def plain(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return member(name), content


def packed(kind: str, named: Sequence[tuple[str, bytes]]) -> bytes:
    if kind == "zip":
        return zip_bytes(*named)
    return tar_bytes(*(plain(*pair) for pair in named), gz=kind == "tar.gz")


def unpacked(tmp_path: Path, data: bytes, limits: ArchiveLimits = SMALL) -> Path:
    archive, folder = tmp_path / "a.part", tmp_path / "inside" / "folder"
    archive.write_bytes(data)
    with atomic_folder(folder) as new:
        unpack(archive, new, name="a.tar", limits=limits)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


WANTED = {"LICENSE.txt": b"free", "cat/1.jpg": b"one", "dog/2.jpg": b"two"}


@pytest.mark.parametrize("wrapper", ["", "flowers/", "./a/b/"])
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_wrapping_folders_are_removed(tmp_path: Path, kind: str, wrapper: str) -> None:
    named = [(wrapper + name, content) for name, content in WANTED.items()]

    assert tree(unpacked(tmp_path, packed(kind, named))) == WANTED


def test_what_a_mac_adds_is_left_out(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, zip_bytes(("set/a/1.jpg", b"x"), ("__MACOSX/set/a/._1.jpg", b"y")))

    assert tree(folder) == {"1.jpg": b"x"}


def test_special_permissions_are_not_restored(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, tar_bytes((member("run.jpg", mode=0o4777), b"x")))

    assert (folder / "run.jpg").stat().st_mode & 0o7111 == 0


def special(name: str, kind: bytes, **fields: object) -> bytes:
    """A tar file of something that has no content."""
    return tar_bytes((member(name, type=kind, **fields), b""))


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE
CUT, UNPACKED = "incomplete or damaged", "entries up to 'b.jpg' unpack to"
BOMB = b"\0" * 20_000
HUGE = member("huge.bmp", size=10**15), member("x", type=tarfile.XHDTYPE, size=10**11)
HEADERS = [one.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024 for one in HUGE]
FLIPPED = bytearray(zip_bytes(("a/1.jpg", bytes(range(256)) * 8)))
FLIPPED[60] ^= 1  # within the packed content
A15 = {
    "bomb by the size in a header": (HEADERS[0], "up to 'huge.bmp' unpack to 1,000,000,000,000,00"),
    "a header that would fill the memory": (HEADERS[1], "headers is too large"),
    "a flipped bit": (bytes(FLIPPED), CUT),
    "up": (tar_bytes(plain("a/1"), plain("../evil")), "'../evil' has a name"),
    "up inside": (tar_bytes(plain("a/../../evil")), "'a/../../evil' has a name"),
    "absolute": (tar_bytes(plain("/evil")), "'/evil' has a name"),
    "drive": (tar_bytes(plain("C:/evil")), "'C:/evil' has a name"),
    "backslash": (zip_bytes(("..\\evil", b"x")), "leads outside"),
    "symbolic link": (special("a/x", LINK, linkname="/etc"), "'a/x' is a link"),
    "hard link": (
        tar_bytes(plain("a/1"), (member("a/x", type=HARD, linkname="a/1"), b"")),
        "'a/x' is a link",
    ),
    "link in a zip": (zip_bytes(("a/x", b"/etc"), mode=0o120777), "'a/x' is a link"),
    "character device": (
        special("zero", tarfile.CHRTYPE, devmajor=1),
        "'zero' is a link, a device",
    ),
    "block device": (special("sda", tarfile.BLKTYPE), "'sda' is a"),
    "pipe": (special("p.jpg", tarfile.FIFOTYPE), "'p.jpg' is a"),
    "pipe in a zip": (zip_bytes(("p.jpg", b""), mode=0o010644), "'p.jpg' is a link, a device"),
    "bomb by ratio": (tar_bytes(plain("b.jpg", BOMB * 10), gz=True), UNPACKED),
    "bomb in a zip": (zip_bytes(("b.jpg", BOMB * 10)), UNPACKED),
    "bomb behind the end": (
        gzip.compress(tar_bytes(plain("a/1")) + b"\0" * 2**21),
        "unpacks to at least",
    ),
    "bytes behind the end": (tar_bytes(plain("a/1")) + b"x", "it is damaged at byte 1,536"),
    "bytes far behind the end": (
        tar_bytes(plain("a/1"), plain("a/2", BOMB * 60)) + bytes(2**20) + b"x",
        "it is damaged at byte",
    ),
    "twice": (tar_bytes(plain("a/1"), plain("./a//1")), "'./a//1' occurs twice, or is"),
    "file and folder": (tar_bytes(plain("a"), plain("a/1")), "'a/1' occurs twice, or is both"),
    "folder and file": (tar_bytes(plain("a/1"), plain("a")), "'a' occurs twice, or is both a file"),
    "long name": (tar_bytes(plain("n" * 256)), "too long"),
    "long name in bytes": (tar_bytes(plain("ü" * 128)), "too long"),
    "long path": (tar_bytes(plain("n/" * 500 + "n")), "too long"),
    "no name": (tar_bytes(plain("./.")), "'./.' has a name that is empty"),
    "null byte": (zip_bytes(("a\0b", b"x")), "leads outside"),
    "drive with a backslash": (zip_bytes(("C:\\evil", b"x")), "absolute"),
    "encrypted": (
        zip_bytes(("a/1", b"x")).replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"),
        "encrypted",
    ),
    "another compression": (
        zip_bytes(("a/1", b"x")).replace(
            b"PK\1\2\x14\3\x14\0\0\0\x08\0", b"PK\1\2\x14\3\x14\0\0\0\x0c\0"
        ),
        "unusually packed",
    ),
    "empty zip": (zip_bytes(), "contains no files"),
    "nothing": (special("a", tarfile.DIRTYPE), "contains no files"),
    "cut tar": (tar_bytes(plain("a/1", b"x" * 5000))[:3000], CUT),
    "tar cut between entries": (
        tar_bytes(plain("a/1"), plain("a/2"))[: 2 * 512],
        "its end marker is missing",
    ),
    "cut gzip": (tar_bytes(plain("a/1", bytes(range(256)) * 20), gz=True)[:-20], CUT),
    "damaged header": (
        tar_bytes(plain("a/1"), plain("a/2")).replace(b"a/2", b"a/3"),
        "it is damaged at byte 1,024",
    ),
    "cut zip": (zip_bytes(("a/1", b"x" * 999), ("a/2", b"x"))[:-30], CUT),
    "web page": (b"<!doctype html><p>log in", "looks like a web page"),
    "empty file": (b"", "not a .tar, .tar.gz or .zip archive"),
}


@pytest.mark.parametrize(("data", "said"), A15.values(), ids=A15.keys())
def test_it_is_refused_and_nothing_is_kept(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(DataError) as caught:
        unpacked(tmp_path, data)

    assert said in caught.value.problem
    assert caught.value.problem.startswith(("a.tar is ", "a.tar was rejected: "))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.part", "inside"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_bomb_by_count_is_refused(tmp_path: Path, kind: str) -> None:
    data = packed(kind, [(f"a/{i}", b"x") for i in range(30)])

    with pytest.raises(DataError, match=r"more than 29 entries"):
        unpacked(tmp_path, data, ArchiveLimits(entries=29))
    assert len(tree(unpacked(tmp_path, data, ArchiveLimits(entries=30)))) == 30


def test_a_zip_of_many_entries_is_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    one = struct.pack("<4s6H3L5H2L", b"PK\1\2", *[0] * 9, 1, *[0] * 6) + b"a"  # a central header
    number = 200_000
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, number * len(one), 0, 0)

    tracemalloc.start()
    with pytest.raises(DataError, match=r"more than 1,000 entries"):
        unpacked(tmp_path, b"PK\3\4" + one * number + end, ArchiveLimits(entries=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 50e6


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_random_damage_is_an_error_or_changes_no_names(tmp_path: Path, kind: str) -> None:
    whole = packed(kind, [(f"a/{i}.jpg", bytes(range(200))) for i in range(4)])
    rng = random.Random(0)
    for number in range(120):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        place = tmp_path / str(number)
        place.mkdir()
        try:
            folder = unpacked(place, bytes(data))
        except DataError:
            continue
        assert all(path.is_file() or path.is_dir() for path in folder.rglob("*"))
        assert {p.name for p in place.iterdir()} == {"a.part", "inside"}  # nothing beside it
