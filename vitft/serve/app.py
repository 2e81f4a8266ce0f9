"""ASGI application of `vitft serve`: routes, uploads, errors, access checks and OpenAPI."""

import asyncio
import contextlib
import http
import io
import json
import logging
import math
import re
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitft.messages.results import chance_clause, distinguishes, estimate_text
from vitft.metrics.results import Results
from vitft.report.html import digest_source, page_parts
from vitft.serve.batching import RETRY_SOON, BatchQueue, request_log
from vitft.serve.limits import ANSWER_SECONDS, MAX_BODIES, MIN_BYTES_PER_SECOND, Access
from vitft.system.errors import ImageError
from vitft.system.files import resource
from vitft.system.imports import version
from vitft.system.text import count

# what the pages of `vitft serve` and `vitft label` have in common ---------------------------------

_SECURITY_HEADERS = {  # of every response that does not set them itself
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


def json_response(
    fields: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response in ASCII, with non-ASCII characters and invalid Unicode escaped."""
    return Response(json.dumps(fields, allow_nan=False), status, headers, "application/json")


def page_route(
    folder: Path, *, images: str, cards: bool = True, values: Mapping[str, object] | None = None
) -> Route:
    """Return the route of page.html in a folder, which may use only its own files and its server.

    `images` are the sources of images that it allows. `values` is HTML for further placeholders,
    such as `{name}`. Class and file names are inserted by the script, as text.
    """
    html, css, script = page_parts(folder, cards=cards)
    for name, value in {"css": css, "script": script, **(values or {})}.items():
        html = html.replace(f"{{{name}}}", str(value))
    policy = (
        f"default-src 'none'; style-src {digest_source(css)}; script-src {digest_source(script)}; "
        f"img-src {images}; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )

    async def show_page(_: Request) -> Response:
        return HTMLResponse(html, headers={"content-security-policy": policy})

    return Route("/", show_page)


def make_site(
    routes: Sequence[Route],
    running: Callable[[Any], AbstractAsyncContextManager[None]],
    access: Access,
    *,
    errors: Mapping[Any, Callable[[Request, Exception], Any]] | None = None,
    key: str = "",
    observe: Callable[[Scope, int, float], None] | None = None,
) -> ASGIApp:
    """Return an application that runs inside the context `running`; errors are `{"error": ...}`.

    Every request must pass `access` and contain the `key`, if there is one. `errors` are handlers
    of exceptions other than HTTPException. `observe` is called with each request, its status and
    the time in seconds that it took.
    """
    handlers = {HTTPException: _http_error, Exception: _internal_error, **(errors or {})}
    app = Starlette(routes=routes, lifespan=running, exception_handlers=handlers)
    app.router.redirect_slashes = False

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await (_refusal(scope, access, key) or app)(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server is stopping, and this request took too long
            if not status:
                stopping = json_response({"error": "the server is shutting down"}, 503)
                await stopping(scope, receive, send_with_headers)
        finally:
            if observe:
                observe(scope, status or 500, time.perf_counter() - began)

    return checked


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = error.detail
    if problem == http.HTTPStatus(error.status_code).phrase:
        problem = problem.lower()
    return json_response({"error": problem}, error.status_code, error.headers)


async def _internal_error(_: Request, __: Exception) -> Response:
    return json_response({"error": "internal server error: see the server log"}, 500)


def _refusal(scope: Scope, access: Access, key: str) -> Response | None:
    """Return the error response for a refused request, or None if the request is allowed."""
    if found := access(scope["method"], Headers(scope=scope)):
        return json_response({"error": found[1]}, found[0])
    sent = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[-1]
    if key and not secrets.compare_digest(sent.encode(), key.encode()):
        fix = "open the address that was printed at startup"
        return json_response({"error": f"wrong or missing key: {fix}"}, 403)
    return None


def integer(
    request: Request, name: str, limits: tuple[int, int | None], default: int | None = None
) -> int:
    """Return a query parameter; raise an HTTPException (422) unless it is within limits."""
    text, (low, high) = request.query_params.get(name, "" if default is None else default), limits
    with contextlib.suppress(ValueError):
        if low <= (value := int(text)) <= (math.inf if high is None else high):
            return value
    bounds = f"of {low} or more" if high is None else f"from {low} to {high}"
    problem = f"invalid {name} {str(text)[:50]!a}: use an integer {bounds}"
    raise HTTPException(422, problem)


# request bodies, with limits on size, time and memory, and forms (multipart/form-data, RFC 7578) --

logging.getLogger("python_multipart").addHandler(logging.NullHandler())  # not to stderr


class BodyReader:
    """Reader of request bodies, which never writes them to disk."""

    def __init__(self, max_bytes: int, seconds: float) -> None:
        self.max_bytes, self.seconds = max_bytes, seconds
        self.used = 0  # number of bytes of all bodies in memory

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the whole body of a request, which occupies memory inside the block.

        Raises:
            HTTPException: The body is too large (413), sent too slowly (408) or incomplete (400),
                or all bodies need too much memory (503).
        """
        too_large = HTTPException(413, f"the request is larger than {self.max_bytes / 1e6:g} MB")
        if int(request.headers.get("content-length", 0)) > self.max_bytes:
            raise too_large
        chunks, size = list[bytes](), 0
        try:
            async with asyncio.timeout(self.seconds) as limit:
                async for chunk in request.stream():
                    size += len(chunk)
                    self.used += len(chunk)
                    if size > self.max_bytes:
                        raise too_large
                    if self.used > MAX_BODIES * self.max_bytes:
                        raise HTTPException(503, "too many uploads at once: try again", RETRY_SOON)
                    chunks.append(chunk)
                    limit.reschedule((limit.when() or 0) + len(chunk) / MIN_BYTES_PER_SECOND)
            chunks[:] = [b"".join(chunks)]
            yield chunks.pop()  # the caller alone refers to it
        except TimeoutError:
            raise HTTPException(408, "the request was sent too slowly") from None
        except ClientDisconnect:
            raise HTTPException(400, "the request was interrupted") from None
        finally:
            self.used -= size


def _read_form(body: bytes, content_type: str, *, max_files: int) -> list[tuple[str, bytes]]:
    """Return the names (never used as paths) and contents of the files of a form, in order."""
    files, ends = list[tuple[str, bytes]](), list[bool]()

    def add_file(file: File) -> None:
        if len(files) == max_files:
            raise HTTPException(400, f"more than {count(max_files, 'file')} in one request")
        assert isinstance(file.file_object, io.BytesIO)
        name = (file.file_name or b"").decode("utf-8", "replace")[:255]
        files.append((name, file.file_object.getvalue()))

    def refuse_field(field: Field) -> None:
        label = (field.field_name or b"").decode("utf-8", "replace")[:50]
        how = "with curl: -F image=@photo.jpg, and parameters in the address"
        raise HTTPException(400, f"a part of the form is not a file: {label!a} ({how})")

    try:
        parser = FormParser(
            "multipart/form-data",
            refuse_field,
            add_file,
            lambda: ends.append(True),
            parse_options_header(content_type)[1][b"boundary"],
            config={"MAX_MEMORY_FILE_SIZE": float("inf")},
        )
        parser.write(body)
    except (KeyError, FormParserError):
        fix = "leave Content-Type out, and the client sets the boundary"
        raise HTTPException(400, f"the form or its boundary is malformed: {fix}") from None
    if not ends:
        raise HTTPException(400, "the form is incomplete")
    if not files:
        raise HTTPException(400, "the form contains no files")
    return files


# routes of `vitft serve` --------------------------------------------------------------------------


class _Handlers:
    """Request handlers for the routes."""

    def __init__(self, queue: BatchQueue) -> None:
        self.queue, self.limits = queue, queue.limits
        self.bodies = BodyReader(self.limits.max_bytes, self.limits.body_seconds)

    async def healthz(self, _: Request) -> Response:
        """Return the status of the server and the number of queued images."""
        counts = {"waiting": self.queue.admitted, "queue": self.limits.queue}
        return json_response({"status": "ok", **counts})

    async def labels(self, _: Request) -> Response:
        """Return facts about the model, such as the class names, and the limits of the server."""
        postprocess = self.queue.pipeline.postprocess
        outputs, results = postprocess.outputs, postprocess.run or Results()
        model, clause = f"Run {results.name}" * bool(results.name), chance_clause(results)
        fields = {
            "purpose": distinguishes(model or "This model", outputs.counted, clause),
            "summary": [*map(estimate_text, results.estimates)],
            "caution": clause and f"Do not rely on this model: it {clause}.",
            "results": results.to_json(),
            "threshold": postprocess.threshold or None,
            "notes_unlike": postprocess.reference is not None,
            **outputs.table,
            "image_size": self.queue.transform.image_size,
            "explains": self.queue.can_explain,
            "max_bytes": self.limits.max_bytes,
            "max_images": self.limits.images,
        }
        return json_response(fields)

    async def predict(self, request: Request) -> Response:
        """Return the most probable classes of each image, or an error for an unusable image."""
        top_k = integer(request, "top_k", _TOP_K, default=5)
        async with self.uploads(request, "top_k") as files:
            predictions = await asyncio.gather(
                *(self.queue.predict(data, name, top_k) for name, data in files)
            )
        results = [prediction.to_dict() for prediction in predictions]
        if not all(prediction.error for prediction in predictions):
            return json_response({"results": results})
        only = predictions[0].error if len(results) == 1 else "none of the files is a usable image"
        return json_response({"error": only, "results": results}, 422)

    async def explain(self, request: Request) -> Response:
        """Return a PNG of an image overlaid with the relevance of its patches for a class."""
        if not self.queue.can_explain:
            problem = "this model cannot be explained: serve the run from which it was made"
            raise HTTPException(404, problem)
        name, classes = request.query_params.get("class"), self.queue.outputs.classes
        if name is not None and name not in classes:
            raise HTTPException(422, "unknown class: GET /labels lists the classes of the model")
        async with self.uploads(request, "class") as files:
            if len(files) != 1:
                raise HTTPException(422, "only one image can be explained per request")
            try:
                target = None if name is None else classes.index(name)
                png = await self.queue.explain(files[0][1], files[0][0], target)
            except ImageError as error:
                raise HTTPException(422, error.reason) from None
        return Response(png, media_type="image/png")

    @asynccontextmanager
    async def uploads(
        self, request: Request, parameter: str
    ) -> AsyncIterator[list[tuple[str, bytes]]]:
        """Yield names and contents of the files of a request, with places in the queue reserved.

        The route takes a single query parameter. Another one would have no effect.
        """
        given = [name for name, _ in request.query_params.multi_items()]
        if given not in ([], [parameter]):
            shown = ", ".join(given)[:50]
            problem = f"invalid query parameters {shown!a}: this route takes only {parameter}, once"
            raise HTTPException(422, problem)
        self.queue.check_places(1)
        content_type = request.headers.get("content-type", "")
        media = content_type.partition(";")[0].strip().lower()
        is_form = media == "multipart/form-data"
        if not is_form and not media.startswith("image/") and media != "application/octet-stream":
            how = "with curl: -F image=@photo.jpg; JSON is not read, and base64 must be decoded"
            raise HTTPException(
                415,
                f"send multipart/form-data, or the bytes of an image with its Content-Type ({how})",
            )
        async with self.bodies.read(request) as body:
            files = [("", body)]
            if is_form:
                files = _read_form(body, content_type, max_files=self.limits.images)
            del body
            try:
                with self.queue.admit(len(files)):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        yield files
            except TimeoutError:
                raise HTTPException(
                    503, "the request timed out: try again", {"Retry-After": "5"}
                ) from None


def make_app(queue: BatchQueue, access: Access) -> ASGIApp:
    """Return the ASGI application, which runs the queue during its lifespan."""
    handlers, description = _Handlers(queue), _openapi(explains=queue.can_explain)

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        work = asyncio.create_task(queue.serve())
        yield
        work.cancel()

    async def openapi(_: Request) -> Response:
        return json_response(description)

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": _CONTENT_TYPE})

    page = page_route(
        Path(__file__).parent / "page",
        images="blob: data:",
        values={"max_bytes": queue.limits.max_bytes, "explains": str(queue.can_explain).lower()},
    )
    routes = [
        page,
        Route("/openapi.json", openapi),
        Route("/healthz", handlers.healthz),
        Route("/labels", handlers.labels),
        Route("/metrics", show_metrics),
        Route("/predict", handlers.predict, methods=["POST"]),
        Route("/explain", handlers.explain, methods=["POST"]),
    ]
    metrics = _ServerMetrics(queue, {route.path for route in routes})
    return make_site(routes, running, access, observe=metrics.add)


_TOP_K = (1, 10_000)
_SCHEMAS = (
    "results",
    "prediction",
    *(f"serve_{n}" for n in ("error", "healthz", "labels", "predictions")),
)
_ERRORS = {
    400: "The form is damaged, or has too many images.",
    408: "The body was sent too slowly.",
    413: "The body is too large.",
    415: "The Content-Type is not supported. Send a form or an image.",
    422: "No image is usable, or a parameter is invalid.",
    503: "The server is busy. See the Retry-After header.",
}


def _openapi(*, explains: bool) -> dict[str, Any]:
    """Return the description of the routes; the schemas are those of docs/schemas."""
    schemas: dict[str, Any] = {}
    for name in _SCHEMAS:
        text = (resource("docs/schemas") / f"{name}.json").read_text(encoding="utf-8")
        text = text.replace('"#/', f'"#/components/schemas/{name}/')
        schemas[name] = json.loads(re.sub(r'"(\w+)\.json"', r'"#/components/schemas/\1"', text))
        del schemas[name]["$schema"]

    def answer(text: str, schema: str) -> dict[str, Any]:
        where = {"$ref": f"#/components/schemas/{schema}"}
        return {"description": text, "content": {"application/json": {"schema": where}}}

    binary = {"type": "string", "format": "binary"}
    form = {"type": "object", "properties": {"images": {"type": "array", "items": binary}}}
    body = {
        "required": True,
        "description": "A form with files in fields of any name, or the bytes of one image.",
        "content": {"multipart/form-data": {"schema": form}, "image/*": {"schema": binary}},
    }

    def posted(function: Callable[..., Any], found: object, parameter: object) -> dict[str, Any]:
        errors = {status: answer(text, "serve_error") for status, text in _ERRORS.items()}
        described = {"summary": function.__doc__, "parameters": [parameter], "requestBody": body}
        return {"post": {**described, "responses": {200: found, **errors}}}

    def got(text: str, schema: str) -> dict[str, Any]:
        return {"get": {"summary": text, "responses": {200: answer(text, schema)}}}

    number = {"type": "integer", "minimum": _TOP_K[0], "maximum": _TOP_K[1], "default": 5}
    rows = answer("One row per image, in the order of the request.", "serve_predictions")
    top_k = {"name": "top_k", "in": "query", "schema": number}
    paths = {
        "/healthz": got("Status of the server and length of its queue.", "serve_healthz"),
        "/labels": got("Facts about the model, and the limits of the server.", "serve_labels"),
        "/predict": posted(_Handlers.predict, rows, top_k),
    }
    if explains:
        png = {"description": "A PNG image.", "content": {"image/png": {}}}
        about = {"name": "class", "in": "query", "schema": {"type": "string"}}
        paths["/explain"] = posted(_Handlers.explain, png, about)
    info = {"title": "vitft", "description": "Image classification.", "version": version("vitft")}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


# metrics of the server in the text format of Prometheus, for `GET /metrics`, and the access log ---

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, math.inf)  # in s


class _ServerMetrics:
    """Counts and durations of all requests, including rejected ones, by their path."""

    def __init__(self, queue: BatchQueue, paths: Collection[str]) -> None:
        self.queue, self.paths, self.started = queue, paths, time.time()
        self.requests = Counter[tuple[str, int]]()  # by path and status
        self.buckets = Counter[tuple[str, float]]()  # by path and upper bound of the seconds
        self.seconds = defaultdict[str, float](float)  # in total, by path

    def add(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and log a request."""
        # All other paths have one label, so that requests cannot create new ones.
        name = scope["path"] if scope["path"] in self.paths else "other"
        self.requests[name, status] += 1
        self.seconds[name] += seconds
        self.buckets.update((name, bound) for bound in _LATENCY_BOUNDS if seconds <= bound)
        if request_log.isEnabledFor(logging.DEBUG):
            # Uvicorn's own access log has neither the time nor the duration.
            now = datetime.now().astimezone().isoformat(timespec="seconds")
            what = f"{(scope.get('client') or '-')[0]} {scope['method']} {scope['path']}"
            request_log.debug(f"{now} {what} {status} {1000 * seconds:.1f} ms")

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        queue = self.queue
        run = queue.pipeline.postprocess.run_name.encode("utf-8", "replace").decode()
        run = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        requests = [
            (f'{{path="{path}",status="{status}"}}', number)
            for (path, status), number in sorted(self.requests.items())
        ]
        times: list[tuple[str, float | str]] = []
        for path, seconds in sorted(self.seconds.items()):
            for bound in _LATENCY_BOUNDS:
                edge = "+Inf" if bound == math.inf else str(bound)
                times.append((f'_bucket{{path="{path}",le="{edge}"}}', self.buckets[path, bound]))
            times.append((f'_sum{{path="{path}"}}', f"{seconds:.6f}"))
            times.append((f'_count{{path="{path}"}}', self.buckets[path, math.inf]))
        of_model = f'{{version="{version("vitft")}",run="{run}"}}'
        started, limit = [("", self.started)], [("", queue.limits.queue)]
        known, right, unlike = queue.pipeline.postprocess, [], []
        if known.run and known.run.is_calibrated:
            right = [("", f"{queue.expected_right:.6f}")]
        if known.reference:
            unlike = [("", queue.num_unlike)]
        families: tuple[tuple[str, str, Sequence[tuple[str, object]], str], ...] = (
            ("info", "gauge", [(of_model, 1)], "Version and run of the model (always 1)."),
            ("start_time_seconds", "gauge", started, "Time when the model was ready."),
            ("queue_images", "gauge", [("", queue.admitted)], "Images that wait or are computed."),
            ("queue_limit", "gauge", limit, "Maximum of vitft_queue_images."),
            ("batches_total", "counter", [("", queue.num_batches)], "Batches that were predicted."),
            ("images_total", "counter", [("", queue.num_predicted)], "Images in these batches."),
            ("expected_correct_total", "counter", right, "Sum of their probabilities."),
            ("unlike_images_total", "counter", unlike, "Images unlike the training images."),
            ("requests_total", "counter", requests, "Requests by path and status."),
            ("request_seconds", "histogram", times, "Time from headers to end of response."),
        )
        lines = []
        for name, kind, values, text in (family for family in families if family[2]):
            lines += [f"# HELP vitft_{name} {text}", f"# TYPE vitft_{name} {kind}"]
            lines += [f"vitft_{name}{label} {value}" for label, value in values]
        return "".join(f"{line}\n" for line in lines)
