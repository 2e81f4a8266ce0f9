"""Download of an image folder as an archive (`vitft data fetch`).

The archive is downloaded to a `.part` file next to the target folder. Once its digest is checked,
it is unpacked into a hidden folder, which is renamed to the target if it holds an image folder.
"""

import contextlib
import hashlib
import http.client
import json
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from vitft.data.download.archive import ArchiveLimits, unpack
from vitft.data.download.registry import KNOWN_ARCHIVES, Archive
from vitft.data.download.web_image import (
    Deadline,
    PrivateAddressError,
    WebLimits,
    connection_failure,
    is_url,
    open_url,
    status_line,
)
from vitft.data.image_table import Images
from vitft.data.scan import scan
from vitft.data.walk import SYSTEM_FILES
from vitft.system import console
from vitft.system.errors import DataError, LockedError, RunError, UsageError, VitftError
from vitft.system.files import atomic_folder, check_space, try_lock, write_atomically, writing
from vitft.system.structure import parse_json, structured
from vitft.system.suggest import suggest
from vitft.system.text import redacted, shell_quote

log = logging.getLogger(__name__)


# resumable download of one large file from the web or an object store -----------------------------

PIECE = 2**22  # number of bytes read at a time from an object store


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLimits:
    """Limits and retry settings of a download."""

    max_bytes: int = 100 * 10**9
    stall_s: float = 30.0
    """Maximum time in seconds to wait for the response, and then for each `pace` bytes."""
    pace: int = 2**16
    attempts: int = 4  # that fail in a row; one that delivers `pace` bytes restarts the count
    wait_s: float = 1.0  # seconds before the second attempt, doubled before each further one
    allow_private: bool = False
    """Whether to allow addresses on this machine and its local network, even after redirects."""
    option: str = "--to"  # what chooses the folder of the download, for messages


class _BrokeOffError(Exception):
    """Error raised when an attempt to download fails but another one may succeed."""


@dataclass(frozen=True, slots=True)
class _Version:
    """Version of the remote file from which a partial download came."""

    url: str  # without secrets
    validator: str  # a strong ETag or the time of the last change; empty if neither is known
    size: int | None  # bytes of the whole file; None if unknown


def fetch_to_part(
    url: str, part: Path, *, size: int | None = None, limits: DownloadLimits | None = None
) -> None:
    """Download a file into `part`, resuming a partial download if there is one.

    Addresses that are neither http nor https are read through fsspec. The caller must remove the
    part and its version file after use.

    Raises:
        DataError: The file is missing, private, of the wrong size, or several attempts have failed.
        ResourceError: The disk is full or too small.
        RunError: The part cannot be written.
    """
    limits = limits or DownloadLimits()
    failures = 0
    while True:
        before = _file_size(part)
        try:
            if is_url(url):
                _attempt_web(url, part, size, limits)
            else:
                _attempt_store(url, part, limits)
            return
        except _BrokeOffError as broke:
            failures = failures + 1 if _file_size(part) - before < limits.pace else 1
            if failures >= limits.attempts:
                kept = f" ({_file_size(part) / 1e6:.1f} MB was kept)" if _file_size(part) else ""
                again = "check the address and the network, and run the command again"
                fix = "run the command again later to resume" if kept else again
                raise DataError(f"cannot fetch {url}: {broke}{kept}", fix=fix) from broke
            wait = limits.wait_s * 2 ** (failures - 1)
            log.info(f"{broke!s}, retrying in {wait:g} s")
            time.sleep(wait)


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _attempt_web(url: str, part: Path, size: int | None, limits: DownloadLimits) -> None:
    known = _read_version(part, url)
    start = _file_size(part) if known else 0
    if known and start == known.size:
        return
    headers = {"Accept-Encoding": "identity"}
    if known and start:
        headers |= {"Range": f"bytes={start}-", "If-Range": known.validator}
    with Deadline(limits.stall_s) as clock:
        try:
            web = WebLimits(seconds=limits.stall_s, allow_private=limits.allow_private)
            with open_url(url, web, clock, headers) as answer:
                if answer.status < 300:
                    _receive(answer, url, part, size, start, limits, clock)
                    return
                status = status_line(answer)
            if answer.status == 416:  # the remote file is shorter than the part
                remove_part(part)
                raise _BrokeOffError(f"{status} (restarting from the beginning)")
            if answer.status in (408, 425, 429) or answer.status >= 500:
                raise _BrokeOffError(status)
            raise DataError(f"cannot fetch {url}: {status}", fix="check the address")
        except PrivateAddressError as error:
            fix = "if you trust this address, add --allow-private-addresses"
            raise DataError(f"cannot fetch {url}: {error}", fix=fix) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = connection_failure(error)
            if clock.is_up or isinstance(error, TimeoutError):
                reason = f"no data received within {limits.stall_s:g} s"
            elif isinstance(error, ValueError):  # a refused redirect
                raise DataError(f"cannot fetch {url}: {reason}", fix="check the address") from error
            raise _BrokeOffError(reason) from error


