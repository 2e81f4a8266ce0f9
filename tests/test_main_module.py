"""The entry point of the command."""

import signal
from collections.abc import Iterator

import pytest

from vitft import __main__ as entry
from vitft.system import EXIT_SIGNALS, SIGNALS


class EndedError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the signal handlers afterwards."""
    before = {number: signal.getsignal(number) for number in EXIT_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("code", [0, 3, 6, *SIGNALS.values()])
def test_only_a_stopped_command_does_not_wait_for_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, handlers: None, code: int
) -> None:
    ended: list[int] = []

    def end(code: int) -> None:
        ended.append(code)
        raise EndedError

    monkeypatch.setattr("vitft.cli.main.main", lambda: code)
    monkeypatch.setattr("os._exit", end)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    with pytest.raises((EndedError, SystemExit)) as stopped:
        entry.run()

    if code in SIGNALS.values():
        assert ended == [code]
    else:
        assert ended == []
        assert stopped.value.args == (code,)
