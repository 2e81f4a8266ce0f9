"""Assumptions about huggingface_hub beyond its public interface, and what is said of its errors."""

import errno
import logging
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, errors
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import logging as hub_logging

from vitft.models.pretrained.catalog import CatalogEntry, catalog_entries
from vitft.models.pretrained.hub import (
    DownloadBar,
    check_disk,
    describe_failure,
    http_error,
    plain_http,
    readable_errors,
    status_of,
)
from vitft.system.errors import ResourceError, WeightsError


def test_connection_errors_and_refusals_have_one_base_class() -> None:
    """If this fails, let `http_error` return the base of the errors of the new HTTP client."""
    base = http_error()
    names = {each.__name__ for each in base.__subclasses__()}

    assert issubclass(HfHubHTTPError, base)
    assert base.__name__ == "HTTPError"
    assert "RequestError" in names  # from which ConnectError and the timeouts derive


def test_xet_and_timeouts_are_switched_by_constants_and_restored() -> None:
    """If this fails, set HF_HUB_DISABLE_XET and HF_HUB_DOWNLOAD_TIMEOUT before the import."""
    before = constants.HF_HUB_DISABLE_XET, constants.HF_HUB_DOWNLOAD_TIMEOUT

    with plain_http():
        assert constants.HF_HUB_DISABLE_XET is True
        assert constants.HF_HUB_DOWNLOAD_TIMEOUT <= 8

    assert before == (constants.HF_HUB_DISABLE_XET, constants.HF_HUB_DOWNLOAD_TIMEOUT)


class Refusal(Exception):
    """An error with the response of a server."""

    def __init__(self, status: int, text: str = "refused") -> None:
        super().__init__(text)
        self.response = SimpleNamespace(status_code=status, headers={})


@pytest.mark.parametrize("timeout", [3, 8, 60])
def test_a_connection_without_data_is_given_up_after_eight_seconds(
    monkeypatch: pytest.MonkeyPatch, timeout: int
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", timeout)
    level = hub_logging.get_verbosity()

    with plain_http():
        assert min(timeout, 8) == constants.HF_HUB_DOWNLOAD_TIMEOUT
        assert hub_logging.get_verbosity() == logging.ERROR

    assert timeout == constants.HF_HUB_DOWNLOAD_TIMEOUT
    assert hub_logging.get_verbosity() == level


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_the_fault_of_the_hub(number: int) -> None:
    entry = CatalogEntry(name="vit", licence="")

    with pytest.raises(ResourceError, match="the disk is full: vit could not be downloaded"):
        check_disk(entry, OSError(number, "x"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_cache_that_may_not_be_written_is_named(number: int) -> None:
    entry = CatalogEntry(name="vit", licence="")

    with pytest.raises(WeightsError, match="is not writable"):
        check_disk(entry, OSError(number, "x"))
    check_disk(entry, OSError(errno.ECONNRESET, "x"))
    check_disk(entry, ValueError("x"))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError("file should be of size 100 but has size 30."),
            "received 30 bytes instead of 100",
        ),
        (Refusal(503), "HTTP status 503"),
        (ValueError("first\nsecond"), "first"),
        (ValueError("  "), "ValueError"),
        (ValueError("x" * 300), "x" * 200),
        (ValueError("token hf_abcDEF-1 and Bearer a.b"), "token hf_*** and Bearer ***"),
        (None, "None"),
    ],
)
def test_a_failure_is_described_by_size_status_or_its_first_line(
    error: Exception | None, text: str
) -> None:
    assert describe_failure(error) == text


def test_the_status_is_that_of_the_response() -> None:
    assert status_of(Refusal(404)) == 404
    assert status_of(ValueError()) is None


def test_a_download_advances_by_whole_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []

    class Recorder:
        def __init__(self, label: str, total: int, *, unit: str) -> None:
            steps.append((label, total, unit))

        def __enter__(self) -> "Recorder":
            return self

        def advance(self, count: int) -> None:
            steps.append(count)

        def __exit__(self, *_: object) -> None:
            steps.append("end")

    monkeypatch.setattr("vitft.system.console.Progress", Recorder)

    with DownloadBar(desc="a\x1b", total=3_400_000) as bar:
        for size in (400_000, 700_000, 400_000, 1_900_000):
            bar.update(size)
    bar.close()
    DownloadBar(desc="b", total=10).close()
    with DownloadBar(desc="c", total=None) as silent:
        silent.update(10**7)

    assert steps[1:5] == [1, 1, 1, "end"]
    assert [step[1:] for step in steps if isinstance(step, tuple)] == [(3, "MB"), (1, "MB")]
    assert "\x1b" not in str(steps)


def raised(kind: type[Exception], cause: Exception | None = None) -> Exception:
    """Return an error of huggingface_hub without the response that it usually needs."""
    error = type(kind.__name__, (kind,), {"__init__": lambda _: None})()
    error.__cause__ = cause
    return error


GATED = next(entry for entry in catalog_entries() if entry.gated_source)


@pytest.mark.parametrize(
    ("error", "repo", "problem", "fix"),
    [
        (
            raised(errors.GatedRepoError),
            "a/b",
            "a/b is gated",
            "accept them at URL and set HF_TOKEN",
        ),
        (
            raised(errors.GatedRepoError),
            GATED.gated_source,
            f"{GATED.gated_source} is gated",
            f"accept them at URL and set HF_TOKEN, or use {GATED.name}, which requires no account",
        ),
        (raised(errors.RepositoryNotFoundError), "a/b", "repository a/b does not exist", "check"),
        (raised(errors.RevisionNotFoundError), "a/b", "a/b has no revision r", "listed at URL"),
        (raised(errors.RemoteEntryNotFoundError), "a/b", "a/b has no file f", "at URL/tree/main"),
        (
            raised(errors.LocalEntryNotFoundError, raised(errors.FileMetadataError)),
            "a/b",
            "does not respond like a Hugging Face hub",
            "check HF_ENDPOINT",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_the_hub_refuses_is_reported_with_a_fix(
    error: Exception, repo: str, problem: str, fix: str
) -> None:
    entry = CatalogEntry(name="x", licence="", repo=repo, file="f", revision="r")

    with pytest.raises(WeightsError) as caught, readable_errors(entry):
        raise error

    assert problem in caught.value.problem
    shown = caught.value.fix.replace(f"{constants.ENDPOINT}/{repo}", "URL")
    assert fix in shown
    assert ("or use" in shown) == ("or use" in fix)


@pytest.mark.parametrize(
    "error", [raised(errors.LocalEntryNotFoundError), raised(http_error()), ValueError()]
)
def test_errors_of_the_connection_and_the_cache_are_not_changed(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, readable_errors(GATED):
        raise error

    assert caught.value is error
