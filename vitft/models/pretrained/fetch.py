"""A catalogue row -> a file on this machine, with the digest of its content verified.

huggingface_hub downloads and caches. What it leaves open is made good here: it checks a file's size
and never its content, gives up at a reset connection or a 5xx, takes 24 s to say that there is no
network, and waits for ever for a Xet storage that does not answer. What the file holds is none of
our business.
"""

import contextlib
import errno
import hashlib
import importlib
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitft.models.pretrained.catalog import Entry
from vitft.models.pretrained.locate import bundled
from vitft.system import console
from vitft.system.errors import ResourceError, WeightsError

log = logging.getLogger(__name__)

CONNECT_S = 1.5
"""Seconds after which a hub that cannot be connected to counts as unreachable."""
ANSWER_S = 5.0
"""Seconds after which a question to the hub is asked again."""
ATTEMPTS = 3
"""Tries of a question or a download that breaks off; the library itself does not repeat these."""
FIRST_WAIT_S = 0.5
"""Seconds before the second try; the wait doubles with every further one."""
PATIENCE_S = 60.0
"""Seconds in which a hub that says "later" is asked again; the hub may say when."""
STALL_S = 8
"""Seconds of silence after which the library tries again, five times at most."""
STALE_S = 600.0
"""Age in seconds at which a partial download counts as left behind by a killed process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A file on this machine and where it came from."""

    path: Path
    repo: str = ""
    revision: str = ""
    """Commit of the repository, not the branch."""
    sha256: str


def fetch(entry: Entry, *, allow_pickle: bool = False) -> Fetched:
    """The file of a catalogue row, from the cache or the hub.

    A copy whose content is not what the hub announced is deleted and fetched again, once.

    Raises:
        WeightsError: Offline, unknown on the hub, refused, broken off, or another content than
            the hub announced.
        ResourceError: The disk is full.
    """
    if entry.path:
        path = bundled(entry)
        return Fetched(path=path, sha256=sha256_of(path))
    if "-nc" in entry.licence:
        log.warning(f"the licence of {entry.name} is {entry.licence}: not for commercial use")
    if entry.is_foreign:
        entry = with_its_file(entry, allow_pickle=allow_pickle)
    damage = ""
    for _ in range(2):
        try:
            path = cached_or_downloaded(entry)
        except WeightsError as error:
            if not damage:
                raise
            raise WeightsError(
                f"the cached copy was damaged ({damage}) and is deleted; {error.problem}",
                fix=error.fix,
            ) from error
        digest = sha256_of(path)
        damage = difference(path, digest, entry.sha256)
        if not damage:
            tell_leftovers(path)
            if entry.is_foreign:
                fetch_beside(entry, revision=path.parent.name)
            return Fetched(path=path, repo=entry.repo, revision=path.parent.name, sha256=digest)
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        log.info(f"the copy of {entry.repo}/{entry.file} was damaged and is deleted: {damage}")
    raise WeightsError(
        f"{entry.repo}/{entry.file} is damaged: {damage}; nothing was kept",
        fix="run it again later, or take other weights: the hub or the way to it is at fault",
    )


def difference(path: Path, sha256: str, wanted: str) -> str:
    """How a cached file's content differs from what was announced, in words; empty if it does not.

    The hub's ETag, under which the library stores a file, is the sha256 of a large file and git's
    sha1 of a small one.
    """
    announced = path.resolve().name
    if wanted and wanted != sha256:
        return f"sha256 {sha256}, published {wanted}"
    if re.fullmatch(r"[0-9a-f]{64}", announced) and announced != sha256:
        return f"sha256 {sha256}, announced {announced}"
    if re.fullmatch(r"[0-9a-f]{40}", announced) and announced != git_sha1(path):
        return f"git sha1 {git_sha1(path)}, announced {announced}"
    return ""


