"""A server on loopback in a thread, and a client that can also send invalid requests."""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.children import started
from tests.support.limits import HANG_S
from vitft.predict import Engine, Postprocess
from vitft.serve import BatchQueue, ServeLimits, access_for, listen, make_app, make_server

TIMEOUT_S = 20.0
"""Timeout of the clients; only failing tests wait that long."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Client:
    """A client of a server on this machine."""

    port: int

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """One request on a connection of its own; `_` in a header's name stands for `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, sent)
            return reply(connection.getresponse())
        finally:
            connection.close()

    def post(self, path: str, image: bytes, **headers: str) -> Reply:
        """The bytes of one image."""
        return self.ask("POST", path, image, content_type="image/png", **headers)

    def form(self, path: str, *files: tuple[str, bytes]) -> Reply:
        """Files of a form."""
        return self.ask(
            "POST", path, form(*files), content_type='multipart/form-data; boundary="cut here"'
        )

    @contextmanager
    def raw(self, data: bytes) -> Iterator[socket.socket]:
        """A connection on which these bytes have been sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S) as connection:
            connection.sendall(data)
            yield connection

    def send_raw(self, data: bytes) -> bytes:
        """Everything that comes back for these bytes until the server hangs up."""
        with self.raw(data) as connection:
            return read_all(connection)


def reply(response: http.client.HTTPResponse) -> Reply:
    """Read a response to its end."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, response.read())


def shown_by(program: Path, url: str, *words: str | Path) -> Any:
    """Return what a program for Node prints of the page at an address; skip without Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    done = subprocess.run(
        [node, program, url, *words], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def answered(connection: socket.socket) -> Reply:
    """Read one response and leave the connection open."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return reply(response)
    finally:
        response.close()


def read_all(connection: socket.socket) -> bytes:
    """Read all bytes until the server closes or resets the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def form(*files: tuple[str, bytes]) -> bytes:
    """Return a multipart body with the boundary `cut here`."""
    head = '--cut here\r\nContent-Disposition: form-data; name="images"; filename="{}"\r\n\r\n'
    parts = [head.format(name).encode() + data + b"\r\n" for name, data in files]
    return b"".join(parts) + b"--cut here--\r\n"


@contextmanager
def command_serving(
    *words: str, **options: Any
) -> Iterator[tuple[Client, "subprocess.Popen[str]", str]]:
    """Run `vitft serve` or `label` with these words on a free port; yield also its first line."""
    command = [sys.executable, "-m", "vitft", *words, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with started(command, env=environment, **options) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.search(r":(\d+)/", line)
        assert found, child.communicate()
        yield Client(int(found[1])), child, line


@contextmanager
def serving(
    engine: Engine,
    limits: ServeLimits | None = None,
    postprocess: Postprocess | None = None,
    hosts: Sequence[str] = (),
) -> Iterator[Client]:
    """Run a server in a thread and stop it at the end."""
    limits = limits or ServeLimits()
    postprocess = postprocess or Postprocess(outputs=engine.outputs, top_k=99)
    with listen("127.0.0.1", 0) as bound:
        queue = BatchQueue(engine, postprocess, limits)
        server = make_server(make_app(queue, access_for("127.0.0.1", hosts)), limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield Client(bound.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


class QuietHandler(BaseHTTPRequestHandler):
    """A handler of `loopback` that logs nothing and outlives clients that go away."""

    stopping: ClassVar[threading.Event]
    """Set where the block of `loopback` ends."""

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def loopback(handler: type[QuietHandler]) -> Iterator[str]:
    """Answer HTTP on this machine with a handler; yield the address."""
    stopping = threading.Event()
    own = type("Own", (handler,), {"stopping": stopping})
    server = ThreadingHTTPServer(("127.0.0.1", 0), own)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()
