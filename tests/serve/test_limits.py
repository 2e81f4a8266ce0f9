"""Limits of `vitft serve`: size, time, invalid HTTP and forms; page, options and shutdown."""

import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.conftest import save_model
from tests.report.test_report import Page
from tests.serve.test_serve import CONFIG, make_predictor, png
from tests.support.reference_run import FOREIGN, make_reference_run
from tests.support.serving import (
    TIMEOUT_S,
    Client,
    answered,
    command_serving,
    form,
    read_all,
    serving,
    shown_by,
)
from vitft.models import VisionTransformer
from vitft.serve import ServeLimits, limits

FORM = 'multipart/form-data; boundary="cut here"'
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture
def client() -> Iterator[Client]:
    """A server with short timeouts."""
    limits = ServeLimits(max_bytes=100_000, head_seconds=0.3, body_seconds=0.3)
    with serving(make_predictor(), limits) as served:
        yield served
        assert served.post("/predict", png(0)).status == 200  # it has survived


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


def test_what_is_no_request_ends_the_connection(client: Client) -> None:
    beyond = client.send_raw(HEAD + b"Content-Length: 5\r\n\r\nhello" + b"\0\r\n" * 100)

    assert beyond.startswith(b"HTTP/1.1 422 ")  # the body is not read beyond its length
    assert b"HTTP/1.1 400 " in beyond
    assert client.send_raw(b"GET / HTTP/1.1\r\nX: ") == b""  # after a while
    assert client.send_raw(b"") == b""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3 + b"\r\n\r\n", id="TLS"),
        pytest.param(b"\r\n\r\n\r\nhello\r\n\r\n", id="chat"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n b: c\0\r\n\r\n", id="NUL"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 4000 + b"\r\n", id="headers"),
        pytest.param(HEAD + b"Content-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two lengths"),
        pytest.param(HEAD + b"Transfer-Encoding: gzip\r\n\r\n", id="coding"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", id="no chunk"),
    ],
)
def test_invalid_http_is_answered_with_an_error(client: Client, data: bytes) -> None:
    answer = client.send_raw(data)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Invalid HTTP request received." in answer


def test_requests_beyond_the_limit_of_connections_are_refused() -> None:
    with serving(make_predictor(), ServeLimits(connections=1)) as client:
        assert client.ask("GET", "/healthz").status == 503


def test_connections_beyond_the_limit_are_closed() -> None:
    with serving(make_predictor(), ServeLimits(connections=3)) as client, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(client.raw(b"GET /healthz"))
        beyond = [stack.enter_context(client.raw(b"")) for _ in range(3)]

        assert [one.recv(1) for one in beyond] == [b"", b"", b""]


