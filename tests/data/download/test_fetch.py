"""Fetching of archives over loopback, complete or in parts."""

import hashlib
import shutil
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.data.download.test_archive import plain, tar_bytes, zip_bytes
from tests.support.pictures import encoded, scene
from tests.support.serving import QuietHandler, loopback
from vitft.cli.main import main
from vitft.data import DownloadLimits, fetch_folder, fetch_to_part, scan
from vitft.system import DataError, LockedError

QUICK = DownloadLimits(wait_s=0.01, pace=1000, attempts=2, allow_private=True)
HASTY = replace(QUICK, stall_s=0.4, attempts=9)
NOISE = np.random.default_rng(0).bytes(300_000)
"""Cannot be packed, so that an archive with it has some length."""


@dataclass
class Site:
    """What a server has, how it fails, and what it was asked."""

    files: dict[str, bytes]
    faults: list[str] = field(default_factory=list)
    """One per request, in order; none when they are used up."""
    etag: str = '"one"'
    ranges: bool = True
    conditional: bool = True
    """Whether it heeds If-Range."""
    asked: list[str] = field(default_factory=list)
    """The Range of every request, or ''."""
    url: str = ""


class Handler(QuietHandler):
    site: ClassVar[Site]

    def do_GET(self) -> None:
        site = self.site
        wanted = self.headers.get("Range", "")
        site.asked.append(wanted)
        fault = site.faults.pop(0) if site.faults else ""
        if fault.isdecimal() or self.path not in site.files:
            self.send_error(int(fault or 404))
            return
        body, start = site.files[self.path], 0
        same = self.headers.get("If-Range") == site.etag or not site.conditional
        if wanted and site.ranges and same:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start > len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if site.etag:
            self.send_header("ETag", site.etag)
        if fault != "no length":
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.send_body(body[start:], fault)

    def send_body(self, rest: bytes, fault: str) -> None:
        if fault in ("drop", "reset", "stall"):
            self.wfile.write(rest[: len(rest) // 2])
            self.wfile.flush()
        if fault == "reset":
            linger = struct.pack("ii", 1, 0)  # close with RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        elif fault == "stall":
            self.stopping.wait(20)
        elif fault == "drip":
            while not self.stopping.wait(0.05):
                self.wfile.write(b"x")
        elif fault != "drop":
            self.wfile.write(rest)


def image_tar(*, extra: bytes = NOISE) -> bytes:
    picture = encoded(scene(0, (32, 32)))
    names = [f"set/{kind}/{i}.jpg" for kind in ("cat", "dog") for i in range(2)]
    return tar_bytes(*(plain(n, picture) for n in names), plain("set/README", extra), gz=True)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(files={"/set.tar.gz": image_tar()})
    with loopback(type("H", (Handler,), {"site": made})) as url:
        made.url = f"{url}/set.tar.gz"
        yield made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_archive_becomes_a_folder_and_its_digest_is_recorded(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    options = ["--url", site.url, "--out", str(folder), "--allow-private-addresses"]

    assert main(["data", "fetch", *options]) == 0

    printed = capsys.readouterr()
    assert printed.out == f"{folder}: 4 images in 2 classes\n"
    assert f"Next       vitft finetune --data {folder} --weights NAME\n" in printed.err
    assert scan(folder).classes == ("cat", "dog")
    assert (folder / "README").read_bytes() == NOISE
    assert names(tmp_path) == ["mine", "mine.sha256"]
    digest = hashlib.sha256(site.files["/set.tar.gz"]).hexdigest()
    assert (tmp_path / "mine.sha256").read_text() == f"{digest}  {site.url}\n"


def test_a_file_other_than_the_known_one_is_not_kept(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="instead of 0000"):
        fetch_folder(site.url, tmp_path / "set", sha256="0" * 64, limits=QUICK)

    assert names(tmp_path) == []


def test_a_second_fetch_of_a_changed_archive_is_refused_by_the_digest_of_the_first(
    site: Site, tmp_path: Path
) -> None:
    fetch_folder(site.url, tmp_path / "set", limits=QUICK)
    (tmp_path / "set").rename(tmp_path / "old")
    site.files["/set.tar.gz"] = image_tar(extra=b"changed")

    with pytest.raises(DataError, match=r"instead of \w{64}\. Nothing was kept\n.*set\.sha256"):
        fetch_folder(site.url, tmp_path / "set", limits=QUICK)

    assert names(tmp_path) == ["old", "set.sha256"]


@pytest.mark.parametrize("fault", ["drop", "reset", "stall"])
def test_a_broken_download_is_resumed(site: Site, tmp_path: Path, fault: str) -> None:
    site.faults = [fault]
    limits = HASTY if fault == "stall" else QUICK

    fetch_folder(site.url, tmp_path / "set", limits=limits)

    assert site.asked[0] == ""
    start = int(site.asked[1].removeprefix("bytes=").rstrip("-"))
    assert 0 < start <= len(site.files["/set.tar.gz"]) // 2
    assert (tmp_path / "set" / "README").read_bytes() == NOISE


def test_a_later_process_resumes_the_download_of_an_earlier_one(site: Site, tmp_path: Path) -> None:
    part, once = tmp_path / "x.part", DownloadLimits(attempts=1, pace=1, allow_private=True)
    site.faults = ["drop"]
    with pytest.raises(DataError, match=r"MB was kept\)\n.*run the command again to resume"):
        fetch_to_part(site.url, part, limits=once)
    left = part.stat().st_size

    fetch_to_part(site.url, part, limits=once)

    assert site.asked == ["", f"bytes={left}-"]
    assert part.read_bytes() == site.files["/set.tar.gz"]


@pytest.mark.parametrize(
    "change", ["other etag", "unconditional", "no ranges", "no etag", "shorter"]
)
def test_a_part_of_another_version_is_downloaded_again(
    site: Site, tmp_path: Path, change: str
) -> None:
    part = tmp_path / "x.part"
    site.etag = "" if change == "no etag" else site.etag
    site.faults = ["drop"]
    with pytest.raises(DataError):
        fetch_to_part(site.url, part, limits=DownloadLimits(attempts=1, pace=1, allow_private=True))
    if change in ("other etag", "unconditional"):
        site.conditional = change == "other etag"
        site.etag, site.files["/set.tar.gz"] = '"two"', image_tar(extra=NOISE[::-1])
    site.ranges = change != "no ranges"
    if change == "shorter":  # and the server says that it is the same version
        site.files["/set.tar.gz"] = image_tar(extra=b"short")

    fetch_to_part(site.url, part, limits=QUICK)

    assert part.read_bytes() == site.files["/set.tar.gz"]


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        pytest.param(["404"], "the server responded with 404", id="404 at once"),
        *(
            pytest.param([code] * 2, f"the server responded with {code}", id=f"{code} again")
            for code in ("408", "425", "429", "500", "503")
        ),
        pytest.param(["403"], "the server responded with 403", id="403 at once"),
        pytest.param(["drip"] * 2, "within 0.4 s", id="a byte at a time"),
    ],
)
def test_failed_downloads_are_reported(
    site: Site, tmp_path: Path, faults: list[str], said: str
) -> None:
    site.faults = list(faults)

    limits = replace(HASTY, attempts=2) if "drip" in faults else QUICK

    with pytest.raises(DataError, match=said):
        fetch_folder(site.url, tmp_path / "set", limits=limits)

    assert not (tmp_path / "set").exists()
    assert len(site.asked) == len(faults)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(tar_bytes(plain("../evil")), "'../evil' has a name", id="hostile"),
        pytest.param(tar_bytes(plain("a/1.txt")), "contains no image folder", id="no images"),
        pytest.param(b"<html>log in</html>", "looks like a web page", id="login page"),
    ],
)
def test_a_refused_archive_leaves_nothing(
    site: Site, tmp_path: Path, content: bytes, said: str
) -> None:
    site.files["/set.tar.gz"] = content

    with pytest.raises(DataError, match=said):
        fetch_folder(site.url, tmp_path / "home" / "set", limits=QUICK)

    assert names(tmp_path) == ["home"]
    assert names(tmp_path / "home") == []


