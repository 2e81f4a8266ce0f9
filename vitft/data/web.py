"""Guarded downloads: single images, and large files that are resumed after an interruption.

Only http and https are allowed, and object stores for large files; redirects from https to http are
rejected, as are private addresses by default. A user name and password are sent only to the host,
not to redirect targets.
"""

import base64
import contextlib
import http.client
import ipaddress
import logging
import re
import socket
import string
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from vitft.system import console
from vitft.system.errors import DataError, ImageError, LockedError, VitftError
from vitft.system.files import check_space, try_lock, write_json, writing
from vitft.system.structure import parse_json
from vitft.system.text import describe_os_error, redacted

log = logging.getLogger(__name__)


# protection against downloads from this machine or its local network ------------------------------

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Network of IPv6 addresses that contain an IPv4 address in their last 32 bits (RFC 6052)."""


class _PrivateAddressError(ValueError):
    """Error for an address on this machine or its local network; the text fits in a cell."""


def _check_address(host: str, address: str) -> None:
    """Raise _PrivateAddressError if the numeric address of a host is private."""
    if not is_public(address):
        whose = f"{host} is" if host == address else f"{host} resolves to {address},"
        raise _PrivateAddressError(f"rejected: {whose} a private address")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Limits on a request."""

    max_bytes: int = 64 * 2**20
    seconds: float = 30.0  # from the first connection to the last byte, including redirects
    allow_private: bool = False
    """Whether to allow addresses on this machine and its local network, even after redirects."""


class _Deadline:
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
        """Seconds until the deadline; 0 or less after it."""
        return self.deadline - time.monotonic()


def is_url(name: str) -> bool:
    """Return whether a name is a web address (http or https)."""
    return name.lower().startswith(("http://", "https://"))


