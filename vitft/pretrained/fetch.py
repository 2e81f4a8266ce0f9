"""A catalogue row -> a file on this machine, with the digest of its content verified.

huggingface_hub downloads and caches; it checks a file's size, never its content, and takes 24 s to
say that there is no network. Both are made good here. What the file holds is none of our business.
"""

import contextlib
import errno
import hashlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitft.errors import ResourceError, WeightsError
from vitft.pretrained.catalog import Entry
from vitft.pretrained.locate import bundled

CONNECT_S = 2.0
"""Seconds after which a hub that cannot be connected to counts as unreachable."""
ATTEMPTS = 3
"""Tries of a download that breaks off; the library itself does not repeat these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A file on this machine and where it came from."""

    path: Path
    repo: str = ""
    revision: str = ""
    """Commit of the repository, not the branch."""
    sha256: str


def fetch(entry: Entry) -> Fetched:
    """The file of a catalogue row, from the cache or the hub.

    Raises:
        WeightsError: Offline, unknown on the hub, refused, broken off, or another content than
            the hub announced (the bad copy is deleted).
    """
    if entry.path:
        path = bundled(entry)
        return Fetched(path=path, sha256=sha256_of(path))
    path = cached_or_downloaded(entry)
    digest = sha256_of(path)
    announced = path.resolve().name  # the hub's ETag of a large file is the sha256 of its content
    for wanted in (announced, entry.sha256):
        if re.fullmatch(r"[0-9a-f]{64}", wanted) and wanted != digest:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise WeightsError(
                f"{entry.repo}/{entry.file} is damaged: sha256 {digest}, announced {wanted}",
                fix="the bad copy was deleted; run it again to download a fresh one",
            )
    return Fetched(path=path, repo=entry.repo, revision=path.parent.name, sha256=digest)


def sha256_of(path: Path) -> str:
    """Digest of a file's content, in hexadecimal (about 1 s per GB)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_or_downloaded(entry: Entry) -> Path:
    """The file in the hub's cache, put there if need be; its content is not verified yet."""
    from huggingface_hub import constants, hf_hub_download

    if constants.is_offline_mode():
        return cached(entry, why="HF_HUB_OFFLINE is set")
    if not hub_answers(entry):
        return cached(entry, why=f"{constants.ENDPOINT} cannot be reached")
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        try:
            with sentences(entry):
                return Path(hf_hub_download(entry.repo, entry.file, revision=entry.revision))
        except (http_error(), OSError) as error:  # OSError: a body shorter or longer than announced
            if error_number(error) in (errno.ENOSPC, errno.EDQUOT):
                raise ResourceError(
                    f"disk full while downloading {entry.name}", fix="free some space"
                ) from error
            failure = error
        time.sleep(0.3 * (attempt + 1))
    raise WeightsError(
        f"download of {entry.repo}/{entry.file} failed: {short(failure)}; nothing was kept",
        fix="run it again, or give a file that you downloaded otherwise",
    ) from failure


def cached(entry: Entry, *, why: str) -> Path:
    """The file, if an earlier run downloaded it."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            hf_hub_download(entry.repo, entry.file, revision=entry.revision, local_files_only=True)
        )
    except LocalEntryNotFoundError as error:
        raise WeightsError(
            f"offline and not in the cache: {entry.name} ({entry.repo}); {why}",
            fix="connect once to download it, give a weight file, or use --weights demo",
        ) from error


def hub_answers(entry: Entry) -> bool:
    """Ask once, briefly; the library would repeat an unanswered question for 24 s.

    A hub that connects but answers slowly or with an error is left to the library's patience.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(entry.repo, entry.file, revision=entry.revision)
    try:
        with sentences(entry):
            get_hf_file_metadata(url, timeout=CONNECT_S)
    except http_error() as error:
        return type(error).__name__ not in ("ConnectError", "ConnectTimeout")
    return True


@contextlib.contextmanager
def sentences(entry: Entry) -> Iterator[None]:
    """Turn the hub's refusals into sentences; broken connections pass through."""
    from huggingface_hub import constants, errors

    where = f"{constants.ENDPOINT}/{entry.repo}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise WeightsError(
            f"the publisher of {entry.repo} asks for consent first",
            fix=f"accept the terms at {where}, then set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise WeightsError(
            f"the hub has no repository {entry.repo}, or it is private",
            fix="if it is private, set HF_TOKEN; else choose other weights",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise WeightsError(
            f"{entry.repo} has no revision {entry.revision}", fix=f"see the revisions at {where}"
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise WeightsError(
            f"{entry.repo} has no file {entry.file}", fix=f"see the files at {where}/tree/main"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        if not isinstance(error.__cause__, errors.FileMetadataError):
            raise
        raise WeightsError(
            f"{constants.ENDPOINT} does not answer like a hub",
            fix="check HF_ENDPOINT, and whether a login page stands in front of the network",
        ) from error


def http_error() -> type[Exception]:
    """What every failure of the hub's HTTP client derives from, be it httpx or its successor."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def error_number(error: Exception) -> int | None:
    """The system's number of an error, if it came from the system."""
    return error.errno if isinstance(error, OSError) else None


def short(error: Exception | None) -> str:
    """The first line of an exception, at most 200 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
