"""Attempts to download a file: when another one is made, when the limits stop it."""

import io
import json
import shutil
import time
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.training_data import watched_progress
from vitft.data.download import resumable
from vitft.data.download.resumable import (
    BrokeOffError,
    DownloadLimits,
    RemoteVersion,
    body_range,
    copy_body,
    error_for_status,
    fetch_to_part,
    read_version,
    receive,
)
from vitft.data.download.web_image import Deadline
from vitft.system.errors import DataError, ResourceError

URL = "https://host/x.tar"


class Body(io.BytesIO):
    """A response with a body that arrives in pieces of 10 bytes."""

    def __init__(self, content: bytes = b"", **headers: str) -> None:
        super().__init__(content)
        self.status = 206 if "Content_Range" in headers else 200
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(min(10, size or 0))


def received(
    answer: Body, part: Path, *, start: int = 0, size: int | None = None, **limits: Any
) -> None:
    with Deadline(30) as clock:
        receive(answer, URL, part, size, start, DownloadLimits(**limits), clock)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds waited between attempts."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def breaking(part: Path, *grown: int) -> Callable[..., None]:
    """An attempt that breaks off after the part has grown by the next number of bytes."""
    rest = iter(grown)

    def attempt(*_: object) -> None:
        with part.open("ab") as file:
            file.write(bytes(next(rest)))
        raise BrokeOffError("lost")

    return attempt


def test_four_attempts_are_made_with_doubled_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(resumable, "attempt", breaking(tmp_path / "p", 0, 0, 0, 0, 0))

    with pytest.raises(DataError, match=r"lost\n(.|\n)*check the address and the network"):
        fetch_to_part(URL, tmp_path / "p")

    assert waits == [1, 2, 4]


def test_an_attempt_that_brings_64_kib_restarts_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    enough, less = 2**16, 2**16 - 1
    steps = (less, less, enough, less, less, less)
    monkeypatch.setattr(resumable, "attempt", breaking(tmp_path / "p", *steps))

    with pytest.raises(DataError, match=r"lost; 0\.4 MB was kept"):
        fetch_to_part(URL, tmp_path / "p")

    assert waits == [1, 2, 1, 2, 4]


def test_a_response_is_awaited_for_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    seen: list[float] = []

    def opened(_url: str, web: Any, clock: Deadline, _headers: object) -> None:
        seen.extend((web.seconds, clock.seconds))
        raise OSError("no route")

    monkeypatch.setattr(resumable, "open_url", opened)
    with pytest.raises(DataError, match="no route"):
        fetch_to_part(URL, tmp_path / "p", limits=DownloadLimits(attempts=1))

    assert seen == [30, 30]


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504])
def test_another_attempt_follows_when_the_server_may_recover(code: int, tmp_path: Path) -> None:
    error = urllib.error.HTTPError(URL, code, "reason", Message(), None)

    assert isinstance(error_for_status(URL, tmp_path / "p", error), BrokeOffError)


@pytest.mark.parametrize(
    "code", [400, 401, 403, 404, 407, 409, 410, 415, 417, 424, 426, 428, 430, 451, 499]
)
def test_no_attempt_follows_a_refusal(code: int, tmp_path: Path) -> None:
    error = urllib.error.HTTPError(URL, code, "reason", Message(), None)

    assert isinstance(error_for_status(URL, tmp_path / "p", error), DataError)


def test_a_part_longer_than_the_file_is_removed(tmp_path: Path) -> None:
    for name in ("p", "p.json"):
        (tmp_path / name).write_text("x")
    error = urllib.error.HTTPError(URL, 416, "Range Not Satisfiable", Message(), None)

    found = error_for_status(URL, tmp_path / "p", error)

    assert isinstance(found, BrokeOffError)
    assert "restarting from the beginning" in str(found)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "start", "found"),
    [
        pytest.param(Body(Content_Length="30"), 7, (30, 0), id="the whole file"),
        pytest.param(Body(), 7, (None, 0), id="of unknown length"),
        pytest.param(Body(Content_Length="-1"), 0, (None, 0), id="of impossible length"),
        pytest.param(Body(Content_Range="bytes 7-29/30"), 7, (30, 7), id="the rest"),
    ],
)
def test_a_response_has_the_whole_file_or_the_rest(
    answer: Body, start: int, found: tuple[int | None, int]
) -> None:
    assert body_range(answer, start) == found


