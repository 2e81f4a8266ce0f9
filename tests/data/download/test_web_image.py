"""Fetching of single images over loopback, within limits."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.serving import QuietHandler, loopback
from vitft.data import ImageSource, WebLimits, fetch_image, is_public, redirected, with_fetched
from vitft.system import ImageError, redacted

BODY = bytes(range(256)) * 40
LOCAL = WebLimits(allow_private=True)
"""Limits that allow the server of the tests."""


ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "good": (200, {"Content-Length": str(len(BODY))}, BODY),
    "announced": (200, {"Content-Length": str(10**10)}, b""),
    "short": (200, {"Content-Length": "100"}, b"only this"),
    "dripping": (200, {"Content-Length": "1000"}, b""),
    "drizzling": (200, {}, b""),
    "endless": (200, {}, b""),
    "loop": (302, {"Location": "/loop"}, b""),
    "moved": (308, {"Location": "/good"}, b""),
    "metadata": (302, {"Location": "http://169.254.169.254/latest/meta-data"}, b""),
    "ftp": (302, {"Location": "ftp://127.0.0.1/x"}, b""),
    "file": (302, {"Location": "file:///etc/passwd"}, b""),
}
"""Code, headers and body by the first part of the path."""


class Answers(QuietHandler):
    def do_GET(self) -> None:
        _, kind, *rest = self.path.split("/")
        code, headers, body = ANSWERS.get(kind, (404, {}, b""))
        if kind == "hop":
            left = int(rest[0]) - 1
            code, headers = 302, {"Location": f"/hop/{left}" if left else "/good"}
        elif kind == "elsewhere":
            port = self.headers["Host"].rpartition(":")[2]
            code, headers = 302, {"Location": f"http://localhost:{port}/login"}
        elif kind in ("login", "named"):
            authorization = self.headers.get("Authorization", "")
            code, body = 200, (authorization if kind == "login" else self.path).encode()
        elif kind == "silent":
            self.stopping.wait(20)
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        while kind in ("dripping", "drizzling", "endless"):
            if self.stopping.wait(0.05 * (kind != "endless")):
                break
            self.wfile.write(b"x" * (65536 if kind == "endless" else 1))


@pytest.fixture
def site() -> Iterator[str]:
    with loopback(Answers) as url:
        yield url


def reason(url: str, **limits: float) -> str:
    with pytest.raises(ImageError) as caught:
        fetch_image(url, WebLimits(allow_private=True, **limits))  # type: ignore[arg-type]
    return caught.value.reason


def test_an_address_brings_its_bytes(site: str) -> None:
    assert fetch_image(f"{site}/good/x.jpg", LOCAL) == BODY
    assert fetch_image(f"{site}/moved", LOCAL) == BODY  # one redirect
    assert fetch_image(f"{site}/hop/5", LOCAL) == BODY


LATE = "no complete response within 0.5 s"
ELSEWHERE = "redirected to an address that is neither http nor https"


@pytest.mark.parametrize(
    ("path", "limits", "said"),
    [
        pytest.param("nothing", {}, "the server responded with 404 Not Found", id="404"),
        pytest.param("announced", {}, "larger than 64 MB", id="says it is large"),
        pytest.param("endless", {"max_bytes": 2**20}, "larger than 1 MB", id="is large"),
        pytest.param("short", {}, "incomplete (9 of 100 bytes)", id="ends too early"),
        pytest.param("dripping", {"seconds": 0.5}, LATE, id="a byte a time"),
        pytest.param("drizzling", {"seconds": 0.5}, LATE, id="of any length"),
        pytest.param("silent", {"seconds": 0.5}, LATE, id="no answer"),
        pytest.param("ftp", {}, ELSEWHERE, id="to ftp"),
        pytest.param("file", {}, ELSEWHERE, id="redirects to a file"),
        pytest.param("loop", {}, "too many redirects", id="redirects in a circle"),
        pytest.param("hop/6", {}, "too many redirects", id="six redirects"),
    ],
)
def test_limits_are_enforced_with_a_reason(
    site: str, path: str, limits: dict[str, float], said: str
) -> None:
    assert reason(f"{site}/{path}", **limits) == said


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("https://host/a", "http://host/b", "redirected from https to http"),
        ("https://host/a", "HTTPS://host/b", ""),
        ("http://host/a", "https://host/b", ""),
        ("http://host/a", "http://host/b", ""),
        ("https://host/a", "ftp://host/b", "neither http nor https"),
    ],
)
def test_a_redirect_does_not_give_up_encryption(before: str, after: str, problem: str) -> None:
    if problem:
        with pytest.raises(ValueError, match=problem):
            redirected(before, after)
    else:
        assert redirected(before, after).lower() == after.lower()


def test_sources_on_the_web_keep_their_place_and_get_their_reason(site: str) -> None:
    wanted = [
        ImageSource("a.jpg", "a.jpg"),
        ImageSource(redacted(f"{site}/good"), url=f"{site}/good"),
        ImageSource(redacted(f"{site}/nothing"), url=f"{site}/nothing"),
        ImageSource("b.jpg", "b.jpg"),
        *(ImageSource(redacted(f"{site}/named/{i}"), url=f"{site}/named/{i}") for i in range(40)),
    ]

    found = list(with_fetched(iter(wanted), limits=LOCAL))

    assert [s.name for s in found] == [s.name for s in wanted]
    assert found[1].data == BODY
    assert found[2].error == "the server responded with 404 Not Found"
    assert found[3] == ImageSource("b.jpg", "b.jpg")
    assert [s.data for s in found[4:]] == [b"/named/%d" % i for i in range(40)]


def test_a_login_is_sent_to_its_host_and_not_after_a_redirect(site: str) -> None:
    with_login = site.replace("http://", "http://me:p%40ss@")

    assert fetch_image(f"{with_login}/login", LOCAL) == b"Basic bWU6cEBzcw=="  # me:p@ss
    assert fetch_image(f"{with_login}/elsewhere", LOCAL) == b""


def test_passwords_are_in_neither_names_nor_reasons(site: str) -> None:
    url = site.replace("http://", "http://me:secret@") + "/nothing?token=secret"

    (source,) = with_fetched([ImageSource(redacted(url), url=url)], limits=LOCAL)
    with pytest.raises(ImageError) as caught:
        fetch_image(url, LOCAL)

    assert source.name == site.replace("http://", "http://***@") + "/nothing?token=***"
    assert source.error == "the server responded with 404 Not Found"
    assert "secret" not in f"{caught.value} {caught.value.path}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        pytest.param("SITE/good", "rejected: 127.0.0.1 is a private address", id="loopback"),
        pytest.param("LOCALHOST/good", "a private address", id="a name that leads to loopback"),
        pytest.param("http://169.254.169.254/x", "169.254.169.254 is a private", id="link-local"),
        pytest.param("http://[::1]:9/x", "::1 is a private address", id="loopback, IPv6"),
        pytest.param("http://[::ffff:10.0.0.1]/x", "is a private address", id="mapped to IPv6"),
        pytest.param("http://0x7f.1/x", "resolves to 127.0.0.1, a private", id="an odd spelling"),
    ],
)
def test_private_addresses_are_refused(site: str, url: str, said: str) -> None:
    port = site.rpartition(":")[2]
    url = url.replace("SITE", site).replace("LOCALHOST", f"http://localhost:{port}")

    with pytest.raises(ImageError) as caught:
        fetch_image(url, WebLimits(seconds=60))

    assert said in caught.value.reason


def test_a_redirect_to_a_private_address_is_refused(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if the first server were on the internet
    monkeypatch.setattr(
        "vitft.data.web.is_public", lambda found: found == "127.0.0.1" or is_public(found)
    )

    with pytest.raises(ImageError) as caught:
        fetch_image(f"{site}/metadata", WebLimits(seconds=60))

    assert caught.value.reason == "rejected: 169.254.169.254 is a private address"


def test_a_name_that_is_resolved_anew_to_a_private_address_is_refused(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, answers = socket.getaddrinfo, iter(["93.184.216.34", "127.0.0.1"])
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda _, *rest, **named: resolve(next(answers), *rest, **named)
    )

    with pytest.raises(ImageError, match="is a private address"):
        fetch_image(f"{site}/good", WebLimits(seconds=60))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("ff0e::1", False),  # multicast
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),  # carrier-grade NAT
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("fec0::1", False),
        ("64:ff9b::7f00:1", False),  # NAT64 of 127.0.0.1
        ("64:ff9b::5db8:d822", True),  # NAT64 of 93.184.216.34
        ("64:ff9b::a00:1", False),  # NAT64 of 10.0.0.1
        ("2002:5db8:d822::", True),  # 6to4 of 93.184.216.34
        ("2002:7f00:1::", False),  # 6to4 of 127.0.0.1
        ("::", False),
    ],
)
def test_public_addresses_are_told_from_all_others(address: str, public: bool) -> None:
    assert is_public(address) == public


class Proxy(QuietHandler):
    """Answers what it is asked for, with the login that it was given."""

    def do_GET(self) -> None:
        body = f"{self.path} {self.headers['Host']} {self.headers['Proxy-Authorization']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_CONNECT(self) -> None:
        self.send_error(403, f"no tunnel to {self.path}")


def test_a_proxy_is_asked_for_names_that_it_resolves_but_not_for_private_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with loopback(Proxy) as url:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", url.replace("://", "://me:p%40ss@"))

        asked = fetch_image("http://you:secret@pictures.example/a%20b.jpg?x=1#top").decode()
        with pytest.raises(ImageError, match=r"403 no tunnel to pictures\.example:443"):
            fetch_image("https://pictures.example/a.jpg")
        for host in ("localhost", "box.localhost", "10.0.0.7", "[::1]"):
            with pytest.raises(ImageError, match="a private address"):
                fetch_image(f"http://{host}/a.jpg")

    assert asked == (
        "http://pictures.example/a%20b.jpg?x=1 pictures.example Basic bWU6cEBzcw=="  # me:p@ss
    )
