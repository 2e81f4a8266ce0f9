"""Limits on the size, number and duration of requests to the server."""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vitft.system.errors import UsageError

MAX_BATCH = 32  # maximum number of images per model call
_MAX_IMAGES = 32  # maximum number of images per request
MAX_IMAGE_PIXELS = 50_000_000  # maximum per image: 150 MB as RGB in each decoding thread
MAX_SCANS = 100
"""Maximum number of scans in a progressive JPEG. Encoders write about ten. An extra scan needs only
50 bytes, but takes as long to decode as a whole image."""
MAX_BODIES = 8  # memory for the bodies of all requests, in bodies of the largest size
MIN_BYTES_PER_SECOND = 20_000.0  # minimum rate after the first seconds of a body or response
ANSWER_SECONDS = 30.0  # timeout from the end of a request to its response
TIDY_SECONDS = 2.0  # interval at which freed memory is returned while there are requests
GRACE_SECONDS = 4  # time from the stop signal until open requests are cancelled
STOP_SECONDS = 5.0  # time from the stop signal until the process is forced to exit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """Limits of a server; `vitft serve` has options for the first two."""

    max_bytes: int = 20_000_000  # maximum size of a request
    queue: int = 64  # maximum number of images in the queue; further images are rejected
    connections: int = 512  # open connections; file descriptors are usually limited to 1024
    head_seconds: float = 10.0
    """Timeout for the headers of a request, from the connection or the response before it."""
    body_seconds: float = 15.0
    """Timeout for the body of a request, extended by the number of bytes received so far, divided
    by `MIN_BYTES_PER_SECOND`."""
    write_seconds: float = 20.0
    """Timeout for a client to read a response that its connection cannot buffer, extended by the
    number of bytes divided by `MIN_BYTES_PER_SECOND`."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1000:
            raise UsageError(
                f"invalid --max-bytes {self.max_bytes}: too small for an image",
                fix="use an integer of 1000 or more, e.g. --max-bytes 20000000",
            )
        if self.queue < 1:
            raise UsageError(f"invalid --queue {self.queue}", fix="use an integer of 1 or more")

    @property
    def images(self) -> int:
        return min(_MAX_IMAGES, self.queue)


# checks of the Host header of every request and of the Origin header of POST requests -------------

_HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9._-]{1,253}?)\.?)(?::(\d{1,5}))?", re.ASCII)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
ALL_INTERFACES = ("", "0.0.0.0", "::")
_STANDARD_PORTS = {"http": ":80", "https": ":443"}
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
Access = Callable[[str, Mapping[str, str]], tuple[int, str] | None]
"""Rule that returns the status and problem of a refused request, given its method and headers."""


def access_for(host: str, allowed: Sequence[str]) -> Access:
    """Return the rule of a server bound to `host`, with additional `allowed` names.

    Any IP address is allowed unless the server is on loopback. This is safe, because DNS rebinding
    needs a host name.
    """
    for name in allowed:
        if _host_name(name) != name.strip("[]").lower():
            raise UsageError(
                f"invalid --allow-host {name!r}: not a host name",
                fix="use a name without a scheme, port or wildcard, e.g. flowers.example",
            )
    own = () if host in ALL_INTERFACES else (host,)
    names = {*_LOOPBACK, *(name.strip("[]").lower() for name in (*own, *allowed))}
    any_address = not is_loopback(host)

    def refusal(method: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        asked = headers.get("host", "")
        name = _host_name(asked)
        if name is None or not (name in names or (any_address and _is_address(name))):
            fix = f"start the server with --allow-host {name or 'NAME'}"
            return 421, f"host name not allowed: {fix}"
        if method not in _SAFE_METHODS and not _is_own_page(asked, headers):
            fix = "serve page and model under one host name, e.g. with a proxy that keeps Host"
            return 403, f"cross-origin requests are not allowed: {fix}"
        return None

    return refusal


def _host_name(host: str) -> str | None:
    """Return the name in a Host header in lower case, or None if the header is malformed."""
    found = _HOST.fullmatch(host.lower())
    return (found[1] or found[2]) if found else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a server at `host` can be reached only from this machine."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_own_page(host: str, headers: Mapping[str, str]) -> bool:
    """Return whether a POST comes from our own page or from a program that is not a browser."""
    # Browsers send Origin with every POST, and other programs usually do not. Only newer browsers
    # send Sec-Fetch-Site.
    if headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    scheme, _, place = origin.lower().partition("://")
    port = _STANDARD_PORTS.get(scheme)  # None for example for "null", from a sandboxed frame
    return port is not None and place.removesuffix(port) == host.lower().removesuffix(port)
