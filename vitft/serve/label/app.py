"""ASGI application of `vitft label`: the page, its pictures and its answers.

One thread owns the session, so answers are recorded one after another. A response confirms an
answer only after the file has been flushed to the disk.
"""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from vitft.data.images import open_image, thumbnail_jpeg
from vitft.report.cards import elements_script, read_asset
from vitft.report.html import colour_scheme
from vitft.serve.app import JsonResponse, SecurityMiddleware, add_error_handlers, add_route
from vitft.serve.batching import run_in
from vitft.serve.label.session import Mode, Session
from vitft.serve.limits import MAX_IMAGE_PIXELS, Access
from vitft.serve.page import assemble_page
from vitft.serve.uploads import MemoryBudget, received_body
from vitft.system.errors import DataError, ImageError, UsageError, VitftError
from vitft.system.structure import Natural, StructureError, parse_json, structured

_LABEL_PAGE = Path(__file__).parent / "page"
"""Folder that contains the files of the page."""
_MAX_BODY = 20_000
"""Maximum size of a request body in bytes."""
_RENDERERS = 2
"""Number of threads that decode pictures for the page."""
_MAX_SIDE = 1600


@dataclass(frozen=True, slots=True)
class _OneAnswer:
    picture: Natural
    label: str


@dataclass(frozen=True, slots=True)
class _GroupAnswer:
    pictures: list[Natural]
    label: str
    taken_out: list[Natural]


@dataclass(frozen=True, slots=True)
class _SkippedPicture:
    picture: Natural


class _LabelHandlers:
    """Request handlers for the routes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.memory = MemoryBudget(8 * _MAX_BODY)
        self.page = assemble_page(
            read_asset(_LABEL_PAGE, "page.html"),
            css=colour_scheme() + read_asset(_LABEL_PAGE, "page.css"),
            script=elements_script() + read_asset(_LABEL_PAGE, "page.js"),
            images="'self' data:",
        )
        self.owner = ThreadPoolExecutor(1, "session")
        self.renderers = ThreadPoolExecutor(_RENDERERS, "render")

    async def show_page(self) -> Response:
        """Return the page."""
        return HTMLResponse(self.page.html, headers={"content-security-policy": self.page.policy})

    async def state(self, mode: Mode = "mixed") -> Response:
        """Return the next question, the classes and the accuracy."""
        return JsonResponse(200, await run_in(self.owner, self.session.state, mode))

    async def likely(self, name: Annotated[str, Query(alias="class")]) -> Response:
        """Return unlabelled pictures that probably belong to a class."""
        found = await run_in(self.owner, self.session.likely, name)
        pictures = [{"picture": i, "probability": probability} for i, probability in found]
        return JsonResponse(200, {"class": name, "pictures": pictures})

    async def picture(
        self, number: Annotated[int, Query(ge=0)], side: Annotated[int, Query(ge=1, le=_MAX_SIDE)]
    ) -> Response:
        """Return a picture as a JPEG whose longer side has at most `side` pixels."""
        if number >= len(self.session.pool.paths):
            raise HTTPException(404, f"there is no picture {number}")
        try:
            data = await run_in(self.renderers, self.render, number, side)
        except ImageError as error:
            raise HTTPException(410, f"the picture can no longer be read: {error.reason}") from None
        headers = {"cache-control": "private, max-age=86400"}  # the key is part of the address
        return Response(data, media_type="image/jpeg", headers=headers)

    def render(self, number: int, side: int) -> bytes:
        """Return the JPEG of a picture."""
        pool = self.session.pool
        path = pool.root / pool.paths[number][0]
        image = open_image(path, max_pixels=MAX_IMAGE_PIXELS, grey_range=pool.grey_range)
        return thumbnail_jpeg(image, side)

    def changing(self, change: Callable[..., None], kind: type[Any] | None) -> Callable[..., Any]:
        """Return a handler that passes its JSON body, a dataclass, to a method of the session.

        The response is the new state.
        """

        async def handle(request: Request, mode: Mode = "mixed") -> Response:
            fields = await self.fields(request, kind) if kind else {}

            def new_state() -> dict[str, Any]:
                change(**fields)
                return self.session.state(mode)

            return JsonResponse(200, await run_in(self.owner, new_state))

        return handle

    async def fields(self, request: Request, kind: type[Any]) -> dict[str, Any]:
        """Return the JSON body of a request, with the fields of a dataclass."""
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise HTTPException(415, "send application/json")
        async with received_body(request, self.memory, max_bytes=_MAX_BODY) as data:
            try:
                fields: dict[str, Any] = parse_json(data)
                structured(fields, kind)
            except StructureError as error:
                raise HTTPException(422, str(error)) from None
            except ValueError as error:
                raise HTTPException(400, f"the body is not valid JSON: {error}") from None
        return fields


def make_label_app(session: Session, access: Access, *, key: str) -> SecurityMiddleware:
    """Return the ASGI application; every request must contain the key."""
    handlers = _LabelHandlers(session)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        handlers.owner.shutdown(wait=False)
        handlers.renderers.shutdown(wait=False)

    app = FastAPI(openapi_url=None, redirect_slashes=False, lifespan=lifespan)
    add_route(app, "GET", "/", handlers.show_page)
    for function in (handlers.state, handlers.likely, handlers.picture):
        add_route(app, "GET", f"/{function.__name__}", function)
    for change, kind in (
        (session.answer, _OneAnswer),
        (session.confirm, _GroupAnswer),
        (session.skip, _SkippedPicture),
        (session.undo, None),
    ):
        add_route(app, "POST", f"/{change.__name__}", handlers.changing(change, kind))
    add_error_handlers(app)
    app.add_exception_handler(VitftError, _user_error)
    return SecurityMiddleware(app, access, key=key)


async def _user_error(_: Request, error: Exception) -> Response:
    """Return the response to a session error: 422 (bad request), 409 (changed file) or 500."""
    assert isinstance(error, VitftError)
    status = {UsageError: 422, DataError: 409}.get(type(error), 500)
    return JsonResponse(status, {"error": error.problem, "fix": error.fix})
