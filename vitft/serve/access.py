"""Checks of the Host header of every request and of the Origin header of POST requests.

If the user's browser shows a page of another site, the page can send requests even to a server on
loopback. With DNS rebinding, the site resolves its own name to our address so that its page can
read our responses. In this case, the Host header contains the name of the site. With CSRF, the page
sends a cross-origin form or `fetch`. In this case, the Origin header contains the origin of the
page, and Sec-Fetch-Site marks the request as cross-site. Our responses have no CORS headers, so
pages from other origins cannot read them.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from vitft.system.errors import UsageError

_HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9._-]{1,253}?)\.?)(?::(\d{1,5}))?", re.ASCII)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
ALL_INTERFACES = ("", "0.0.0.0", "::")
_STANDARD_PORTS = {"http": 80, "https": 443}


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

    Args:
        host: The Host header.
        origin: The Origin header, if any. Browsers send it with every POST; other programs usually
            do not.
        site: The Sec-Fetch-Site header, if any. Only newer browsers send it.
    """
    if site not in (None, "same-origin", "none"):
        return False
    if origin is None:
        return True
    scheme = origin.lower().partition("://")[0]
    port = _STANDARD_PORTS.get(scheme)
    if port is None:  # for example "null", from a sandboxed frame
        return False
    try:
        sent_from, own = urlsplit(origin.lower()), urlsplit(f"{scheme}://{host.lower()}")
        return (sent_from.hostname, sent_from.port or port) == (own.hostname, own.port or port)
    except ValueError:  # an invalid port
        return False
