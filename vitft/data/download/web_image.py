"""Download of a single image, with limits on size, time and redirects.

Only http and https are allowed; redirects from https to http are refused, as are private addresses
by default. A user name and password are sent only to the host, not to redirect targets.
"""

import base64
import contextlib
import functools
import http.client
import ipaddress
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from vitft.system.errors import ImageError
from vitft.system.text import describe_os_error, redacted

# protection against downloads from this machine or its local network ------------------------------

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Network of IPv6 addresses that contain an IPv4 address in their last 32 bits (RFC 6052)."""


class PrivateAddressError(ValueError):
    """Error raised for an address on this machine or its local network, as short as a cell."""

    def __init__(self, host: str, address: str) -> None:
        whose = f"{host} is" if host == address else f"{host} resolves to {address},"
        super().__init__(f"refused: {whose} a private address")


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
        self.set()

    def __enter__(self) -> Self:
        self.timer.start()
        return self

    def set(self) -> None:
        """Set the deadline to `seconds` from now, and create its timer without starting it."""
        self.deadline = time.monotonic() + self.seconds
        self.timer = threading.Timer(self.seconds, self.cut)
        self.timer.daemon = True

    def renew(self) -> None:
        """Move the deadline to `seconds` from now, and restart its timer."""
        self.timer.cancel()
        self.set()
        self.timer.start()

    def __exit__(self, *_: object) -> None:
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
    """Return the bytes at a web address; an ImageError if it is refused, incomplete or too slow."""
    limits = limits or WebLimits()
    with Deadline(limits.seconds) as clock:
        try:
            with contextlib.closing(open_url(url, limits, clock)) as answer:
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
        except urllib.error.HTTPError as error:
            with error:  # close the connection
                reason = status_line(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = connection_failure(error)
        if clock.is_up:
            reason = f"no complete response within {limits.seconds:g} s"
    raise ImageError(url, reason)


def open_url(
    url: str, limits: WebLimits, clock: Deadline, headers: Mapping[str, str] | None = None
) -> Any:  # noqa: ANN401 - urllib's response
    """Open an address and return the response without reading its body."""
    parts = urlsplit(quote(url.strip(), safe="%/:=&?~#+!$,;'@()*[]"))  # escape spaces
    login, _, host = parts.netloc.rpartition("@")
    address = parts._replace(netloc=host).geturl()
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        LimitedRedirects(limits.redirects),
        _DeadlineHandler(clock, allow_private=limits.allow_private),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(address, headers={"User-Agent": "vitft", **(headers or {})})
    if login:
        user, _, password = (unquote(part) for part in login.partition(":"))
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return opener.open(request, timeout=clock.left)


def status_line(error: urllib.error.HTTPError) -> str:
    """Return a short description of a response with an error status."""
    return redacted(f"the server responded with {error.code} {error.reason}").splitlines()[0][:160]


def connection_failure(error: Exception) -> str:
    """Return a short description of a connection failure, without Python class names."""
    cause = getattr(error, "reason", error)  # urllib wraps the cause
    if isinstance(cause, TimeoutError):
        return "no response in time"
    if isinstance(cause, socket.gaierror):
        return "no such host"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    text = describe_os_error(cause) if isinstance(cause, OSError) and str(cause) else str(cause)
    return redacted(" ".join(text.split()))[:120] or "the connection was closed"


class LimitedRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows a limited number of redirects, never from https to http or elsewhere."""

    max_repeats = max_redirections = 1000  # redirect_request enforces the limit

    def __init__(self, most: int) -> None:
        self.left = most

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,  # noqa: ANN401
        code: int,
        msg: str,
        headers: Any,  # noqa: ANN401
        newurl: str,
    ) -> urllib.request.Request | None:
        self.left -= 1
        if self.left < 0:
            raise ValueError("too many redirects")
        was, becomes = req.full_url.lower(), newurl.lower()
        if not becomes.startswith(_SCHEMES):
            raise ValueError("redirected to an address that is neither http nor https")
        if was.startswith("https://") and not becomes.startswith("https://"):
            raise ValueError("redirected from https to http")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _DeadlineHandler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Handler that opens connections with a deadline, by default only to public addresses."""

    def __init__(self, clock: Deadline, *, allow_private: bool) -> None:
        super().__init__()
        self.clock, self.allow_private = clock, allow_private

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self.connection(_DeadlineConnection, req), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self.connection(_DeadlineTLSConnection, req), req)

    def connection(
        self, kind: "type[_DeadlineConnection]", req: urllib.request.Request
    ) -> "Callable[..., _DeadlineConnection]":
        # A proxy, which the user has chosen, resolves host names itself: only names can be checked
        parts = urlsplit(req.full_url)
        is_proxied = req.host != unquote(parts.netloc)
        if is_proxied and not self.allow_private:
            host = (parts.hostname or "").lower()
            is_private = host.rstrip(".") == "localhost" or host.endswith(".localhost")
            with contextlib.suppress(ValueError):  # a name, which the proxy resolves
                is_private = is_private or not is_public(host)
            if is_private:
                raise PrivateAddressError(host, host)
        check = not (is_proxied or self.allow_private)
        return functools.partial(kind, clock=self.clock, check=check)


class _DeadlineConnection(http.client.HTTPConnection):
    def __init__(self, *args: Any, clock: Deadline, check: bool, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **options)
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
