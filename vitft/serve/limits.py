"""Limits of size, number and time for the clients of the server."""

from dataclasses import dataclass

from vitft.system.errors import UsageError

MAX_BATCH = 32  # images per call of the model
MAX_IMAGES = 32  # images per request
MAX_IMAGE_PIXELS = 50_000_000  # pixels of one image: 150 MB as RGB, in each of the decoding threads
MAX_SCANS = 100
"""Scans of one progressive JPEG; encoders write about ten. Each costs an attacker 50 bytes, and the
decoder the time of a whole image."""
MAX_CONNECTIONS = 512  # open connections; the usual limit of file descriptors is 1024
READ_BYTES = 16_384  # bytes read from one connection before the next one is served
MIN_BYTES_PER_LINE = 128
"""Average bytes per line end of a body in chunks; below it, the chunks are refused as tiny."""
PART_HEADERS = 8192  # bytes of one header line of a part of a form
MAX_HEADER_LINES = 16  # header lines of one part of a form

HEAD_SECONDS = 10.0
"""From the opening of a connection, or its last response, to the end of a request's headers."""
BODY_SECONDS = 15.0
"""For the body of a request, plus the time that its bytes take at `MIN_BYTES_PER_SECOND`."""
MIN_BYTES_PER_SECOND = 20_000.0  # slowest upload
WRITE_SECONDS = 20.0  # for the client to read a response
ANSWER_SECONDS = 30.0  # from the end of a request to its response
TIDY_SECONDS = 2.0  # between two returns of freed memory to the system, while there are requests
SWITCH_SECONDS = 0.0005
"""Switch interval of Python's threads. With the usual 0.005, each step of a response to /healthz
could wait that long for every thread that decodes."""
STOP_SECONDS = 5  # from the signal to stop until open requests are cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """The limits that are options of `vitft serve`."""

    max_bytes: int = 20_000_000
    queue: int = 64
    """Images that may wait for the model; further ones are refused."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1000:
            raise UsageError(
                f"invalid --max-bytes {self.max_bytes}: no photo is that small",
                fix="give the bytes of the largest request, e.g. --max-bytes 20000000",
            )
        if self.queue < 1:
            raise UsageError(f"invalid --queue {self.queue}", fix="use at least 1")

    @property
    def images(self) -> int:
        return min(MAX_IMAGES, self.queue)

    @property
    def memory(self) -> int:
        """Bytes of the bodies of all requests together."""
        return 8 * self.max_bytes
