"""What one client may ask of the server, as numbers. They are checked before torch is imported."""

from dataclasses import dataclass

from vitft.system.errors import UsageError

MAX_BATCH = 32
"""Images that the model sees at once."""
MAX_IMAGES = 32
"""Images in one request."""
MAX_PIXELS = 50_000_000
"""Of one image: 150 MB as RGB, in as many threads as decode."""
MAX_SCANS = 100
"""Passes over the picture in one progressive JPEG; encoders make about ten. Each costs a decoder
the time of a whole picture and an attacker 50 bytes."""
MAX_CONNECTIONS = 512
"""Open at once; the usual limit of file descriptors is 1024."""
READ_BYTES = 16_384
"""Taken from one connection before it is the next one's turn."""
LINE_BYTES = 128
"""Bytes per line end, on average, of a body in chunks; with less, its chunks are tiny."""
PART_HEADERS = 8192
"""Bytes of headers in front of one file of a form."""

HEAD_SECONDS = 10.0
"""From the opening of a connection, or the last answer on it, to the end of a request's headers."""
BODY_SECONDS = 15.0
SLOWEST = 20_000.0
"""A body may take `BODY_SECONDS`, and a second more for this many bytes that have come."""
WRITE_SECONDS = 20.0
"""How long a client may leave an answer unread."""
ANSWER_SECONDS = 30.0
"""From a whole request to its answer."""
TIDY_SECONDS = 2.0
"""Between two returns of freed memory, if images came in between."""
TURN_SECONDS = 0.0005
"""After which a thread lets another one go on. With Python's 0.005 each step of an answer to
/healthz may wait so long for every thread that decodes."""
STOP_SECONDS = 5
"""From the signal to stop until requests under way are cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that a user sets."""

    max_bytes: int = 20_000_000
    """Of one request's body."""
    queue: int = 64
    """Images that have been read and wait for their answer; further ones are sent away."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1000:
            raise UsageError(
                f"--max-bytes is {self.max_bytes}, which no photo fits into",
                fix="give the bytes of the largest request, e.g. --max-bytes 20000000",
            )
        if self.queue < 1:
            raise UsageError(f"--queue is {self.queue}", fix="let at least one image wait")

    @property
    def images(self) -> int:
        """Images in one request."""
        return min(MAX_IMAGES, self.queue)

    @property
    def memory(self) -> int:
        """Bytes of bodies held at once, of all requests together."""
        return 8 * self.max_bytes
