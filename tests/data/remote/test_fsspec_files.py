"""Downloads from object stores: which errors are retried, and what must fit."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.training_data import watched_progress
from vitft.data.download.resumable import DownloadLimits
from vitft.data.remote import fsspec_files
from vitft.data.remote.fsspec_files import attempt_file, fetch_file
from vitft.system.errors import DataError, ResourceError

fsspec = pytest.importorskip("fsspec", reason="needs the extra `sources`")
ADDRESS = "memory://set/x.tar"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds waited between attempts."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def failing(part: Path, error: Exception, *grown: int) -> Callable[..., None]:
    """An attempt that fails after the part has grown by the next number of bytes, if any."""
    rest = iter(grown)

    def attempt(*_: object) -> None:
        with part.open("ab") as file:
            file.write(bytes(next(rest, 0)))
        raise error

    return attempt


@pytest.mark.parametrize(
    ("error", "grown", "seconds"),
    [
        pytest.param(OSError("lost"), (), [1, 2, 4], id="four attempts"),
        pytest.param(OSError("lost"), (999, 1000, 999), [1, 1, 2, 4], id="progress restarts"),
        pytest.param(FileNotFoundError("gone"), (), [], id="missing"),
        pytest.param(PermissionError("denied"), (), [], id="refused"),
        pytest.param(ValueError("odd"), (), [], id="an error of the library"),
    ],
)
def test_failures_of_the_network_are_retried_and_others_are_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    waits: list[float],
    error: Exception,
    grown: tuple[int, ...],
    seconds: list[float],
) -> None:
    monkeypatch.setattr(fsspec_files, "attempt_file", failing(tmp_path / "p", error, *grown))

    reason = "the file does not exist" if "gone" in str(error) else str(error)
    with pytest.raises(DataError, match=f"cannot fetch {ADDRESS}: {reason}"):
        fetch_file(ADDRESS, tmp_path / "p", limits=DownloadLimits(pace=1000))

    assert waits == seconds


def test_a_file_is_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 4
    fsspec.filesystem("memory").pipe_file("/set/x.tar", content)
    monkeypatch.setattr(fsspec_files, "PIECE", 1000)

    attempt_file(ADDRESS, tmp_path / "p", DownloadLimits(max_bytes=1024))

    assert (tmp_path / "p").read_bytes() == content
    with pytest.raises(DataError, match="is larger than"):
        attempt_file(ADDRESS, tmp_path / "q", DownloadLimits(max_bytes=1023))


@pytest.mark.parametrize("free", [1024, 1023])
def test_a_file_must_fit_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    fsspec.filesystem("memory").pipe_file("/set/x.tar", bytes(1024))
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)

    if free == 1024:
        attempt_file(ADDRESS, tmp_path / "p", DownloadLimits())
    else:
        with pytest.raises(ResourceError, match="the download needs another"):
            attempt_file(ADDRESS, tmp_path / "p", DownloadLimits())


@pytest.mark.parametrize("version", ["ETag", "etag", "LastModified"])
@pytest.mark.parametrize("free", [600, 599])
def test_only_the_rest_of_a_file_must_fit_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, version: str
) -> None:
    system, part, content = fsspec.filesystem("memory"), tmp_path / "p", bytes(range(250)) * 4
    system.pipe_file("/set/x.tar", content)
    info, cat_file = system.info, system.cat_file
    monkeypatch.setattr(system, "info", lambda path: {**info(path), version: "one"})
    asked: list[tuple[int, int]] = []

    def noted(path: str, *, start: int, end: int) -> bytes:
        asked.append((start, end))
        return bytes(cat_file(path, start=start, end=end))

    monkeypatch.setattr(system, "cat_file", noted)
    attempt_file(ADDRESS, part, DownloadLimits())
    part.write_bytes(content[:400])
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)

    if free == 600:
        attempt_file(ADDRESS, part, DownloadLimits())
        assert asked[1:] == [(400, 1000)]
        assert part.read_bytes() == content
    else:
        with pytest.raises(ResourceError, match=r"needs another 0\.0 GB, but only 0\.0 GB"):
            attempt_file(ADDRESS, part, DownloadLimits())
        assert part.read_bytes() == content[:400]


def test_four_mebibytes_are_asked_for_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file("/set/x.tar", bytes(2**22 + 1))
    asked: list[tuple[int, int]] = []
    cat_file = system.cat_file

    def noted(path: str, *, start: int, end: int) -> bytes:
        asked.append((start, end))
        return bytes(cat_file(path, start=start, end=end))

    monkeypatch.setattr(system, "cat_file", noted)
    attempt_file(ADDRESS, tmp_path / "p", DownloadLimits())

    assert asked == [(0, 2**22), (2**22, 2**22 + 1)]
    assert (tmp_path / "p").stat().st_size == 2**22 + 1


def test_each_piece_is_on_the_disk_before_the_next_one_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, part = fsspec.filesystem("memory"), tmp_path / "p"
    system.pipe_file("/set/x.tar", bytes(250))
    monkeypatch.setattr(fsspec_files, "PIECE", 100)
    sizes = list[int]()

    def piece(_: str, *, start: int, end: int) -> bytes:
        sizes.append(part.stat().st_size)
        return bytes(end - start) if start < 200 else b""

    monkeypatch.setattr(system, "cat_file", piece)
    with pytest.raises(OSError, match="the file ended after 200 of 250 bytes"):
        attempt_file(ADDRESS, part, DownloadLimits())

    assert sizes == [0, 100, 200]


def test_a_file_that_has_changed_is_fetched_in_its_new_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, listed = fsspec.filesystem("memory"), {"size": 3, "ETag": "old"}
    system.pipe_file("/set/x.tar", b"changed")
    monkeypatch.setattr(system, "info", lambda _: listed)
    monkeypatch.setattr(
        system, "invalidate_cache", lambda: listed.update({"size": 7, "ETag": "new"})
    )

    attempt_file(ADDRESS, tmp_path / "p", DownloadLimits())

    assert (tmp_path / "p").read_bytes() == b"changed"


def test_the_progress_of_a_file_is_in_megabytes_and_includes_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, part = fsspec.filesystem("memory"), tmp_path / "x.tar.part"
    system.pipe_file("/set/x.tar", bytes(4_400_000))
    info = system.info
    monkeypatch.setattr(system, "info", lambda path: {**info(path), "ETag": "one"})
    monkeypatch.setattr(fsspec_files, "PIECE", 1_200_000)
    bars = watched_progress(monkeypatch)

    attempt_file(ADDRESS, part, DownloadLimits())
    part.write_bytes(bytes(3_000_000))
    attempt_file(ADDRESS, part, DownloadLimits())
    system.pipe_file("/set/x.tar", b"small")
    attempt_file(ADDRESS, part, DownloadLimits())

    assert [(bar.label, bar.total, bar.done) for bar in bars] == [
        ("fetching x.tar", 4, 4), ("fetching x.tar", 4, 4), ("fetching x.tar", 1, 0),
    ]  # fmt: skip
