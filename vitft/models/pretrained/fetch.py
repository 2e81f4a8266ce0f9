"""Download of catalogue entries and hub repositories, with verification of the local files.

huggingface_hub downloads and caches the files. In addition, this module checks the digest of the
content (huggingface_hub checks only the size), retries after a connection reset or a server error,
and reports an unreachable hub within two seconds instead of 24. Its errors say what to do.
"""

import contextlib
import errno
import hashlib
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitft.models.card import Provenance, sha256_of
from vitft.models.pretrained.catalog import CatalogEntry, catalog_entries, check_weight_file
from vitft.system import console
from vitft.system.errors import WeightsError
from vitft.system.files import writing

log = logging.getLogger(__name__)

_ANSWER_S = 5.0  # seconds to wait for the response to a metadata request
_ATTEMPTS = 3  # maximum, if huggingface_hub itself does not retry
FIRST_WAIT_S = 0.5  # seconds before the second attempt; doubled before each further one
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
_BUSY_PATIENCE_S = 60.0  # maximum seconds to keep retrying; a busy hub may set the delay


def fetch(
    entry: CatalogEntry, *, allow_pickle: bool = False, beside: Sequence[str] = ()
) -> tuple[Path, Provenance]:
    """Return the verified file of a catalogue entry, from the installation, the cache or the hub.

    A copy whose digest is not the one stated by the hub or the publisher is replaced once. Files of
    a repository that are named in `beside` and exist are put into the same folder.

    Returns:
        The path, and the origin. Its revision is the commit, or empty for a bundled file.
    """
    origin: Provenance = {"name": entry.name, "source": entry.path, "revision": ""}
    if entry.bundled:
        path = check_weight_file(entry.bundled)
        return path, {**origin, "sha256": sha256_of(path), "licence": entry.licence}
    if entry.terms == "non-commercial":
        log.warning(f"{entry.name} is licensed for non-commercial use only ({entry.licence})")
    if entry.is_hub_repository:
        entry = _with_existing_file(entry, allow_pickle=allow_pickle)
    damage = ""
    for _ in range(2):
        path = _cached_or_downloaded(entry)
        digest, commit = sha256_of(path), path.parent.name
        damage = _find_damage(path, digest, entry.sha256)
        if not damage:
            # Further files of a repository; missing ones are skipped, and damaged ones deleted
            more = ("config.json", "preprocessor_config.json", *beside)
            for name in more * entry.is_hub_repository:
                with contextlib.suppress(WeightsError):
                    other = _cached_or_downloaded(replace(entry, file=name, revision=commit))
                    if _find_damage(other, sha256_of(other), ""):
                        _delete_cached(other)
            origin |= {"source": f"{entry.repo}/{path.name}", "revision": commit}
            return path, {**origin, "sha256": digest, "licence": entry.licence}
        _delete_cached(path)
        log.info(f"deleted a damaged copy of {entry.repo}/{entry.file}: {damage}")
    raise WeightsError(
        f"{entry.repo}/{entry.file} is damaged: {damage}. The download was deleted",
        fix="try again later, or choose other weights",
    )


def _find_damage(path: Path, sha256: str, published: str) -> str:
    """Return how the digest of a cached file differs from the expected one, or ""."""
    # huggingface_hub names a file after its ETag: the sha256 of a large file, git's sha1 of others
    announced = path.resolve().name
    if published and published != sha256:
        return f"sha256 is {sha256}, but the publisher states {published}"
    if re.fullmatch(r"[0-9a-f]{64}", announced) and announced != sha256:
        return f"sha256 is {sha256}, but the hub states {announced}"
    if re.fullmatch(r"[0-9a-f]{40}", announced):
        content = path.read_bytes()
        header = b"blob %d\0" % len(content)
        found = hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
        return f"git sha1 is {found}, but the hub states {announced}" if found != announced else ""
    return ""


def _delete_cached(path: Path) -> None:
    path.resolve().unlink(missing_ok=True)  # the content to which the link in the snapshot points
    path.unlink(missing_ok=True)


