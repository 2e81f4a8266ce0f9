"""Download of an image folder as an archive (`vitft data fetch`).

The archive is downloaded to a `.part` file next to the target folder. Once its digest is checked,
it is unpacked into a hidden folder, which is renamed to the target if it holds an image folder.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from vitft.data.download.archive import ArchiveLimits, unpack
from vitft.data.download.registry import KNOWN_ARCHIVES, Archive
from vitft.data.download.resumable import DownloadLimits, fetch_to_part, remove_part
from vitft.data.download.web_image import is_url
from vitft.data.folder import Folder
from vitft.data.scan import scan
from vitft.data.walk import SYSTEM_FILES
from vitft.system.errors import DataError, LockedError, RunError, UsageError
from vitft.system.files import atomic_folder, write_atomically, writing
from vitft.system.suggest import suggest
from vitft.system.text import redacted, shell_quote

_ARCHIVE_SUFFIX = re.compile(r"\.(tar|tgz|tar\.gz|zip)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FetchedFolder:
    root: Path  # path of the image folder: the target or a folder inside it
    folder: Folder
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
        DataError: The archive cannot be downloaded, has the wrong size or digest, is refused (see
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
                f"{target} already exists; nothing was fetched or overwritten",
                fix=f"{other} --out DIR",
            )
        fetch_to_part(archive.url, part, size=archive.size, limits=patience)
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        record, recorded = target.with_name(f"{target.name}.sha256"), ""
        try:
            recorded = _check_digest(archive, sha256, part.stat().st_size, record)
            with atomic_folder(target) as folder:
                unpack(part, folder, name=archive.url, limits=limits)
                inside = _image_root(folder, archive.url).relative_to(folder)
        except DataError:
            remove_part(part)
            raise
        remove_part(part)
        is_new = not (archive.sha256 or recorded)
        if is_new:
            write_atomically(record, f"{_read_record(record)}{sha256}  {redacted(archive.url)}\n")
    return _FetchedFolder(
        root=target / inside,
        folder=scan(target / inside),
        sha256=sha256,
        record=record if is_new else None,
    )


@contextlib.contextmanager
def _locked_target(target: Path) -> Iterator[None]:
    """Lock the target against other processes, on systems that have fcntl."""
    try:
        import fcntl
    except ImportError:  # a system without fcntl
        yield
        return
    path = target.with_name(f".{target.name}.lock")
    with writing(path, option="--to"):
        file = path.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            fix = "wait until that process finishes, or stop it"
            raise LockedError(f"another process is fetching {target}", fix=fix) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _check_digest(archive: Archive, sha256: str, size: int, record: Path) -> str:
    """Check an archive's size and digest, and return the digest recorded before, if needed."""
    if archive.size not in (None, size):
        raise DataError(
            f"{archive.url} has {size:,} bytes instead of {archive.size:,}; nothing was kept",
            fix="check whether the network requires a login",
        )
    if archive.sha256 and archive.sha256 != sha256:
        raise DataError(
            f"the sha256 of {archive.url} is {sha256} instead of {archive.sha256}; nothing was "
            "kept",
            fix="run the command again, or use another source with --url",
        )
    lines = (line.partition("  ") for line in _read_record(record).splitlines())
    known = next((digest for digest, _, address in lines if address == redacted(archive.url)), "")
    recorded = "" if archive.sha256 else known
    if recorded and recorded != sha256:
        raise DataError(
            f"{archive.url} has changed: its sha256 is {sha256}, but {recorded} was recorded in "
            f"{record} when it was first fetched; nothing was kept",
            fix=f"remove {record} to accept the new version",
        )
    return recorded


def _read_record(record: Path) -> str:
    try:
        return record.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


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
    raise DataError(f"{name} contains no image folder ({problem}); nothing was kept", fix=fix)


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

    Raises:
        UsageError: The name is unknown or missing, or the address or digest is invalid.
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