def _receive(
    answer: http.client.HTTPResponse,
    url: str,
    part: Path,
    size: int | None,
    start: int,
    limits: DownloadLimits,
    clock: Deadline,
) -> None:
    """Append the body of a response to the part, or overwrite a part that cannot be resumed."""

    def pieces() -> Iterator[bytes]:
        received = 0
        while not clock.is_up and (piece := answer.read1(2**18)):
            yield piece
            received += len(piece)
            if received >= limits.pace and clock.left < clock.seconds / 2:
                clock.renew()
                received = 0

    header = answer.headers.get
    announced = header("Content-Length", "")
    total = int(announced) if announced.isdecimal() else None
    if answer.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", header("Content-Range", ""))
        if match is None or int(match[1]) != start:
            raise _BrokeOffError("the server sent a different range from the one requested")
        total = int(match[2])
    else:
        start = 0
    if size is not None and total not in (None, size):
        fix = "check the address, and whether the network requires a login"
        raise DataError(f"{url} has {total:,} bytes instead of {size:,}", fix=fix)
    tag = header("ETag", "")  # If-Range needs a strong one (RFC 9110, 13.1.5)
    validator = tag if tag and not tag.startswith("W/") else header("Last-Modified", "")
    version = _Version(redacted(url), validator, total)
    done = _store(part, url, version, start, pieces(), limits)
    if clock.is_up:
        raise _BrokeOffError(f"received fewer than {limits.pace} bytes within {limits.stall_s:g} s")
    if total is None:
        _write_version(part, replace(version, size=done))
    elif done < total:
        raise _BrokeOffError(f"the connection was closed after {done:,} of {total:,} bytes")


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

        done = _store(part, url, version, start, pieces(), limits)
        if done < size:
            raise _BrokeOffError(f"the file ended after {done:,} of {size:,} bytes")
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
    part: Path,
    url: str,
    version: _Version,
    start: int,
    pieces: Iterator[bytes],
    limits: DownloadLimits,
) -> int:
    """Write the pieces to the part, from `start` on, and return its size."""
    too_large = DataError(
        f"{url} is larger than {limits.max_bytes / 1e9:g} GB",
        fix="download it by other means, unpack an archive, and pass its path with --data",
    )
    total, done = version.size or start, start
    if total > limits.max_bytes:
        raise too_large
    check_space(part.parent, total - start, "the download", option=limits.option)
    with writing(part, option=limits.option):
        part.touch()
        file = part.open("r+b")
    label = f"fetching {console.visible(part.name.removesuffix('.part'))}"
    if start:
        label += f", resuming at {start / 1e6:.0f} MB"
    megabytes = max(1, round((total - start) / 1e6))
    with file, console.Progress(label, megabytes, unit="MB") as progress:
        with writing(part, option=limits.option):
            file.truncate(start)
            file.seek(start)
        _write_version(part, version)
        for piece in pieces:
            with writing(part, option=limits.option):
                file.write(piece)
                file.flush()
            done += len(piece)
            progress.advance(round((done - start) / 1e6) - progress.done)
            if done > limits.max_bytes:
                raise too_large
    return done


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _write_version(part: Path, version: _Version) -> None:
    write_atomically(_version_file(part), json.dumps(asdict(version)))


def _read_version(part: Path, url: str) -> _Version | None:
    """Return the recorded version of a part, or None if the part cannot be reused."""
    try:
        text = _version_file(part).read_text(encoding="utf-8")
        version: _Version = structured(parse_json(text), _Version)
    except (OSError, ValueError, TypeError):
        return None
    usable = part.is_file() and version.url == redacted(url)
    return version if usable and (version.validator or version.size == _file_size(part)) else None


def remove_part(part: Path) -> None:
    """Remove a part and its version file."""
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


# download of an image folder as an archive (`vitft data fetch`) -----------------------------------

