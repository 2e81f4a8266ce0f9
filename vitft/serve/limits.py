"""Limits on the size, number and duration of requests to the server."""

from dataclasses import dataclass

from vitft.system.errors import UsageError

MAX_BATCH = 32  # maximum number of images per call of the model
MAX_IMAGES = 32  # maximum number of images per request
MAX_IMAGE_PIXELS = 50_000_000  # pixels per image: 150 MB as RGB in each decoding thread
MAX_SCANS = 100
"""Maximum number of scans of a progressive JPEG. Encoders write about ten; an extra scan needs only
50 bytes but takes as long to decode as a whole image."""
MAX_CONNECTIONS = 512  # open connections; the usual limit on file descriptors is 1024
READ_BYTES = 16_384  # bytes read from one connection before the next one is served
MIN_BYTES_PER_LINE = 128
"""Minimum average number of bytes per line break of a chunked body."""
PART_HEADERS = 8192  # maximum bytes of a header line in a part of a form
MAX_HEADER_LINES = 16  # maximum number of header lines in a part of a form

HEAD_SECONDS = 10.0
"""Timeout for the headers of a request, from the start of the connection or the last response."""
BODY_SECONDS = 15.0
"""Timeout for the body of a request; its size divided by `MIN_BYTES_PER_SECOND` is added."""
MIN_BYTES_PER_SECOND = 20_000.0  # minimum upload rate
WRITE_SECONDS = 20.0  # timeout for the client to read a response
ANSWER_SECONDS = 30.0  # timeout from the end of a request to its response
TIDY_SECONDS = 2.0  # interval for returning freed memory while there are requests
SWITCH_SECONDS = 0.0005
"""Switch interval of Python threads. With the default of 0.005, each step of a response to /healthz
could wait that long for every decoding thread."""
GRACE_SECONDS = 4  # time from the stop signal until open requests are cancelled
STOP_SECONDS = 5.0  # time from the stop signal until the process ends, whatever it does


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """Limits set by options of `vitft serve`."""

    max_bytes: int = 20_000_000
    queue: int = 64
    """Maximum number of images in the queue; further ones are refused."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1000:
            raise UsageError(
                f"invalid --max-bytes {self.max_bytes}: too small for an image",
                fix="use an integer of 1000 or more, e.g. --max-bytes 20000000",
            )
        if self.queue < 1:
            raise UsageError(f"invalid --queue {self.queue}", fix="use an integer of 1 or more")

    @property
    def images(self) -> int:
        return min(MAX_IMAGES, self.queue)

    @property
    def memory(self) -> int:
        """Maximum total size of all request bodies in memory, in bytes."""
        return 8 * self.max_bytes
