"""The server around the application: its settings, its end, and the timers of a connection."""

import asyncio
import os
import signal
import socket
import sys
import threading
from typing import Any

import pytest
import uvicorn

from tests.serve.test_limits import connection
from vitft.serve import limits
from vitft.serve.server import Server, TimeoutProtocol, listen, server_of
from vitft.system.errors import UsageError


async def app(*_: object) -> None:
    """Answer nothing."""


def test_a_server_that_ends_in_time_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals: list[float] = []

    def run(server: Server, sockets: object) -> None:
        assert sockets == []
        intervals.append(sys.getswitchinterval())
        server.handle_exit(signal.SIGTERM, None)

    monkeypatch.setattr(uvicorn.Server, "run", run)
    before = sys.getswitchinterval()
    server = server_of(app)

    server.run([])

    assert server.watchdog is not None
    assert server.watchdog.finished.is_set()
    assert server.watchdog.args == [143]
    assert server.watchdog.function is os._exit
    assert intervals == [pytest.approx(limits.SWITCH_SECONDS)]
    assert sys.getswitchinterval() == before


def test_a_server_without_a_signal_has_no_exit_code_and_no_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_: None)
    server = server_of(app)
    threads = threading.active_count()

    server.run()

    assert (server.exit_code, server.watchdog) == (0, None)
    assert threading.active_count() == threads


def test_the_settings_of_uvicorn_reveal_nothing_and_trust_no_proxy() -> None:
    config = server_of(app).config

    assert config.app is app
    assert config.http is TimeoutProtocol
    assert (config.server_header, config.proxy_headers, config.access_log) == (False, False, False)
    assert (config.ws, config.loop, config.lifespan) == ("none", "asyncio", "on")
    assert config.timeout_graceful_shutdown == limits.GRACE_SECONDS - limits.DRAIN_SECONDS == 3
    assert limits.GRACE_SECONDS < limits.STOP_SECONDS


def test_timers_of_a_lost_connection_are_cancelled() -> None:
    async def check() -> None:
        protocol, transport = connection()
        protocol.pause_writing()
        timers = protocol.head_timer, protocol.write_timer
        assert all(timer is not None and not timer.cancelled() for timer in timers)
        assert transport.max_size == limits.READ_BYTES
        protocol.connection_lost(None)
        assert all(timer is not None and timer.cancelled() for timer in timers)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: x", b"HTTP/1.1 408 Request Timeout"),
    ],
)
def test_a_connection_has_ten_seconds_for_headers(sent: bytes, answer: bytes) -> None:
    async def check() -> None:
        protocol, transport = connection()
        timer = protocol.head_timer
        assert timer is not None
        assert timer.when() - protocol.loop.time() == pytest.approx(10, abs=1)
        if sent:
            protocol.data_received(sent)
        assert protocol.head_timer is timer  # incomplete headers do not extend it
        protocol.head_timed_out()
        written = b"".join(call.args[0] for call in transport.write.call_args_list)
        assert written.startswith(answer)
        assert bool(written) == bool(answer)
        assert b'{"error": "the request was sent too slowly"}' in written or not answer
        (transport.write_eof if answer else transport.close).assert_called_once()
        protocol.connection_lost(None)

    asyncio.run(check())


def test_headers_that_have_arrived_stop_the_timer_until_the_response_is_complete() -> None:
    async def check() -> None:
        protocol, transport = connection()
        first = protocol.head_timer
        protocol.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert first is not None
        assert first.cancelled()
        assert (protocol.head_timer, protocol.is_idle, protocol.is_chunked) == (None, False, True)
        protocol.head_timed_out()  # has no effect on a request that is being answered
        transport.close.assert_not_called()
        protocol.connection_lost(None)

    asyncio.run(check())


def test_a_port_in_use_and_an_unknown_host_are_named() -> None:
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) != 0
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {port}: ") as used:
            listen("127.0.0.1", port)
    assert (used.value.fix or "").startswith("choose one of this machine's addresses with --host")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_an_address_may_have_brackets(host: str) -> None:
    try:
        bound: Any = listen(host, 0)
    except UsageError:
        assert host == "[::1]"
        pytest.skip("this machine has no IPv6")
    with bound:
        assert bound.getsockname()[0] == host.strip("[]")
