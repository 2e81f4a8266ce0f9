"""ASGI application of `vitft label`: the page, its pictures and its answers.

One thread owns the session, so answers are recorded one after another. A response confirms an
answer only after the file has been flushed to the disk.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from vitft.data.images import open_image
from vitft.data.pictures import thumbnail_jpeg
from vitft.report.cards import elements_script, read_asset
from vitft.report.html import colour_scheme
from vitft.serve.app import SecurityMiddleware, add_error_handlers, add_route
from vitft.serve.batching import BlockingPool
from vitft.serve.label.session import Mode, Session
from vitft.serve.limits import MAX_IMAGE_PIXELS, Access
from vitft.serve.page import assemble_page
from vitft.serve.schemas import JsonResponse
from vitft.serve.uploads import MemoryBudget, receive_body
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
class OneAnswer:
    """Body of POST /answer."""

    picture: Natural
    label: str


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """Body of POST /confirm."""

    pictures: list[Natural]
    label: str
    taken_out: list[Natural]


@dataclass(frozen=True, slots=True)
class SkippedPicture:
    """Body of POST /skip."""

    picture: Natural


class LabelHandlers:
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
        self.owner: BlockingPool
        self.renderers: BlockingPool

    async def show_page(self) -> Response:
        """Return the page."""
        return HTMLResponse(self.page.html, headers={"content-security-policy": self.page.policy})

    async def state(self, mode: Mode = "mixed") -> Response:
        """Return the next question, the classes and the accuracy."""
        return JsonResponse(200, await self.owner.run(self.session.state, mode))

    async def likely(self, name: Annotated[str, Query(alias="class")]) -> Response:
        """Return unlabelled pictures that probably belong to a class."""
        found = await self.owner.run(self.session.likely, name)
        pictures = [{"picture": i, "probability": probability} for i, probability in found]
        return JsonResponse(200, {"class": name, "pictures": pictures})

    async def picture(
        self, number: Annotated[int, Query(ge=0)], side: Annotated[int, Query(ge=1, le=_MAX_SIDE)]
    ) -> Response:
        """Return a picture as a JPEG whose longer side has at most `side` pixels."""
        if number >= len(self.session.pool.paths):
            raise HTTPException(404, f"there is no picture {number}")
        try:
            data = await self.renderers.run(self.render, number, side)
        except ImageError as error:
            raise HTTPException(410, f"the picture can no longer be read: {error.reason}") from None
        headers = {"cache-control": "private, max-age=86400"}  # the key is part of the address
        return Response(data, media_type="image/jpeg", headers=headers)

    def render(self, number: int, side: int) -> bytes:
        """Return the JPEG of a picture.

        Raises:
            ImageError: The file can no longer be read.
        """
        pool = self.session.pool
        path = pool.root / pool.paths[number][0]
        image = open_image(path, max_pixels=MAX_IMAGE_PIXELS, grey_range=pool.grey_range)
        return thumbnail_jpeg(image, side)

    async def answer(self, request: Request, mode: Mode = "mixed") -> Response:
        """Record the class of a picture and return the new state."""
        body = await self.body(request, OneAnswer)
        return await self.record(mode, self.session.answer, body.picture, body.label)

    async def confirm(self, request: Request, mode: Mode = "mixed") -> Response:
        """Record the same class for several pictures and return the new state."""
        body = await self.body(request, GroupAnswer)
        pictures, taken_out = list(body.pictures), list(body.taken_out)
        return await self.record(mode, self.session.confirm, pictures, body.label, taken_out)

    async def skip(self, request: Request, mode: Mode = "mixed") -> Response:
        """Record that a picture has no label, and return the new state."""
        body = await self.body(request, SkippedPicture)
        return await self.record(mode, self.session.skip, body.picture)

    async def undo(self, mode: Mode = "mixed") -> Response:
        """Undo the last step and return the new state."""
        return await self.record(mode, self.session.undo)

    async def record(self, mode: Mode, function: Callable[..., None], *arguments: Any) -> Response:  # noqa: ANN401
        """Call a method of the session that changes the answers, and return the new state."""

        def change() -> dict[str, Any]:
            function(*arguments)
            return self.session.state(mode)

        return JsonResponse(200, await self.owner.run(change))

    async def body(self, request: Request, kind: type[Any]) -> Any:  # noqa: ANN401
        """Return the JSON body of a request as an instance of a dataclass.

        Raises:
            HTTPException: The body is not JSON (415, 400), does not match the dataclass (422), is
                too large (413) or is sent too slowly (408).
        """
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise HTTPException(415, "send application/json")
        with self.memory.reservation() as reservation:
            length = request.headers.get("content-length")
            data = await receive_body(request.receive, length, reservation, max_bytes=_MAX_BODY)
        try:
            value = parse_json(data)
        except ValueError as error:
            raise HTTPException(400, f"the body is not valid JSON: {error}") from None
        try:
            return structured(value, kind)
        except StructureError as error:
            raise HTTPException(422, str(error)) from None


def make_label_app(session: Session, access: Access, *, key: str) -> SecurityMiddleware:
    """Return the ASGI application; every request must contain the key."""
    handlers = LabelHandlers(session)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        handlers.owner = BlockingPool(1, "session")
        handlers.renderers = BlockingPool(_RENDERERS, "render")
        yield
        handlers.owner.close()
        handlers.renderers.close()

    app = FastAPI(openapi_url=None, redirect_slashes=False, lifespan=lifespan)
    gets = (handlers.state, handlers.likely, handlers.picture)
    posts = (handlers.answer, handlers.confirm, handlers.skip, handlers.undo)
    allowed = {"/": add_route(app, "/", handlers.show_page, "GET")}
    for method, functions in (("GET", gets), ("POST", posts)):
        for function in functions:
            path = f"/{function.__name__}"
            allowed[path] = add_route(app, path, function, method)
    add_error_handlers(app, allowed)
    app.add_exception_handler(VitftError, _user_error)
    return SecurityMiddleware(app, access, key=key)


async def _user_error(_: Request, error: Exception) -> Response:
    """Return the response to a session error: 422 (bad request), 409 (changed file) or 500."""
    assert isinstance(error, VitftError)
    status = {UsageError: 422, DataError: 409}.get(type(error), 500)
    return JsonResponse(status, {"error": error.problem, "fix": error.fix})
