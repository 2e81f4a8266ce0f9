"""Fetching of single images over loopback, within limits."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vitft.data.download.web_image import WebLimits, fetch_image, is_url
from vitft.data.sources import ImageSource, with_fetched
from vitft.system.errors import ImageError

BODY = bytes(range(256)) * 40


class Answers(BaseHTTPRequestHandler):
    """Each path is one way of answering."""

    def do_GET(self) -> None:
        kind = self.path.strip("/").partition("/")[0]
        getattr(self, f"say_{kind}", self.say_missing)()

    def send(self, code: int, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def say_good(self) -> None:
        self.send(200, Content_Length=str(len(BODY)))
        self.wfile.write(BODY)

    def say_named(self) -> None:
        self.send(200)
        self.wfile.write(self.path.encode())

    def say_missing(self) -> None:
        self.send(404)

    def say_announced(self) -> None:
        self.send(200, Content_Length=str(10**10))

    def say_endless(self) -> None:
        self.send(200)
        while not self.server.stopping.is_set():  # type: ignore[attr-defined]
            self.wfile.write(b"x" * 65536)

    def say_short(self) -> None:
        self.send(200, Content_Length="100")
        self.wfile.write(b"only this")

    def say_dripping(self) -> None:
        self.send(200, Content_Length="1000")
        while not self.server.stopping.wait(0.05):  # type: ignore[attr-defined]
            self.wfile.write(b"x")

    def say_silent(self) -> None:
        self.server.stopping.wait(20)  # type: ignore[attr-defined]

    def say_loop(self) -> None:
        self.send(302, Location="/loop")

    def say_moved(self) -> None:
        self.send(301, Location="/good")

    def say_ftp(self) -> None:
        self.send(302, Location="ftp://127.0.0.1/x")

    def say_file(self) -> None:
        self.send(302, Location="file:///etc/passwd")

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone, as it should
            super().handle()


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    server.stopping = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.stopping.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


def reason(url: str, **limits: float) -> str:
    with pytest.raises(ImageError) as caught:
        fetch_image(url, WebLimits(**limits))  # type: ignore[arg-type]
    return caught.value.reason


def test_an_address_brings_its_bytes(site: str) -> None:
    assert fetch_image(f"{site}/good/x.jpg") == BODY
    assert fetch_image(f"{site}/moved") == BODY  # one redirect


def test_blanks_and_accents_of_an_address_are_escaped(site: str) -> None:
    assert fetch_image(f"{site}/named/ä b.jpg?x=1") == b"/named/%C3%A4%20b.jpg?x=1"


@pytest.mark.parametrize(
    ("path", "limits", "said"),
    [
        pytest.param("nothing", {}, "the server responded with 404 Not Found", id="404"),
        pytest.param("announced", {}, "larger than 64 MB", id="says it is large"),
        pytest.param("endless", {"max_bytes": 2**20}, "larger than 1 MB", id="is large"),
        pytest.param("short", {}, "incomplete (9 of 100 bytes)", id="ends too early"),
        pytest.param(
            "dripping", {"seconds": 0.5}, "no complete response within 0.5 s", id="a byte a time"
        ),
        pytest.param(
            "silent", {"seconds": 0.5}, "no complete response within 0.5 s", id="no answer"
        ),
        pytest.param(
            "ftp", {}, "redirected to an address that is neither http nor https", id="to ftp"
        ),
        pytest.param("loop", {}, "too many redirects", id="redirects in a circle"),
        pytest.param(
            "file",
            {},
            "the server responded with 302 Found - Redirection to url 'file:///etc/passwd' is not "
            "allowed",
            id="redirects to a file",
        ),
    ],
)
def test_limits_are_enforced_with_a_reason(
    site: str, path: str, limits: dict[str, float], said: str
) -> None:
    assert reason(f"{site}/{path}", **limits) == said


def test_a_refused_connection_has_a_reason() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        port = server.server_port  # free again after this line

    assert reason(f"http://127.0.0.1:{port}/x.jpg") == "connection refused"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/x.jpg", "http:x", "c:/x"])
def test_other_schemes_are_not_web_addresses(url: str) -> None:
    assert not is_url(url)


def test_sources_on_the_web_keep_their_place_and_get_their_reason(site: str) -> None:
    wanted = [
        ImageSource("a.jpg", "a.jpg"),
        ImageSource(f"{site}/good"),
        ImageSource(f"{site}/nothing"),
        ImageSource("b.jpg", "b.jpg"),
        *(ImageSource(f"{site}/named/{i}") for i in range(40)),
    ]

    found = list(with_fetched(iter(wanted)))

    assert [s.name for s in found] == [s.name for s in wanted]
    assert found[1].data == BODY
    assert found[2].error == "the server responded with 404 Not Found"
    assert found[3] == ImageSource("b.jpg", "b.jpg")
    assert [s.data for s in found[4:]] == [b"/named/%d" % i for i in range(40)]
