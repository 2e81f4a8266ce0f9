"""`vitft data fetch`: from an address to an image folder, or to nothing at all.

The order is: download into a `.part` file beside the folder, compare size and digest, unpack into
a hidden folder, make sure that there is an image folder inside, and only then give it its name.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from vitft.data.download.archive import unpack
from vitft.data.download.entries import Limits
from vitft.data.download.registry import KNOWN, Archive
from vitft.data.download.resumable import DownloadLimits, download, forget
from vitft.data.download.web_image import is_url
from vitft.data.folder import Folder, scan
from vitft.data.walk import CLUTTER
from vitft.system.errors import DataError, LockedError, RunError, UsageError
from vitft.system.files import whole_folder, write_atomically, writing

ENDINGS = re.compile(r"\.(tar|tgz|tar\.gz|zip)$", re.IGNORECASE)
DEEPEST = 5
"""Folders that an image folder may be wrapped in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFolder:
    """Images that were fetched."""

    root: Path
    """The image folder: the target, or a folder in it."""
    folder: Folder
    sha256: str
    """Of the archive."""
    record: Path | None = None
    """Where the digest was written down, if nobody had stated it before."""


def fetch_folder(
    archive: Archive,
    target: Path,
    *,
    limits: Limits | None = None,
    patience: DownloadLimits | None = None,
) -> FetchedFolder:
    """Fetch an archive and make `target` of what is inside.

    A part of an archive that an earlier process left is gone on with. If anything is wrong with
    what came, nothing is left of it; after a broken connection or a full disk the part stays.

    Args:
        archive: Its address, and what is known of it.
        target: Must not exist.
        limits: What may be inside.
        patience: What the download may cost.

    Raises:
        RunError: `target` exists already, or cannot be written.
        DataError: It cannot be fetched, is another file than it should be, is refused (`archive`),
            or holds no image folder.
        ResourceError: The disk is or would be full.
        LockedError: Another process fetches it.
    """
    check_target(target)
    part = target.with_name(f"{target.name}.part")
    with writing(part, option="--to"):
        target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target):
        check_target(target)  # by now
        download(archive.url, part, size=archive.size, limits=patience)
        sha256 = digest_of(part)
        record, recorded = target.with_name(f"{target.name}.sha256"), ""
        try:
            recorded = compare(archive, sha256, part.stat().st_size, record)
            with whole_folder(target) as folder:
                unpack(part, folder, name=archive.url, limits=limits)
                inside = image_root(folder, archive.url).relative_to(folder)
        except DataError:
            forget(part)
            raise
        forget(part)
        is_new = not (archive.sha256 or recorded)
        if is_new:
            remember(record, sha256, archive.url)
    return FetchedFolder(
        root=target / inside,
        folder=scan(target / inside),
        sha256=sha256,
        record=record if is_new else None,
    )


