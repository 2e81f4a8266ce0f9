"""Parts of the server's application: the end of a server, refusals, and texts of errors."""

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.serve.test_serve import CLASSES, Plain, make_predictor
from vitft.predict.postprocess import Postprocess
from vitft.predict.run_info import RunInfo
from vitft.predict.torch_engine import Predictor
from vitft.serve.access import access_for
from vitft.serve.app import (
    SECURITY_HEADERS,
    SecurityMiddleware,
    make_app,
    parameter_error,
    refusal,
    trained_on,
)
from vitft.serve.batching import BatchQueue
from vitft.serve.limits import ServeLimits
from vitft.serve.schemas import JsonResponse

ACCESS = access_for("127.0.0.1", [])


def scope_of(method: str = "GET", query: str = "", **headers: str) -> dict[str, Any]:
    """Return the scope of a request; `_` in a header's name stands for `-`."""
    sent = {"host": "127.0.0.1:80", **headers}
    return {
        "type": "http",
        "method": method,
        "path": "/",
        "query_string": query.encode("latin-1"),
        "headers": [(n.replace("_", "-").encode(), value.encode()) for n, value in sent.items()],
    }


async def receive() -> Message:
    return {"type": "http.request", "body": b""}


def answered_by(app: Any, scope: Mapping[str, Any]) -> list[Message]:
    """Return the messages that an application sends behind the checks."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(SecurityMiddleware(app, ACCESS)(dict(scope), receive, send))
    return sent


def headers_of(message: Message) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in message["headers"]}


def test_a_request_cut_off_before_its_response_learns_that_the_server_stops() -> None:
    async def app(_: Scope, __: Receive, ___: Send) -> None:
        raise asyncio.CancelledError

    start, body = answered_by(app, scope_of())

    assert start["status"] == 503
    assert json.loads(body["body"]) == {"error": "the server is shutting down"}
    assert SECURITY_HEADERS.items() <= headers_of(start).items()


def test_a_response_that_has_begun_is_not_followed_by_another() -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asyncio.CancelledError

    (start,) = answered_by(app, scope_of())

    assert start["status"] == 200


def test_headers_of_the_response_itself_are_kept() -> None:
    response = JsonResponse(200, {}, {"cache-control": "private"})

    start, _ = answered_by(response, scope_of())

    assert headers_of(start) == {
        "content-length": "2",
        "content-type": "application/json",
        **SECURITY_HEADERS,
        "cache-control": "private",
    }


def test_what_is_no_request_is_neither_checked_nor_changed() -> None:
    async def app(scope: Scope, _: Receive, send: Send) -> None:
        await send({"type": f"{scope['type']}.startup.complete"})

    assert answered_by(app, {"type": "lifespan"}) == [{"type": "lifespan.startup.complete"}]


@pytest.mark.parametrize(
    ("scope", "status", "error"),
    [
        (scope_of(host="evil.example", query="key=k"), 421, "host name not allowed"),
        (scope_of("POST", "key=k", origin="http://evil.example"), 403, "cross-origin requests"),
        (scope_of("PUT", "key=k", sec_fetch_site="cross-site"), 403, "cross-origin requests"),
        (scope_of("GET", "key=k", origin="http://evil.example"), 0, ""),
        (scope_of("HEAD", "key=k", sec_fetch_site="cross-site"), 0, ""),
        (scope_of("OPTIONS", "key=k", origin="null"), 0, ""),
        (scope_of("POST", "key=k", origin="http://127.0.0.1"), 0, ""),
        (scope_of(), 403, "wrong or missing key"),
        (scope_of(query="key=K"), 403, "wrong or missing key"),
        (scope_of(query="key=\xff"), 403, "wrong or missing key"),
        (scope_of(query="key=k&key=x"), 403, "wrong or missing key"),
        (scope_of(query="key=x&key=k"), 0, ""),
    ],
)
def test_requests_are_refused_by_host_then_origin_then_key(
    scope: dict[str, Any], status: int, error: str
) -> None:
    found = refusal(scope, ACCESS, key="k")

    assert (found.status_code if found else 0) == status
    if found:
        assert json.loads(bytes(found.body))["error"].startswith(error)


def test_a_server_without_a_key_needs_none() -> None:
    assert refusal(scope_of(), ACCESS) is None
    assert refusal(scope_of(query="key=x"), ACCESS) is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ({"type": "missing", "input": None}, "the query parameter side is missing"),
        (
            {"type": "int_parsing", "input": "x" * 60},
            f"invalid side '{'x' * 50}': use an integer",
        ),
        (
            {"type": "greater_than_equal", "input": "0", "ctx": {"ge": 1000}},
            "invalid side '0': use an integer of 1,000 or more",
        ),
        (
            {"type": "less_than_equal", "input": "ä", "ctx": {"le": 1600}},
            "invalid side '\\xe4': use an integer of at most 1,600",
        ),
    ],
)
def test_an_error_of_a_parameter_states_what_to_send(error: dict[str, Any], text: str) -> None:
    assert parameter_error({"loc": ("query", "side"), **error}) == text


def test_the_date_of_a_model_is_the_local_one_at_the_end_of_its_run() -> None:
    def info(**fields: Any) -> RunInfo:
        usual: dict[str, Any] = {"name": "a", "classes": 2, "top1": None, "images": 0}
        return RunInfo(**{**usual, "at_chance": "", **fields})

    noon = datetime(2024, 2, 29, 12).timestamp()

    assert trained_on(info(trained_at=noon)) == "2024-02-29"
    assert trained_on(info(trained_at=noon, is_file_age=True)) is None
    assert trained_on(None) is None


def test_json_has_no_characters_outside_ascii_and_no_nan() -> None:
    response = JsonResponse(201, {"name": "ä\udcff"}, {"retry-after": "1"})

    assert response.body == b'{"name": "\\u00e4\\udcff"}'
    assert (response.status_code, response.headers["retry-after"]) == (201, "1")
    assert response.headers["content-type"] == "application/json"
    with pytest.raises(ValueError, match="JSON"):
        JsonResponse(200, {"value": float("nan")})


def schema_of(predictor: Predictor) -> Any:
    """Return the description of the routes that GET /openapi.json sends."""
    queue = BatchQueue(predictor, Postprocess(classes=CLASSES), ServeLimits())
    checks: Any = make_app(queue, ACCESS).app
    return checks.app.openapi()


def test_the_schema_states_the_bodies_parameters_and_errors_of_each_post() -> None:
    paths = schema_of(make_predictor())["paths"]

    assert {path: [*methods] for path, methods in paths.items()} == {
        "/healthz": ["get"],
        "/labels": ["get"],
        "/predict": ["post"],
        "/explain": ["post"],
    }
    for path in ("/predict", "/explain"):
        route = paths[path]["post"]
        assert {*route["responses"]} == {"200", "408", "413", "415", "422", "503"}
        assert route["requestBody"]["required"] is True
        content = route["requestBody"]["content"]
        assert [*content] == ["multipart/form-data", "image/*"]
        assert content["image/*"]["schema"] == {"type": "string", "format": "binary"}
        for status, response in route["responses"].items():
            if status != "200":
                schema = response["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorSchema"}
    (top,) = paths["/predict"]["post"]["parameters"]
    assert (top["name"], top["required"]) == ("top_k", False)
    limits = {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 5}
    assert limits.items() <= top["schema"].items()
    (name,) = paths["/explain"]["post"]["parameters"]
    assert (name["name"], name["in"], name["required"]) == ("class", "query", False)
    picture = paths["/explain"]["post"]["responses"]["200"]
    assert picture["description"] == "A PNG image."
    assert "image/png" in picture["content"]


def test_the_schema_of_a_model_that_cannot_be_explained_has_no_route_for_it() -> None:
    assert [*schema_of(make_predictor(model=Plain()))["paths"]] == [
        "/healthz",
        "/labels",
        "/predict",
    ]


def test_the_schema_describes_probabilities_and_what_a_model_may_lack() -> None:
    schemas = schema_of(make_predictor())["components"]["schemas"]

    shown = schemas["ClassProbabilitySchema"]["properties"]
    assert [*shown] == ["class", "probability"]
    assert {"minimum": 0, "maximum": 1}.items() <= shown["probability"].items()
    facts = schemas["LabelsSchema"]
    defaults = {
        name: field["default"] for name, field in facts["properties"].items() if "default" in field
    }
    assert {name: value for name, value in defaults.items() if value is not None} == {
        "rounded": False
    } | dict.fromkeys(("at_chance", "cross_validated_text", "status", "tested_text", "weights"), "")
    assert {*facts["required"]} >= {"run", "classes", "explains", "max_bytes", "max_images"}
    assert schemas["PredictionSchema"]["required"] == ["path"]
