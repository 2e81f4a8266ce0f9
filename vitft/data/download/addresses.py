"""Protection against downloads from this machine or its local network.

An address from an untrusted list or from a redirect can point to a host that is not reachable from
the internet, such as a router or a cloud metadata service. Host names are therefore resolved and
checked before every connection, including connections after redirects.
"""

import ipaddress
import socket

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Network of IPv6 addresses that contain an IPv4 address in their last 32 bits (RFC 6052)."""


class PrivateAddressError(ValueError):
    """Error raised for an address on this machine or its local network.

    The message is short enough for the error field of a prediction.
    """

    def __init__(self, host: str, address: str) -> None:
        whose = f"{host} is" if host == address else f"{host} resolves to {address},"
        super().__init__(f"refused: {whose} a private address")


def check_public(host: str, port: int) -> None:
    """Resolve a host name and check that all of its addresses are public.

    Raises:
        PrivateAddressError: An address is private.
        OSError: The name cannot be resolved.
    """
    for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        check_address(host, str(place[0]))


def check_address(host: str, address: str) -> None:
    """Raise PrivateAddressError if the numeric address of a host is private."""
    if not is_public(address):
        raise PrivateAddressError(host, address)


def check_name(host: str) -> None:
    """Raise PrivateAddressError for localhost or a private IP address, without resolving names."""
    if host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost"):
        raise PrivateAddressError(host, host)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return
    check_address(host, host)


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