def fetch_image(url: str, limits: WebLimits | None = None) -> bytes:
    """Return the bytes at a web address (ImageError if it is refused, incomplete or too slow)."""
    limits = limits or WebLimits()
    with _Deadline(limits.seconds) as clock:
        try:
            with _open_url(url, clock, allow_private=limits.allow_private) as answer:
                if answer.status >= 300:
                    raise ValueError(_status_line(answer))
                announced = answer.length  # None if the server does not state it
                data = bytearray()
                while clock.left > 0 and max(len(data), announced or 0) <= limits.max_bytes:
                    if not (piece := answer.read1(2**16)):
                        break
                    data += piece
                if max(len(data), announced or 0) > limits.max_bytes:
                    raise ValueError(f"larger than {limits.max_bytes / 2**20:g} MB")
                if clock.left <= 0 or announced not in (None, len(data)):
                    raise ValueError(f"incomplete ({len(data)} of {announced} bytes)")
                return bytes(data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = f"no complete response within {limits.seconds:g} s"
            raise ImageError(url, late if clock.left <= 0 else _failure(error)) from error


@contextlib.contextmanager
def _open_url(
    url: str, clock: _Deadline, headers: Mapping[str, str] | None = None, *, allow_private: bool
) -> Iterator[http.client.HTTPResponse]:
    """Yield the response to a GET request, after redirects, without reading its body."""
    url = quote(url.strip(), safe="%/:=&?~#+!$,;'@()*[]")  # escape spaces
    given = {"User-Agent": "vitft", "Connection": "close", **(headers or {})}
    login = _basic_login(urlsplit(url), "Authorization")  # not sent after a redirect
    for _ in range(6):  # five redirects
        connection, target, own = _connection_to(urlsplit(url), clock, check=not allow_private)
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


def _status_line(answer: http.client.HTTPResponse) -> str:
    text = f"the server responded with {answer.status} {answer.reason}"
    return redacted(text).splitlines()[0][:160]


def _failure(error: Exception) -> str:
    """Return a short description of a connection failure, without Python class names."""
    text = describe_os_error(error) if isinstance(error, OSError) and str(error) else str(error)
    return redacted(" ".join(text.split()))[:120] or "the connection was closed"


def _connection_to(
    parts: SplitResult, clock: _Deadline, *, check: bool
) -> tuple["_DeadlineConnection", str, dict[str, str]]:
    """Return a connection for an address, what to ask it for, and headers for a proxy."""
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (http.client.HTTPS_PORT if is_tls else http.client.HTTP_PORT)
    kind = _DeadlineTLSConnection if is_tls else _DeadlineConnection
    netloc = parts.netloc.rpartition("@")[2]
    parts = parts._replace(netloc=netloc, path=parts.path or "/", fragment="")
    target = parts._replace(scheme="", netloc="").geturl()
    proxy = "" if proxy_bypass(netloc) else getproxies().get(parts.scheme, "")
    if not proxy:
        return kind(host, port, clock=clock, check=check), target, {}
    # A proxy, which the user has chosen, resolves host names itself: only names can be checked
    if check:
        is_private = host.rstrip(".") == "localhost" or host.endswith(".localhost")
        with contextlib.suppress(ValueError):  # a name, which the proxy resolves
            is_private = is_private or not is_public(host)
        if is_private:
            raise _PrivateAddressError(f"rejected: {host} is a private address")
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    login = _basic_login(through, "Proxy-Authorization")
    proxy_port = through.port or http.client.HTTP_PORT
    connection = kind(through.hostname or "", proxy_port, clock=clock, check=False)
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

    def __init__(self, host: str, port: int, *, clock: _Deadline, check: bool) -> None:
        super().__init__(host, port)
        self.clock, self.check = clock, check

    def connect(self) -> None:
        self.timeout = max(0.01, self.clock.left)
        if self.check:
            for *_, place in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
                _check_address(self.host, str(place[0]))
        super().connect()
        self.clock.sockets.append(self.sock)
        if self.check:  # check again: the name may have resolved to another address
            _check_address(self.host, self.sock.getpeername()[0])


class _DeadlineTLSConnection(_DeadlineConnection, http.client.HTTPSConnection):
    """TLS connection with a deadline. The server's certificate is verified."""


# resumable download of one large file from the web or an object store -----------------------------

PIECE = 2**22  # number of bytes read at a time from an object store


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLimits:
    """Limits and retry settings of a download."""

    max_bytes: int = 100 * 10**9
    stall_s: float = 30.0  # to wait for the response, and then for each `pace` bytes
    pace: int = 2**16
    attempts: int = 4  # that fail in a row; one that delivers `pace` bytes restarts the count
    wait_s: float = 1.0  # seconds before the second attempt, doubled before each further one
    allow_private: bool = False
    """Whether to allow addresses on this machine and its local network, even after redirects."""
    option: str = "--out"  # what chooses the folder of the download, for messages
    private_option: str = "--allow-private-addresses"  # what allows private addresses


class _BrokeOffError(Exception):
    """Error raised when an attempt to download fails but another one may succeed."""


class _Version(NamedTuple):
    """Version of the remote file from which a partial download came."""

    url: str  # without secrets
    validator: str  # a strong ETag or the time of the last change; empty if neither is known
    size: int | None  # bytes of the whole file; None if unknown


def fetch_to_part(url: str, part: Path, *, limits: DownloadLimits | None = None) -> None:
    """Download a file into `part`, resuming a partial download if there is one.

    Addresses that are neither http nor https are read through fsspec. The caller must remove the
    part and its version file after use.

    Raises:
        DataError: The file is missing or private, or several attempts have failed.
        ResourceError: The disk is full or too small.
        RunError: The part cannot be written.
    """
    limits = limits or DownloadLimits()
    attempt = _attempt_web if is_url(url) else _attempt_store
    failures = 0
    while True:
        before = _file_size(part)
        try:
            attempt(url, part, limits)
            return
        except _BrokeOffError as broke:
            size = _file_size(part)
            failures = failures + 1 if size - before < limits.pace else 1
            if failures >= limits.attempts:
                kept = f" ({size / 1e6:.1f} MB was kept)" if size else ""
                fix = "check the address and the network, and run the command again to resume"
                raise DataError(f"cannot fetch {url}: {broke}{kept}", fix=fix) from broke
            wait = limits.wait_s * 2 ** (failures - 1)
            log.info(f"{broke!s}, retrying in {wait:g} s")
            time.sleep(wait)


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _attempt_web(url: str, part: Path, limits: DownloadLimits) -> None:
    known = _read_version(part, url)
    start = _file_size(part) if known else 0
    headers = {"Accept-Encoding": "identity"}
    if known and start:
        headers |= {"Range": f"bytes={start}-", "If-Range": known.validator}
    with _Deadline(limits.stall_s) as clock:
        try:
            with _open_url(url, clock, headers, allow_private=limits.allow_private) as answer:
                if answer.status < 300:
                    _receive(answer, url, part, start, limits, clock)
                    return
            status = _status_line(answer)
            if answer.status == 416:  # the remote file is shorter than the part
                remove_part(part)
                raise _BrokeOffError(f"{status} (restarting from the beginning)")
            if answer.status in (408, 425, 429) or answer.status >= 500:
                raise _BrokeOffError(status)
            raise DataError(f"cannot fetch {url}: {status}", fix="check the address")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if clock.left <= 0 or isinstance(error, TimeoutError):
                reason = f"no data received within {limits.stall_s:g} s"
                raise _BrokeOffError(reason) from error
            if not isinstance(error, ValueError):
                raise _BrokeOffError(_failure(error)) from error
            fix = "check the address"  # or the one to which the server redirects
            if isinstance(error, _PrivateAddressError):
                fix = f"if you trust this address, add {limits.private_option}"
            raise DataError(f"cannot fetch {url}: {error}", fix=fix) from error


def _receive(
    answer: http.client.HTTPResponse,
    url: str,
    part: Path,
    start: int,
    limits: DownloadLimits,
    clock: _Deadline,
) -> None:
    """Append the body of a response to the part, or overwrite a part that cannot be resumed."""

    def pieces() -> Iterator[bytes]:
        received = 0
        while clock.left > 0 and (piece := answer.read1(2**18)):
            yield piece
            received += len(piece)
            if received >= limits.pace and clock.left < clock.seconds / 2:
                clock.renew()
                received = 0
        if clock.left <= 0:
            pace = f"{limits.pace} bytes within {limits.stall_s:g} s"
            raise _BrokeOffError(f"received fewer than {pace}")

    header = answer.headers.get
    tag = header("ETag", "")  # If-Range needs a strong one (RFC 9110, 13.1.5)
    validator = tag if tag and not tag.startswith("W/") else header("Last-Modified", "")
    version = _Version(redacted(url), validator, answer.length)
    if answer.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", header("Content-Range", ""))
        if match is None or int(match[1]) != start:
            raise _BrokeOffError("the server sent a different range from the one requested")
        known = _read_version(part, url) or version
        version = _Version(known.url, validator or known.validator, int(match[2]))
        if start and version != known._replace(size=known.size or version.size):
            remove_part(part)
            raise _BrokeOffError("the file has changed (restarting from the beginning)")
    else:
        start = 0
    _store(part, version, start, pieces(), limits)


def _attempt_store(url: str, part: Path, limits: DownloadLimits) -> None:
    """Download a file from an object store (s3, gs, az, hf) through fsspec."""
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url)
        system.invalidate_cache()  # an attempt may follow a change
        found: dict[str, Any] = system.info(path)
        size = int(found["size"])
        tag = str(found.get("ETag") or found.get("etag") or found.get("LastModified") or "")
        version = _Version(redacted(url), tag, size)
        start = _file_size(part) if _read_version(part, url) == version and tag else 0

        def pieces() -> Iterator[bytes]:
            for place in range(start, size, PIECE):
                yield system.cat_file(path, start=place, end=min(place + PIECE, size))

        _store(part, version, start, pieces(), limits)
    except (VitftError, _BrokeOffError):
        raise
    except Exception as error:  # each library has its own errors
        reason = redacted(" ".join(str(error).split()))[:160] or type(error).__name__
        if isinstance(error, FileNotFoundError):
            reason = "the file does not exist"
        elif isinstance(error, OSError) and not isinstance(error, PermissionError):
            raise _BrokeOffError(reason) from error
        fix = "check the address, the credentials and the network, and run the command again"
        raise DataError(f"cannot fetch {url}: {reason}", fix=fix) from error


