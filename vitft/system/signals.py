"""Signal handling: stopping on a signal or at a time limit.

During a training step, the first signal is only recorded (`Stopper.deferred`), so that the weights
and the optimiser stay consistent. Elsewhere, and on a second signal, the program stops at once.
Does not import torch.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn

from vitft.system.errors import Stopped

SIGNALS = {
    getattr(signal, name): 130 if name == "SIGINT" else 143
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
    if hasattr(signal, name)
}
"""Exit code for each signal; job schedulers may send any of the four."""
EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextlib.contextmanager
def signal_handlers(handler: _Handler, numbers: Iterable[int] = SIGNALS) -> Iterator[None]:
    """Install a handler inside the `with` block, in the main thread; ignored signals stay ignored.

    Python's handlers do not run during a blocking call. With `signal.SIG_DFL`, a signal kills the
    process even then, so use it only while nothing is open that needs to be closed.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def exit_at_once(number: int, _: FrameType | None = None) -> NoReturn:
    """Handle a signal by exiting with the exit code that shells use for it."""
    with contextlib.suppress(OSError):  # a full or closed stderr
        os.write(2, b"vitft: interrupted\n")
    os._exit(128 + number)


class Stopper:
    """Context manager that raises `Stopped` on a signal or after a time limit (0 for none)."""

    def __init__(self, max_seconds: float = 0.0) -> None:
        self.deadline = time.monotonic() + max_seconds if max_seconds else float("inf")
        self.exit_code: int | None = None  # exit code for the signal received, if any
        self.depth = 0
        self.all_reduce_max: Callable[[int], int] = lambda request: request
        """Maximum over all processes of 0, or 1 + the exit code of one that must stop."""
        self.defers_all = False
        """Whether the first signal always waits for the end of the next `deferred` block."""
        self.is_urgent = False
        """Whether to stop without saving a state that may be inconsistent: after a second signal,
        or if a signal made a `deferred` block fail."""
        self.has_raised = False
        self.handlers = signal_handlers(self.handle)

    def __enter__(self) -> "Stopper":
        self.handlers.__enter__()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.handlers.__exit__(None, None, None)
        if self.caused(error):
            raise Stopped(self.exit_code or 130) from error

    def caused(self, error: BaseException | None) -> bool:
        """Return whether an error is the consequence of a signal that this object has handled.

        A library may convert Stopped into its own error, as safetensors and torch.compile do. The
        signal may also have terminated a compiler that torch.compile had started.
        """
        if self.exit_code is None or not isinstance(error, Exception):
            return False
        compiler = ("torch._dynamo.", "torch._inductor.")
        waiting, seen = list[BaseException]([error]), set[int]()
        while waiting and not self.has_raised:  # the error, and recursively its causes and contexts
            each = waiting.pop()
            if isinstance(each, KeyboardInterrupt) or type(each).__module__.startswith(compiler):
                return True
            seen.add(id(each))
            further = (each.__cause__, each.__context__)
            waiting += [e for e in further if e is not None and id(e) not in seen]
        return self.has_raised

    def handle(self, number: int, _: FrameType | None) -> None:
        """Record the signal; stop at once if it is the second signal or no block defers it."""
        self.is_urgent = self.exit_code is not None
        self.exit_code = SIGNALS[number]
        if self.is_urgent or not (self.depth or self.defers_all):
            self.has_raised = True
            raise Stopped(self.exit_code)

    @contextlib.contextmanager
    def deferred_locally(self) -> Iterator[None]:
        """Defer the first signal to the end of the (outermost) block, in this process only."""
        before = self.exit_code
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
        if self.exit_code is not None and before is None and not (self.depth or self.defers_all):
            raise Stopped(self.exit_code)

    @contextlib.contextmanager
    def deferred_to_next(self, *, when: bool) -> Iterator[None]:
        """Defer the first signal in this block to the end of the next `deferred` block, if `when`.

        This way, processes that train together stop after the same step.
        """
        self.defers_all = when
        try:
            yield
            if when:
                with self.deferred():
                    pass
        finally:
            self.defers_all = False

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """On the first signal or at the time limit, stop only at the end of the block.

        Raises:
            Stopped: A signal arrived, or the time limit was exceeded (exit code 0). If the block
                failed because of the signal, `is_urgent` is set.
        """
        self.depth += 1
        try:
            yield
        except Exception as error:
            if not self.caused(error):
                raise
            self.is_urgent = True  # the block is incomplete
            raise Stopped(self.exit_code or 130) from error
        finally:
            self.depth -= 1
        if not self.depth:
            is_late = time.monotonic() > self.deadline
            request = 1 + (self.exit_code or 0) if self.exit_code is not None or is_late else 0
            if agreed := self.all_reduce_max(request):
                raise Stopped(agreed - 1)