def test_an_image_folder_among_other_files_is_found(site: Site, tmp_path: Path) -> None:
    picture = encoded(scene(0, (32, 32)))
    site.files["/set.tar.gz"] = zip_bytes(
        ("README", b"x"), ("data/a/1.jpg", picture), ("data/b/1.jpg", picture)
    )

    fetched = fetch_folder(site.url, tmp_path / "set", limits=QUICK)

    assert fetched.root == tmp_path / "set" / "data"
    assert (tmp_path / "set" / "README").exists()


class Store(MemoryFileSystem):  # type: ignore[misc]
    """An object store whose second range of bytes is lost, and all of the file `closed`."""

    protocol = "lossy"
    asked: ClassVar[list[int]]

    def info(self, path: str, **options: object) -> dict[str, object]:
        return {**super().info(path, **options), "ETag": "one"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self.asked.append(start or 0)
        if path.endswith("closed"):
            raise PermissionError("no access")
        if len(self.asked) == 2:
            raise OSError("connection lost")
        return bytes(super().cat_file(path, start=start, end=end))


def test_files_of_object_stores_are_resumed(tmp_path: Path) -> None:
    fsspec.register_implementation("lossy", Store)
    Store.asked = []
    piece = 2**22
    content = bytes(piece) + b"the rest"
    for name in ("file", "closed"):
        Store().pipe_file(f"lossy://{name}", content)

    fetch_to_part("lossy://file", tmp_path / "x.part", limits=QUICK)

    assert (tmp_path / "x.part").read_bytes() == content
    assert Store.asked == [0, piece, piece]
    for name, reason in (("missing", "the file does not exist"), ("closed", "no access")):
        with pytest.raises(DataError, match=f"cannot fetch lossy://{name}: {reason}"):
            fetch_to_part(f"lossy://{name}", tmp_path / "y.part", limits=QUICK)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_file_beyond_the_limit_is_not_fetched(
    site: Site, tmp_path: Path, *, is_told: bool
) -> None:
    site.faults = [] if is_told else ["no length"]

    with pytest.raises(DataError, match=r"is larger than 0\.0001 GB"):
        fetch_to_part(site.url, tmp_path / "x.part", limits=replace(QUICK, max_bytes=100_000))


def test_two_processes_do_not_fetch_to_the_same_place(site: Site, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / ".set.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        with pytest.raises(LockedError, match="another process is fetching"):
            fetch_folder(site.url, tmp_path / "set", limits=QUICK)


def test_passwords_are_kept_in_no_file(site: Site, tmp_path: Path) -> None:
    site.url = site.url.replace("http://", "http://me:secret@") + "?token=secret"
    site.files["/set.tar.gz?token=secret"] = site.files["/set.tar.gz"]
    site.faults = ["drop"]
    once = DownloadLimits(attempts=1, pace=10**6, allow_private=True)

    with pytest.raises(DataError) as caught:
        fetch_folder(site.url, tmp_path / "set", limits=once)
    during = (tmp_path / "set.part.json").read_text()
    first = fetch_folder(site.url, tmp_path / "set", limits=QUICK)
    shutil.rmtree(tmp_path / "set")
    again = fetch_folder(site.url, tmp_path / "set", limits=QUICK)

    assert "secret" not in f"{caught.value}{during}"
    assert site.asked[1].startswith("bytes=")  # although the file has the address without password
    assert first.rows == again.rows
    assert "***@127.0.0.1" in (tmp_path / "set.sha256").read_text()
    assert "secret" not in (tmp_path / "set.sha256").read_text()