def with_full_buffers(client: Client, stack: ExitStack) -> socket.socket:
    """A connection on which the server cannot send all of its 1000 responses."""
    connection = stack.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", client.port))
    connection.sendall(1000 * b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    count = re.compile(rb'openapi.json",status="200"} (\d+)\n')
    while count.findall(client.ask("GET", "/metrics").body) != count.findall(
        client.ask("GET", "/metrics").body
    ):
        pass
    return connection


def test_a_client_that_does_not_read_its_responses_is_disconnected_and_another_one_is_not() -> None:
    limits = ServeLimits(connections=5, head_seconds=60, write_seconds=2)
    with serving(make_predictor(), limits) as client, ExitStack() as stack:
        late = with_full_buffers(client, stack)
        lines, responses = late.makefile("rb"), 0
        while responses < 1000:
            line = lines.readline()
            assert line
            responses += b"HTTP/1.1 200" in line
        lazy = with_full_buffers(client, stack)
        for _ in range(2):
            stack.enter_context(client.raw(b""))
        end = time.monotonic() + TIMEOUT_S
        while client.ask("GET", "/healthz").status == 503:
            assert time.monotonic() < end
        assert 0 < read_all(lazy).count(b"HTTP/1.1 200") < 1000
        late.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in lines.read()


def test_uploads_share_a_memory_budget_and_release_it() -> None:
    start = HEAD + b"Content-Length: 20000\r\n\r\n" + bytes(19_999)
    with serving(make_predictor(), ServeLimits(max_bytes=20_000)) as client:
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(client.raw(start))
            while (answer := client.post("/predict", png(0))).status == 200:
                pass  # the bytes are under way
            assert answer.json == {"error": "too many uploads at once: try again"}
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        while client.post("/predict", png(0)).status != 200:
            pass  # the ends of the connections are under way


def test_the_guide_states_the_limits() -> None:
    guide = Path(__file__).parents[2] / "docs" / "serve.md"
    table = dict(re.findall(r"^\| ([\w ]*\w)[^|]*\| ([^|]*) \|", guide.read_text(), re.MULTILINE))

    default, rate = ServeLimits(), limits.MIN_BYTES_PER_SECOND / 1000

    assert table["one request"].startswith(f"{default.max_bytes / 1e6:g} MB, {default.images} im")
    assert table["bodies of all requests together"].startswith(f"{limits.MAX_BODIES} requests")
    assert (
        table
        | {
            "queued images": f"{default.queue}",
            "one image": (
                f"{limits.MAX_IMAGE_PIXELS / 1e6:g} million pixels, {limits.MAX_SCANS} JPEG scans"
            ),
            "headers of a request": f"{default.head_seconds:g} s",
            "body of a request": f"{default.body_seconds:g} s, plus 1 s per {rate:g} kB",
            "response": f"{limits.ANSWER_SECONDS:g} s",
            "reading of a response by the client": (
                f"{default.write_seconds:g} s, plus 1 s per {rate:g} kB"
            ),
            "connections": f"{default.connections}",
        }
        == table
    )
    text = " ".join(guide.read_text().split())
    assert f"in one batch (up to {limits.MAX_BATCH})" in text
    assert f"open requests {limits.GRACE_SECONDS} seconds" in text
    assert f"ends within {limits.STOP_SECONDS:g} seconds" in text


def test_a_form_cut_anywhere_is_an_error(client: Client) -> None:
    body = form(("a.png", b"\r\n--cut" * 5), ("b.png", b"x"))

    for length in range(len(body) - len("\r\n")):
        if not body[:length].endswith(b"--cut here--"):
            assert client.ask("POST", "/predict", body[:length], content_type=FORM).status == 400


def test_the_page_loads_nothing_from_other_sites_and_runs_only_its_own_script(
    client: Client,
) -> None:
    page = client.ask("GET", "/")
    html, policy = page.body.decode(), page.headers["content-security-policy"]

    attributes = [(tag, *pair) for tag, found in Page(html).elements for pair in found.items()]

    loading = {(t, n): v or "" for t, n, v in attributes if n in ("src", "href", "action")}
    assert loading[("link", "href")].startswith("data:image/svg+xml,")
    assert {value for (tag, _), value in loading.items() if tag == "a"} <= {
        "labels", "openapi.json", "healthz"
    }  # fmt: skip
    assert {tag for tag, _ in loading} == {"link", "a"}
    assert not [name for _, name, _ in attributes if name.startswith("on") or name == "style"]
    assert "innerHTML" not in html
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none';")
    assert len(re.findall(r"sha256-[\w+/]{43}=", policy)) == 2


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a random model."""
    torch.manual_seed(0)
    path = tmp_path / "run"
    save_model(path / "model.safetensors", VisionTransformer(CONFIG), "abc")
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


def ignore_sigint() -> None:
    """Ignore SIGINT, as shells do for background jobs of scripts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.long
def test_an_open_request_is_finished_after_a_signal(run: Path) -> None:
    head = HEAD + f"Expect: 100-continue\r\nContent-Length: {len(png(0))}\r\n\r\n".encode()

    for number, code, ignored in ((signal.SIGTERM, 143, None), (signal.SIGINT, 130, ignore_sigint)):
        with command_serving("serve", "--run", str(run), preexec_fn=ignored) as (client, child, _):
            assert (
                client.ask("POST", "/predict", b"--cut here\r\n:", content_type=FORM).status == 400
            )
            with client.raw(head) as connection:
                assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # it reads the body now
                child.send_signal(number)
                child.send_signal(number)  # impatience changes nothing
                connection.sendall(png(0))
                assert read_all(connection).startswith(b"HTTP/1.1 200 ")
            _, errors = child.communicate(timeout=30)
        assert child.returncode == code
        assert errors.splitlines()[-1] == "stopped"
        assert "header" not in errors  # what python_multipart says of the form


PAGE = Path(__file__).with_name("page.mjs")


@pytest.fixture
def flagging(tmp_path: Path, tiny_vit: VisionTransformer) -> Iterator[Client]:
    """The command `vitft serve --threshold 0.99` for a run that flags foreign images."""
    run = make_reference_run(tmp_path, tiny_vit)
    options = ["--run", str(run), "--threshold", "0.99", "--device", "cpu"]
    with command_serving("serve", *options, stderr=None) as (client, *_):
        yield client


def test_the_page_shows_the_notes_on_each_image(flagging: Client, tmp_path: Path) -> None:
    files = [tmp_path / "0.png", tmp_path / "foreign.png"]

    page = shown_by(PAGE, f"http://127.0.0.1:{flagging.port}/", *files)

    assert page["notes"] == [["not sure"], [f"not sure; {FOREIGN}; blank: one uniform colour"]]
    assert page["known"] == "Run run distinguishes 3 classes."
