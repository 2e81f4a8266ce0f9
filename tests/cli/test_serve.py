"""Options of `vitft serve`: sizes, ports, addresses and defaults."""

import argparse
import gc
import weakref
from typing import Any

import pytest

from vitft.cli.main import build_parser, main
from vitft.cli.serve import browser_address, byte_count, check_port, run_server
from vitft.serve.limits import ServeLimits
from vitft.system.errors import Stopped, UsageError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500000", 500_000),
        (" 20MB ", 20_000_000),
        ("20 mb", 20_000_000),
        ("3k", 3_000),
        ("1G", 10**9),
        ("7B", 7),
    ],
)
def test_a_size_has_a_decimal_unit(text: str, number: int) -> None:
    assert byte_count(text) == number


@pytest.mark.parametrize("text", ["", "MB", "1.5MB", "20TB", "-1", "20MiB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number of bytes"):
        byte_count(text)


@pytest.mark.parametrize(
    ("port", "accepted"), [(-1, False), (0, True), (65535, True), (65536, False)]
)
def test_a_port_has_16_bits(port: int, accepted: bool) -> None:
    if accepted:
        check_port(port)
    else:
        with pytest.raises(UsageError, match=f"invalid --port {port}"):
            check_port(port)


def test_numbers_are_checked_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for wrong, text in (
        ("--port=99999", "--port"),
        ("--threshold=7", "--threshold"),
        ("--precision=0", "--precision"),
    ):
        assert main(["serve", "--run", "none", wrong]) == 2
        assert f"invalid {text}" in capsys.readouterr().err
    assert main(["serve", "--run", "none", "--precision", "0.9"]) == 5


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000/"),
        ("0.0.0.0", "http://127.0.0.1:8000/"),
        ("::", "http://127.0.0.1:8000/"),
        ("::1", "http://[::1]:8000/"),
        ("[::1]", "http://[::1]:8000/"),
        ("photos.example", "http://photos.example:8000/"),
    ],
)
def test_the_address_can_be_opened_on_this_machine(host: str, address: str) -> None:
    assert browser_address(host, 8000) == address


def test_by_default_only_this_machine_is_served() -> None:
    args = build_parser("serve").parse_args(["serve"])

    assert (args.host, args.port, args.device, args.run) == ("127.0.0.1", 8000, "auto", None)
    assert (args.allow_host, args.access_log) == ([], False)
    assert (args.max_bytes, args.queue) == (ServeLimits().max_bytes, ServeLimits().queue)
    assert (args.threshold, args.precision) == (None, None)


class Server:
    """A server that stops at once."""

    def __init__(self, exit_code: int, *, is_stopped: bool) -> None:
        self.exit_code, self.is_stopped = exit_code, is_stopped

    def run(self, *, sockets: list[object]) -> None:
        assert len(sockets) == 1
        if self.is_stopped:
            raise Stopped(143)


@pytest.mark.parametrize("is_stopped", [True, False])
@pytest.mark.parametrize("code", [0, 143])
def test_a_server_returns_its_exit_code_and_says_that_it_stopped(
    capsys: pytest.CaptureFixture[str], is_stopped: bool, code: int
) -> None:
    server = Server(code, is_stopped=is_stopped)

    assert run_server(server, object(), "serving at x") == code  # type: ignore[arg-type]

    printed = capsys.readouterr()
    assert printed.out == "serving at x\n"
    assert printed.err == "stopped\n" * bool(code)


def test_a_server_runs_without_garbage_and_with_all_objects_frozen() -> None:
    class Cycle:
        own: Any = None

    class Observer(Server):
        def run(self, *, sockets: list[object]) -> None:
            found.append((gone(), gc.get_freeze_count() > 1000, len(sockets)))

    found: list[object] = []
    cycle = Cycle()
    cycle.own = cycle
    gone = weakref.ref(cycle)
    gc.disable()
    gc.unfreeze()  # what the import of PyTorch has frozen
    try:
        del cycle
        assert gone() is not None
        run_server(Observer(0, is_stopped=False), object(), "serving")  # type: ignore[arg-type]
    finally:
        gc.unfreeze()
        gc.enable()

    assert found == [(None, True, 1)]
