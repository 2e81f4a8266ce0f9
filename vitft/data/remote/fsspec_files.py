"""Resumable download of a file from an object store (s3, gs, az, hf) through fsspec.

Credentials and endpoints come from the environment, as in the tools of each store, e.g.
AWS_PROFILE and AWS_ENDPOINT_URL.
"""

import json
import logging
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitft.data.download.resumable import (
    DownloadLimits,
    RemoteVersion,
    file_size,
    read_version,
    version_file,
)
from vitft.data.remote.places import FILE_SYSTEMS, scheme_of
from vitft.system import console
from vitft.system.errors import DataError, ResourceError, UsageError, VitftError
from vitft.system.files import write_atomically, writing
from vitft.system.imports import install_command, require_extra
from vitft.system.redaction import redacted

log = logging.getLogger(__name__)

_EXTRAS = {"s3": "s3", "hf": "sources"}
"""Mapping from schemes to the extras that install their libraries."""
PIECE = 2**22
"""Number of bytes read at a time."""


def check_libraries(address: str) -> None:
    """Check that the libraries for the scheme of an address are installed.

    Raises:
        UsageError: A library is missing; the fix is the command that installs it.
    """
    scheme = scheme_of(address)
    library = FILE_SYSTEMS[scheme]
    needed, feature = ("fsspec", library), f"reading {scheme}://"
    if extra := _EXTRAS.get(scheme):
        require_extra(extra, feature=feature, libraries=needed)
        return
    try:
        require_extra("sources", feature=feature, libraries=needed)
    except UsageError as error:
        raise UsageError(error.problem, fix=install_command(("fsspec", library))) from error


def fetch_file(address: str, part: Path, *, limits: DownloadLimits) -> None:
    """Download a file into `part`, resuming a partial download of the same version.

    Raises:
        DataError: The file does not exist or may not be read, or the download failed several times.
        ResourceError: The disk is full or too small.
        RunError: The part cannot be written.
    """
    failures = 0
    while True:
        before = file_size(part)
        try:
            _attempt_file(address, part, limits)
            return
        except VitftError:
            raise
        except Exception as error:  # each library has its own errors
            reason = redacted(" ".join(str(error).split()))[:160] or type(error).__name__
            if isinstance(error, FileNotFoundError):
                reason = "the file does not exist"
            failures = failures + 1 if file_size(part) - before < limits.pace else 1
            final = isinstance(error, FileNotFoundError | PermissionError)
            if final or not isinstance(error, OSError) or failures >= limits.attempts:
                raise DataError(
                    f"cannot fetch {address}: {reason}",
                    fix="check the address, the credentials and the network, and run the command "
                    "again",
                ) from error
            wait = limits.wait_s * 2 ** (failures - 1)
            log.info(f"{reason}; retrying in {wait:g} s")
            time.sleep(wait)


def _attempt_file(address: str, part: Path, limits: DownloadLimits) -> None:
    """Download the file, or the rest of it, once.

    Raises:
        DataError: The file is too large.
        OSError: The file cannot be read, or ended early.
        ResourceError: The disk is full or too small.
    """
    from fsspec.core import url_to_fs

    system, path = url_to_fs(address)
    system.invalidate_cache()  # an attempt may follow a change
    found: dict[str, Any] = system.info(path)
    size = int(found["size"])
    tag = str(found.get("ETag") or found.get("etag") or found.get("LastModified") or "")
    version = RemoteVersion(url=redacted(address), etag=tag, size=size)
    start = file_size(part) if tag and read_version(part, address) == version else 0
    if size > limits.max_bytes:
        raise DataError(
            f"{address} is larger than {limits.max_bytes / 1e9:g} GB", fix="use smaller shards"
        )
    free = shutil.disk_usage(part.parent).free
    if size - start > free:
        raise ResourceError(
            f"the download needs another {(size - start) / 1e9:.1f} GB, but only "
            f"{free / 1e9:.1f} GB is free in {part.parent}",
            fix=f"free some disk space, or choose a folder on another disk with {limits.option}",
        )
    label = f"fetching {console.visible(part.name.removesuffix('.part'))}"
    with writing(part, option=limits.option):
        part.touch()
        target = part.open("r+b")
    with target, console.Progress(label, max(1, round(size / 1e6)), unit="MB") as progress:
        target.truncate(start)
        target.seek(start)
        write_atomically(version_file(part), json.dumps(asdict(version)))
        while start < size:
            piece = system.cat_file(path, start=start, end=min(start + PIECE, size))
            if not piece:
                raise OSError(f"the file ended after {start:,} of {size:,} bytes")
            with writing(part, option=limits.option):
                target.write(piece)
                target.flush()
            start += len(piece)
            progress.advance(round(start / 1e6) - progress.done)
