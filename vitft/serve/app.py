"""ASGI application: routes, OpenAPI schema, error responses, access checks and headers."""

import asyncio
import http
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitft.messages.results import chance_clause, distinguishes, estimate_text
from vitft.metrics.summary import Results
from vitft.serve.batching import CONTENT_TYPE, BatchQueue, ServerMetrics
from vitft.serve.limits import ANSWER_SECONDS, Access, host_name, is_own_page
from vitft.serve.page import build_page
from vitft.serve.uploads import MemoryBudget, Upload, read_form, received_body
from vitft.system.errors import ImageError
from vitft.system.suggest import suggest
from vitft.system.text import count

# JSON responses and the schemas that describe them in OpenAPI -------------------------------------


class JsonResponse(Response):
    """JSON response in ASCII, with non-ASCII characters and invalid Unicode escaped."""

    media_type = "application/json"

    def __init__(
        self, status: int, fields: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(json.dumps(fields, allow_nan=False), status, headers)


class ClassProbabilitySchema(BaseModel):
    """A class and its probability."""

    name: str = Field(serialization_alias="class")
    probability: float = Field(ge=0, le=1)


class PredictionSchema(BaseModel):
    """The prediction for one image, in the format of `vitft predict --format json`."""

    path: str = Field(
        description="file name sent by the client (empty if the body is a single image)"
    )
    run: str | None = Field(None, description="name of the run that produced the model")
    labels: list[str] | None = Field(
        None,
        description="labels assigned to the image (absent if the model assigns one class to each "
        "image)",
    )
    classes: list[ClassProbabilitySchema] | None = Field(
        None, description="classes or labels, most probable first"
    )
    notes: list[str] | None = Field(
        None,
        description="remarks such as `not sure`, `unlike the training images` or `blank: one "
        "uniform colour`",
    )
    error: str | None = Field(None, description="reason why the image has no prediction")


class PredictionsSchema(BaseModel):
    """One prediction per image, in the order of the request."""

    results: list[PredictionSchema]


class ErrorSchema(BaseModel):
    """The reason why a request failed."""

    error: str


class LabelsSchema(BaseModel):
    """Facts about the model, and the limits of the server."""

    purpose: str = Field(
        description="what the model distinguishes, e.g. `Run flowers distinguishes 3 classes`, or "
        "for a model at chance level, what it was trained to distinguish"
    )
    summary: list[str] = Field(description="every estimate in words, first the one to quote")
    caution: str = Field(
        "", description="why not to rely on the model if it is at chance level (otherwise empty)"
    )
    results: Results = Field(description="the numbers of the run (null or empty if unknown)")
    threshold: float | None = Field(
        None, description="probability below which a prediction has the note `not sure`"
    )
    notes_unlike: bool = Field(
        description="whether images that are unlike the training images are flagged"
    )
    classes: list[str]
    thresholds: list[float] | None = Field(
        None,
        description="minimum probability at which each label is predicted (only for multi-label "
        "models)",
    )
    image_size: list[int] = Field(description="height and width of the model's input in pixels")
    explains: bool = Field(description="whether POST /explain is available")
    max_bytes: int = Field(description="maximum size of a request body in bytes")
    max_images: int = Field(description="maximum number of images in a request")


class HealthSchema(BaseModel):
    """Status of the server and length of its queue."""

    status: str
    waiting: int = Field(description="number of images in the queue")
    queue: int = Field(description="maximum number of images in the queue")


# ASGI application: routes, OpenAPI schema, error responses, access checks and headers -------------

_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    408: {"model": ErrorSchema, "description": "The body was sent too slowly."},
    413: {"model": ErrorSchema, "description": "The body is too large."},
    415: {
        "model": ErrorSchema,
        "description": "The Content-Type is not supported. Send a form or an image.",
    },
    422: {"model": ErrorSchema, "description": "No image is usable, or a parameter is invalid."},
    503: {"model": ErrorSchema, "description": "The server is busy. See the Retry-After header."},
}
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers added to every response that does not set them itself."""
_BINARY = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"images": {"type": "array", "items": _BINARY}}}
_REQUEST_BODY = {
    "requestBody": {
        "required": True,
        "description": "A form with files in fields of any name, or the bytes of one image.",
        "content": {"multipart/form-data": {"schema": _FORM}, "image/*": {"schema": _BINARY}},
    }
}


class _Handlers:
    """Request handlers for the routes."""

    def __init__(self, queue: BatchQueue) -> None:
        self.queue, self.limits = queue, queue.limits
        self.server_metrics = ServerMetrics(queue)
        self.memory = MemoryBudget(self.limits.memory)
        self.page = build_page(max_bytes=self.limits.max_bytes, explains=queue.can_explain)

    async def show_page(self) -> Response:
        """Return the web page for uploading images."""
        return HTMLResponse(self.page.html, headers={"content-security-policy": self.page.policy})

    async def healthz(self) -> Response:
        """Return the status of the server and the number of queued images."""
        counts = {"waiting": self.queue.admitted, "queue": self.limits.queue}
        return JsonResponse(200, {"status": "ok", **counts})

    async def metrics(self) -> Response:
        """Return counts and durations of requests in the text format of Prometheus."""
        return Response(self.server_metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def labels(self) -> Response:
        """Return facts about the model, such as the class names, and the limits of the server."""
        postprocess, thresholds = self.queue.pipeline.postprocess, self.queue.thresholds
        results = postprocess.run or Results()
        kinds = ("label",) if thresholds else ("class", "classes")
        clause = chance_clause(results)
        fields = {
            "purpose": distinguishes(
                f"Run {results.name}" if results.name else "This model",
                count(len(self.queue.classes), *kinds),
                clause,
            ),
            "summary": [*map(estimate_text, results.estimates)],
            "caution": clause and f"Do not rely on this model: it {clause}.",
            "results": results.to_json(),
            "threshold": postprocess.threshold or None,
            "notes_unlike": postprocess.reference is not None,
            "classes": self.queue.classes,
            **({"thresholds": [*thresholds]} if thresholds else {}),
            "image_size": self.queue.transform.image_size,
            "explains": self.queue.can_explain,
            "max_bytes": self.limits.max_bytes,
            "max_images": self.limits.images,
        }
        return JsonResponse(200, fields)

    async def predict(
        self, request: Request, top_k: Annotated[int, Query(ge=1, le=10_000)] = 5
    ) -> Response:
        """Return the most probable classes of each image, or an error for an unusable image."""
        async with self.uploads(request) as files, asyncio.timeout(ANSWER_SECONDS):
            predictions = await asyncio.gather(
                *(self.queue.predict(file.data, file.name, top_k) for file in files)
            )
        results = [prediction.to_dict() for prediction in predictions]
        if not all(prediction.error for prediction in predictions):
            return JsonResponse(200, {"results": results})
        only = predictions[0].error if len(results) == 1 else "none of the files is a usable image"
        return JsonResponse(422, {"error": only, "results": results})

    async def explain(
        self, request: Request, name: Annotated[str | None, Query(alias="class")] = None
    ) -> Response:
        """Return a PNG of an image overlaid with the relevance of its patches for a class.

        If no class is given, the most probable one is used.
        """
        if not self.queue.can_explain:
            problem = "this model cannot be explained: serve the run from which it was made"
            raise HTTPException(404, problem)
        if name is not None and name not in self.queue.classes:
            raise HTTPException(422, "unknown class: GET /labels lists the classes of the model")
        target = None if name is None else self.queue.classes.index(name)
        async with self.uploads(request) as files, asyncio.timeout(ANSWER_SECONDS):
            if len(files) != 1:
                raise HTTPException(422, "only one image can be explained per request")
            try:
                png = await self.queue.explain(files[0].data, files[0].name, target)
            except ImageError as error:
                raise HTTPException(422, error.reason) from None
        return Response(png, media_type="image/png")

    @asynccontextmanager
    async def uploads(self, request: Request) -> AsyncIterator[list[Upload]]:
        """Yield the files of a request, with places in the queue reserved for them."""
        self.queue.check_places(1)
        content_type = request.headers.get("content-type", "")
        media = content_type.partition(";")[0].strip().lower()
        is_form = media == "multipart/form-data"
        if not is_form and not media.startswith("image/") and media != "application/octet-stream":
            how = "with curl: -F image=@photo.jpg"
            how = "JSON is not read, and base64 must be decoded" if media.endswith("json") else how
            fix = (
                f"send multipart/form-data, or the bytes of an image with its Content-Type ({how})"
            )
            raise HTTPException(415, fix)
        async with received_body(request, self.memory, max_bytes=self.limits.max_bytes) as body:
            files = [Upload("", body)]
            if is_form:
                files = read_form(
                    body,
                    content_type,
                    max_files=self.limits.images,
                    parameters=_query_parameters(request),
                )
            del body
            with self.queue.admit(len(files)):
                yield files


class SecurityMiddleware:
    """ASGI middleware for access checks (including the key), security headers and shutdown."""

    def __init__(self, app: ASGIApp, access: Access, *, key: str = "") -> None:
        self.app, self.access, self.key = app, access, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        handler = _refusal(scope, self.access, key=self.key) or self.app
        try:
            await handler(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server is stopping, and this request took too long
            if not started:
                await JsonResponse(503, {"error": "the server is shutting down"})(
                    scope, receive, send_with_headers
                )


def _refusal(scope: Scope, access: Access, *, key: str = "") -> JsonResponse | None:
    """Return the error response for a refused request, or None if the request is allowed."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not access.allows(host):
        name = host_name(host) or "NAME"
        return JsonResponse(
            421, {"error": f"host name not allowed: start the server with --allow-host {name}"}
        )
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if scope["method"] not in _SAFE_METHODS and not is_own_page(host, origin=origin, site=site):
        fix = "serve page and model under one host name, e.g. with a proxy that keeps Host"
        return JsonResponse(403, {"error": f"cross-origin requests are not allowed: {fix}"})
    sent = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[-1]
    if key and not secrets.compare_digest(sent.encode(), key.encode()):
        return JsonResponse(
            403, {"error": "wrong or missing key: open the address that was printed at startup"}
        )
    return None


