"""Socket and uvicorn settings of the server."""

import socket
import sys
from types import FrameType

import uvicorn

from vitft.predict.postprocess import Postprocess
from vitft.predict.torch_engine import Predictor
from vitft.serve.access import Access
from vitft.serve.app import make_app
from vitft.serve.batching import BatchQueue
from vitft.serve.limits import STOP_SECONDS, SWITCH_SECONDS, ServeLimits
from vitft.serve.protocol import TimeoutProtocol
from vitft.system.errors import UsageError


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 takes a free one.

    Raises:
        UsageError: The address is not one of this machine, or is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(
            f"invalid --host {host}: {error.strerror}", fix="use 127.0.0.1 or 0.0.0.0"
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)  # a second server fails here, before it loads its model
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            fix="use an address of this machine with --host and a free port with --port (0: any)",
        ) from error
    return bound


class Server(uvicorn.Server):
    """A uvicorn server that stops within `STOP_SECONDS` of the first signal."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped, with a short switch interval of Python's threads."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            super().run(sockets)
        finally:
            sys.setswitchinterval(before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            super().handle_exit(sig, frame)


def make_server(
    predictor: Predictor, postprocess: Postprocess, limits: ServeLimits, access: Access
) -> Server:
    """Return a server that is ready to `run(sockets=[...])`."""
    config = uvicorn.Config(
        make_app(BatchQueue(predictor, postprocess, limits), access),
        http=TimeoutProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return Server(config)
