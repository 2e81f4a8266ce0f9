"""Reading of request bodies, with limits on size, time and memory, and parsing of forms.

Forms (multipart/form-data, RFC 7578) are parsed by python-multipart with our limits. Uploads are
never written to disk.
"""

import asyncio
import io
import logging
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import Request

from vitft.serve.limits import BODY_SECONDS, MAX_HEADER_LINES, MIN_BYTES_PER_SECOND, PART_HEADERS
from vitft.system.text import count

RETRY_SOON = {"Retry-After": "1"}
_CLIENT_SETS_IT = "leave Content-Type out, and the client sets the boundary"

logging.getLogger("python_multipart").addHandler(logging.NullHandler())  # not to stderr


@dataclass(slots=True)
class MemoryBudget:
    """Limit on the total number of bytes of all request bodies in memory."""

    limit: int
    used: int = 0


@asynccontextmanager
async def received_body(
    request: Request, budget: MemoryBudget, *, max_bytes: int
) -> AsyncIterator[bytes]:
    """Yield the whole body of a request, which occupies the budget inside the block.

    Raises:
        HTTPException: The body is too large (413), sent too slowly (408) or incomplete (400), or
            the memory budget is exhausted (503).
    """
    too_large = HTTPException(413, f"the request is larger than {max_bytes / 1e6:g} MB")
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size, start, more = 0, time.monotonic(), True
    try:
        while more:
            left = start + BODY_SECONDS + size / MIN_BYTES_PER_SECOND - time.monotonic()
            try:
                message = await asyncio.wait_for(request.receive(), max(left, 0))
            except TimeoutError:
                raise HTTPException(408, "the request was sent too slowly") from None
            if message["type"] == "http.disconnect":
                raise HTTPException(400, "the request was interrupted")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            if size + len(chunk) > max_bytes:
                raise too_large
            if budget.used + len(chunk) > budget.limit:
                raise HTTPException(503, "too many uploads at once: try again", headers=RETRY_SOON)
            budget.used += len(chunk)
            size += len(chunk)
            chunks.append(chunk)
        chunks[:] = [b"".join(chunks)]
        yield chunks.pop()  # the caller alone refers to it
    finally:
        budget.used -= size


@dataclass(frozen=True, slots=True)
class Upload:
    """One uploaded file."""

    name: str
    """File name sent by the client, never used as a path; may be empty."""
    data: bytes


def read_form(
    body: bytes, content_type: str, *, max_files: int, parameters: Collection[str] = ()
) -> list[Upload]:
    """Return the files of a multipart/form-data body, in order.

    `parameters` are the names of query parameters that the errors propose in place of form fields.

    Raises:
        HTTPException: The form is damaged, incomplete or empty, exceeds a limit, or has a part that
            is not a file (400).
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise HTTPException(400, f"the Content-Type has no boundary: {_CLIENT_SETS_IT}")
    files: list[Upload] = []
    ends: list[bool] = []

    def add_file(file: File) -> None:
        if len(files) == max_files:
            raise HTTPException(400, f"more than {count(max_files, 'file')} in one request")
        assert isinstance(file.file_object, io.BytesIO)
        name = (file.file_name or b"").decode("utf-8", "replace")[:255]
        files.append(Upload(name, file.file_object.getvalue()))

    def refuse_field(field: Field) -> None:
        label = (field.field_name or b"").decode("utf-8", "replace")[:50]
        fix = "with curl: -F image=@photo.jpg"
        if label in parameters:
            fix = f"use ?{label}={quote((field.value or b'')[:100])} in the address"
        raise HTTPException(400, f"a part of the form is not a file: {label!a} ({fix})")

    limits = {
        "MAX_HEADER_COUNT": MAX_HEADER_LINES,
        "MAX_HEADER_SIZE": PART_HEADERS,
        "MAX_MEMORY_FILE_SIZE": float("inf"),
    }
    try:
        parser = FormParser(
            "multipart/form-data",
            refuse_field,
            add_file,
            lambda: ends.append(True),
            boundary,
            config=limits,
        )
        parser.write(body)
    except FormParserError:
        problem = f"the form does not begin with its boundary: {_CLIENT_SETS_IT}"
        if body.lstrip(b"\r\n").startswith(b"--" + boundary):
            problem = "the headers of a part are malformed or too long"
        raise HTTPException(400, problem) from None
    if not ends:
        raise HTTPException(400, "the form is incomplete" if body else "the form is empty")
    if not files:
        raise HTTPException(400, "the form contains no files")
    return files
