"""What holds for every request, whatever its route: where it may come from, headers, an end."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitft.serve.access import Access, is_own_page
from vitft.serve.answers import Json

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""On every answer that does not say otherwise."""


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                message = {**message, "headers": with_headers(message["headers"])}
            await send(message)

        answer = refusal(scope, self.access)
        try:
            await (answer or self.app)(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops and this request took too long
            if not started:
                await Json(503, {"error": "the server is stopping"})(
                    scope, receive, send_with_headers
                )


def with_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer, with those that every answer has."""
    there = {name.lower() for name, _ in headers}
    added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in there]
    return [*headers, *added]


def refusal(scope: Scope, access: Access) -> Json | None:
    """Why a request is not answered, if it is not."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    host = headers.get(b"host", "")
    if not access.knows(host):
        return Json(421, {"error": "this server is not known by that name (--allow-host adds one)"})
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if scope["method"] not in SAFE_METHODS and not is_own_page(host, origin=origin, site=site):
        return Json(403, {"error": "requests from other pages are not answered"})
    return None
