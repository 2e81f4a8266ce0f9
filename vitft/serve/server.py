"""The socket, start and stop."""

import socket
import sys
from types import FrameType

import uvicorn

from vitft.predict.torch_engine import Predictor
from vitft.serve.access import Access
from vitft.serve.app import make_app
from vitft.serve.engine import Engine
from vitft.serve.limits import STOP_SECONDS, TURN_SECONDS, Limits
from vitft.serve.protocol import PatientProtocol
from vitft.system.errors import UsageError


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; port 0 takes a free one.

    Raises:
        UsageError: The address is not this machine's, or taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(
            f"--host {host} is no address: {error.strerror}", fix="use 127.0.0.1 or 0.0.0.0"
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)  # a second server is refused now, not when its model is loaded
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            fix="choose another one: --port 0 takes any that is free",
        ) from error
    return bound


class Server(uvicorn.Server):
    """One signal stops it, in `STOP_SECONDS` at the latest; further ones change nothing."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop; meanwhile Python's threads take short turns."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(TURN_SECONDS)
        try:
            super().run(sockets)
        finally:
            sys.setswitchinterval(before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            super().handle_exit(sig, frame)


def make_server(predictor: Predictor, limits: Limits, access: Access) -> Server:
    """A server that is ready to `run(sockets=[...])`."""
    config = uvicorn.Config(
        make_app(Engine(predictor, limits), access),
        http=PatientProtocol,
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
