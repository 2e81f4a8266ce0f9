"""Assumptions about huggingface_hub beyond its public interface."""

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError

from vitft.models.pretrained.hub import http_error, plain_http


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
