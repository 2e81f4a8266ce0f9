"""When a program that takes hours should stop: a signal, or its time is up.

A first signal only takes note while a step is under way (`deferred`), so that weights and
optimiser are never caught between two states; anywhere else, and at a second signal, it stops at
once. Nothing here imports torch.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from vitft.system.errors import Stopped

SIGNALS = {
    name: 130 if name == "SIGINT" else 143 for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
}
"""Exit code by signal, as far as this system has it; schedulers send all four."""


class Stopper:
    """Use as a context manager around a run.

    Args:
        max_seconds: After which the run should stop as if it had been asked to; 0: never.
    """

    def __init__(self, max_seconds: float = 0.0) -> None:
        self.deadline = time.monotonic() + max_seconds if max_seconds else float("inf")
        self.exit_code: int | None = None
        """Of the signal that was noted, if one was."""
        self.holding = 0
        self.agree: Callable[[int], int] = lambda wish: wish
        """What several processes make of their wishes: the largest of them."""
        self.is_patient = False
        """Whether a first signal waits for the end of a step wherever it arrives."""
        self.is_urgent = False
        """Whether a second signal came: stop at once, and save nothing that may be half done."""
        self.has_raised = False
        self.before: dict[int, object] = {}

    def __enter__(self) -> "Stopper":
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for name in SIGNALS:
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self.handle)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() gave us
        ended = (KeyboardInterrupt, SystemExit)
        if self.has_raised and error is not None and not isinstance(error, ended):
            # A library took the Stopped for a fault of its own: safetensors for a damaged file.
            raise Stopped(self.exit_code or 130) from error

    def handle(self, number: int, _: FrameType | None) -> None:
        """Note the signal, and stop at once unless a step is under way."""
        self.is_urgent = self.exit_code is not None
        self.exit_code = SIGNALS[signal.Signals(number).name]
        if self.is_urgent or not (self.holding or self.is_patient):
            self.has_raised = True
            raise Stopped(self.exit_code)

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.deadline

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let a first signal wait for the end of something short, in this process alone.

        Raises:
            Stopped: There was one, and what was under way raised nothing itself.
        """
        before = self.exit_code
        self.holding += 1
        try:
            yield
        finally:
            self.holding -= 1
        if self.exit_code is not None and before is None and not (self.holding or self.is_patient):
            raise Stopped(self.exit_code)

    @contextlib.contextmanager
    def patient(self, *, when: bool) -> Iterator[None]:
        """Let a first signal wait for the next end of something `deferred`, wherever it arrives.

        Several processes that take steps together stop after the same one.
        """
        self.is_patient = when
        try:
            yield
            if when:
                with self.deferred():
                    pass
        finally:
            self.is_patient = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a first signal, or the end of the time, wait for the end of what is under way.

        Raises:
            Stopped: There was one, or the time is up; its exit code is then 0.
        """
        self.holding += 1
        try:
            yield
        finally:
            self.holding -= 1
        if not self.holding:
            wish = 1 + (self.exit_code or 0) if self.exit_code is not None or self.is_late else 0
            agreed = self.agree(wish)
            if agreed:
                raise Stopped(agreed - 1)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Around a call that may wait for minutes and never looks at Python's handlers meanwhile.

    A signal then ends the process as the system does it; nothing may be open that needs an end.
    """
    before: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (getattr(signal, name, None) for name in SIGNALS)
        for number in (n for n in numbers if n is not None):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() gave us