@pytest.mark.parametrize("range_", ["bytes 8-29/30", "bytes 7-29/*", ""])
def test_another_range_than_the_requested_one_is_not_used(range_: str) -> None:
    with pytest.raises(BrokeOffError, match="different range"):
        body_range(Body(Content_Range=range_), 7)


def test_a_response_is_appended_or_replaces_the_part(tmp_path: Path) -> None:
    part = tmp_path / "p"
    part.write_bytes(b"0123456789")

    received(Body(b"abcde", Content_Range="bytes 7-11/12", ETag="e"), part, start=7)
    assert part.read_bytes() == b"0123456abcde"
    version = json.loads((tmp_path / "p.json").read_text())
    assert version == {"url": URL, "etag": "e", "modified": "", "size": 12}
    received(Body(b"xyz", Last_Modified="today"), part, start=7)
    assert part.read_bytes() == b"xyz"
    version = json.loads((tmp_path / "p.json").read_text())
    assert version == {"url": URL, "etag": "", "modified": "today", "size": 3}


@pytest.mark.parametrize(
    ("announced", "size", "problem"),
    [
        ("5", 5, ""), ("", 5, ""), ("5", None, ""), ("5", 6, "has 5 bytes instead of 6"),
        ("6", None, "connection was closed after 5 of 6 bytes"),
    ],
)  # fmt: skip
def test_a_response_has_the_announced_and_the_known_size(
    tmp_path: Path, announced: str, size: int | None, problem: str
) -> None:
    headers = {"Content_Length": announced} if announced else {}
    if not problem:
        received(Body(b"12345", **headers), tmp_path / "p", size=size)
        return
    with pytest.raises((DataError, BrokeOffError), match=problem):
        received(Body(b"12345", **headers), tmp_path / "p", size=size)


@pytest.mark.parametrize("headers", [{"Content_Length": "25"}, {}], ids=["announced", "unknown"])
def test_a_file_may_be_as_large_as_the_limit(tmp_path: Path, headers: dict[str, str]) -> None:
    received(Body(bytes(25), **headers), tmp_path / "p", max_bytes=25)

    with pytest.raises(DataError, match="is larger than"):
        received(Body(bytes(25), **headers), tmp_path / "q", max_bytes=24)


@pytest.mark.parametrize(
    ("announced", "error"), [(100 * 10**9, ResourceError), (100 * 10**9 + 1, DataError)]
)
def test_a_file_may_have_100_gb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: int, error: type[Exception]
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)

    with pytest.raises(error):
        received(Body(Content_Length=str(announced)), tmp_path / "p")


@pytest.mark.parametrize(
    ("size", "start", "free", "fits"),
    [(None, 0, 30, True), (None, 0, 29, False), (None, 7, 23, True), (None, 7, 22, False),
     (30, 0, 29, False)],
)  # fmt: skip
def test_the_rest_of_a_file_must_fit_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None, start: int, free: int,
    fits: bool,
) -> None:  # fmt: skip
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    (tmp_path / "p").write_bytes(bytes(start))
    answer = Body(bytes(30), **({} if size else {"Content_Length": "30"}))
    if start:
        answer = Body(bytes(30 - start), Content_Range=f"bytes {start}-29/30")

    if fits:
        received(answer, tmp_path / "p", start=start, size=size)
        assert (tmp_path / "p").stat().st_size == 30
    else:
        with pytest.raises(ResourceError, match="the download needs another"):
            received(answer, tmp_path / "p", start=start, size=size)


class SlowClock:
    """A deadline of ten seconds, of which `left` are left."""

    seconds = 10.0
    is_up = False

    def __init__(self, left: float) -> None:
        self.left, self.renewed = left, 0

    def renew(self) -> None:
        self.renewed += 1


