"""Responses of the labelling server to errors."""

import asyncio
import json

import pytest
from starlette.requests import Request

from vitft.serve.label.app import user_error
from vitft.system.errors import DataError, ResourceError, RunError, UsageError, VitftError


@pytest.mark.parametrize(
    ("kind", "status"), [(UsageError, 422), (DataError, 409), (RunError, 500), (ResourceError, 500)]
)
def test_the_kind_of_an_error_is_its_status(kind: type[VitftError], status: int) -> None:
    response = asyncio.run(user_error(Request({"type": "http"}), kind("bad", fix="better")))

    assert response.status_code == status
    assert json.loads(bytes(response.body)) == {"error": "bad", "fix": "better"}
