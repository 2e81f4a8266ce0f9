"""ASGI middleware: host and origin checks, security headers, a response on cancellation."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitft.serve.access import Access, is_own_page
from vitft.serve.schemas import JsonResponse

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every response that does not set them itself."""


class SecurityMiddleware:
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
                message = {**message, "headers": with_security_headers(message["headers"])}
            await send(message)

        handler = refusal(scope, self.access) or self.app
        try:
            await handler(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and this request took too long
            if not started:
                await JsonResponse(503, {"error": "the server is stopping"})(
                    scope, receive, send_with_headers
                )


def with_security_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response with the missing `SECURITY_HEADERS`."""
    present = {name.lower() for name, _ in headers}
    added = [
        (name.encode(), value.encode())
        for name, value in SECURITY_HEADERS.items()
        if name.encode() not in present
    ]
    return [*headers, *added]


def refusal(scope: Scope, access: Access) -> JsonResponse | None:
    """Return the response to a request that is refused; None if it is allowed."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    host = headers.get(b"host", "")
    if not access.allows(host):
        return JsonResponse(421, {"error": "unknown host name; --allow-host NAME allows it"})
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if scope["method"] not in SAFE_METHODS and not is_own_page(host, origin=origin, site=site):
        return JsonResponse(403, {"error": "requests from pages of other sites are refused"})
    return None