_ARCHIVE_SUFFIX = re.compile(r"\.(tar|tgz|tar\.gz|zip)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FetchedFolder:
    root: Path  # path of the image folder: the target or a folder inside it
    folder: Images
    sha256: str  # digest of the archive
    record: Path | None = None
    """File in which the digest was recorded, or None if the digest was already known."""


def fetch_folder(
    archive: Archive,
    target: Path,
    *,
    limits: ArchiveLimits | None = None,
    patience: DownloadLimits | None = None,
) -> _FetchedFolder:
    """Download an archive and create `target` from its contents.

    A partial download is resumed, and kept if the connection is lost or the disk is full.

    Raises:
        RunError: `target` already exists or cannot be written.
        DataError: The archive cannot be downloaded, has the wrong size or digest, is rejected (see
            `archive.unpack`) or contains no image folder.
        ResourceError: The disk is full or too small.
        LockedError: Another process is downloading to the same target.
    """
    part = target.with_name(f"{target.name}.part")
    with writing(part, option="--to"):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _locked_target(target):
        if target.exists() or target.is_symlink():
            other = f"use it with --data {shell_quote(str(target))}, or choose another folder with"
            raise RunError(
                f"{target} already exists. Nothing was fetched or overwritten",
                fix=f"{other} --out DIR",
            )
        fetch_to_part(archive.url, part, size=archive.size, limits=patience)
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        record, address = target.with_name(f"{target.name}.sha256"), redacted(archive.url)
        records = _read_record(record)
        try:
            if archive.sha256 and archive.sha256 != sha256:
                raise DataError(
                    f"the sha256 of {archive.url} is {sha256} instead of {archive.sha256}. Nothing "
                    "was kept",
                    fix="run the command again, or use another source with --url",
                )
            if not archive.sha256 and records.get(address, sha256) != sha256:
                raise DataError(
                    f"{archive.url} has changed: its sha256 is {sha256}, but {records[address]} "
                    f"was recorded in {record} when it was first fetched. Nothing was kept",
                    fix=f"remove {record} to accept the new version",
                )
            with atomic_folder(target) as folder:
                unpack(part, folder, name=archive.url, limits=limits)
                inside = _image_root(folder, archive.url).relative_to(folder)
        except DataError:
            remove_part(part)
            raise
        remove_part(part)
        is_new = not archive.sha256 and address not in records
        if is_new:
            lines = [f"{digest}  {url}\n" for url, digest in (records | {address: sha256}).items()]
            write_atomically(record, "".join(lines))
    return _FetchedFolder(
        root=target / inside,
        folder=scan(target / inside),
        sha256=sha256,
        record=record if is_new else None,
    )


@contextlib.contextmanager
def _locked_target(target: Path) -> Iterator[None]:
    """Lock the target against other processes, except on Windows."""
    path = target.with_name(f".{target.name}.lock")
    with writing(path, option="--to"):
        file = path.open("ab")
    with file:
        if not try_lock(file.fileno()):
            fix = "wait until that process finishes, or stop it"
            raise LockedError(f"another process is fetching {target}", fix=fix)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _read_record(record: Path) -> dict[str, str]:
    """Return the digests of earlier downloads to the same place, by address."""
    try:
        lines = record.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    return {address: digest for digest, _, address in (line.partition("  ") for line in lines)}


def _image_root(folder: Path, name: str) -> Path:
    place, problem = folder, ""
    for _ in range(5):  # maximum number of nested folders to try
        try:
            scan(place)
            return place
        except DataError as error:
            problem = problem or error.problem.replace(str(folder), "it")
        inner = [
            entry
            for entry in place.iterdir()
            if entry.is_dir() and entry.name[0] != "." and entry.name.lower() not in SYSTEM_FILES
        ]
        if len(inner) != 1:
            break
        place = inner[0]
    fix = "use an archive with one folder per class, or arrange the images yourself"
    raise DataError(f"{name} contains no image folder ({problem}). Nothing was kept", fix=fix)


def select_archive(
    name: str | None,
    *,
    url: str | None = None,
    folder: str | None = None,
    sha256: str | None = None,
) -> Archive:
    """Return the archive to download, selected by its name, its address or both.

    An archive selected only by its address is named `folder` or, if that is None, after the
    address.
    """
    names = ", ".join(KNOWN_ARCHIVES)
    if name is None and url is None:
        raise UsageError("no dataset given", fix=f"pass a name ({names}), or an address with --url")
    if name is not None and name not in KNOWN_ARCHIVES:
        near = suggest(name, KNOWN_ARCHIVES, cutoff=0.6)
        also = "pass the address of any archive with --url"
        also = also if ":" in name else f"use a known dataset ({names}), or {also}"
        fix = f"check the name: did you mean {near[0]}?" if near else also
        raise UsageError(f"unknown dataset {name!r}", fix=fix)
    if url is not None and not is_url(url):
        fix = "use an address that starts with https:// or http://"
        raise UsageError(f"{url!r} is not a web address", fix=fix)
    if name is not None:
        archive = replace(KNOWN_ARCHIVES[name], url=url or KNOWN_ARCHIVES[name].url)
    else:
        assert url is not None
        last = PurePosixPath(unquote(urlsplit(url).path)).name
        folder = folder or re.sub(r"[^\w.-]+", "_", _ARCHIVE_SUFFIX.sub("", last)).strip("._")
        if not folder:
            fix = "choose a folder with --out DIR"
            raise UsageError(f"cannot derive a folder name from {url}", fix=fix)
        archive = Archive(name=folder, url=url)
    if sha256 is None:
        return archive
    if not re.fullmatch(r"[0-9a-f]{64}", sha256.lower()):
        raise UsageError(f"invalid --sha256 {sha256!r}", fix="use 64 hexadecimal digits")
    return replace(archive, sha256=sha256.lower())
