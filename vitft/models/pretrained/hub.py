"""Wrapper around the Hugging Face Hub client: plain HTTP, readable errors and a progress bar."""

import contextlib
import errno
import re
from collections.abc import Iterator
from typing import Any

from vitft.models.pretrained.catalog import CatalogEntry, catalog_entries
from vitft.system import console
from vitft.system.errors import ResourceError, WeightsError


@contextlib.contextmanager
def plain_http() -> Iterator[None]:
    """Use plain HTTP instead of Xet in the `with` block, with less logging and shorter timeouts.

    The Xet client waits indefinitely if its storage cannot be reached. Every repository can also be
    read over plain HTTP, and vitft verifies the digest in any case.
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


class DownloadBar:
    """vitft's progress bar, with the part of tqdm's interface that huggingface_hub uses."""

    def __init__(self, *, desc: str = "", total: int | None = None, **_: object) -> None:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled

        self.bytes, self.shown_mb = 0, 0
        self.progress: console.Progress | None = None
        if total and not are_progress_bars_disabled():
            label, size = f"fetching {console.visible(desc)}", max(1, round(total / 1e6))
            self.progress = console.Progress(label, size, unit="MB").__enter__()

    def update(self, count: int) -> None:
        self.bytes += count
        megabytes = round(self.bytes / 1e6)
        if self.progress and megabytes > self.shown_mb:
            self.progress.advance(megabytes - self.shown_mb)
            self.shown_mb = megabytes

    def close(self) -> None:
        if self.progress:
            self.progress.__exit__()
            self.progress = None

    def __enter__(self) -> "DownloadBar":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def readable_errors(entry: CatalogEntry) -> Iterator[None]:
    """Raise a `WeightsError` for errors that the hub reports; connection errors pass through."""
    from huggingface_hub import constants, errors

    url = f"{constants.ENDPOINT}/{entry.repo}"
    copies = [row.name for row in catalog_entries() if row.gated_source == entry.repo]
    instead = f", or use {copies[0]}, which requires no account" if copies else ""
    reasons = {
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
    except tuple(reasons) as error:
        problem, fix = next(reasons[kind] for kind in reasons if isinstance(error, kind))
        raise WeightsError(problem, fix=fix) from error
    except errors.LocalEntryNotFoundError as error:
        if not isinstance(error.__cause__, errors.FileMetadataError):
            raise
        raise not_a_hub() from error


def not_a_hub() -> WeightsError:
    """Return the error for a response that does not come from a hub."""
    from huggingface_hub import constants

    return WeightsError(
        f"{constants.ENDPOINT} does not respond like a Hugging Face hub",
        fix="check HF_ENDPOINT, and check whether the network requires a login in a browser",
    )


def check_disk(entry: CatalogEntry, error: Exception) -> None:
    """Raise an error if a download failed because the disk is full or the cache not writable."""
    from huggingface_hub import constants

    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        raise ResourceError(
            f"the disk is full: {entry.name} could not be downloaded",
            fix="free some space, or set HF_HOME to a folder on another disk",
        ) from error
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise WeightsError(
            f"the cache {constants.HF_HUB_CACHE} is not writable",
            fix="set HF_HOME to a writable folder",
        ) from error


def http_error() -> type[Exception]:
    """Return the exception class that huggingface_hub's HTTP errors derive from.

    It comes from httpx or its successor, and huggingface_hub does not export it.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of the response that caused an exception, or None if there is none."""
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
