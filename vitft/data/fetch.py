"""Download of an image folder as an archive (`vitft data fetch`).

The archive is downloaded to a `.part` file next to the target folder. Once its digest is checked,
it is unpacked into a hidden folder, which is renamed to the target if it holds an image folder.
"""

import contextlib
import hashlib
import logging
from pathlib import Path

from vitft.data.archive import unpack
from vitft.data.image_table import Images
from vitft.data.scan import scan
from vitft.data.walk import SYSTEM_FILES
from vitft.data.web import DownloadLimits, fetch_to_part, locked, remove_part
from vitft.system.errors import DataError, RunError
from vitft.system.files import atomic_folder, write_atomically
from vitft.system.text import redacted, shell_quote

log = logging.getLogger(__name__)


def fetch_folder(
    url: str, target: Path, *, sha256: str = "", limits: DownloadLimits | None = None
) -> Images:
    """Download an archive, create `target` from its contents, and return its image folder.

    A partial download is resumed, and kept if the connection is lost or the disk is full. Without
    an expected digest, that of the archive is recorded next to the folder, for later downloads.

    Raises:
        RunError: `target` already exists or cannot be written.
        DataError: The archive cannot be downloaded, has the wrong digest, is rejected (see
            `archive.unpack`) or contains no image folder.
        ResourceError: The disk is full or too small.
        LockedError: Another process is downloading to the same target.
    """
    part = target.with_name(f"{target.name}.part")
    lock, busy = target.with_name(f".{target.name}.lock"), f"another process is fetching {target}"
    with locked(lock, busy, wait=False, option="--out"):
        if target.exists() or target.is_symlink():
            other = f"use it with --data {shell_quote(str(target))}, or choose another folder with"
            raise RunError(
                f"{target} already exists. Nothing was fetched or overwritten",
                fix=f"{other} --out DIR",
            )
        fetch_to_part(url, part, limits=limits)
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        # Digests of earlier downloads to the same place, by address
        record, address = target.with_name(f"{target.name}.sha256"), redacted(url)
        records: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            lines = (text.partition("  ") for text in record.read_text("utf-8").splitlines())
            records = {source: digest for digest, _, source in lines}
        try:
            expected = sha256 or records.get(address, found)
            if found != expected:
                fix = "check whether the network requires a login, or use another source with --url"
                if not sha256:
                    fix = f"remove {record}, which was written by the first download, to accept it"
                problem = f"the sha256 of {url} is {found} instead of {expected}"
                raise DataError(f"{problem}. Nothing was kept", fix=fix)
            with atomic_folder(target) as folder:
                unpack(part, folder, name=url)
                inside = _image_root(folder, url).relative_to(folder)
        except DataError:
            remove_part(part)
            raise
        remove_part(part)
        log.info(f"SHA-256 of the archive: {found}")
        if not sha256 and address not in records:
            records[address] = found
            content = (f"{digest}  {source}\n" for source, digest in records.items())
            write_atomically(record, "".join(content))
            log.info(f"digest recorded in {record} to verify later downloads")
    return scan(target / inside)


def _image_root(folder: Path, name: str) -> Path:
    """Return the image folder that is, or lies alone in, an unpacked folder."""
    place, problem = folder, ""
    for _ in range(5):  # maximum number of nested folders to try
        try:
            scan(place)
            return place
        except DataError as error:
            problem = problem or error.problem.replace(str(folder), "it")
        folders = [entry for entry in place.iterdir() if entry.is_dir()]
        inner = [e for e in folders if e.name[0] != "." and e.name.lower() not in SYSTEM_FILES]
        if len(inner) != 1:
            break
        place = inner[0]
    fix = "use an archive with one folder per class, or arrange the images yourself"
    raise DataError(f"{name} contains no image folder ({problem}). Nothing was kept", fix=fix)
