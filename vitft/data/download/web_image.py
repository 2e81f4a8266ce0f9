"""Fetches one image by its address, within limits of size, time and redirects.

Only http and https are spoken, whatever a redirect says, and https is never left for http. What
the bytes are is not decided here (`data.images`).
"""

import contextlib
import functools
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from vitft.system.errors import ImageError

SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """What one address may cost."""

    max_bytes: int = 64 * 2**20
    seconds: float = 30.0
    """From the first connection to the last byte, redirects included."""
    redirects: int = 5


class Clock:
    """Shuts the connections of one fetch when its time is up: a byte a second is not waited for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.sockets: list[socket.socket] = []
        self.set()

    def __enter__(self) -> Self:
        self.timer.start()
        return self

    def set(self) -> None:
        """Make ready for the whole time from now on."""
        self.deadline = time.monotonic() + self.seconds
        self.timer = threading.Timer(self.seconds, self.cut)
        self.timer.daemon = True

    def renew(self) -> None:
        """Begin to count again: enough came."""
        self.timer.cancel()
        self.set()
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()

    def cut(self) -> None:
        """End what is still open; whoever reads there wakes up."""
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def left(self) -> float:
        """Seconds, a little over 0 when there are none."""
        return max(0.01, self.deadline - time.monotonic())

    @property
    def is_up(self) -> bool:
        return time.monotonic() >= self.deadline


def is_url(name: str) -> bool:
    """Whether a name is the address of something on the web."""
    return name[:8].lower().startswith(SCHEMES)


def fetch_image(url: str, limits: WebLimits | None = None) -> bytes:
    """The bytes behind an address.

    Raises:
        ImageError: With a short reason: the server's answer, no answer in time, too large.
    """
    limits = limits or WebLimits()
    with Clock(limits.seconds) as clock:
        try:
            with contextlib.closing(opened(url, limits, clock)) as answer:
                return content(url, answer, limits, clock)
        except ImageError as error:
            reason = error.reason
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                reason = f"the server answers {error.code} {error.reason}".splitlines()[0][:160]
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = why_not(error)
        if clock.is_up:
            reason = f"no whole answer within {limits.seconds:g} s"
    raise ImageError(url, reason)


def opened(
    url: str, limits: WebLimits, clock: Clock, headers: Mapping[str, str] | None = None
) -> Any:  # noqa: ANN401 - urllib's response
    """The answer, before its body is read."""
    address = quote(url.strip(), safe="%/:=&?~#+!$,;'@()*[]")  # blanks and accents
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        Redirects(limits.redirects),
        Handler(clock),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(address, headers={"User-Agent": "vitft", **(headers or {})})
    return opener.open(request, timeout=clock.left)


def content(url: str, answer: Any, limits: WebLimits, clock: Clock) -> bytes:  # noqa: ANN401
    """The body of an answer, read as far as the limits allow."""
    announced = answer.headers.get("Content-Length", "")
    if announced.isdigit() and int(announced) > limits.max_bytes:
        raise too_large(url, limits)
    data = bytearray()
    while piece := answer.read1(2**16):
        data += piece
        if len(data) > limits.max_bytes:
            raise too_large(url, limits)
        if clock.is_up:
            break
    if announced.isdigit() and len(data) != int(announced):
        raise ImageError(url, f"cut off ({len(data)} of {announced} bytes)")
    return bytes(data)


def too_large(url: str, limits: WebLimits) -> ImageError:
    """The error of an answer that nobody should wait for."""
    return ImageError(url, f"larger than {limits.max_bytes / 2**20:g} MB")


def why_not(error: Exception) -> str:
    """A failure in a few words, without Python's class names."""
    cause = getattr(error, "reason", error)  # urllib wraps what happened
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, socket.gaierror):
        return "no such host"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    text = getattr(cause, "strerror", None) or str(cause) or "the connection ended"
    return " ".join(text.split())[:120]


class Redirects(urllib.request.HTTPRedirectHandler):
    """A few redirects, to http and https only, never from https to http."""

    max_repeats = max_redirections = 1000  # counted here instead

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
            raise ValueError("redirected too often")
        was, becomes = req.full_url[:8].lower(), newurl[:8].lower()
        if not becomes.startswith(SCHEMES):
            raise ValueError("redirected to what is neither http nor https")
        if was.startswith("https://") and not becomes.startswith("https://"):
            raise ValueError("redirected from https to http")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """http and https over connections that know when to give up."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(Timed, clock=self.clock), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(TimedTLS, clock=self.clock), req)


class Timed(http.client.HTTPConnection):
    """A connection that its clock may end."""

    def __init__(self, *args: Any, clock: Clock, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **options)
        self.clock = clock

    def connect(self) -> None:
        self.timeout = self.clock.left
        super().connect()
        self.clock.sockets.append(self.sock)


class TimedTLS(Timed, http.client.HTTPSConnection):
    """The same, encrypted and with the server's certificate checked."""
