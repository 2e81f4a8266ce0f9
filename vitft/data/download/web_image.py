"""Guarded requests to web servers, with limits on size, time and redirects.

Only http and https are allowed; redirects from https to http are rejected, as are private addresses
by default. A user name and password are sent only to the host, not to redirect targets.
"""

import base64
import contextlib
import http.client
import ipaddress
import socket
import string
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from vitft.system.errors import ImageError
from vitft.system.text import describe_os_error, redacted

# protection against downloads from this machine or its local network ------------------------------

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Network of IPv6 addresses that contain an IPv4 address in their last 32 bits (RFC 6052)."""


class PrivateAddressError(ValueError):
    """Error for an address on this machine or its local network; the text fits in a cell."""

    def __init__(self, host: str, address: str) -> None:
        whose = f"{host} is" if host == address else f"{host} resolves to {address},"
        super().__init__(f"rejected: {whose} a private address")


def check_public(host: str, port: int) -> None:
    """Resolve a host name, and raise a PrivateAddressError if any of its addresses is private."""
    for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        _check_address(host, str(place[0]))


def _check_address(host: str, address: str) -> None:
    """Raise PrivateAddressError if the numeric address of a host is private."""
    if not is_public(address):
        raise PrivateAddressError(host, address)


def is_public(address: str) -> bool:
    """Return whether a numeric address belongs to the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])  # without the zone, e.g. %eth0
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
        embedded = inner or ip.ipv4_mapped or ip.sixtofour
        if embedded is not None:
            return is_public(str(embedded))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast


# download of a single image, with limits on size, time and redirects ------------------------------

_SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Limits on a request."""

    max_bytes: int = 64 * 2**20
    seconds: float = 30.0  # from the first connection to the last byte, including redirects
    redirects: int = 5
    allow_private: bool = False
    """Whether to allow addresses on this machine and its local network, even after redirects."""


class Deadline:
    """Deadline after which a request's connections are shut down, even while data is arriving."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.sockets: list[socket.socket] = []
        self.timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        self.renew()
        return self

    def renew(self) -> None:
        """Move the deadline to `seconds` from now."""
        self.__exit__()
        self.deadline = time.monotonic() + self.seconds
        self.timer = threading.Timer(self.seconds, self.cut)
        self.timer.daemon = True
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        if self.timer:
            self.timer.cancel()

    def cut(self) -> None:
        """Shut down all open sockets, which unblocks any pending reads."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def left(self) -> float:
        """Seconds until the deadline, at least 0.01."""
        return max(0.01, self.deadline - time.monotonic())

    @property
    def is_up(self) -> bool:
        return time.monotonic() >= self.deadline


def is_url(name: str) -> bool:
    """Return whether a name is a web address (http or https)."""
    return name.lower().startswith(_SCHEMES)


def fetch_image(url: str, limits: WebLimits | None = None) -> bytes:
    """Return the bytes at a web address (ImageError if it is refused, incomplete or too slow)."""
    limits = limits or WebLimits()
    with Deadline(limits.seconds) as clock:
        try:
            with open_url(url, limits, clock) as answer:
                if answer.status >= 300:
                    raise ImageError(url, status_line(answer))
                announced = answer.headers.get("Content-Length", "")
                too_large = f"larger than {limits.max_bytes / 2**20:g} MB"
                if announced.isdigit() and int(announced) > limits.max_bytes:
                    raise ImageError(url, too_large)
                data = bytearray()
                while not clock.is_up and (piece := answer.read1(2**16)):
                    data += piece
                    if len(data) > limits.max_bytes:
                        raise ImageError(url, too_large)
                if announced.isdigit() and len(data) != int(announced):
                    raise ImageError(url, f"incomplete ({len(data)} of {announced} bytes)")
                return bytes(data)
        except ImageError as error:
            reason = error.reason
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = connection_failure(error)
        if clock.is_up:
            reason = f"no complete response within {limits.seconds:g} s"
    raise ImageError(url, reason)


@contextlib.contextmanager
def open_url(
    url: str, limits: WebLimits, clock: Deadline, headers: Mapping[str, str] | None = None
) -> Iterator[http.client.HTTPResponse]:
    """Yield the response to a GET request, after redirects, without reading its body."""
    url = quote(url.strip(), safe="%/:=&?~#+!$,;'@()*[]")  # escape spaces
    given = {"User-Agent": "vitft", "Connection": "close", **(headers or {})}
    login = _basic_login(urlsplit(url), "Authorization")  # not sent after a redirect
    for _ in range(limits.redirects + 1):
        connection, target, own = _connection_to(urlsplit(url), limits, clock)
        with contextlib.closing(connection):
            connection.request("GET", target, headers={**given, **login, **own})
            with contextlib.closing(connection.getresponse()) as answer:
                place = answer.headers.get("Location")
                if answer.status not in (301, 302, 303, 307, 308) or not place:
                    yield answer
                    return
        url, login = redirected(url, place), {}
    raise ValueError("too many redirects")


def redirected(url: str, place: str) -> str:
    """Return the address to which a response redirects; a ValueError if that is refused."""
    target = urljoin(url, quote(place, safe=string.punctuation, encoding="iso-8859-1"))
    if not is_url(target):
        raise ValueError("redirected to an address that is neither http nor https")
    if url.lower().startswith("https://") and not target.lower().startswith("https://"):
        raise ValueError("redirected from https to http")
    return target


def status_line(answer: http.client.HTTPResponse) -> str:
    """Return a short description of a response with an error status."""
    text = f"the server responded with {answer.status} {answer.reason}"
    return redacted(text).splitlines()[0][:160]


def connection_failure(error: Exception) -> str:
    """Return a short description of a connection failure, without Python class names."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    text = describe_os_error(error) if isinstance(error, OSError) and str(error) else str(error)
    return redacted(" ".join(text.split()))[:120] or "the connection was closed"


