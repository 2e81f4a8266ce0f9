"""A multipart body as files, by RFC 7578, in memory: nothing of the user's touches the disk.

The body is whole already, so it is cut at its boundary by one pass of `bytes.split`; a form with
a million parts costs as much as one with the allowed number and one more.
"""

import re
from dataclasses import dataclass

from vitft.serve.limits import PART_HEADERS

BOUNDARY = re.compile(r"""[;\s]boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))""", re.I)
FILENAME = re.compile(r"""[;\s]filename="((?:[^"\\\r\n]|\\.)*)\"""", re.I)
DISPOSITION = re.compile(rb"^content-disposition:[ \t]*form-data([^\r\n]*)$", re.I | re.M)
NAME_LENGTH = 255


@dataclass(frozen=True, slots=True)
class Upload:
    """One file that a client sent."""

    name: str
    """What the client calls it; never a path of ours, empty if it has none."""
    data: bytes


class FormError(Exception):
    """A body that is not the form it says it is; the text is for the client."""


def read_form(body: bytes, content_type: str, *, max_files: int) -> list[Upload]:
    """The files of a multipart/form-data body, in order.

    Raises:
        FormError: No boundary, no end, a part that is no file, no files or too many.
    """
    found = BOUNDARY.search(content_type)
    if not found:
        raise FormError("the Content-Type names no boundary")
    mark = b"\r\n--" + (found[1] or found[2]).encode("latin-1", "replace")
    _, *parts = (b"\r\n" + body).split(mark, max_files + 2)
    if not parts:
        raise FormError("the form does not hold its boundary")
    if len(parts) > max_files + 1:
        raise FormError(f"more than {max_files} files in one request")
    if not parts[-1].startswith(b"--"):
        raise FormError("the form has no end")
    if not parts[:-1]:
        raise FormError("the form is empty")
    return [read_part(part) for part in parts[:-1]]


def read_part(part: bytes) -> Upload:
    """One part: its headers, an empty line, a file."""
    head, gap, data = part.partition(b"\r\n\r\n")
    if not gap or len(head) > PART_HEADERS or not part.startswith(b"\r\n"):
        raise FormError("a part of the form has damaged headers")
    disposition = DISPOSITION.search(head.replace(b"\r", b""))
    filename = FILENAME.search(disposition[1].decode("utf-8", "replace")) if disposition else None
    if not filename:
        raise FormError("a part of the form is no file")
    return Upload(re.sub(r"\\(.)", r"\1", filename[1])[:NAME_LENGTH], data)
