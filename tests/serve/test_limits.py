"""Limits of `vitft serve`: size, time, invalid HTTP and forms; page, options and shutdown."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from email.parser import BytesParser
from email.policy import HTTP
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import h11
import pytest
import torch
import uvicorn
from starlette.exceptions import HTTPException
from uvicorn.server import ServerState

from tests.serve.test_serve import CONFIG, make_predictor, png
from tests.support.run_files import HOSTILE
from tests.support.serving import Client, Reply, answered, form, read_all, serving
from vitft.cli.main import main
from vitft.cli.serve import byte_count
from vitft.data.transforms import EvalTransform
from vitft.models.card import Card
from vitft.models.checkpoint import save_checkpoint
from vitft.models.vit import VisionTransformer
from vitft.predict.postprocess import Postprocess
from vitft.serve import limits
from vitft.serve.access import access_for
from vitft.serve.limits import SWITCH_SECONDS, ServeLimits
from vitft.serve.page import build_page
from vitft.serve.server import Server, TimeoutProtocol, listen, make_server
from vitft.serve.uploads import FormError, MemoryBudget, Upload, read_form, receive_body
from vitft.system import imports
from vitft.system.errors import UsageError

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


def outcome(answer: Reply) -> tuple[int, str]:
    return answer.status, answer.json["error"]


# limits of requests ------------------------------------------------------------------------------


def test_a_too_large_content_length_is_refused_before_the_body(
    client: Client,
) -> None:
    with client.raw(HEAD + b"Content-Length: 10000000000\r\n\r\n") as connection:
        answer = answered(connection)

    assert outcome(answer) == (413, "the request is larger than 0.1 MB")


def test_a_body_in_chunks_without_end_is_refused_at_the_limit(client: Client) -> None:
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"

    with client.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + 4 * chunk) as connection:
        answer = answered(connection)

    assert outcome(answer) == (413, "the request is larger than 0.1 MB")


def test_a_body_in_tiny_chunks_is_refused(client: Client) -> None:
    crumbs = b"1\r\nx\r\n" * 1000

    answer = client.send_raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + crumbs)

    assert error_of(answer) == (400, "invalid HTTP request: the chunks are too small")


def test_a_body_in_ordinary_chunks_is_accepted(client: Client) -> None:
    image = png(0)
    chunks = b"".join(
        f"{len(part):x}\r\n".encode() + part + b"\r\n"
        for part in (image[i : i + 400] for i in range(0, len(image), 400))
    )

    with client.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n") as line:
        assert answered(line).status == 200


def test_a_body_is_not_read_beyond_its_content_length(client: Client) -> None:
    answer = client.send_raw(HEAD + b"Content-Length: 5\r\n\r\nhello" + b"\0\r\n" * 100)

    assert answer.startswith(b"HTTP/1.1 422 ")
    assert error_of(answer[answer.rindex(b"HTTP/1.1") :]) == (400, "invalid HTTP request")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"Content-Length: 1000\r\n\r\nhello", id="announced"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", id="in chunks"),
    ],
)
def test_an_incomplete_body_times_out(client: Client, headers: bytes) -> None:
    with client.raw(HEAD + headers) as connection:
        assert outcome(answered(connection)) == (408, "the request was sent too slowly")
        assert connection.recv(65536) == b""  # and the line is free again


def test_incomplete_headers_time_out(client: Client) -> None:
    assert error_of(client.send_raw(b"GET / HTTP/1.1\r\nX: ")) == (
        408,
        "the request was sent too slowly",
    )


def test_a_second_request_on_a_connection_times_out_too(client: Client) -> None:
    first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

    with client.raw(first) as connection:
        assert answered(connection).status == 200
        connection.sendall(b"GET / HT")
        assert error_of(read_all(connection)) == (408, "the request was sent too slowly")


def test_an_idle_connection_is_closed(client: Client) -> None:
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

    assert error_of(answer) == (503, "too many connections; try again")
    assert b"retry-after: 1" in answer


def test_the_switch_interval_is_short_while_the_server_runs() -> None:
    usual = sys.getswitchinterval()

    with serving(make_predictor()) as client:
        client.ask("GET", "/healthz")
        meanwhile = sys.getswitchinterval()

    assert meanwhile == pytest.approx(SWITCH_SECONDS)
    assert usual == pytest.approx(sys.getswitchinterval())
    assert usual > SWITCH_SECONDS
    assert meanwhile < 0.001  # a response waits at most so long for each decoding thread


def test_a_connection_up_to_the_limit_is_served(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitft.serve.server.MAX_CONNECTIONS", 1)

    with client.raw(b"") as first:
        while error_of(client.send_raw(b"")) != (503, "too many connections; try again"):
            pass
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answered(first).status == 200


@pytest.mark.parametrize(
    ("size", "lines", "data", "is_tiny"),
    [
        pytest.param(4096, 32, b"Transfer-Encoding: Chunked", True, id="128 bytes per line"),
        pytest.param(4096, 31, b"Transfer-Encoding: Chunked", False, id="longer lines"),
        pytest.param(4095, 1000, b"Transfer-Encoding: Chunked", False, id="a short beginning"),
        pytest.param(4096, 1000, b"Content-Length: 9", False, id="not in chunks"),
        pytest.param(12_800, 100, b"Transfer-Encoding: chunked", True, id="a longer body"),
        pytest.param(12_801, 100, b"Transfer-Encoding: chunked", False, id="a byte more"),
    ],
)
def test_chunks_are_tiny_if_lines_have_at_most_128_bytes_on_average(
    size: int, lines: int, data: bytes, *, is_tiny: bool
) -> None:
    protocol = object.__new__(TimeoutProtocol)
    protocol.num_bytes, protocol.num_line_ends = size, lines

    assert protocol.has_tiny_chunks(data) is is_tiny
    assert protocol.is_chunked is is_tiny


def test_a_client_that_does_not_read_is_disconnected() -> None:
    timers: list[tuple[float, Any]] = []
    cancelled: list[float] = []

    def call_later(seconds: float, function: Any) -> Any:
        timers.append((seconds, function))
        return SimpleNamespace(cancel=lambda: cancelled.append(seconds))

    nothing = SimpleNamespace(pause_writing=lambda: None, resume_writing=lambda: None)
    protocol: Any = object.__new__(TimeoutProtocol)
    protocol.flow, protocol.loop = nothing, SimpleNamespace(call_later=call_later)
    protocol.transport = SimpleNamespace(abort="abort")

    protocol.resume_writing()
    protocol.pause_writing()
    protocol.resume_writing()
    protocol.resume_writing()

    assert timers == [(20.0, "abort")]
    assert cancelled == [20.0]


def test_uploads_share_a_memory_budget_and_release_it() -> None:
    memory = MemoryBudget(100)

    with memory.reservation() as one, memory.reservation() as other:
        one.grow(99)
        with pytest.raises(HTTPException) as caught:
            other.grow(2)
        assert (caught.value.status_code, caught.value.headers) == (503, {"Retry-After": "1"})
        assert memory.used == 99

    assert memory.used == 0

    with memory.reservation() as one, memory.reservation() as other:
        one.grow(60)
        with pytest.raises(Exception, match="503: too many uploads at once"):
            other.grow(60)
        other.grow(40)

    assert memory.used == 0


def read_slowly(
    monkeypatch: pytest.MonkeyPatch,
    *sizes: int,
    seconds: float = 0,
    announced: int | None = None,
    max_bytes: int = 10**9,
) -> bytes:
    """Read a body of chunks of these sizes that arrive at intervals of so many seconds."""
    clock = [100.0]
    left = list(sizes)
    monkeypatch.setattr("vitft.serve.uploads.time.monotonic", lambda: clock[0])

    async def receive() -> dict[str, Any]:
        clock[0] += seconds
        return {"type": "http.request", "body": bytes(left.pop(0)), "more_body": bool(left)}

    async def read() -> bytes:
        length = None if announced is None else str(announced)
        with MemoryBudget(10**9).reservation() as reservation:
            body = await receive_body(receive, length, reservation, max_bytes=max_bytes)
            assert reservation.size == len(body)
            return body

    return asyncio.run(read())


def test_a_body_may_have_exactly_the_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (400, 600)

    assert read_slowly(monkeypatch, *sizes, announced=1000, max_bytes=1000) == bytes(1000)
    assert read_slowly(monkeypatch, *sizes, max_bytes=1000) == bytes(1000)
    for options in ({"announced": 1000}, {}):
        with pytest.raises(HTTPException, match=r"413: the request is larger than 0\.000999 MB"):
            read_slowly(monkeypatch, *sizes, max_bytes=999, **options)


@pytest.mark.parametrize(
    ("rate", "chunks", "is_read"),
    [
        pytest.param(20_000, 400, True, id="a steady upload"),
        pytest.param(0, 15, True, id="15 s without a byte"),
        pytest.param(0, 17, False, id="longer"),
        pytest.param(15_000, 58, True, id="60 s at 15 kB per second"),
        pytest.param(15_000, 70, False, id="longer at this rate"),
    ],
)
def test_a_body_has_15_seconds_and_one_for_every_20_kilobytes(
    monkeypatch: pytest.MonkeyPatch, rate: int, chunks: int, *, is_read: bool
) -> None:
    if is_read:
        assert len(read_slowly(monkeypatch, *[rate] * chunks, seconds=1)) == rate * chunks
        return
    with pytest.raises(HTTPException, match="408: the request was sent too slowly"):
        read_slowly(monkeypatch, *[rate] * chunks, seconds=1)


@pytest.mark.parametrize(
    ("max_bytes", "queue", "is_valid"),
    [(999, 64, False), (1000, 64, True), (1000, 0, False), (1000, 1, True)],
)
def test_limits_have_a_minimum(max_bytes: int, queue: int, *, is_valid: bool) -> None:
    if is_valid:
        assert ServeLimits(max_bytes=max_bytes, queue=queue).queue == queue
        return
    with pytest.raises(UsageError, match="invalid --"):
        ServeLimits(max_bytes=max_bytes, queue=queue)


def test_the_guide_states_the_limits() -> None:
    guide = Path(__file__).parents[2] / "docs" / "serve.md"
    table = dict(re.findall(r"^\| ([\w ]*\w)[^|]*\| ([^|]*) \|", guide.read_text(), re.MULTILINE))

    default = ServeLimits()

    assert table["one request"].startswith(f"{default.max_bytes / 1e6:g} MB; {default.images} im")
    assert table["queued images"] == str(default.queue)
    assert table["bodies of all requests together"].startswith(
        f"{default.memory / default.max_bytes:g} requests"
    )
    assert table["one image"] == (
        f"{limits.MAX_IMAGE_PIXELS / 1e6:g} million pixels, {limits.MAX_SCANS} JPEG scans"
    )
    assert table["one part of a form"] == (
        f"{limits.MAX_HEADER_LINES} header lines of {limits.PART_HEADERS / 1024:g} kB"
    )
    assert table["headers of a request"] == f"{limits.HEAD_SECONDS:g} s"
    assert table["body of a request"] == (
        f"{limits.BODY_SECONDS:g} s, plus 1 s per {limits.MIN_BYTES_PER_SECOND / 1000:g} kB"
    )
    assert table["response"] == f"{limits.ANSWER_SECONDS:g} s"
    assert table["connections"] == str(limits.MAX_CONNECTIONS)
    text = " ".join(guide.read_text().split())
    assert f"in one batch (up to {limits.MAX_BATCH})" in text
    assert f"open requests {limits.GRACE_SECONDS} seconds" in text
    assert f"ends within {limits.STOP_SECONDS:g} seconds" in text


@pytest.mark.parametrize(("queue", "images"), [(64, 32), (33, 32), (32, 32), (31, 31), (1, 1)])
def test_a_request_has_at_most_as_many_images_as_the_queue(queue: int, images: int) -> None:
    assert ServeLimits(queue=queue).images == images


# forms -------------------------------------------------------------------------------------------

BOUNDARY = "multipart/form-data; boundary=x"
PLAIN = b'Content-Disposition: form-data; filename="a"'


def form_of(*parts: bytes) -> bytes:
    """Return a form of parts, each given by its header lines."""
    return b"".join(b"--x\r\n" + part + b"\r\n\r\nbytes\r\n" for part in parts) + b"--x--\r\n"


def test_a_form_has_at_most_as_many_files_as_are_allowed() -> None:
    assert read_form(form_of(PLAIN, PLAIN), BOUNDARY, max_files=2) == [Upload("a", b"bytes")] * 2
    with pytest.raises(FormError, match="more than 2 files in one request"):
        read_form(form_of(PLAIN, PLAIN, PLAIN), BOUNDARY, max_files=2)
    with pytest.raises(FormError, match="more than 1 file in one request"):
        read_form(form_of(PLAIN, PLAIN), BOUNDARY, max_files=1)


@pytest.mark.parametrize(
    ("headers", "is_read"),
    [
        pytest.param(b"\r\n".join([PLAIN, *[b"a: b"] * 15]), True, id="16 lines"),
        pytest.param(b"\r\n".join([PLAIN, *[b"a: b"] * 16]), False, id="17 lines"),
        pytest.param(PLAIN + b"\r\na: " + b"b" * 8100, True, id="8.1 kB in a line"),
        pytest.param(PLAIN + b"\r\na: " + b"b" * 8300, False, id="8.3 kB in a line"),
        pytest.param(PLAIN.upper().replace(b"A", b"a"), True, id="upper case"),
    ],
)
def test_a_part_has_up_to_16_header_lines_of_8_kilobytes(headers: bytes, *, is_read: bool) -> None:
    if is_read:
        assert len(read_form(form_of(headers), BOUNDARY, max_files=1)) == 1
        return
    with pytest.raises(FormError, match="malformed or too long"):
        read_form(form_of(headers), BOUNDARY, max_files=1)


@pytest.mark.parametrize(
    "headers",
    [b'Content-Disposition: form-data; name="a"', b'Content-Disposition: attachment; filename="a"',
     b'Content-Type: form-data; filename="a"'],
)  # fmt: skip
def test_a_part_without_a_file_is_refused(headers: bytes) -> None:
    with pytest.raises(FormError, match="a part of the form is not a file"):
        read_form(form_of(PLAIN, headers), BOUNDARY, max_files=2)


def test_a_long_file_name_is_cut_to_255_characters() -> None:
    headers = b'Content-Disposition: form-data; filename="%s"' % (b"n" * 300)

    (file,) = read_form(form_of(headers), BOUNDARY, max_files=1)

    assert file.name == "n" * 255


def test_files_of_a_form_are_unchanged() -> None:
    rng = random.Random(0)
    pieces = [b"\r\n", b"--", b"cut here", b"--cut her", b"\0", b"\xff\xd8", b"\n--cut here", b"-"]

    for _ in range(500):
        files = [
            (f"{i}.png", b"".join(rng.choices(pieces, k=rng.randrange(12))))
            for i in range(rng.randrange(1, 5))
        ]
        if any(b"\r\n--cut here" in b"\r\n" + data for _, data in files):
            continue  # a client must choose another boundary then
        found = read_form(form(*files), 'multipart/form-data; boundary="cut here"', max_files=4)
        assert found == [Upload(*file) for file in files]


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
        with pytest.raises(FormError):
            read_form(body[:length], 'multipart/form-data; boundary="cut here"', max_files=2)


# the page ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", HOSTILE)
def test_no_class_name_is_in_the_page(name: str, tmp_path: Path) -> None:
    assert name not in build_page(max_bytes=1000, explains=False).html


# the command -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--threshold", "2"], "invalid --threshold 2"),
        (["--precision", "0"], "invalid --precision 0"),
        (["--precision", "0.9", "--threshold", "0.5"], "cannot be used together"),
        (["--port", "70000"], "invalid --port 70000"),
        (["--max-bytes", "10"], "invalid --max-bytes 10"),
        (["--max-bytes", "much"], "'much' is not a number of bytes such as 20MB"),
        (["--queue", "0"], "invalid --queue 0"),
        (["--allow-host", "*"], "'*': not a host name"),
        (["--allow-host", "a.example:80"], "not a host name"),
        (["--allow-host", "https://a.example"], "not a host name"),
        (["--host", "203.0.113.7", "--port", "0"], "cannot listen on 203.0.113.7"),
        (["--host", "no such host", "--port", "0"], "invalid --host no such host"),
    ],
)
def test_an_invalid_option_is_refused(
    run: Path, options: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--run", str(run), *options]) == 2
    assert error in capsys.readouterr().err


def test_a_port_in_use_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]

        assert main(["serve", "--run", str(run), "--port", str(port)]) == 2

    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_a_damaged_model_is_not_served(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = run / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\x55")

    assert main(["serve", "--run", str(run), "--port", "0"]) == 5
    assert "sha256" in capsys.readouterr().err


def test_a_missing_library_is_named_with_the_extra_that_brings_it(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(imports.EXTRA_LIBRARIES, "serve", ("no_such_library",))

    assert main(["serve", "--run", str(run)]) == 2
    assert "fix: run pip install 'fastapi>=" in capsys.readouterr().err


def test_the_server_listens_on_loopback_by_default() -> None:
    bound: Any
    with listen("127.0.0.1", 0) as bound:
        assert bound.getsockname()[0] == "127.0.0.1"
    assert access_for("127.0.0.1", []).allows("192.168.0.7") is False
    assert access_for("0.0.0.0", []).allows("192.168.0.7:8000") is True
    assert access_for("0.0.0.0", []).allows("rebound.example") is False
    with pytest.raises(UsageError):
        access_for("127.0.0.1", [""])


def test_a_request_that_does_not_end_is_cut_off_within_five_seconds_of_a_signal(
    run: Path,
) -> None:
    command = [sys.executable, "-m", "vitft", "serve", "--run", str(run), "--port", "0"]
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n"
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as child:
        assert child.stdout is not None
        found = re.search(r":(\d+)/", child.stdout.readline())
        assert found, child.communicate()
        with Client(int(found[1])).raw(head) as connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # it waits for the body
            child.send_signal(signal.SIGTERM)
            began = time.monotonic()
            answer = read_all(connection)
            child.wait(timeout=30)
            seconds = time.monotonic() - began

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert child.returncode == 143
    assert seconds < 12  # 5 s, and what a busy machine adds; the body alone may take 15 s


def test_open_connections_may_still_send_a_request_after_a_signal(run: Path) -> None:
    command = [sys.executable, "-m", "vitft", "serve", "--run", str(run), "--port", "0"]
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        found = re.search(r":(\d+)/", child.stdout.readline())
        assert found, child.communicate()
        client = Client(int(found[1]))
        with client.raw(b"") as fresh, client.raw(request) as used:
            assert "connection" not in answered(used).headers
            child.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            for connection in (fresh, used):
                connection.sendall(request)
                answer = answered(connection)
                assert (answer.status, answer.headers["connection"]) == (200, "close")
        child.wait(timeout=30)

    assert child.returncode == 143


def test_a_server_that_hangs_after_a_signal_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predictor = make_predictor()
    codes: list[int] = []
    monkeypatch.setattr("vitft.serve.server.STOP_SECONDS", 0.05)
    monkeypatch.setattr(os, "_exit", codes.append)
    answer = Postprocess(classes=predictor.classes)
    server = make_server(predictor, answer, ServeLimits(), access_for("127.0.0.1", []))

    server.handle_exit(signal.SIGTERM, None)
    server.handle_exit(signal.SIGINT, None)
    time.sleep(0.3)

    assert codes == [143]


def ignore_sigint() -> None:
    """Ignore SIGINT, as shells do for background jobs of scripts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_an_open_request_is_finished_after_a_signal(run: Path) -> None:
    command = [sys.executable, "-m", "vitft", "serve", "--run", str(run), "--port", "0"]
    head = HEAD + f"Expect: 100-continue\r\nContent-Length: {len(png(0))}\r\n\r\n".encode()
    children = {
        number: subprocess.Popen(
            [*command, "--host", "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=ignored,
        )
        for number, ignored in ((signal.SIGTERM, None), (signal.SIGINT, ignore_sigint))
    }

    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with children[number] as child:
            assert child.stdout is not None
            found = re.search(r":(\d+)/", child.stdout.readline())
            assert found, child.communicate()
            with Client(int(found[1])).raw(head) as connection:
                assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # it reads the body now
                child.send_signal(number)
                child.send_signal(number)  # impatience changes nothing
                connection.sendall(png(0))
                assert read_all(connection).startswith(b"HTTP/1.1 200 ")
            _, errors = child.communicate(timeout=30)
        assert child.returncode == code
        assert errors.splitlines()[-1] == "stopped"


@pytest.mark.parametrize(
    ("text", "number"), [("500000", 500_000), ("20MB", 20_000_000), ("3 m", 3_000_000)]
)
def test_a_number_of_bytes_may_have_a_unit(text: str, number: int) -> None:
    assert byte_count(text) == number


def test_the_first_signal_stops_the_server_and_later_ones_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers: list[Any] = []

    class Timer:
        daemon = is_started = False

        def __init__(self, *arguments: Any) -> None:
            self.arguments = arguments
            timers.append(self)

        def start(self) -> None:
            self.is_started = True

    monkeypatch.setattr("vitft.serve.server.threading.Timer", Timer)
    server = Server(uvicorn.Config(lambda: None))

    for number in (signal.SIGTERM, signal.SIGINT):
        server.handle_exit(number, None)

    assert (server.exit_code, server.should_exit) == (143, True)
    (timer,) = timers
    assert timer.arguments == (limits.STOP_SECONDS, os._exit, [143])
    assert (timer.daemon, timer.is_started) == (True, True)


def connection() -> tuple[TimeoutProtocol, MagicMock]:
    """Return a protocol with a connection that only records what is sent."""
    config = uvicorn.Config(lambda: None, log_config=None, lifespan="off")
    config.load()
    protocol = TimeoutProtocol(config, ServerState(), {})
    transport = MagicMock()
    transport.is_closing.return_value = False
    transport.get_extra_info.return_value = None
    protocol.connection_made(transport)
    return protocol, transport


def test_a_full_send_buffer_pauses_the_application_until_it_is_sent_or_the_time_is_over() -> None:
    async def check() -> None:
        protocol, transport = connection()
        protocol.pause_writing()
        timer = protocol.write_timer
        assert timer is not None
        assert protocol.flow.write_paused
        assert timer.when() - protocol.loop.time() == pytest.approx(limits.WRITE_SECONDS, abs=1)
        protocol.resume_writing()
        assert not protocol.flow.write_paused
        assert timer.cancelled()
        assert protocol.write_timer is None
        protocol.connection_lost(None)
        transport.abort.assert_not_called()

    asyncio.run(check())


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_refused_request_gets_one_response_and_its_handler_is_woken(*, has_begun: bool) -> None:
    written, closed = bytearray(), []
    protocol: Any = object.__new__(TimeoutProtocol)
    protocol.transport = SimpleNamespace(
        write=written.extend, write_eof=lambda: closed.append(True), close=lambda: None
    )
    protocol.connections, protocol.loop = set(), SimpleNamespace(call_later=lambda *_: None)
    protocol.conn = h11.Connection(h11.SERVER)
    protocol.conn.receive_data(HEAD + b"Content-Length: 9\r\n\r\n")
    protocol.conn.next_event()
    protocol.cycle = SimpleNamespace(
        response_complete=False, disconnected=False, message_event=asyncio.Event()
    )
    if has_begun:
        protocol.conn.send(h11.Response(status_code=200, headers=[(b"content-length", b"5")]))

    protocol.refuse(400, "no HTTP")

    assert protocol.cycle.disconnected
    assert protocol.cycle.message_event.is_set()
    assert closed == [True]
    assert bool(written) is not has_begun
    assert has_begun or error_of(bytes(written)) == (400, "no HTTP")
