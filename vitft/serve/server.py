"""Socket, protocol timeouts and uvicorn configuration of the server."""

import asyncio
import http
import json
import os
import socket
import sys
import threading
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitft.predict.engine import Engine
from vitft.predict.postprocess import Postprocess
from vitft.serve.app import make_app
from vitft.serve.batching import BatchQueue
from vitft.serve.limits import (
    DRAIN_SECONDS,
    GRACE_SECONDS,
    HEAD_SECONDS,
    LINGER_SECONDS,
    MAX_CONNECTIONS,
    READ_BYTES,
    STOP_SECONDS,
    SWITCH_SECONDS,
    WRITE_SECONDS,
    Access,
    ServeLimits,
)
from vitft.system.errors import UsageError
from vitft.system.signals import SIGNALS
from vitft.system.text import describe_os_error


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 selects a free port.

    Raises:
        UsageError: The address is unknown, does not belong to this machine, or cannot be used.
    """
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


class TimeoutProtocol(H11Protocol):
    """HTTP/1.1 protocol with timeouts and a limit on connections.

    The timeouts apply to receiving request headers and to sending responses. Uvicorn leaves such
    timeouts to a reverse proxy: its only timer starts after the first response. The limits on the
    size and duration of request bodies are enforced in `uploads`.
    """

    head_timer: asyncio.TimerHandle | None = None
    write_timer: asyncio.TimerHandle | None = None
    has_begun = False
    """Whether bytes have arrived since the last response."""
    is_refused = False
    """Whether the rest of what the client sends is discarded."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]  # attribute of asyncio's transports
        if len(self.connections) > MAX_CONNECTIONS:
            self.refuse(503, "too many connections: try again", "retry-after: 1")
            return
        self.update_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.head_timer, self.write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        self.has_begun = True
        super().data_received(data)
        self.update_head_timer()

    def on_response_complete(self) -> None:
        self.has_begun = False
        super().on_response_complete()
        self.update_head_timer()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def update_head_timer(self) -> None:
        """Start or cancel the header timeout, which runs while no request is being answered."""
        if self.is_idle and self.head_timer is None and not self.transport.is_closing():
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self.head_timed_out)
        elif not self.is_idle and self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def head_timed_out(self) -> None:
        """Close the connection unless the headers of a request have arrived in time."""
        self.head_timer = None
        if not self.is_idle or self.is_refused or self.transport.is_closing():
            return
        if self.has_begun:
            self.refuse(408, "the request was sent too slowly")
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self.write_timer is not None:
            self.write_timer.cancel()
            self.write_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it may contain request data
        """Respond to data that is not valid HTTP; called by uvicorn."""
        self.refuse(400, "invalid HTTP request")

    def refuse(self, status: int, problem: str, *headers: str) -> None:
        """Send an error response unless a response has begun, and close the connection."""
        if not self.is_idle:
            self.cycle.disconnected = True  # discard what the application still sends
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": problem})
            head = [
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
                *headers,
                "content-type: application/json",
                f"content-length: {len(body)}",
                "connection: close",
            ]
            self.transport.write("\r\n".join([*head, "", body]).encode())
        # Closing with unread data would reset the connection, and the client might lose the answer.
        self.is_refused = True
        if len(self.connections) > MAX_CONNECTIONS:
            self.transport.close()
        else:
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)


class Server(uvicorn.Server):
    """Uvicorn server that stops within `STOP_SECONDS` of the first signal."""

    exit_code = 0
    """Exit code for the signal that stopped the server, or 0."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped, with a short switch interval for Python threads."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            super().run(sockets)
        finally:
            sys.setswitchinterval(before)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests that clients have begun to send, then stop."""
        self.server_state.default_headers.append((b"connection", b"close"))
        for bound in sockets or []:
            bound.listen(0)  # clients that have not connected yet wait, and are then refused
        await asyncio.sleep(DRAIN_SECONDS if self.server_state.connections else 0.1)
        for server in self.servers:
            server.close()
        await asyncio.sleep(0.1)  # the last requests are read
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - of uvicorn
        if self.should_exit:
            return
        self.exit_code = SIGNALS[sig]
        watchdog = threading.Timer(STOP_SECONDS, os._exit, [self.exit_code])  # also ends threads
        watchdog.daemon = True
        watchdog.start()
        self.should_exit = True  # uvicorn's method would raise the signal again while asyncio ends


def make_server(
    engine: Engine, postprocess: Postprocess, limits: ServeLimits, access: Access
) -> Server:
    """Return a server that can be started with `run(sockets=[...])`.

    Raises:
        RunError: The model's scores are not finite.
    """
    return server_of(make_app(BatchQueue(engine, postprocess, limits), access))


def server_of(app: ASGIApp) -> Server:
    """Return a server that serves an application once `run(sockets=[...])` is called."""
    config = uvicorn.Config(
        app,
        http=TimeoutProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS - DRAIN_SECONDS,
    )
    return Server(config)
