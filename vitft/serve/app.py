"""The routes, their schema, and errors as JSON."""

import asyncio
import http
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from vitft.serve.access import Access
from vitft.serve.answers import Answers, Health, Json, Labels, Problem
from vitft.serve.engine import BusyError, Engine, Shares
from vitft.serve.forms import FormError, Upload, read_form
from vitft.serve.guard import Guard
from vitft.serve.limits import ANSWER_SECONDS
from vitft.serve.page import build_page
from vitft.serve.upload import BUSY, Memory, read_body
from vitft.system.errors import ImageError

PROBLEMS: dict[int | str, dict[str, Any]] = {
    408: {"model": Problem, "description": "The body came too slowly."},
    413: {"model": Problem, "description": "The body is too large."},
    415: {"model": Problem, "description": "The Content-Type is neither a form nor an image."},
    422: {"model": Problem, "description": "No usable image, or an impossible parameter."},
    503: {"model": Problem, "description": "Busy; Retry-After says when to come back."},
}
BINARY = {"type": "string", "format": "binary"}
FORM = {"type": "object", "properties": {"images": {"type": "array", "items": BINARY}}}
BODY = {
    "requestBody": {
        "required": True,
        "description": "Files of a form, whatever their fields are called, or the bytes of one.",
        "content": {"multipart/form-data": {"schema": FORM}, "image/*": {"schema": BINARY}},
    }
}


class Service:
    """The functions behind the routes."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.limits = engine, engine.limits
        self.memory = Memory(self.limits.memory)
        self.page = build_page(max_bytes=self.limits.max_bytes, explains=engine.can_explain)

    async def show_page(self) -> Response:
        """The page to drop images on."""
        return HTMLResponse(self.page.html, headers={"content-security-policy": self.page.policy})

    async def healthz(self) -> Response:
        """That the server is alive, and how busy."""
        waiting = {"waiting": self.engine.admitted, "queue": self.limits.queue}
        return Json(200, {"status": "ok", **waiting})

    async def labels(self) -> Response:
        """What the model knows and takes."""
        fields = {
            "classes": self.engine.classes,
            "image_size": self.engine.transform.image_size,
            "explains": self.engine.can_explain,
            "max_bytes": self.limits.max_bytes,
            "max_images": self.limits.images,
        }
        return Json(200, fields)

    async def predict(
        self, request: Request, top_k: Annotated[int, Query(ge=1, le=10_000)] = 5
    ) -> Response:
        """The best classes of each image. One bad image spoils no other's answer."""
        async with self.uploads(request) as files, asyncio.timeout(ANSWER_SECONDS):
            results = await asyncio.gather(*(self.answer(file, top_k) for file in files))
        if any("classes" in result for result in results):
            return Json(200, {"results": results})
        only = results[0]["error"] if len(results) == 1 else "none of the files is a usable image"
        return Json(422, {"error": only, "results": results})

    async def explain(
        self, request: Request, name: Annotated[str | None, Query(alias="class")] = None
    ) -> Response:
        """A picture of what spoke for a class (default: the best) in one image."""
        if name is not None and name not in self.engine.classes:
            raise HTTPException(422, "the model has no such class; GET /labels lists them")
        target = None if name is None else self.engine.classes.index(name)
        async with self.uploads(request) as files, asyncio.timeout(ANSWER_SECONDS):
            if len(files) != 1:
                raise HTTPException(422, "one image at a time can be explained")
            try:
                png = await self.engine.explained(files[0].data, files[0].name, target)
            except ImageError as error:
                raise HTTPException(422, error.reason) from None
        return Response(png, media_type="image/png")

    async def answer(self, file: Upload, top_k: int) -> dict[str, Any]:
        """The row of one image, with classes or an error."""
        try:
            shares = await self.engine.shares(file.data, file.name)
        except ImageError as error:
            return {"name": file.name, "error": error.reason}
        return {"name": file.name, "classes": best(shares, self.engine.classes, top_k)}

    @asynccontextmanager
    async def uploads(self, request: Request) -> AsyncIterator[list[Upload]]:
        """The files of a request, with places in the queue while they are worked on."""
        if self.engine.is_full:
            raise BusyError
        kind = request.headers.get("content-type", "")
        media = kind.partition(";")[0].strip().lower()
        is_form = media == "multipart/form-data"
        if not is_form and not media.startswith("image/") and media != "application/octet-stream":
            raise HTTPException(415, "send multipart/form-data, or an image with its Content-Type")
        with self.memory.loan() as loan:
            announced = request.headers.get("content-length")
            body = await read_body(
                request.receive, announced, loan, max_bytes=self.limits.max_bytes
            )
            with form_errors():
                files = (
                    read_form(body, kind, max_files=self.limits.images)
                    if is_form
                    else [Upload("", body)]
                )
            del body
            with self.engine.places(len(files)):
                yield files


