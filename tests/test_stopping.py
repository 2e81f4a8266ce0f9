"""Signals and time limits."""

import os
import signal
import threading

import pytest

from vitft.errors import Stopped
from vitft.stopping import Stopper

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGUSR1": 143, "SIGHUP": 143}


def send(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_outside_of_a_step_a_signal_stops_at_once(name: str, code: int) -> None:
    with Stopper(), pytest.raises(Stopped) as caught:
        send(name)

    assert caught.value.exit_code == code


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_within_a_step_it_waits_for_its_end(name: str, code: int) -> None:
    done = []
    with Stopper() as stopper, pytest.raises(Stopped) as caught:  # noqa: PT012
        with stopper.deferred():
            send(name)
            done.append("the rest of the step")
        done.append("never")

    assert done == ["the rest of the step"]
    assert caught.value.exit_code == code


def test_a_second_signal_does_not_wait() -> None:
    done = []
    with Stopper() as stopper, pytest.raises(Stopped), stopper.deferred():  # noqa: PT012
        send("SIGTERM")
        done.append("first")
        send("SIGTERM")
        done.append("never")

    assert done == ["first"]


def test_an_error_of_the_step_is_not_hidden_by_a_signal() -> None:
    def step(stopper: Stopper) -> None:
        with stopper.deferred():
            send("SIGTERM")
            raise ValueError("the step's own")

    with Stopper() as stopper, pytest.raises(ValueError, match="the step's own"):
        step(stopper)


def test_the_time_is_up_after_a_step_with_exit_code_0() -> None:
    with Stopper(1e-9) as stopper, pytest.raises(Stopped) as caught, stopper.deferred():
        pass

    assert caught.value.exit_code == 0


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(getattr(signal, name)) for name in CODES]

    with Stopper():
        pass

    assert [signal.getsignal(getattr(signal, name)) for name in CODES] == before


def test_what_the_caller_ignores_stays_ignored() -> None:  # as nohup does with SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopper():
            send("SIGHUP")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_nothing_is_touched() -> None:
    results = []

    def work() -> None:
        with Stopper() as stopper, stopper.deferred():
            results.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert results == [before]