def check_target(target: Path) -> None:
    """Refuse a place where something is.

    Raises:
        RunError: Something is there, be it an empty folder.
    """
    if target.exists() or target.is_symlink():
        raise RunError(
            f"{target} exists already; nothing was fetched, nothing is overwritten",
            fix=f"use it (--data {target}), or name another place with --to DIR",
        )


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Keep other processes from fetching to the same place; a dead one's lock holds nobody up.

    Raises:
        LockedError: A live process does.
    """
    try:
        import fcntl
    except ImportError:  # a system without it
        yield
        return
    path = target.with_name(f".{target.name}.lock")
    with writing(path, option="--to"):
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LockedError(
                f"another process is fetching {target}", fix="wait until it has ended, or end it"
            ) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def digest_of(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compare(archive: Archive, sha256: str, size: int, record: Path) -> str:
    """Make sure that the archive is the one that is known; the digest an earlier one had.

    Raises:
        DataError: It is not.
    """
    if archive.size not in (None, size):
        raise DataError(
            f"{archive.url} has {size:,} bytes, not the {archive.size:,} that are known of it",
            fix="nothing of it was kept; a login page may stand in front of the network",
        )
    if archive.sha256 and archive.sha256 != sha256:
        raise DataError(
            f"{archive.url} has the sha256 {sha256}, not {archive.sha256}: it was changed",
            fix="nothing of it was kept; run it again, or take it from another place with --url",
        )
    recorded = "" if archive.sha256 else recorded_digest(record, archive.url)
    if recorded and recorded != sha256:
        raise DataError(
            f"{archive.url} has changed: its sha256 is {sha256}, and {recorded} was written down "
            f"in {record} when it was first fetched",
            fix=f"nothing of it was kept; if a new version is what you want, remove {record}",
        )
    return recorded


def recorded_digest(record: Path, url: str) -> str:
    """The digest that this address had before; empty if it was never fetched."""
    try:
        lines = record.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    found = (line.partition("  ") for line in lines)
    return next((sha256 for sha256, _, address in found if address == url), "")


def remember(record: Path, sha256: str, url: str) -> None:
    """Write the digest of an address behind those of others, as `sha256sum` does."""
    try:
        before = record.read_text(encoding="utf-8")
    except (OSError, ValueError):
        before = ""
    write_atomically(record, f"{before}{sha256}  {url}\n")


def image_root(folder: Path, name: str) -> Path:
    """The image folder in what was unpacked: the first that holds classes, from the top down.

    Raises:
        DataError: There is none.
    """
    place, problem = folder, ""
    for _ in range(DEEPEST):
        try:
            scan(place)
            return place
        except DataError as error:
            problem = problem or error.problem.replace(str(folder), "it")
        inner = [
            entry
            for entry in place.iterdir()
            if entry.is_dir() and entry.name[0] != "." and entry.name.lower() not in CLUTTER
        ]
        if len(inner) != 1:
            break
        place = inner[0]
    raise DataError(
        f"{name} holds no image folder ({problem})",
        fix="nothing of it was kept; take an archive with one folder per class, or arrange the "
        "images yourself",
    )


def check_address(url: str) -> None:
    """Refuse what is no address on the web.

    Raises:
        UsageError: Neither http nor https.
    """
    if not is_url(url):
        raise UsageError(
            f"{url!r} is no address", fix="give one that begins with https:// or http://"
        )


def folder_name(url: str) -> str:
    """The folder that an address becomes: the last part of its path, without `.tar.gz`.

    Raises:
        UsageError: Its path says nothing.
    """
    last = PurePosixPath(unquote(urlsplit(url).path)).name
    name = re.sub(r"[^\w.-]+", "_", ENDINGS.sub("", last)).strip("._")
    if not name:
        raise UsageError(f"the address {url} does not tell a name", fix="name one with --to DIR")
    return name


def select_archive(
    name: str | None,
    *,
    url: str | None = None,
    folder: str | None = None,
    sha256: str | None = None,
) -> Archive:
    """Return the archive to download: a known one, also from another address, or any address.

    Args:
        name: Name of a known archive.
        url: Address of the archive; default: the published one.
        folder: Name of the folder to create; default: from the name or the address.
        sha256: Expected digest, in hexadecimal.

    Raises:
        UsageError: The name is unknown, the address or the digest invalid, or both are missing.
    """
    names = ", ".join(KNOWN)
    if name is None and url is None:
        raise UsageError("no dataset given", fix=f"give a name ({names}), or an address with --url")
    if name is not None and name not in KNOWN:
        near = get_close_matches(name, KNOWN, n=1)
        also = "use --url for an address" if ":" in name else f"known datasets: {names}"
        raise UsageError(
            f"unknown dataset {name!r}",
            fix=f"did you mean {near[0]}?" if near else f"{also}; --url accepts any archive",
        )
    if url is not None:
        check_address(url)
    if name is not None:
        archive = replace(KNOWN[name], url=url or KNOWN[name].url)
    else:
        assert url is not None
        archive = Archive(name=folder or folder_name(url), url=url)
    if sha256 is None:
        return archive
    if not re.fullmatch(r"[0-9a-f]{64}", sha256.lower()):
        raise UsageError(f"invalid --sha256 {sha256!r}", fix="use 64 hexadecimal digits")
    return replace(archive, sha256=sha256.lower())
