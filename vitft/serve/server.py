"""Socket, timeouts and uvicorn configuration of the server."""

import asyncio
import os
import socket
import threading
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitft.serve.limits import GRACE_SECONDS, MIN_BYTES_PER_SECOND, STOP_SECONDS, ServeLimits
from vitft.system.errors import UsageError
from vitft.system.signals import SIGNALS
from vitft.system.text import describe_os_error


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 selects a free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(
            f"invalid --host {host}: {describe_os_error(error)}", fix="use 127.0.0.1 or 0.0.0.0"
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)  # a second server fails here, before it loads its model
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {describe_os_error(error)}",
            fix="choose one of this machine's addresses with --host and a free port with --port",
        ) from error
    return bound


class _Protocol(H11Protocol):
    """HTTP/1.1 with timeouts for the headers of a request and for a client that does not read.

    Uvicorn's own timer starts after the first response and ends with the next byte.
    """

    write_seconds: float
    write_timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` is called for any unsent byte
        if len(self.connections) > (self.limit_concurrency or 0):
            transport.close()  # uvicorn's limit answers requests, but keeps the connections
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        self.conn.receive_data(data)
        self.handle_events()
        if self.cycle is not None and not self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        extra = self.transport.get_write_buffer_size() / MIN_BYTES_PER_SECOND
        self.write_timer = self.loop.call_later(self.write_seconds + extra, self.transport.abort)

    def resume_writing(self) -> None:
        self.write_timer.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()


class _Server(uvicorn.Server):
    """Uvicorn server that stops within `STOP_SECONDS` of the first signal."""

    exit_code = 0  # for the signal that stopped the server, if any

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - of uvicorn
        if self.should_exit:
            return
        self.exit_code = SIGNALS[sig]
        watchdog = threading.Timer(STOP_SECONDS, os._exit, [self.exit_code])  # also ends threads
        watchdog.daemon = True
        watchdog.start()
        self.should_exit = True  # uvicorn's method would raise the signal again while asyncio ends


def make_server(app: ASGIApp, limits: ServeLimits) -> _Server:
    """Return a server that serves an application once `run(sockets=[...])` is called."""
    config = uvicorn.Config(
        app,
        http=type("Protocol", (_Protocol,), {"write_seconds": limits.write_seconds}),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=limits.head_seconds,  # type: ignore[arg-type]  # not only whole seconds
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return _Server(config)
