"""Limits of `vitft serve`: size, time, invalid HTTP and forms; page, options and shutdown."""

import asyncio
import json
import re
import signal
import time
from collections.abc import Iterator
from email.parser import BytesParser
from email.policy import HTTP
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from tests.serve.test_serve import CONFIG, make_predictor, png
from tests.support.serving import Client, answered, command_serving, form, read_all, serving
from vitft.data import EvalTransform
from vitft.models import Card, VisionTransformer, save_checkpoint
from vitft.serve import (
    MemoryBudget,
    ServeLimits,
    Upload,
    build_page,
    limits,
    read_form,
    received_body,
)

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A server with short timeouts."""
    for name in ("server.HEAD_SECONDS", "uploads.BODY_SECONDS"):
        monkeypatch.setattr(f"vitft.serve.{name}", 0.3)
    with serving(make_predictor(), ServeLimits(max_bytes=100_000)) as served:
        yield served
        assert served.post("/predict", png(0)).status == 200  # it has survived


def error_of(answer: bytes) -> tuple[int, str]:
    """Return status and error of a raw response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["error"]


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LARGE = (413, "the request is larger than 0.1 MB")
SLOW = (408, "the request was sent too slowly")


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        pytest.param(HEAD + b"Content-Length: 10000000000\r\n\r\n", LARGE, id="large"),
        pytest.param(CHUNKED + 4 * (b"8000\r\n" + bytes(0x8000) + b"\r\n"), LARGE, id="chunks"),
        pytest.param(HEAD + b"Content-Length: 1000\r\n\r\nhello", SLOW, id="half of a body"),
        pytest.param(CHUNKED + b"5\r\nhello\r\n", SLOW, id="half of the chunks"),
    ],
)
def test_a_body_is_read_within_limits(client: Client, data: bytes, outcome: object) -> None:
    with client.raw(data) as connection:
        answer = answered(connection)
        assert (answer.status, answer.json["error"]) == outcome
        if outcome == SLOW:
            assert connection.recv(65536) == b""  # and the line is free again


def test_what_is_no_request_is_answered_until_the_server_hangs_up(client: Client) -> None:
    beyond = client.send_raw(HEAD + b"Content-Length: 5\r\n\r\nhello" + b"\0\r\n" * 100)

    assert beyond.startswith(b"HTTP/1.1 422 ")  # the body is not read beyond its length
    assert error_of(beyond[beyond.rindex(b"HTTP/1.1") :]) == (400, "invalid HTTP request")
    assert error_of(client.send_raw(b"GET / HTTP/1.1\r\nX: ")) == SLOW
    assert client.send_raw(b"") == b""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3 + b"\r\n\r\n", id="TLS"),
        pytest.param(b"\r\n\r\n\r\nhello\r\n\r\n", id="chat"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n b: c\0\r\n\r\n", id="NUL"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000 + b"\r\n", id="headers"),
        pytest.param(HEAD + b"Content-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two lengths"),
        pytest.param(HEAD + b"Transfer-Encoding: gzip\r\n\r\n", id="coding"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", id="no chunk"),
    ],
)
def test_invalid_http_is_answered_with_an_error(client: Client, data: bytes) -> None:
    answer = client.send_raw(data)

    assert error_of(answer)[0] in (400, 501)
    assert "valid" in error_of(answer)[1]


def test_connections_beyond_the_limit_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitft.serve.server.MAX_CONNECTIONS", 0)

    answer = client.send_raw(b"")
    monkeypatch.undo()

    assert error_of(answer) == (503, "too many connections: try again")
    assert b"retry-after: 1" in answer


def sent(size: int) -> Request:
    """Return a request with a body of so many bytes."""

    async def receive() -> Message:
        return {"type": "http.request", "body": bytes(size)}

    return Request({"type": "http", "headers": []}, receive)


def test_uploads_share_a_memory_budget_and_release_it() -> None:
    memory = MemoryBudget(100)

    async def share() -> None:
        async with received_body(sent(60), memory, max_bytes=100) as body:
            assert body == bytes(60)
            with pytest.raises(HTTPException, match="503: too many uploads at once") as caught:
                async with received_body(sent(41), memory, max_bytes=100):
                    pass
            assert caught.value.headers == {"Retry-After": "1"}
            async with received_body(sent(40), memory, max_bytes=100):
                assert memory.used == 100

    asyncio.run(share())

    assert memory.used == 0


def test_the_guide_states_the_limits() -> None:
    guide = Path(__file__).parents[2] / "docs" / "serve.md"
    table = dict(re.findall(r"^\| ([\w ]*\w)[^|]*\| ([^|]*) \|", guide.read_text(), re.MULTILINE))

    default = ServeLimits()

    assert table["one request"].startswith(f"{default.max_bytes / 1e6:g} MB, {default.images} im")
    bodies = table["bodies of all requests together"]
    assert bodies.startswith(f"{default.memory / default.max_bytes:g} requests")
    assert (
        table
        | {
            "queued images": f"{default.queue}",
            "one image": (
                f"{limits.MAX_IMAGE_PIXELS / 1e6:g} million pixels, {limits.MAX_SCANS} JPEG scans"
            ),
            "one part of a form": (
                f"{limits.MAX_HEADER_LINES} header lines of {limits.PART_HEADERS / 1024:g} kB"
            ),
            "headers of a request": f"{limits.HEAD_SECONDS:g} s",
            "body of a request": (
                f"{limits.BODY_SECONDS:g} s, plus 1 s per {limits.MIN_BYTES_PER_SECOND / 1000:g} kB"
            ),
            "response": f"{limits.ANSWER_SECONDS:g} s",
            "connections": f"{limits.MAX_CONNECTIONS}",
        }
        == table
    )
    text = " ".join(guide.read_text().split())
    assert f"in one batch (up to {limits.MAX_BATCH})" in text
    assert f"open requests {limits.GRACE_SECONDS} seconds" in text
    assert f"ends within {limits.STOP_SECONDS:g} seconds" in text