def _store(
    part: Path, version: _Version, start: int, pieces: Iterator[bytes], limits: DownloadLimits
) -> None:
    """Write the pieces to the part, from `start` on, and its version next to it."""
    problem = f"{version.url} is larger than {limits.max_bytes / 1e9:g} GB"
    fix = "download it by other means, unpack an archive, and pass its path with --data"
    too_large = DataError(problem, fix=fix)
    total, done = version.size or start, start
    if total > limits.max_bytes:
        raise too_large
    check_space(part.parent, total - start, "the download", option=limits.option)
    label = f"fetching {console.visible(part.name.removesuffix('.part'))}"
    if start:
        label += f", resuming at {start / 1e6:.0f} MB"
    with writing(part, option=limits.option):
        part.touch()
        file = part.open("r+b")
    megabytes = max(1, round((total - start) / 1e6))
    with file, console.Progress(label, megabytes, unit="MB") as progress:
        with writing(part, option=limits.option):
            file.truncate(start)
            file.seek(start)
        write_json(_version_file(part), version._asdict())
        for piece in pieces:
            with writing(part, option=limits.option):
                file.write(piece)
                file.flush()
            done += len(piece)
            progress.advance(round((done - start) / 1e6) - progress.done)
            if done > limits.max_bytes:
                raise too_large
    if version.size is None:
        write_json(_version_file(part), version._replace(size=done)._asdict())
    elif done < version.size:
        raise _BrokeOffError(f"the connection was closed after {done:,} of {version.size:,} bytes")


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _read_version(part: Path, url: str) -> _Version | None:
    """Return the recorded version of a part, or None if the part cannot be reused."""
    try:
        version = _Version(**parse_json(_version_file(part).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    usable = part.is_file() and version.url == redacted(url)
    return version if usable and (version.validator or version.size == _file_size(part)) else None


def remove_part(part: Path) -> None:
    """Remove a part and its version file."""
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, busy: str, *, wait: bool, option: str) -> Iterator[None]:
    """Lock a file against other processes, except on Windows.

    If another process holds the lock, wait for it, or else raise a LockedError. A file for which
    nobody waits is removed at the end.
    """
    with writing(path, option=option):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    told = time.monotonic() + 5
    with file:
        while not try_lock(file.fileno()):
            if not wait:
                raise LockedError(busy, fix="wait until that process finishes, or stop it")
            if time.monotonic() > told:
                log.info(f"waiting: {busy}")
                told = float("inf")
            time.sleep(0.2)
        try:
            yield
        finally:
            if not wait:
                path.unlink(missing_ok=True)