def sha256_of(path: Path) -> str:
    """Digest of a file's content, in hexadecimal (about 1 s per GB)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_sha1(path: Path) -> str:
    """The name that git gives a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def with_its_file(entry: Entry, *, allow_pickle: bool) -> Entry:
    """The row of any repository, with the name of the weight file that it really has."""
    try:
        cached_or_downloaded(entry)
    except WeightsError as error:
        if "has no file" not in error.problem:
            raise
        if not allow_pickle:
            raise WeightsError(
                f"{entry.repo} has no model.safetensors",
                fix="take another repository; if it has a pytorch_model.bin that you trust, "
                "add --allow-pickle",
            ) from error
        return replace(entry, file="pytorch_model.bin")
    return entry


def fetch_beside(entry: Entry, *, revision: str) -> None:
    """What describes a foreign file, if the repository has it, of the same commit."""
    for name in ("config.json", "preprocessor_config.json"):
        with contextlib.suppress(WeightsError):
            path = cached_or_downloaded(replace(entry, file=name, revision=revision))
            if difference(path, sha256_of(path), ""):
                path.resolve().unlink(missing_ok=True)
                path.unlink(missing_ok=True)


def tell_leftovers(path: Path) -> None:
    """Say what killed downloads of this repository left in the cache; nobody else will."""
    parts = [
        part
        for part in path.resolve().parent.glob("*.incomplete")
        if time.time() - part.stat().st_mtime > STALE_S
    ]
    if parts:
        size = sum(part.stat().st_size for part in parts) / 1e6
        log.info(f"{len(parts)} broken downloads ({size:.0f} MB) may be deleted: {parts[0].parent}")


def cached_or_downloaded(entry: Entry) -> Path:
    """The file in the hub's cache, put there if need be; its content is not verified yet."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return cached(entry, why="HF_HUB_OFFLINE is set")
    if re.fullmatch(r"[0-9a-f]{40}", entry.revision):  # a commit never changes
        with contextlib.suppress(WeightsError):
            return cached(entry, why="")
    unreachable = ask_hub(entry)
    if unreachable:
        return cached(entry, why=f"{constants.ENDPOINT} cannot be reached ({unreachable})")
    return download(entry)


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
            fix="connect once to download it (vitft weights fetch), give a weight file, or use "
            "--weights demo",
        ) from error


def ask_hub(entry: Entry) -> str:
    """Ask for the file until the hub answers; why it cannot be reached, or nothing.

    The library would repeat an unanswered question for 24 s before it says so.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(entry.repo, entry.file, revision=entry.revision)
    http = importlib.import_module(http_error().__module__.partition(".")[0])
    timeout: Any = http.Timeout(ANSWER_S, connect=CONNECT_S)
    started = time.monotonic()
    for attempt in range(1, 10):
        try:
            with sentences(entry):
                answer = get_hf_file_metadata(url, timeout=timeout)
        except http_error() as error:
            if type(error).__name__ in ("ConnectError", "ConnectTimeout"):
                return short(error)
            wait = seconds_to_wait(error, attempt)
            is_late = wait is None or time.monotonic() - started + wait > PATIENCE_S
            if is_late or (attempt >= ATTEMPTS and status_of(error) is None):
                raise refused(entry, error) from error
            log.info(f"{constants.ENDPOINT}: {reason_of(error)}; asking again in {wait:.1f} s")
            time.sleep(wait or 0)
            continue
        if answer.commit_hash is None or answer.etag is None:
            raise no_hub()
        return ""
    raise no_hub()


def download(entry: Entry) -> Path:
    """The file, fetched again where the connection breaks off."""
    from huggingface_hub import hf_hub_download

    failure: Exception | None = None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with sentences(entry), plain_http():
                return Path(
                    hf_hub_download(
                        entry.repo,
                        entry.file,
                        revision=entry.revision,
                        etag_timeout=ANSWER_S,
                        tqdm_class=Bar,
                    )
                )
        except (http_error(), OSError) as error:  # OSError: a body shorter or longer than announced
            check_disk(entry, error)
            failure = error
            wait = seconds_to_wait(error, attempt)
            is_patient = "Timeout" in type(error).__name__  # the library has tried five times
            if wait is None or is_patient or attempt == ATTEMPTS:
                break
            log.info(f"download of {entry.file} broke off ({reason_of(error)}); trying again")
            time.sleep(min(wait, PATIENCE_S / ATTEMPTS))
    raise refused(entry, failure) from failure