def _connection_to(
    parts: SplitResult, limits: WebLimits, clock: Deadline
) -> tuple["_DeadlineConnection", str, dict[str, str]]:
    """Return a connection for an address, what to ask it for, and headers for a proxy."""
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    if not host:
        raise ValueError("the address has no host")
    port = parts.port or (443 if is_tls else 80)
    kind = _DeadlineTLSConnection if is_tls else _DeadlineConnection
    netloc = parts.netloc.rpartition("@")[2]
    parts = parts._replace(netloc=netloc, path=parts.path or "/", fragment="")
    target = parts._replace(scheme="", netloc="").geturl()
    proxy = "" if proxy_bypass(netloc) else getproxies().get(parts.scheme, "")
    if not proxy:
        return kind(host, port, clock=clock, check=not limits.allow_private), target, {}
    # A proxy, which the user has chosen, resolves host names itself: only names can be checked
    if not limits.allow_private:
        is_private = host.rstrip(".") == "localhost" or host.endswith(".localhost")
        with contextlib.suppress(ValueError):  # a name, which the proxy resolves
            is_private = is_private or not is_public(host)
        if is_private:
            raise PrivateAddressError(host, host)
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    login = _basic_login(through, "Proxy-Authorization")
    connection = kind(through.hostname or "", through.port or 80, clock=clock, check=False)
    if not is_tls:
        return connection, parts.geturl(), login
    connection.set_tunnel(host, port, login)
    return connection, target, {}


def _basic_login(parts: SplitResult, header: str) -> dict[str, str]:
    """Return the header for the user name and password in an address, if any."""
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {header: f"Basic {base64.b64encode(login.encode()).decode()}"}


class _DeadlineConnection(http.client.HTTPConnection):
    """Connection with a deadline, by default only to public addresses."""

    def __init__(self, host: str, port: int, *, clock: Deadline, check: bool) -> None:
        super().__init__(host, port)
        self.clock, self.check = clock, check

    def connect(self) -> None:
        self.timeout = self.clock.left
        if self.check:
            check_public(self.host, self.port)
        super().connect()
        self.clock.sockets.append(self.sock)
        if self.check:  # check again: the name may have resolved to another address
            _check_address(self.host, self.sock.getpeername()[0])


class _DeadlineTLSConnection(_DeadlineConnection, http.client.HTTPSConnection):
    """TLS connection with a deadline. The server's certificate is verified."""
