"""Reading of request bodies, with limits on size, time and memory, and parsing of forms.

Forms (multipart/form-data, RFC 7578) are parsed by python-multipart with our limits. Uploads are
never written to disk. Parsing stops as soon as a form exceeds the maximum number of files.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.types import Receive

from vitft.serve.limits import BODY_SECONDS, MAX_HEADER_LINES, MIN_BYTES_PER_SECOND, PART_HEADERS
from vitft.system.text import count

RETRY_SOON = {"Retry-After": "1"}
_CLIENT_SETS_IT = "leave Content-Type out, and the client sets the boundary"

logging.getLogger("python_multipart").addHandler(logging.NullHandler())  # not to stderr


class MemoryBudget:
    """Limit on the total number of bytes of all request bodies in memory."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def reservation(self) -> Iterator["Reservation"]:
        """Yield a reservation that can grow while a body is read, and release it on exit."""
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
        """Reserve `size` more bytes.

        Raises:
            HTTPException: The budget is exhausted (503).
        """
        if self.budget.used + size > self.budget.limit:
            raise HTTPException(503, "too many uploads at once; try again", headers=RETRY_SOON)
        self.budget.used += size
        self.size += size


async def receive_body(
    receive: Receive, content_length: str | None, reservation: Reservation, *, max_bytes: int
) -> bytes:
    """Read and return the whole body of a request, growing the reservation as data arrives.

    Raises:
        HTTPException: The body is too large (413), sent too slowly (408) or incomplete (400), or
            the memory budget is exhausted (503).
    """
    too_large = HTTPException(413, f"the request is larger than {max_bytes / 1e6:g} MB")
    if content_length is not None and int(content_length) > max_bytes:
        raise too_large
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
            raise too_large
        reservation.grow(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


@dataclass(frozen=True, slots=True)
class Upload:
    """One uploaded file."""

    name: str
    """File name sent by the client, never used as a path; may be empty."""
    data: bytes


class FormError(Exception):
    """Error for a form that is damaged or exceeds a limit; the message is sent to the client."""


class FormReader:
    """Parser callbacks that collect the files of a form."""

    def __init__(self, max_files: int, parameters: Collection[str]) -> None:
        self.max_files, self.parameters = max_files, parameters
        self.files: list[Upload] = []
        self.field, self.value = bytearray(), bytearray()
        self.name: str | None = None
        self.label = ""
        self.chunks: list[bytes] = []
        self.num_parts = 0
        self.is_complete = False

    def on_part_begin(self) -> None:
        self.num_parts += 1
        if self.num_parts > self.max_files:
            raise FormError(f"more than {count(self.max_files, 'file')} in one request")
        self.name, self.chunks = None, []

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self.field += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def on_header_end(self) -> None:
        if self.field.lower() == b"content-disposition":
            kind, options = parse_options_header(bytes(self.value))
            self.label = options.get(b"name", b"").decode("utf-8", "replace")[:50]
            if kind == b"form-data" and b"filename" in options:
                self.name = options[b"filename"].decode("utf-8", "replace")[:255]
        self.field.clear()
        self.value.clear()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.chunks.append(data[start:end])

    def on_part_end(self) -> None:
        data = b"".join(self.chunks)
        if self.name is None:
            fix = "with curl: -F image=@photo.jpg"
            if self.label in self.parameters:
                fix = f"use ?{self.label}={quote(data[:100])} in the address"
            raise FormError(f"a part of the form is not a file: {self.label!a} ({fix})")
        self.files.append(Upload(self.name, data))

    def on_end(self) -> None:
        self.is_complete = True


def read_form(
    body: bytes, content_type: str, *, max_files: int, parameters: Collection[str] = ()
) -> list[Upload]:
    """Return the files of a multipart/form-data body, in order.

    `parameters` are the names of query parameters, which are proposed in place of form fields.

    Raises:
        FormError: The form is damaged, incomplete or empty, exceeds a limit, or has a part that is
            not a file.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise FormError(f"the Content-Type has no boundary: {_CLIENT_SETS_IT}")
    reader = FormReader(max_files, parameters)
    callbacks: Any = {n: getattr(reader, n) for n in dir(reader) if n.startswith("on_")}
    try:
        parser = MultipartParser(
            boundary, callbacks, max_header_count=MAX_HEADER_LINES, max_header_size=PART_HEADERS
        )
        parser.write(body)
    except FormParserError:
        raise FormError(
            "the headers of a part are malformed or too long"
            if reader.num_parts
            else f"the form does not begin with its boundary: {_CLIENT_SETS_IT}"
        ) from None
    if not reader.is_complete:
        raise FormError("the form is incomplete" if body else "the form is empty")
    if not reader.files:
        raise FormError("the form contains no files")
    return reader.files
