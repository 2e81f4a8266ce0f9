"""ASGI application: routes, OpenAPI schema, error responses, access checks and headers."""

import asyncio
import http
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any, NoReturn
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitft.messages.results import chance_clause, distinguishes, estimate_text
from vitft.metrics.summary import Results
from vitft.serve.batching import (
    CONTENT_TYPE,
    BatchQueue,
    MetricsMiddleware,
    QueueFullError,
    ServerMetrics,
)
from vitft.serve.limits import ANSWER_SECONDS, Access, host_name, is_own_page
from vitft.serve.page import build_page
from vitft.serve.schemas import (
    ErrorSchema,
    HealthSchema,
    JsonResponse,
    LabelsSchema,
    PredictionsSchema,
)
from vitft.serve.uploads import RETRY_SOON, FormError, MemoryBudget, Upload, read_form, receive_body
from vitft.system.errors import ImageError
from vitft.system.suggest import suggest
from vitft.system.text import count

_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    408: {"model": ErrorSchema, "description": "The body was sent too slowly."},
    413: {"model": ErrorSchema, "description": "The body is too large."},
    415: {
        "model": ErrorSchema,
        "description": "The Content-Type is not supported; send a form or an image.",
    },
    422: {"model": ErrorSchema, "description": "No image is usable, or a parameter is invalid."},
    503: {"model": ErrorSchema, "description": "The server is busy; see the Retry-After header."},
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


class Handlers:
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
        if name is not None and name not in self.queue.classes:
            raise HTTPException(422, "unknown class; GET /labels lists the classes of the model")
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
        """Yield the files of a request, with places in the queue reserved for them.

        Raises:
            QueueFullError: The queue has too few free places.
            HTTPException: The Content-Type is not supported (415), the body is incomplete (400),
                sent too slowly (408) or too large (413), or the memory budget is exhausted (503).
            FormError: The form cannot be used.
        """
        if self.queue.is_full:
            raise QueueFullError
        content_type = request.headers.get("content-type", "")
        media = content_type.partition(";")[0].strip().lower()
        is_form = media == "multipart/form-data"
        if not is_form and not media.startswith("image/") and media != "application/octet-stream":
            how = "with curl: -F image=@photo.jpg"
            how = "JSON is not read, base64 must be decoded" if media.endswith("json") else how
            fix = (
                f"send multipart/form-data, or the bytes of an image with its Content-Type ({how})"
            )
            raise HTTPException(415, fix)
        with self.memory.reservation() as reservation:
            length = request.headers.get("content-length")
            body = await receive_body(
                request.receive, length, reservation, max_bytes=self.limits.max_bytes
            )
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
    """ASGI middleware for access checks, among them of the key, security headers and shutdown."""

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
            403, {"error": "wrong or missing key; open the address that was printed at startup"}
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


def make_app(queue: BatchQueue, access: Access) -> MetricsMiddleware:
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
    handlers = Handlers(queue)

    async def openapi() -> Response:
        return JsonResponse(200, app.openapi())

    allowed = {
        path: add_route(app, path, function, "GET", **schema)
        for path, function, schema in (
            ("/", handlers.show_page, {"include_in_schema": False}),
            ("/openapi.json", openapi, {"include_in_schema": False}),
            ("/healthz", handlers.healthz, {"response_model": HealthSchema}),
            ("/labels", handlers.labels, {"response_model": LabelsSchema}),
            ("/metrics", handlers.metrics, {"include_in_schema": False}),
        )
    }
    schema: dict[str, Any] = {
        "responses": _ERROR_RESPONSES,
        "openapi_extra": _REQUEST_BODY,
        "dependencies": [Depends(_check_parameters)],
    }
    allowed["/predict"] = add_route(
        app, "/predict", handlers.predict, "POST", response_model=PredictionsSchema, **schema
    )
    if queue.can_explain:
        schema["responses"] = {
            **_ERROR_RESPONSES,
            200: {"content": {"image/png": {}}, "description": "A PNG image."},
        }
        allowed["/explain"] = add_route(
            app, "/explain", handlers.explain, "POST", response_class=Response, **schema
        )
    else:
        hidden: dict[str, Any] = {"include_in_schema": False, "response_model": None}
        allowed["/explain"] = add_route(app, "/explain", _refuse_to_explain, "POST", **hidden)
    add_error_handlers(app, allowed)
    handlers.server_metrics.paths = tuple(allowed)
    return MetricsMiddleware(SecurityMiddleware(app, access), handlers.server_metrics)


async def _refuse_to_explain() -> NoReturn:
    """Answer a request to explain an image with a model that cannot be explained."""
    raise HTTPException(404, "this model cannot be explained; serve the run from which it was made")


def add_route(
    app: FastAPI,
    path: str,
    function: Callable[..., Any],
    method: str,
    **schema: Any,  # noqa: ANN401 - FastAPI's own arguments
) -> str:
    """Add a route that also accepts OPTIONS, and HEAD beside GET; return its Allow header."""
    methods = [method, "HEAD"] if method == "GET" else [method]
    allow = ", ".join((*methods, "OPTIONS"))

    async def options() -> Response:
        return Response(status_code=204, headers={"allow": allow})

    app.add_api_route(path, function, methods=[method], **schema)
    if method == "GET":
        app.add_api_route(path, function, methods=["HEAD"], include_in_schema=False)
    app.add_api_route(path, options, methods=["OPTIONS"], include_in_schema=False)
    return allow


def add_error_handlers(app: FastAPI, allowed: dict[str, str]) -> None:
    """Add handlers that return errors as `{"error": ...}`, without details of internal errors.

    `allowed` maps each path to the value of its Allow header.
    """

    async def http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = error.detail
        if problem == http.HTTPStatus(error.status_code).phrase:
            problem = problem.lower()
        return JsonResponse(error.status_code, {"error": problem}, error.headers)

    async def damaged_form(_: Request, error: Exception) -> Response:
        return JsonResponse(400, {"error": str(error)})

    async def wrong_method(request: Request, _: Exception) -> Response:
        allow = allowed.get(request.url.path, "")
        return JsonResponse(405, {"error": f"method not allowed; use {allow}"}, {"allow": allow})

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

    def fixed(status: int, problem: str, headers: dict[str, str] = {}) -> Callable[..., Any]:  # noqa: B006
        async def answer(_: Request, __: Exception) -> Response:
            return JsonResponse(status, {"error": problem}, headers)

        return answer

    app.add_exception_handler(
        QueueFullError, fixed(503, "the queue is full; try again", RETRY_SOON)
    )
    late = fixed(503, "the request timed out; try again", {"Retry-After": "5"})
    app.add_exception_handler(TimeoutError, late)
    broken = fixed(500, "internal server error; see the server log")
    app.add_exception_handler(Exception, broken)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(405, wrong_method)
    app.add_exception_handler(RequestValidationError, invalid_parameter)
    app.add_exception_handler(FormError, damaged_form)
