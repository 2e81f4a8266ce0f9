"""Limits on the size, number and duration of requests to the server."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vitft.system.errors import UsageError

MAX_BATCH = 32  # maximum number of images per model call
_MAX_IMAGES = 32  # maximum number of images per request
MAX_IMAGE_PIXELS = 50_000_000  # maximum per image: 150 MB as RGB in each decoding thread
MAX_SCANS = 100
"""Maximum number of scans in a progressive JPEG. Encoders write about ten. An extra scan needs only
50 bytes, but takes as long to decode as a whole image."""
MAX_CONNECTIONS = 512  # open connections; file descriptors are usually limited to 1024
READ_BYTES = 16_384  # maximum bytes read from a connection before the next one is served
PART_HEADERS = 8192  # maximum bytes per header line in a form part
MAX_HEADER_LINES = 16  # maximum number of header lines in a form part

HEAD_SECONDS = 10.0
"""Timeout for request headers in seconds. It starts when a client connects, and again after each
response."""
BODY_SECONDS = 15.0
"""Timeout for a request body in seconds. It is extended by the number of bytes received so far,
divided by `MIN_BYTES_PER_SECOND`."""
MIN_BYTES_PER_SECOND = 20_000.0  # minimum upload rate
WRITE_SECONDS = 20.0  # timeout while a client does not read its response
ANSWER_SECONDS = 30.0  # timeout from the end of a request to its response
TIDY_SECONDS = 2.0  # interval at which freed memory is returned while there are requests
SWITCH_SECONDS = 0.0005
"""Switch interval of Python threads in seconds. With the default of 0.005, each step of a response
to /healthz could wait 5 ms for every decoding thread."""
LINGER_SECONDS = 2.0  # time for which the rest of a refused request is read and discarded
DRAIN_SECONDS = 1  # time from the stop signal until idle connections are closed
GRACE_SECONDS = 4  # time from the stop signal until open requests are cancelled
STOP_SECONDS = 5.0  # time from the stop signal until the process is forced to exit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """Limits set by options of `vitft serve`."""

    max_bytes: int = 20_000_000
    queue: int = 64
    """Maximum number of images in the queue; further images are rejected."""

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

    @property
    def memory(self) -> int:
        """Maximum total size of all request bodies in memory, in bytes."""
        return 8 * self.max_bytes


# checks of the Host header of every request and of the Origin header of POST requests -------------

_HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9._-]{1,253}?)\.?)(?::(\d{1,5}))?", re.ASCII)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
ALL_INTERFACES = ("", "0.0.0.0", "::")
_STANDARD_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Access:
    """Rules for the Host headers that the server accepts."""

    hosts: frozenset[str]
    """Allowed names and addresses in lower case, without ports."""
    any_address: bool = False
    """Whether any IP address is allowed, which is safe because DNS rebinding needs a host name."""

    def allows(self, host: str) -> bool:
        """Return whether a Host header is allowed."""
        name = host_name(host)
        return name is not None and (name in self.hosts or (self.any_address and _is_address(name)))


def access_for(host: str, allowed: Sequence[str]) -> Access:
    """Return the access rules of a server bound to `host`, with additional `allowed` names.

    Raises:
        UsageError: An allowed name is not a valid host name.
    """
    for name in allowed:
        if host_name(name) != name.strip("[]").lower():
            raise UsageError(
                f"invalid --allow-host {name!r}: not a host name",
                fix="use a name without a scheme, port or wildcard, e.g. flowers.example",
            )
    own = () if host in ALL_INTERFACES else (host.strip("[]").lower(),)
    return Access(
        frozenset((*_LOOPBACK, *own, *(name.strip("[]").lower() for name in allowed))),
        any_address=not is_loopback(host),
    )


def host_name(host: str) -> str | None:
    """Return the lower-case host name without the port, or None if the header is malformed."""
    found = _HOST.fullmatch(host.lower())
    return (found[1] or found[2]) if found else None


def _is_address(name: str) -> bool:
    """Return whether a host name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a server at `host` can be reached only from this machine."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_own_page(host: str, *, origin: str | None, site: str | None) -> bool:
    """Return whether a POST comes from our own page or from a program that is not a browser.

    These are the headers Host, Origin and Sec-Fetch-Site. Browsers send Origin with every POST, and
    other programs usually do not. Only newer browsers send Sec-Fetch-Site.
    """
    if site not in (None, "same-origin", "none"):
        return False
    if origin is None:
        return True
    scheme, _, place = origin.lower().partition("://")
    port = _STANDARD_PORTS.get(scheme)  # None for example for "null", from a sandboxed frame
    return port is not None and place.removesuffix(port) == host.lower().removesuffix(port)
