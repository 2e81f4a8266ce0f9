"""Resumable download of one large file.

The data is written to a `.part` file. A `.part.json` file next to it records the address and
version (ETag or Last-Modified) of the remote file, so that a later process resumes the same one.
"""

import contextlib
import http.client
import json
import logging
import re
import time
import urllib.error
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vitft.data.download.web_image import (
    Deadline,
    PrivateAddressError,
    WebLimits,
    connection_failure,
    open_url,
    status_line,
)
from vitft.system import console
from vitft.system.errors import DataError
from vitft.system.files import check_space, write_atomically, writing
from vitft.system.text import redacted

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteVersion:
    """Version of the remote file from which a partial download came."""

    url: str
    etag: str = ""
    modified: str = ""
    size: int | None = None  # bytes of the whole file; None if unknown

    @property
    def validator(self) -> str:
        """Value of the If-Range header, which must not be a weak ETag (RFC 9110, 13.1.5)."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified


def fetch_to_part(
    url: str, part: Path, *, size: int | None = None, limits: DownloadLimits | None = None
) -> None:
    """Download a file into `part`, resuming a partial download if there is one.

    The caller must remove the part and its version file after use.

    Raises:
        DataError: The file is missing, private, of the wrong size, or several attempts have failed.
        ResourceError: The disk is full or too small.
        RunError: The part cannot be written.
    """
    limits = limits or DownloadLimits()
    failures = 0
    while True:
        before = file_size(part)
        try:
            _attempt(url, part, size, limits)
            return
        except _BrokeOffError as broke:
            failures = failures + 1 if file_size(part) - before < limits.pace else 1
            if failures >= limits.attempts:
                kept = f"; {file_size(part) / 1e6:.1f} MB was kept" if file_size(part) else ""
                again = "check the address and the network, and run the command again"
                fix = "run the command again later to resume" if kept else again
                raise DataError(f"cannot fetch {url}: {broke}{kept}", fix=fix) from broke
            wait = limits.wait_s * 2 ** (failures - 1)
            log.info(f"{broke!s}; retrying in {wait:g} s")
            time.sleep(wait)


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def _attempt(url: str, part: Path, size: int | None, limits: DownloadLimits) -> None:
    known = read_version(part, url)
    start = file_size(part) if known else 0
    if known and known.size is not None and start == known.size:
        return
    headers = {"Accept-Encoding": "identity"}
    if known and start:
        headers |= {"Range": f"bytes={start}-", "If-Range": known.validator}
    with Deadline(limits.stall_s) as clock:
        try:
            web = WebLimits(seconds=limits.stall_s, allow_private=limits.allow_private)
            with contextlib.closing(open_url(url, web, clock, headers)) as answer:
                _receive(answer, url, part, size, start, limits, clock)
        except urllib.error.HTTPError as error:
            with error:  # close the connection
                status = status_line(error)
            if error.code == 416:  # the remote file is shorter than the part
                remove_part(part)
                raise _BrokeOffError(f"{status} (restarting from the beginning)") from error
            if error.code in (408, 425, 429) or error.code >= 500:
                raise _BrokeOffError(status) from error
            raise DataError(f"cannot fetch {url}: {status}", fix="check the address") from error
        except PrivateAddressError as error:
            fix = "if you trust this address, add --allow-private-addresses"
            raise DataError(f"cannot fetch {url}: {error}", fix=fix) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = connection_failure(error)
            if clock.is_up or isinstance(getattr(error, "reason", error), TimeoutError):
                reason = f"no data received within {limits.stall_s:g} s"
            elif isinstance(error, ValueError):  # a refused redirect
                raise DataError(f"cannot fetch {url}: {reason}", fix="check the address") from error
            raise _BrokeOffError(reason) from error


def _receive(
    answer: Any,  # noqa: ANN401 - urllib's response
    url: str,
    part: Path,
    size: int | None,
    start: int,
    limits: DownloadLimits,
    clock: Deadline,
) -> None:
    """Append the body of a response to the part, or overwrite a part that cannot be resumed."""
    announced = answer.headers.get("Content-Length", "")
    total = int(announced) if announced.isdecimal() else None
    if answer.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != start:
            raise _BrokeOffError("the server sent a different range from the one requested")
        total = int(match[2])
    else:
        start = 0
    if size is not None and total not in (None, size):
        fix = "check the address, and whether the network requires a login"
        raise DataError(f"{url} has {total:,} bytes instead of {size:,}", fix=fix)
    if (total or 0) > limits.max_bytes:
        raise _file_too_large(url, limits)
    needed = (total or size or 0) - start
    check_space(part.parent, needed, "the download", option=limits.option)
    header = answer.headers.get
    version = RemoteVersion(
        url=redacted(url), etag=header("ETag", ""), modified=header("Last-Modified", ""), size=total
    )
    with writing(part, option=limits.option):
        part.touch()
        file = part.open("r+b")
    with file:
        with writing(part, option=limits.option):
            file.truncate(start)
            file.seek(start)
        write_atomically(version_file(part), json.dumps(asdict(version)))
        done = _copy_body(answer, file, part, start, total, limits, clock)
    if done > limits.max_bytes:
        raise _file_too_large(url, limits)
    if clock.is_up:
        raise _BrokeOffError(f"received fewer than {limits.pace} bytes within {limits.stall_s:g} s")
    if total is None:
        write_atomically(version_file(part), json.dumps(asdict(version) | {"size": done}))
    elif done < total:
        raise _BrokeOffError(f"the connection was closed after {done:,} of {total:,} bytes")


def _copy_body(
    answer: Any,  # noqa: ANN401
    file: BinaryIO,
    part: Path,
    start: int,
    total: int | None,
    limits: DownloadLimits,
    clock: Deadline,
) -> int:
    """Copy the body to the part until it ends or exceeds a limit, and return the part's size."""
    done = paced = start
    label = f"fetching {console.visible(part.name.removesuffix('.part'))}"
    if start:
        label += f", resuming at {start / 1e6:.0f} MB"
    rest = max(1, round(((total or start) - start) / 1e6))
    with console.Progress(label, rest, unit="MB") as progress:
        while piece := answer.read1(2**18):
            with writing(part, option=limits.option):
                file.write(piece)
            done += len(piece)
            progress.advance(round((done - start) / 1e6) - progress.done)
            if clock.is_up or done > limits.max_bytes:
                break
            if done - paced >= limits.pace and clock.left < clock.seconds / 2:
                clock.renew()
                paced = done
        with writing(part, option=limits.option):
            file.flush()
    return done


def _file_too_large(url: str, limits: DownloadLimits) -> DataError:
    return DataError(
        f"{url} is larger than {limits.max_bytes / 1e9:g} GB",
        fix="download and unpack it by other means, and pass the unpacked folder with --data",
    )


def version_file(part: Path) -> Path:
    """Return the path of the file that records a part's version."""
    return part.with_name(f"{part.name}.json")


def read_version(part: Path, url: str) -> RemoteVersion | None:
    """Return the recorded version of a part, or None if the part cannot be reused."""
    try:
        fields = json.loads(version_file(part).read_text(encoding="utf-8"))
        version = RemoteVersion(**fields)
        usable = (
            part.is_file() and version.url == redacted(url) and isinstance(version.size, int | None)
        )
        whole = version.size is not None and file_size(part) == version.size
        return version if usable and (whole or version.validator) else None
    except (OSError, ValueError, TypeError):
        return None


def remove_part(part: Path) -> None:
    """Remove a part and its version file."""
    part.unlink(missing_ok=True)
    version_file(part).unlink(missing_ok=True)