def _query_parameters(request: Request) -> list[str]:
    """Return the names of the query parameters of the requested route."""
    return [field.alias for field in request.scope["route"].dependant.query_params]


async def _check_parameters(request: Request) -> None:
    """Refuse a request with an unknown query parameter, which would otherwise have no effect."""
    known = _query_parameters(request)
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            near = suggest(name, known, cutoff=0.6)
            fix = f"did you mean {near[0]}?" if near else f"this route takes {', '.join(known)}"
            raise HTTPException(422, f"unknown query parameter {name[:50]!a}: {fix}")
        if given.count(name) > 1:
            raise HTTPException(422, f"the query parameter {name} is given more than once")


def make_app(queue: BatchQueue, access: Access) -> ASGIApp:
    """Return the ASGI application, which runs the queue during its lifespan."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(queue.serve())
        yield
        work.cancel()

    app = FastAPI(
        title="vitft",
        description="Image classification.",
        version=version("vitft"),
        openapi_url=None,  # added below; FastAPI's documentation pages load third-party scripts
        redirect_slashes=False,
        lifespan=lifespan,
    )
    handlers = _Handlers(queue)

    async def openapi() -> Response:
        return JsonResponse(200, app.openapi())

    hidden: dict[str, Any] = {"include_in_schema": False}
    add_route(app, "GET", "/", handlers.show_page, **hidden)
    add_route(app, "GET", "/openapi.json", openapi, **hidden)
    add_route(app, "GET", "/healthz", handlers.healthz, response_model=HealthSchema)
    add_route(app, "GET", "/labels", handlers.labels, response_model=LabelsSchema)
    add_route(app, "GET", "/metrics", handlers.metrics, **hidden)
    posted: dict[str, Any] = {
        "openapi_extra": _REQUEST_BODY,
        "dependencies": [Depends(_check_parameters)],
        "responses": _ERROR_RESPONSES,
    }
    add_route(app, "POST", "/predict", handlers.predict, response_model=PredictionsSchema, **posted)
    png = {"content": {"image/png": {}}, "description": "A PNG image."}
    posted |= {"responses": {**_ERROR_RESPONSES, 200: png}, "response_class": Response}
    posted |= {"include_in_schema": queue.can_explain}
    add_route(app, "POST", "/explain", handlers.explain, **posted)
    add_error_handlers(app)
    handlers.server_metrics.paths = {path for path, _ in _methods(app)}
    handlers.server_metrics.app = SecurityMiddleware(app, access)
    return handlers.server_metrics


def _methods(app: FastAPI) -> list[tuple[str, str]]:
    """Return the paths and methods of all routes, in the order in which they were added."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return [(route.path, method) for route in routes for method in sorted(route.methods or ())]


