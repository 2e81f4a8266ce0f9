"""Signals and time limits."""

import os
import signal

import pytest

from tests.support.children import python
from vitft.system import Stopped, Stopper

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGUSR1": 143, "SIGHUP": 143}


def send(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_a_signal_raises_at_once_but_within_a_step_at_its_end(name: str, code: int) -> None:
    with Stopper(), pytest.raises(Stopped) as at_once:
        send(name)
    done = []
    for block in ("deferred", "deferred_locally"):
        with Stopper() as stopper, pytest.raises(Stopped) as caught:  # noqa: PT012
            with getattr(stopper, block)():
                send(name)
                done.append("the rest of the step")
            done.append("never")
        assert caught.value.exit_code == at_once.value.exit_code == code

    assert done == ["the rest of the step"] * 2


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
            error = ValueError("the step's own")
            raise error from error  # as libraries that keep an error may do

    with Stopper() as stopper, pytest.raises(ValueError, match="the step's own"):
        step(stopper)


def test_the_time_limit_stops_after_a_step_with_exit_code_0() -> None:
    with Stopper(1e-9) as stopper, pytest.raises(Stopped) as caught, stopper.deferred():
        pass

    assert caught.value.exit_code == 0


def test_ignored_signals_stay_ignored() -> None:  # as nohup does with SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopper():
            send("SIGHUP")
    finally:
        signal.signal(signal.SIGHUP, before)


class CompilerError(RuntimeError):
    """An error of torch.compile."""


CompilerError.__module__ = "torch._inductor.exc"


def converted(name: str) -> None:
    """Raise what a library does that converts `Stopped` to its own error, as safetensors does."""
    try:
        send(name)
    except BaseException as stop:
        try:
            raise RuntimeError("backend='inductor' raised") from stop
        except RuntimeError as error:
            raise ValueError("compile error") from error


def test_a_signal_that_a_library_converts_to_its_own_error_still_stops() -> None:
    with pytest.raises(Stopped) as caught, Stopper():
        converted("SIGTERM")

    assert caught.value.exit_code == 143


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_compiler_that_a_signal_ended_within_a_step_stops_the_run(
    name: str, *, is_second: bool
) -> None:
    with Stopper() as stopper, pytest.raises(Stopped) as caught, stopper.deferred():  # noqa: PT012
        send(name)
        if is_second:
            converted(name)
        raise CompilerError("C++ compile error")

    assert caught.value.exit_code == CODES[name]
    assert stopper.is_urgent  # the step is incomplete: do not save its state


def test_several_processes_stop_after_the_same_step() -> None:
    asked: list[int] = []

    def agree(wish: int) -> int:
        asked.append(wish)
        return wish

    with Stopper() as stopper, pytest.raises(Stopped):  # noqa: PT012
        stopper.all_reduce_max = agree
        with stopper.deferred_to_next(when=True):
            send("SIGTERM")  # between two steps
            assert asked == []

    assert asked == [144]


WHILE_IMPORTING = """
import os, signal, sys
from vitft.__main__ import run

class Finder:
    def find_spec(self, name, *rest):
        if name == "vitft.cli.main":
            os.kill(os.getpid(), signal.{name})

sys.meta_path.insert(0, Finder())
run()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_the_command_is_imported_ends_it_without_a_traceback(
    name: str, code: int
) -> None:
    done = python(WHILE_IMPORTING.format(name=name))

    assert (done.returncode, done.stderr) == (code, "vitft: interrupted\n")


def test_only_the_outermost_step_stops() -> None:
    done = []
    with Stopper() as stopper, pytest.raises(Stopped):  # noqa: PT012
        with stopper.deferred():
            with stopper.deferred():
                send("SIGTERM")
            done.append("inner")
            with stopper.deferred_locally():
                done.append("local")
        done.append("never")

    assert done == ["inner", "local"]


def test_processes_tell_each_other_the_exit_code_of_their_signal() -> None:
    asked: list[int] = []

    def agree(wish: int) -> int:
        asked.append(wish)
        return 131  # another process received SIGINT

    with Stopper() as stopper, pytest.raises(Stopped) as caught:  # noqa: PT012
        stopper.all_reduce_max = agree
        with stopper.deferred():
            pass

    assert (asked, caught.value.exit_code) == ([0], 130)
    asked.clear()
    with Stopper(1e-9) as late, pytest.raises(Stopped):  # noqa: PT012
        late.all_reduce_max = agree
        with late.deferred():
            pass
    assert asked == [1]
