"""Stopping on a signal or after a time limit.

During a training step a first signal is only recorded (`Stopper.deferred`), so that weights and
optimiser are always consistent. Anywhere else, and on a second signal, the program stops at once.
Does not import torch.
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
"""Exit code by signal, of those that the system has; schedulers send all four."""


class Stopper:
    """Context manager that turns signals and a time limit into `Stopped`.

    Args:
        max_seconds: Time limit; 0 for none.
    """

    def __init__(self, max_seconds: float = 0.0) -> None:
        self.deadline = time.monotonic() + max_seconds if max_seconds else float("inf")
        self.exit_code: int | None = None
        """Exit code of the signal that was received, if any."""
        self.holding = 0
        self.agree: Callable[[int], int] = lambda request: request
        """All-reduce of the processes' requests to stop, by maximum."""
        self.is_patient = False
        """Whether a first signal always waits for the end of the next `deferred` block."""
        self.is_urgent = False
        """Whether a second signal arrived: stop at once and do not save an inconsistent state."""
        self.has_raised = False
        self.before: dict[int, object] = {}

    def __enter__(self) -> "Stopper":
        if threading.current_thread() is threading.main_thread():  # others cannot set handlers
            for name in SIGNALS:
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self.handle)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as returned by signal()
        ended = (KeyboardInterrupt, SystemExit)
        if self.has_raised and error is not None and not isinstance(error, ended):
            # A library converted Stopped into its own error, as safetensors does.
            raise Stopped(self.exit_code or 130) from error

    def handle(self, number: int, _: FrameType | None) -> None:
        """Record the signal, and stop at once unless a block defers it."""
        self.is_urgent = self.exit_code is not None
        self.exit_code = SIGNALS[signal.Signals(number).name]
        if self.is_urgent or not (self.holding or self.is_patient):
            self.has_raised = True
            raise Stopped(self.exit_code)

    @property
    def is_late(self) -> bool:
        """Whether the time limit is exceeded."""
        return time.monotonic() > self.deadline

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Defer a first signal to the end of the block, in this process only.

        Raises:
            Stopped: A signal arrived, and the block raised nothing.
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
        """Defer a first signal to the end of the next `deferred` block, wherever it arrives.

        Processes that train together thus stop after the same step.
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
        """Defer a first signal, or the time limit, to the end of the block.

        Raises:
            Stopped: A signal arrived, or the time limit is exceeded (exit code 0).
        """
        self.holding += 1
        try:
            yield
        finally:
            self.holding -= 1
        if not self.holding:
            request = 1 + (self.exit_code or 0) if self.exit_code is not None or self.is_late else 0
            agreed = self.agree(request)
            if agreed:
                raise Stopped(agreed - 1)


@contextlib.contextmanager
def default_handlers() -> Iterator[None]:
    """Install the default handlers around a blocking call during which Python's do not run.

    A signal then kills the process, so nothing may be open that needs to be closed.
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
            signal.signal(number, handler)  # type: ignore[arg-type]  # as returned by signal()