def add_route(
    app: FastAPI,
    method: str,
    path: str,
    function: Callable[..., Any],
    **schema: Any,  # noqa: ANN401 - FastAPI's own arguments
) -> None:
    """Add a route that also accepts OPTIONS and, with GET, HEAD."""

    async def options() -> Response:
        return Response(status_code=204, headers={"allow": _allow(app, path)})

    app.add_api_route(path, function, methods=[method], **schema)
    if method == "GET":
        app.add_api_route(path, function, methods=["HEAD"], include_in_schema=False)
    app.add_api_route(path, options, methods=["OPTIONS"], include_in_schema=False)


def _allow(app: FastAPI, path: str) -> str:
    """Return the value of the Allow header of a path."""
    return ", ".join(method for place, method in _methods(app) if place == path)


def add_error_handlers(app: FastAPI) -> None:
    """Add handlers that return errors as `{"error": ...}`, without details of internal errors."""

    async def http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = error.detail
        if problem == http.HTTPStatus(error.status_code).phrase:
            problem = problem.lower()
        return JsonResponse(error.status_code, {"error": problem}, error.headers)

    async def wrong_method(request: Request, _: Exception) -> Response:
        allow = _allow(app, request.url.path)
        return JsonResponse(405, {"error": f"method not allowed: use {allow}"}, {"allow": allow})

    async def invalid_parameter(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name, bounds = first["loc"][-1], first.get("ctx", {})
        if first["type"] == "missing":
            return JsonResponse(422, {"error": f"the query parameter {name} is missing"})
        low, high = bounds.get("ge"), bounds.get("le")
        limits = "" if low is None else f" of {low:,} or more"
        limits = limits if high is None else f" of at most {high:,}"
        problem = f"invalid {name} {str(first['input'])[:50]!a}: use an integer{limits}"
        return JsonResponse(422, {"error": problem})

    async def timed_out(_: Request, __: Exception) -> Response:
        problem = "the request timed out: try again"
        return JsonResponse(503, {"error": problem}, {"Retry-After": "5"})

    async def internal_error(_: Request, __: Exception) -> Response:
        return JsonResponse(500, {"error": "internal server error: see the server log"})

    app.add_exception_handler(TimeoutError, timed_out)
    app.add_exception_handler(Exception, internal_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(405, wrong_method)
    app.add_exception_handler(RequestValidationError, invalid_parameter)