def _with_existing_file(entry: CatalogEntry, *, allow_pickle: bool) -> CatalogEntry:
    """Return the entry of a hub repository with its weight file: safetensors, if it exists."""
    try:
        _cached_or_downloaded(entry)
    except WeightsError as error:
        if "has no file" not in error.problem:
            raise
        if not allow_pickle:
            raise WeightsError(
                f"{entry.repo} has no model.safetensors",
                fix="choose another repository. vitft finetune reads a pytorch_model.bin that you "
                "trust with --allow-pickle",
            ) from error
        return replace(entry, file="pytorch_model.bin")
    return entry


def _cached_or_downloaded(entry: CatalogEntry) -> Path:
    """Return the path of the cached file, unverified, after downloading it if necessary."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    if constants.is_offline_mode():
        return _from_cache(entry, why="HF_HUB_OFFLINE is set")
    if re.fullmatch(r"[0-9a-f]{40}", entry.revision):  # a commit never changes
        with contextlib.suppress(WeightsError):
            return _from_cache(entry, why="")
    url = hf_hub_url(entry.repo, entry.file, revision=entry.revision)
    timeout: Any = (1.5, _ANSWER_S, _ANSWER_S, _ANSWER_S)  # seconds: connect, read, write, pool
    options: Any = {} if are_progress_bars_disabled() else {"tqdm_class": _DownloadBar}
    options |= {"revision": entry.revision, "etag_timeout": _ANSWER_S}
    attempt, deadline, is_reachable = 0, time.monotonic() + _BUSY_PATIENCE_S, False
    while True:
        attempt += 1
        try:
            with _readable_errors(entry), plain_http():
                if not is_reachable:
                    metadata = get_hf_file_metadata(url, timeout=timeout)
                    if metadata.commit_hash is None or metadata.etag is None:
                        raise _not_a_hub()
                    attempt, is_reachable = 1, True
                return Path(hf_hub_download(entry.repo, entry.file, **options))
        except (http_error(), OSError) as error:  # OSError: the content has the wrong length
            kind = type(error).__name__
            if not is_reachable and kind in ("ConnectError", "ConnectTimeout"):
                why = f"{constants.ENDPOINT} cannot be reached ({short_message(error)})"
                return _from_cache(entry, why=why)
            most = _ATTEMPTS
            if is_reachable:
                deadline = time.monotonic() + _BUSY_PATIENCE_S
                most = 0 if "Timeout" in kind else most  # huggingface_hub tried five times
            elif status_of(error) is not None:
                most = 9  # a busy hub answers
            _wait_or_raise(entry, error, attempt, most, deadline)


def _from_cache(entry: CatalogEntry, *, why: str) -> Path:
    """Return the path of the file in the cache, without network access; `why` is the reason."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo, file, revision = entry.repo, entry.file, entry.revision
    try:
        return Path(hf_hub_download(repo, file, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise WeightsError(
            f"{entry.name} ({entry.repo}) is not in the cache, and {why}",
            fix=f"run `vitft weights fetch {entry.name}` while online, pass the path of a weight "
            "file, or use --weights demo",
        ) from error


def _wait_or_raise(
    entry: CatalogEntry, error: Exception, attempt: int, most: int, deadline: float
) -> None:
    """Wait before another attempt, or raise the error for the download if it would not help."""
    from huggingface_hub import constants

    if getattr(error, "errno", None) in _DISK_ERRORS:
        with writing(Path(constants.HF_HUB_CACHE), option="HF_HOME"):
            raise error
    status, is_loop = status_of(error), type(error).__name__ == "TooManyRedirects"
    if status == 404 or is_loop:
        raise _not_a_hub() from error  # a real hub explains a 404 response
    stated = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
    is_stated = re.fullmatch(r"\d{1,4}", stated)
    wait = float(stated) + 0.1 if is_stated else FIRST_WAIT_S * 2 ** (attempt - 1)
    is_refused = status is not None and status not in (408, 429) and status < 500
    reason = describe_failure(error)
    if is_refused or attempt >= most or time.monotonic() + wait > deadline:
        raise WeightsError(
            f"download of {entry.repo}/{entry.file} failed: {reason}. No partial file was kept",
            fix="run the command again, or download the file by other means and pass its path",
        ) from error
    log.info(f"download of {entry.file} interrupted ({reason}), retrying in {wait:.1f} s")
    time.sleep(wait)


# huggingface_hub with plain HTTP, readable errors and a progress bar ------------------------------


@contextlib.contextmanager
def plain_http() -> Iterator[None]:
    """Use plain HTTP instead of Xet in the `with` block, with less logging and shorter timeouts.

    The Xet client waits indefinitely if its storage cannot be reached.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import logging

    quiet: Any = logging
    level, xet_was_disabled = logging.get_verbosity(), constants.HF_HUB_DISABLE_XET
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    quiet.set_verbosity_error()  # the warnings contain signed URLs; vitft logs the same events
    constants.HF_HUB_DISABLE_XET = True
    # Seconds without data after which huggingface_hub reconnects, at most five times.
    constants.HF_HUB_DOWNLOAD_TIMEOUT = min(timeout, 8)
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET, constants.HF_HUB_DOWNLOAD_TIMEOUT = xet_was_disabled, timeout
        logging.set_verbosity(level)


class _DownloadBar(console.Progress):
    """vitft's progress bar, with the part of tqdm's interface that huggingface_hub uses."""

    def __init__(self, *, desc: str = "", total: int | None = None, **_: object) -> None:
        megabytes = max(1, round(total / 1e6)) if total else None
        super().__init__(f"fetching {console.visible(desc)}", megabytes, unit="MB")
        self.bytes = 0

    def update(self, count: int) -> None:
        self.bytes += count
        if (megabytes := round(self.bytes / 1e6)) > self.done:
            self.advance(megabytes - self.done)


@contextlib.contextmanager
def _readable_errors(entry: CatalogEntry) -> Iterator[None]:
    """Raise a `WeightsError` for errors that the hub reports; connection errors pass through."""
    from huggingface_hub import constants, errors

    url = f"{constants.ENDPOINT}/{entry.repo}"
    copies = [row.name for row in catalog_entries() if row.gated_source == entry.repo]
    instead = f", or use {copies[0]}, which requires no account" if copies else ""
    reasons: dict[type, tuple[str, str]] = {
        errors.GatedRepoError: (
            f"{entry.repo} is gated: its publisher requires an account that has accepted its terms",
            f"accept them at {url} and set HF_TOKEN{instead}",
        ),
        errors.RepositoryNotFoundError: (
            f"repository {entry.repo} does not exist on the hub or is private",
            "check the name, or set HF_TOKEN to a token with access to the repository",
        ),
        errors.RevisionNotFoundError: (
            f"{entry.repo} has no revision {entry.revision}",
            f"choose one of the revisions listed at {url}",
        ),
        errors.RemoteEntryNotFoundError: (
            f"{entry.repo} has no file {entry.file}",
            f"choose one of the files listed at {url}/tree/main",
        ),
    }
    try:
        yield
    except errors.HfHubHTTPError as error:
        kind = next((kind for kind in type(error).__mro__ if kind in reasons), None)
        if kind is None:
            raise
        problem, fix = reasons[kind]
        raise WeightsError(problem, fix=fix) from error
    except errors.LocalEntryNotFoundError as error:
        if not isinstance(error.__cause__, errors.FileMetadataError):
            raise
        raise _not_a_hub() from error


def _not_a_hub() -> WeightsError:
    """Return the error for a response that does not come from a hub."""
    from huggingface_hub import constants

    return WeightsError(
        f"{constants.ENDPOINT} does not respond like a Hugging Face hub",
        fix="check HF_ENDPOINT, and check whether the network requires a login in a browser",
    )


def http_error() -> type[Exception]:
    """Return the exception class of httpx or its successor from which the hub's errors derive."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of the response that caused an exception, if there is one."""
    return getattr(getattr(error, "response", None), "status_code", None)


def describe_failure(error: Exception) -> str:
    """Return why a download failed: wrong size, HTTP status or first line of the exception."""
    if sizes := re.search(r"should be of size (\d+) but has size (\d+)", str(error)):
        return f"received {sizes[2]} bytes instead of {sizes[1]}"
    status = status_of(error)
    return f"HTTP status {status}" if status else short_message(error)


def short_message(error: Exception) -> str:
    """Return the first line of an exception, up to 200 characters, with access tokens masked."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return re.sub(r"(?i)(hf_|bearer\s+)[\w.\\-]+", r"\1***", first)