def test_forms_are_parsed_as_by_the_standard_library() -> None:
    body = form(("a.png", png(0)), ("b.png", png(1)))
    kind = 'multipart/form-data; boundary="cut here"'

    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)

    parts: Any = message.iter_parts()
    theirs = [Upload(part.get_filename(), part.get_payload(decode=True)) for part in parts]
    assert read_form(body, kind, max_files=2) == theirs


def test_a_form_cut_anywhere_is_an_error() -> None:
    body = form(("a.png", b"\r\n--cut" * 5), ("b.png", b"x"))

    for length in range(len(body) - len("\r\n")):
        if body[:length].endswith(b"--cut here--"):
            continue
        with pytest.raises(HTTPException):
            read_form(body[:length], 'multipart/form-data; boundary="cut here"', max_files=2)


class Elements(HTMLParser):
    """Collects attributes that could load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]


def test_the_page_loads_nothing_from_other_sites_and_runs_only_its_own_script() -> None:
    page = build_page(max_bytes=1000, explains=True)
    elements = Elements()

    elements.feed(page.html)

    loading = {(t, n): v for t, n, v in elements.attributes if n in ("src", "href", "action")}
    assert loading[("link", "href")].startswith("data:image/svg+xml,")
    assert {value for (tag, _), value in loading.items() if tag == "a"} <= {
        "labels", "openapi.json", "healthz"
    }  # fmt: skip
    assert {tag for tag, _ in loading} == {"link", "a"}
    assert not [name for _, name, _ in elements.attributes if name.startswith("on")]
    assert not [name for _, name, _ in elements.attributes if name == "style"]
    assert "innerHTML" not in page.html
    assert "unsafe" not in page.policy
    assert page.policy.startswith("default-src 'none';")
    assert len(re.findall(r"sha256-[\w+/]{43}=", page.policy)) == 2


@pytest.mark.parametrize("size", [60_000, 300_000, 3_000_000])
@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nx: ", b"GET /", b"nonsense\r\n\r\n"])
def test_huge_headers_are_answered_and_the_connection_is_not_reset(
    client: Client, start: bytes, size: int
) -> None:
    with client.raw(start + b"a" * size + b"\r\n\r\n") as connection:
        parts = [*iter(lambda: connection.recv(65536), b"")]  # a reset would raise

    assert error_of(b"".join(parts)) == (400, "invalid HTTP request")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a random model."""
    torch.manual_seed(0)
    card = Card(
        architecture=CONFIG, transform=EvalTransform(image_size=(16, 16)), classes=("a", "b", "c")
    )
    path = tmp_path / "run"
    path.mkdir()
    save_checkpoint(path / "model.safetensors", VisionTransformer(CONFIG).state_dict(), card)
    return path


@pytest.mark.long
def test_a_request_that_does_not_end_is_cut_off_within_five_seconds_of_a_signal(run: Path) -> None:
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n"
    with (
        command_serving("serve", "--run", str(run)) as (client, child, _),
        client.raw(head) as connection,
    ):
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        answer = read_all(connection)
        child.wait(timeout=30)
        seconds = time.monotonic() - began

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert child.returncode == 143
    assert seconds < 12  # 5 s, and what a busy machine adds; the body alone may take 15 s


@pytest.mark.long
def test_open_connections_may_still_send_a_request_after_a_signal(run: Path) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with command_serving("serve", "--run", str(run)) as (client, child, _):
        with client.raw(b"") as fresh, client.raw(request) as used:
            last = answered(used)
            assert "connection" not in last.headers
            child.send_signal(signal.SIGTERM)
            while "connection" not in last.headers:  # until the signal has arrived
                used.sendall(request)
                last = answered(used)
            fresh.sendall(request)
            for answer in (last, answered(fresh)):
                assert (answer.status, answer.headers["connection"]) == (200, "close")
        child.wait(timeout=30)

    assert child.returncode == 143


def ignore_sigint() -> None:
    """Ignore SIGINT, as shells do for background jobs of scripts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.long
def test_an_open_request_is_finished_after_a_signal(run: Path) -> None:
    head = HEAD + f"Expect: 100-continue\r\nContent-Length: {len(png(0))}\r\n\r\n".encode()

    for number, code, ignored in ((signal.SIGTERM, 143, None), (signal.SIGINT, 130, ignore_sigint)):
        with command_serving("serve", "--run", str(run), preexec_fn=ignored) as (client, child, _):
            with client.raw(head) as connection:
                assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # it reads the body now
                child.send_signal(number)
                child.send_signal(number)  # impatience changes nothing
                connection.sendall(png(0))
                assert read_all(connection).startswith(b"HTTP/1.1 200 ")
            _, errors = child.communicate(timeout=30)
        assert child.returncode == code
        assert errors.splitlines()[-1] == "stopped"
