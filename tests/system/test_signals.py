"""Signals and time limits."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from vitft.cli.main import main
from vitft.system.errors import Stopped
from vitft.system.signals import Stopper, causes, is_interruption, signal_handlers

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGUSR1": 143, "SIGHUP": 143}


def send(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_outside_of_a_step_a_signal_raises_immediately(name: str, code: int) -> None:
    with Stopper(), pytest.raises(Stopped) as caught:
        send(name)

    assert caught.value.exit_code == code


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_within_a_step_a_signal_is_deferred_to_its_end(name: str, code: int) -> None:
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


def test_the_time_limit_stops_after_a_step_with_exit_code_0() -> None:
    with Stopper(1e-9) as stopper, pytest.raises(Stopped) as caught, stopper.deferred():
        pass

    assert caught.value.exit_code == 0


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(getattr(signal, name)) for name in CODES]

    with Stopper():
        pass

    assert [signal.getsignal(getattr(signal, name)) for name in CODES] == before


def test_ignored_signals_stay_ignored() -> None:  # as nohup does with SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopper():
            send("SIGHUP")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_handlers_are_unchanged() -> None:
    results = []

    def work() -> None:
        with Stopper() as stopper, stopper.deferred():
            results.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert results == [before]


def test_a_signal_that_a_library_converts_to_its_own_error_still_stops() -> None:
    def load() -> None:
        try:
            send("SIGTERM")
        except BaseException as error:  # as safetensors does
            raise ValueError("damaged file") from error

    with pytest.raises(Stopped) as caught, Stopper():
        load()

    assert caught.value.exit_code == 143


def wrapped_by_the_compiler() -> None:
    """Raise as torch.compile does when Stopped is raised inside it."""
    try:
        send("SIGTERM")  # the second one
    except BaseException as stop:
        try:
            raise RuntimeError("backend='inductor' raised") from stop
        except RuntimeError as error:
            raise ValueError("compile error") from error


class CompilerError(RuntimeError):
    """An error of torch.compile."""


CompilerError.__module__ = "torch._inductor.exc"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_compiler_that_a_signal_ended_within_a_step_stops_the_run(name: str) -> None:
    with Stopper() as stopper, pytest.raises(Stopped) as caught, stopper.deferred():  # noqa: PT012
        send(name)
        raise CompilerError("C++ compile error")

    assert caught.value.exit_code == CODES[name]
    assert stopper.is_urgent  # the step is incomplete: do not save its state


def test_an_error_of_the_compiler_without_a_signal_is_raised() -> None:
    with pytest.raises(CompilerError), Stopper() as stopper, stopper.deferred():
        raise CompilerError("C++ compile error")


def test_a_second_signal_that_the_compiler_converts_to_its_own_error_stops_the_run() -> None:
    with Stopper() as stopper, pytest.raises(Stopped) as caught, stopper.deferred():  # noqa: PT012
        send("SIGTERM")
        wrapped_by_the_compiler()

    assert caught.value.exit_code == 143
    assert stopper.is_urgent


def test_locally_deferred_blocks_finish_before_a_signal_is_raised() -> None:
    done = []
    with Stopper() as stopper, pytest.raises(Stopped) as caught:  # noqa: PT012
        with stopper.deferred_locally():
            send("SIGTERM")
            done.append("the rest of it")
        done.append("never")

    assert done == ["the rest of it"]
    assert caught.value.exit_code == 143


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


def test_default_handlers_are_restored_around_blocking_calls() -> None:
    with Stopper():
        own = signal.getsignal(signal.SIGTERM)
        with signal_handlers(signal.SIG_DFL):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) == own


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
    done = subprocess.run(
        [sys.executable, "-c", WHILE_IMPORTING.format(name=name)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (code, "vitft: interrupted\n")


def test_a_signal_ends_every_command_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vitft.cli.cache.list_cache", lambda _: send("SIGTERM"))

    code = main(["cache", "list"])

    assert code == 143
    assert capsys.readouterr().err == "vitft: interrupted\n"


def test_without_a_time_limit_a_step_never_stops() -> None:
    with Stopper() as stopper, stopper.deferred():
        pass

    assert stopper.deadline == float("inf")
    assert Stopper(60).deadline == pytest.approx(time.monotonic() + 60, abs=5)


def test_a_step_within_the_time_limit_does_not_stop() -> None:
    with Stopper(60) as stopper, stopper.deferred():
        pass


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


def test_a_signal_before_a_local_block_is_left_to_the_step_around_it() -> None:
    done = []
    with Stopper() as stopper, pytest.raises(Stopped):  # noqa: PT012
        with stopper.deferred_to_next(when=True):
            send("SIGTERM")
            with stopper.deferred_locally():
                done.append("local")
            done.append("after")
        done.append("never")

    assert done == ["local", "after"]
    assert not stopper.defers_all


def test_a_signal_that_is_not_deferred_to_the_next_step_raises_at_once() -> None:
    done = []
    with Stopper() as stopper, pytest.raises(Stopped):  # noqa: PT012
        with stopper.deferred_to_next(when=False):
            send("SIGTERM")
            done.append("never")
        done.append("never")

    assert done == []
    with Stopper(1e-9) as late, late.deferred_to_next(when=False):
        pass  # the limit is checked by steps only


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


def test_a_deferred_signal_is_not_urgent_and_a_second_one_is() -> None:
    with Stopper() as stopper, pytest.raises(Stopped), stopper.deferred():  # noqa: PT012
        send("SIGTERM")
        assert (stopper.is_urgent, stopper.has_raised, stopper.exit_code) == (False, False, 143)
        send("SIGINT")

    assert (stopper.is_urgent, stopper.has_raised, stopper.exit_code) == (True, True, 130)


def test_all_causes_and_contexts_of_an_error_are_found_once() -> None:
    cause, context, error = ValueError(), KeyError(), RuntimeError()
    error.__cause__, error.__context__ = cause, context
    cause.__context__ = error  # a circle

    assert {*map(id, causes(error))} == {*map(id, (error, cause, context))}
    assert len([*causes(error)]) == 3
    assert [*causes(context)] == [context]


@pytest.mark.parametrize(
    ("module", "found"),
    [("torch._dynamo.exc", True), ("torch._inductor.exc", True), ("torch.nn", False)],
)
def test_errors_inside_the_compiler_may_come_from_a_signal(module: str, found: bool) -> None:
    kind = type("SomeError", (RuntimeError,), {"__module__": module})

    assert is_interruption(kind()) is found
    assert is_interruption(KeyboardInterrupt())
    assert is_interruption(Stopped(143))


def test_only_the_given_signals_are_handled() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with signal_handlers(signal.SIG_DFL, (signal.SIGUSR1,)):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_process_that_exits_at_once_says_so_with_the_code_of_shells(name: str, code: int) -> None:
    program = (
        f"import signal; from vitft.system.signals import exit_at_once\nexit_at_once(signal.{name})"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (code, "vitft: interrupted\n")
