"""A request's body, read within limits of size, time and memory."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.types import Receive

from vitft.serve.limits import BODY_SECONDS, SLOWEST

BUSY = {"Retry-After": "1"}


class Memory:
    """Bytes of bodies that all requests together may hold."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def loan(self) -> Iterator["Loan"]:
        """A share that grows while a body is read, and is given back at the end."""
        loan = Loan(self)
        try:
            yield loan
        finally:
            self.used -= loan.size


class Loan:
    """What one request holds."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.size = memory, 0

    def take(self, size: int) -> None:
        """Hold `size` bytes more.

        Raises:
            HTTPException: 503, the others hold too much.
        """
        if self.memory.used + size > self.memory.limit:
            raise HTTPException(503, "too many uploads at once; try again", headers=BUSY)
        self.memory.used += size
        self.size += size


async def read_body(
    receive: Receive, announced: str | None, loan: Loan, *, max_bytes: int
) -> bytes:
    """The whole body.

    Args:
        receive: The messages of the request.
        announced: Its Content-Length, if it has one; the protocol holds the client to it.
        loan: Where the bytes are counted.
        max_bytes: What is too large.

    Raises:
        HTTPException: 413 too large, 408 too slow, 400 broken off, 503 no memory left for it.
    """
    if announced is not None and int(announced) > max_bytes:
        raise too_large(max_bytes)
    chunks: list[bytes] = []
    start = time.monotonic()
    more = True
    while more:
        left = start + BODY_SECONDS + loan.size / SLOWEST - time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), max(left, 0))
        except TimeoutError:
            raise HTTPException(408, "the request came too slowly") from None
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "the request broke off")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        if loan.size + len(chunk) > max_bytes:
            raise too_large(max_bytes)
        loan.take(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


def too_large(max_bytes: int) -> HTTPException:
    """The answer to a body beyond the limit."""
    return HTTPException(413, f"the request is larger than {max_bytes / 1e6:g} MB")