@contextmanager
def form_errors() -> Any:  # noqa: ANN401 - a generator that contextlib wraps
    """A damaged form as 400."""
    try:
        yield
    except FormError as error:
        raise HTTPException(400, str(error)) from None


def best(shares: Shares, classes: Sequence[str], top_k: int) -> list[dict[str, Any]]:
    """The classes with the largest shares (C,), best first; equal ones in the model's order."""
    order = np.argsort(-shares, kind="stable")[:top_k]
    return [{"class": classes[i], "probability": float(shares[i])} for i in order]


def make_app(engine: Engine, access: Access) -> Guard:
    """The whole application; its engine runs as long as it does."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(engine.serve())
        yield
        work.cancel()

    app = FastAPI(
        title="vitft",
        description="Images in, class names out.",
        version=version("vitft"),
        openapi_url=None,  # offered below; the usual documentation pages load foreign scripts
        redirect_slashes=False,
        lifespan=lifespan,
    )
    service = Service(engine)

    async def openapi() -> Response:
        return Json(200, app.openapi())

    told = {
        "/": offer(app, "/", service.show_page, "GET", include_in_schema=False),
        "/openapi.json": offer(app, "/openapi.json", openapi, "GET", include_in_schema=False),
        "/healthz": offer(app, "/healthz", service.healthz, "GET", response_model=Health),
        "/labels": offer(app, "/labels", service.labels, "GET", response_model=Labels),
    }
    asked: dict[str, Any] = {"responses": PROBLEMS, "openapi_extra": BODY}
    told["/predict"] = offer(
        app, "/predict", service.predict, "POST", response_model=Answers, **asked
    )
    if engine.can_explain:
        asked["responses"] = {
            **PROBLEMS,
            200: {"content": {"image/png": {}}, "description": "A PNG."},
        }
        told["/explain"] = offer(
            app, "/explain", service.explain, "POST", response_class=Response, **asked
        )
    handle_errors(app, told)
    return Guard(app, access)


def offer(
    app: FastAPI,
    path: str,
    function: Callable[..., Any],
    method: str,
    **schema: Any,  # noqa: ANN401 - FastAPI's own arguments
) -> str:
    """Add a route with HEAD beside GET, and OPTIONS; returns its Allow header."""
    methods = [method, "HEAD"] if method == "GET" else [method]
    allow = ", ".join((*methods, "OPTIONS"))

    async def options() -> Response:
        return Response(status_code=204, headers={"allow": allow})

    app.add_api_route(path, function, methods=[method], **schema)
    if method == "GET":
        app.add_api_route(path, function, methods=["HEAD"], include_in_schema=False)
    app.add_api_route(path, options, methods=["OPTIONS"], include_in_schema=False)
    return allow


def handle_errors(app: FastAPI, allowed: dict[str, str]) -> None:
    """Every error as `{"error": ...}`, without paths and tracebacks; those go to the log."""

    async def told(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = error.detail
        if problem == http.HTTPStatus(error.status_code).phrase:
            problem = problem.lower()
        return Json(error.status_code, {"error": problem}, error.headers)

    async def wrong_method(request: Request, _: Exception) -> Response:
        allow = allowed.get(request.url.path, "")
        return Json(405, {"error": f"this address takes {allow}"}, {"allow": allow})

    async def wrong_parameter(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return Json(422, {"error": f"{first['loc'][-1]}: {first['msg']}"})

    async def busy(_: Request, __: Exception) -> Response:
        return Json(503, {"error": "too many images at once; try again"}, BUSY)

    async def late(_: Request, __: Exception) -> Response:
        return Json(503, {"error": "this took too long; try again"}, {"Retry-After": "5"})

    async def bug(_: Request, __: Exception) -> Response:
        return Json(500, {"error": "a mistake of the program; the server's log has the details"})

    app.add_exception_handler(HTTPException, told)
    app.add_exception_handler(405, wrong_method)
    app.add_exception_handler(RequestValidationError, wrong_parameter)
    app.add_exception_handler(BusyError, busy)
    app.add_exception_handler(TimeoutError, late)
    app.add_exception_handler(Exception, bug)
