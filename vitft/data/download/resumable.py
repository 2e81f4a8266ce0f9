"""One large file by its address, in pieces if need be: what has come is never fetched twice.

The bytes are collected in a `.part` file; beside it, `.part.json` tells which version of which
address they belong to (ETag or Last-Modified), so that a later process goes on where an earlier
one stopped, and begins again if the file behind the address has changed. What the bytes are is
told in `archive`.
"""

import contextlib
import http.client
import json
import logging
import re
import shutil
import time
import urllib.error
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vitft.data.download.web_image import Clock, WebLimits, opened, why_not
from vitft.system import console
from vitft.system.errors import DataError, ResourceError
from vitft.system.files import write_atomically, writing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLimits:
    """What a download may cost."""

    max_bytes: int = 100 * 10**9
    stall_s: float = 30.0
    """Seconds in which `pace` bytes must come, or the first answer."""
    pace: int = 2**16
    attempts: int = 4
    """Times in a row that a connection may break off with less than `pace` bytes."""
    wait_s: float = 1.0
    """Before the second attempt; doubles with every further one."""


class BrokeOffError(Exception):
    """A connection ended early, in words; another attempt may do better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What the bytes of a part are the beginning of."""

    url: str
    etag: str = ""
    modified: str = ""
    size: int | None = None
    """Of the whole."""

    @property
    def validator(self) -> str:
        """What If-Range may name: no weak ETag, which promises too little (RFC 9110, 13.1.5)."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified


def download(
    url: str, part: Path, *, size: int | None = None, limits: DownloadLimits | None = None
) -> None:
    """Bring the whole file behind an address into `part`, going on from what is there.

    Args:
        url: http or https.
        part: Where the bytes are collected; it and `part`.json are left to the caller.
        size: Bytes that it must have, if known.
        limits: Of size and patience.

    Raises:
        DataError: No such file there, another size, too large, or no progress.
        ResourceError: The disk is full or too small.
        RunError: The part cannot be written.
    """
    limits = limits or DownloadLimits()
    failures = 0
    while True:
        before = length(part)
        try:
            attempt(url, part, size, limits)
            return
        except BrokeOffError as broke:
            failures = failures + 1 if length(part) - before < limits.pace else 1
            if failures >= limits.attempts:
                kept = f"; {length(part) / 1e6:.1f} MB are kept" if length(part) else ""
                raise DataError(
                    f"{url} cannot be fetched: {broke}{kept}",
                    fix="run it again later: it goes on from what has come"
                    if kept
                    else "check the address and the network, then run it again",
                ) from broke
            wait = limits.wait_s * 2 ** (failures - 1)
            log.info(f"{broke!s}; trying again in {wait:g} s")
            time.sleep(wait)


def length(path: Path) -> int:
    """Bytes of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def attempt(url: str, part: Path, size: int | None, limits: DownloadLimits) -> None:
    """One connection; what it brings is kept.

    Raises:
        BrokeOffError: It ended before the file did.
        DataError: No other attempt would do better.
    """
    known = read_version(part, url)
    start = length(part) if known else 0
    if known and known.size is not None and start == known.size:
        return
    headers = {"Accept-Encoding": "identity"}
    if known and start:
        headers |= {"Range": f"bytes={start}-", "If-Range": known.validator}
    with Clock(limits.stall_s) as clock:
        try:
            web = WebLimits(seconds=limits.stall_s)
            with contextlib.closing(opened(url, web, clock, headers)) as answer:
                receive(answer, url, part, size, start, limits, clock)
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                raise refused(url, part, error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = why_not(error)
            if clock.is_up or isinstance(getattr(error, "reason", error), TimeoutError):
                reason = f"nothing came within {limits.stall_s:g} s"
            elif isinstance(error, ValueError):  # redirected to where nothing is fetched from
                raise DataError(
                    f"{url} cannot be fetched: {reason}", fix="check the address"
                ) from error
            raise BrokeOffError(reason) from error


def refused(url: str, part: Path, error: urllib.error.HTTPError) -> Exception:
    """What an answer other than the file means."""
    said = f"the server answers {error.code} {error.reason}".splitlines()[0][:160]
    if error.code == 416:  # there is less behind the address than was fetched
        forget(part)
        return BrokeOffError(f"{said}: beginning again")
    if error.code in (408, 425, 429) or error.code >= 500:
        return BrokeOffError(said)
    return DataError(f"{url} cannot be fetched: {said}", fix="check the address")


def receive(
    answer: Any,  # noqa: ANN401 - urllib's response
    url: str,
    part: Path,
    size: int | None,
    start: int,
    limits: DownloadLimits,
    clock: Clock,
) -> None:
    """Write the body of an answer behind what is there, or over it if it begins again."""
    total, start = extent(answer, start)
    if size is not None and total not in (None, size):
        raise DataError(
            f"{url} has {total:,} bytes, not the {size:,} that are known of it",
            fix="it is another file, or a login page stands in front of the network",
        )
    if (total or 0) > limits.max_bytes:
        raise too_large(url, limits)
    check_room(part, (total or size or 0) - start)
    told = answer.headers.get
    version = Version(
        url=url, etag=told("ETag", ""), modified=told("Last-Modified", ""), size=total
    )
    with writing(part, option="--to"):
        part.touch()
        file = part.open("r+b")
    with file:
        with writing(part, option="--to"):
            file.truncate(start)
            file.seek(start)
        write_atomically(beside(part), json.dumps(asdict(version)))
        done = copy(answer, file, part, start, total, limits, clock)
    if done > limits.max_bytes:
        raise too_large(url, limits)
    if clock.is_up:
        raise BrokeOffError(f"less than {limits.pace} bytes came within {limits.stall_s:g} s")
    if total is None:
        write_atomically(beside(part), json.dumps(asdict(version) | {"size": done}))
    elif done < total:
        raise BrokeOffError(f"the connection ended after {done:,} of {total:,} bytes")


def extent(answer: Any, start: int) -> tuple[int | None, int]:  # noqa: ANN401
    """Bytes of the whole file, if the server says so, and where this answer begins.

    Raises:
        BrokeOffError: Another part than was asked for.
    """
    said = answer.headers.get("Content-Length", "")
    if answer.status != 206:
        return (int(said) if said.isdecimal() else None), 0
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != start:
        raise BrokeOffError("the server sends another part than it was asked for")
    return int(match[2]), start


def copy(
    answer: Any,  # noqa: ANN401
    file: BinaryIO,
    part: Path,
    start: int,
    total: int | None,
    limits: DownloadLimits,
    clock: Clock,
) -> int:
    """Bytes in the file when the answer ended, the clock ran out or there were too many."""
    done = paced = start
    label = f"fetching {console.visible(part.name.removesuffix('.part'))}"
    if start:
        label += f", behind {start / 1e6:.0f} MB that are here"
    rest = max(1, round(((total or start) - start) / 1e6))
    with console.Progress(label, rest, unit="MB") as progress:
        while piece := answer.read1(2**18):
            with writing(part, option="--to"):
                file.write(piece)
            done += len(piece)
            progress.advance(round((done - start) / 1e6) - progress.done)
            if clock.is_up or done > limits.max_bytes:
                break
            if done - paced >= limits.pace and clock.left < clock.seconds / 2:
                clock.renew()
                paced = done
        with writing(part, option="--to"):
            file.flush()
    return done


def check_room(part: Path, needed: int) -> None:
    """Refuse at once what cannot fit.

    Raises:
        ResourceError: The disk has less room than is needed.
    """
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise ResourceError(
            f"{needed / 1e9:.1f} GB are to come and {free / 1e9:.1f} GB are free in {part.parent}",
            fix="free some space, or name a place on another disk with --to",
        )


def too_large(url: str, limits: DownloadLimits) -> DataError:
    """The error of a file that nobody should wait for."""
    return DataError(
        f"{url} is larger than {limits.max_bytes / 1e9:g} GB",
        fix="fetch it by other means, and name the folder with --data",
    )


def beside(part: Path) -> Path:
    """The file that tells what a part belongs to."""
    return part.with_name(f"{part.name}.json")


def read_version(part: Path, url: str) -> Version | None:
    """What the part there is the beginning of; None if it cannot be gone on with."""
    try:
        fields = json.loads(beside(part).read_text(encoding="utf-8"))
        version = Version(**fields)
        usable = part.is_file() and version.url == url and isinstance(version.size, int | None)
        whole = version.size is not None and length(part) == version.size
        return version if usable and (whole or version.validator) else None
    except (OSError, ValueError, TypeError):
        return None


def forget(part: Path) -> None:
    """Remove a part and what is known of it."""
    part.unlink(missing_ok=True)
    beside(part).unlink(missing_ok=True)
