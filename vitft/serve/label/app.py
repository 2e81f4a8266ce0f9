"""ASGI application of `vitft label`: the page, its pictures and its answers.

One thread owns the session, so answers are recorded one after another. A response confirms an
answer only after the file has been flushed to the disk.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from vitft.data.images import open_image, thumbnail_jpeg
from vitft.serve.app import BodyReader, integer, json_response, make_site, page_route
from vitft.serve.batching import run_in
from vitft.serve.label.session import Mode, Session
from vitft.serve.limits import MAX_IMAGE_PIXELS, Access, ServeLimits
from vitft.system.errors import DataError, ImageError, UsageError, VitftError
from vitft.system.structure import StructureError, parse_json, structured

_MAX_BODY = 20_000  # maximum size of a request body in bytes
_RENDERERS = 2  # number of threads that decode pictures for the page
_SIDES = (1, 1600)


class _LabelHandlers:
    """Request handlers for the routes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.bodies = BodyReader(_MAX_BODY, ServeLimits().body_seconds)
        self.owner = ThreadPoolExecutor(1, "session")
        self.renderers = ThreadPoolExecutor(_RENDERERS, "render")

    async def state(self, request: Request) -> Response:
        """Return the next question, the classes and the accuracy."""
        return await self.changed(request, lambda: None)

    async def changed(self, request: Request, change: Callable[[], None]) -> Response:
        """Return the state of the session after a change."""
        mode = structured(request.query_params.get("mode", "mixed"), Mode, "mode")

        def new_state() -> dict[str, Any]:
            change()
            return self.session.state(mode)

        return json_response(await run_in(self.owner, new_state))

    async def likely(self, request: Request) -> Response:
        """Return unlabelled pictures that probably belong to a class."""
        name = request.query_params.get("class", "")
        found = await run_in(self.owner, self.session.likely, name)
        pictures = [{"picture": i, "probability": probability} for i, probability in found]
        return json_response({"class": name, "pictures": pictures})

    async def picture(self, request: Request) -> Response:
        """Return a picture as a JPEG whose longer side has at most `side` pixels."""
        pool, side = self.session.pool, integer(request, "side", _SIDES)
        number = integer(request, "number", (0, None))
        if number >= len(pool.paths):
            raise HTTPException(404, f"there is no image {number}")

        def render() -> bytes:
            path, grey_range = pool.root / pool.paths[number][0], pool.grey_range
            image = open_image(path, max_pixels=MAX_IMAGE_PIXELS, grey_range=grey_range)
            return thumbnail_jpeg(image, side)

        try:
            data = await run_in(self.renderers, render)
        except ImageError as error:
            raise HTTPException(410, f"the image can no longer be read: {error.reason}") from None
        headers = {"cache-control": "private, max-age=86400"}  # the key is part of the address
        return Response(data, media_type="image/jpeg", headers=headers)

    def changing(self, change: Callable[..., None]) -> Route:
        """Return a route that passes its JSON body to a method of the session."""
        hints = get_type_hints(change, include_extras=True)
        kind = make_dataclass("Body", [hint for hint in hints.items() if hint[0] != "return"])

        async def handle(request: Request) -> Response:
            fields: dict[str, Any] = {}
            if len(hints) > 1:
                media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if media != "application/json":
                    raise HTTPException(415, "send application/json")
                async with self.bodies.read(request) as data:
                    try:
                        fields = parse_json(data)
                    except ValueError as error:
                        problem = f"the body is not valid JSON: {error}"
                        raise HTTPException(400, problem) from None
                structured(fields, kind)
            return await self.changed(request, lambda: change(**fields))

        return Route(f"/{change.__name__}", handle, methods=["POST"])


def make_label_app(session: Session, access: Access, *, key: str) -> ASGIApp:
    """Return the ASGI application; every request must contain the key."""
    handlers = _LabelHandlers(session)

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        yield
        handlers.owner.shutdown(wait=False)
        handlers.renderers.shutdown(wait=False)

    async def user_error(_: Request, error: Exception) -> Response:
        """Return the response to a session error: 422 (bad request), 409 (changed file) or 500."""
        assert isinstance(error, VitftError)
        status = {UsageError: 422, DataError: 409}.get(type(error), 500)
        return json_response({"error": error.problem, "fix": error.fix}, status)

    async def wrong_value(_: Request, error: Exception) -> Response:
        return json_response({"error": str(error)}, 422)

    page = page_route(Path(__file__).parent / "page", images="'self' data:", cards=False)
    read = (handlers.state, handlers.likely, handlers.picture)
    changes: Sequence[Callable[..., None]]
    changes = (session.answer, session.confirm, session.skip, session.undo)
    routes = [
        page,
        *(Route(f"/{function.__name__}", function) for function in read),
        *map(handlers.changing, changes),
    ]
    errors = {VitftError: user_error, StructureError: wrong_value}
    return make_site(routes, running, access, errors=errors, key=key)
