"""Request bodies, read within limits of size, time and memory."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.types import Receive

from vitft.serve.limits import BODY_SECONDS, MIN_BYTES_PER_SECOND

RETRY_SOON = {"Retry-After": "1"}


class MemoryBudget:
    """Bytes that the bodies of all requests may occupy together."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def reservation(self) -> Iterator["Reservation"]:
        """Open a reservation that grows while a body is read and is released at the end."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.used -= reservation.size


class Reservation:
    """The part of a `MemoryBudget` that one request occupies."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget, self.size = budget, 0

    def grow(self, size: int) -> None:
        """Reserve `size` further bytes.

        Raises:
            HTTPException: 503, the budget is exhausted.
        """
        if self.budget.used + size > self.budget.limit:
            raise HTTPException(503, "too many uploads at once; try again", headers=RETRY_SOON)
        self.budget.used += size
        self.size += size


async def receive_body(
    receive: Receive, content_length: str | None, reservation: Reservation, *, max_bytes: int
) -> bytes:
    """Read the whole body.

    Args:
        receive: The messages of the request.
        content_length: The header, if there is one; the protocol holds the client to it.
        reservation: Grows with the body.
        max_bytes: Larger bodies are refused.

    Raises:
        HTTPException: 413 too large, 408 too slow, 400 interrupted, 503 out of memory.
    """
    if content_length is not None and int(content_length) > max_bytes:
        raise body_too_large(max_bytes)
    chunks: list[bytes] = []
    start = time.monotonic()
    more = True
    while more:
        allowed = BODY_SECONDS + reservation.size / MIN_BYTES_PER_SECOND
        left = start + allowed - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), max(left, 0))
        except TimeoutError:
            raise HTTPException(408, "the request was sent too slowly") from None
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "the request was interrupted")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        if reservation.size + len(chunk) > max_bytes:
            raise body_too_large(max_bytes)
        reservation.grow(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


def body_too_large(max_bytes: int) -> HTTPException:
    """Return the error for a body beyond the limit."""
    return HTTPException(413, f"the request is larger than {max_bytes / 1e6:g} MB")