@pytest.mark.parametrize(
    ("left", "pace", "renewed"),
    [
        pytest.param(4.9, 10, 6, id="less than half of the time is left"),
        pytest.param(5.0, 10, 0, id="half of the time is left"),
        pytest.param(4.9, 20, 3, id="after each two pieces"),
        pytest.param(4.9, 21, 2, id="after each three pieces"),
        pytest.param(4.9, 61, 0, id="too slow"),
    ],
)
def test_the_deadline_moves_with_the_bytes_received(
    tmp_path: Path, left: float, pace: int, renewed: int
) -> None:
    clock: Any = SlowClock(left)
    limits = DownloadLimits(pace=pace)

    done = copy_body(Body(bytes(60)), io.BytesIO(), tmp_path / "p", 7, 67, limits, clock)

    assert done == 67
    assert clock.renewed == renewed


@pytest.mark.parametrize(
    ("start", "total", "label", "rest", "done"),
    [
        (0, 4_400_000, "fetching x.tar", 4, 4),
        (2_600_000, 7_000_000, "fetching x.tar, resuming at 3 MB", 4, 4),
        (0, None, "fetching x.tar", 1, 4),
        (2_600_000, None, "fetching x.tar, resuming at 3 MB", 1, 4),
    ],
)
def test_the_progress_of_a_download_is_that_of_the_rest_in_megabytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: int,
    total: int | None,
    label: str,
    rest: int,
    done: int,
) -> None:
    bars = watched_progress(monkeypatch)
    answer = io.BytesIO(bytes(4_400_000))

    with Deadline(30) as clock, (tmp_path / "x.tar.part").open("wb") as file:
        part, limits = tmp_path / "x.tar.part", DownloadLimits()
        size = copy_body(answer, file, part, start, total, limits, clock)

    (bar,) = bars
    assert size == start + 4_400_000
    assert (bar.label, bar.total, bar.done, bar.unit) == (label, rest, done, "MB")


def test_a_download_that_is_too_slow_breaks_off(tmp_path: Path) -> None:
    clock: Any = SimpleNamespace(is_up=True, left=0.01, seconds=30.0)

    with pytest.raises(BrokeOffError, match="fewer than 65536 bytes within 30 s"):
        receive(Body(bytes(60)), URL, tmp_path / "p", None, 0, DownloadLimits(), clock)

    assert (tmp_path / "p").stat().st_size == 10  # one piece


@pytest.mark.parametrize(
    ("fields", "is_usable"),
    [
        pytest.param({"etag": "e", "size": 9}, True, id="a part with an ETag"),
        pytest.param({"modified": "today", "size": 9}, True, id="a part with a date"),
        pytest.param({"etag": "W/e", "size": 9}, False, id="a weak ETag"),
        pytest.param({"size": 9}, False, id="a part of an unknown version"),
        pytest.param({"size": 5}, True, id="a whole file of an unknown version"),
        pytest.param({}, False, id="nothing is known"),
        pytest.param({"etag": "e", "size": "9"}, False, id="a size of another type"),
        pytest.param({"etag": "e", "other": 1}, False, id="another field"),
        pytest.param({"etag": "e", "url": "https://host/y"}, False, id="another address"),
    ],
)
def test_a_part_is_resumed_if_its_version_is_known(
    tmp_path: Path, fields: dict[str, Any], is_usable: bool
) -> None:
    part = tmp_path / "p"
    part.write_bytes(bytes(5))
    (tmp_path / "p.json").write_text(json.dumps({"url": URL, **fields}))

    assert (read_version(part, URL) is not None) == is_usable
    part.unlink()
    assert read_version(part, URL) is None


def test_a_weak_etag_is_replaced_by_the_date() -> None:
    versions = [
        RemoteVersion(url=URL, etag=etag, modified="today") for etag in ('"e"', 'W/"e"', "")
    ]

    assert [version.validator for version in versions] == ['"e"', "today", "today"]
