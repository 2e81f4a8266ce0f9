"""From where a request may come: the Host it names, and for POST the page that sent it.

A foreign page in the user's own browser reaches a server on loopback, too. Two things give it
away: to read answers it must bind its own name to our address, and then says that name as Host
(DNS rebinding); or it sends a form or a `fetch` across origins, and then the browser says so in
Sec-Fetch-Site and Origin (CSRF). No answer carries CORS headers, so no other page can read it.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from vitft.system.errors import UsageError

HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9._-]{1,253}?)\.?)(?::(\d{1,5}))?", re.ASCII)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("", "0.0.0.0", "::")
STANDARD_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Access:
    """Who is answered."""

    hosts: frozenset[str]
    """Names and addresses, lower case, without ports."""
    any_address: bool = False
    """Whether every IP address counts: a rebound name is never one."""

    def knows(self, host: str) -> bool:
        """Whether a Host header is for this server."""
        name = name_of(host)
        return name is not None and (name in self.hosts or (self.any_address and is_address(name)))


def access_for(host: str, allowed: Sequence[str]) -> Access:
    """The Hosts of a server bound to `host`, with the names that the user allows beside it.

    Raises:
        UsageError: A name is none.
    """
    for name in allowed:
        if name_of(name) != name.strip("[]").lower():
            raise UsageError(
                f"--allow-host {name!r} is no host name",
                fix="name it without scheme, port or wildcard, e.g. --allow-host flowers.example",
            )
    own = () if host in EVERYWHERE else (host.strip("[]").lower(),)
    return Access(
        frozenset((*LOOPBACK, *own, *(name.strip("[]").lower() for name in allowed))),
        any_address=not is_loopback(host),
    )


def name_of(host: str) -> str | None:
    """The name in a Host header, lower case, without port; None if it is malformed."""
    found = HOST.fullmatch(host.lower())
    return (found[1] or found[2]) if found else None


def is_address(name: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server there."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_own_page(host: str, *, origin: str | None, site: str | None) -> bool:
    """Whether a POST comes from our own page or from no browser at all.

    Args:
        host: The Host header.
        origin: The Origin header; browsers send it with every POST, other programs do not.
        site: The Sec-Fetch-Site header, of newer browsers alone.
    """
    if site not in (None, "same-origin", "none"):
        return False
    if origin is None:
        return True
    scheme = origin.lower().partition("://")[0]
    port = STANDARD_PORTS.get(scheme)
    if port is None:  # "null", say, from a sandboxed frame
        return False
    try:
        sent_from, own = urlsplit(origin.lower()), urlsplit(f"{scheme}://{host.lower()}")
        return (sent_from.hostname, sent_from.port or port) == (own.hostname, own.port or port)
    except ValueError:  # a port that is none
        return False