def check_disk(entry: Entry, error: Exception) -> None:
    """What no second try can mend: no space, or no permission to write."""
    from huggingface_hub import constants

    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        raise ResourceError(
            f"disk full while downloading {entry.name}", fix="free some space, or set HF_HOME"
        ) from error
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise WeightsError(
            f"the cache {constants.HF_HUB_CACHE} cannot be written",
            fix="set HF_HOME to a folder that can, or download it where it can",
        ) from error


def seconds_to_wait(error: Exception, attempt: int) -> float | None:
    """How long to wait before another try; None where another try would fail as well."""
    status = status_of(error)
    if status is not None and status not in (408, 429) and status < 500:
        return None
    if type(error).__name__ == "TooManyRedirects":
        return None
    told = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
    return (
        float(told) + 0.1 if re.fullmatch(r"\d{1,4}", told) else FIRST_WAIT_S * 2 ** (attempt - 1)
    )


def status_of(error: Exception) -> int | None:
    """The HTTP status that an exception reports, if it came from an answer."""
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status


def reason_of(error: Exception | None) -> str:
    """The status, or else the first line of an exception."""
    status = status_of(error) if error else None
    sizes = re.search(r"should be of size (\d+) but has size (\d+)", str(error))
    if sizes:
        return f"{sizes[2]} bytes came instead of {sizes[1]}"
    return f"status {status}" if status else short(error)


def refused(entry: Entry, error: Exception | None) -> WeightsError:
    """The error of a download that did not come to an end."""
    if type(error).__name__ == "TooManyRedirects" or status_of(error or OSError()) == 404:
        return no_hub()  # a hub says in words what it does not find
    return WeightsError(
        f"download of {entry.repo}/{entry.file} failed: {reason_of(error)}; nothing was kept",
        fix="run it again, or give a file that you downloaded otherwise",
    )


def no_hub() -> WeightsError:
    """The error of an answer that no hub gives."""
    from huggingface_hub import constants

    return WeightsError(
        f"{constants.ENDPOINT} does not answer like a hub",
        fix="check HF_ENDPOINT, and whether a login page stands in front of the network",
    )


@contextlib.contextmanager
def plain_http() -> Iterator[None]:
    """Without Xet, whose client waits for ever where its storage is out of reach, and quietly.

    Every repository can be read over plain HTTP, and the digest is verified here in any case.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import logging

    quieten: Any = logging
    level, was_disabled = logging.get_verbosity(), constants.HF_HUB_DISABLE_XET
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    quieten.set_verbosity_error()  # its warnings show signed addresses; we say what happens
    constants.HF_HUB_DISABLE_XET = True
    constants.HF_HUB_DOWNLOAD_TIMEOUT = min(timeout, STALL_S)
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET, constants.HF_HUB_DOWNLOAD_TIMEOUT = was_disabled, timeout
        logging.set_verbosity(level)


class Bar:
    """What the library calls of tqdm, shown as the rest of vitft shows progress, in MB."""

    def __init__(self, *, desc: str = "", total: int | None = None, **_: object) -> None:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled

        self.bytes, self.shown = 0, 0
        self.progress: console.Progress | None = None
        if total and not are_progress_bars_disabled():
            label, size = f"fetching {console.visible(desc)}", max(1, round(total / 1e6))
            self.progress = console.Progress(label, size, unit="MB").__enter__()

    def update(self, count: int) -> None:
        self.bytes += count
        whole = round(self.bytes / 1e6)
        if self.progress and whole > self.shown:
            self.progress.advance(whole - self.shown)
            self.shown = whole

    def close(self) -> None:
        if self.progress:
            self.progress.__exit__()
            self.progress = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
            fix="if it is private, set HF_TOKEN to a token that may read it; else choose others",
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
        raise no_hub() from error


def http_error() -> type[Exception]:
    """What every failure of the hub's HTTP client derives from, be it httpx or its successor."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def short(error: Exception | None) -> str:
    """The first line of an exception, at most 200 characters, without any token."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return re.sub(r"(?i)(hf_|bearer\s+)[\w.\\-]+", r"\1***", first)
